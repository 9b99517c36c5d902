//! Allocations and frees in every state of a pass.

use std::vec::Vec;

use hectare_check::Random;
use hectare_pages::{Failing, Os};

use super::*;
use crate::dense::area::GivenBack;
use crate::dense::cells::Spot;
use crate::dense::migrate::OBJECTS_A_STEP;
use crate::dense::shard::block_units;
use crate::dense::{Dense, Limits};
use crate::table::Table;
use crate::testing::{Shadow, Validate};
use crate::{Handle, Pool, PoolError};

/// A pool that compacts only on request. Half of its objects are gone, so it holds twice what it
/// needs.
struct Thinned<S: PageSource> {
    pool: Dense<S>,
    shadow: Shadow,
    random: Random,
}

impl<S: PageSource + Sync> Thinned<S> {
    fn new(source: S, objects: usize) -> Self {
        let limits = Limits { shards: 1, compact_percent: 0, ..Limits::new() };
        let pool: Dense<_> = Dense::with_limits(source, limits);
        let (mut shadow, mut random) = (Shadow::new(&pool, 1), Random::new(5));
        for _ in 0..objects {
            shadow.alloc(&pool, 32 + random.below(2016)).expect("memory");
        }
        shadow.thin_out(&pool, &mut random, objects / 2);
        Self { pool, shadow, random }
    }

    fn with_shard<R>(&self, act: impl FnOnce(Locked<'_, S>) -> R) -> R {
        let shard = self.pool.shard(0).expect("the shard of the objects");
        shard.with_lock(&self.pool.source, act)
    }

    /// Starts a pass and does so many steps. False if the pass is over by then.
    fn go(&self, steps: usize) -> bool {
        self.with_shard(|mut shard| {
            assert!(shard.start_pass(AUTOMATIC_SLACK_SHIFT));
            (0..steps).all(|_| shard.step().is_some())
        })
    }

    fn alloc(&mut self) -> Result<(), PoolError> {
        self.shadow.alloc(&self.pool, 32 + self.random.below(2016))
    }

    fn listed(&self) -> usize {
        self.with_shard(|shard| {
            let mut listed = 0;
            shard.for_each_listed(|_, _| listed += 1);
            listed
        })
    }

    fn held_per_live(&self) -> f64 {
        self.pool.stats().page_bytes as f64 / self.shadow.live_bytes as f64
    }

    fn end(mut self) {
        self.pool.validate();
        self.shadow.verify_all(&self.pool);
        self.shadow.drain(&self.pool);
        self.pool.compact();
        assert_eq!(self.pool.stats().page_bytes, 0);
    }
}

#[test]
fn an_allocation_opens_a_bounded_part_of_what_is_closed() {
    const OBJECTS: usize = 6000;
    let mut states = 0;
    for steps in (0..).step_by(23) {
        let mut thinned = Thinned::new(Os, OBJECTS);
        if !thinned.go(steps) {
            break;
        }
        states += 1;
        while thinned.shadow.len() < OBJECTS * 11 / 10 {
            let listed = thinned.listed();
            thinned.alloc().expect("memory");
            let opened = thinned.listed().saturating_sub(listed);
            assert!(opened <= STEPS_AN_ALLOC * BLOCKS_A_STEP, "{opened} blocks by one allocation");
            if thinned.random.one_in(100) {
                thinned.pool.validate();
            }
        }
        let held = thinned.held_per_live();
        assert!(held < 1.1, "{held} bytes held per live byte, a pass {steps} steps old");
        thinned.end();
    }
    assert!(states >= 8, "a pass has more than {states} times 23 steps");
}

/// If all that the allocation may open is in use, it takes pages, which are not closed.
#[test]
fn an_allocation_uses_the_pages_that_it_takes_during_a_pass() {
    let limits = Limits { shards: 1, compact_percent: 0, ..Limits::new() };
    let pool: Dense<_> = Dense::with_limits(Os, limits);
    let mut shadow = Shadow::new(&pool, 1);
    (0..3000).for_each(|_| shadow.alloc(&pool, 2000).expect("memory"));
    // The lowest objects: what is closed above has no holes.
    (0..500).for_each(|index| shadow.free(&pool, index));
    pool.shard(0).expect("the shard of the objects").with_lock(&pool.source, |mut shard| {
        assert!(shard.start_pass(AUTOMATIC_SLACK_SHIFT));
        while !matches!(shard.state.compaction.phase, Phase::Move { .. }) {
            assert!(shard.step().is_some());
        }
    });
    (0..500).for_each(|_| shadow.alloc(&pool, 2000).expect("memory"));
    let before = pool.stats();
    for _ in 0..40 {
        let taken = pool.stats().pages_taken;
        shadow.alloc(&pool, 2000).expect("memory");
        let taken = pool.stats().pages_taken - taken;
        assert!(taken <= 8, "{taken} pages for one object");
    }
    assert!(pool.stats().pages_taken > before.pages_taken, "none was needed");
    pool.validate();
    shadow.verify_all(&pool);
}

#[test]
fn frees_and_allocations_beside_each_step_leave_the_blocks_sound() {
    const OBJECTS: usize = 400;
    for seed in 0..40 {
        let mut thinned = Thinned::new(Os, OBJECTS);
        thinned.random = Random::new(seed);
        for frees_of_8 in [4, 2, 0] {
            let mut goes_on = thinned.go(0);
            while goes_on {
                goes_on = thinned.with_shard(|mut shard| shard.step().is_some());
                for _ in 0..thinned.random.below(40) {
                    if thinned.random.below(8) < frees_of_8 {
                        let index = thinned.random.below(thinned.shadow.len());
                        thinned.shadow.free(&thinned.pool, index);
                    } else {
                        thinned.alloc().expect("memory");
                    }
                }
                thinned.pool.validate();
            }
            while thinned.shadow.len() < OBJECTS {
                thinned.alloc().expect("memory");
            }
            thinned.shadow.thin_out(&thinned.pool, &mut thinned.random, OBJECTS / 2);
        }
        thinned.end();
    }
}

#[test]
fn what_is_closed_is_used_before_an_allocation_is_refused() {
    for steps in (0..).step_by(7) {
        let failing = Failing::new(Os);
        let mut thinned = Thinned::new(&failing, 2000);
        if !thinned.go(steps) {
            break;
        }
        failing.refuse_all(true);
        while thinned.alloc().is_ok() {}
        let held = thinned.held_per_live();
        assert!(held < 1.1, "{held} bytes held per live byte, a pass {steps} steps old");
        failing.refuse_all(false);
        thinned.end();
    }
}

#[test]
fn a_pass_moves_every_object_out_of_what_it_closed() {
    let thinned = Thinned::new(Os, 4000);
    assert!(thinned.go(0));
    thinned.with_shard(|mut shard| {
        while shard.state.compaction.phase != Phase::Open {
            shard.step();
        }
        assert!(shard.state.compaction.moved_all);
        let mut place = shard.state.compaction.cursor;
        while !shard.area.head(place).is_end() {
            let head = shard.area.head(place);
            assert!(head.is_free(), "an object was left at {place:?}");
            place = place.forward(head.units());
        }
    });
    thinned.end();
}

/// Objects one after the other, each about a page.
fn row_of_pages(compact_percent: usize, objects: usize) -> (Dense<Os>, Vec<Handle>) {
    let limits = Limits { shards: 1, compact_percent, ..Limits::new() };
    let pool: Dense<_> = Dense::with_limits(Os, limits);
    let handles = (0..objects).map(|_| pool.alloc(4000).expect("memory")).collect();
    (pool, handles)
}

#[test]
fn a_step_gives_back_a_bounded_part_of_a_large_block() {
    const HOLE: usize = 700;
    let (pool, handles) = row_of_pages(0, 10 * HOLE);
    let (freed, kept) = handles[1000..].split_at(HOLE);
    for &handle in freed {
        // SAFETY: live until now.
        unsafe { pool.free(handle) };
    }
    pool.validate();
    assert_eq!(pool.stats().pages_returned, 0, "an eighth of a shard may be free");
    let shard = pool.shard(0).expect("the shard of the objects");
    shard.with_lock(&pool.source, |mut shard| shard.start_sweep());
    let mut given = 0;
    while let Some(pages) = shard.with_lock(&pool.source, |mut shard| shard.step()) {
        assert!(pages <= PAGES_A_STEP, "{pages} pages by one step");
        given += pages;
        pool.validate();
    }
    assert!(given > HOLE * 4000 / 4096 - 3, "{given} pages given back of {HOLE} objects");
    for &handle in handles[..1000].iter().chain(kept) {
        // SAFETY: as above.
        unsafe { pool.free(handle) };
    }
}

#[test]
fn a_sweep_gives_back_from_every_hole() {
    const KEPT: usize = 5;
    for hole in [3, 200] {
        let (pool, handles) = row_of_pages(0, 24 * (KEPT + hole));
        let mut kept = Vec::new();
        for chunk in handles.chunks(KEPT + hole) {
            kept.extend_from_slice(&chunk[..KEPT]);
            for &handle in &chunk[KEPT..] {
                // SAFETY: live until now.
                unsafe { pool.free(handle) };
            }
        }
        let shard = pool.shard(0).expect("the shard of the objects");
        shard.with_lock(&pool.source, |mut shard| shard.start_sweep());
        while let Some(pages) = shard.with_lock(&pool.source, |mut shard| shard.step()) {
            assert!(pages <= PAGES_A_STEP, "{pages} pages by one step");
        }
        pool.validate();
        let least = 24 * (hole * 4000 / 4096 - 1);
        let given = pool.stats().pages_returned as usize;
        assert!(given >= least, "{given} pages of {least} given back");
        // SAFETY: as above.
        kept.into_iter().for_each(|handle| unsafe { pool.free(handle) });
    }
}

fn free_all(pool: &Dense<Os>, handles: &[Handle]) {
    // SAFETY: live until now.
    handles.iter().for_each(|&handle| unsafe { pool.free(handle) });
}

/// Cells and pages outlast the objects that they were for. They must not make a pass long.
#[test]
fn a_pass_over_a_shard_that_was_large_is_short() {
    const KEPT: usize = 300;
    let (pool, handles) = row_of_pages(0, 40_000);
    let (freed, kept) = handles.split_at(handles.len() - KEPT);
    free_all(&pool, freed);
    let shard = pool.shard(0).expect("the shard of the objects");
    assert!(shard.with_lock(&pool.source, |mut shard| shard.start_pass(AUTOMATIC_SLACK_SHIFT)));
    let mut steps = 0;
    while shard.with_lock(&pool.source, |mut shard| shard.step()).is_some() {
        steps += 1;
    }
    pool.validate();
    // Five objects of 4000 bytes fill a step.
    assert_eq!(pool.stats().objects_moved as usize, KEPT);
    assert!(steps < KEPT / 5 + 50, "{steps} steps to move {KEPT} objects");
    free_all(&pool, kept);
}

/// Frees objects at random until `count` are left. As soon as more than a quarter of what is held
/// is unused, a pass must be under way. Returns how many passes began.
fn thin_out_attended(pool: &Dense<Os>, handles: &mut Vec<Handle>, count: usize) -> usize {
    let shard = pool.shard(0).expect("the shard of the objects");
    let mut random = Random::new(8);
    let (mut passes, mut was_idle) = (0, true);
    while handles.len() > count {
        free_all(pool, &[handles.swap_remove(random.below(handles.len()))]);
        let (idle, unused, held) = shard.with_lock(&pool.source, |shard| {
            let held_bytes = shard.state.pages * 4096;
            (shard.state.compaction.is_idle(), shard.unused_units() * UNIT, held_bytes)
        });
        let most = (held / 4).max(LEAST_PAGES * 4096);
        assert!(!idle || unused <= most, "{unused} unused of {held}, and no pass");
        passes += usize::from(was_idle && !idle);
        was_idle = idle;
    }
    passes
}

/// Pages given back, and pages taken back again, are no reason to look later.
#[test]
fn a_pass_starts_once_enough_of_what_is_held_is_unused() {
    for regrown in [0, 20_000] {
        let (pool, mut handles) = row_of_pages(25, 30_000);
        let mut kept = handles.split_off(29_000);
        let shard = pool.shard(0).expect("the shard of the objects");
        for freed in handles.chunks(500) {
            free_all(&pool, freed);
            shard.with_lock(&pool.source, |mut shard| shard.start_sweep());
            while shard.with_lock(&pool.source, |mut shard| shard.step()).is_some() {}
        }
        let stats = pool.stats();
        assert!(stats.page_bytes < stats.stored_bytes * 11 / 10 && stats.objects_moved == 0);
        kept.extend((0..regrown).map(|_| pool.alloc(4000).expect("memory")));
        assert!(thin_out_attended(&pool, &mut kept, 300) > 0);
        pool.validate();
        free_all(&pool, &kept);
    }
}

/// Pinned objects stay, so passes can do nothing, and must be rare. What they had to leave is no
/// reason to start later once it has been used again.
#[test]
fn a_pass_that_was_in_vain_is_not_repeated_at_once() {
    const OBJECTS: usize = 16_000;
    let limits = Limits { shards: 1, ..Limits::new() };
    let pool: Dense<_> = Dense::with_limits(Os, limits);
    let alloc = |_| pool.alloc(500).expect("memory");
    let (mut handles, mut pinned) = (Vec::new(), Vec::new());
    for number in 0..OBJECTS {
        if number % 4 == 0 { &mut pinned } else { &mut handles }.push(alloc(number));
    }
    let shard = pool.shard(0).expect("the shard of the objects");
    let cell = |&handle: &Handle| shard.area.cell(pool.open(handle).expect("a shard").1);
    pinned.iter().for_each(|handle| _ = cell(handle).try_pin().expect("not pinned"));
    let (mut random, mut busy_frees) = (Random::new(8), 0);
    while !handles.is_empty() {
        free_all(&pool, &[handles.swap_remove(random.below(handles.len()))]);
        let idle = shard.with_lock(&pool.source, |shard| shard.state.compaction.is_idle());
        busy_frees += usize::from(!idle);
    }
    let freed = OBJECTS - pinned.len();
    assert!((1..freed / 2).contains(&busy_frees), "{busy_frees} of {freed} frees did a step");
    while shard.with_lock(&pool.source, |mut shard| shard.step()).is_some() {}
    pinned.iter().for_each(|handle| cell(handle).unpin());
    pinned.extend((pinned.len()..OBJECTS * 9 / 8).map(alloc));
    let passes = thin_out_attended(&pool, &mut pinned, OBJECTS / 16);
    assert!((3..=12).contains(&passes), "{passes} passes to a sixteenth");
    pool.validate();
    free_all(&pool, &pinned);
}

#[test]
fn a_step_moves_a_bounded_number_of_objects_and_bytes() {
    for (size_bytes, most) in [(40, OBJECTS_A_STEP), (500, 33), (4000, 5)] {
        let limits = Limits { shards: 1, compact_percent: 0, ..Limits::new() };
        let pool: Dense<_> = Dense::with_limits(Os, limits);
        let handles: Vec<_> = (0..4000).map(|_| pool.alloc(size_bytes).expect("memory")).collect();
        let (kept, freed) = handles.split_at(1000);
        let (freed, kept_above) = freed.split_at(2000);
        free_all(&pool, freed);
        let shard = pool.shard(0).expect("the shard of the objects");
        let moved = || pool.stats().objects_moved as usize;
        assert!(shard.with_lock(&pool.source, |mut shard| shard.start_pass(4)));
        let (mut before, mut most_moved) = (0, 0);
        while shard.with_lock(&pool.source, |mut shard| shard.step()).is_some() {
            most_moved = most_moved.max(moved() - before);
            before = moved();
        }
        assert_eq!(most_moved, most, "objects of {size_bytes} bytes");
        free_all(&pool, kept);
        free_all(&pool, kept_above);
    }
}

/// Holes from before so much was free that pages are given back. Each object moved from between
/// them makes a block of hundreds of pages.
#[test]
fn a_step_that_moves_gives_back_a_bounded_number_of_pages() {
    const HOLE: usize = 270;
    let (pool, handles) = row_of_pages(0, 20_000);
    let (below, above) = handles.split_at(20_000 - 8 * (HOLE + 1));
    let mut kept = Vec::new();
    for chunk in above.chunks(HOLE + 1) {
        kept.push(chunk[0]);
        free_all(&pool, &chunk[1..]);
    }
    for chunk in below.chunks(6) {
        free_all(&pool, &chunk[..1]);
        kept.extend_from_slice(&chunk[1..]);
    }
    assert_eq!(pool.stats().pages_returned, 0);
    let shard = pool.shard(0).expect("the shard of the objects");
    assert!(shard.with_lock(&pool.source, |mut shard| shard.start_pass(AUTOMATIC_SLACK_SHIFT)));
    let mut most_given = 0;
    while let Some(given) = shard.with_lock(&pool.source, |mut shard| shard.step()) {
        most_given = most_given.max(given);
    }
    assert!(most_given < 2 * PAGES_A_STEP, "{most_given} pages by one step");
    pool.validate();
    free_all(&pool, &kept);
}

#[test]
fn compaction_tells_what_it_gave_back() {
    let thinned = Thinned::new(Os, 4000);
    let before = thinned.pool.stats();
    let given_bytes = thinned.pool.compact();
    let after = thinned.pool.stats();
    let returned_pages = (after.pages_returned - before.pages_returned) as usize;
    assert_eq!(given_bytes, returned_pages * Os.page_bytes());
    let fell_bytes = before.page_bytes - after.page_bytes;
    assert!(fell_bytes > before.page_bytes / 3, "{before:?}, {after:?}");
    assert!(fell_bytes <= given_bytes);
    thinned.end();
}

#[test]
fn words_of_page_bits_agree_with_single_ones() {
    let table: Table<GivenBack> = Table::new(4096);
    table.grow(&Os).expect("memory");
    // The last pages have no bit: they were not given back.
    let (with_bits, all) = (table.pages(), table.pages() + 300);
    let mut given_back = std::vec![false; all];
    let mut random = Random::new(2);
    let range = |random: &mut Random, end: usize| {
        let first = random.below(end);
        first..(first + random.below(400)).min(end)
    };
    for round in 0..20_000 {
        let pages = range(&mut random, with_bits);
        table.set_given_back(pages.clone(), round % 2 == 0);
        given_back[pages].fill(round % 2 == 0);
        let pages = range(&mut random, all);
        let first = |wanted| pages.clone().find(|&page| given_back[page] == wanted);
        assert_eq!(table.first_page(pages.clone(), true), first(true));
        assert_eq!(table.first_page(pages.clone(), false), first(false));
        let last_held = pages.clone().rfind(|&page| !given_back[page]);
        assert_eq!(table.held_end(pages.clone()), last_held.map_or(pages.start, |page| page + 1));
    }
    // SAFETY: used no more.
    unsafe { table.release(&Os) };
}

/// Only memory that is held and unused counts.
#[test]
fn a_shard_that_has_given_its_pages_back_compacts_nothing() {
    let (pool, handles) = row_of_pages(25, 4000);
    let (freed, kept) = handles.split_at(2000);
    // SAFETY: live until now.
    freed.iter().for_each(|&handle| unsafe { pool.free(handle) });
    let stats = pool.stats();
    assert_eq!((stats.objects, stats.objects_moved), (2000, 0));
    assert!(stats.page_bytes < stats.stored_bytes * 5 / 4, "{stats:?}");
    // SAFETY: as above.
    kept.iter().for_each(|&handle| unsafe { pool.free(handle) });
}

#[test]
fn a_small_shard_starts_no_pass_by_itself() {
    for (objects, moves) in [(2 * LEAST_PAGES / 3, false), (4 * LEAST_PAGES, true)] {
        let (pool, handles) = row_of_pages(25, objects);
        let (kept, freed): (Vec<_>, Vec<_>) = (0..objects).partition(|number| number % 4 == 3);
        // SAFETY: live until now.
        freed.iter().for_each(|&number| unsafe { pool.free(handles[number]) });
        assert_eq!(pool.stats().objects_moved > 0, moves, "{objects} objects");
        // SAFETY: as above.
        kept.iter().for_each(|&number| unsafe { pool.free(handles[number]) });
    }
}

#[test]
fn a_pass_may_close_from_the_start_of_a_free_block() {
    let thinned = Thinned::new(Os, 400);
    let mut places = Vec::new();
    thinned.with_shard(|shard| shard.for_each_listed(|_, place| places.push(place)));
    places.sort_unstable();
    for &place in &places[places.len() / 2..] {
        let is_there = thinned.with_shard(|shard| {
            let mut is_there = false;
            shard.for_each_listed(|_, listed| is_there |= listed == place);
            if is_there {
                shard.state.compaction.target = place;
                shard.state.compaction.enter(Phase::Close, Place(0));
            }
            is_there
        });
        while is_there && thinned.with_shard(|mut shard| shard.step().is_some()) {
            thinned.pool.validate();
        }
    }
    thinned.end();
}

#[test]
fn a_free_gives_back_and_looks_at_a_bounded_number_of_pages() {
    for newest_first in [true, false] {
        let (pool, mut handles) = row_of_pages(25, 20_000);
        if newest_first {
            handles.reverse();
        }
        let begun = std::time::Instant::now();
        for (number, handle) in handles.into_iter().enumerate() {
            let before = pool.stats().pages_returned;
            // SAFETY: live until now.
            unsafe { pool.free(handle) };
            let given = pool.stats().pages_returned - before;
            assert!(given <= 2 * PAGES_A_STEP as u64, "{given} pages by free {number}");
        }
        // If time were quadratic in 20,000 pages, it would be minutes.
        assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
        pool.compact();
        assert_eq!(pool.stats().page_bytes, 0);
    }
}

#[test]
fn a_move_asks_for_what_the_object_needs() {
    const ROUNDS: usize = 40;
    let limits = Limits { shards: 1, max_pieces: 1, compact_percent: 0, ..Limits::new() };
    let pool: Dense<_> = Dense::with_limits(Os, limits);
    let mut random = Random::new(6);
    let mut objects: Vec<_> = (0..20_000)
        .map(|_| {
            let size_bytes = 100 + random.below(12);
            (pool.alloc(size_bytes).expect("memory"), size_bytes)
        })
        .collect();
    for _ in 0..ROUNDS {
        for _ in 0..objects.len() / 12 {
            let (handle, _) = objects.swap_remove(random.below(objects.len()));
            // SAFETY: live until now.
            unsafe { pool.free(handle) };
        }
        pool.compact();
    }
    pool.validate();
    assert!(pool.stats().objects_moved > 2 * objects.len() as u64);
    for (handle, size_bytes) in objects {
        let (shard, cell, _) = pool.open(handle).expect("a shard");
        let spot = Spot(shard.area.cell(cell).peek());
        let units = shard.area.head(spot.place()).units() - spot.slack_units();
        assert_eq!(units, block_units(size_bytes));
        // SAFETY: live until now.
        unsafe { pool.free(handle) };
    }
}

#[test]
fn objects_of_few_lengths_keep_no_shard_that_is_mostly_free() {
    const STEPS: i32 = 16;
    const OBJECTS: usize = 50_000;
    let limits = Limits { shards: 1, compact_percent: 0, ..Limits::new() };
    let pool: Dense<_> = Dense::with_limits(Os, limits);
    let (mut shadow, mut random) = (Shadow::new(&pool, 1), Random::new(1));
    (0..OBJECTS).for_each(|_| shadow.alloc(&pool, 60 + random.below(8)).expect("memory"));
    for step in 1..=STEPS {
        let left = OBJECTS as f64 * 0.1_f64.powf(f64::from(step) / f64::from(STEPS));
        shadow.thin_out(&pool, &mut random, left as usize);
        pool.compact();
    }
    pool.validate();
    shadow.verify_all(&pool);
    let held = pool.stats().page_bytes as f64 / shadow.live_bytes as f64;
    assert!(held < 1.3, "{held} bytes held per live byte");
    shadow.drain(&pool);
}

/// Each step is as small as one that a free does, and all of them together do what a pass does.
#[test]
fn who_asks_for_a_part_gets_a_small_one_as_long_as_it_is_worth_it() {
    for objects in [400, 6000] {
        let thinned = Thinned::new(Os, objects);
        let (mut before, mut given_pages) = (thinned.pool.stats(), 0);
        let first = before;
        while let Some(bytes) = thinned.pool.compact_some() {
            let stats = thinned.pool.stats();
            let moved = stats.objects_moved - before.objects_moved;
            let given = (stats.pages_returned - before.pages_returned) as usize;
            assert!(moved <= OBJECTS_A_STEP as u64 && given <= 2 * PAGES_A_STEP);
            assert_eq!(bytes, given * Os.page_bytes());
            given_pages += given;
            before = stats;
        }
        assert_eq!(given_pages as u64, before.pages_returned - first.pages_returned);
        let held = thinned.held_per_live();
        let most = 1.0 + 2.0 / 64.0 + 20.0 * 4096.0 / thinned.shadow.live_bytes as f64;
        assert!(held < most, "{held} bytes held per live byte of {objects} objects");
        assert_eq!(thinned.pool.compact_some(), None, "what is left has to stay");
        thinned.end();
    }
}

/// Objects that are being read cannot be moved. A pass must not try that again and again.
#[test]
fn a_part_that_was_in_vain_is_not_worth_another() {
    let thinned = Thinned::new(Os, 6000);
    let shard = thinned.pool.shard(0).expect("the shard of the objects");
    let cells = || {
        let state = shard.state.lock();
        (state.cells_end.0..state.cells_top.0).map(Place)
    };
    let pinned: Vec<_> =
        cells().filter(|&cell| shard.area.cell(cell).try_pin().is_some()).collect();
    let steps = (0..100_000).map_while(|_| thinned.pool.compact_some()).count();
    assert!((1..6000 / 10).contains(&steps), "{steps} steps in vain");
    assert_eq!((thinned.pool.stats().objects_moved, thinned.pool.compact_some()), (0, None));
    pinned.iter().for_each(|&cell| shard.area.cell(cell).unpin());
    thinned.end();
}
