//! The heap as the global allocator of a program, this one.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

#[global_allocator]
static GLOBAL: hectare::Malloc = hectare::Malloc;

/// Waits for a child for as long as its alarm takes; how it ended.
fn status_of(child: libc::pid_t) -> libc::c_int {
    assert!(child > 0, "no child");
    let mut status = 0;
    // SAFETY: the child just made, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

/// Objects of many sizes, taken and freed.
fn churn(round: usize) {
    let objects: Vec<Vec<u8>> = (0..200).map(|i| vec![1; 1 + (i * 37 + round) % 60_000]).collect();
    assert!(objects.iter().all(|object| object.iter().all(|byte| *byte == 1)));
}

/// Forks children that allocate, until one fails; how that ended.
fn fork_for_a_while() -> libc::c_int {
    let begin = Instant::now();
    let mut failed = 0;
    while failed == 0 && begin.elapsed() < Duration::from_secs(2) {
        // SAFETY: the child allocates, which is what is tested, and makes system calls.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // A lock that nobody can free would hang: the alarm ends such a child.
            // SAFETY: no preconditions.
            unsafe { libc::alarm(10) };
            (0..3).for_each(churn);
            // SAFETY: ends this process without the harness's exit handlers.
            unsafe { libc::_exit(0) };
        }
        failed = status_of(child);
    }
    failed
}

/// In a child, whose limit is its own.
#[test]
fn a_program_that_limits_itself_has_room() {
    // SAFETY: the child makes system calls, and calls of the heap.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let can_map = || {
            let (access, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let place = std::ptr::null_mut();
            // SAFETY: a new mapping disturbs nothing.
            unsafe { libc::mmap(place, 256 << 20, access, flags, -1, 0) != libc::MAP_FAILED }
        };
        // Enough for the C library's own heaps, too, of which the other test's threads have 64 MiB each.
        let limit = libc::rlimit { rlim_cur: 4 << 30, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the limit is readable.
        let is_limited = unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) } == 0;
        let could_map = can_map();
        GLOBAL.leave_room();
        let steps = [is_limited, !could_map, can_map()];
        churn(0);
        // SAFETY: ends this process without the harness's exit handlers.
        unsafe { libc::_exit(steps.iter().position(|step| !step).map_or(0, |at| at as i32 + 1)) };
    }
    assert_eq!(status_of(child), 0, "the exit status, in its second byte, is the step that failed");
}

#[test]
fn a_child_allocates_whatever_other_threads_did() {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut round = 0;
                while !stop.load(Relaxed) {
                    // Threads end meanwhile, too.
                    std::thread::scope(|scope| scope.spawn(|| churn(round)).join().unwrap());
                    churn(round);
                    round += 1;
                }
            });
        }
        // Two that fork at once, and see to the heap by turns.
        let failed = [(); 2].map(|()| scope.spawn(fork_for_a_while)).map(|one| one.join().unwrap());
        stop.store(true, Relaxed);
        assert_eq!(failed, [0; 2], "a child failed, or hung");
    });
}
