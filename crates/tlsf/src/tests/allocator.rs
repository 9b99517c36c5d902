//! Collections over the heaps, and the trait's methods compared with a shadow.

use allocator_api2::alloc::{AllocError, Allocator};
use allocator_api2::boxed::Box;
use hectare_pages::Fixed;

use super::*;

/// A layout of any size up to `2^max_log2` bytes, often of zero bytes, and any alignment up to
/// 4 KiB.
fn layout(random: &mut Random, max_log2: usize) -> Layout {
    let bytes = if random.below(8) == 0 { 0 } else { random.size(max_log2) };
    Layout::from_size_align(bytes, 1 << random.below(13)).expect("a valid layout")
}

/// Random calls of every method; contents, alignment and places of all blocks are checked.
fn churn(heap: impl Allocator, seed: u64, ops: usize) {
    let mut random = Random::new(seed);
    let mut shadow = Shadow::default();
    let (mut refused, mut grown_in_place) = (0, 0);
    let mut empty = std::vec::Vec::new();
    for _ in 0..ops {
        // More calls take memory than give it back, so that some are refused.
        let call = random.below(8);
        let live = shadow.pick(&mut random);
        if call > 4 || live.is_none() {
            let wanted = layout(&mut random, 14);
            let zeroed = random.below(2) == 0;
            let block = if zeroed { heap.allocate_zeroed(wanted) } else { heap.allocate(wanted) };
            let Ok(block) = block else {
                refused += 1;
                continue;
            };
            assert!(block.len() >= wanted.size());
            let start = block.cast::<u8>();
            if zeroed {
                Shadow::check(start, wanted.size(), 0);
            }
            if wanted.size() == 0 {
                assert_eq!(start.addr().get() % wanted.align(), 0);
                empty.push((start, wanted));
            } else {
                shadow.insert(start, wanted.size(), wanted.align());
            }
            continue;
        }
        // No shadow has blocks of zero bytes.
        let (start, old, fill) = match (empty.pop(), live) {
            (Some((start, old)), _) => (start, old, 0),
            (None, Some((start, live))) => {
                let old = Layout::from_size_align(live.bytes, live.align).expect("its layout");
                shadow.remove(start);
                (start, old, live.fill)
            }
            (None, None) => unreachable!("one of them was seen"),
        };
        Shadow::check(start, old.size(), fill);
        let other = layout(&mut random, 14);
        let (less, more) = (old.size().min(other.size()), old.size().max(other.size()));
        let of = |bytes| Layout::from_size_align(bytes, other.align()).expect("a valid layout");
        let (resized, new) = match call {
            0 | 1 => {
                unsafe { heap.deallocate(start, old) };
                continue;
            }
            2 => (unsafe { heap.grow(start, old, of(more)) }, of(more)),
            3 => (unsafe { heap.grow_zeroed(start, old, of(more)) }, of(more)),
            _ => (unsafe { heap.shrink(start, old, of(less)) }, of(less)),
        };
        let (now, layout, kept) = match resized {
            Ok(block) => (block.cast::<u8>(), new, old.size().min(new.size())),
            Err(AllocError) => {
                refused += 1;
                (start, old, old.size())
            }
        };
        Shadow::check(now, kept, fill);
        grown_in_place += usize::from(now == start && layout.size() > old.size());
        if call == 3 && resized.is_ok() {
            let added = unsafe { now.add(old.size()) };
            Shadow::check(added, layout.size() - old.size(), 0);
        }
        if layout.size() == 0 {
            assert_eq!(now.addr().get() % layout.align(), 0);
            empty.push((now, layout));
        } else {
            shadow.insert(now, layout.size(), layout.align());
        }
    }
    assert!(refused > 0 && grown_in_place > 0, "{refused} refused, {grown_in_place} in place");
    for (start, layout) in empty {
        unsafe { heap.deallocate(start, layout) };
    }
    while let Some((start, live)) = shadow.pick(&mut random) {
        Shadow::check(start, live.bytes, live.fill);
        shadow.remove(start);
        let layout = Layout::from_size_align(live.bytes, live.align).expect("its layout");
        unsafe { heap.deallocate(start, layout) };
    }
}

fn locked_over(arena: &mut Arena, bytes: usize) -> Locked<Tlsf> {
    let heap = Locked::new(Tlsf::new());
    unsafe { heap.lock_mut().add_pool(arena.start(), bytes) }.expect("fits");
    heap
}

#[test]
fn every_method_keeps_contents_and_alignment_in_every_heap() {
    let ops = soak_ops(20_000) as usize;
    for seed in 1..=3 {
        let mut arena = Arena::new(128 << 10);
        let heap = locked_over(&mut arena, 128 << 10);
        churn(&heap, seed, ops);
        assert_eq!(heap.lock().validate(), Ok(()));
        assert_eq!(heap.lock().stats().used_bytes, 0);

        let mut buffer = std::vec![0u8; 128 << 10];
        let source = Fixed::new(&mut buffer, 4096);
        let policy = GrowthPolicy { region_bytes: 16 << 10, keep_free_bytes: 0 };
        let heap: Locked<Growing<_>> = Locked::new(Growing::new(&source, policy));
        churn(&heap, seed, ops);
        assert_eq!(heap.lock().heap().validate(), Ok(()));
        assert_eq!(source.free_pages(), source.page_count());

        let set = ChunkSet::<_, 2>::new(&source, 32 << 10).expect("64 KiB fit");
        let heaps: Sharded<'_, _, 2, 2> = Sharded::new(&set, 0);
        churn(heaps.on(seed as usize), seed, ops);
        assert_eq!(set.free_chunks(), 2);
    }
}

#[test]
fn what_has_no_bytes_takes_no_block() {
    // Not even of a heap without memory.
    let heap: Locked<Tlsf> = Locked::new(Tlsf::new());
    let nothing = Box::new_in((), &heap);
    // An empty slice begins at an address that no allocator gave.
    let empty = allocator_api2::vec::Vec::<u64, _>::new_in(&heap).into_boxed_slice();
    assert_eq!((*nothing, empty.len()), ((), 0));
    drop((nothing, empty));
    assert_eq!(Box::try_new_in(1_u8, &heap).err(), Some(AllocError));
}

#[test]
fn a_vector_grows_and_shrinks_where_it_is() {
    let mut arena = Arena::new(64 << 10);
    let heap = locked_over(&mut arena, 64 << 10);
    let mut numbers = allocator_api2::vec::Vec::with_capacity_in(16, &heap);
    numbers.extend(0..16_u32);
    let place = numbers.as_ptr();
    // The heap does not have room for two blocks of more than half of it.
    numbers.reserve_exact(12 << 10);
    assert_eq!(numbers.as_ptr(), place);
    numbers.shrink_to_fit();
    assert_eq!((numbers.as_ptr(), heap.lock().stats().used_bytes), (place, 80));
    assert!(numbers.iter().copied().eq(0..16));
}

#[test]
fn a_map_of_widely_aligned_boxes_gives_everything_back() {
    #[repr(align(256))]
    struct Wide(u32);
    // Four times what both maps take.
    let mut buffer = std::vec![0u8; 3 << 20];
    let source = Fixed::new(&mut buffer, 4096);
    let set = ChunkSet::<_, 32>::new(&source, 64 << 10).expect("2 MiB fit");
    let heaps: Sharded<'_, _, 2, 32> = Sharded::new(&set, 0);
    std::thread::scope(|scope| {
        for cpu in 0..2 {
            let heap = heaps.on(cpu);
            scope.spawn(move || {
                let mut map = hashbrown::HashMap::new_in(heap);
                for number in 0..500 {
                    map.insert(number, Box::new_in(Wide(number), heap));
                }
                for (&number, wide) in &map {
                    assert_eq!((wide.0, (&raw const **wide).addr() % 256), (number, 0));
                }
            });
        }
    });
    heaps.for_each(|heap| assert_eq!(heap.validate(), Ok(())));
    // Each CPU took from its own shard.
    heaps.for_each(|heap| assert!(heap.stats().peak_used_bytes >= 500 * size_of::<Wide>()));
    assert_eq!(set.free_chunks(), 32);
}
