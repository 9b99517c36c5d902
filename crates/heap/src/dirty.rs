//! The free frames of a region that still hold memory. The longest runs of them are at hand.
//!
//! A request for a run takes the run that fits best. Walking over all free runs for that costs some
//! 150 instructions a step. So the longest [`NOTED`] runs are noted (`dirty/notes.rs`).
//!
//! Invariants
//! 1. Each noted run is one of free frames, as long as it can be, of more than [`SHORT_FRAMES`].
//! 2. No run that is not noted is longer than [`SHORT_FRAMES`] or `longest_unnoted`. The latter are
//!    runs that had no room when they came, or made room, and have not changed since.

mod notes;

use hectare_base::align::align_down;
use hectare_buddy::{Bitset, FrameAllocator, FrameId, RangeAllocator};

use crate::class::MAX_SMALL_BYTES;
use crate::region::{FRAME_BYTES, SLAB_FRAMES, UNIT_FRAMES, lowest_range};

use notes::{NOTED, Notes, Span};

/// Runs of up to this many frames are not noted. Only requests with a wide alignment, or the
/// hardened front's, are that short.
const SHORT_FRAMES: usize = MAX_SMALL_BYTES / FRAME_BYTES;

/// All runs are walked over when one in this many of them, and at least [`GONE`], have gone from
/// the notes since the last walk, or were looked for in vain. So each run that is taken pays for at
/// most this many steps.
const STEPS_EACH: usize = 32;
const GONE: usize = NOTED / 4;

/// Free frames, none at first.
#[derive(Debug)]
pub(crate) struct DirtyFrames {
    frames: Bitset<'static>,
    notes: Notes,
    longest_unnoted: usize,
    /// How many runs there were when they were last walked over.
    walked: usize,
    /// How many notes have gone since, or requests were in vain.
    gone: usize,
}

impl DirtyFrames {
    /// Over an allocator without free frames.
    pub(crate) fn new(frames: Bitset<'static>) -> Self {
        Self { frames, notes: Notes::new(), longest_unnoted: 0, walked: 0, gone: 0 }
    }

    /// How many free frames there are.
    pub(crate) fn count(&self) -> usize {
        self.frames.free_frames()
    }

    /// Adds frames that are not there yet.
    #[inline(never)]
    pub(crate) fn give(&mut self, first: FrameId, frames: usize) {
        let given = self.frames.free_range(first, frames);
        debug_assert!(given.is_ok(), "they are there already");
        let Some((start, length)) = self.frames.free_run_around(first) else { return };
        let run = Span { start: start.0, end: start.0 + length };
        self.forget(run);
        self.note(run);
    }

    /// Takes `frames` frames from `first` on. `false`, with nothing changed, if one of them is
    /// missing.
    #[inline(never)]
    pub(crate) fn take_at(&mut self, first: FrameId, frames: usize) -> bool {
        let taken = self.frames.reserve(first, frames).is_ok();
        if taken {
            self.note_taken(first.0, frames);
        }
        taken
    }

    /// Takes the lowest `frames` frames at a multiple of `align`.
    pub(crate) fn take_lowest(&mut self, frames: usize, align: usize) -> Option<FrameId> {
        let first = lowest_range(&mut self.frames, frames, align).ok()?;
        self.note_taken(first.0, frames);
        Some(first)
    }

    /// Takes the frames of a slab: the lowest place. If that would leave frames in front of it, up
    /// to fifteen that no slab fits into, takes the last place in the same run and unit instead. So
    /// in a unit where a program grows by runs and slabs in turn, the runs follow each other from
    /// the front on, and the slabs from the end.
    pub(crate) fn take_for_slab(&mut self) -> Option<FrameId> {
        let lowest = self.take_lowest(SLAB_FRAMES, SLAB_FRAMES)?;
        let has_before = lowest.0 > 0 && self.frames.is_free(FrameId(lowest.0 - 1));
        if has_before { self.take_last_instead(lowest) } else { Some(lowest) }
    }

    #[inline(never)]
    fn take_last_instead(&mut self, lowest: FrameId) -> Option<FrameId> {
        self.give(lowest, SLAB_FRAMES);
        let (start, length) = self.frames.free_run_around(lowest)?;
        let unit_end = align_down(lowest.0, UNIT_FRAMES) + UNIT_FRAMES;
        let end = align_down((start.0 + length).min(unit_end), SLAB_FRAMES);
        let last = FrameId(end - SLAB_FRAMES);
        self.take_at(last, SLAB_FRAMES).then_some(last)
    }

    /// Takes `frames` frames at a multiple of `align` out of the shortest run that has as many.
    pub(crate) fn take_best(&mut self, frames: usize, align: usize) -> Option<FrameId> {
        if frames <= SHORT_FRAMES {
            return self.take_lowest(frames, align);
        }
        let mut best = self.best(frames, align);
        if best.is_none() && frames <= self.longest_unnoted {
            // A request in vain counts, too: if all notes have gone, no more can go.
            self.gone += 1;
            if self.gone >= GONE.max(self.walked / STEPS_EACH) {
                self.note_all();
                best = self.best(frames, align);
            }
        }
        if best.is_none() && frames <= self.longest_unnoted && self.notes.len() == NOTED {
            return self.take_unnoted(frames, align);
        }
        best.filter(|&first| self.take_at(first, frames))
    }

    /// As [`take_lowest`](Self::take_lowest), if no noted run fits: walks over all runs, under the
    /// backend's lock. If none fits, remembers that, so that the next request does not walk in
    /// vain, too.
    #[cold]
    #[inline(never)]
    fn take_unnoted(&mut self, frames: usize, align: usize) -> Option<FrameId> {
        let first = self.take_lowest(frames, align);
        if first.is_none() {
            // A run one frame longer has such a place wherever it begins.
            self.longest_unnoted = self.longest_unnoted.min(frames + align - 2);
        }
        first
    }

    /// Whether [`take_best`](Self::take_best) finds `frames` frames at a multiple of `align`, as
    /// far as is noted.
    pub(crate) fn may_fit(&self, frames: usize, align: usize) -> bool {
        self.best(frames, align).is_some() || frames <= SHORT_FRAMES.max(self.longest_unnoted)
    }

    /// Where `frames` frames at a multiple of `align` begin in the shortest noted run that has as many.
    fn best(&self, frames: usize, align: usize) -> Option<FrameId> {
        self.notes.best(frames, align).map(FrameId)
    }

    /// Takes `frames` frames at a multiple of `frames` out of the last noted run that has them.
    pub(crate) fn take_block(&mut self, frames: usize) -> Option<FrameId> {
        let block = |note: Span| {
            let first = align_down(note.end, frames).checked_sub(frames)?;
            (first >= note.start).then_some(first)
        };
        let first = FrameId(self.notes.iter().filter_map(block).max()?);
        self.take_at(first, frames).then_some(first)
    }

    /// The longest run that is noted: its first frame and its length.
    #[inline(never)]
    pub(crate) fn longest(&self) -> Option<(FrameId, usize)> {
        self.noted().max_by_key(|&(first, length)| (length, first))
    }

    /// The runs that are noted: the first frame of each and its length.
    pub(crate) fn noted(&self) -> impl Iterator<Item = (FrameId, usize)> {
        self.notes.iter().map(|note| (FrameId(note.start), note.length()))
    }

    /// The run of free frames around `frame`, if `frame` is free: its first frame and its length.
    pub(crate) fn run_around(&self, frame: FrameId) -> Option<(FrameId, usize)> {
        self.frames.free_run_around(frame)
    }

    /// The last run that begins before `before`, cut off there: its first frame and its length.
    pub(crate) fn last_run(&self, before: FrameId) -> Option<(FrameId, usize)> {
        self.frames.previous_free_run(before)
    }

    /// Corrects the notes after frames of one run were taken.
    fn note_taken(&mut self, first: usize, frames: usize) {
        let end = first + frames;
        let Some(old) = self.forget(Span { start: first, end }) else { return };
        self.note(Span { start: old.start, end: first });
        self.note(Span { start: end, end: old.end });
    }

    /// Drops the notes of runs that overlap `span`. Returns one of them.
    fn forget(&mut self, span: Span) -> Option<Span> {
        let (dropped, count) = self.notes.drop_overlapping(span);
        self.gone += count;
        dropped
    }

    /// Notes a run. If there is no room, it takes the place of the shortest.
    #[inline(never)]
    fn note(&mut self, span: Span) {
        if span.length() > SHORT_FRAMES
            && let Some(unnoted) = self.notes.add(span)
        {
            self.longest_unnoted = self.longest_unnoted.max(unnoted.length());
        }
    }

    /// Notes the longest of all runs anew.
    #[cold]
    #[inline(never)]
    fn note_all(&mut self) {
        self.notes.clear();
        (self.longest_unnoted, self.walked, self.gone) = (0, 0, 0);
        let mut from = FrameId(0);
        while let Some((first, length)) = self.frames.next_free_run(from) {
            from = FrameId(first.0 + length);
            self.note(Span { start: first.0, end: from.0 });
            self.walked += 1;
        }
    }

    /// Whether `frame` is free. For tests.
    #[cfg(any(test, feature = "validate"))]
    pub(crate) fn has(&self, frame: FrameId) -> bool {
        self.frames.is_free(frame)
    }

    /// Panics unless the invariants hold. For tests.
    #[cfg(any(test, feature = "validate"))]
    pub(crate) fn validate(&self) {
        self.frames.validate().expect("the dirty frames");
        for run in self.noted() {
            let end = FrameId(run.0.0 + run.1);
            assert_eq!(self.frames.next_free_run(run.0), Some(run), "a note");
            assert_eq!(self.frames.previous_free_run(end), Some(run), "a note");
            assert!(run.1 > SHORT_FRAMES);
            assert_eq!(self.noted().filter(|&other| other == run).count(), 1, "noted twice");
        }
        let mut from = FrameId(0);
        while let Some((first, length)) = self.frames.next_free_run(from) {
            let is_noted = self.noted().any(|run| run == (first, length));
            assert!(is_noted || length <= self.longest_unnoted.max(SHORT_FRAMES), "not noted");
            from = FrameId(first.0 + length);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec;
    use std::vec::Vec;

    use hectare_check::Random;

    use super::*;

    /// Room for `frames` frames, none of which is free.
    fn none_of(frames: usize) -> DirtyFrames {
        let words = vec![0; Bitset::metadata_words(frames)].leak();
        DirtyFrames::new(Bitset::new(frames, words).expect("enough words"))
    }

    /// The runs of set places: the first place and the length of each.
    fn runs(free: &[bool]) -> Vec<(usize, usize)> {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for frame in (0..free.len()).filter(|&frame| free[frame]) {
            match runs.last_mut() {
                Some((first, length)) if *first + *length == frame => *length += 1,
                _ => runs.push((frame, 1)),
            }
        }
        runs
    }

    /// Where a slab goes: the lowest place; but the last in the run and unit, if a dirty frame lies
    /// in front of the lowest.
    fn place_for_slab(free: &[bool]) -> Option<usize> {
        let is_place = |&first: &usize| free[first..first + SLAB_FRAMES].iter().all(|&free| free);
        let mut places =
            (0..free.len() / SLAB_FRAMES).map(|slab| slab * SLAB_FRAMES).filter(is_place);
        let lowest = places.next()?;
        if lowest == 0 || !free[lowest - 1] {
            return Some(lowest);
        }
        let follows = |&(nth, first): &(usize, usize)| {
            first == lowest + (nth + 1) * SLAB_FRAMES && first / UNIT_FRAMES == lowest / UNIT_FRAMES
        };
        Some(places.enumerate().take_while(follows).last().map_or(lowest, |(_, last)| last))
    }

    #[test]
    fn takes_what_a_shadow_says() {
        const FRAMES: usize = 4000;
        let mut random = Random::new(5);
        let mut dirty = none_of(FRAMES);
        let mut free = [false; FRAMES];
        let (mut fitted, mut slabs) = (0, 0);
        for _ in 0..20_000 {
            let first = random.below(FRAMES);
            let frames = (1 + random.below(100)).min(FRAMES - first);
            match random.below(5) {
                0 | 1 => {
                    // What is taken around there goes back.
                    let taken = (first..first + frames).filter(|&frame| !free[frame]);
                    for frame in taken.collect::<Vec<_>>() {
                        dirty.give(FrameId(frame), 1);
                        free[frame] = true;
                    }
                }
                2 => {
                    let is_there = free[first..first + frames].iter().all(|&free| free);
                    assert_eq!(dirty.take_at(FrameId(first), frames), is_there);
                    if is_there {
                        free[first..first + frames].fill(false);
                    }
                }
                3 => {
                    let taken = dirty.take_for_slab().map(|first| first.0);
                    assert_eq!(taken, place_for_slab(&free));
                    if let Some(first) = taken {
                        free[first..first + SLAB_FRAMES].fill(false);
                        slabs += 1;
                    }
                }
                _ => {
                    let frames = SHORT_FRAMES + frames;
                    let long = runs(&free).into_iter().filter(|run| run.1 > SHORT_FRAMES);
                    let is_known = long.clone().count() < NOTED;
                    let best = long.filter(|run| run.1 >= frames).min_by_key(|run| run.1);
                    let taken = dirty.take_best(frames, 1).map(|first| first.0);
                    if is_known {
                        assert_eq!(taken, best.map(|run| run.0), "{frames} frames");
                        fitted += usize::from(best.is_some());
                    }
                    if let Some(first) = taken {
                        assert!(free[first..first + frames].iter().all(|&free| free));
                        free[first..first + frames].fill(false);
                    }
                }
            }
            assert_eq!(dirty.count(), free.iter().filter(|&&free| free).count());
            dirty.validate();
        }
        assert!(fitted > 1000 && slabs > 1000, "{fitted}, {slabs}");
    }

    #[test]
    fn runs_and_slabs_in_turn_leave_little_of_a_unit() {
        for frames in SHORT_FRAMES + 1..64 {
            let mut dirty = none_of(3 * UNIT_FRAMES);
            dirty.give(FrameId(UNIT_FRAMES), UNIT_FRAMES);
            while dirty.take_for_slab().is_some() && dirty.take_best(frames, 1).is_some() {}
            while dirty.take_for_slab().is_some() {}
            assert!(dirty.count() < SLAB_FRAMES, "{} beside runs of {frames}", dirty.count());
            dirty.validate();
        }
    }

    /// Runs that were not noted and have since gone cause one walk over all runs, not one at each request.
    #[test]
    fn what_is_not_there_is_looked_for_once() {
        const RUNS: usize = 64 * NOTED;
        let mut dirty = none_of(2 * RUNS * 64);
        (0..RUNS).for_each(|run| dirty.give(FrameId(run * 64), 32));
        // With this many runs, more than are noted must go before they are walked over again.
        dirty.note_all();
        (RUNS..=RUNS + NOTED).for_each(|run| dirty.give(FrameId(run * 64), 48));
        for run in RUNS..=RUNS + NOTED {
            assert!(dirty.take_at(FrameId(run * 64), 48));
        }
        (RUNS..RUNS + NOTED).for_each(|run| dirty.give(FrameId(run * 64), 32));
        assert!(dirty.may_fit(40, 1), "the bound is not stale");
        assert_eq!(dirty.take_best(40, 1), None);
        assert!(!dirty.may_fit(40, 1), "it is looked for again");
        assert!(dirty.take_best(30, 1).is_some());
        dirty.validate();
    }

    /// Of far more runs than are noted, all are found in time, although not every request pays for
    /// a walk.
    #[test]
    fn of_many_runs_none_is_lost() {
        const RUNS: usize = 64 * NOTED;
        let mut dirty = none_of(RUNS * 32);
        (0..RUNS).for_each(|run| dirty.give(FrameId(run * 32), 30));
        let requests = (0..4 * RUNS).filter(|_| dirty.take_best(30, 1).is_some());
        assert_eq!(requests.count(), RUNS);
        assert_eq!(dirty.count(), 0);
        dirty.validate();
    }

    #[test]
    fn a_short_request_takes_the_lowest_place() {
        let mut dirty = none_of(200);
        for (first, frames) in [(100, 40), (20, 3), (50, 30)] {
            dirty.give(FrameId(first), frames);
        }
        assert_eq!(dirty.take_best(4, 4), Some(FrameId(52)));
        assert_eq!(dirty.take_best(3, 1), Some(FrameId(20)));
        assert_eq!(dirty.take_best(30, 1), Some(FrameId(100)));
        dirty.validate();
    }

    /// Of more runs than are noted, each is found once those before it have been taken.
    #[test]
    fn what_had_no_room_is_found_later() {
        const RUNS: usize = 5 * NOTED;
        let mut dirty = none_of(RUNS * 32);
        for run in 0..RUNS {
            dirty.give(FrameId(run * 32), 30);
        }
        for taken in 0..RUNS {
            assert!(dirty.take_best(30, 16).is_some(), "after {taken}");
            dirty.validate();
        }
        assert_eq!(dirty.take_best(30, 16), None);
    }
}
