//! Memory that swings stays with the pools: a program that makes many objects and frees them all,
//! over and over, finds them there. It is still idle memory: it goes where it is needed, and in the
//! end back to the system.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "tests read better whole")]

mod support;

use std::ptr::NonNull;

use hectare::{ClassId, Heap};
use hectare_check::{Random, Subject};
use support::system::pretend_cpu;
use support::{Front, Source, check_heap, check_released, new_heap, strict};

/// A size of short batches, and one of long batches.
const SIZES: [usize; 2] = [64, 10_000];
/// How many bytes swing.
const SWING_BYTES: usize = 2_560_000;

fn take(front: &mut Front<'_, Source>, count: usize, bytes: usize) -> Vec<NonNull<u8>> {
    let one = |_| {
        let object = NonNull::new(front.malloc(bytes)).expect("memory");
        // SAFETY: an object of `bytes` bytes, just taken.
        unsafe { object.write_bytes(1, bytes) };
        object
    };
    (0..count).map(one).collect()
}

fn give(front: &mut Front<'_, Source>, objects: Vec<NonNull<u8>>) {
    for object in objects {
        // SAFETY: each caller gives up live objects.
        unsafe { front.free(object) };
    }
}

/// How many bytes of the swinging objects of `bytes` lie in the pools.
fn pooled(heap: &Heap<Source>, bytes: usize) -> usize {
    heap.stats().classes[ClassId::for_bytes(bytes).index()].pooled_objects * bytes
}

/// A heap whose pools have absorbed a swing of objects of `bytes`, and its front.
fn swing<'a>(heap: &'a Heap<Source>, bytes: usize) -> Front<'a, Source> {
    pretend_cpu(Some(0));
    let mut front = Front::new(heap);
    for _ in 0..20 {
        let objects = take(&mut front, SWING_BYTES / bytes, bytes);
        give(&mut front, objects);
    }
    assert!(pooled(heap, bytes) > SWING_BYTES / 10 * 9, "{} bytes", pooled(heap, bytes));
    front
}

fn held_bytes(heap: &Heap<Source>) -> usize {
    let stats = heap.stats();
    stats.slab_bytes + stats.run_bytes + stats.huge_bytes + stats.dirty_bytes
}

fn ends(heap: &Heap<Source>, front: Front<'_, Source>) {
    check_heap(heap, [], &[&front]);
    drop(front);
    check_released(heap);
    assert!(SIZES.iter().all(|&bytes| pooled(heap, bytes) == 0));
    pretend_cpu(None);
}

#[test]
fn what_swings_stays_in_the_pool() {
    for bytes in SIZES {
        let heap = new_heap(64 << 20);
        let mut front = swing(&heap, bytes);
        let held = held_bytes(&heap);
        for _ in 0..5 {
            let objects = take(&mut front, SWING_BYTES / bytes, bytes);
            assert!(pooled(&heap, bytes) < SWING_BYTES / 10, "{} are left", pooled(&heap, bytes));
            give(&mut front, objects);
        }
        assert_eq!(held_bytes(&heap), held, "a swing in the pools alone");
        ends(&heap, front);
    }
}

/// The memory that another class or a long run needs comes from the stocks before the heap grows.
#[test]
fn a_stock_goes_before_the_heap_grows() {
    for swinging in SIZES {
        for bytes in [48, 208, 1000, 5000, 40_000, 300_000] {
            let heap = new_heap(64 << 20);
            let mut front = swing(&heap, swinging);
            let held = held_bytes(&heap);
            let objects = take(&mut front, SWING_BYTES * 3 / 4 / bytes, bytes);
            let grown = held_bytes(&heap).saturating_sub(held);
            assert!(grown <= 512 << 10, "{grown} bytes more for {bytes}, {swinging} swing");
            give(&mut front, objects);
            ends(&heap, front);
        }
    }
}

/// If the objects lie in rows, so that some slabs become empty, no more goes than is needed.
#[test]
fn what_swings_stays_where_the_heap_grows_by_little() {
    const RUN_BYTES: usize = 64 << 10;
    for bytes in SIZES {
        let heap = new_heap(64 << 20);
        let mut front = swing(&heap, bytes);
        // The heap first uses up the memory that lies ready.
        let ready = heap.stats().dirty_bytes / RUN_BYTES;
        let mut runs = take(&mut front, ready, RUN_BYTES);
        let before = pooled(&heap, bytes);
        runs.append(&mut take(&mut front, 2, RUN_BYTES));
        let gone = before - pooled(&heap, bytes);
        assert!((1..=6 * RUN_BYTES).contains(&gone), "{gone} bytes of {bytes} each for two runs");
        give(&mut front, runs);
        ends(&heap, front);
    }
}

/// If the objects lie scattered, so that hardly a slab becomes empty, the heap grows after some of
/// the stock has gone.
#[test]
fn what_lies_here_and_there_goes_by_parts() {
    const BYTES: usize = 640;
    const RUN_BYTES: usize = 64 << 10;
    let heap = new_heap(128 << 20);
    pretend_cpu(Some(0));
    let mut front = Front::new(&heap);
    let mut random = Random::new(1);
    for _ in 0..30 {
        let mut objects = take(&mut front, 10 * SWING_BYTES / BYTES, BYTES);
        for at in (1..objects.len()).rev() {
            objects.swap(at, random.below(at + 1));
        }
        give(&mut front, objects);
    }
    let before = pooled(&heap, BYTES);
    assert!(before > 9 * SWING_BYTES, "{before} bytes lie in pools");
    // The heap first uses up the memory that lies ready.
    let mut runs = Vec::new();
    while pooled(&heap, BYTES) == before {
        runs.append(&mut take(&mut front, 1, RUN_BYTES));
    }
    let gone = before - pooled(&heap, BYTES);
    assert!(gone <= 40 * RUN_BYTES, "{gone} bytes for a run");
    give(&mut front, runs);
    ends(&heap, front);
}

/// Objects that nobody needs any more go back while the program goes on with something else.
#[test]
fn a_stock_that_lies_idle_goes_back() {
    for bytes in SIZES {
        let heap = new_heap(64 << 20);
        let mut front = swing(&heap, bytes);
        let others = take(&mut front, 1000, 1000);
        assert!(pooled(&heap, bytes) > SWING_BYTES / 2, "{} bytes", pooled(&heap, bytes));
        for _ in 0..40 {
            strict(&heap).pass_ms(50);
            let more = take(&mut front, 300, 1000);
            give(&mut front, more);
        }
        assert_eq!(pooled(&heap, bytes), 0);
        give(&mut front, others);
        ends(&heap, front);
    }
}

/// Objects that are needed from time to time do not go back.
#[test]
fn looks_leave_what_swings() {
    for bytes in SIZES {
        let heap = new_heap(64 << 20);
        let mut front = swing(&heap, bytes);
        for _ in 0..20 {
            strict(&heap).pass_ms(50);
            let objects = take(&mut front, SWING_BYTES / bytes, bytes);
            give(&mut front, objects);
            assert!(pooled(&heap, bytes) > SWING_BYTES / 10 * 8, "{}", pooled(&heap, bytes));
        }
        ends(&heap, front);
    }
}

/// If a swing has become smaller, the objects that are still needed stay.
#[test]
fn looks_take_what_is_idle_alone() {
    for bytes in SIZES {
        for percent in [41, 43, 45, 47] {
            let heap = new_heap(64 << 20);
            let mut front = swing(&heap, bytes);
            let needed = SWING_BYTES / 100 * percent;
            for _ in 0..40 {
                strict(&heap).pass_ms(50);
                let objects = take(&mut front, needed / bytes, bytes);
                give(&mut front, objects);
                let kept = pooled(&heap, bytes);
                assert!(kept > needed / 4 * 3, "{kept} bytes stay where {needed} swing");
            }
            let kept = pooled(&heap, bytes);
            assert!(kept < needed / 8 * 9, "{kept} bytes stay where {needed} swing");
            ends(&heap, front);
        }
    }
}

/// A thread on another CPU takes from the stock, too, when memory is out.
#[test]
fn a_stock_serves_another_cpu_when_memory_is_out() {
    for bytes in SIZES {
        let heap = new_heap(64 << 20);
        let mut front = swing(&heap, bytes);
        strict(&heap).bound(strict(&heap).committed_bytes());
        pretend_cpu(Some(1));
        let mut other = Front::new(&heap);
        let objects = take(&mut other, SWING_BYTES * 9 / 10 / bytes, bytes);
        give(&mut other, objects);
        drop(other);
        let objects = take(&mut front, SWING_BYTES * 9 / 10 / bytes, bytes);
        give(&mut front, objects);
        ends(&heap, front);
    }
}
