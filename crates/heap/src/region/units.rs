//! Runs that will be filled, in whole units of clean frames to which dirty memory moves.
//!
//! ```text
//!   dirty, elsewhere:   ░░│▓▓▓▓▓▓│░░      ░│▓▓▓▓▓▓│░░░
//!                            │ pages move       │
//!   clean, taken:          │▓▓▓▓▓▓│▓▓▓▓▓▓│ fresh │     units of a huge page each
//!   the run:               │▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│░░░│     what is left of the last one is dirty
//! ```
//! A request for which no dirty run is long enough would take clean frames, which fault, while the
//! dirty frames left over go back to the system. Memory would be zeroed anew although there is
//! enough of it. To have the system move a unit's pages elsewhere costs some 5 µs. To fault a unit
//! in costs 360 as a huge page and 1,100 page by page (Linux 6.18, a virtual machine at a slow
//! time: a fault of 4 KiB, usually 1.4 µs, took 2.1;
//! `cargo bench -p hectare-pages --features os --bench calls`).
//!
//! Where huge pages are asked for, a unit comes as a whole by its first touch. So the part of the
//! last unit that the run does not need counts as dirty memory, and the next run begins there if
//! the unit behind is clean. Elsewhere huge pages are asked for only in the units that the run
//! fills by itself, and in its last one if it fills seven eighths of it. A run that fills no unit
//! begins none there.

use hectare_base::align::align_up;
use hectare_buddy::{FrameId, RangeAllocator};
use hectare_pages::PageSource;

use super::taking::Request;
use super::{FRAME_BYTES, HUGE_PAGE_BYTES, Region, Run, lowest_range};

/// Frames of a huge page.
pub(crate) const UNIT_FRAMES: usize = HUGE_PAGE_BYTES / FRAME_BYTES;

/// A run of at least this many frames is worth a unit of its own wherever it lies: seven eighths of
/// one.
pub(super) const NEARLY_UNIT_FRAMES: usize = UNIT_FRAMES - UNIT_FRAMES / 8;

/// What the frames are that a run does not need.
pub(super) enum Rest {
    Dirty,
    Clean,
}

#[cfg(test)]
mod tests;

impl Region {
    /// Takes a run that will be filled, and for which no dirty run is long enough, in clean units:
    /// behind dirty frames if possible, else in units alone.
    pub(super) fn take_units(
        &mut self,
        request: &Request,
        source: &impl PageSource,
    ) -> Option<Run> {
        let frames = request.frames;
        let is_for_units = request.align == 1 && request.is_filled();
        if !is_for_units || !self.is_worth_units(frames, source) || self.has_plain(frames) {
            return None;
        }
        self.take_beside(frames, source).or_else(|| self.take_whole_units(frames, source))
    }

    /// Whether a run of `frames` frames that will be filled is worth a unit, or part of one.
    fn is_worth_units(&self, frames: usize, source: &impl PageSource) -> bool {
        let fills_unit = frames >= NEARLY_UNIT_FRAMES;
        (fills_unit || self.is_huge_from(FrameId(self.touched_frames))) && self.has_units(source)
    }

    /// Whether a run of `frames` frames, too short for a unit of its own, has a place below where
    /// huge pages are asked for: what others have left of units that they do not fill. That would
    /// stay empty if one more unit came for this run.
    fn has_plain(&mut self, frames: usize) -> bool {
        if frames >= NEARLY_UNIT_FRAMES {
            return false;
        }
        let limit = self.huge.start() / FRAME_BYTES;
        let place = self.clean.alloc_range(frames, 1, limit);
        place.is_ok_and(|first| {
            self.give_clean(first, frames);
            true
        })
    }

    /// Takes a run in clean units alone, to which dirty units move. What the run leaves of the last
    /// unit is dirty if its memory is there: if it has moved, or comes with the run.
    #[inline(never)]
    fn take_whole_units(&mut self, frames: usize, source: &impl PageSource) -> Option<Run> {
        let whole = align_up(frames, UNIT_FRAMES);
        let first = self.take_clean_units(frames, whole)?;
        let again_frames = self.touched_of(first, whole);
        self.touch_clean(first, whole, source).ok()?;
        let moved = self.move_dirty(first, whole, source)?;
        let left = whole - frames;
        let comes_whole = self.is_huge_from(first) || left <= UNIT_FRAMES - NEARLY_UNIT_FRAMES;
        let asked = if comes_whole { whole } else { whole - UNIT_FRAMES };
        self.ask_for_units(FrameId(first.0 + moved), asked.saturating_sub(moved), source);
        let is_there = comes_whole || moved == whole;
        let rest = if is_there { Rest::Dirty } else { Rest::Clean };
        self.give_rest(FrameId(first.0 + frames), left, rest);
        self.fresh = first.0 + moved..first.0 + whole;
        let bare_frames = whole - moved - if is_there { 0 } else { left };
        let start = self.at(first);
        let again_frames = again_frames.min(bare_frames);
        Some(Run { start, frames, clean: moved == 0, bare_frames, again_frames, huge: false })
    }

    /// Takes the `whole` clean frames of the units in which a run of `frames` lies. `None` if there
    /// are none, or if a short run would begin one that is not huge.
    fn take_clean_units(&mut self, frames: usize, whole: usize) -> Option<FrameId> {
        let first = lowest_range(&mut self.clean, whole, UNIT_FRAMES).ok()?;
        if frames < NEARLY_UNIT_FRAMES && !self.is_huge_from(first) {
            self.give_clean(first, whole);
            return None;
        }
        Some(first)
    }

    /// Gives back the `left` frames from `first` on, which a run does not need.
    pub(super) fn give_rest(&mut self, first: FrameId, left: usize, rest: Rest) {
        if left == 0 {
            return;
        }
        match rest {
            Rest::Dirty => self.give(self.at(first), left),
            Rest::Clean => self.give_clean(first, left),
        }
    }

    /// Takes dirty frames with clean units behind them, where huge pages are asked for. Otherwise
    /// what is left of a run's last huge page would stay empty, since the next run of its length
    /// does not fit there.
    #[inline(never)]
    fn take_beside(&mut self, frames: usize, source: &impl PageSource) -> Option<Run> {
        let (first, length, behind) = self.beside(frames)?;
        let (end, last) = (first.0 + length, first.0 + frames);
        let again_frames = self.touched_of(FrameId(end), behind);
        self.take_behind(FrameId(end), behind, source)?;
        let taken = self.dirty.take_at(first, length);
        debug_assert!(taken, "it is one of the dirty runs");
        // Within a unit, memory comes with what lies in front.
        let is_at_unit = end.is_multiple_of(UNIT_FRAMES);
        let moved =
            if is_at_unit { self.move_dirty(FrameId(end), behind, source) } else { Some(0) };
        let Some(moved) = moved else {
            self.give(self.at(first), length);
            return None;
        };
        if again_frames > 0 {
            self.ask_for_units(FrameId(end + moved), behind - moved, source);
        }
        let left = end + behind - last;
        self.give_rest(FrameId(last), left, Rest::Dirty);
        // The run is fresh if its front is, and if nothing has moved behind that.
        if moved > 0 || !self.fresh.contains(&first.0) {
            self.fresh.start = last.max(end + moved);
        }
        self.fresh.end = last + left;
        let bare_frames = behind - moved;
        let again_frames = again_frames.min(bare_frames);
        Some(Run { bare_frames, again_frames, ..Run::holding(self.at(first), frames) })
    }

    /// The dirty run to lengthen to `frames` frames by the fewest clean units: its first frame, its
    /// length and how many clean frames to take behind it.
    fn beside(&self, frames: usize) -> Option<(FrameId, usize, usize)> {
        let last = self.dirty.last_run(FrameId(self.touched_frames));
        let runs = self.dirty.noted().chain(last);
        let found = runs.filter_map(|(first, length)| {
            self.units_behind(first.0, length, frames).map(|behind| (first, length, behind))
        });
        found.min_by_key(|&(_, length, behind)| (behind, core::cmp::Reverse(length)))
    }

    /// How many clean frames behind the dirty run of `length` frames at `first`, up to the end of a
    /// unit, make it one of `frames`.
    #[inline(never)]
    fn units_behind(&self, first: usize, length: usize, frames: usize) -> Option<usize> {
        let end = first + length;
        let is_at_unit = end.is_multiple_of(UNIT_FRAMES) || end == self.touched_frames;
        if length >= frames || !is_at_unit || !self.is_huge_from(FrameId(end)) {
            return None;
        }
        let behind = align_up(first + frames, UNIT_FRAMES) - end;
        let (start, clean) = self.clean.free_run_around(FrameId(end))?;
        (start.0 + clean >= end + behind).then_some(behind)
    }
}
