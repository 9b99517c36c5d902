//! Memory that runs out and comes back.
//!
//! Every call of the page source is refused once, alone and with all that follow; and commits are
//! bounded as on a system without overcommit. A refused request returns null and changes nothing.
//! When memory is back, requests succeed again and nothing is lost.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "tests read better whole")]

mod support;

use std::ptr::NonNull;

use hectare::Seat;
use hectare_check::{Driver, Limits, Operation, Random, Subject};
use support::{Front, check_heap, check_released, new_heap, strict};

/// Small enough that a heap soon needs more regions, steps and slabs, and so makes many calls of
/// the source.
const REGION_BYTES: usize = 2 << 20;
const LIMITS: Limits =
    Limits { objects: 200, live_bytes: 16 << 20, max_bytes: 40 << 20, max_align: 1 << 20 };
const OPERATIONS: usize = 400;

/// Runs a random program whose source refuses calls `from..until`, counted from the heap's first.
/// Returns how many calls were made and how many requests were refused.
fn run(seed: u64, from: u64, until: u64) -> (u64, u64) {
    let heap = new_heap(REGION_BYTES);
    heap.source().refuse(from..until);
    let mut front = Front::new(&heap);
    let mut driver = Driver::new(seed, LIMITS, &[]);
    for _ in 0..OPERATIONS {
        driver.step(&mut front);
    }
    check_heap(&heap, driver.shadow().objects(), &[&front]);
    driver.verify_all();
    heap.source().refuse_all(false);
    for bytes in [1, 1000, 30_000, 100_000, 40 << 20] {
        let refused = driver.tally().refused;
        driver.perform(&mut front, Operation::Calloc { bytes });
        assert_eq!(driver.tally().refused, refused, "{bytes} bytes, though memory is back");
    }
    check_heap(&heap, driver.shadow().objects(), &[&front]);
    let refused = driver.tally().refused;
    driver.free_all(&mut front);
    drop(front);
    check_released(&heap);
    (heap.source().calls(), refused)
}

#[test]
fn every_call_of_the_source_may_be_refused() {
    let seeds = hectare_check::soak_operations(1).min(200);
    let mut refused = 0;
    for seed in 0..seeds {
        let seed = hectare_check::seed(500) + seed;
        let (calls, none) = run(seed, u64::MAX, u64::MAX);
        assert_eq!(none, 0);
        assert!(calls > 10, "the program makes too few calls to be worth it: {calls}");
        for call in 0..calls.min(60) {
            refused += run(seed, call, call + 1).1;
            refused += run(seed, call, u64::MAX).1;
        }
    }
    assert!(refused > 0, "nothing was ever refused");
}

/// Fills a heap whose source commits no more than `bound_bytes` until the heap refuses `bytes`.
/// Checks that a refusal changes nothing, frees, and fills again: as many objects must fit as
/// before.
fn fill_twice(bound_bytes: usize, bytes: usize) {
    let heap = new_heap(1 << 30);
    strict(&heap).bound(bound_bytes);
    let mut front = Front::new(&heap);
    let mut counts = [0; 3];
    for count in &mut counts {
        let limits = Limits { objects: usize::MAX, live_bytes: usize::MAX, ..LIMITS };
        let mut driver = Driver::new(1, limits, &[]);
        while driver.perform(&mut front, Operation::Malloc { bytes }) {}
        *count = driver.shadow().len();
        let before = check_heap(&heap, driver.shadow().objects(), &[&front]);
        for _ in 0..100 {
            assert!(
                !driver.perform(&mut front, Operation::Malloc { bytes }),
                "memory from nowhere"
            );
            let largest = Operation::Realloc { index: 0, bytes: 2 * bound_bytes };
            assert!(!driver.perform(&mut front, largest), "memory from nowhere");
        }
        let after = check_heap(&heap, driver.shadow().objects(), &[&front]);
        assert_eq!(before.regions, after.regions, "a refused request opened a region");
        assert_eq!(before.used_bytes(), after.used_bytes());
        driver.verify_all();
        driver.free_all(&mut front);
    }
    // A run lies at a multiple of its size rounded up to a power of two. The holes between two runs
    // serve smaller requests only, so up to half of the bound stays unused here.
    assert!(counts[0] * bytes * 2 >= bound_bytes - (4 << 20), "{} of {bytes} bytes", counts[0]);
    // Where a run lies depends on what lay there before, so the last few may not fit again.
    for again in &counts[1..] {
        assert!(again * 100 >= counts[0] * 99, "{counts:?} objects of {bytes} bytes");
    }
    drop(front);
    check_released(&heap);
}

/// Objects that a thread has freed in given-up slabs, and has not sent there yet, serve the thread
/// before memory is out, and go back when memory is asked to go back.
#[test]
fn what_departs_is_not_out_of_reach() {
    const BYTES: usize = 1024;
    let heap = new_heap(1 << 30);
    let mut front = Front::new(&heap);
    let take = |front: &mut Front<'_, _>| NonNull::new(front.malloc(BYTES));
    let give = |front: &mut Front<'_, _>, objects: &mut dyn Iterator<Item = NonNull<u8>>| {
        // SAFETY: objects of this heap, which nobody uses any more.
        objects.for_each(|object| unsafe { front.free(object) });
    };
    let mut objects: Vec<_> = (0..8000).map(|_| take(&mut front).expect("memory")).collect();
    // A third of each slab goes. When that has been so for a while, the slabs are given up.
    let gone: Vec<_> = objects.iter().copied().step_by(3).collect();
    objects = objects.chunks(3).flat_map(|row| row[1..].to_vec()).collect();
    give(&mut front, &mut gone.into_iter());
    for _ in 0..400 {
        strict(&heap).pass_ms(4);
        let others: Vec<_> = (0..500).map(|_| NonNull::new(front.malloc(64))).collect();
        give(&mut front, &mut others.into_iter().flatten());
    }
    let of_class = |heap: &hectare::Heap<_>| {
        let stats = heap.stats();
        *stats.classes.iter().find(|class| class.object_bytes == BYTES).expect("a class")
    };
    let release = |front: &mut Front<'_, _>| heap.release_own(front.seat());
    release(&mut front);
    let before = of_class(&heap).used_objects;
    give(&mut front, &mut objects.drain(..7));
    assert_eq!(of_class(&heap).used_objects, before, "none has gone yet");
    assert_eq!(release(&mut front), 7 * BYTES);
    assert_eq!(of_class(&heap).used_objects, before - 7);
    give(&mut front, &mut objects.drain(..7));
    strict(&heap).bound(0);
    let again: Vec<_> = core::iter::from_fn(|| take(&mut front)).collect();
    assert_eq!(of_class(&heap).objects, again.len() + objects.len(), "none is free");
    give(&mut front, &mut again.into_iter().chain(objects));
    strict(&heap).bound(usize::MAX);
    drop(front);
    check_released(&heap);
}

/// Objects that a thread has freed, one in each slab, and that lie on its lists or in the pools,
/// serve requests of all other sizes before memory is out.
#[test]
fn what_lies_on_lists_is_not_out_of_reach() {
    for bytes in [80, 3000, 30_000, 40_000, 300_000, 4 << 20] {
        let heap = new_heap(1 << 30);
        strict(&heap).bound(16 << 20);
        let mut front = Front::new(&heap);
        let mut last = Vec::new();
        for (small, count) in [(16, 500_000), (64, usize::MAX)] {
            let take = || NonNull::new(front.malloc(small));
            let objects: Vec<_> = core::iter::from_fn(take).take(count).collect();
            assert!(objects.len() > 100_000, "{} of {small} bytes", objects.len());
            let mut slab = 0;
            for object in objects {
                // The first of each slab goes last.
                if core::mem::replace(&mut slab, object.addr().get() >> 16) == slab {
                    // SAFETY: an object just taken, and not used again.
                    unsafe { front.free(object) };
                } else {
                    last.push(object);
                }
            }
        }
        // SAFETY: as above.
        last.into_iter().for_each(|object| unsafe { front.free(object) });
        assert!(!front.malloc(bytes).is_null(), "{bytes} bytes, though all is free");
    }
}

/// An object that is to become shorter stays where it is if there is no memory to move it to.
#[test]
fn no_object_is_too_long_where_memory_is_out() {
    for bytes in [1000, 30_000, 200_000, 40 << 20] {
        let heap = new_heap(1 << 30);
        let mut front = Front::new(&heap);
        let object = NonNull::new(front.malloc(bytes)).expect("memory");
        // SAFETY: an object of as many bytes.
        unsafe { object.write_bytes(7, bytes) };
        strict(&heap).bound(0);
        for shorter in [bytes / 3, 100, 1] {
            while !front.malloc(shorter).is_null() {}
            // SAFETY: the object, whose place is not used again unless it is the answer.
            let resized = unsafe { front.realloc(object, shorter) };
            assert_eq!(resized, object.as_ptr(), "{bytes} bytes, then {shorter}");
            // SAFETY: as above.
            assert_eq!(unsafe { object.add(shorter - 1).read() }, 7);
        }
        // SAFETY: as above.
        assert!(unsafe { front.realloc(object, 80 << 20) }.is_null());
    }
}

#[test]
fn a_bounded_source_gives_the_same_memory_again() {
    for bytes in [16, 100, 1000, 5000, 32 << 10, 40_000, 1 << 20] {
        fill_twice(24 << 20, bytes);
    }
}

/// The memory that one size has taken must serve another when it is free: no memory is lost to a
/// class.
#[test]
fn a_bounded_source_serves_one_class_after_another() {
    let heap = new_heap(1 << 30);
    strict(&heap).bound(24 << 20);
    let mut front = Front::new(&heap);
    let mut random = Random::new(hectare_check::seed(3));
    for _ in 0..40 {
        let bytes = random.log_between(16, 200_000);
        let limits = Limits { objects: usize::MAX, live_bytes: usize::MAX, ..LIMITS };
        let mut driver = Driver::new(random.bits() >> 40, limits, &[]);
        while driver.perform(&mut front, Operation::Malloc { bytes }) {}
        let got_bytes = driver.shadow().live_bytes();
        assert!(got_bytes >= 10 << 20, "{got_bytes} bytes in objects of {bytes}");
        check_heap(&heap, driver.shadow().objects(), &[&front]);
        driver.free_all(&mut front);
    }
    drop(front);
    check_released(&heap);
}

/// The objects in lists, pools and left caches serve a thread without a cache, too.
#[test]
fn what_lies_in_pools_serves_a_thread_without_a_cache() {
    let heap = new_heap(1 << 30);
    strict(&heap).bound(12 << 20);
    let mut front = Front::new(&heap);
    let mut objects: Vec<_> = std::iter::from_fn(|| NonNull::new(front.malloc(300))).collect();
    // More than a slab, so that lists hold it.
    for object in objects.drain(1000..1300) {
        // SAFETY: an object just taken, and not used again.
        unsafe { front.free(object) };
    }
    drop(front);
    let object = heap.malloc_slow(Seat::NONE, 3000);
    assert!(!object.is_null(), "90 KB lie free");
}

/// When memory is scarce for several threads, they lose nothing and deadlock nowhere.
#[test]
fn threads_share_a_bounded_source() {
    let heap = new_heap(1 << 30);
    strict(&heap).bound(24 << 20);
    let operations = hectare_check::soak_operations(40_000).min(4_000_000);
    let limits = Limits { objects: 3000, live_bytes: 12 << 20, ..LIMITS };
    let mut team: Vec<_> =
        (0..4).map(|i| (Driver::new(700 + i, limits, &[]), Front::new(&heap))).collect();
    std::thread::scope(|scope| {
        for (driver, front) in &mut team {
            scope.spawn(move || {
                for _ in 0..operations {
                    driver.step(front);
                }
            });
        }
    });
    let fronts: Vec<_> = team.iter().map(|(_, front)| front).collect();
    let objects = || team.iter().flat_map(|(driver, _)| driver.shadow().objects());
    hectare_check::assert_disjoint(objects());
    check_heap(&heap, objects(), &fronts);
    let refused: u64 = team.iter().map(|(driver, _)| driver.tally().refused).sum();
    assert!(refused > 0, "memory was never scarce");
    for (driver, front) in &mut team {
        driver.verify_all();
        driver.free_all(front);
    }
    drop(team);
    check_released(&heap);
}

#[test]
fn a_heap_grows_past_its_first_region() {
    let heap = new_heap(1 << 20);
    let mut front = Front::new(&heap);
    let limits = Limits { objects: 1_000_000, live_bytes: usize::MAX, ..LIMITS };
    let mut driver = Driver::new(11, limits, &[]);
    let mut random = Random::new(hectare_check::seed(4));
    while driver.shadow().live_bytes() < 20 << 20 {
        let bytes = random.log_between(16, 300_000);
        assert!(driver.perform(&mut front, Operation::Malloc { bytes }), "a new region");
    }
    let stats = check_heap(&heap, driver.shadow().objects(), &[&front]);
    // Each region is as long as all before it.
    assert!((5..8).contains(&stats.regions), "{} regions", stats.regions);
    for _ in 0..20_000 {
        driver.step(&mut front);
    }
    check_heap(&heap, driver.shadow().objects(), &[&front]);
    driver.free_all(&mut front);
    drop(front);
    check_released(&heap);
}

#[test]
fn requests_that_no_memory_can_serve_are_refused() {
    let heap = new_heap(64 << 20);
    let mut front = Front::new(&heap);
    for bytes in [usize::MAX, usize::MAX - 4095, isize::MAX as usize, isize::MAX as usize + 1] {
        assert!(front.malloc(bytes).is_null());
        assert!(front.calloc(bytes).is_null());
        assert!(front.aligned(bytes, 1 << 30).is_null());
    }
    assert!(front.aligned(1, 1 << 62).is_null());
    let object = front.aligned(0, 64 << 20);
    assert!(
        !object.is_null() && object.addr().is_multiple_of(64 << 20),
        "no bytes, widely aligned"
    );
    // SAFETY: an object just taken.
    unsafe { front.free(std::ptr::NonNull::new(object).expect("not null")) };
    drop(front);
    check_released(&heap);
}
