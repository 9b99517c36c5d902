//! How many objects a thread takes at once. If the class has many slabs, it takes several batches,
//! and each goes its own way when it comes back.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "tests read better whole")]

mod support;

use std::ptr::NonNull;

use hectare::{ClassId, Heap};
use hectare_check::Subject;
use support::system::pretend_cpu;
use support::{Front, Source, check_released, new_heap};

const CLASS: ClassId = ClassId::for_bytes(1024);
/// How many objects 64 slabs of 64 KiB hold, for each of three more batches.
const MANY: usize = (3 * 64) * (64 << 10) / CLASS.object_bytes();

/// Takes objects until there are `count`. Returns the most that came at once when there was none at
/// hand.
fn grow(front: &mut Front<'_, Source>, objects: &mut Vec<NonNull<u8>>, count: usize) -> usize {
    let mut most = 0;
    while objects.len() < count {
        let is_empty = front.cached_objects(CLASS) == 0;
        objects.push(NonNull::new(front.malloc(CLASS.object_bytes())).expect("memory"));
        if is_empty {
            most = most.max(1 + front.cached_objects(CLASS));
        }
    }
    most
}

fn give(front: &mut Front<'_, Source>, objects: impl Iterator<Item = NonNull<u8>>) {
    for object in objects {
        // SAFETY: each caller gives up live objects.
        unsafe { front.free(object) };
    }
}

fn end(heap: &Heap<Source>, mut front: Front<'_, Source>, objects: Vec<NonNull<u8>>) {
    give(&mut front, objects.into_iter());
    drop(front);
    heap.trim(0);
    check_released(heap);
}

#[test]
fn of_a_large_class_come_several_which_pools_get_one_by_one() {
    pretend_cpu(Some(0));
    let heap = new_heap(64 << 20);
    let mut front = Front::new(&heap);
    let mut objects = Vec::new();
    let batch = CLASS.batch();
    assert_eq!(grow(&mut front, &mut objects, MANY / 6), batch, "of a small one a single batch");
    assert_eq!(grow(&mut front, &mut objects, MANY / 6 * 5), 3 * batch);
    assert_eq!(grow(&mut front, &mut objects, MANY + 1000), 4 * batch);
    // A list that was four batches long comes back to the pool as four.
    let (kept, pooled) =
        (MANY + 1000 - 20 * batch, || heap.stats().classes[CLASS.index()].pooled_objects);
    give(&mut front, objects.drain(kept..));
    assert!(pooled() >= 4 * batch, "{} objects pooled", pooled());
    let listed = front.cached_objects(CLASS);
    grow(&mut front, &mut objects, kept + listed);
    assert_eq!(grow(&mut front, &mut objects, kept + listed + 2 * batch), batch);
    end(&heap, front, objects);
}

#[test]
fn beside_other_threads_the_same_class_gives_a_single_one() {
    pretend_cpu(Some(0));
    let heap = new_heap(64 << 20);
    let mut front = Front::new(&heap);
    let mut other = Front::new(&heap);
    let mut others = Vec::new();
    grow(&mut other, &mut others, 1);
    let mut objects = Vec::new();
    assert_eq!(grow(&mut front, &mut objects, MANY + 1000), CLASS.batch());
    drop(other);
    end(&heap, front, [objects, others].concat());
}
