//! Objects of one slab that are freed together, in order of address or nearly so, go back by words
//! of the slab's bits.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "tests read better whole")]

mod support;

use std::ptr::NonNull;

use hectare::Heap;
use hectare_check::{Object, Payload, Random, Subject, assert_disjoint, seed, soak_operations};
use support::{Front, Source, check_heap, check_released, new_heap};

const SIZES: [usize; 8] = [16, 48, 64, 100, 250, 1000, 4000, 20_000];

/// How the objects that go next are ordered.
#[derive(Clone, Copy)]
enum Order {
    Rising,
    Falling,
    /// In pieces of up to this many objects, each in order; the pieces are shuffled.
    Pieces(usize),
    /// One object in this many stays.
    Gaps(usize),
}

fn take(front: &mut Front<'_, Source>, bytes: usize, tag: u64) -> Object {
    let start = NonNull::new(front.malloc(bytes)).expect("memory");
    let payload = Payload::new(tag);
    // SAFETY: an object of `bytes` bytes, just taken.
    unsafe { payload.write(start, 0, bytes) };
    Object { start, bytes, usable_bytes: front.usable_bytes(start), align: 16, payload }
}

/// Removes the objects that go from `live`, and returns them in their order.
fn leaving(live: &mut Vec<Object>, order: Order, random: &mut Random) -> Vec<Object> {
    live.sort_by_key(|object| object.start);
    let (mut gone, mut pieces) = (Vec::new(), Vec::new());
    for (i, object) in core::mem::take(live).into_iter().enumerate() {
        match order {
            Order::Gaps(every) if (i + 1).is_multiple_of(every) => live.push(object),
            Order::Pieces(length) if i.is_multiple_of(length) => pieces.push(vec![object]),
            Order::Pieces(_) => pieces.last_mut().expect("the first begins one").push(object),
            _ => gone.push(object),
        }
    }
    if let Order::Falling = order {
        gone.reverse();
    }
    while !pieces.is_empty() {
        gone.extend(pieces.swap_remove(random.below(pieces.len())));
    }
    gone
}

#[test]
fn rows_go_back_as_their_objects_would() {
    let mut random = Random::new(seed(11));
    let heap = new_heap(256 << 20);
    let mut front = Front::new(&heap);
    let mut live: Vec<Object> = Vec::new();
    let mut tag = 0;
    for _ in 0..soak_operations(400_000) / 4000 {
        let bytes = SIZES[random.below(SIZES.len())];
        let count = random.below(4_000_000 / bytes.max(1000)) + 1;
        for _ in 0..count {
            tag += 1;
            live.push(take(&mut front, bytes, tag));
        }
        assert_disjoint(&live);
        let order = match random.below(4) {
            0 => Order::Rising,
            1 => Order::Falling,
            2 => Order::Pieces(1 + random.below(40)),
            _ => Order::Gaps(2 + random.below(60)),
        };
        for object in leaving(&mut live, order, &mut random) {
            object.verify();
            // SAFETY: live until now, and forgotten.
            unsafe { front.free(object.start) };
        }
        live.iter().for_each(Object::verify);
        check_heap(&heap, &live, &[&front]);
    }
    free_all(&heap, front, live);
}

fn free_all(heap: &Heap<Source>, mut front: Front<'_, Source>, live: Vec<Object>) {
    for object in live {
        object.verify();
        // SAFETY: live until now, and forgotten.
        unsafe { front.free(object.start) };
    }
    drop(front);
    check_released(heap);
}

#[test]
fn a_row_empties_its_slab() {
    for is_rising in [true, false] {
        let heap = new_heap(64 << 20);
        let mut front = Front::new(&heap);
        let mut live: Vec<Object> = (0..100_000).map(|tag| take(&mut front, 64, tag)).collect();
        let most = heap.stats().slab_bytes;
        live.sort_by_key(|object| object.start);
        if !is_rising {
            live.reverse();
        }
        for object in live {
            // SAFETY: live until now, and forgotten.
            unsafe { front.free(object.start) };
        }
        let left = heap.stats().slab_bytes;
        assert!(left < most / 10, "{left} of {most} bytes are left in slabs");
        drop(front);
        check_released(&heap);
    }
}
