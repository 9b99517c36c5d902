//! Where the slabs of growing classes come from: blocks of a huge page.
//!
//! A page fault costs more than all that a slab's objects cost afterwards, and one fault for two
//! mebibytes costs what a hundred cost for four kibibytes. Slabs that follow many others are going
//! to be filled: so for them a block is taken as a whole, which comes by its first touch and is
//! dirty memory from then on, under the rules of that. Runs do not ask for one: of a large object a
//! program may never touch but a part.
//!
//! A block is opened where no slab's worth of memory is dirty. A run of a page among the slabs leaves
//! fifteen frames that no slab fits into, though: so a class that will fill a whole block by itself gets
//! one in spite of such pieces, as long as they are few and the heap has never shrunk. (In one that
//! has, pieces come and go, and each time a block would be opened for what they could hold.) Where huge
//! pages are asked for anyhow it does without: there the next slab is part of the last one.

use hectare_buddy::{FrameAllocator, FrameId};
use hectare_pages::PageSource;

use super::units::UNIT_FRAMES;
use super::{
    FRAME_BYTES, HUGE_PAGE_BYTES, Refusal, Region, RegionView, Run, SLAB_BYTES, SLAB_FRAMES,
    take_range,
};

/// Once so much has been touched, a block is but a fraction of the whole: a small program does not
/// grow.
const BLOCKS_FROM_BYTES: usize = 4 << 20;

/// A class that has so many slabs is growing: the next is going to be filled.
const SIBLINGS_OF_GROWTH: usize = 12;

/// A class that has as many slabs as a block fills one by itself.
const SIBLINGS_OF_BLOCK: usize = HUGE_PAGE_BYTES / SLAB_BYTES;

/// Pieces of dirty memory are few up to so many frames.
const FEW_FRAMES: usize = (1 << 20) / FRAME_BYTES;

impl Region {
    /// Takes the frames of a slab of a class that has `siblings`.
    pub(super) fn take_slab(
        &mut self,
        siblings: usize,
        source: &impl PageSource,
        view: &RegionView,
    ) -> Result<Run, Refusal> {
        if self.wants_block(siblings) {
            self.open_block(source, view);
        }
        self.take_run(SLAB_FRAMES, SLAB_FRAMES, false, source, view)
    }

    /// Whether a block is the place for the next slab of a class that has `siblings`.
    fn wants_block(&self, siblings: usize) -> bool {
        let dirty = self.dirty_frames();
        if dirty < SLAB_FRAMES {
            return siblings >= SIBLINGS_OF_GROWTH;
        }
        siblings >= SIBLINGS_OF_BLOCK
            && !self.is_huge_from(FrameId(self.touched))
            && dirty <= FEW_FRAMES
            && self.dirty.longest().is_none_or(|(_, frames)| frames < SLAB_FRAMES)
            && self.left_frames() < UNIT_FRAMES
    }

    /// How many clean frames were passed over by those in use, or went back.
    fn left_frames(&self) -> usize {
        let untouched = self.bytes / FRAME_BYTES - self.touched;
        self.clean.free_frames() - untouched
    }

    /// Makes a block of clean memory dirty, if that is worth it and there is one.
    fn open_block(&mut self, source: &impl PageSource, view: &RegionView) {
        if self.touched < BLOCKS_FROM_BYTES / FRAME_BYTES || !self.has_units(source) {
            return;
        }
        let Ok(first) = take_range(&mut self.clean, UNIT_FRAMES, UNIT_FRAMES) else { return };
        let end = first.0 + UNIT_FRAMES;
        // One that was in use before would not come as a whole.
        if first.0 < self.touched || self.reach(end, source, view).is_err() {
            return self.give_clean(first, UNIT_FRAMES);
        }
        self.touched = end;
        // SAFETY: frames of this region, committed by `reach`.
        unsafe { source.advise_huge(self.at(first), HUGE_PAGE_BYTES, true) };
        // SAFETY: as above. Its first touch, before others can get slabs of it: the kernel clears a
        // huge page before it looks whether another thread has done so meanwhile.
        unsafe { source.populate(self.at(first), FRAME_BYTES) };
        if !self.is_huge_from(first) {
            // From now on as the memory around it: of what goes back, the kernel would else make a huge
            // page again.
            // SAFETY: as above.
            unsafe { source.advise_huge(self.at(first), HUGE_PAGE_BYTES, false) };
        }
        self.give(self.at(first), UNIT_FRAMES);
    }
}
