//! The pool against its shadow, and the shards' invariants after every step.

use std::collections::BTreeMap;

use hectare_pages::{Counted, Failing, Fixed, Os};

use super::shard::Locked;
use super::*;
use crate::testing::{Random, Shadow, churn, soak_operations, survives_failures};

/// Walks every shard and checks invariants 1 to 5.
fn validate<S: PageSource + Sync>(pool: &Dense<S>) {
    for number in 0..pool.limits.shards {
        let Some(shard) = pool.shard(number) else { continue };
        let mut state = shard.state.lock();
        validate_shard(&shard.locked(&pool.source, &mut state));
    }
}

fn validate_shard<S: PageSource>(shard: &Locked<'_, S>) {
    let mut free = BTreeMap::new();
    let mut free_units = 0;
    let (mut place, mut prev_free) = (Place(0), false);
    let end = if shard.state.committed_bytes > 0 { shard.end_mark() } else { place };
    while place < end {
        let head = shard.area.head(place);
        assert_eq!(head.prev_is_free(), prev_free, "at {place:?}");
        assert!(head.units() >= block::MIN_UNITS);
        if head.is_free() {
            assert!(!prev_free, "two free neighbours at {place:?}");
            let closing = shard.area.read(place.forward(head.units() - 1));
            assert_eq!(closing as usize, head.units());
            free.insert(place, head.units());
            free_units += head.units();
        }
        prev_free = head.is_free();
        place = place.forward(head.units());
    }
    assert_eq!(place, end, "the blocks lead past the end mark");
    if end > Place(0) {
        assert!(shard.area.head(end).is_end());
        assert_eq!(shard.area.head(end).prev_is_free(), prev_free);
    }
    let all = 0..shard.state.committed_bytes / shard.page_bytes;
    let pages = all.filter(|&page| !shard.given_back.is_given_back(page)).count();
    assert_eq!(shard.state.free_units, free_units);
    assert_eq!(shard.state.pages, pages);
    let mut listed = 0;
    shard.for_each_listed(|bin, place| {
        assert!(place < shard.state.closed_from);
        let units = free.get(&place).copied().expect("a listed block is free");
        assert_eq!(bins::bin_of(units), bin);
        listed += 1;
    });
    let open = free.range(..shard.state.closed_from).count();
    assert_eq!(listed, open);
}

fn small_limits() -> Limits {
    Limits { area_bytes: 1 << 23, max_pieces: 8, shards: 2 }
}

#[test]
fn agrees_with_its_shadow() {
    for seed in 0..8 {
        let source = Counted::new(Os);
        let limits = if seed % 2 == 0 { small_limits() } else { Limits::new() };
        let pool: Dense<_> = Dense::with_limits(&source, limits);
        let mut shadow = Shadow::new(&pool, seed << 32);
        churn(&pool, &mut shadow, seed, soak_operations(20_000), 2_000, |shadow| {
            validate(&pool);
            let stats = pool.stats();
            assert_eq!(stats.objects, shadow.len());
            assert_eq!(stats.stored_bytes, shadow.live_bytes);
        });
        shadow.drain(&pool);
        pool.compact();
        validate(&pool);
        assert_eq!(pool.stats().page_bytes, 0, "an empty pool holds no page");
        drop(pool);
        assert_eq!(source.counts().reserved_bytes, 0, "a dropped pool holds nothing");
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
fn compaction_brings_half_the_memory_back() {
    let pool: Dense<_> = Dense::new(Os);
    let mut shadow = Shadow::new(&pool, 1);
    let mut random = Random::new(9);
    for _ in 0..4000 {
        shadow.alloc(&pool, 32 + random.below(2016)).expect("memory");
    }
    for _ in 0..2000 {
        let index = random.below(shadow.len());
        shadow.free(&pool, index);
    }
    pool.compact();
    validate(&pool);
    shadow.verify_all(&pool);
    let overhead = pool.stats().footprint_bytes() as f64 / shadow.live_bytes as f64 - 1.0;
    assert!(overhead < 0.05, "{overhead}");
}

#[test]
fn runs_in_a_fixed_buffer() {
    let mut buffer = std::vec![0u8; 1 << 20];
    let pool: Dense<_> = Dense::with_limits(Fixed::new(&mut buffer, 4096), small_limits());
    let mut shadow = Shadow::new(&pool, 0);
    churn(&pool, &mut shadow, 5, 10_000, 2000, |_| validate(&pool));
    assert!(shadow.refused > 0, "a megabyte is not enough");
    shadow.drain(&pool);
}

#[test]
fn refuses_cleanly_at_every_call() {
    let failing = Failing::new(Os);
    let make = |source| Some(Dense::<_, SpinPark>::with_limits(source, small_limits()));
    survives_failures(&failing, make, validate, 40);
}

#[test]
fn threads_share_it_while_it_is_compacted() {
    let pool: Dense<_> = Dense::with_limits(Os, small_limits());
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let pool = &pool;
            scope.spawn(move || {
                let mut shadow = Shadow::new(pool, thread << 40);
                churn(pool, &mut shadow, Random::new(thread).next(), 10_000, 500, |_| ());
                shadow.drain(pool);
            });
        }
        for _ in 0..200 {
            pool.compact();
            std::thread::yield_now();
        }
    });
    pool.compact();
    validate(&pool);
    assert_eq!(pool.stats().page_bytes, 0);
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
