//! The pool against its shadow, and the classes' invariants after every step.

use std::string::ToString;

use hectare_pages::{Counted, Failing, Fixed, Os};

use super::*;
use crate::testing::{Random, Shadow, churn, soak_operations, survives_failures};

fn validate<S: PageSource + Sync>(pool: &Zs<S>) {
    let zspages = pool.zspages();
    for (number, class) in pool.classes().iter().enumerate() {
        let state = class.state.lock();
        let objects = class.geometry.objects;
        let (mut in_use, mut count) = (0, 0);
        for group in 0..GROUPS {
            let mut listed = 0;
            let mut at = state.head(group);
            while let Some(id) = at {
                let zspage = zspages.get(id);
                assert_eq!(zspage.class(), number);
                assert_eq!(State::group_of(zspage.in_use(), objects), group);
                if !class.geometry.is_huge() {
                    let span = zspages.span(id, class.geometry);
                    let tagged = (0..objects)
                        .filter(|&object| State::cell_of(span, class.geometry, object).is_some());
                    assert_eq!(tagged.count(), zspage.in_use());
                }
                in_use += zspage.in_use();
                listed += 1;
                at = zspage.next();
            }
            assert_eq!(state.counts[group], listed);
            count += listed as usize;
        }
        assert_eq!(state.counts[0], 0, "an empty zspage is nobody's to give back");
        assert_eq!(state.in_use, in_use);
        assert_eq!(state.allocated, count * objects);
    }
}

fn with_chain<S: PageSource>(source: S, chain_pages: usize) -> Zs<S> {
    Zs::with_config(source, ZsConfig { chain_pages, class_step_bytes: 16 }).expect("memory")
}

#[test]
fn agrees_with_its_shadow() {
    for (seed, chain) in [(0, 4), (1, 8), (2, 16), (3, 1), (4, 8), (5, 8)] {
        let source = Counted::new(Os);
        let pool = with_chain(&source, chain);
        let mut shadow = Shadow::new(&pool, seed << 32);
        churn(&pool, &mut shadow, seed, soak_operations(20_000), 2_000, |shadow| {
            validate(&pool);
            let stats = pool.stats();
            assert_eq!(stats.objects, shadow.len());
            assert_eq!(stats.stored_bytes, shadow.live_bytes);
        });
        shadow.drain(&pool);
        assert_eq!(pool.stats().page_bytes, 0, "an empty pool holds no zspage");
        drop(pool);
        assert_eq!(source.counts().reserved_bytes, 0, "a dropped pool holds nothing");
    }
}

#[test]
fn compaction_frees_what_the_classes_say() {
    let pool = with_chain(Os, 8);
    let mut shadow = Shadow::new(&pool, 1);
    let mut random = Random::new(3);
    for _ in 0..20_000 {
        shadow.alloc(&pool, 32 + random.below(3000)).expect("memory");
    }
    for _ in 0..10_000 {
        let index = random.below(shadow.len());
        shadow.free(&pool, index);
    }
    let mut freeable = 0;
    pool.for_each_class(|class| freeable += class.freeable);
    assert!(freeable > 1000, "{freeable}");
    assert_eq!(pool.compact(), freeable * 4096);
    validate(&pool);
    shadow.verify_all(&pool);
    assert_eq!(pool.compact(), 0);
    shadow.drain(&pool);
}

#[test]
fn the_class_table_has_the_kernels_columns() {
    let pool = with_chain(Os, 8);
    let mut shadow = Shadow::new(&pool, 1);
    for _ in 0..10 {
        shadow.alloc(&pool, 1500).expect("memory");
    }
    let table = pool.class_table().to_string();
    let words =
        |line: &str| line.split_whitespace().map(str::to_string).collect::<std::vec::Vec<_>>();
    let mut lines = table.lines();
    let names = words(lines.next().expect("a line of names"));
    assert_eq!((names[0].as_str(), names.len()), ("class", 18));
    let row = words(lines.next().expect("a class"));
    // 1500 and the header are in the class of 1520 or one merged into a larger.
    assert!(row[1].parse::<usize>().is_ok_and(|size| (1508..1600).contains(&size)), "{table}");
    assert_eq!(row[14], "10", "{table}");
    shadow.drain(&pool);
}

#[test]
fn runs_in_a_fixed_buffer() {
    let mut buffer = std::vec![0u8; 1 << 20];
    let pool = with_chain(Fixed::new(&mut buffer, 4096), 8);
    let mut shadow = Shadow::new(&pool, 0);
    churn(&pool, &mut shadow, 5, 10_000, 2000, |_| validate(&pool));
    assert!(shadow.refused > 0, "a megabyte is not enough");
    shadow.drain(&pool);
}

#[test]
fn refuses_cleanly_at_every_call() {
    let failing = Failing::new(Os);
    survives_failures(&failing, |source| Zs::<_, SpinPark>::new(source).ok(), validate, 40);
}

#[test]
fn threads_share_it_while_it_is_compacted() {
    let pool = with_chain(Os, 8);
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
    validate(&pool);
    assert_eq!(pool.stats().page_bytes, 0);
}

#[test]
fn threads_that_grow_a_class_at_once_leave_no_empty_zspage() {
    let pool = with_chain(Os, 8);
    let together = std::sync::Barrier::new(2);
    let work = || {
        for _ in 0..1000 {
            together.wait();
            let handle = pool.alloc(1500).expect("memory");
            // SAFETY: allocated just now.
            unsafe { pool.free(handle) };
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
    validate(&pool);
    assert_eq!(pool.stats().page_bytes, 0);
}
