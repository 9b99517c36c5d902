//! The pool against its shadow, and the shards' invariants after every step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use hectare_check::Random;
use hectare_pages::{Fixed, Os, SourceError};

use super::shard::Locked;
use super::*;
use crate::testing::{
    Noted, Shadow, Validate, frees_twice, megabyte, refuses_what_was_freed, serves_from_tiny_pages,
    shadow_tests, who_waits_for_a_reader_gives_way, writes_after_free,
};

shadow_tests!(
    |source, seed| {
        let limits = if seed % 2 == 0 { small_limits() } else { Limits::new() };
        Some(Dense::<_, SpinPark>::with_limits(source, limits))
    },
    buffer pages of 4096
);

#[test]
fn what_was_freed_is_refused() {
    refuses_what_was_freed(&Dense::<_>::new(Os));
}

#[test]
#[should_panic(expected = "names no object of the pool; was it freed before?")]
fn a_second_free_panics() {
    frees_twice(&Dense::<_>::new(Os));
}

#[test]
#[should_panic(expected = "names no object of the pool; was it freed before?")]
fn a_write_after_free_panics() {
    writes_after_free(&Dense::<_>::new(Os));
}

/// Whatever the object: that it lies in pieces is known only when it is read.
#[test]
#[should_panic(expected = "`bounce` has 99 bytes, an object of the pool up to 4096")]
fn a_bounce_buffer_that_is_too_short_is_refused_at_once() {
    let pool = Dense::<_>::new(Os);
    let handle = pool.alloc(100).expect("memory");
    // SAFETY: allocated just now with that length.
    unsafe { pool.write(handle, &[1; 100]) };
    // SAFETY: live and written.
    unsafe { pool.read(handle, &mut [0; 99], &mut |_| ()) };
}

#[test]
fn a_handle_of_no_cell_is_refused() {
    let pool = Dense::<_>::new(Os);
    let cell = pool.alloc(100).expect("memory").to_raw().get();
    // The next cell was never used, the one above is the pool's structure, the last shard does not
    // exist.
    for raw in [cell - 1, cell + 1, cell | 0xF << CELL_BITS, 1] {
        let handle = Handle::from_raw(NonZeroU64::new(raw).expect("not 0"));
        // SAFETY: no object has that name.
        assert_eq!(unsafe { pool.try_free(handle) }, Err(NoObject { handle }));
    }
    assert_eq!(pool.stats().objects, 1);
}

#[test]
fn who_waits_for_a_pinned_object_gives_way() {
    who_waits_for_a_reader_gives_way::<0>(&Dense::<_, Noted<0>>::new(Os));
}

impl<S: PageSource + Sync> Validate for Dense<S> {
    fn validate(&self) {
        validate(self);
    }
}

fn validate<S: PageSource + Sync>(pool: &Dense<S>) {
    for number in 0..pool.limits.shards {
        let Some(shard) = pool.shard(number) else { continue };
        let mut state = shard.state.lock();
        validate_shard(&shard.locked(&pool.source, &mut state));
    }
}

fn validate_shard<S: PageSource>(shard: &Locked<'_, S>) {
    let mut free = BTreeMap::new();
    let (mut free_units, mut inner_given_back) = (0, 0);
    let mut marks: BTreeSet<_> = shard.state.compaction.marks().collect();
    let (mut place, mut prev_free) = (Place(0), false);
    let end = if shard.state.committed_bytes > 0 { shard.end_mark() } else { place };
    while place < end {
        marks.remove(&place);
        let head = shard.area.head(place);
        assert_eq!(head.prev_is_free(), prev_free, "at {place:?}");
        assert!(head.units() >= block::MIN_UNITS);
        if head.is_free() {
            assert!(!prev_free, "two free neighbours at {place:?}");
            let closing = shard.area.read(place.forward(head.units() - 1));
            assert_eq!(closing as usize, head.units());
            free.insert(place, head.units());
            free_units += head.units();
            let inner = shard.inner_pages(place, head.units());
            inner_given_back += inner.filter(|&page| shard.given_back.is_given_back(page)).count();
        }
        prev_free = head.is_free();
        place = place.forward(head.units());
    }
    assert_eq!(place, end, "the blocks lead past the end mark");
    assert!(marks.is_empty() || marks.first() == Some(&end), "{marks:?} are no blocks");
    if end > Place(0) {
        assert!(shard.area.head(end).is_end());
        assert_eq!(shard.area.head(end).prev_is_free(), prev_free);
    }
    let all = 0..shard.state.committed_bytes / shard.page_bytes();
    let pages = all.filter(|&page| !shard.given_back.is_given_back(page)).count();
    assert_eq!(shard.state.free_units, free_units);
    assert_eq!(shard.state.pages, pages);
    let given_back =
        (0..shard.given_back.pages()).filter(|&page| shard.given_back.is_given_back(page));
    assert_eq!(given_back.count(), inner_given_back, "pages given back outside free blocks");
    let mut listed = 0;
    shard.for_each_listed(|bin, place| {
        assert!(!shard.state.compaction.is_closed(place));
        let units = free.get(&place).copied().expect("a listed block is free");
        assert_eq!(bins::bin_of(units), bin);
        listed += 1;
    });
    let open = free.keys().filter(|&&place| !shard.state.compaction.is_closed(place)).count();
    assert_eq!(listed, open);
    validate_cells(shard);
}

fn validate_cells<S: PageSource>(shard: &Locked<'_, S>) {
    let state = &shard.state;
    assert!(state.committed_bytes <= state.cells_floor.offset_bytes());
    assert!(state.cells_floor <= state.cells_end);
    let follow = |cell: Place| Some(cell).filter(|&cell| cell != cells::NO_CELL);
    let next = |&cell: &Place| follow(Place(shard.area.cell(cell).peek()));
    let mut unused = 0;
    for cell in std::iter::successors(follow(state.free_cell), next) {
        assert!((state.cells_end..state.cells_top).contains(&cell), "{cell:?} is no cell");
        unused += 1;
    }
    assert_eq!(state.objects + unused, (state.cells_top.0 - state.cells_end.0) as usize);
}

fn small_limits() -> Limits {
    Limits { area_bytes: 1 << 23, max_pieces: 8, shards: 2, compact_percent: 25 }
}

/// A shard that reserves all of a buffer leaves no page for its table of pages.
#[test]
fn a_buffer_that_one_shard_reserves_is_used_to_its_end() {
    const PAGES: usize = 2048;
    // There is also a page for the buffer's own bitmap, and up to one for its alignment.
    for spare_pages in [1, 2] {
        let mut buffer = std::vec![0u8; (PAGES + spare_pages) * 4096];
        let source = Fixed::new(&mut buffer, 4096);
        let pool: Dense<_> = Dense::new(&source);
        let mut shadow = Shadow::new(&pool, 1);
        while shadow.alloc(&pool, 4000).is_ok() {}
        validate(&pool);
        let stored_bytes = pool.stats().stored_bytes;
        assert!(stored_bytes > PAGES * 4096 / 100 * 95, "{stored_bytes}");
        shadow.verify_all(&pool);
        shadow.drain(&pool);
        validate(&pool);
        pool.compact();
        validate(&pool);
        assert_eq!(pool.stats().objects, 0);
    }
}

#[test]
fn objects_in_pieces_keep_their_bytes() {
    let pool: Dense<_> = Dense::with_limits(Os, small_limits());
    let mut shadow = Shadow::new(&pool, 1);
    for _ in 0..200 {
        shadow.alloc(&pool, 700).expect("memory");
    }
    let before = pool.stats().page_bytes;
    for index in (0..100).rev() {
        shadow.free(&pool, index);
    }
    for _ in 0..20 {
        shadow.alloc(&pool, 3000).expect("memory");
        validate(&pool);
    }
    shadow.verify_all(&pool);
    assert!(pool.stats().page_bytes <= before, "holes of 700 bytes took objects of 3000");
}

#[test]
fn blocks_and_cells_share_the_area_to_its_last_page() {
    for size in [1, 60, 700, 4096] {
        let limits =
            Limits { area_bytes: 1 << 18, shards: 1, compact_percent: 0, ..small_limits() };
        let pool: Dense<_> = Dense::with_limits(Os, limits);
        let mut shadow = Shadow::new(&pool, 1);
        // The second time, small objects find room for blocks but none for cells.
        for size in [size, 1] {
            let refusal = loop {
                if let Err(error) = shadow.alloc(&pool, size) {
                    break error;
                }
            };
            assert_eq!(refusal, PoolError::Full);
            let (blocks_end, cells_start) = {
                let state = pool.shard(0).expect("it has objects").state.lock();
                (state.committed_bytes, state.cells_floor.offset_bytes())
            };
            assert_eq!(blocks_end, cells_start, "a page is left");
            validate(&pool);
            shadow.verify_all(&pool);
            shadow.drain(&pool);
        }
        assert!(pool.stats().footprint_bytes() - size_of_val(&pool) <= limits.area_bytes);
        pool.compact();
        validate(&pool);
        assert_eq!(pool.stats().page_bytes, 0);
    }
}

#[test]
fn compaction_brings_half_the_memory_back() {
    let pool: Dense<_> = Dense::new(Os);
    let mut shadow = Shadow::new(&pool, 1);
    let mut random = Random::new(9);
    for _ in 0..4000 {
        shadow.alloc(&pool, 32 + random.below(2016)).expect("memory");
    }
    shadow.thin_out(&pool, &mut random, 2000);
    pool.compact();
    validate(&pool);
    shadow.verify_all(&pool);
    let overhead = pool.stats().footprint_bytes() as f64 / shadow.live_bytes as f64 - 1.0;
    assert!(overhead < 0.05, "{overhead}");
}

/// Frees three of four objects, one at a time. Returns the most bytes ever held per live byte, and
/// the most objects that one free moved.
fn thin_out(compact_percent: usize, seed: u64) -> (f64, u64) {
    let pool: Dense<_> = Dense::with_limits(Os, Limits { compact_percent, ..Limits::new() });
    let mut shadow = Shadow::new(&pool, 1);
    let mut random = Random::new(seed);
    for _ in 0..8000 {
        shadow.alloc(&pool, 32 + random.below(2016)).expect("memory");
    }
    let (mut most_held, mut most_moved) = (0.0_f64, 0);
    for freed in 0..6000 {
        let before = pool.stats().objects_moved;
        let index = random.below(shadow.len());
        shadow.free(&pool, index);
        let stats = pool.stats();
        most_moved = most_moved.max(stats.objects_moved - before);
        most_held = most_held.max(stats.footprint_bytes() as f64 / shadow.live_bytes as f64);
        if freed % 100 == 0 {
            validate(&pool);
        }
    }
    shadow.verify_all(&pool);
    (most_held, most_moved)
}

#[test]
fn compacts_by_itself_a_little_at_a_time() {
    for seed in 5..13 {
        let (held, most_moved) = thin_out(25, seed);
        assert!(held < 1.0 / 0.75 + 0.1, "seed {seed}: {held} bytes held per live byte");
        assert!((1..=64).contains(&most_moved), "{most_moved} objects moved by one free");
    }
    let (held, most_moved) = thin_out(0, 9);
    assert!(held > 2.0 && most_moved == 0, "{held}, {most_moved} without being asked to");
}

/// However large the shard once was, the length of a pass depends on what is there now.
#[test]
fn a_shard_that_was_large_compacts_as_soon_as_a_small_one() {
    for most_objects in [4000, 200_000] {
        let limits = Limits { shards: 1, ..Limits::new() };
        let pool: Dense<_> = Dense::with_limits(Os, limits);
        let (mut shadow, mut random) = (Shadow::new(&pool, 1), Random::new(9));
        for _ in 0..most_objects {
            shadow.alloc(&pool, 32 + random.below(2016)).expect("memory");
        }
        shadow.thin_out(&pool, &mut random, 4000);
        while shadow.len() > 1000 {
            let index = random.below(shadow.len());
            shadow.free(&pool, index);
            let held = pool.stats().page_bytes as f64 / shadow.live_bytes as f64;
            assert!(held < 1.0 / 0.75 + 0.1, "{held} held per live byte after {most_objects}");
        }
    }
}

#[test]
fn memory_that_compaction_has_closed_is_opened_when_it_is_needed() {
    let pool: Dense<_> = Dense::new(Os);
    let mut shadow = Shadow::new(&pool, 1);
    let mut random = Random::new(4);
    for round in 0..12 {
        while shadow.len() < 4000 {
            shadow.alloc(&pool, 1 + random.below(4000)).expect("memory");
        }
        validate(&pool);
        let taken = pool.stats().page_bytes;
        assert!(taken < shadow.live_bytes * 5 / 4, "round {round}: {taken} bytes taken");
        // Down to a number at which a pass is under way in some rounds and over in others.
        shadow.thin_out(&pool, &mut random, 2600 + 90 * round);
    }
    shadow.verify_all(&pool);
}

#[test]
fn neighbouring_stacks_have_homes_of_their_own() {
    for stack_bytes in [2 << 20, 8 << 20] {
        for first in (0..1 << 30).step_by(3 << 20) {
            let homes = [0, 1, 2, 3].map(|n| home_of(first + n * (stack_bytes + 4096)) & 7);
            let distinct: std::collections::BTreeSet<_> = homes.iter().collect();
            assert_eq!(
                distinct.len(),
                4,
                "stacks of {stack_bytes} bytes from {first:#x}: {homes:?}"
            );
        }
    }
}

#[test]
fn pages_may_have_128_bytes() {
    let mut buffer = std::vec::Vec::new();
    serves_from_tiny_pages(&Dense::<_>::new(megabyte(&mut buffer, 128)));
}

/// The only room is in a shard that another thread holds, so the allocation waits for that shard.
#[test]
fn room_in_a_shard_that_is_held_is_found() {
    let mut buffer = std::vec::Vec::new();
    let limits = Limits { shards: 2, ..small_limits() };
    let pool = Dense::<_>::with_limits(megabyte(&mut buffer, 4096), limits);
    let mut handles: std::vec::Vec<_> = core::iter::from_fn(|| pool.alloc(4000).ok()).collect();
    let elsewhere = 1 - pool.home();
    let is_elsewhere =
        |handle: &Handle| (handle.to_raw().get() >> CELL_BITS) as usize & 1 == elsewhere;
    let index = handles.iter().position(is_elsewhere).expect("both shards are full");
    // SAFETY: live; its handle is used no more.
    unsafe { pool.free(handles.swap_remove(index)) };
    let held = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _state = pool.shard(elsewhere).expect("a shard").state.lock();
            held.wait();
            std::thread::sleep(core::time::Duration::from_millis(50));
        });
        held.wait();
        handles.push(pool.alloc(4000).expect("room for one"));
    });
    // SAFETY: live until now.
    handles.into_iter().for_each(|handle| unsafe { pool.free(handle) });
}

#[test]
#[should_panic(
    expected = "dense: the source's `page_bytes` is 64; it can be a power of two from 128 to 65536"
)]
fn pages_of_less_have_no_room_for_page_bits() {
    let _ = Dense::<_>::new(megabyte(&mut std::vec::Vec::new(), 64));
}

/// Refuses to commit several pages at once when told to.
#[derive(Default)]
struct PageByPage {
    is_short: AtomicBool,
    refused: AtomicUsize,
}

// SAFETY: every call that is not refused is passed on.
unsafe impl PageSource for PageByPage {
    fn page_bytes(&self) -> usize {
        Os.page_bytes()
    }

    fn reserve(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, SourceError> {
        Os.reserve(bytes, align)
    }

    unsafe fn commit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        if self.is_short.load(Relaxed) && bytes > Os.page_bytes() {
            self.refused.fetch_add(1, Relaxed);
            return Err(SourceError::Exhausted);
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { Os.commit(start, bytes) }
    }

    unsafe fn decommit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { Os.decommit(start, bytes) }
    }

    unsafe fn release(&self, start: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise, passed on.
        unsafe { Os.release(start, bytes) };
    }
}

/// A large shard asks for more pages than it needs, and then for just those it needs.
#[test]
fn a_source_that_has_fewer_pages_than_asked_for_serves_all_the_same() {
    let source = PageByPage::default();
    let limits = Limits { shards: 1, ..Limits::new() };
    let pool: Dense<_> = Dense::with_limits(&source, limits);
    let mut shadow = Shadow::new(&pool, 1);
    (0..1600).for_each(|_| shadow.alloc(&pool, 4000).expect("memory"));
    source.is_short.store(true, Relaxed);
    (0..40).for_each(|_| shadow.alloc(&pool, 4000).expect("one page is to be had"));
    assert!(source.refused.load(Relaxed) > 0, "it asks for more");
    validate(&pool);
    shadow.verify_all(&pool);
}

#[test]
fn pages_that_the_source_does_not_take_back_are_counted() {
    let failing = hectare_pages::Failing::new(Os);
    let pool: Dense<_> = Dense::with_limits(&failing, small_limits());
    let mut shadow = Shadow::new(&pool, 1);
    (0..200).for_each(|_| shadow.alloc(&pool, 4000).expect("memory"));
    let taken = pool.stats().page_bytes;
    failing.refuse_all(true);
    shadow.drain(&pool);
    assert_eq!(pool.compact(), 0);
    validate(&pool);
    assert_eq!(pool.stats().page_bytes, taken, "the source has taken nothing back");
    failing.refuse_all(false);
    assert_eq!(pool.compact(), taken);
    assert_eq!(pool.stats().page_bytes, 0);
}

/// The first page has the head of the block that takes all of the shard.
#[test]
fn the_first_page_stays_if_one_above_it_does() {
    let failing = hectare_pages::Failing::new(Os);
    let pool: Dense<_> = Dense::with_limits(&failing, small_limits());
    let mut shadow = Shadow::new(&pool, 1);
    let fill =
        |shadow: &mut Shadow| (0..60).for_each(|_| shadow.alloc(&pool, 4000).expect("memory"));
    fill(&mut shadow);
    shadow.drain(&pool);
    // The first page is left, and the last, with the end mark.
    assert_eq!(pool.stats().page_bytes, 2 * 4096);
    failing.refuse(failing.calls() + 1..u64::MAX);
    pool.compact();
    validate(&pool);
    assert_eq!(pool.stats().page_bytes, 2 * 4096, "the head and the mark touch them");
    failing.refuse_all(false);
    fill(&mut shadow);
    validate(&pool);
    assert!(pool.stats().page_bytes >= shadow.live_bytes);
    shadow.drain(&pool);
    pool.compact();
    assert_eq!(pool.stats().page_bytes, 0);
}
