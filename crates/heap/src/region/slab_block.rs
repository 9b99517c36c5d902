//! Where the slabs of growing classes come from: blocks of a huge page.
//!
//! A page fault costs more than all that a slab's objects cost afterwards, and one fault for two
//! mebibytes costs what a hundred cost for four kibibytes. Slabs that follow many others are going
//! to be filled: so for them a block is taken as a whole, which comes by its first touch and is
//! dirty memory from then on, under the rules of that. Runs do not ask for one: of a large object a
//! program may never touch but a part.

use hectare_pages::PageSource;

use super::units::UNIT_FRAMES;
use super::{
    FRAME_BYTES, HUGE_PAGE_BYTES, Refusal, Region, RegionView, Run, SLAB_FRAMES, take_range,
};

/// Once so much has been touched, a block is but a fraction of the whole: a small program does not
/// grow.
const BLOCKS_FROM_BYTES: usize = 4 << 20;

/// A class that has so many slabs is growing: the next is going to be filled.
const SIBLINGS_OF_GROWTH: usize = 12;

impl Region {
    /// Takes the frames of a slab of a class that has `siblings`.
    pub(super) fn take_slab(
        &mut self,
        siblings: usize,
        source: &impl PageSource,
        view: &RegionView,
    ) -> Result<Run, Refusal> {
        if siblings >= SIBLINGS_OF_GROWTH && self.dirty_frames() < SLAB_FRAMES {
            self.open_block(source, view);
        }
        self.take_run(SLAB_FRAMES, SLAB_FRAMES, false, source, view)
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
        self.give(self.at(first), UNIT_FRAMES);
    }
}
