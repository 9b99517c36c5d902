//! Random programs against the shadow model, on 1, 4 and 64 threads, with caches of their own and
//! by the lists of the CPUs.
//!
//! By default the test makes a few hundred thousand operations. The full run makes 10⁸ operations
//! on each number of threads, and 10⁷ iterations of rnBench's pattern on 16 threads:
//! ```sh
//! HECTARE_SOAK_OPS=100000000 cargo test -p hectare --test soak -- --nocapture --test-threads 1
//! ```
//! A round is a number of operations on every thread. Then all threads stand still, and the heap is
//! compared with all shadows: its invariants, its counts class by class, the disjointness of the
//! threads' objects. On one thread that is also done after single operations.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "tests read better whole")]

mod support;

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use hectare::Heap;
use hectare_check::{
    Driver, Limits, Object, Subject, Suite, Tally, assert_disjoint, soak_operations,
};
use support::{Front, Seating, Source, check_heap, check_released, new_heap};

/// Objects that change hands wait here.
type Slots = Vec<Mutex<Option<Object>>>;

fn new_slots(count: usize) -> Slots {
    (0..count).map(|_| Mutex::new(None)).collect()
}

fn empty(slots: &Slots) -> impl Iterator<Item = Object> {
    slots.iter().filter_map(|slot| slot.lock().expect("no thread failed").take())
}

/// Runs `operations` in sum on `threads` threads, in `rounds` rounds. In each round half of the
/// threads get new caches.
fn soak(name: &str, threads: usize, operations: u64, rounds: u64, limits: Limits) {
    soak_by(|heap| Front::new(heap), name, threads, operations, rounds, limits);
}

fn soak_by(
    new_front: Seating,
    name: &str,
    threads: usize,
    operations: u64,
    rounds: u64,
    limits: Limits,
) {
    let begin = Instant::now();
    let heap = new_heap(256 << 20);
    let slots = new_slots(2 * threads);
    let seed = hectare_check::seed(threads as u64 * 1000);
    let each = operations / threads as u64 / rounds;
    let mut team: Vec<_> = (0..threads as u64)
        .map(|i| (Driver::new(seed + i + 1, limits, &slots), new_front(&heap)))
        .collect();
    let mut peak_live_bytes = 0;
    for round in 0..rounds {
        std::thread::scope(|scope| {
            for (driver, front) in &mut team {
                scope.spawn(move || {
                    for _ in 0..each {
                        driver.step(front);
                    }
                    driver.verify_all();
                });
            }
        });
        check_team(&heap, &team, &slots);
        let live = |(driver, _): &(Driver<'_>, Front<'_, Source>)| driver.shadow().live_bytes();
        peak_live_bytes = team.iter().map(live).sum::<usize>().max(peak_live_bytes);
        // Threads come and go: the objects in their caches must not be lost.
        for (_, front) in team.iter_mut().skip(round as usize % 2).step_by(2) {
            *front = new_front(&heap);
        }
    }
    let tally = end(&heap, team, &slots);
    eprintln!(
        "{name}: {} operations on {threads} threads, {} objects changed hands, {} refused, \
         {} MiB live between rounds at most, {:.1} s",
        tally.operations,
        tally.received,
        tally.refused,
        peak_live_bytes >> 20,
        begin.elapsed().as_secs_f64()
    );
    assert_eq!(tally.refused, 0, "memory ran out");
    assert!(tally.operations >= operations - threads as u64 * rounds);
}

fn check_team(heap: &Heap<Source>, team: &[(Driver<'_>, Front<'_, Source>)], slots: &Slots) {
    let waiting: Vec<_> = empty(slots).collect();
    let objects = || team.iter().flat_map(|(driver, _)| driver.shadow().objects()).chain(&waiting);
    assert_disjoint(objects());
    let fronts: Vec<_> = team.iter().map(|(_, front)| front).collect();
    check_heap(heap, objects(), &fronts);
    for (slot, object) in slots.iter().zip(waiting) {
        *slot.lock().expect("no thread failed") = Some(object);
    }
}

/// Frees everything and checks that nothing is left.
fn end(
    heap: &Heap<Source>,
    mut team: Vec<(Driver<'_>, Front<'_, Source>)>,
    slots: &Slots,
) -> Tally {
    let mut sum = Tally::default();
    for (driver, front) in &mut team {
        driver.verify_all();
        driver.free_all(front);
        let tally = driver.tally();
        sum.operations += tally.operations;
        sum.refused += tally.refused;
        sum.received += tally.received;
    }
    let mut front = Front::new(heap);
    for object in empty(slots) {
        object.verify();
        // SAFETY: live until now, and forgotten.
        unsafe { front.free(object.start) };
    }
    drop(front);
    drop(team);
    check_released(heap);
    sum
}

fn one_thread_checked_after_every_operation() {
    let heap = new_heap(64 << 20);
    let operations = soak_operations(20_000).min(200_000);
    let limits = Limits { objects: 300, live_bytes: 8 << 20, ..Limits::default() };
    let mut front = Front::new(&heap);
    let mut driver = Driver::new(hectare_check::seed(1), limits, &[]);
    for _ in 0..operations {
        driver.step(&mut front);
        check_heap(&heap, driver.shadow().objects(), &[&front]);
    }
    driver.free_all(&mut front);
    drop(front);
    check_released(&heap);
}

fn one_thread() {
    let operations = soak_operations(400_000);
    soak("one thread", 1, operations, (operations / 100_000).max(2), Limits::default());
}

fn four_threads() {
    let operations = soak_operations(400_000);
    let rounds = (operations / 100_000).max(2);
    soak("four threads", 4, operations, rounds, Limits::default());
}

fn sixty_four_threads() {
    let operations = soak_operations(400_000);
    let rounds = (operations / 400_000).max(2);
    let limits = Limits { objects: 500, live_bytes: 4 << 20, ..Limits::default() };
    soak("sixty-four threads", 64, operations, rounds, limits);
}

/// For `new_front` of [`soak_by`]: every third thread has a cache of its own.
fn by_cpu_mostly(heap: &Heap<Source>) -> Front<'_, Source> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    match COUNT.fetch_add(1, Relaxed) % 3 {
        0 => Front::new(heap),
        _ => Front::by_cpu(heap).expect("sequences, which were there a moment ago"),
    }
}

fn by_cpu() {
    let operations = soak_operations(400_000);
    let limits = Limits { objects: 500, live_bytes: 4 << 20, ..Limits::default() };
    for threads in [1, 16] {
        let rounds = (operations / 100_000).max(2);
        soak_by(by_cpu_mostly, "by CPU", threads, operations, rounds, limits);
    }
}

/// The pattern of rnBench: each thread picks a random slot of an array that all threads share. If
/// it finds an object there, it frees that; else it allocates one of four sizes and leaves it
/// there.
fn rnbench_pattern_on_sixteen_threads() {
    const THREADS: u64 = 16;
    const SLOTS: usize = 10_000;
    let begin = Instant::now();
    let iterations = soak_operations(1_000_000).min(10_000_000);
    let heap = new_heap(256 << 20);
    let slots = new_slots(SLOTS);
    let counts = Mutex::new((0u64, 0u64));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (heap, slots, counts) = (&*heap, &slots, &counts);
            scope.spawn(move || {
                let mut random = hectare_check::Random::new(hectare_check::seed(9) + thread);
                let mut front = Front::new(heap);
                let (mut allocated, mut freed) = (0, 0);
                for tag in 0..iterations / THREADS {
                    let slot = &slots[random.below(SLOTS)];
                    let taken = slot.lock().expect("no thread failed").take();
                    if let Some(object) = taken {
                        object.verify();
                        // SAFETY: taken out of the slot, so this thread's alone.
                        unsafe { front.free(object.start) };
                        freed += 1;
                        continue;
                    }
                    let bytes = [16, 64, 128, 256][random.below(4)];
                    let object = front.malloc(bytes);
                    let start = std::ptr::NonNull::new(object).expect("memory");
                    let payload = hectare_check::Payload::new(thread << 40 | tag);
                    // SAFETY: an object of `bytes` bytes, just taken.
                    unsafe { payload.write(start, 0, bytes) };
                    let usable_bytes = front.usable_bytes(start);
                    allocated += 1;
                    let object = Object { start, bytes, usable_bytes, align: 16, payload };
                    let other = slot.lock().expect("no thread failed").replace(object);
                    if let Some(other) = other {
                        other.verify();
                        // SAFETY: taken out of the slot, so this thread's alone.
                        unsafe { front.free(other.start) };
                        freed += 1;
                    }
                }
                let mut sum = counts.lock().expect("no thread failed");
                *sum = (sum.0 + allocated, sum.1 + freed);
            });
        }
    });
    let left: Vec<_> = empty(&slots).collect();
    assert_disjoint(&left);
    check_heap(&heap, &left, &[]);
    let (allocated, freed) = *counts.lock().expect("no thread failed");
    assert_eq!(allocated - freed, left.len() as u64);
    let mut front = Front::new(&heap);
    for object in left {
        object.verify();
        // SAFETY: live until now, and forgotten.
        unsafe { front.free(object.start) };
    }
    drop(front);
    check_released(&heap);
    eprintln!(
        "rnBench's pattern: {iterations} iterations on {THREADS} threads, {allocated} allocations, \
         {:.1} s",
        begin.elapsed().as_secs_f64()
    );
}

fn main() -> ExitCode {
    let mut suite = Suite::new();
    suite.check(
        "one_thread_checked_after_every_operation",
        one_thread_checked_after_every_operation,
    );
    suite.check("one_thread", one_thread);
    suite.check("four_threads", four_threads);
    suite.check("sixty_four_threads", sixty_four_threads);
    suite.check("rnbench_pattern_on_sixteen_threads", rnbench_pattern_on_sixteen_threads);
    if Front::by_cpu(&new_heap(1 << 20)).is_some() {
        suite.check("by_cpu", by_cpu);
    } else {
        suite.skip("by_cpu", "no restartable sequences here");
    }
    suite.run()
}
