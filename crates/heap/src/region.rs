//! A region: reserved address space, and what the heap knows of each of its pages.
//!
//! ```text
//!   region:    │ committed, up to the frontier ──────▶│ reserved only …                │
//!   metadata:  page map   1 byte a frame: which class, or a run's first frame, or nothing
//!              run table  4 bytes a run's first frame: its length in frames
//!              slabs      one descriptor for each SLAB_BYTES
//!              far words  of those that have more objects than its own words have bits
//!              clean      frames that are free and read as zero          ┐ two bit-set
//!              dirty      frames that are free and still hold memory     ┘ buddy allocators
//! ```
//! Invariants
//! 1. A frame is free in `clean`, or free in `dirty`, or in a cached run, or shut, or in use: never two
//!    of these.
//! 2. Every frame in use or dirty lies below the frontier; so do the parts of the page map, the
//!    run table and the slabs that describe them.
//!    A page of those that describes nothing but frames given back was given back with them.
//! 3. What lies below `touched` may have been used; the clean frames above never were.

#[cfg(any(test, feature = "validate"))]
mod check;
mod dear;
mod filling;
mod frontier;
mod going_back;
mod huge_pages;
mod huge_part;
mod opening;
mod shut;
mod slab_block;
mod table;
#[cfg(test)]
mod tests;
mod units;
mod view;

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use hectare_base::align::align_down;
use hectare_buddy::{Bitset, FrameId, RangeAllocator};
use hectare_pages::PageSource;

use crate::class::SLAB_BYTES;
use crate::dirty::{DirtyFrames, take_range};
use crate::run_cache::{MAX_KEPT_FRAMES, Near, RunCache};

use dear::DearBlocks;
use filling::{Filling, SLAB_LOOK_FRAMES};
use huge_pages::LONG_FRAMES;
use huge_part::HugePart;
use shut::Shut;
pub(crate) use slab_block::Block;
use table::Table;
pub(crate) use units::UNIT_FRAMES;
pub(crate) use view::{RegionView, SlabTable};

/// The size of a frame in bytes, the unit of runs. Where the system's page is larger, runs are
/// whole pages of the system.
pub(crate) const FRAME_BYTES: usize = 4096;
/// The size of a huge page of the processor, as x86-64 and AArch64 with 4 KiB pages have it.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
pub(crate) const SLAB_FRAMES: usize = SLAB_BYTES / FRAME_BYTES;

/// A region. Guarded by the backend's lock.
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<u8>,
    bytes: usize,
    /// Committed bytes from the start.
    frontier: usize,
    /// In frames from the start.
    touched: usize,
    huge: HugePart,
    /// Clean frames that were taken for long runs.
    filled_frames: usize,
    /// Clean frames that were taken page by page since any went back.
    regrown_frames: usize,
    /// As many, for runs shorter than [`LONG_FRAMES`].
    run_frames: usize,
    filling: Filling,
    /// What came with the last units and nobody has had since, in frames from the start.
    fresh: Range<usize>,
    dear_blocks: DearBlocks,
    clean: Bitset<'static>,
    dirty: DirtyFrames,
    cached: RunCache<CACHED_DEPTH>,
    shut: Shut,
    page_map: Table,
    run_lengths: Table,
    slabs: Table,
    far_words: Table,
}

/// What frames are wanted for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wanted {
    /// A run of `frames` at a multiple of `align` frames. One that was kept may be a little longer.
    /// The caller is going to fill it, if it `fills`.
    Run { frames: usize, align: usize, fills: bool },
    /// A slab of a class that has `siblings`; of objects that have pages of their own, if it is `of_pages`.
    Slab { of_pages: bool, siblings: usize },
}

impl Wanted {
    /// In how many frames it finds a place wherever they begin.
    pub(crate) fn room_frames(self) -> usize {
        match self {
            Self::Run { frames, align, .. } => frames + align,
            Self::Slab { .. } => 2 * SLAB_FRAMES,
        }
    }
}

/// A run just taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub(crate) start: NonNull<u8>,
    /// At least as many as were asked for.
    pub(crate) frames: usize,
    /// It reads as zero.
    pub(crate) clean: bool,
    /// How many frames that hold no memory were taken for it.
    pub(crate) bare_frames: usize,
    /// How many of these are clean because they were decommitted, so that using them will fault once more.
    pub(crate) again_frames: usize,
    /// It comes as part of huge pages, each of them by its first touch.
    pub(crate) huge: bool,
}

impl Run {
    /// A run all of whose frames hold memory.
    fn holding(start: NonNull<u8>, frames: usize) -> Self {
        Self { start, frames, clean: false, bare_frames: 0, again_frames: 0, huge: false }
    }
}

/// Why a region had no run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No range of free frames is long enough: another region may have one.
    NoRange,
    /// There is a range, but the source has no memory for it: another region is no help.
    NoMemory,
    /// It is to come from a block, which is opened without the lock.
    Block,
}

impl Region {
    /// Frames that are free and still hold memory.
    pub(crate) fn dirty_frames(&self) -> usize {
        self.dirty.count() + self.cached.frames()
    }

    /// Whether there is a place for a run of `frames` of them at a multiple of `align`, as far as is known.
    pub(crate) fn has_dirty(&self, frames: usize, align: usize) -> bool {
        self.dirty.may_fit(frames, align) || self.cached.frames() >= frames
    }

    /// Committed bytes.
    pub(crate) fn frontier_bytes(&self) -> usize {
        self.frontier
    }

    /// Takes what is `wanted`: dirty frames if there are any, the lowest that fit. A caller that can open a
    /// block, `opens`, is told when it should.
    pub(crate) fn take(
        &mut self,
        wanted: Wanted,
        opens: bool,
        source: &impl PageSource,
        view: &RegionView,
    ) -> Result<Run, Refusal> {
        let frontier = self.frontier;
        let (run, looked_at_frames, is_plain) = match wanted {
            Wanted::Run { frames, align, fills } => {
                let is_plain = self.is_for_plain(frames);
                let is_filled = fills && !is_plain;
                let opens = opens && is_filled && self.wants_block_for_run(frames);
                let run = self.take_run(frames, align, is_filled, opens, source, view)?;
                if is_filled && run.bare_frames > 0 {
                    if frames >= LONG_FRAMES {
                        self.note_filled(run, source);
                    } else {
                        self.run_frames += run.bare_frames;
                    }
                }
                (run, if fills { run.frames } else { 0 }, is_plain)
            }
            Wanted::Slab { of_pages, siblings } => {
                let is_plain = of_pages && self.is_for_plain(SLAB_LOOK_FRAMES);
                let opens = opens && !is_plain && self.wants_block(siblings);
                let run = self.take_run(SLAB_FRAMES, SLAB_FRAMES, false, opens, source, view)?;
                (run, if of_pages { SLAB_LOOK_FRAMES } else { 0 }, is_plain)
            }
        };
        if self.note_fresh(&run) && looked_at_frames > 0 {
            self.filling.note_taken(run.start, looked_at_frames, source);
            view.set_bare_pages(self.is_for_plain(SLAB_LOOK_FRAMES));
            self.publish_near(view);
        }
        if is_plain {
            self.stay_plain(frontier, source);
        }
        Ok(run)
    }

    /// Tells threads how much longer than asked for a run may be that they have kept.
    fn publish_near(&self, view: &RegionView) {
        view.set_near(if self.is_sparse() { Near::WIDE } else { Near::USUAL });
    }

    /// Whether nobody has had the memory of a run that was just taken, as far as is known.
    fn note_fresh(&mut self, run: &Run) -> bool {
        let first = self.frame_of(run.start);
        let is_of_unit = self.fresh.contains(&first);
        if is_of_unit {
            self.fresh.start = first + run.frames;
        }
        is_of_unit || run.clean
    }

    fn take_run(
        &mut self,
        frames: usize,
        align: usize,
        fills: bool,
        opens: bool,
        source: &impl PageSource,
        view: &RegionView,
    ) -> Result<Run, Refusal> {
        // Frames are aligned from the region's start: that must be aligned as far.
        let align_bytes = align * FRAME_BYTES;
        if align_down(self.start.addr().get(), align_bytes) != self.start.addr().get() {
            return Err(Refusal::NoRange);
        }
        if align == 1
            && frames <= MAX_KEPT_FRAMES
            && let Some((first, frames)) = self.cached.pop(frames, view.near())
        {
            return Ok(Run::holding(self.at(FrameId(first)), frames));
        }
        if frames > MAX_KEPT_FRAMES {
            // For what is never kept, the kept ones are but holes in the ranges that it needs.
            self.uncache();
        }
        let grid = if align == 1 && self.is_for_sparse(frames) { SLAB_FRAMES } else { align };
        let dirty = self
            .take_dirty(frames, grid)
            .or_else(|| self.uncache().then(|| self.take_dirty(frames, grid))?);
        if let Some(first) = dirty {
            return Ok(Run::holding(self.at(first), frames));
        }
        if align == 1
            && fills
            && self.is_for_units(frames, source)
            && let Some(run) = self.take_units(frames, source, view)
        {
            return Ok(run);
        }
        if grid == 1
            && let Some((first, bare_frames)) = self.take_lengthened(frames, source, view)
        {
            if fills {
                let bare = FrameId(first.0 + frames - bare_frames);
                self.ask_for_units(bare, bare_frames, source);
            }
            return Ok(Run { bare_frames, ..Run::holding(self.at(first), frames) });
        }
        if opens {
            return Err(Refusal::Block);
        }
        let first = take_range(&mut self.clean, frames, grid)
            .or_else(|_| take_range(&mut self.clean, frames, align))
            .map_err(|_| Refusal::NoRange)?;
        let again_frames = self.touched_of(first, frames);
        self.touch_clean(first, frames, source, view)?;
        if fills {
            self.ask_for_units(first, frames, source);
        }
        let huge = again_frames == 0 && self.is_huge_from(first);
        let start = self.at(first);
        Ok(Run { start, frames, clean: true, bare_frames: frames, again_frames, huge })
    }

    /// How many of the `frames` frames from `first` on may have been used.
    fn touched_of(&self, first: FrameId, frames: usize) -> usize {
        self.touched.saturating_sub(first.0).min(frames)
    }

    /// Sees to it that clean frames just taken may be used; gives them back where memory is out.
    #[inline(never)]
    fn touch_clean(
        &mut self,
        first: FrameId,
        frames: usize,
        source: &impl PageSource,
        view: &RegionView,
    ) -> Result<(), Refusal> {
        let end = first.0 + frames;
        if self.reach(end, source, view).is_err() {
            self.give_clean(first, frames);
            return Err(Refusal::NoMemory);
        }
        self.touched = self.touched.max(end);
        self.regrown_frames += if self.is_huge_from(first) { 0 } else { frames };
        Ok(())
    }

    /// Takes dirty frames: a block for what is one, the best fit for other runs.
    fn take_dirty(&mut self, frames: usize, align: usize) -> Option<FrameId> {
        if frames == SLAB_FRAMES && align == SLAB_FRAMES {
            self.dirty.take_lowest(frames, align)
        } else {
            self.dirty.take_best(frames, align)
        }
    }

    /// Takes the longest dirty run with the clean frames behind it, if no more of these than dirty ones
    /// are wanted. Returns how many they are, too.
    fn take_lengthened(
        &mut self,
        frames: usize,
        source: &impl PageSource,
        view: &RegionView,
    ) -> Option<(FrameId, usize)> {
        let (start, length) = self.dirty.longest().filter(|&(_, length)| length >= frames / 2)?;
        let (behind, more) = (FrameId(start.0 + length), frames - length);
        self.take_behind(behind, more, source, view)?;
        self.dirty.take_at(start, length).then_some((start, more))
    }

    /// Takes the clean frames `first` and those behind it, if they are clean.
    #[inline(never)]
    fn take_behind(
        &mut self,
        first: FrameId,
        frames: usize,
        source: &impl PageSource,
        view: &RegionView,
    ) -> Option<()> {
        let has_room = first.0 + frames <= self.bytes / FRAME_BYTES;
        if !has_room || self.clean.reserve(first, frames).is_err() {
            return None;
        }
        self.touch_clean(first, frames, source, view).ok()
    }

    /// Lengthens a run in place, if the frames behind it are free: what it got.
    pub(crate) fn extend(
        &mut self,
        run: NonNull<u8>,
        frames: usize,
        wanted: usize,
        source: &impl PageSource,
        view: &RegionView,
    ) -> Option<Run> {
        let behind = FrameId(self.frame_of(run) + frames);
        let more = wanted - frames;
        if behind.0 + more > self.bytes / FRAME_BYTES {
            return None;
        }
        if self.dirty.take_at(behind, more) {
            return Some(Run::holding(self.at(behind), more));
        }
        let again_frames = self.touched_of(behind, more);
        let start = self.at(behind);
        let bare_frames = if frames < MIXED_FRAMES {
            self.take_behind(behind, more, source, view)?;
            more
        } else {
            self.uncache();
            self.take_mixed(behind, more, source, view)?
        };
        let clean = bare_frames == more;
        let again_frames = again_frames.min(bare_frames);
        Some(Run { start, frames: more, clean, bare_frames, again_frames, huge: false })
    }

    /// Takes back a large object's run. The next of the same length is likely to be this one: so
    /// it is kept as it is, in place of all others if there is no room.
    ///
    /// # Safety
    /// Nobody uses what is in it.
    pub(crate) unsafe fn give_run(
        &mut self,
        start: NonNull<u8>,
        frames: usize,
        source: &impl PageSource,
        view: &RegionView,
    ) {
        let first = self.frame_of(start);
        let were_untouched = self.filling.are_long_untouched();
        // SAFETY: the caller's promise; what was in use is committed.
        if unsafe { self.filling.look(start, frames) } {
            if self.filling.are_long_untouched() && !were_untouched {
                return self.give_untouched(FrameId(first), frames, source);
            }
            self.publish_near(view);
        }
        if self.cached.frames() + frames > MAX_CACHED_FRAMES {
            self.uncache();
        }
        if !self.cached.push(first, frames) {
            self.give(start, frames);
        }
    }

    /// Lets all cached runs coalesce. Whether there were any.
    fn uncache(&mut self) -> bool {
        let any = self.cached.frames() > 0;
        let mut from = 0;
        while let Some((first, frames)) = self.cached.pop_any(&mut from) {
            self.give(self.at(FrameId(first)), frames);
        }
        any
    }

    /// Takes back frames that hold memory.
    pub(crate) fn give(&mut self, start: NonNull<u8>, frames: usize) {
        let first = FrameId(self.frame_of(start));
        self.dirty.give(first, frames);
    }

    /// Takes back frames that read as zero.
    #[inline(never)]
    fn give_clean(&mut self, first: FrameId, frames: usize) {
        let given = self.clean.free_range(first, frames);
        debug_assert!(given.is_ok(), "they are there already");
    }

    /// The length in frames that [`set_run_length`](Self::set_run_length) noted.
    pub(crate) fn run_length(&self, start: NonNull<u8>) -> usize {
        // SAFETY: by `length_entry`, the entry is committed.
        unsafe { self.length_entry(start).as_ref() }.load(Relaxed) as usize
    }

    /// Notes the length in frames of the run at `start`.
    pub(crate) fn set_run_length(&mut self, start: NonNull<u8>, frames: usize) {
        // SAFETY: by `length_entry`, the entry is committed.
        unsafe { self.length_entry(start).as_ref() }.store(frames as u32, Relaxed);
    }

    fn length_entry(&self, start: NonNull<u8>) -> NonNull<AtomicU32> {
        // SAFETY: a frame in use lies below the frontier, and the run table reaches as far.
        unsafe { self.run_lengths.start.cast::<AtomicU32>().add(self.frame_of(start)) }
    }

    fn at(&self, frame: FrameId) -> NonNull<u8> {
        // SAFETY: a frame number of this region's allocators is less than its frame count.
        unsafe { self.start.add(frame.0 * FRAME_BYTES) }
    }

    fn frame_of(&self, start: NonNull<u8>) -> usize {
        (start.addr().get() - self.start.addr().get()) / FRAME_BYTES
    }
}

/// From how many frames on, 8 MiB, a run grows by whatever is free behind it: a shorter one is copied for less
/// than what the pages would take that it would fault in, while there is dirty memory elsewhere.
const MIXED_FRAMES: usize = 2048;

/// How much the cache of freed runs holds, 4 MiB, and how many runs of each length.
const MAX_CACHED_FRAMES: usize = 1024;
const CACHED_DEPTH: usize = 31;
