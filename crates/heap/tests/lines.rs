//! Cache lines that contain objects of several threads. If a program makes such neighbours once,
//! they must not stay neighbours for ever.
//!
//! A thread pretends to run on the CPU that a test names, as in `reuse.rs`.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "tests read better whole")]

mod support;

use std::collections::BTreeSet;
use std::ptr::NonNull;

use hectare::{ClassId, Heap};
use hectare_check::Subject;
use support::system::pretend_cpu;
use support::{Front, Source, check_heap, check_released, new_heap, strict};

const LINE_BYTES: usize = 64;
const TAKERS: usize = 4;

/// Classes of which two objects share a line.
const SIZES: [usize; 6] = [16, 32, 48, 80, 96, 112];

fn take(front: &mut Front<'_, Source>, bytes: usize) -> NonNull<u8> {
    NonNull::new(front.malloc(bytes)).expect("memory")
}

fn give(front: &mut Front<'_, Source>, objects: impl IntoIterator<Item = NonNull<u8>>) {
    for object in objects {
        // SAFETY: each caller gives up live objects.
        unsafe { front.free(object) };
    }
}

fn lines(object: NonNull<u8>, bytes: usize) -> impl Iterator<Item = usize> {
    let start = object.addr().get();
    start / LINE_BYTES..=(start + bytes - 1) / LINE_BYTES
}

/// Makes `maker` make as many objects for each of `takers`, one for each in turn. Each taker frees
/// its own objects and takes one. That one must not lie in a line of any object so made, nor in a
/// line of another taker's object.
fn deal<'a>(
    maker: &mut Front<'a, Source>,
    takers: &mut [Front<'a, Source>],
    each: usize,
    bytes: usize,
) {
    let dealt: Vec<_> = (0..each * takers.len()).map(|_| take(maker, bytes)).collect();
    let mut used: BTreeSet<_> = dealt.iter().flat_map(|&object| lines(object, bytes)).collect();
    let count = takers.len();
    let taken: Vec<_> = takers
        .iter_mut()
        .enumerate()
        .map(|(number, taker)| {
            pretend_cpu(Some(number % 2));
            give(taker, dealt.iter().copied().skip(number).step_by(count));
            take(taker, bytes)
        })
        .collect();
    for (number, &object) in taken.iter().enumerate() {
        for line in lines(object, bytes) {
            assert!(used.insert(line), "{bytes} bytes, {each} each: taker {number} shares a line");
        }
    }
    for (taker, object) in takers.iter_mut().zip(taken) {
        give(taker, [object]);
    }
    pretend_cpu(None);
}

#[test]
fn what_another_made_is_not_what_comes_next() {
    for bytes in SIZES {
        for each in [1, 3, 10] {
            let heap = new_heap(64 << 20);
            let mut maker = Front::new(&heap);
            let mut takers: [_; TAKERS] = std::array::from_fn(|_| Front::new(&heap));
            deal(&mut maker, &mut takers, each, bytes);
            let [a, b, c, d] = &takers;
            check_heap(&heap, [], &[&maker, a, b, c, d]);
            drop((maker, takers));
            check_released(&heap);
        }
    }
}

/// Checks a heap all of whose objects outside slabs are held by two fronts.
fn check_two<'a>(heap: &'a Heap<Source>, fronts: [Front<'a, Source>; 2]) {
    pretend_cpu(None);
    let [a, b] = &fronts;
    check_heap(heap, [], &[a, b]);
    drop(fronts);
    check_released(heap);
}

/// How many neighbours, by address, belong to different owners.
fn boundaries(owned: &[Vec<NonNull<u8>>]) -> usize {
    let of = |(owner, objects): (usize, &Vec<NonNull<u8>>)| {
        objects.iter().map(move |object| (object.addr(), owner)).collect::<Vec<_>>()
    };
    let mut by_address: Vec<_> = owned.iter().enumerate().flat_map(of).collect();
    by_address.sort_unstable();
    by_address.windows(2).filter(|pair| pair[0].1 != pair[1].1).count()
}

/// A processor that goes through its own objects in a row prefetches what lies behind them. So
/// there should be few places where another processor's objects begin.
#[test]
fn two_cpus_that_allocate_side_by_side_have_few_neighbours() {
    const BYTES: usize = 64;
    const EACH: usize = 20_000;
    const SLABS: usize = 2 * EACH * BYTES / (64 << 10) + 1;
    let heap = new_heap(64 << 20);
    let mut fronts: [_; 2] = std::array::from_fn(|_| Front::new(&heap));
    for round in 0..20 {
        let mut owned = [const { Vec::new() }; 2];
        for _ in 0..EACH {
            for (cpu, front) in fronts.iter_mut().enumerate() {
                pretend_cpu(Some(cpu));
                owned[cpu].push(take(front, BYTES));
            }
        }
        let count = boundaries(&owned);
        assert!(count <= 3 * SLABS, "round {round}: {count} in {SLABS} slabs");
        for (cpu, (front, objects)) in fronts.iter_mut().zip(owned).enumerate() {
            pretend_cpu(Some(cpu));
            give(front, objects);
        }
    }
    check_two(&heap, fronts);
}

/// Two fronts, an object of each, and `count` objects that the first front made on CPU 0: each
/// `apart`th of them, and the others.
#[allow(clippy::type_complexity, reason = "told by the names where it is called")]
fn two_of_which_one_made(
    heap: &Heap<Source>,
    count: usize,
    bytes: usize,
    apart: usize,
) -> ([Front<'_, Source>; 2], [NonNull<u8>; 2], [Vec<NonNull<u8>>; 2]) {
    let mut fronts: [_; 2] = std::array::from_fn(|_| Front::new(heap));
    let first = fronts.each_mut().map(|front| take(front, bytes));
    pretend_cpu(Some(0));
    let mut made = [const { Vec::new() }; 2];
    for i in 0..count {
        made[usize::from(i % apart != 0)].push(take(&mut fronts[0], bytes));
    }
    (fronts, first, made)
}

/// The free objects in one CPU's slabs serve other CPUs before the heap grows far.
#[test]
fn what_one_cpu_leaves_serves_another() {
    const BYTES: usize = 64;
    const COUNT: usize = 40_000;
    let heap = new_heap(64 << 20);
    let (mut fronts, first, [freed, kept]) = two_of_which_one_made(&heap, COUNT, BYTES, 2);
    give(&mut fronts[0], freed);
    let before = heap.stats().slab_bytes;
    pretend_cpu(Some(1));
    let made: Vec<_> = (0..COUNT / 2).map(|_| take(&mut fronts[1], BYTES)).collect();
    let after = heap.stats().slab_bytes;
    assert!(after <= before + before / 6, "{before} bytes of slabs became {after}");
    give(&mut fronts[1], made.into_iter().chain(kept));
    give(&mut fronts[1], first);
    check_two(&heap, fronts);
}

/// However few free objects one CPU's slabs have, they serve another CPU, unless so much is taken
/// in a short time that the CPUs would get into each other's way.
#[test]
fn little_that_one_cpu_has_left_serves_another_that_takes_slowly() {
    const BYTES: usize = 64;
    const COUNT: usize = 40_000;
    for pause_ms in [0, 50] {
        let heap = new_heap(64 << 20);
        let (mut fronts, first, [freed, kept]) = two_of_which_one_made(&heap, COUNT, BYTES, 50);
        let count = freed.len();
        give(&mut fronts[0], freed);
        // Into their slabs, each of which has a fiftieth free.
        fronts[0].trim();
        // Each list may bring a batch, and the slab in use has a rest.
        let slabs = || heap.stats().slab_bytes.div_ceil(64 << 10);
        let before = slabs();
        pretend_cpu(Some(1));
        let mut made = Vec::new();
        for number in 0..count * 3 / 4 {
            if number % 100 == 0 {
                strict(&heap).pass_ms(pause_ms);
            }
            made.push(take(&mut fronts[1], BYTES));
        }
        let is_slow = pause_ms > 0;
        assert_eq!(slabs() == before, is_slow, "after {pause_ms} ms: {before} slabs, {}", slabs());
        give(&mut fronts[1], made.into_iter().chain(kept));
        give(&mut fronts[1], first);
        check_two(&heap, fronts);
    }
}

/// However few free objects one CPU's slabs have, they serve another CPU if no memory is left.
#[test]
fn the_last_that_one_cpu_has_left_serves_another() {
    const BYTES: usize = 64;
    const COUNT: usize = 40_000;
    let heap = new_heap(64 << 20);
    let (mut fronts, first, [freed, kept]) = two_of_which_one_made(&heap, COUNT, BYTES, 200);
    give(&mut fronts[0], freed.iter().copied());
    // Into their slabs, each of which has a hundredth free.
    fronts[0].trim();
    strict(&heap).bound(strict(&heap).committed_bytes());
    pretend_cpu(Some(1));
    let others: Vec<_> = std::iter::from_fn(|| NonNull::new(fronts[1].malloc(64 << 10))).collect();
    let again: Vec<_> = freed.iter().map(|_| take(&mut fronts[1], BYTES)).collect();
    strict(&heap).bound(usize::MAX);
    give(&mut fronts[1], again.into_iter().chain(kept));
    give(&mut fronts[1], others.into_iter().chain(first));
    check_two(&heap, fronts);
}

#[test]
fn nor_for_who_has_the_lists_of_a_thread_that_has_ended() {
    for bytes in SIZES {
        let heap = new_heap(64 << 20);
        let mut maker = Front::new(&heap);
        // Pools come into use, so there are places for left caches.
        for cpu in 0..2 {
            pretend_cpu(Some(cpu));
            let objects: Vec<_> = (0..5000).map(|_| take(&mut maker, 1024)).collect();
            give(&mut maker, objects);
        }
        for generation in 0..10 {
            // As many caches are left as there are CPUs.
            let mut takers = [Front::new(&heap), Front::new(&heap)];
            deal(&mut maker, &mut takers, 1, bytes);
            assert!(generation == 0 || takers[0].cached_objects(ClassId::for_bytes(bytes)) > 1);
        }
        drop(maker);
        check_released(&heap);
    }
}

/// A thread that only frees keeps two batches at most. The rest reaches others without a new slab.
/// After it has freed that much, its list is like any other.
#[test]
fn who_only_frees_hands_on() {
    for bytes in SIZES {
        let class = ClassId::for_bytes(bytes);
        let heap = new_heap(64 << 20);
        let mut maker = Front::new(&heap);
        let mut taker = Front::new(&heap);
        let mut slabs = Vec::new();
        for _ in 0..200 {
            pretend_cpu(Some(1));
            let parcel: Vec<_> = (0..500).map(|_| take(&mut maker, bytes)).collect();
            pretend_cpu(Some(7));
            give(&mut taker, parcel);
            slabs.push(heap.stats().slab_bytes);
            assert!(taker.cached_objects(class) <= 2 * class.batch(), "{bytes}");
        }
        let object = take(&mut maker, bytes);
        give(&mut taker, [object]);
        assert_eq!(take(&mut taker, bytes), object, "{bytes}: the list has not opened");
        give(&mut taker, [object]);
        pretend_cpu(None);
        assert_eq!(slabs[20..].iter().max(), slabs[10..20].iter().max(), "{bytes}: {slabs:?}");
        check_heap(&heap, [], &[&maker, &taker]);
        drop((maker, taker));
        check_released(&heap);
    }
}

/// Objects that were laid aside are used when there is nothing else.
#[test]
fn what_lies_aside_is_not_lost() {
    let heap = new_heap(64 << 20);
    let mut maker = Front::new(&heap);
    let mut taker = Front::new(&heap);
    // So that it has a cache.
    let other = take(&mut taker, 1000);
    let mut dealt = vec![take(&mut maker, 16)];
    strict(&heap).bound(strict(&heap).committed_bytes());
    dealt.extend(std::iter::from_fn(|| NonNull::new(maker.malloc(16))));
    let lot = dealt.split_off(dealt.len() - 3);
    give(&mut taker, lot.iter().copied());
    let again: BTreeSet<_> = lot.iter().map(|_| take(&mut taker, 16)).collect();
    assert_eq!(again, lot.into_iter().collect());
    strict(&heap).bound(usize::MAX);
    give(&mut taker, again.into_iter().chain([other]));
    give(&mut maker, dealt);
    drop((maker, taker));
    check_released(&heap);
}
