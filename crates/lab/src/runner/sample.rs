//! Observing a running process from outside.

use std::fs;

use anyhow::Context;

use super::served::{Lookout, Served, tick_ns};
use crate::measure::{monotonic_ns, resident_bytes_of, thread_time_ns};

/// Resident memory at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// `CLOCK_MONOTONIC`, ns.
    pub(crate) at_ns: u64,
    /// Resident memory of the process and its descendants, bytes.
    pub(crate) bytes: u64,
}

/// Fewer samples than this give no mean: one or two may all come from the beginning.
const LEAST_SAMPLES: usize = 4;

/// Time-weighted mean of resident memory between `start_ns` and `end_ns`, bytes; `None` when too
/// few samples lie within.
///
/// Each sample counts until the next: nothing better is known about the time between two samples.
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

/// A process and its descendants.
#[derive(Debug)]
pub(super) struct Tree {
    root: i32,
    /// The descendants of the root, as last looked at.
    below: Vec<i32>,
    /// When the descendants are looked for again, `CLOCK_MONOTONIC`, ns.
    due_ns: u64,
    /// Sees whether the processes have the allocator. `None` if they report that themselves.
    lookout: Option<Lookout>,
}

/// The search for descendants takes at most one part in this many of a processor's time: it reads a
/// file for each thread, and there may be thousands. While it waits for a processor it takes none:
/// on a busy machine the next search would otherwise come too late for a short program.
const SHARE_OF_TIME: u64 = 100;

impl Tree {
    /// The tree of `root`, not looked at yet.
    pub(super) fn of(root: i32, lookout: Option<Lookout>) -> Self {
        Self { root, below: Vec::new(), due_ns: 0, lookout }
    }

    /// What was seen of the allocator.
    pub(super) fn served(self) -> Served {
        self.lookout.map(Lookout::served).unwrap_or_default()
    }

    /// Resident memory of all of them now, bytes; `None` when the root has ended.
    pub(super) fn resident_bytes(&mut self) -> Option<u64> {
        let own = resident_bytes(self.root)?;
        if monotonic_ns() >= self.due_ns {
            let begun_ns = thread_time_ns();
            self.below = descendants(self.root);
            if let Some(lookout) = &mut self.lookout {
                self.below.iter().chain([&self.root]).for_each(|&pid| lookout.look(pid));
            }
            let taken_ns = thread_time_ns() - begun_ns;
            self.due_ns = monotonic_ns() + taken_ns * SHARE_OF_TIME;
        }
        Some(own + self.below.iter().filter_map(|&pid| resident_bytes(pid)).sum::<u64>())
    }
}

/// The numbers of all processes of this machine, in order.
///
/// # Errors
/// When `/proc` cannot be read.
pub(crate) fn all_processes() -> anyhow::Result<Vec<u32>> {
    let entries = fs::read_dir("/proc").context("reading /proc")?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut pids: Vec<u32> = names.collect();
    pids.sort_unstable();
    Ok(pids)
}

/// All processes below `pid`.
pub(crate) fn descendants(pid: i32) -> Vec<i32> {
    let mut found = Vec::new();
    add_children(pid, &mut found);
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        add_children(pid, &mut found);
        next += 1;
    }
    found
}

/// Adds the processes that any thread of `pid` has made: the kernel lists them by thread.
fn add_children(pid: i32, found: &mut Vec<i32>) {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return };
    for thread in threads.flatten() {
        let list = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in list.split_ascii_whitespace().filter_map(|child| child.parse().ok()) {
            // When a thread ends meanwhile, another thread inherits its children.
            if !found.contains(&child) {
                found.push(child);
            }
        }
    }
}

/// Resident memory of `pid` now, bytes; `None` when it has ended.
fn resident_bytes(pid: i32) -> Option<u64> {
    // A process that has ended but has not been waited for has no memory.
    resident_bytes_of(pid).filter(|&bytes| bytes > 0)
}

/// Whether `pid` still runs this very executable.
pub(super) fn is_this_executable(pid: i32) -> bool {
    let own = fs::read_link("/proc/self/exe").ok();
    own.is_some() && own == fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// Time the hypervisor has taken from all processors since boot, ns.
pub(super) fn steal_ns() -> u64 {
    fs::read_to_string("/proc/stat")
        .ok()
        .and_then(|stat| stat.lines().next()?.split_ascii_whitespace().nth(8)?.parse::<u64>().ok())
        .map_or(0, |ticks| ticks * tick_ns())
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
        // 100 for 30 ns, then 200 for 10 ns.
        assert_eq!(mean_bytes(&samples, 10, 50), Some(125.0));
        assert_eq!(mean_bytes(&samples, 11, 50), None, "three looks are too few");
        assert_eq!(mean_bytes(&samples, 11, 15), None);
    }

    #[test]
    fn this_process_is_resident_and_one_that_has_ended_is_not() {
        let pid = std::process::id() as i32;
        assert!(resident_bytes(pid).unwrap() > 100_000);
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        let stat = format!("/proc/{}/stat", ended.id());
        while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
            std::thread::yield_now();
        }
        assert_eq!(resident_bytes(ended.id() as i32), None);
        ended.wait().unwrap();
    }

    #[test]
    fn what_any_thread_has_started_belongs_to_the_tree() {
        let started = std::thread::scope(|scope| {
            let start = || std::process::Command::new("sleep").arg("20").spawn().unwrap();
            let (send, receive) = std::sync::mpsc::channel();
            let (end, wait) = std::sync::mpsc::channel::<()>();
            // The thread lives on: if it ended, another thread would inherit what it has started.
            scope.spawn(move || {
                send.send(start()).unwrap();
                let _ = wait.recv();
            });
            let mut child = receive.recv().unwrap();
            let mut tree = Tree::of(std::process::id() as i32, None);
            let bytes = tree.resident_bytes();
            child.kill().unwrap();
            child.wait().unwrap();
            drop(end);
            (tree.below.contains(&(child.id() as i32)), bytes)
        });
        assert!(started.0 && started.1.unwrap() > 100_000, "{started:?}");
    }
}
