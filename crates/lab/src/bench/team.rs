//! Threads that start together, inside a window that opens when all of them are ready.
//!
//! ```text
//!  thread:  ready ── go ── work … done ── leave
//!  main:    ready, open window, go ────── done, close window, leave
//! ```
//! The creation of the threads and their stacks is outside of the window. A workload whose threads
//! come and go inside it starts them itself. Memory that becomes resident while the threads start
//! is added to what was resident when the process began ([`Window::open_for_threads`]): whatever a
//! subject has beyond the leanest start counts as its own.

use std::sync::Barrier;
use std::time::Instant;

use super::Outcome;
use super::heap::Tally;
use crate::measure::{Window, WindowRecord, resident_bytes};
use crate::say::counted;
use crate::threads;

/// The result of a team.
pub(super) struct Timed<R> {
    /// Time from the common start to the end of the last thread, ns.
    pub(super) ns: u64,
    /// Memory, faults and switches during that time.
    pub(super) window: WindowRecord,
    /// What each thread returned, in the order of the inputs.
    pub(super) results: Vec<R>,
}

/// Runs `work` on one thread per input. With a single input the work runs on the calling thread, so
/// that the process stays single-threaded.
///
/// # Errors
/// When the window cannot be measured.
pub(super) fn run<T: Send, R: Send>(
    inputs: Vec<T>,
    work: impl Fn(T) -> R + Sync,
) -> anyhow::Result<Timed<R>> {
    if inputs.len() == 1 {
        let window = Window::open()?;
        let start = Instant::now();
        let results: Vec<R> = inputs.into_iter().map(work).collect();
        let ns = start.elapsed().as_nanos() as u64;
        return Ok(Timed { ns, window: window.close()?, results });
    }
    let before_bytes = resident_bytes()?;
    let [ready, go, done, leave] = [(); 4].map(|()| Barrier::new(inputs.len() + 1));
    std::thread::scope(|scope| {
        let threads: Vec<_> = inputs
            .into_iter()
            .map(|input| {
                threads::start(scope, || {
                    ready.wait();
                    go.wait();
                    let result = work(input);
                    let end = Instant::now();
                    done.wait();
                    leave.wait();
                    (result, end)
                })
            })
            .collect();
        ready.wait();
        // Every barrier is passed before an error is returned, since the threads wait for this one.
        let window = Window::open_for_threads(before_bytes);
        let start = Instant::now();
        go.wait();
        done.wait();
        let window = window.and_then(Window::close);
        leave.wait();
        let (mut results, mut end) = (Vec::new(), start);
        for thread in threads {
            let (result, ended) = thread.join().expect("a workload thread panicked");
            results.push(result);
            end = end.max(ended);
        }
        Ok(Timed { ns: (end - start).as_nanos() as u64, window: window?, results })
    })
}

/// The outcome of a run whose threads returned tallies.
///
/// # Errors
/// When an object had lost its content.
pub(super) fn outcome(ops: u64, timed: Timed<Tally>) -> anyhow::Result<Outcome> {
    let mut tally = Tally::default();
    timed.results.iter().for_each(|result| tally.add(result));
    finish(ops, timed.ns, timed.window, tally)
}

/// As [`outcome`], from parts.
///
/// # Errors
/// When an object had lost its content.
pub(super) fn finish(
    ops: u64,
    ns: u64,
    window: WindowRecord,
    tally: Tally,
) -> anyhow::Result<Outcome> {
    anyhow::ensure!(
        tally.damaged == 0,
        "{} found without its content: the heap handed out memory that was in use",
        counted(tally.damaged, "object")
    );
    Ok(Outcome {
        ops,
        ns,
        checksum: tally.checksum,
        failed_allocations: tally.failed,
        window: Some(window),
        ..Outcome::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests have noted no start. The baseline stands in for it.
    fn grown_at_start_bytes(threads: usize) -> u64 {
        let timed = run(vec![(); threads], |()| ()).unwrap();
        timed.window.start_bytes - timed.window.baseline_bytes
    }

    #[test]
    fn what_becomes_resident_with_the_threads_is_part_of_the_start() {
        assert_eq!(grown_at_start_bytes(1), 0);
        // Each thread touches at least one page of its stack. Other tests may give memory back
        // meanwhile.
        let has_grown = |_| grown_at_start_bytes(256) >= 256 * 4096;
        assert!((0..50).any(has_grown));
    }
}
