//! The pool against its shadow, and its invariants after every step.

use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

use hectare_check::Random;
use hectare_pages::{Counted, Os};

use super::*;
use crate::testing::{Shadow, Validate, shadow_tests};

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
    assert_eq!(pool.alloc(0), Err(PoolError::Size));
    assert_eq!(pool.alloc(pool.max_size_bytes() + 1), Err(PoolError::Size));
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
