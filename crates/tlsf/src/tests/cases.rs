//! Single cases that the random runs would reach only by luck.

use super::*;

fn heap_over(arena: &mut Arena, bytes: usize) -> (Tlsf, Pool) {
    let mut heap = Tlsf::new();
    let pool = unsafe { heap.add_pool(arena.start(), bytes) }.expect("a pool that fits");
    (heap, pool)
}

#[test]
fn an_empty_heap_refuses_and_says_why() {
    let mut heap: Tlsf = Tlsf::new();
    assert_eq!(heap.malloc(1), None);
    assert_eq!(heap.last_failure(), Some(Failure::Exhausted));
    assert_eq!(heap.malloc(usize::MAX), None);
    assert_eq!(heap.last_failure(), Some(Failure::TooLarge));
    assert_eq!(heap.malloc(heap.max_block_bytes() - 4), None);
    assert_eq!(heap.last_failure(), Some(Failure::Exhausted));
    assert_eq!(heap.memalign(1 << 40, 1), None);
    assert_eq!(heap.last_failure(), Some(Failure::TooLarge));
    assert_eq!(heap.stats().largest_allocatable_bytes, 0);
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn every_pool_size_is_usable_to_its_last_granule() {
    let mut arena = Arena::new(8192);
    for bytes in 0..8192 {
        let mut heap: Tlsf = Tlsf::new();
        match unsafe { heap.add_pool(arena.start(), bytes) } {
            Err(error) => assert!(bytes < 32 && error == PoolError::TooSmall, "{bytes}: {error}"),
            Ok(_) => {
                let largest = heap.stats().largest_allocatable_bytes;
                assert_eq!(largest, (bytes & !15) - 16 - 4);
                assert!(heap.malloc(largest + 1).is_none());
                assert!(heap.malloc(largest).is_some(), "pool of {bytes} bytes");
                assert_eq!(heap.stats().free_bytes, 0);
                assert_eq!(heap.validate(), Ok(()));
            }
        }
    }
}

#[test]
fn what_lies_before_the_first_pool_is_foreign_whatever_is_there() {
    let mut arena = Arena::new(4096);
    let before = unsafe { arena.start().add(16) };
    // Looks like the header of a used block of two granules.
    unsafe { before.cast::<u32>().sub(1).write(2 << 2) };
    let mut heap: Tlsf = Tlsf::new();
    unsafe { heap.add_pool(arena.start().add(64), 4000) }.expect("a pool that fits");
    assert_eq!(unsafe { heap.free(before) }, Err(Misuse::Foreign));
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn the_largest_pool_of_a_table_has_no_granule_more() {
    let mut arena = Arena::new(4096);
    let mut heap = Tlsf::<[Row<u16, 4>; 3]>::new();
    let most = heap.max_block_bytes() + 16;
    let refused = unsafe { heap.add_pool(arena.start(), most + 16) };
    assert_eq!(refused, Err(PoolError::TooLarge));
    assert!(unsafe { heap.add_pool(arena.start(), most) }.is_ok());
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn a_heap_without_pools_takes_the_next_from_anywhere() {
    let mut arena = Arena::new(4 << 20);
    let far = unsafe { arena.start().add(3 << 20) };
    let mut heap = TinyTlsf::new();
    let pool = unsafe { heap.add_pool(arena.start(), 4096) }.expect("a pool that fits");
    assert_eq!(unsafe { heap.add_pool(far, 4096) }, Err(PoolError::OutOfReach));
    let block = heap.malloc(100).expect("4 KiB have room");
    unsafe { heap.free(block) }.expect("allocated above");
    unsafe { heap.remove_pool(pool) }.expect("no block is used");
    assert_eq!(unsafe { heap.free(block) }, Err(Misuse::Foreign));
    assert!(unsafe { heap.add_pool(far, 4096) }.is_ok());
    assert!(heap.malloc(100).is_some());
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn validate_compares_the_counters_with_the_blocks() {
    let mut arena = Arena::new(4096);
    let (mut heap, _) = heap_over(&mut arena, 4096);
    let block = heap.malloc(100).expect("4 KiB have room");
    unsafe { heap.free(block) }.expect("allocated above");
    assert_eq!(heap.validate(), Ok(()));
    heap.headroom_bits -= 1 << crate::block::Header::FLAG_BITS;
    assert_eq!(heap.validate(), Err(Corruption::Count));
    // A headroom larger than the peak while nothing is used.
    heap.headroom_bits += 2 << crate::block::Header::FLAG_BITS;
    assert_eq!(heap.validate(), Err(Corruption::Count));
    heap.headroom_bits -= 1 << crate::block::Header::FLAG_BITS;
    heap.managed_granules += 1;
    assert_eq!(heap.validate(), Err(Corruption::Count));
}

#[test]
fn validate_sees_the_victim_in_the_place_of_a_listed_block() {
    let mut arena = Arena::new(4096);
    let (mut heap, [victim, _]) = heap_of(&mut arena, [100, 100]);
    let bin = crate::bin::Bin::of::<Row<u32, 32>>(100);
    let index = heap.victim as usize;
    heap.block(index).set_next(0);
    heap.table.pop(bin, index);
    assert_eq!(heap.validate(), Err(Corruption::List(victim.addr().get())));
}

#[test]
fn validate_sees_free_neighbours_that_agree_in_all_else() {
    use crate::block::Header;
    let mut arena = Arena::new(4096);
    let (mut heap, _) = heap_over(&mut arena, 4096);
    let first = heap.block(heap.victim as usize);
    let (all, part) = (first.header().granules(), 100);
    let second = first.after(part);
    first.set_header(Header::free(part).with_prev_free());
    second.set_footer_before(Header::free(part));
    second.set_header(Header::free(all - part).with_prev_free());
    first.after(all).set_footer_before(Header::free(all - part));
    heap.victim_granules = part as u32;
    heap.link(second, all - part);
    assert_eq!(heap.validate(), Err(Corruption::Unmerged(second.payload())));
}

#[test]
fn fragmentation_is_told_from_exhaustion() {
    let mut arena = Arena::new(4096);
    let (mut heap, _) = heap_over(&mut arena, 4096);
    let blocks: Vec<_> = core::iter::from_fn(|| heap.malloc(60)).collect();
    assert_eq!(heap.last_failure(), Some(Failure::Exhausted));
    for block in blocks.iter().step_by(2) {
        assert_eq!(unsafe { heap.free(*block) }, Ok(()));
    }
    assert_eq!(heap.malloc(200), None);
    assert_eq!(heap.last_failure(), Some(Failure::Fragmented));
    // All free bytes together would be just enough.
    assert_eq!(heap.malloc(heap.stats().free_bytes - 4), None);
    assert_eq!(heap.last_failure(), Some(Failure::Fragmented));
}

#[test]
fn the_peak_stays_when_blocks_go() {
    let mut arena = Arena::new(4096);
    let (mut heap, _) = heap_over(&mut arena, 4096);
    let blocks = [100, 500, 12].map(|bytes| heap.malloc(bytes).expect("4 KiB have room"));
    let peak = heap.stats().used_bytes;
    assert_eq!(peak, 112 + 512 + 16);
    for block in blocks {
        assert_eq!(heap.stats().peak_used_bytes, peak);
        unsafe { heap.free(block) }.expect("allocated above");
    }
    heap.malloc(200).expect("4 KiB have room");
    assert_eq!((heap.stats().used_bytes, heap.stats().peak_used_bytes), (208, peak));
}

#[test]
fn a_request_that_only_its_own_list_can_serve_looks_at_four_blocks_of_it() {
    // Pools of one block each. Blocks of 129 to 132 granules share a list, whose first block is the
    // last one added.
    let least = 16 * 129 - 4;
    for (in_front, served) in [(3, true), (4, false)] {
        let mut arena = Arena::new(16384);
        let mut heap: Tlsf = Tlsf::new();
        let mut start = arena.start();
        // The very first free block is in no list.
        for granules in [2, 132].into_iter().chain([129].repeat(in_front)) {
            let bytes = 16 * granules + 16;
            unsafe { heap.add_pool(start, bytes) }.expect("a pool of one block");
            start = unsafe { start.add(bytes) };
        }
        let largest = least + if served { 3 * 16 } else { 0 };
        assert_eq!(heap.stats().largest_allocatable_bytes, largest);
        assert_eq!(heap.malloc(least + 3 * 16).is_some(), served, "{in_front}");
        assert_eq!(heap.last_failure(), (!served).then_some(Failure::Fragmented));
        assert_eq!(heap.validate(), Ok(()));
    }
}

/// A heap over pools of one free block each, one for each number of granules, one behind the other.
/// The first block is the victim, the others are in the lists. Also returns where each begins.
fn heap_of<const POOLS: usize>(
    arena: &mut Arena,
    granules: [usize; POOLS],
) -> (Tlsf, [NonNull<u8>; POOLS]) {
    let mut heap = Tlsf::new();
    let mut start = arena.start();
    let first_payloads = granules.map(|granules| {
        let bytes = 16 * granules + 16;
        let pool = unsafe { heap.add_pool(start, bytes) }.expect("a pool of one block");
        start = unsafe { start.add(bytes) };
        unsafe { heap.blocks(pool) }.next().expect("its block").payload
    });
    (heap, first_payloads)
}

fn usable_granules(heap: &Tlsf, block: NonNull<u8>) -> usize {
    (unsafe { heap.usable_size(block) }.expect("a block of the heap") + 4) / 16
}

#[test]
fn the_largest_allocatable_size_is_that_of_the_victim_or_of_the_largest_block_looked_at() {
    let mut arena = Arena::new(16384);
    // The first is the victim. The others share a list, whose first block is the last one added.
    for granules in [[2, 129, 132], [2, 132, 129], [140, 129, 132]] {
        let (mut heap, _) = heap_of(&mut arena, granules);
        let largest = granules.into_iter().max().expect("three blocks");
        assert_eq!(heap.stats().largest_allocatable_bytes, 16 * largest - 4, "{granules:?}");
        assert_eq!(heap.malloc(16 * largest - 3), None, "{granules:?}");
        assert!(heap.malloc(16 * largest - 4).is_some(), "{granules:?}");
    }
}

#[test]
fn a_remainder_that_would_be_a_shred_stays_with_its_block() {
    let mut arena = Arena::new(4096);
    for (granules, least) in [(1, 2), (31, 2), (33, 3), (101, 5)] {
        for rest in 0..least + 2 {
            let (mut heap, _) = heap_of(&mut arena, [granules + rest]);
            let block = heap.malloc(16 * granules - 4).expect("the pool has room");
            let stays = if rest < least { rest } else { 0 };
            assert_eq!(usable_granules(&heap, block), granules + stays, "{granules} and {rest}");
            assert_eq!(heap.validate(), Ok(()));
        }
    }
}

#[test]
fn a_remainder_below_an_eighth_stays_where_its_list_has_one_that_nobody_took() {
    let mut arena = Arena::new(8192);
    // 129 granules are more than 2 KiB, 125 are less.
    for (granules, rest, other, stays) in
        [(129, 16, 16, true), (129, 16, 15, false), (129, 17, 17, false), (125, 14, 14, false)]
    {
        let (mut heap, _) = heap_of(&mut arena, [2, other, granules + rest]);
        let block = heap.malloc(16 * granules - 4).expect("the last pool has room");
        let expected = granules + if stays { rest } else { 0 };
        assert_eq!(usable_granules(&heap, block), expected, "{granules} and {rest}, {other} free");
        assert_eq!(heap.validate(), Ok(()));
    }
}

#[test]
fn small_blocks_are_cut_off_the_victim_unless_it_is_a_wilderness() {
    let mut arena = Arena::new(80 << 10);
    for (victim, granules, is_cut) in [(4095, 7, true), (4095, 8, false), (4096, 7, false)] {
        let (mut heap, [first, second]) = heap_of(&mut arena, [victim, 50]);
        let block = heap.malloc(16 * granules - 4).expect("room");
        let expected = if is_cut { first } else { second };
        assert_eq!(block, expected, "{granules} granules, a victim of {victim}");
    }
}

#[test]
fn a_victim_that_fits_exactly_is_taken_before_a_larger_block_is_split() {
    let mut arena = Arena::new(4096);
    let (mut heap, [victim, larger]) = heap_of(&mut arena, [50, 100]);
    assert_eq!(heap.malloc(16 * 50 - 4), Some(victim));
    assert_eq!(heap.malloc(16 * 100 - 4), Some(larger));
    assert_eq!(heap.stats().free_bytes, 0);
}

#[test]
fn the_victim_is_cut_unless_a_smaller_class_has_a_block() {
    let mut arena = Arena::new(8192);
    // Blocks of 129 to 132 granules are of one class.
    for (victim, other, is_cut) in [(131, 130, true), (131, 133, true), (131, 128, false)] {
        let (mut heap, [first, second]) = heap_of(&mut arena, [victim, other]);
        let block = heap.malloc(16 * 100 - 4).expect("room");
        assert_eq!(block == first, is_cut, "a victim of {victim} granules and a block of {other}");
        assert_eq!(block == second, !is_cut);
        assert_eq!(heap.validate(), Ok(()));
    }
}

#[test]
fn misuse_is_refused_without_a_change() {
    let mut arena = Arena::new(4096);
    let (mut heap, _) = heap_over(&mut arena, 4096);
    let block = heap.malloc(100).expect("4 KiB have room");
    let before = heap.stats();
    let mut foreign = [0u128; 4];
    assert_eq!(unsafe { heap.free(NonNull::from(&mut foreign).cast()) }, Err(Misuse::Foreign));
    assert_eq!(unsafe { heap.free(block.add(8)) }, Err(Misuse::Foreign));
    // The header there is that of the pool's end.
    assert_eq!(unsafe { heap.free(arena.start().add(4096)) }, Err(Misuse::Foreign));
    unsafe { block.write_bytes(0xff, 100) };
    assert_eq!(unsafe { heap.free(block.add(32)) }, Err(Misuse::DoubleFree));
    unsafe { block.write_bytes(0xf8, 100) };
    assert_eq!(unsafe { heap.free(block.add(32)) }, Err(Misuse::Corrupt));
    assert_eq!(heap.stats(), before);
    assert_eq!(unsafe { heap.free(block) }, Ok(()));
    assert_eq!(unsafe { heap.free(block) }, Err(Misuse::DoubleFree));
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn validate_finds_every_overwritten_word_of_the_heap() {
    let mut arena = Arena::new(2048);
    let (mut heap, _) = heap_over(&mut arena, 2048);
    let blocks: Vec<_> = (0..8).map(|i| heap.malloc(40 * (i % 3) + 12).expect("room")).collect();
    // All of one size: the block freed last is the first of their list, whose `prev` is not kept.
    for block in blocks.iter().step_by(3) {
        assert_eq!(unsafe { heap.free(*block) }, Ok(()));
    }
    let first = blocks[6];
    assert_eq!(heap.validate(), Ok(()));
    let pools: Vec<_> = heap.pools().collect();
    let walked: Vec<_> = unsafe { heap.blocks(pools[0]) }.collect();
    let mut words = Vec::new();
    // The pool's own words: newer pool, older pool, size.
    let first_payload = walked[0].payload.cast::<u32>();
    let pool_size = unsafe { first_payload.sub(2) };
    words.extend((2..=4).map(|word| unsafe { first_payload.sub(word) }));
    for block in &walked {
        let word = block.payload.cast::<u32>();
        words.push(unsafe { word.sub(1) });
        if !block.used {
            // The rest of the pool is the victim, which is in no list.
            let victim = block.payload_bytes > 12;
            if !victim {
                words.push(word);
            }
            if !victim && block.payload != first {
                words.push(unsafe { word.add(1) });
            }
            words.push(unsafe { word.byte_add(block.payload_bytes).sub(1) });
        }
    }
    // The header of the pool's end.
    let last = walked.last().expect("a pool has a block");
    words.push(unsafe { last.payload.cast::<u32>().byte_add(last.payload_bytes) });
    for word in words {
        let good = unsafe { word.read() };
        for bad in [!good, good ^ 1, good ^ 2, good ^ 4, good.wrapping_add(64), 0, u32::MAX] {
            // A single bit tells whether a pool is the source's.
            if bad != good && (word != pool_size || bad != good ^ 2) {
                unsafe { word.write(bad) };
                assert!(heap.validate().is_err(), "{good:#x} overwritten by {bad:#x}");
            }
        }
        unsafe { word.write(good) };
        assert_eq!(heap.validate(), Ok(()));
    }
}

/// A block too small to be free, with neighbours that agree with it.
#[test]
fn validate_sees_a_block_below_the_least_size() {
    use crate::block::Header;
    let mut arena = Arena::new(4096);
    let mut heap = WideTlsf::new();
    unsafe { heap.add_pool(arena.start(), 4096) }.expect("fits");
    let payload = heap.malloc(100).expect("4 KiB have room");
    let block = unsafe { crate::block::Block::<Row<usize, 32>>::at(payload.addr().get()) };
    let granules = block.header().granules();
    block.set_header(Header::used(1).with_prev_free_of(block.header()));
    block.after(1).set_header(Header::used(granules - 1));
    assert_eq!(heap.validate(), Err(Corruption::Size(payload.addr().get())));
}

/// If sizes have as many bits as addresses, the end that a size leads to may be no address. The
/// mark of a free block would join the first block to what lies before the pool.
#[test]
fn a_pool_whose_size_is_overwritten_is_found_broken() {
    let mut arena = Arena::new(4096);
    let mut heap = WideTlsf::new();
    let pool = unsafe { heap.add_pool(arena.start(), 4096) }.expect("fits");
    let size =
        unsafe { core::ptr::with_exposed_provenance_mut::<usize>(pool.first_payload).sub(2) };
    let good = unsafe { size.read() };
    for bad in
        [good ^ 1, !good, !good & !1, usize::MAX, usize::MAX - 1, good | 1 << 63, good | 1 << 61, 0]
    {
        unsafe { size.write(bad) };
        assert!(heap.validate().is_err(), "{bad:#x}");
        assert!(unsafe { WideTlsf::validate_one(pool) }.is_err(), "{bad:#x}");
    }
    unsafe { size.write(good) };
    assert_eq!(heap.validate(), Ok(()));
    assert_eq!(unsafe { WideTlsf::validate_one(pool) }, Ok(()));
}

#[test]
fn realloc_grows_forward_backward_and_both_ways() {
    let mut arena = Arena::new(8192);
    let (mut heap, _) = heap_over(&mut arena, 8192);
    let [before, block, after, fence] =
        [(); 4].map(|()| heap.malloc(496).expect("8 KiB have room for four"));
    unsafe { block.write_bytes(7, 496) };
    unsafe { heap.free(after) }.expect("allocated above");
    let forward = unsafe { heap.realloc(block, 16, 900) };
    assert_eq!(forward, Ok(Some(block)), "forward, in place");
    assert_eq!(unsafe { heap.realloc(block, 16, 496) }, Ok(Some(block)), "shrunk in place");
    unsafe { heap.free(before) }.expect("allocated above");
    let both = unsafe { heap.realloc(block, 16, 1400) };
    assert_eq!(both, Ok(Some(before)), "over both neighbours");
    assert_eq!(unsafe { heap.usable_size(before) }, Ok(1420), "all of its class");
    assert_eq!(unsafe { core::slice::from_raw_parts(before.as_ptr(), 496) }, [7; 496]);
    assert_eq!(heap.validate(), Ok(()));
    let moved = unsafe { heap.realloc(before, 256, 3000) }.expect("sound").expect("room");
    assert_ne!(moved, before);
    assert_eq!(moved.addr().get() % 256, 0, "realloc keeps the alignment");
    let aligned = heap.memalign(64, 1400).expect("room");
    assert_eq!(unsafe { heap.usable_size(aligned) }, Ok(1420), "all of its class");
    unsafe { heap.free(aligned) }.expect("allocated above");
    assert_eq!(unsafe { core::slice::from_raw_parts(moved.as_ptr(), 496) }, [7; 496]);
    for block in [moved, fence] {
        unsafe { heap.free(block) }.expect("allocated above");
    }
    assert_eq!(heap.stats().used_bytes, 0);
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn realloc_grows_backward_over_exactly_what_it_needs() {
    let mut arena = Arena::new(4096);
    let (mut heap, _) = heap_over(&mut arena, 4096);
    let [before, block, _] = [(); 3].map(|()| heap.malloc(508).expect("4 KiB have room"));
    unsafe { block.write_bytes(7, 508) };
    unsafe { heap.free(before) }.expect("allocated above");
    assert_eq!(unsafe { heap.realloc(block, 16, 1020) }, Ok(Some(before)));
    assert_eq!(unsafe { core::slice::from_raw_parts(before.as_ptr(), 508) }, [7; 508]);
    assert_eq!(heap.validate(), Ok(()));
}

/// The gap before an aligned block is less than the alignment and a smallest block together.
#[test]
fn an_aligned_request_is_served_by_the_least_block_that_is_certain_to_have_room() {
    fn check<S: Shape, const FIRST: usize>()
    where
        [S; FIRST]: Rows<Row = S>,
    {
        let mut arena = Arena::new(4096);
        let least = Tlsf::<[S; FIRST]>::MIN_BLOCK_BYTES / 16;
        for align_granules in [2, 4, 16] {
            for granules in [least, 7, 20] {
                let room = granules + align_granules + least - 1;
                let pool_bytes = 16 * room + Tlsf::<[S; FIRST]>::POOL_OVERHEAD_BYTES;
                for offset in 0..align_granules {
                    let mut heap = Tlsf::<[S; FIRST]>::new();
                    let start = unsafe { arena.start().add(16 * offset) };
                    unsafe { heap.add_pool(start, pool_bytes) }.expect("4 KiB have room");
                    let bytes = 16 * granules - Tlsf::<[S; FIRST]>::HEADER_BYTES;
                    let block = heap.memalign(16 * align_granules, bytes);
                    let block = block.unwrap_or_else(|| panic!("{granules} at {align_granules}"));
                    assert_eq!(block.addr().get() % (16 * align_granules), 0);
                    assert_eq!(heap.validate(), Ok(()));
                }
            }
        }
    }
    check::<Row<u32, 32>, 26>();
    check::<Row<usize, 32>, 32>();
    check::<Row<u16, 16>, 8>();
}

#[test]
fn a_block_before_a_used_one_gives_back_what_it_shrinks_by() {
    let mut arena = Arena::new(8192);
    let (mut heap, _) = heap_over(&mut arena, 8192);
    let [block, _] = [(); 2].map(|()| heap.malloc(1020).expect("8 KiB have room"));
    for (bytes, granules) in [(1020, 64), (1000, 64), (508, 32), (508, 32), (12, 1)] {
        assert_eq!(unsafe { heap.realloc(block, 16, bytes) }, Ok(Some(block)), "{bytes}");
        assert_eq!(usable_granules(&heap, block), granules, "{bytes}");
        assert_eq!(heap.stats().used_bytes, 16 * (granules + 64), "{bytes}");
        assert_eq!(heap.validate(), Ok(()));
    }
}

#[test]
fn what_realloc_has_left_is_not_freed_again() {
    let mut arena = Arena::new(8192);
    let (mut heap, _) = heap_over(&mut arena, 8192);
    let [before, block, _, far, _] =
        [1000, 100, 100, 100, 100].map(|size| heap.malloc(size).expect("8 KiB have room"));
    unsafe { heap.free(before) }.expect("allocated above");
    assert_eq!(unsafe { heap.realloc(block, 16, 500) }, Ok(Some(before)), "backward");
    let moved = unsafe { heap.realloc(far, 16, 5000) }.expect("sound").expect("room");
    assert_ne!(moved, far);
    for left in [block, far] {
        assert_eq!(unsafe { heap.free(left) }, Err(Misuse::DoubleFree));
    }
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn realloc_stays_where_the_size_fits_though_its_class_does_not() {
    // Classes of this size are 256 granules wide: 942 granules are rounded to 1024.
    let mut arenas = [(); 3].map(|()| Arena::new(8192));
    let mut heap: Tlsf<[Row<u32, 2, 8>; 20]> = Tlsf::new();
    let pool = |arena: &mut Arena, granules: usize| (arena.start(), 8 * granules + 16);
    let (start, bytes) = pool(&mut arenas[0], 1016);
    unsafe { heap.add_pool(start, bytes) }.expect("fits");
    let block = heap.malloc(8 * 1016 - 4).expect("the whole pool");
    unsafe { block.write_bytes(7, 8 * 1016 - 4) };
    // Probing the list below finds this pool. It serves 942 granules, but does not have 1016.
    let (start, bytes) = pool(&mut arenas[1], 985);
    unsafe { heap.add_pool(start, bytes) }.expect("fits");
    assert_eq!(unsafe { heap.realloc(block, 8, 942 * 8 - 4) }, Ok(Some(block)));
    assert_eq!(unsafe { heap.realloc(block, 8, 1016 * 8 - 4) }, Ok(Some(block)));
    assert_eq!(heap.validate(), Ok(()));
    assert_eq!(unsafe { core::slice::from_raw_parts(block.as_ptr(), 8124) }, [7; 8124]);
    // A move to a block that has enough granules for the size, but not for its class.
    let (start, bytes) = pool(&mut arenas[2], 900);
    unsafe { heap.add_pool(start, bytes) }.expect("fits");
    let [first, small] = [(); 2].map(|()| heap.malloc(7000).expect("room"));
    unsafe { heap.free(first) }.expect("allocated above");
    let moved = unsafe { heap.realloc(small, 8, 980 * 8) }.expect("sound").expect("room");
    assert_ne!(moved, small);
    assert_eq!(heap.validate(), Ok(()));
    for block in [block, moved] {
        assert_eq!(unsafe { heap.free(block) }, Ok(()));
    }
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn pools_come_and_go_while_others_are_in_use() {
    let mut arenas = [(); 3].map(|()| Arena::new(4096));
    let mut heap: WideTlsf = Tlsf::new();
    let pools: Vec<_> = arenas
        .iter_mut()
        .map(|arena| unsafe { heap.add_pool(arena.start(), 4096) }.expect("fits"))
        .collect();
    assert_eq!(heap.pools().collect::<Vec<_>>(), [pools[2], pools[1], pools[0]]);
    let blocks: Vec<_> = core::iter::from_fn(|| heap.malloc(1000)).collect();
    assert_eq!(unsafe { heap.remove_pool(pools[1]) }, Err(PoolError::InUse));
    let low = arenas[1].start().addr().get();
    let (inside, outside): (Vec<_>, Vec<_>) =
        blocks.into_iter().partition(|block| (low..low + 4096).contains(&block.addr().get()));
    for block in inside {
        unsafe { heap.free(block) }.expect("allocated above");
    }
    assert_eq!(unsafe { heap.remove_pool(pools[1]) }, Ok(()));
    assert_eq!(heap.validate(), Ok(()));
    for block in outside {
        unsafe { heap.free(block) }.expect("allocated above");
    }
    assert_eq!(unsafe { heap.remove_pool(pools[0]) }, Ok(()));
    assert_eq!(unsafe { heap.remove_pool(pools[2]) }, Ok(()));
    assert_eq!(heap.stats().managed_bytes, 0);
    assert_eq!(heap.malloc(1), None);
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn a_pool_out_of_reach_or_too_large_is_refused() {
    let mut arena = Arena::new(8 << 20);
    let start = arena.start();
    let mut heap: TinyTlsf = Tlsf::new();
    assert_eq!(unsafe { heap.add_pool(start, 1 << 20) }, Err(PoolError::TooLarge));
    unsafe { heap.add_pool(start, 256 << 10) }.expect("the largest pool");
    let near = unsafe { heap.add_pool(start.add(256 << 10), 128 << 10) };
    assert!(near.is_ok());
    let far = unsafe { heap.add_pool(start.add(4 << 20), 128 << 10) };
    assert_eq!(far, Err(PoolError::OutOfReach));
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn a_pool_that_leads_out_of_reach_at_either_end_is_refused() {
    const STEP: usize = 100 << 10;
    let mut arena = Arena::new(2 << 20);
    let middle = unsafe { arena.start().add(1 << 20) };
    let mut heap: TinyTlsf = Tlsf::new();
    unsafe { heap.add_pool(middle, 4096) }.expect("the first");
    let mut add = |start| unsafe { heap.add_pool(start, STEP) };
    // Half a MiB to each side: the sixth pool begins or ends within it.
    for pool in 0..5 {
        assert!(add(unsafe { middle.add(4096 + pool * STEP) }).is_ok());
        assert!(add(unsafe { middle.sub((pool + 1) * STEP) }).is_ok());
    }
    assert_eq!(add(unsafe { middle.add(4096 + 5 * STEP) }), Err(PoolError::OutOfReach));
    assert_eq!(add(unsafe { middle.sub(6 * STEP) }), Err(PoolError::OutOfReach));
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn a_pool_is_in_reach_to_the_last_granule_at_either_end() {
    let mut arena = Arena::new(2 << 20);
    let middle = unsafe { arena.start().add(1 << 20) };
    let mut heap: TinyTlsf = Tlsf::new();
    unsafe { heap.add_pool(middle, 4096) }.expect("the first");
    let at = |address: usize| NonNull::new(core::ptr::with_exposed_provenance_mut(address));
    // Indices are 1 to 65,535: zero means none. The head of a pool takes 8 bytes.
    let (lowest, end) = (heap.base + 16, heap.base + 16 * 65_535);
    let mut add =
        |address: usize| unsafe { heap.add_pool(at(address).expect("in the arena"), 4096) };
    assert_eq!(add(lowest - 16 - 8), Err(PoolError::OutOfReach));
    assert_eq!(add(end - 4096 + 16), Err(PoolError::OutOfReach));
    assert!(add(lowest - 8).is_ok());
    assert!(add(end - 4096).is_ok());
    let blocks: Vec<_> = core::iter::from_fn(|| heap.malloc(4000)).collect();
    assert_eq!((blocks.len(), heap.validate()), (3, Ok(())));
    for block in blocks {
        assert_eq!(unsafe { heap.free(block) }, Ok(()));
    }
    assert_eq!(heap.validate(), Ok(()));
}

/// Memory that would end past the last address: whatever the sum is, it is not a pool.
#[test]
fn a_pool_that_leads_past_the_last_address_is_refused() {
    let mut arena = Arena::new(4096);
    let memory = unsafe { core::slice::from_raw_parts_mut(arena.start().cast().as_ptr(), 4096) };
    // The heap lies below, so the memory does not overlap it.
    let (heap, rest) = Tlsf::<[Row<u32, 2>]>::new_in(memory, 1024).expect("4 KiB have room");
    let start = NonNull::from(rest).cast();
    for bytes in [usize::MAX, usize::MAX - start.addr().get(), isize::MAX as usize] {
        assert_eq!(unsafe { heap.add_pool(start, bytes) }, Err(PoolError::TooLarge), "{bytes:#x}");
    }
    assert_eq!((heap.stats().pools, heap.validate()), (0, Ok(())));
}

/// Tables with more rows than there are sizes: an index width of 16 bits leaves 14 for a size, and
/// no block is larger than half of the address space.
#[test]
fn a_heap_with_too_many_rows_has_no_larger_blocks() {
    let mut arena = Arena::new(520 << 10);
    let mut narrow: Tlsf<[Row<u16, 4>; 16]> = Tlsf::new();
    assert_eq!(narrow.max_block_bytes(), 16 * ((1 << 14) - 1));
    let refused = unsafe { narrow.add_pool(arena.start(), 300 << 10) };
    assert_eq!(refused, Err(PoolError::TooLarge));
    unsafe { narrow.add_pool(arena.start(), 256 << 10) }.expect("the largest pool");
    let largest = narrow.max_block_bytes() - 2;
    assert!(narrow.malloc(largest).is_some());
    assert_eq!(narrow.validate(), Ok(()));

    let mut wide: Tlsf<[Row<usize, 2>; 64]> = Tlsf::new();
    assert!(wide.max_block_bytes() <= isize::MAX as usize);
    unsafe { wide.add_pool(arena.start(), 4096) }.expect("fits");
    let block = wide.malloc(100).expect("4 KiB have room");
    for bytes in [isize::MAX as usize, 1 << 63, usize::MAX - 24, usize::MAX] {
        assert_eq!(wide.malloc(bytes), None, "{bytes:#x}");
        assert_eq!(wide.last_failure(), Some(Failure::TooLarge), "{bytes:#x}");
        assert_eq!(wide.memalign(4096, bytes), None, "{bytes:#x}");
        assert_eq!(wide.memalign(1 << 63, bytes), None, "{bytes:#x}");
        assert_eq!(unsafe { wide.realloc(block, 16, bytes) }, Ok(None), "{bytes:#x}");
    }
    assert_eq!(wide.memalign(1 << 63, 1), None);
    assert_eq!(wide.last_failure(), Some(Failure::TooLarge));
    assert_eq!(wide.validate(), Ok(()));
}

#[test]
fn a_pool_that_overlaps_another_is_refused_and_one_that_touches_it_is_not() {
    let mut arena = Arena::new(16384);
    let start = arena.start();
    let mut heap: Tlsf = Tlsf::new();
    unsafe { heap.add_pool(start.add(4096), 4096) }.expect("fits");
    for (offset, bytes) in
        [(4096, 4096), (0, 4100), (0, 16384), (8191, 64), (5000, 100), (0, usize::MAX)]
    {
        let refused = unsafe { heap.add_pool(start.add(offset), bytes) };
        assert_eq!(refused, Err(PoolError::Overlap), "{bytes} bytes at {offset}");
    }
    let own = NonNull::from(&mut heap).cast::<u8>();
    for (offset, bytes) in [(0, size_of::<Tlsf>()), (size_of::<Tlsf>() - 64, 64)] {
        let refused = unsafe { heap.add_pool(own.add(offset), bytes) };
        assert_eq!(refused, Err(PoolError::Overlap), "the heap itself, from {offset} on");
    }
    unsafe { heap.add_pool(start, 4096) }.expect("touches the first from below");
    unsafe { heap.add_pool(start.add(8192), 4096) }.expect("touches it from above");
    assert_eq!(heap.stats().pools, 3);
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn the_control_structure_fits_its_pool() {
    assert!(size_of::<Tlsf>() <= 3584, "{}", size_of::<Tlsf>());
    assert!(size_of::<TinyTlsf>() <= 256, "{}", size_of::<TinyTlsf>());
}

/// With two lists a row, half of the sizes of the last row lie past the start of its last list.
#[test]
fn the_sizes_of_the_last_list_are_resized_and_aligned_too() {
    let mut arena = Arena::new(64 << 10);
    let mut heap = Tlsf::<[Row<u16, 2>; 12]>::new();
    unsafe { heap.add_pool(arena.start(), 64 << 10) }.expect("the largest pool of the table");
    let block = heap.malloc(60_000).expect("64 KiB have room");
    unsafe { block.write_bytes(7, 60_000) };
    for bytes in [60_000, 60_001, 65_000, 50_000, 60_000] {
        assert_eq!(unsafe { heap.realloc(block, 16, bytes) }, Ok(Some(block)), "{bytes} bytes");
    }
    assert_eq!(unsafe { core::slice::from_raw_parts(block.as_ptr(), 50_000) }, [7; 50_000]);
    assert_eq!(unsafe { heap.realloc(block, 16, heap.max_block_bytes()) }, Ok(None));
    assert_eq!(heap.last_failure(), Some(Failure::TooLarge));
    assert_eq!(unsafe { heap.free(block) }, Ok(()));
    let aligned = heap.memalign(1024, 62_000).expect("64 KiB have room at any multiple of 1 KiB");
    assert_eq!(aligned.addr().get() % 1024, 0);
    assert_eq!(heap.validate(), Ok(()));
    assert_eq!(heap.memalign(1024, 62_000), None);
    assert_eq!(heap.last_failure(), Some(Failure::Exhausted));
    assert_eq!(unsafe { heap.free(aligned) }, Ok(()));
    assert_eq!(heap.memalign(1024, 65_000), None);
    assert_eq!(heap.last_failure(), Some(Failure::TooLarge));
    assert_eq!((heap.stats().used_bytes, heap.validate()), (0, Ok(())));
    // With the alignment this asks for all granules of the largest block.
    let granules = heap.max_block_bytes() / 16 - 64;
    let aligned = heap.memalign(1024, 16 * granules - 2).expect("the whole pool is free");
    assert_eq!(unsafe { heap.free(aligned) }, Ok(()));
    assert_eq!(heap.memalign(1024, 16 * (granules + 1) - 2), None);
    assert_eq!(heap.last_failure(), Some(Failure::TooLarge));
}

/// The bitmap of this table ends with its last list; what follows is no bitmap.
#[test]
fn a_size_past_the_last_list_is_not_looked_for_behind_it() {
    let mut arena = Arena::new(4096);
    let mut heap = Tlsf::<[Row<u16, 16>; 5]>::new();
    unsafe { heap.add_pool(arena.start(), 4096) }.expect("the largest pool of the table");
    let [small, _] = [(); 2].map(|()| heap.malloc(1).expect("4 KiB have room"));
    unsafe { heap.free(small) }.expect("allocated above");
    assert_eq!(heap.malloc(16 * 254 - 2), None);
    assert_eq!(heap.last_failure(), Some(Failure::Fragmented));
    assert_eq!(heap.validate(), Ok(()));
}

/// The class of such a size would begin behind the last list. The word behind the bitmap is the
/// head of the first list.
#[test]
fn a_size_above_the_last_class_is_found_though_the_first_list_has_a_block() {
    let mut arena = Arena::new(2048);
    let mut heap = Tlsf::<[Row<u16, 4>; 4]>::new();
    unsafe { heap.add_pool(arena.start(), 512) }.expect("31 granules");
    let [first, freed, others @ ..] = [(); 6].map(|()| heap.malloc(14).expect("room"));
    let rest = heap.malloc(25 * 16 - 2).expect("the rest of the pool");
    unsafe { heap.add_pool(arena.start().add(1024), 512) }.expect("31 granules");
    assert_eq!(unsafe { heap.free(freed) }, Ok(()));
    assert_eq!((heap.stats().free_bytes, heap.validate()), (32 * 16, Ok(())));
    let largest = heap.malloc(30 * 16 - 2).expect("the second pool has room");
    assert_eq!(heap.malloc(30 * 16 - 2), None);
    for block in [first, rest, largest].into_iter().chain(others) {
        assert_eq!(unsafe { heap.free(block) }, Ok(()));
    }
    assert_eq!((heap.stats().used_bytes, heap.validate()), (0, Ok(())));
}

/// Heaps whose tables have hardly any lists: nothing may follow the last one.
#[test]
fn the_smallest_tables_serve_to_their_last_list() {
    fn fill<S: Shape, const FIRST: usize>()
    where
        [S; FIRST]: Rows<Row = S>,
    {
        let mut arena = Arena::new(4096);
        for pool_bytes in (64..4096).step_by(56) {
            let mut heap = Tlsf::<[S; FIRST]>::new();
            if unsafe { heap.add_pool(arena.start(), pool_bytes) }.is_err() {
                continue;
            }
            for bytes in 0..pool_bytes {
                let largest = heap.stats().largest_allocatable_bytes;
                let block = heap.malloc(bytes);
                assert_eq!(block.is_some(), bytes <= largest, "{bytes} of {pool_bytes}");
                if let Some(block) = block {
                    let small = heap.malloc(0);
                    unsafe { heap.free(block) }.expect("allocated above");
                    if let Some(small) = small {
                        unsafe { heap.free(small) }.expect("allocated above");
                    }
                }
            }
            assert_eq!(heap.stats().used_bytes, 0);
            assert_eq!(heap.validate(), Ok(()));
        }
    }
    fill::<Row<u16, 2>, 1>();
    fill::<Row<u16, 4>, 2>();
    fill::<Row<u32, 2, 4>, 2>();
    fill::<Row<u32, 4>, 1>();
    fill::<Row<usize, 2>, 1>();
    fill::<Row<usize, 2>, 3>();
    fill::<Row<usize, 4, 8>, 2>();
    fill::<Row<usize, 64>, 1>();
    fill::<Row<u16, 16>, 5>();
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "the alignment 48 is no power of two")]
fn an_alignment_that_is_no_power_of_two_is_named() {
    let mut heap: Tlsf = Tlsf::new();
    heap.memalign(48, 1);
}
