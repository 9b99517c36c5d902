//! What measured processes inherit from the harness: processors and the layout of addresses.
//!
//! Both are set on the thread that starts children, just before, and reset just after. Children
//! inherit them through `fork` and `exec`, so there is nothing to restore later.

use std::process::{Child, Command};
use std::sync::OnceLock;

use anyhow::{Context, bail, ensure};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::list;

/// Numbers of processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Processors(pub(crate) Vec<usize>);

/// What the measured processes of this command inherit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surroundings {
    /// Processors of the measured processes; all by default.
    pub(crate) pin: Option<Processors>,
    /// Whether addresses are the same in all of them.
    pub(crate) no_aslr: bool,
}

static SURROUNDINGS: OnceLock<Surroundings> = OnceLock::new();

/// Numbers of processors, as a person would write them.
pub(crate) fn listed(processors: &[usize]) -> String {
    let words: Vec<String> = processors.iter().map(usize::to_string).collect();
    words.join(", ")
}

/// Sets the surroundings of all processes measured from now on. The harness moves to the other
/// processors.
///
/// # Errors
/// When this process may not use one of the processors.
pub(crate) fn set_surroundings(surroundings: Surroundings) -> anyhow::Result<()> {
    if let Some(pin) = &surroundings.pin {
        let all = affinity()?;
        if let Some(missing) = pin.0.iter().find(|cpu| !all.contains(cpu)) {
            let all = listed(&all);
            bail!("--pin: there is no processor {missing} for this command; there are: {all}");
        }
        let others: Vec<usize> = all.into_iter().filter(|cpu| !pin.0.contains(cpu)).collect();
        if others.is_empty() {
            eprintln!("note: --pin leaves no processor to the harness: it shares those");
        } else {
            pin_to(&others)?;
        }
    }
    // Verbs that measure twice in one command use the same ones.
    let _ = SURROUNDINGS.set(surroundings);
    Ok(())
}

/// Starts `command` in the surroundings that were set.
pub(super) fn spawn(command: &mut Command) -> anyhow::Result<Child> {
    let surroundings = SURROUNDINGS.get().cloned().unwrap_or_default();
    let own = affinity()?;
    if let Some(pin) = &surroundings.pin {
        pin_to(&pin.0)?;
    }
    let personality = if surroundings.no_aslr { Some(fixed_addresses()?) } else { None };
    let child = command.spawn().context("starting the measured process");
    if let Some(before) = personality {
        // SAFETY: restores this process's previous setting.
        unsafe { libc::personality(before) };
    }
    if surroundings.pin.is_some() {
        pin_to(&own)?;
    }
    child
}

/// Makes programs started from here get the same addresses each time. Returns the previous setting.
fn fixed_addresses() -> anyhow::Result<libc::c_ulong> {
    // SAFETY: this argument asks and changes nothing.
    let before = unsafe { libc::personality(0xFFFF_FFFF) };
    ensure!(before >= 0, "the layout of addresses cannot be asked for");
    let wanted = before as libc::c_ulong | libc::ADDR_NO_RANDOMIZE as libc::c_ulong;
    // SAFETY: takes effect on the next `exec` alone.
    let done = unsafe { libc::personality(wanted) };
    ensure!(done >= 0, "--no-aslr: {}", std::io::Error::last_os_error());
    Ok(before as libc::c_ulong)
}

/// The processors that this thread may run on.
///
/// # Errors
/// When the kernel does not say.
pub(crate) fn affinity() -> anyhow::Result<Vec<usize>> {
    let set = sched_getaffinity(None).context("the processors of this process")?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Keeps this thread, and the processes that it starts, on `cpus`.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn pin_to(cpus: &[usize]) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    sched_setaffinity(None, &set).with_context(|| format!("processors {cpus:?}"))
}

/// Reads `1,2-5`.
///
/// # Errors
/// When the text is no list of processors.
pub(crate) fn parse_processors(text: &str) -> Result<Processors, String> {
    let number = |word: &str| {
        let cpu = word.trim().parse::<usize>().ok();
        cpu.filter(|&cpu| cpu < CpuSet::MAX_CPU)
            .ok_or_else(|| format!("`{word}` is no processor: write it like 1 or 2-5,7"))
    };
    let mut cpus = Vec::new();
    for part in text.split(',') {
        cpus.extend(list::range(part, number)?);
    }
    Ok(Processors(cpus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_read() {
        assert_eq!(parse_processors("1,3-5"), Ok(Processors(vec![1, 3, 4, 5])));
        for wrong in ["", "a", "1,", "5-3", "1,5-3", "99999"] {
            assert!(parse_processors(wrong).is_err(), "{wrong}");
        }
    }
}
