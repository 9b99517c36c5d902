//! The pool against its shadow, and the classes' invariants after every step.

use std::string::ToString;

use hectare_check::Random;
use hectare_pages::{Failing, Os};

use super::class::{GROUPS, State};
use super::*;
use crate::Pool;
use crate::testing::{
    Noted, Shadow, Validate, frees_twice, megabyte, refuses_what_was_freed, serves_from_tiny_pages,
    shadow_tests, who_waits_for_a_reader_gives_way, writes_after_free,
};

shadow_tests!(|source, seed| with_chain(source, [8, 4, 16, 1][seed as usize % 4]), buffer pages of 4096);

#[test]
fn what_was_freed_is_refused() {
    refuses_what_was_freed(&Zs::<_>::new(Os).expect("memory"));
}

#[test]
#[should_panic(expected = "names no object of the pool; was it freed before?")]
fn a_second_free_panics() {
    frees_twice(&Zs::<_>::new(Os).expect("memory"));
}

#[test]
#[should_panic(expected = "names no object of the pool; was it freed before?")]
fn a_write_after_free_panics() {
    writes_after_free(&Zs::<_>::new(Os).expect("memory"));
}

#[test]
fn who_waits_for_a_pinned_object_gives_way() {
    let pool = Zs::<_, Noted<1>>::new(Os).expect("memory");
    who_waits_for_a_reader_gives_way::<1>(&pool);
}

impl<S: PageSource + Sync> Validate for Zs<S> {
    fn validate(&self) {
        validate(self);
    }
}

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
                    let span = zspages.span(zspage, class.geometry);
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

fn with_chain<S: PageSource>(source: S, chain_pages: usize) -> Option<Zs<S>> {
    Zs::with_config(source, ZsConfig { chain_pages, class_step_bytes: 16 }).ok()
}

#[test]
fn a_pool_dropped_with_its_objects_holds_nothing() {
    let source = hectare_pages::Counted::new(Os);
    let pool = with_chain(&source, 8).expect("memory");
    for size_bytes in (1..=4096).step_by(7) {
        pool.alloc(size_bytes).expect("memory");
    }
    drop(pool);
    assert_eq!(source.counts().reserved_bytes, 0);
}

#[test]
fn classes_lie_as_far_apart_as_the_kernels() {
    let pages = [64, 2048, 4096, 1 << 14, 1 << 16];
    let steps = pages.map(|page_bytes| ZsConfig::for_page_bytes(page_bytes).class_step_bytes);
    assert_eq!(steps, [16, 16, 16, 64, 256]);
}

/// The free room is in as many zspages as there are objects to move.
#[test]
fn compaction_moves_the_objects_of_one_zspage_to_many() {
    const ZSPAGES: usize = 9;
    let pool = with_chain(Os, 8).expect("memory");
    // A class of 1536 bytes has eight objects in three pages.
    let mut handles: std::vec::Vec<_> =
        (0..8 * ZSPAGES).map(|_| pool.alloc(1500).expect("memory")).collect();
    let (mut kept, mut number) = (std::vec::Vec::new(), 0);
    handles.drain(..).for_each(|handle| {
        let is_freed = number % 8 == 0 || number == 1;
        number += 1;
        if is_freed {
            // SAFETY: live until now.
            unsafe { pool.free(handle) };
        } else {
            kept.push(handle);
        }
    });
    pool.for_each_class(|class| {
        if class.obj_used > 0 {
            assert_eq!((class.pages_used, class.pages_per_zspage), (3 * ZSPAGES, 3));
            assert_eq!((class.obj_allocated, class.freeable), (8 * ZSPAGES, 3));
        }
    });
    assert_eq!(pool.compact(), 3 * 4096);
    let stats = pool.stats();
    assert_eq!((stats.objects_moved, stats.page_bytes), (6, 3 * (ZSPAGES - 1) * 4096));
    validate(&pool);
    // SAFETY: live until now.
    kept.into_iter().for_each(|handle| unsafe { pool.free(handle) });
}

#[test]
fn compaction_frees_what_the_classes_say() {
    let pool = with_chain(Os, 8).expect("memory");
    let mut shadow = Shadow::new(&pool, 1);
    let mut random = Random::new(3);
    for _ in 0..20_000 {
        shadow.alloc(&pool, 32 + random.below(3000)).expect("memory");
    }
    shadow.thin_out(&pool, &mut random, 10_000);
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
fn a_part_of_compaction_frees_one_zspage_and_all_parts_free_what_the_classes_say() {
    let pool = with_chain(Os, 8).expect("memory");
    let mut shadow = Shadow::new(&pool, 1);
    let mut random = Random::new(3);
    for _ in 0..5000 {
        shadow.alloc(&pool, 32 + random.below(3000)).expect("memory");
    }
    shadow.thin_out(&pool, &mut random, 2500);
    let mut freeable = 0;
    pool.for_each_class(|class| freeable += class.freeable);
    let mut given_bytes = 0;
    while let Some(bytes) = pool.compact_some() {
        assert!((4096..=8 * 4096).contains(&bytes), "{bytes} bytes of one zspage");
        given_bytes += bytes;
    }
    assert_eq!(given_bytes, freeable * 4096);
    validate(&pool);
    shadow.verify_all(&pool);
    assert_eq!(pool.compact(), 0);
    shadow.drain(&pool);
}

#[test]
fn who_looks_at_the_classes_may_use_the_pool() {
    let pool = with_chain(Os, 8).expect("memory");
    let mut objects = std::vec::Vec::new();
    pool.for_each_class(|class| {
        if !class.size_bytes.is_multiple_of(256) {
            return;
        }
        objects.push(pool.alloc(class.size_bytes - 64).expect("memory"));
        assert!(pool.stats().objects == objects.len());
    });
    // SAFETY: live until now.
    objects.into_iter().for_each(|handle| unsafe { pool.free(handle) });
    validate(&pool);
}

/// So the emptiest zspages become empty and go back.
#[test]
fn objects_are_taken_from_the_fullest_zspage() {
    let pool = with_chain(Os, 8).expect("memory");
    let alloc = || pool.alloc(1500).expect("memory");
    // SAFETY: each handle below is live, and freed once.
    let free = |handle| unsafe { pool.free(handle) };
    let mut first = std::vec![alloc()];
    let mut per_zspage = 0;
    pool.for_each_class(|class| per_zspage += class.obj_allocated);
    let zspage_bytes = pool.stats().page_bytes;
    first.extend((1..per_zspage).map(|_| alloc()));
    let mut second: std::vec::Vec<_> = (0..per_zspage).map(|_| alloc()).collect();
    assert_eq!(pool.stats().page_bytes, 2 * zspage_bytes);
    let last = first.pop().expect("an object");
    first.into_iter().for_each(free);
    free(second.pop().expect("an object"));
    second.push(alloc());
    free(last);
    assert_eq!(pool.stats().page_bytes, zspage_bytes);
    second.into_iter().for_each(free);
    let stats = pool.stats();
    assert_eq!((stats.page_bytes, stats.pages_taken), (0, stats.pages_returned));
}

#[test]
fn the_class_table_has_the_kernels_columns() {
    let pool = with_chain(Os, 8).expect("memory");
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
    // 1500 bytes and the header are in the class of 1520, or in one merged into a larger.
    assert!(row[1].parse::<usize>().is_ok_and(|size| (1508..1600).contains(&size)), "{table}");
    assert_eq!(row[14], "10", "{table}");
    shadow.drain(&pool);
}

#[test]
fn threads_that_grow_a_class_at_once_leave_no_empty_zspage() {
    let pool = with_chain(Os, 8).expect("memory");
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

#[test]
fn what_is_mapped_stays_while_all_else_is_moved() {
    let pool = with_chain(Os, 8).expect("memory");
    let handles: std::vec::Vec<_> = (0..200).map(|_| pool.alloc(1500).expect("memory")).collect();
    // SAFETY: all live; each one thinned out is freed once, and never mapped.
    handles
        .iter()
        .filter(|handle| !is_tenth(**handle))
        .for_each(|&handle| unsafe { pool.free(handle) });
    let mapped = handles.iter().copied().find(|&handle| is_tenth(handle)).expect("one of ten");
    // SAFETY: live, and mapped once.
    let place = unsafe { pool.map(mapped) }.expect("a live object");
    assert!(pool.compact() > 0);
    // SAFETY: mapped above.
    unsafe { pool.unmap(mapped) };
    // SAFETY: as above.
    assert_eq!(unsafe { pool.map(mapped) }, Ok(place));
    // SAFETY: as above.
    unsafe { pool.unmap(mapped) };
    validate(&pool);
}

/// The zspage of a mapped object cannot be emptied, but the others can.
#[test]
fn a_mapped_object_keeps_no_zspage_but_its_own() {
    const ZSPAGES: usize = 10;
    for mapped in 0..ZSPAGES {
        let pool = with_chain(Os, 8).expect("memory");
        // A class of 1536 bytes has eight objects in three pages. One of each eight is left, and
        // all of the last.
        let handles: std::vec::Vec<_> =
            (0..8 * ZSPAGES).map(|_| pool.alloc(1500).expect("memory")).collect();
        let is_kept = |number: usize| number.is_multiple_of(8) || number / 8 == ZSPAGES - 1;
        let (kept, freed): (std::vec::Vec<_>, std::vec::Vec<_>) =
            (0..handles.len()).partition(|&number| is_kept(number));
        // SAFETY: live until now.
        freed.into_iter().for_each(|number| unsafe { pool.free(handles[number]) });
        // SAFETY: live, and mapped once.
        unsafe { pool.map(handles[8 * mapped]) }.expect("a live object");
        pool.compact();
        assert_eq!(pool.stats().page_bytes, 3 * 3 * 4096, "17 objects, {mapped} mapped");
        validate(&pool);
        // SAFETY: mapped above.
        unsafe { pool.unmap(handles[8 * mapped]) };
        // SAFETY: live until now.
        kept.into_iter().for_each(|number| unsafe { pool.free(handles[number]) });
    }
}

fn is_tenth(handle: crate::Handle) -> bool {
    handle.to_raw().get().is_multiple_of(10)
}

#[test]
fn a_refused_object_takes_no_cell() {
    let failing = Failing::new(Os);
    let pool = with_chain(&failing, 8).expect("memory");
    let first = pool.alloc(100).expect("memory");
    failing.refuse_all(true);
    (0..2000).for_each(|_| assert!(pool.alloc(2000).is_err()));
    failing.refuse_all(false);
    let second = pool.alloc(2000).expect("memory is back");
    assert_eq!(pool.stats().cell_bytes, 4096);
    // SAFETY: live until now.
    [first, second].into_iter().for_each(|handle| unsafe { pool.free(handle) });
}

#[test]
fn pages_may_have_64_bytes() {
    let mut buffer = std::vec::Vec::new();
    let pool: Zs<_> = Zs::new(megabyte(&mut buffer, 64)).expect("memory");
    serves_from_tiny_pages(&pool);
}

/// zsmalloc's groups: one for each tenth, one for full zspages, one for empty ones.
#[test]
fn groups_are_the_kernels() {
    let groups = [(0, 0), (1, 1), (9, 1), (10, 2), (50, 6), (89, 9), (90, 10), (99, 10), (100, 11)];
    for (in_use, group) in groups {
        assert_eq!(State::group_of(in_use, 100), group, "{in_use} %");
    }
}
