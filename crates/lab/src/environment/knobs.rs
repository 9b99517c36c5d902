//! Settings of the machine that can be changed from outside and make measurements drift.
//!
//! Transparent huge pages are not among them: they belong to what is measured. Addresses and
//! processors are set for each measured process and need no restoring (see [`crate::runner`]).

use std::fs;
use std::path::{Path, PathBuf};

/// One setting in a file of the kernel.
#[derive(Clone, Debug)]
pub(crate) struct Knob {
    /// What people call it.
    pub(crate) name: String,
    /// The file that holds it.
    pub(crate) path: PathBuf,
    /// The best value for measuring.
    pub(crate) wanted: &'static str,
}

impl Knob {
    fn new(name: &str, path: PathBuf, wanted: &'static str) -> Self {
        Self { name: name.to_owned(), path, wanted }
    }

    /// Its current value; `None` when the machine does not show it.
    pub(crate) fn now(&self) -> Option<String> {
        Some(chosen(&fs::read_to_string(&self.path).ok()?))
    }
}

/// The value in force: in `always [madvise] never` the one in brackets.
pub(super) fn chosen(text: &str) -> String {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(text, |(value, _)| value).trim().to_owned()
}

/// Every knob that this machine could have. [`Knob::now`] tells which of them it lacks.
pub(crate) fn knobs() -> Vec<Knob> {
    let root = super::system_root();
    let cpus = root.join("sys/devices/system/cpu");
    let mut knobs: Vec<Knob> = processors(&cpus)
        .into_iter()
        .map(|(number, path)| {
            Knob::new(&format!("governor of processor {number}"), path, "performance")
        })
        .collect();
    if knobs.is_empty() {
        let path = cpus.join("cpu0/cpufreq/scaling_governor");
        knobs.push(Knob::new("governor", path, "performance"));
    }
    // Intel's own driver has its own file, with the opposite meaning.
    let intel = cpus.join("intel_pstate/no_turbo");
    knobs.push(if intel.exists() {
        Knob::new("turbo (no_turbo)", intel, "1")
    } else {
        Knob::new("turbo (boost)", cpus.join("cpufreq/boost"), "0")
    });
    let numa = root.join("proc/sys/kernel/numa_balancing");
    knobs.push(Knob::new("moving of pages between nodes", numa, "0"));
    knobs.push(Knob::new("merging of equal pages", root.join("sys/kernel/mm/ksm/run"), "0"));
    knobs
}

/// The processors with a governor, by number.
fn processors(cpus: &Path) -> Vec<(u32, PathBuf)> {
    let entries = fs::read_dir(cpus).into_iter().flatten().flatten();
    let mut found: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("cpu")?.parse().ok()?;
            let path = entry.path().join("cpufreq/scaling_governor");
            path.exists().then_some((number, path))
        })
        .collect();
    found.sort_unstable();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_in_brackets_is_the_one_in_force() {
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(chosen("performance\n"), "performance");
    }
}
