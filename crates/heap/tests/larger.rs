//! A request for which memory would have to come takes an object of a somewhat larger class, if one
//! lies ready.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "tests read better whole")]

mod support;

use std::ptr::NonNull;

use hectare::{ClassId, Heap};
use hectare_check::Subject;
use support::system::pretend_cpu;
use support::{Front, Source, check_released, new_heap};

/// Takes `count` objects of `bytes`, and frees them.
fn leave(front: &mut Front<'_, Source>, count: usize, bytes: usize) {
    let objects: Vec<_> = (0..count).map(|_| take(front, bytes)).collect();
    for object in objects {
        // SAFETY: each of them once.
        unsafe { front.free(object) };
    }
}

fn take(front: &mut Front<'_, Source>, bytes: usize) -> NonNull<u8> {
    let object = NonNull::new(front.malloc(bytes)).expect("memory");
    // SAFETY: an object of `bytes` bytes, just taken.
    unsafe { object.write_bytes(1, bytes) };
    object
}

/// Frees `objects`, and checks that all memory can go back.
fn end(heap: &Heap<Source>, mut front: Front<'_, Source>, objects: Vec<NonNull<u8>>) {
    for object in objects {
        // SAFETY: each of them once.
        unsafe { front.free(object) };
    }
    drop(front);
    heap.trim(0);
    check_released(heap);
}

#[test]
fn what_lies_ready_serves_somewhat_smaller_requests() {
    pretend_cpu(Some(0));
    let heap = new_heap(64 << 20);
    let mut front = Front::new(&heap);
    let class = ClassId::for_bytes(1536);
    let live: Vec<_> = (0..100).map(|_| take(&mut front, 4000)).collect();
    leave(&mut front, 160, 1536);
    let pooled = heap.stats().classes[class.index()].pooled_objects;
    let ready = front.cached_objects(class) + pooled;
    assert!(pooled > 0 && ready > pooled, "{pooled} of {ready} in pools");
    // The least class that the ready objects exceed by half.
    let objects: Vec<_> = (0..=ready).map(|_| take(&mut front, 1024)).collect();
    let (served, last) = objects.split_at(ready);
    assert!(served.iter().all(|&object| front.usable_bytes(object) == 1536));
    assert_eq!(front.usable_bytes(last[0]), 1024, "none lies ready any more");
    end(&heap, front, [objects, live].concat());
}

#[test]
fn what_a_request_has_of_its_own_serves_it_first() {
    pretend_cpu(Some(0));
    let heap = new_heap(64 << 20);
    let mut front = Front::new(&heap);
    leave(&mut front, 2, 1152);
    leave(&mut front, 8, 1536);
    // Two objects of its list, and one of the page that came with them.
    let objects: Vec<_> = (0..3).map(|_| take(&mut front, 1152)).collect();
    assert!(objects.iter().all(|&object| front.usable_bytes(object) == 1152));
    end(&heap, front, objects);
}

#[test]
fn much_larger_small_and_unaligned_objects_serve_none() {
    // What lies ready, what is asked for, its alignment, and what serves it.
    for (ready, bytes, align, usable) in [
        (1536, 960, 16, 960),
        (1536, 1000, 16, 1536),
        (640, 448, 16, 448),
        (640, 500, 16, 640),
        (3392, 2100, 256, 2304),
        (2560, 2100, 256, 2560),
    ] {
        pretend_cpu(Some(0));
        let heap = new_heap(64 << 20);
        let mut front = Front::new(&heap);
        leave(&mut front, 4, ready);
        let object = NonNull::new(front.aligned(bytes, align)).expect("memory");
        assert!(object.addr().get().is_multiple_of(align));
        assert_eq!(front.usable_bytes(object), usable, "{bytes} bytes beside {ready}");
        end(&heap, front, vec![object]);
    }
}

#[test]
fn in_a_heap_that_was_large_each_request_has_its_class() {
    pretend_cpu(Some(0));
    let heap = new_heap(64 << 20);
    let mut front = Front::new(&heap);
    let objects: Vec<_> = (0..(16 << 20) / 4096).map(|_| take(&mut front, 4096)).collect();
    leave(&mut front, 4, 1536);
    // Half of the objects stay, so that there may be many requests of the kind.
    let (stay, go) = objects.split_at(objects.len() / 2);
    for &object in go {
        // SAFETY: each of them once.
        unsafe { front.free(object) };
    }
    let object = take(&mut front, 1024);
    assert_eq!(front.usable_bytes(object), 1024);
    end(&heap, front, [stay, &[object]].concat());
}

#[test]
fn what_goes_round_is_of_its_own_class_in_the_end() {
    pretend_cpu(Some(0));
    let heap = new_heap(64 << 20);
    let mut front = Front::new(&heap);
    let objects: Vec<_> = (0..100).map(|_| take(&mut front, 4000)).collect();
    leave(&mut front, 40, 1536);
    let mut larger = 0;
    for _ in 0..10_000 {
        let object = take(&mut front, 1024);
        larger += usize::from(front.usable_bytes(object) > 1024);
        // SAFETY: just taken.
        unsafe { front.free(object) };
    }
    let live_kib = (100 * 4096 + 40 * 1536) / 1024;
    assert!((1..=live_kib).contains(&larger), "{larger} of {live_kib} KiB");
    end(&heap, front, objects);
}
