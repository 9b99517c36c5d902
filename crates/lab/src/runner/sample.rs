//! Looking at a running process from outside.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Resident memory at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// `CLOCK_MONOTONIC`, ns.
    pub(crate) at_ns: u64,
    /// Resident memory of the process and its descendants, bytes.
    pub(crate) bytes: u64,
}

/// Fewer looks than this tell no mean: one or two may fall upon the beginning alone.
const LEAST_SAMPLES: usize = 4;

/// Time-weighted mean of resident memory between `start_ns` and `end_ns`, bytes; `None` when hardly
/// a sample lies within.
///
/// Each sample holds until the next: what a process had between two looks is not known better.
pub(crate) fn mean_bytes(samples: &[Sample], start_ns: u64, end_ns: u64) -> Option<f64> {
    let within: Vec<Sample> = samples
        .iter()
        .copied()
        .filter(|sample| (start_ns..=end_ns).contains(&sample.at_ns))
        .collect();
    let first = within.first().filter(|_| within.len() >= LEAST_SAMPLES)?;
    if first.at_ns >= end_ns {
        return Some(first.bytes as f64);
    }
    let ends = within.iter().skip(1).map(|sample| sample.at_ns).chain([end_ns]);
    let area: f64 = within
        .iter()
        .zip(ends)
        .map(|(sample, end)| sample.bytes as f64 * (end - sample.at_ns) as f64)
        .sum();
    Some(area / (end_ns - first.at_ns) as f64)
}

/// Resident memory of `pid` and its descendants now, bytes; `None` when it has ended.
pub(super) fn resident_bytes(pid: i32) -> Option<u64> {
    let own = fs::read_to_string(format!("/proc/{pid}/statm"))
        .ok()?
        .split_ascii_whitespace()
        .nth(1)?
        .parse::<u64>()
        .ok()?
        * crate::machine::page_bytes();
    // What has ended and was not waited for yet has nothing.
    if own == 0 {
        return None;
    }
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok();
    let below: u64 = children
        .iter()
        .flat_map(|list| list.split_ascii_whitespace())
        .filter_map(|child| resident_bytes(child.parse().ok()?))
        .sum();
    Some(own + below)
}

/// Whether `pid` still runs this very executable.
pub(super) fn is_this_executable(pid: i32) -> bool {
    let own = fs::read_link("/proc/self/exe").ok();
    own.is_some() && own == fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// Whether `library` is mapped in `pid`; `None` when that cannot be seen (any more).
pub(super) fn is_mapped(pid: i32, library: &Path) -> Option<bool> {
    let maps = fs::read(format!("/proc/{pid}/maps")).ok().filter(|maps| !maps.is_empty())?;
    let library = library.as_os_str().as_bytes();
    Some(maps.split(|&byte| byte == b'\n').any(|line| line.ends_with(library)))
}

/// Time the hypervisor has taken from all processors since boot, ns.
pub(super) fn steal_ns() -> u64 {
    // SAFETY: `sysconf` reads a constant of the system.
    let ticks_per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64;
    fs::read_to_string("/proc/stat")
        .ok()
        .and_then(|stat| stat.lines().next()?.split_ascii_whitespace().nth(8)?.parse::<u64>().ok())
        .map_or(0, |ticks| ticks * 1_000_000_000 / ticks_per_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_weighted_by_time() {
        let samples = [
            Sample { at_ns: 5, bytes: 999 },
            Sample { at_ns: 10, bytes: 100 },
            Sample { at_ns: 20, bytes: 100 },
            Sample { at_ns: 40, bytes: 200 },
            Sample { at_ns: 45, bytes: 200 },
            Sample { at_ns: 60, bytes: 999 },
        ];
        // 100 for 30 ns, 200 for 10 ns.
        assert_eq!(mean_bytes(&samples, 10, 50), Some(125.0));
        assert_eq!(mean_bytes(&samples, 11, 50), None, "three looks are too few");
        assert_eq!(mean_bytes(&samples, 11, 15), None);
    }

    #[test]
    fn this_process_is_resident_and_maps_its_c_library() {
        let pid = std::process::id() as i32;
        assert!(resident_bytes(pid).unwrap() > 100_000);
        assert_eq!(is_mapped(pid, Path::new("/no/such/library.so")), Some(false));
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        let stat = format!("/proc/{}/stat", ended.id());
        while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
            std::thread::yield_now();
        }
        assert_eq!(resident_bytes(ended.id() as i32), None);
        ended.wait().unwrap();
    }
}
