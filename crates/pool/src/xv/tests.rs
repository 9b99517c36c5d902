//! The pool against its shadow, and its invariants after every step.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::collections::{BTreeMap, BTreeSet};
use std::string::ToString;
use std::sync::Barrier;
use std::vec::Vec;

use hectare_check::Random;
use hectare_pages::{Counted, Os, SourceError};

use super::*;
use crate::testing::{
    Shadow, Validate, frees_twice, megabyte, serves_from_tiny_pages, shadow_tests,
};

shadow_tests!(|source, _seed| Some(Xv::<_, SpinPark>::new(source)), buffer pages of 1 << 16);

impl<S: PageSource + Sync> Validate for Xv<S> {
    fn validate(&self) {
        validate(self);
    }
}

/// Walks every page that the lists lead to and checks invariants 1 to 4.
fn validate<S: PageSource + Sync>(pool: &Xv<S>) {
    let inner = pool.inner.lock();
    let mut listed = BTreeMap::new();
    inner.lists.for_each(pool.page_bytes, |list, block| {
        assert!(block.is_free() && block.size() >= MIN_LISTED);
        assert_eq!(list, inner.lists.expected_list(block.size()));
        let page = block.page.base().addr().get();
        assert!(listed.insert((page, block.offset), block).is_none(), "listed twice");
    });
    let pages: BTreeSet<_> = listed.keys().map(|&(page, _)| page).collect();
    assert!(pages.len() <= inner.pages);
    for page in pages {
        let (_, some) = listed.range((page, 0)..).next().expect("a listed block of this page");
        let mut block = Block { page: some.page, offset: 0 };
        let (mut prev_offset, mut prev_free) = (0, false);
        loop {
            assert_eq!(block.prev_offset(), prev_offset);
            assert_eq!(block.back() & PREV_FREE != 0, prev_free);
            assert!(!(prev_free && block.is_free()), "two free neighbours");
            let is_listed = listed.contains_key(&(page, block.offset));
            assert_eq!(is_listed, block.is_free() && block.size() >= MIN_LISTED);
            (prev_offset, prev_free) = (block.offset, block.is_free());
            match block.next() {
                Some(next) => block = next,
                None => break,
            }
        }
        assert_eq!(block.end(), pool.page_bytes);
        assert!(!(block.offset == 0 && block.is_free()), "an empty page was kept");
    }
}

#[test]
fn every_page_is_counted() {
    let source = Counted::new(Os);
    let pool: Xv<_> = Xv::new(&source);
    let mut shadow = Shadow::new(&pool, 0);
    let mut random = Random::new(2);
    for live in [300, 100, 500, 0] {
        while shadow.len() < live {
            shadow.alloc(&pool, 1 + random.below(pool.max_size_bytes())).expect("memory");
            assert_eq!(pool.stats().page_bytes, source.counts().reserved_bytes);
        }
        shadow.thin_out(&pool, &mut random, live / 2);
        assert_eq!(pool.stats().page_bytes, source.counts().reserved_bytes);
    }
}

#[test]
fn sizes_are_exact_and_bounded() {
    let pool: Xv<_> = Xv::new(Os);
    let most_bytes = pool.max_size_bytes();
    for bytes in [0, most_bytes + 1] {
        assert_eq!(pool.alloc(bytes), Err(PoolError::Size { bytes, most_bytes }));
    }
    assert_eq!(
        pool.alloc(4093).expect_err("too large").to_string(),
        "an object of 4093 bytes was asked for; the pool's have 1 to 4092"
    );
    for size in [1, 31, 32, 33, 2048, pool.max_size_bytes()] {
        let handle = pool.alloc(size).expect("memory");
        // SAFETY: live until freed below.
        unsafe {
            assert_eq!(pool.size_bytes(handle), size);
            assert_eq!(pool.map(handle).len(), size);
            pool.free(handle);
        }
    }
}

/// This holds also if the block has joined those before and after it.
#[test]
fn a_second_free_is_refused_while_the_page_stays() {
    let pool: Xv<_> = Xv::new(Os);
    let [first, second, third, last] = [100; 4].map(|size| pool.alloc(size).expect("memory"));
    let mut freed = Vec::new();
    for handle in [first, third, second] {
        // SAFETY: live until now.
        assert_eq!(unsafe { pool.try_free(handle) }, Ok(()));
        freed.push(handle);
        for &handle in &freed {
            // SAFETY: the last object keeps the page, and no object was made since.
            assert_eq!(unsafe { pool.try_free(handle) }, Err(NoObject { handle }));
        }
        validate(&pool);
        assert_eq!(pool.stats().objects, 4 - freed.len());
    }
    // SAFETY: live until now.
    unsafe { pool.free(last) };
    assert_eq!(pool.stats().page_bytes, 0);
}

/// An object with contents, none of which looks like the head of a free block.
fn filled(pool: &Xv<Os>, size_bytes: usize) -> Handle {
    let handle = pool.alloc(size_bytes).expect("memory");
    // SAFETY: allocated just now with that length.
    unsafe { pool.write(handle, &[0x5A; 4096][..size_bytes]) };
    handle
}

/// Frees an object that another keeps the page of; none was made since it was freed first.
fn assert_refused(pool: &Xv<Os>, handle: Handle) {
    // SAFETY: as above.
    assert_eq!(unsafe { pool.try_free(handle) }, Err(NoObject { handle }));
}

/// A full page: an object of that many bytes at its end, and one that has the rest.
fn full_page(pool: &Xv<Os>, size_bytes: usize) -> [Handle; 2] {
    [4096 - 2 * HEAD - size_bytes, size_bytes].map(|size_bytes| filled(pool, size_bytes))
}

/// Room too small for links lies before an object: once both are one free block, the links lie
/// where the object's head was.
#[test]
fn a_second_free_is_refused_though_links_lie_where_the_head_was() {
    for room in (0..MIN_LISTED).step_by(ALIGN) {
        let pool: Xv<_> = Xv::new(Os);
        let [keeps_the_page, hole] = full_page(&pool, 200);
        // SAFETY: live until now.
        unsafe { pool.free(hole) };
        let freed = filled(&pool, 200 - HEAD - room);
        // SAFETY: live until now.
        unsafe { pool.free(freed) };
        assert_refused(&pool, freed);
        validate(&pool);
        // SAFETY: live until now.
        unsafe { pool.free(keeps_the_page) };
        assert_eq!(pool.stats().page_bytes, 0);
    }
}

/// The handle is that of an object whose bytes now belong to one that begins before it.
#[test]
fn a_second_free_amid_a_later_object_is_refused() {
    let pool: Xv<_> = Xv::new(Os);
    let [keeps_the_page, hole] = full_page(&pool, 200 + HEAD);
    // SAFETY: live until now.
    unsafe { pool.free(hole) };
    let halves = [100, 100].map(|size_bytes| filled(&pool, size_bytes));
    for half in halves {
        // SAFETY: live until now.
        unsafe { pool.free(half) };
    }
    let later = filled(&pool, 200 + HEAD);
    assert_eq!((later, pool.stats().page_bytes), (halves[0].min(halves[1]), 4096));
    assert_refused(&pool, halves[0].max(halves[1]));
    for handle in [later, keeps_the_page] {
        // SAFETY: live until now.
        unsafe { pool.free(handle) };
    }
    assert_eq!(pool.stats().page_bytes, 0);
}

/// In pages where much was made and freed before.
#[test]
fn a_second_free_is_refused_whatever_lies_beside_the_object() {
    let pool: Xv<_> = Xv::new(Os);
    let page_of = |handle: &Handle| handle.to_raw().get() / 4096;
    let mut random = Random::new(1);
    let mut live = Vec::new();
    for _ in 0..200 {
        while live.len() < 200 {
            live.push(filled(&pool, 1 + random.below(300)));
        }
        let mut freed: Vec<Handle> = Vec::new();
        while live.len() > 100 {
            let handle = live.swap_remove(random.below(live.len()));
            freed.push(handle);
            // SAFETY: live until now.
            unsafe { pool.free(handle) };
            for &handle in freed.iter().rev().take(3) {
                if live.iter().any(|other| page_of(other) == page_of(&handle)) {
                    assert_refused(&pool, handle);
                }
            }
        }
        validate(&pool);
    }
    for handle in live {
        // SAFETY: live until now.
        unsafe { pool.free(handle) };
    }
    assert_eq!(pool.stats().page_bytes, 0);
}

#[test]
#[should_panic(expected = "names no object of the pool; was it freed before?")]
fn a_second_free_panics() {
    frees_twice(&Xv::<_>::new(Os));
}

#[test]
fn above_half_a_page_nothing_pairs() {
    let pool: Xv<_> = Xv::new(Os);
    let handles: Vec<_> = (0..100).map(|_| pool.alloc(2100).expect("memory")).collect();
    assert_eq!(pool.stats().page_bytes, 100 * 4096);
    for handle in handles {
        // SAFETY: allocated above, freed once.
        unsafe { pool.free(handle) };
    }
}

#[test]
fn what_two_objects_of_a_page_leave_is_one_block() {
    for freed in [0, 1] {
        let pool: Xv<_> = Xv::new(Os);
        let handles = [1500, 1800].map(|size| pool.alloc(size).expect("memory"));
        // SAFETY: allocated above; the other stays.
        unsafe { pool.free(handles[freed]) };
        let left = 4096 - [1800, 1500][freed] - 3 * HEAD;
        let third = pool.alloc(left).expect("memory");
        validate(&pool);
        assert_eq!(pool.stats().page_bytes, 4096, "object {freed} freed, {left} bytes asked for");
        for handle in [handles[1 - freed], third] {
            // SAFETY: live until now.
            unsafe { pool.free(handle) };
        }
    }
}

/// A pool with one page for each of these free blocks, the last of which is first in its list.
/// Nothing else in those pages is free.
fn with_holes(sizes: &[usize]) -> (Xv<Os>, Vec<Handle>) {
    let pool: Xv<_> = Xv::new(Os);
    let pages = sizes.iter().map(|size| [*size, 4096 - 2 * HEAD - size]);
    let pages: Vec<_> =
        pages.map(|sizes| sizes.map(|size| pool.alloc(size).expect("memory"))).collect();
    assert_eq!(pool.stats().page_bytes, pages.len() * 4096);
    let kept = pages.iter().map(|&[hole, other]| {
        // SAFETY: allocated above, freed once.
        unsafe { pool.free(hole) };
        other
    });
    let kept = kept.collect();
    (pool, kept)
}

/// Allocates objects of these sizes in the holes. That no page is taken shows where each went.
fn fill_holes(holes: &[usize], sizes: &[usize]) {
    let (pool, mut live) = with_holes(holes);
    live.extend(sizes.iter().map(|&size| pool.alloc(size).expect("memory")));
    assert_eq!(pool.stats().page_bytes, holes.len() * 4096, "{sizes:?} in {holes:?}");
    for handle in live {
        // SAFETY: live until now.
        unsafe { pool.free(handle) };
    }
    assert_eq!((pool.stats().pages_returned, pool.stats().page_bytes), (holes.len() as u64, 0));
}

#[test]
fn the_closest_block_of_a_list_is_taken() {
    fill_holes(&[1000, 1012], &[996, 1012]);
    fill_holes(&[1012, 1000], &[996, 1012]);
    fill_holes(&[1012, 1000, 1004, 1008], &[1000, 1004, 1008, 1012]);
}

#[test]
fn a_rest_of_no_use_is_avoided_where_there_is_a_choice() {
    fill_holes(&[1500, 2600], &[900, 1500, 1690]);
    fill_holes(&[1200, 2600], &[900, 2600]);
    fill_holes(&[1500], &[900]);
}

/// What a pool's pages hold, in bytes.
#[derive(Debug, Default)]
struct Parts {
    objects: usize,
    heads: usize,
    rounding: usize,
    /// Free blocks with their heads: under 32 bytes of room (in no list), then up to these sizes.
    free_up_to: [(usize, usize); 5],
}

impl Parts {
    fn of(blocks: impl Iterator<Item = Block>) -> Self {
        let free_up_to = [MIN_LISTED, 256, 512, 1024, 1 << 16].map(|room| (room, 0));
        let mut parts = Self { free_up_to, ..Self::default() };
        for block in blocks {
            let whole = block.end() - block.offset;
            if block.is_free() {
                let (_, bytes) =
                    parts.free_up_to.iter_mut().find(|part| block.size() < part.0).expect("a part");
                *bytes += whole;
            } else {
                parts.objects += block.size();
                parts.heads += HEAD;
                parts.rounding += whole - HEAD - block.size();
            }
        }
        parts
    }

    fn sum(&self) -> usize {
        let free: usize = self.free_up_to.iter().map(|&(_, bytes)| bytes).sum();
        self.objects + self.heads + self.rounding + free
    }
}

/// Prints what the peak of alloc_stress with preferred sizes consists of:
/// `cargo test --release -p hectare-pool peak_by_parts -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn peak_by_parts() {
    for seed in 1..=8 {
        let pool: Xv<_> = Xv::new(Os);
        let mut random = Random::new(seed);
        let (mut live, mut live_bytes, mut live_peak) = (Vec::<Handle>::new(), 0, 1);
        let (mut peak, mut at_peak) = (0, Parts::default());
        for _ in 0..1_000_000 {
            if live.is_empty() || random.one_in(2) {
                let is_preferred = random.below(100) < 80;
                let size =
                    if is_preferred { 1024 + random.below(1577) } else { 32 + random.below(2016) };
                live.push(pool.alloc(size).expect("memory"));
                live_bytes += size;
                live_peak = live_peak.max(live_bytes);
            } else {
                let handle = live.swap_remove(random.below(live.len()));
                // SAFETY: live until now.
                live_bytes -= unsafe { pool.size_bytes(handle) };
                // SAFETY: as above.
                unsafe { pool.free(handle) };
            }
            let pages = pool.stats().page_bytes;
            if pages > peak {
                peak = pages;
                at_peak = Parts::of(blocks_around(&pool, &live).into_iter());
                assert_eq!(at_peak.sum(), pages, "seed {seed}");
            }
        }
        let of_ideal = |bytes: usize| (bytes as f64 / live_peak as f64 * 1e4).round() / 1e2;
        std::println!(
            "seed {seed}: Ideal {live_peak}, pool's own structure {} %, objects {} %, heads {} %, \
             rounding {} %, free {:?}",
            of_ideal(size_of_val(&pool)),
            of_ideal(at_peak.objects),
            of_ideal(at_peak.heads),
            of_ideal(at_peak.rounding),
            at_peak.free_up_to.map(|(room, bytes)| (room, of_ideal(bytes))),
        );
        for handle in live {
            // SAFETY: live until now.
            unsafe { pool.free(handle) };
        }
    }
}

/// Every block of every page that one of the objects lies in.
fn blocks_around<S: PageSource + Sync>(pool: &Xv<S>, objects: &[Handle]) -> Vec<Block> {
    // SAFETY: live objects of the pool.
    let pages = objects.iter().map(|&handle| unsafe { pool.block(handle) }.page);
    let first = |page: Span| Some(Block { page, offset: 0 });
    let mut pages: Vec<_> = pages.collect();
    pages.sort_by_key(|page| page.base());
    pages.dedup();
    pages.into_iter().flat_map(|page| std::iter::successors(first(page), |b| b.next())).collect()
}

#[test]
fn pages_may_have_64_bytes() {
    let mut buffer = std::vec::Vec::new();
    serves_from_tiny_pages(&Xv::<_, SpinPark>::new(megabyte(&mut buffer, 64)));
}

/// A source whose first two callers wait for each other before they get anything.
struct TwoAtOnce {
    inner: Counted<Os>,
    both: Barrier,
    calls: AtomicUsize,
}

// SAFETY: every call is passed on unchanged to a source that meets the contract.
unsafe impl PageSource for TwoAtOnce {
    fn page_bytes(&self) -> usize {
        self.inner.page_bytes()
    }

    fn reserve(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, SourceError> {
        if self.calls.fetch_add(1, Relaxed) < 2 {
            self.both.wait();
        }
        self.inner.reserve(bytes, align)
    }

    unsafe fn commit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.commit(start, bytes) }
    }

    unsafe fn decommit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.decommit(start, bytes) }
    }

    unsafe fn release(&self, start: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.release(start, bytes) };
    }
}

/// Nobody else would give back a page that was never used.
#[test]
fn two_threads_that_take_a_page_at_once_use_both() {
    let source = TwoAtOnce { inner: Counted::new(Os), both: Barrier::new(2), calls: 0.into() };
    let pool: Xv<_> = Xv::new(&source);
    let handles = std::thread::scope(|scope| {
        let allocate = || pool.alloc(100).expect("memory");
        [(); 2].map(|()| scope.spawn(allocate)).map(|thread| thread.join().expect("a handle"))
    });
    validate(&pool);
    for handle in handles {
        // SAFETY: allocated above, freed once.
        unsafe { pool.free(handle) };
    }
    assert_eq!((pool.stats().page_bytes, source.inner.counts().reserved_bytes), (0, 0));
}
