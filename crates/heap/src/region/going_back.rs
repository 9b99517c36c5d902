//! How parts of a region go back to the system.

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU8;

use hectare_base::align::{align_down, align_up};
use hectare_buddy::{FrameId, RangeAllocator};
use hectare_pages::PageSource;

use super::huge_pages::Advice;
use super::units::UNIT_FRAMES;
use super::{FRAME_BYTES, Region, RunEntry, SLAB_FRAMES};
use crate::leaving::{Gone, Leaving};
use crate::slab::{FarWords, SlabEntry};

impl Region {
    /// Takes dirty frames that are to go back: all hollow slabs, then other frames until at most
    /// `keep` are left, `leaving` is full, or `most` are taken. The highest go first, since the
    /// lowest are used next. Whole huge pages go before all others, since a huge page that has lost
    /// a part comes back page by page. For the same reason half as many more may stay as pieces of
    /// huge pages. Returns how many frames it took. They and their companions are neither dirty nor
    /// clean until [`settle`](Self::settle).
    #[inline(never)]
    pub(crate) fn leave(
        &mut self,
        keep: usize,
        most: usize,
        leaving: &mut Leaving,
        source: &impl PageSource,
    ) -> usize {
        let before = self.dirty_frames();
        self.hollow_slabs_leave(leaving, source);
        let hollow = before - self.dirty_frames();
        if before - hollow <= keep {
            return hollow;
        }
        self.uncache();
        let spared = self.take_fresh(keep);
        let keep = keep - spared.map_or(0, |(_, frames)| frames);
        let least = self.dirty.count().saturating_sub(most);
        let page_frames = source.page_bytes().div_ceil(FRAME_BYTES);
        let is_huge =
            !self.huge.is_hollow() && self.huge.start() < self.frontier_bytes && page_frames == 1;
        // Among many short runs the search for a unit would take longer than giving back what it
        // finds.
        if is_huge && self.dirty.longest().is_some_and(|(_, frames)| frames >= UNIT_FRAMES) {
            self.units_leave(UNIT_FRAMES, keep.max(least), leaving, source);
        }
        let spare = if is_huge { keep / 2 } else { 0 };
        self.units_leave(page_frames, (keep + spare).max(least), leaving, source);
        if let Some((first, frames)) = spared {
            self.dirty.give(first, frames);
        }
        before - self.dirty_frames()
    }

    /// Takes what is left of the last unit that came as a whole, if it is at most `keep` frames:
    /// the next runs begin there. If it went back before the first of them touched its own part, it
    /// would come back with that part all the same.
    fn take_fresh(&mut self, keep: usize) -> Option<(FrameId, usize)> {
        if self.fresh.is_empty() {
            return None;
        }
        let (start, length) = self.dirty.run_around(FrameId(self.fresh.end - 1))?;
        let end = align_up(self.fresh.end, UNIT_FRAMES);
        if start.0 <= align_down(self.fresh.start, UNIT_FRAMES) && start.0 + length >= end {
            // The whole unit is dirty, and can go. If it stayed, the units in front of it would go
            // instead, and the next long run would find room only behind it.
            return None;
        }
        let first = FrameId(start.0.max(self.fresh.start));
        let frames = (start.0 + length).min(self.fresh.end) - first.0;
        (frames <= keep && self.dirty.take_at(first, frames)).then_some((first, frames))
    }

    /// As [`leave`](Self::leave), for whole units of `unit` frames only.
    fn units_leave(
        &mut self,
        unit: usize,
        keep: usize,
        leaving: &mut Leaving,
        source: &impl PageSource,
    ) {
        let mut end = FrameId(self.touched_frames);
        while self.dirty.count() > keep
            && !leaving.is_full()
            && let Some((run, length)) = self.dirty.last_run(end)
        {
            let most = align_up(self.dirty.count() - keep, unit);
            let upper = align_down(run.0 + length, unit);
            let first = align_up(run.0, unit).max(upper.saturating_sub(most));
            end = FrameId(first);
            if first >= upper {
                end = run;
                continue;
            }
            let (first, frames) = (FrameId(first), upper - first);
            if !self.dirty.take_at(first, frames) {
                break;
            }
            self.add_leaving(leaving, first, frames, source);
        }
    }

    /// Adds frames that are neither dirty nor clean to those `leaving`, together with their
    /// companions, which are then no longer clean.
    #[inline(never)]
    pub(super) fn add_leaving(
        &mut self,
        leaving: &mut Leaving,
        first: FrameId,
        frames: usize,
        source: &impl PageSource,
    ) {
        let (start, all) = self.with_companions(first, frames, source);
        if all > frames {
            self.give_clean(first, frames);
            let taken = self.clean.reserve(start, all);
            debug_assert!(taken.is_ok(), "now all are clean");
        }
        leaving.add(self.at(start), all * FRAME_BYTES);
    }

    /// Makes clean what of `gone` went back to the system, and makes the rest dirty. Returns how
    /// many frames became dirty.
    #[inline(never)]
    pub(crate) fn settle(&mut self, gone: &Gone<'_>, source: &impl PageSource) -> usize {
        let before = self.dirty_frames();
        for range in gone.ranges {
            let (first, frames) = (FrameId(self.frame_of(range.start)), range.bytes / FRAME_BYTES);
            if gone.all {
                self.have_gone(first, frames, source);
            } else {
                // Once more, one by one, to learn which were refused: those that went go again.
                self.decommit_run(first, frames, source);
            }
        }
        self.dirty_frames() - before
    }

    /// Gives frames that nobody uses back to the system. They become clean, or dirty if the system
    /// refuses. Returns whether they went.
    #[inline(never)]
    pub(super) fn decommit_run(
        &mut self,
        first: FrameId,
        frames: usize,
        source: &impl PageSource,
    ) -> bool {
        let (start, all) = self.with_companions(first, frames, source);
        // SAFETY: in use by nobody, and below the frontier by invariant 2.
        let went = unsafe { source.decommit(self.at(start), all * FRAME_BYTES) }.is_ok();
        if went {
            self.have_gone(first, frames, source);
        } else {
            self.give(self.at(first), frames);
        }
        went
    }

    /// `frames` frames from `first` on, together with their *companions*: the clean frames beside
    /// them in the same huge pages. Companions have come with them unless they came page by page.
    /// Nobody knows of their memory, so it goes when the memory beside it does.
    fn with_companions(
        &self,
        first: FrameId,
        frames: usize,
        source: &impl PageSource,
    ) -> (FrameId, usize) {
        // What was set aside stays where it is, and is cleared instead.
        let stays = first.0 * FRAME_BYTES < self.set_aside_until_bytes;
        if stays || !self.is_huge_from(first) || !self.has_units(source) {
            return (first, frames);
        }
        let (mut start, mut end) = (first.0, first.0 + frames);
        let unit = align_down(start, UNIT_FRAMES);
        if unit < start
            && let Some((clean, _)) = self.clean.free_run_around(FrameId(start - 1))
        {
            start = clean.0.max(unit);
        }
        let whole = align_up(end, UNIT_FRAMES).min(self.frontier_frames());
        if end < whole
            && let Some((clean, length)) = self.clean.free_run_around(FrameId(end))
        {
            end = whole.min(clean.0 + length);
        }
        (FrameId(start), end - start)
    }

    /// Makes frames that have gone back to the system clean.
    fn have_gone(&mut self, first: FrameId, frames: usize, source: &impl PageSource) {
        self.paged_frames = 0;
        self.short_run_frames = 0;
        self.advise_units(first, frames, Advice::Plain, source);
        self.give_clean(first, frames);
        self.forget(first.0, frames, source);
    }

    /// Takes back an empty slab, `bare_frames` of whose frames hold no memory. (In a region too
    /// small for blocks, hollow slabs are not told apart.)
    pub(crate) fn give_slab(&mut self, start: NonNull<u8>, bare_frames: usize) {
        self.filling.forget(start);
        let is_hollow = 2 * bare_frames >= SLAB_FRAMES && self.has_blocks();
        if !is_hollow || !self.give_hollow_slab(FrameId(self.frame_of(start))) {
            self.give(start, SLAB_FRAMES);
        }
    }

    /// Gives back what has come into clean frames from `from` on as parts of huge pages, by a fault
    /// in another part or because the kernel made a huge page by itself. This includes frames
    /// behind what was touched, up to the end of the huge page.
    pub(super) fn decommit_clean(&self, mut from: FrameId, source: &impl PageSource) {
        let end = align_up(self.touched_frames, UNIT_FRAMES).min(self.frontier_frames());
        while let Some((first, length)) = self.clean.next_free_run(from)
            && first.0 < end
        {
            let frames = length.min(end - first.0);
            // A refusal leaves it as it is.
            // SAFETY: the frames are free, and below the frontier.
            let _ = unsafe { source.decommit(self.at(first), frames * FRAME_BYTES) };
            from = FrameId(first.0 + length);
        }
    }

    /// Gives back the metadata of the clean frames around the `frames` frames at `first`, which
    /// have just become clean, as far as it fills pages.
    fn forget(&self, first: usize, frames: usize, source: &impl PageSource) {
        let below = self.clean.previous_free_run(FrameId(first + frames));
        let above = self.clean.next_free_run(FrameId(first));
        let (Some((start, _)), Some((rest, length))) = (below, above) else { return };
        let (start, end) = (start.0, rest.0 + length);
        for (table, unit_frames, entry_bytes) in [
            (&self.page_map, 1, size_of::<AtomicU8>()),
            (&self.run_table, 1, size_of::<RunEntry>()),
            (&self.slabs, SLAB_FRAMES, size_of::<SlabEntry>()),
            (&self.far_words, SLAB_FRAMES, size_of::<FarWords>()),
        ] {
            let whole = start.div_ceil(unit_frames)..end / unit_frames;
            let changed = first / unit_frames..(first + frames).div_ceil(unit_frames);
            let bytes = |units: Range<usize>| units.start * entry_bytes..units.end * entry_bytes;
            table.forget(bytes(whole), bytes(changed), source);
        }
    }
}
