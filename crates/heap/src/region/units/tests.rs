extern crate std;

use core::ptr::NonNull;
use std::vec::Vec;

use hectare_buddy::FrameAllocator;
use hectare_pages::{Counted, Failing, Os};

use super::super::tests::huge_mappings;
use super::super::{Blocks, RegionView, Wanted};
use super::*;

fn open() -> Region {
    let view = RegionView::new();
    Region::open(64 << 20, HUGE_PAGE_BYTES, &Os, &view).expect("address space")
}

fn take(region: &mut Region, frames: usize) -> Run {
    take_that(true, region, frames)
}

/// A run that the caller is going to fill, if it `fills`.
fn take_that(fills: bool, region: &mut Region, frames: usize) -> Run {
    region.take(Wanted::Run { frames, align: 1, fills }, Blocks::AsTheyAre, &Os).expect("memory")
}

/// Whether the system was asked to have the unit at `start` as a huge page.
fn is_asked(start: NonNull<u8>) -> bool {
    huge_mappings().iter().any(|mapping| mapping.contains(&start.addr().get()))
}

/// Before huge pages are asked for anywhere.
#[test]
fn a_run_that_nearly_fills_a_unit_has_one() {
    for (frames, has_unit) in
        [(NEARLY_UNIT_FRAMES, true), (NEARLY_UNIT_FRAMES - 1, false), (UNIT_FRAMES + 10, true)]
    {
        let mut region = open();
        take(&mut region, 10);
        let run = take(&mut region, frames);
        let begins_unit = region.frame_of(run.start).is_multiple_of(UNIT_FRAMES);
        assert_eq!(begins_unit, has_unit, "{frames} frames");
        let left = frames.next_multiple_of(UNIT_FRAMES) - frames;
        let is_nearly = left <= UNIT_FRAMES - NEARLY_UNIT_FRAMES;
        assert_eq!(region.dirty_frames(), if is_nearly { left } else { 0 }, "{frames} frames");
    }
}

#[test]
fn a_run_grows_by_dirty_and_clean_frames() {
    let mut region = open();
    let runs: Vec<Run> = [5, 1, 1, 2, 1].map(|n| take(&mut region, n * UNIT_FRAMES)).into();
    let first = region.frame_of(runs[0].start);
    assert_eq!(region.frame_of(runs[4].start), first + 9 * UNIT_FRAMES, "in a row");
    for run in [runs[1], runs[3]] {
        region.give(run.start, run.frames);
    }
    region.decommit(UNIT_FRAMES, usize::MAX, &Os);
    region.give(runs[2].start, UNIT_FRAMES);
    let dirty = region.dirty_frames();
    assert_eq!(dirty, 2 * UNIT_FRAMES, "of four units behind the first run");
    let (before, wanted) = (5 * UNIT_FRAMES, 9 * UNIT_FRAMES);
    let more = region.extend(runs[0].start, before, wanted, &Os).expect("room");
    assert_eq!((more.frames, more.bare_frames), (4 * UNIT_FRAMES, 2 * UNIT_FRAMES));
    assert_eq!((more.again_frames, region.dirty_frames()), (2 * UNIT_FRAMES, 0));
    assert!(region.extend(runs[0].start, wanted, wanted + 1, &Os).is_none(), "in use");
    // SAFETY: the last frame of what it grew by.
    unsafe { more.start.add(4 * HUGE_PAGE_BYTES - 1).write(1) };
}

#[test]
fn a_run_that_cannot_grow_takes_nothing() {
    let mut region = open();
    let runs: Vec<Run> = [4, 1, 1, 1].map(|n| take(&mut region, n * UNIT_FRAMES)).into();
    let first = region.frame_of(runs[0].start);
    assert_eq!(region.frame_of(runs[3].start), first + 6 * UNIT_FRAMES, "in a row");
    // Clean frames behind the run, dirty ones behind these, and then some in use.
    region.give(runs[1].start, UNIT_FRAMES);
    region.decommit(0, usize::MAX, &Os);
    region.give(runs[2].start, UNIT_FRAMES);
    let (before, room) = (4 * UNIT_FRAMES, 6 * UNIT_FRAMES);
    assert!(region.extend(runs[0].start, before, room + 1, &Os).is_none(), "in use");
    assert_eq!(region.dirty_frames(), UNIT_FRAMES);
    let more = region.extend(runs[0].start, before, room, &Os).expect("room");
    assert_eq!(more.frames, room - before, "nothing was lost");
}

/// Nor does a run of any length take anything if it would grow beyond what is committed and no more
/// can be; beyond dirty frames, too.
#[test]
fn a_run_that_cannot_be_committed_takes_nothing() {
    let source = Failing::new(Os);
    for units in [1, 5] {
        let mut region = open();
        let [run, behind] = [units, 1].map(|units| take(&mut region, units * UNIT_FRAMES));
        assert_eq!(
            region.touched_frames,
            region.frame_of(behind.start) + UNIT_FRAMES,
            "{units} units"
        );
        region.give(behind.start, UNIT_FRAMES);
        let state = |region: &Region| {
            (
                region.frontier_bytes,
                region.touched_frames,
                region.dirty_frames(),
                region.clean.free_frames(),
            )
        };
        let before = state(&region);
        let wanted = region.frontier_frames() - region.frame_of(run.start) + 1;
        source.refuse_all(true);
        assert!(region.extend(run.start, run.frames, wanted, &source).is_none(), "{units} units");
        assert_eq!(state(&region), before, "{units} units");
        source.refuse_all(false);
        let more = region.extend(run.start, run.frames, wanted, &source);
        assert_eq!(more.is_some(), units == 5, "a short one does not grow by both kinds");
    }
}

/// Some of them come by dirty units from elsewhere.
#[test]
fn a_run_grows_by_units_that_have_moved_and_by_huge_pages() {
    let mut region = open();
    let runs: Vec<Run> =
        [4, 2, 1, 1].map(|units| take_that(false, &mut region, units * UNIT_FRAMES)).into();
    let touched = region.touched_frames;
    // SAFETY: the first byte of the run behind.
    unsafe { runs[2].start.write(7) };
    region.give(runs[1].start, runs[1].frames);
    region.decommit(0, usize::MAX, &Os);
    region.give(runs[3].start, runs[3].frames);
    let (before, wanted) = (4 * UNIT_FRAMES, 6 * UNIT_FRAMES);
    let more = region.extend(runs[0].start, before, wanted, &Os).expect("room");
    assert_eq!((more.start, more.bare_frames), (runs[1].start, UNIT_FRAMES));
    assert_eq!((region.dirty_frames(), region.touched_frames), (0, touched));
    // SAFETY: within what it grew by.
    let asked = [0, 1, 2].map(|i| is_asked(unsafe { more.start.add(i * HUGE_PAGE_BYTES) }));
    assert_eq!(asked, [false, true, false], "the first has its memory, the last is another's");
    // SAFETY: as above.
    assert_eq!(unsafe { runs[2].start.read() }, 7);
}

#[test]
fn a_run_grows_by_one_that_was_kept() {
    let mut region = open();
    let [run, behind, _] = [4 * UNIT_FRAMES, 64, 64].map(|frames| take(&mut region, frames));
    // SAFETY: nobody uses it.
    unsafe { region.give_run(behind.start, behind.frames, &Os) };
    assert!(region.cached.frames() > 0, "it was kept");
    let more = region.extend(run.start, run.frames, run.frames + 64, &Os).expect("room");
    assert_eq!((more.start, more.bare_frames), (behind.start, 0));
}

/// Where huge pages are asked for, memory comes to all of the unit in which a run ends.
#[test]
fn runs_that_only_grow_lie_side_by_side() {
    for frames in [UNIT_FRAMES / 2 + 1, UNIT_FRAMES + 1, 2 * UNIT_FRAMES - 1] {
        let mut region = open();
        take(&mut region, 4 * UNIT_FRAMES);
        assert!(!region.is_huge_from(FrameId(region.touched_frames)), "one run is not many");
        take(&mut region, UNIT_FRAMES);
        let mut end = region.touched_frames;
        assert!(region.is_huge_from(FrameId(end)));
        for _ in 0..5 {
            let run = take(&mut region, frames);
            assert_eq!(region.frame_of(run.start), end, "{frames} frames");
            end += frames;
            assert_eq!(region.touched_frames, align_up(end, UNIT_FRAMES));
            assert_eq!(region.dirty_frames(), region.touched_frames - end);
        }
    }
}

/// Also where units have gone: what is left of the last run's unit is the beginning of the next
/// run.
#[test]
fn runs_begin_in_what_is_left_of_units_that_have_gone() {
    let mut region = open();
    for units in [4, 1] {
        take(&mut region, units * UNIT_FRAMES);
    }
    let gone = take(&mut region, 5 * UNIT_FRAMES);
    let moves = take(&mut region, UNIT_FRAMES);
    take(&mut region, UNIT_FRAMES);
    region.give(gone.start, gone.frames);
    region.decommit(0, usize::MAX, &Os);
    let first = region.frame_of(gone.start);
    let frames = UNIT_FRAMES + 100;
    let bare = [2, 1, 1].map(|units| {
        let run = take(&mut region, frames);
        (region.frame_of(run.start) - first, run.bare_frames == units * UNIT_FRAMES)
    });
    assert_eq!(bare, [(0, true), (frames, true), (2 * frames, true)]);
    assert_eq!(region.dirty_frames(), 4 * UNIT_FRAMES - 3 * frames);
    // A dirty unit, too short for the run, moves to where it is needed.
    region.give(moves.start, moves.frames);
    let run = take(&mut region, frames);
    assert_eq!((region.frame_of(run.start) - first, run.bare_frames), (3 * frames, 0));
}

/// Where huge pages are not asked for, no memory comes to what a run leaves of its last unit. But
/// what has moved there holds memory, with any contents.
#[test]
fn what_is_left_of_a_unit_that_moved_is_dirty() {
    let mut region = open();
    let runs: Vec<Run> = [3, 1, 1, 1, 1].map(|n| take(&mut region, n * UNIT_FRAMES)).into();
    region.give(runs[0].start, runs[0].frames);
    region.decommit(0, usize::MAX, &Os);
    for run in [runs[1], runs[3]] {
        region.give(run.start, run.frames);
    }
    let run = take(&mut region, UNIT_FRAMES + 100);
    assert_eq!((run.start, run.clean, run.bare_frames), (runs[0].start, false, 0));
    assert!(!region.is_huge_from(FrameId(region.frame_of(run.start))));
    assert_eq!(region.dirty_frames(), UNIT_FRAMES - 100);
}

/// Huge pages are asked for memory that came page by page once it lies where all memory comes in
/// huge pages.
#[test]
fn what_moves_to_where_huge_pages_are_asked_for_is_asked_for() {
    let mut region = open();
    let below = take_that(false, &mut region, 4 * UNIT_FRAMES);
    for units in [4, 4, 1] {
        take(&mut region, units * UNIT_FRAMES);
    }
    assert!(!is_asked(below.start) && region.is_huge_from(FrameId(region.touched_frames)));
    region.give(below.start, below.frames);
    let run = take(&mut region, 5 * UNIT_FRAMES);
    assert!(region.is_huge_from(FrameId(region.frame_of(run.start))));
    assert_eq!(run.bare_frames, UNIT_FRAMES, "four have moved");
    assert!(is_asked(run.start));
}

/// If the last unit of what is left stayed, with the part that nobody has had, each run would begin
/// behind the one before it.
#[test]
fn a_run_taken_again_and_again_stays_in_its_place() {
    let mut region = open();
    for units in [4, 1] {
        take(&mut region, units * UNIT_FRAMES);
    }
    let frames = 4 * UNIT_FRAMES + 100;
    let mut starts = Vec::new();
    for _ in 0..4 {
        let run = take(&mut region, frames);
        assert!(!region.fresh.is_empty(), "what is left of the last unit");
        starts.push(run.start);
        region.give(run.start, frames);
        region.decommit(3 * UNIT_FRAMES, usize::MAX, &Os);
        assert_eq!(
            region.dirty.longest(),
            Some((FrameId(region.frame_of(starts[0])), 3 * UNIT_FRAMES))
        );
    }
    assert_eq!(starts, [starts[0]; 4]);
}

#[test]
fn what_somebody_has_is_not_what_nobody_has_had() {
    let mut region = open();
    let runs: Vec<Run> = [3, 1, 1, 1, 1].map(|n| take(&mut region, n * UNIT_FRAMES)).into();
    region.give(runs[0].start, runs[0].frames);
    region.decommit(0, usize::MAX, &Os);
    region.give(runs[1].start, runs[1].frames);
    let frames = 2 * UNIT_FRAMES + 100;
    let run = take(&mut region, frames);
    assert_eq!(
        (run.start, run.bare_frames),
        (runs[0].start, UNIT_FRAMES + 100),
        "one unit has moved"
    );
    let end = region.frame_of(run.start) + frames;
    assert_eq!(region.fresh.start, end);
    let _ = region.extend(run.start, frames, frames + 50, &Os).expect("room");
    assert_eq!(region.fresh.start, end + 50);
}

/// Short runs in units that have gone, below where huge pages are asked for, do not take a unit
/// each.
#[test]
fn short_runs_share_a_unit_that_has_gone() {
    let mut region = open();
    let below = take(&mut region, 4 * UNIT_FRAMES);
    take(&mut region, UNIT_FRAMES);
    region.give(below.start, below.frames);
    region.decommit(0, usize::MAX, &Os);
    assert!(region.is_huge_from(FrameId(region.touched_frames)));
    let mut next = region.frame_of(below.start);
    assert!(!region.is_huge_from(FrameId(next)));
    for _ in 0..UNIT_FRAMES / 9 {
        let run = take(&mut region, 9);
        assert_eq!(region.frame_of(run.start), next);
        next += 9;
    }
}

/// What went in parts has left a page table in the kernel, with which a unit would come page by
/// page.
#[test]
fn a_unit_that_went_in_parts_goes_as_a_whole_before_it_comes_again() {
    for units in [1, 3] {
        let mut region = open();
        let source = Counted::new(Os);
        for _ in 0..2 {
            take(&mut region, 2 * UNIT_FRAMES);
        }
        let run = take(&mut region, units * UNIT_FRAMES);
        assert!(region.is_huge_from(FrameId(region.frame_of(run.start))));
        for half in 0..2 * units {
            // SAFETY: within the run.
            region.give(unsafe { run.start.add(half * HUGE_PAGE_BYTES / 2) }, UNIT_FRAMES / 2);
            region.decommit(0, usize::MAX, &source);
        }
        let before = source.counts().decommitted_bytes_total;
        let wanted = Wanted::Run { frames: units * UNIT_FRAMES, align: 1, fills: true };
        let again = region.take(wanted, Blocks::AsTheyAre, &source).expect("memory");
        assert_eq!(again.start, run.start);
        let whole = source.counts().decommitted_bytes_total - before;
        assert_eq!(whole, units * HUGE_PAGE_BYTES);
    }
}

/// Otherwise the next object there would bring a whole unit that nobody knows of.
#[test]
fn units_that_were_asked_for_are_so_no_longer_once_they_have_gone() {
    let mut region = open();
    let run = take(&mut region, 2 * UNIT_FRAMES);
    assert!(!region.is_huge_from(FrameId(region.frame_of(run.start))));
    assert!(is_asked(run.start));
    region.give(run.start, run.frames);
    region.decommit(0, usize::MAX, &Os);
    assert!(!is_asked(run.start));
}

/// What goes back before the run of its unit is touched comes back with that run all the same.
#[test]
fn what_is_left_of_the_last_unit_is_the_last_to_go() {
    let mut region = open();
    for units in [4, 1] {
        take(&mut region, units * UNIT_FRAMES);
    }
    assert!(region.is_huge_from(FrameId(region.touched_frames)));
    let runs: Vec<Run> = (0..100).map(|_| take(&mut region, 20)).collect();
    for run in runs.iter().step_by(2) {
        region.give(run.start, run.frames);
    }
    let run = take(&mut region, 30);
    let end = region.frame_of(run.start) + run.frames;
    let left = region.touched_frames - end;
    assert_eq!(region.dirty_frames(), 50 * 20 + left);
    assert!(region.decommit(left, usize::MAX, &Os) > 500);
    assert_eq!(region.dirty.run_around(FrameId(end)), Some((FrameId(end), left)));
    let next = take(&mut region, 30);
    assert_eq!(region.frame_of(next.start), end, "no unit of its own");
    region.decommit(0, usize::MAX, &Os);
    assert_eq!(region.dirty_frames(), 0, "in the end it goes, too");
}
