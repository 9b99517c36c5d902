//! A process that forks while its other threads allocate: the child's heap is whole.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "tests read better whole")]

mod support;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use hectare_check::{Driver, Limits, Subject};
use support::system::pretend_cpu;
use support::{Front, Source, new_heap};

const LIMITS: Limits =
    Limits { objects: 500, live_bytes: 4 << 20, max_bytes: 200_000, max_align: 4096 };

/// How a child ended.
fn status_of(child: libc::pid_t) -> libc::c_int {
    assert!(child > 0, "no child");
    let begin = Instant::now();
    let mut status = 0;
    // SAFETY: the child just made, and a place for its status.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        assert!(begin.elapsed() < Duration::from_secs(30), "the child hangs");
        std::thread::sleep(Duration::from_micros(200));
    }
    status
}

#[test]
fn a_child_has_a_whole_heap_whatever_other_threads_did() {
    let heap = new_heap(256 << 20);
    let stop = AtomicBool::new(false);
    let forks = hectare_check::soak_operations(100).min(5000);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (heap, stop) = (&*heap, &stop);
            scope.spawn(move || {
                let mut front = Front::new(heap);
                let mut driver = Driver::new(800 + thread, LIMITS, &[]);
                let mut cpu = 0;
                while !stop.load(Relaxed) {
                    for _ in 0..200 {
                        driver.step(&mut front);
                    }
                    // New pools come into use while others fork.
                    cpu += 1;
                    pretend_cpu(Some(cpu % 128));
                }
                driver.verify_all();
                driver.free_all(&mut front);
            });
        }
        for _ in 0..forks {
            heap.before_fork();
            // SAFETY: the child calls the heap and a few system calls, then ends.
            let child = unsafe { libc::fork() };
            // SAFETY: this thread, or its original, called `before_fork`.
            unsafe { heap.after_fork() };
            if child == 0 {
                // A lock that nobody can release would hang; the alarm ends such a child.
                // SAFETY: no preconditions.
                unsafe { libc::alarm(20) };
                let mut front = Front::new(&heap);
                let mut driver = Driver::new(900, LIMITS, &[]);
                for _ in 0..500 {
                    driver.step(&mut front);
                }
                driver.verify_all();
                driver.free_all(&mut front);
                drop(front);
                heap.trim(0);
                heap.validate();
                // SAFETY: ends this process without the harness's exit handlers.
                unsafe { libc::_exit(0) };
            }
            let status = status_of(child);
            if status != 0 {
                stop.store(true, Relaxed);
            }
            assert_eq!(status, 0, "the child failed");
        }
        stop.store(true, Relaxed);
    });
    support::check_released(&heap);
}

/// Makes some runs and frees them, until the thread keeps runs, if it may.
fn churn(front: &mut Front<'_, Source>) {
    for _ in 0..200 {
        let objects: [_; 24] = std::array::from_fn(|i| front.malloc(70_000 + i % 3 * 4096));
        for object in objects.into_iter().filter_map(NonNull::new) {
            // SAFETY: just made, and not used again.
            unsafe { front.free(object) };
        }
    }
}

/// The child's threads may keep what was lent to threads that the child does not have.
#[test]
fn a_child_keeps_runs_whatever_other_threads_kept() {
    let heap = new_heap(256 << 20);
    let mut others: [_; 8] = std::array::from_fn(|_| Front::new(&heap));
    others.iter_mut().for_each(churn);
    let mut front = Front::new(&heap);
    churn(&mut front);
    assert!(front.cached_run_bytes() < 1 << 20, "{}", front.cached_run_bytes());
    heap.before_fork();
    // SAFETY: the child calls the heap, then ends.
    let child = unsafe { libc::fork() };
    // SAFETY: this thread, or its original, called `before_fork`.
    unsafe { heap.after_fork() };
    if child == 0 {
        heap.forget_other_threads(front.seat());
        churn(&mut front);
        let keeps = front.cached_run_bytes() > 1 << 20;
        drop(front);
        // SAFETY: ends this process without the harness's exit handlers.
        unsafe { libc::_exit(i32::from(!keeps)) };
    }
    assert_eq!(status_of(child), 0, "the child's thread keeps nothing");
    drop((front, others));
    support::check_released(&heap);
}
