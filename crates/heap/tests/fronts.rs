//! The lists of the CPUs where it is hardest: threads are preempted, moved to another CPU and
//! interrupted by signals in the midst of a sequence, while others take the lists away from them.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "tests read better whole")]
#![cfg(target_os = "linux")]

mod support;

use std::process::ExitCode;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use hectare::Heap;
use hectare_check::{Driver, Limits, Subject, Suite, soak_operations};
use support::aborting::{aborts, assert_line};
use support::{Front, Source, check_heap, check_released, new_heap};

/// Moves this thread to the `n`th of the CPUs that it may use, and returns how many there are.
fn hop(n: usize, allowed: &libc::cpu_set_t) -> usize {
    // SAFETY: sets of the size given; numbers below that of the bits.
    unsafe {
        let cpus = || (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, allowed));
        let count = cpus().count();
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpus().nth(n % count).expect("a CPU"), &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
        count
    }
}

fn allowed_cpus() -> libc::cpu_set_t {
    // SAFETY: a set of the size given.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&set), &raw mut set);
        set
    }
}

extern "C" fn on_signal(_: libc::c_int) {}

/// Makes a signal interrupt a thread of the process every `us` microseconds of processor time, or
/// as often as the kernel's clock allows; 0: no more.
fn interrupt_every(us: i64) {
    // SAFETY: a handler that does nothing, and a valid interval.
    unsafe {
        libc::signal(libc::SIGPROF, on_signal as extern "C" fn(libc::c_int) as usize);
        let period = libc::timeval { tv_sec: 0, tv_usec: us };
        let timer = libc::itimerval { it_interval: period, it_value: period };
        libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut());
    }
}

fn trouble(heap: &Heap<Source>, threads: usize, operations: u64) {
    let allowed = allowed_cpus();
    let slots: Vec<_> = (0..2 * threads).map(|_| Mutex::new(None)).collect();
    let limits = Limits { objects: 200, live_bytes: 1 << 20, ..Limits::default() };
    let is_over = AtomicBool::new(false);
    interrupt_every(100);
    let mut drivers: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|i| {
                let (slots, allowed) = (&slots, &allowed);
                scope.spawn(move || {
                    let mut front = Front::by_cpu(heap).expect("sequences");
                    let mut driver = Driver::new(hectare_check::seed(70) + i as u64, limits, slots);
                    for step in 0..operations as usize / threads {
                        driver.step(&mut front);
                        // Small objects that come and go: most of the time is spent in sequences.
                        for bytes in [16, 32, 64] {
                            let objects = [(); 6].map(|()| front.malloc(bytes));
                            for object in objects.into_iter().filter_map(std::ptr::NonNull::new) {
                                // SAFETY: an object of at least as many bytes, just taken.
                                unsafe { object.write_bytes(0x5a, bytes) };
                                // SAFETY: taken above, and forgotten.
                                unsafe { front.free(object) };
                            }
                        }
                        if step % 64 == i {
                            hop(step / 64 + i, allowed);
                        }
                    }
                    driver.verify_all();
                    driver
                })
            })
            .collect();
        let over = &is_over;
        let thief = scope.spawn(move || {
            while !over.load(Relaxed) {
                heap.trim(0);
                heap.before_fork();
                // SAFETY: this thread has just called it.
                unsafe { heap.after_fork() };
                std::thread::sleep(std::time::Duration::from_micros(300));
            }
        });
        let drivers = workers.into_iter().map(|worker| worker.join().expect("no failure"));
        let drivers = drivers.collect();
        is_over.store(true, Relaxed);
        thief.join().expect("no failure");
        drivers
    });
    interrupt_every(0);
    let waiting: Vec<_> =
        slots.iter().filter_map(|slot| slot.lock().expect("no failure").take()).collect();
    let objects = || drivers.iter().flat_map(|d| d.shadow().objects()).chain(&waiting);
    hectare_check::assert_disjoint(objects());
    check_heap(heap, objects(), &[]);
    let mut front = Front::by_cpu(heap).expect("sequences");
    for driver in &mut drivers {
        driver.free_all(&mut front);
    }
    for object in waiting {
        object.verify();
        // SAFETY: live until now, and forgotten.
        unsafe { front.free(object.start) };
    }
}

fn sequences_under_preemption_migration_and_signals() {
    let heap = new_heap(256 << 20);
    // As a rule, some eighty sequences are aborted in each round.
    let mut rounds = 0..10;
    while heap.aborted_sequences() == 0 && rounds.next().is_some() {
        trouble(&heap, 8, soak_operations(200_000));
    }
    let aborts = heap.aborted_sequences();
    println!("{aborts} sequences were aborted and tried again");
    assert!(aborts > 0, "no sequence was ever interrupted: the test has shown nothing");
    check_released(&heap);
}

/// Each freed object that lies on a list of the CPU, or comes to it in a batch, is checked,
/// including the first ones.
fn any_freed_object_that_was_written_to_is_seen() {
    const COUNT: usize = 40;
    for index in 0..COUNT {
        let line = aborts(|front| {
            hop(0, &allowed_cpus());
            let mut front = Front::by_cpu(front.heap).expect("asked for by `main`");
            let mut take = || NonNull::new(front.malloc(1024)).expect("memory");
            let freed = [0; COUNT].map(|_| take());
            for object in freed {
                // SAFETY: a live object.
                unsafe { front.free(object) };
            }
            // SAFETY: none for the write: that is the test.
            unsafe { freed[index].cast::<usize>().add(1).write(0) };
            for _ in freed {
                front.malloc(1024);
            }
        });
        assert_line(&line, "malloc", "corrupted free list");
    }
}

fn main() -> ExitCode {
    let mut suite = Suite::new();
    let tests: [(&str, fn()); 2] = [
        (
            "sequences_under_preemption_migration_and_signals",
            sequences_under_preemption_migration_and_signals,
        ),
        (
            "any_freed_object_that_was_written_to_is_seen",
            any_freed_object_that_was_written_to_is_seen,
        ),
    ];
    for (name, test) in tests {
        if Front::by_cpu(&new_heap(1 << 20)).is_some() {
            suite.check(name, test);
        } else {
            suite.skip(name, "no restartable sequences here");
        }
    }
    suite.run()
}
