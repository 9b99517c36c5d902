//! Where slabs come from once there are many: blocks of a huge page, one after the other.
//!
//! A page fault costs more than all that a slab's objects cost afterwards, and one fault for two
//! mebibytes costs what a hundred cost for four kibibytes. Slabs that follow many others are going
//! to be filled: so they are cut from a block that is taken as a whole and comes by its first
//! touch. Runs are not: of a large object a program may never touch but a part.

use core::ops::Range;

use hectare_buddy::FrameId;
use hectare_pages::PageSource;

use super::{FRAME_BYTES, HUGE_PAGE_BYTES, Refusal, Region, RegionView, Run, SLAB_FRAMES};

/// From how many bytes of slabs on: what is untouched of the last block is then a fraction of the
/// whole, and a small program does not grow.
const BLOCKS_FROM_BYTES: usize = 2 << 20;

const BLOCK_FRAMES: usize = HUGE_PAGE_BYTES / FRAME_BYTES;

/// The slabs' share of a region. Guarded as the region is.
#[derive(Debug)]
pub(super) struct SlabBlock {
    /// The frames of the block that are left: neither free nor in use.
    left: Range<usize>,
    /// Frames of all slabs in use.
    used_frames: usize,
}

impl SlabBlock {
    pub(super) const fn new() -> Self {
        Self { left: 0..0, used_frames: 0 }
    }
}

impl Region {
    /// How many frames are left of the slabs' block. They hold memory, and are nobody's.
    pub(crate) fn block_frames(&self) -> usize {
        self.block.left.len()
    }

    /// Takes the frames of a slab: dirty ones if there are any; else of the block, if it `fills`.
    pub(super) fn take_slab(
        &mut self,
        fills: bool,
        source: &impl PageSource,
        view: &RegionView,
    ) -> Result<Run, Refusal> {
        if fills
            && self.dirty_frames() < SLAB_FRAMES
            && (!self.block.left.is_empty() || self.open_block(source, view))
        {
            let first = FrameId(self.block.left.start);
            self.block.left.start += SLAB_FRAMES;
            self.block.used_frames += SLAB_FRAMES;
            let start = self.at(first);
            return Ok(Run {
                start,
                frames: SLAB_FRAMES,
                clean: true,
                refaults: false,
                huge: true,
            });
        }
        let taken = self.take_run(SLAB_FRAMES, SLAB_FRAMES, source, view)?;
        self.block.used_frames += SLAB_FRAMES;
        Ok(taken)
    }

    /// Takes back the frames of a slab.
    pub(crate) fn give_slab(&mut self, start: core::ptr::NonNull<u8>) {
        self.block.used_frames -= SLAB_FRAMES;
        self.give(start, SLAB_FRAMES);
    }

    fn open_block(&mut self, source: &impl PageSource, view: &RegionView) -> bool {
        if self.block.used_frames < BLOCKS_FROM_BYTES / FRAME_BYTES
            || self.huge_from == usize::MAX
            || source.page_bytes() > FRAME_BYTES
            || !self.start.addr().get().is_multiple_of(HUGE_PAGE_BYTES)
        {
            return false;
        }
        let Ok(first) = super::take_range(&mut self.clean, BLOCK_FRAMES, BLOCK_FRAMES) else {
            return false;
        };
        let end = first.0 + BLOCK_FRAMES;
        // One that was in use before would not come as a whole.
        if first.0 < self.touched || self.reach(end, source, view).is_err() {
            self.give_clean(first, BLOCK_FRAMES);
            return false;
        }
        self.touched = end;
        // SAFETY: frames of this region, committed by `reach`.
        unsafe { source.advise_huge(self.at(first), HUGE_PAGE_BYTES, true) };
        self.block.left = first.0..end;
        true
    }

    /// Makes dirty memory of what is left of the block, which holds memory as a whole. Whether
    /// there was any.
    pub(super) fn close_block(&mut self) -> bool {
        let left = core::mem::replace(&mut self.block.left, 0..0);
        if left.is_empty() {
            return false;
        }
        self.give(self.at(FrameId(left.start)), left.len());
        true
    }
}
