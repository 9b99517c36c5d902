//! Pages of 16 and 64 KiB, as on some AArch64 systems. Every call to the system is for whole pages,
//! and otherwise the heap is the same.

mod support;

use std::ptr::NonNull;

use hectare_check::{Driver, Limits, Subject};
use support::system::pretend_cpu;
use support::{Front, Source, Strict, check_heap, check_released, heap_over, strict};

fn random_program(page_bytes: usize) {
    let heap = heap_over(Strict::with_pages(page_bytes), 64 << 20);
    let mut driver = Driver::new(hectare_check::seed(page_bytes as u64), Limits::default(), &[]);
    let mut front = Front::new(&heap);
    for step in 0..20_000 {
        driver.step(&mut front);
        if step % 1000 == 0 {
            check_heap(&heap, driver.shadow().objects(), &[&front]);
        }
    }
    driver.verify_all();
    heap.trim(0);
    driver.verify_all();
    driver.free_all(&mut front);
    drop(front);
    check_released(&heap);
}

#[test]
fn of_16_kib() {
    random_program(16 << 10);
}

#[test]
fn of_64_kib() {
    random_program(64 << 10);
}

/// Takes `count` objects of `bytes` bytes.
fn take(front: &mut Front<'_, Source>, count: usize, bytes: usize) -> Vec<NonNull<u8>> {
    (0..count).map(|_| NonNull::new(front.malloc(bytes)).expect("memory")).collect()
}

fn give(front: &mut Front<'_, Source>, objects: Vec<NonNull<u8>>) {
    for object in objects {
        // SAFETY: each caller gives up live objects.
        unsafe { front.free(object) };
    }
}

/// How many bytes a thread keeps of runs that it has taken and freed over and over.
fn kept_run_bytes(page_bytes: usize) -> usize {
    let heap = heap_over(Strict::with_pages(page_bytes), 64 << 20);
    let mut front = Front::new(&heap);
    for _ in 0..500 {
        let runs = take(&mut front, 4, 60_000);
        give(&mut front, runs);
    }
    let kept = front.cached_run_bytes();
    drop(front);
    check_released(&heap);
    kept
}

#[test]
fn threads_keep_runs_whatever_the_pages() {
    let kept = [4, 16, 64].map(|kib| kept_run_bytes(kib << 10));
    assert_eq!(kept.map(|bytes| bytes >> 10), [4 * 60, 4 * 64, 4 * 64]);
}

/// The run that was freed last is taken as it was. Had the two runs become one, its front would
/// serve.
#[test]
fn regions_keep_runs_whatever_the_pages() {
    for page_bytes in [4, 16, 64].map(|kib| kib << 10) {
        let heap = heap_over(Strict::with_pages(page_bytes), 64 << 20);
        let mut front = Front::new(&heap);
        let mut runs = take(&mut front, 2, 60_000);
        runs.sort_unstable();
        let last = runs[1];
        give(&mut front, runs);
        let taken = take(&mut front, 1, 60_000);
        assert_eq!(taken, [last], "of {page_bytes}");
        give(&mut front, taken);
        drop(front);
        check_released(&heap);
    }
}

/// How much lies in the pools of a large heap at the end, if only a little of it swings.
fn pooled_while_little_swings(page_bytes: usize) -> usize {
    let heap = heap_over(Strict::with_pages(page_bytes), 256 << 20);
    pretend_cpu(Some(0));
    let mut front = Front::new(&heap);
    let stay = take(&mut front, 100_000, 1000);
    for _ in 0..10 {
        let objects = take(&mut front, 6000, 1000);
        give(&mut front, objects);
        strict(&heap).pass_ms(10);
        for _ in 0..40 {
            let others = take(&mut front, 100, 5000);
            give(&mut front, others);
        }
    }
    let pooled_bytes = heap.stats().pooled_bytes;
    give(&mut front, stay);
    pretend_cpu(None);
    drop(front);
    check_released(&heap);
    pooled_bytes
}

/// The pools are emptied if much has been freed beside what is in use, not at each swing.
#[test]
fn what_swings_stays_in_the_pools() {
    let [frames, longer, longest] = [4, 16, 64].map(|kib| pooled_while_little_swings(kib << 10));
    assert!(frames > 700_000, "{frames}: the test shows nothing");
    assert_eq!((longer, longest), (frames, frames));
}
