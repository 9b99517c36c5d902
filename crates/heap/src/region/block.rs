//! Blocks: whole huge pages of clean memory that become dirty memory at once, for slabs of growing classes and for short runs.
//!
//! A page fault costs more than all that a slab's objects cost afterwards, and one fault for 2 MiB
//! costs as much as a hundred for 4 KiB. So if slabs or runs are going to be filled, and there is
//! no dirty memory for the next one, a block is opened. Its first touch brings all of it, and from
//! then on it is dirty memory like any other.
//!
//! # For whom a block is opened
//!
//! A slab that follows many others of its class is going to be filled. *Pieces* are dirty frames
//! that no slab fits into: a run of one page among slabs leaves fifteen.
//!
//! | for a slab of a class that has | once this much was touched | and what is dirty is |
//! |---|---|---|
//! | 8 slabs | 2 MiB | less than a slab |
//! | 4 slabs | 4 MiB | less than a slab |
//! | 5 slabs | 4 MiB | few pieces: 1 MiB, and half of what the class's slabs are, at most (1) |
//! | 20 slabs | 12 MiB | the same, instead of the row above (1) |
//! | 4 slabs | 16 MiB, and the heap grows again (2) | anything |
//!
//! Below 4 MiB a block is no small part of the whole. So it takes a program of few sizes, in which
//! the slabs of one size are a quarter of the whole, and which is not going to stay that small.
//! From 12 MiB on most classes have a few slabs. What the class leaves of its block serves the next
//! request of any class.
//!
//! A program may touch only a part of a run. So there must have been other runs of its kind, and
//! these must have been seen filled (`region/filling.rs`):
//!
//! | for a run shorter than a block, if | once this much was touched | and what is dirty is |
//! |---|---|---|
//! | 2 MiB of runs came page by page, half of all that was touched | 4 MiB | 1 MiB at most (3) |
//! | 2 MiB of runs came page by page | 8 MiB (4) | 1 MiB at most (3) |
//! | | 16 MiB, and the heap grows again (2) | anything |
//!
//! 1. Not in a heap that has shrunk. There, pieces come and go, and each time a block would be
//!    opened for what they could hold. And (also 3) not where huge pages are asked for anyway:
//!    there the next slab or run is part of the last huge page.
//! 2. While there are pieces, a heap that has shrunk grows page by page, since it may take only an
//!    object now and then. Once it has grown in this way by a block's worth, with nothing going
//!    back meanwhile, it really is growing.
//! 4. If this were from 4 or 6 MiB on, the peak of the cc1 trace would be a fifth higher.
//!
//! # Where a block lies
//!
//! In a heap that has shrunk, most units keep some slab in use, and their holes would come back
//! page by page. So the block is a unit that has gone as a whole, or a new one. The holes hold
//! nothing, and are passed over until the rest of their units is free, too. That takes address
//! space, so a new unit is opened only while the holes are at most three quarters of what was
//! touched.
//!
//! # Who opens a block
//!
//! The kernel clears the block at its first touch. Meanwhile the block is neither clean nor dirty
//! memory but the opener's, and the backend's lock is free. Other threads that want a block wait
//! for the opener, so that the heap is never more than a block ahead of what it needs. In a heap of
//! some size, threads on other CPUs open blocks of their own (`backend/blocks.rs`). They do not
//! help to touch this one, since the kernel clears a huge page before it checks whether another
//! thread has done so.

use core::ptr::NonNull;

use hectare_buddy::{FrameAllocator, FrameId};
use hectare_pages::PageSource;

use super::huge_part::HUGE_PAGES_FROM_BYTES;
use super::units::UNIT_FRAMES;
use super::{FRAME_BYTES, HUGE_PAGE_BYTES, Region, SLAB_FRAMES, lowest_range};

/// Once this much has been touched, a block is but a fraction of the whole, so no small program
/// grows by a block.
const BLOCKS_FROM_BYTES: usize = 4 << 20;

/// Up to this many frames, pieces of dirty memory are few.
const FEW_FRAMES: usize = (1 << 20) / FRAME_BYTES;

/// What is dirty when a slab needs memory and none of it will do.
#[derive(Debug, Clone, Copy)]
enum Pieces {
    /// Less than a slab.
    None,
    /// Few pieces, in a region that grows page by page and has not shrunk.
    Few,
    /// Any pieces, in a region that grows again.
    PassedOver,
    Many,
}

/// A block on its way from clean memory to dirty. It belongs to whoever has taken it.
#[derive(Debug)]
pub(crate) struct Block {
    start: NonNull<u8>,
    stays_huge: bool,
    /// The block held memory before, and gave it back.
    pub(crate) was_used: bool,
    /// There was room for its slabs in the holes of other units.
    pub(crate) passes_over: bool,
    /// The block's first page came alone: there are no huge pages, for this process or at the
    /// moment.
    pub(crate) came_apart: bool,
}

impl Block {
    /// Faults in the block's memory. This takes long, 100 to 360 µs, so it must not be called under
    /// a lock.
    pub(crate) fn touch(&mut self, source: &impl PageSource) {
        if !self.stays_huge {
            // SAFETY: committed, and in use by nobody else.
            unsafe { source.advise_huge(self.start, HUGE_PAGE_BYTES, true) };
        }
        if self.was_used {
            // What went in parts has left a page table behind. The table goes with the whole (since
            // Linux 6.14). A refusal leaves it as it is.
            // SAFETY: as above.
            let _ = unsafe { source.decommit(self.start, HUGE_PAGE_BYTES) };
        }
        // A write, not `populate`, which would hold the lock of all mappings meanwhile.
        // SAFETY: as above; it reads as zero, and still does afterwards.
        unsafe { self.start.write_volatile(0) };
        // SAFETY: the block's last page.
        let last = unsafe { self.start.add(HUGE_PAGE_BYTES - FRAME_BYTES) };
        self.came_apart = !self.was_used && source.is_resident(last) == Some(false);
        if self.was_used {
            // If the page table has stayed, the write has brought a single page.
            // SAFETY: as above.
            unsafe { source.populate(self.start, HUGE_PAGE_BYTES) };
        }
        if !self.stays_huge {
            // From now on the block gets the advice of the memory around it. Otherwise the kernel
            // would make a huge page again of what goes back.
            // SAFETY: as above.
            unsafe { source.advise_huge(self.start, HUGE_PAGE_BYTES, false) };
        }
    }
}

impl Region {
    /// Takes a block, if there is one.
    pub(crate) fn take_block(&mut self, source: &impl PageSource) -> Option<Block> {
        if !self.has_units(source) || self.dear_blocks.pass_slab() {
            return None;
        }
        self.decommit_hollow_slabs(source);
        let left = self.left_frames();
        let passes_over = self.has_shrunk();
        let first = lowest_range(&mut self.clean, UNIT_FRAMES, UNIT_FRAMES).ok()?;
        let end = first.0 + UNIT_FRAMES;
        let was_used = first.0 < self.touched_frames;
        let is_far = !was_used && left > self.touched_frames / 4 * 3;
        if is_far || self.touch(end, source).is_err() {
            self.give_clean(first, UNIT_FRAMES);
            return None;
        }
        let stays_huge = self.is_huge_from(first);
        Some(Block { start: self.at(first), stays_huge, was_used, passes_over, came_apart: false })
    }

    /// Makes a block dirty memory once it has been touched, which took `took_us`. A block that came
    /// apart goes back, and counts as dear as can be.
    pub(crate) fn give_block(&mut self, block: Block, took_us: u64, source: &impl PageSource) {
        let first = self.frame_of(block.start);
        let took_us = if block.came_apart { u64::MAX } else { took_us };
        if self.dear_blocks.note(took_us) {
            self.follow_price(source);
        }
        if block.came_apart {
            // As a whole: more than a page may have come; and while the block asks for huge pages,
            // one may yet come for a single slab.
            self.decommit_run(FrameId(first), UNIT_FRAMES, source);
            return;
        }
        self.give(block.start, UNIT_FRAMES);
        self.fresh = first..first + UNIT_FRAMES;
    }

    /// Whether a block is the place for the next slab of a class that has `siblings`, if no dirty
    /// frames serve it: the first table above.
    #[inline(never)]
    pub(super) fn wants_block(&self, siblings: usize) -> bool {
        let least_siblings = match (self.pieces_beside(siblings), self.touched_mib()) {
            (Pieces::None, 2..4) => 8,
            (Pieces::None, 4..) => 4,
            (Pieces::Few, 4..12) => 5,
            (Pieces::Few, 12..) => 20,
            (Pieces::PassedOver, _) => 4,
            _ => return false,
        };
        siblings >= least_siblings
    }

    /// What is dirty beside a class that has `siblings`. Few pieces are at most half as much as its
    /// slabs.
    fn pieces_beside(&self, siblings: usize) -> Pieces {
        let dirty = self.pieces_frames();
        if dirty < SLAB_FRAMES {
            Pieces::None
        } else if self.is_regrowing() {
            Pieces::PassedOver
        } else if 2 * dirty <= siblings * SLAB_FRAMES
            && self.has_few_dirty()
            && self.grows_by_pages()
            && !self.has_shrunk()
        {
            Pieces::Few
        } else {
            Pieces::Many
        }
    }

    /// Whether a block is the place for the next run of `frames` frames, if no dirty frames serve
    /// it: the second table above.
    #[inline(never)]
    pub(super) fn wants_block_for_run(&self, frames: usize) -> bool {
        let is_half_of_runs = 2 * self.short_run_frames >= self.touched_frames;
        let are_many = self.short_run_frames >= UNIT_FRAMES
            && self.touched_mib() >= if is_half_of_runs { 4 } else { 8 };
        let are_growing = are_many && self.has_few_dirty() && self.grows_by_pages();
        (are_growing || self.is_regrowing()) && frames < UNIT_FRAMES && self.is_for_filled(frames)
    }

    /// Whether only a few pieces are dirty.
    fn has_few_dirty(&self) -> bool {
        self.pieces_frames() <= FEW_FRAMES
    }

    /// How many frames are dirty and do not wait in hollow slabs to go back.
    fn pieces_frames(&self) -> usize {
        self.dirty_frames() - self.hollow_slabs.frames()
    }

    /// Whether the memory that the region touches next comes page by page.
    fn grows_by_pages(&self) -> bool {
        !self.is_huge_from(FrameId(self.touched_frames))
    }

    /// Whether a block's worth of what was touched is clean.
    fn has_shrunk(&self) -> bool {
        self.left_frames() >= UNIT_FRAMES
    }

    /// Whether a region of 16 MiB or more has grown page by page, by a block's worth or more, with
    /// nothing going back meanwhile.
    fn is_regrowing(&self) -> bool {
        self.paged_frames >= UNIT_FRAMES
            && self.touched_frames >= HUGE_PAGES_FROM_BYTES / FRAME_BYTES
    }

    /// Whether enough of the region was touched for blocks.
    pub(super) fn has_blocks(&self) -> bool {
        self.touched_frames >= BLOCKS_FROM_BYTES / FRAME_BYTES
    }

    /// How much of the region may have been used, in whole mebibytes.
    fn touched_mib(&self) -> usize {
        self.touched_frames / ((1 << 20) / FRAME_BYTES)
    }

    /// How many clean frames lie below what was touched: passed over, or given back.
    fn left_frames(&self) -> usize {
        let untouched = self.bytes / FRAME_BYTES - self.touched_frames;
        self.clean.free_frames() - untouched
    }
}
