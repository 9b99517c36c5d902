//! A region: reserved address space, and what the heap knows of each of its pages.
//!
//! ```text
//!   region:    │ committed, up to the frontier ──────▶│ reserved only …                │
//!   metadata:  page map   1 byte a frame: which class, or a run's first frame, or nothing
//!              run table  8 bytes a run's first frame: its length in frames, and whether a thread keeps it
//!              slabs      one descriptor for each SLAB_BYTES
//!              far words  for slabs of more objects than a descriptor has bits
//!              clean      frames that are free and read as zero          ┐ two bit-set
//!              dirty      frames that are free and still hold memory     ┘ buddy allocators
//! ```
//! | question | file |
//! |---|---|
//! | what can a thread read of a region without the lock? | `region/view.rs` |
//! | how does a region begin, how far is it committed, what does it give up of its address space? | `region/opening.rs`, `frontier.rs`, `table.rs`, `reserve.rs` |
//! | how is a run found, or lengthened in place? | `region/taking.rs`, `growing.rs` |
//! | where does a run come from if no dirty run is long enough? | `region/units.rs`, `moving.rs` |
//! | where do slabs and short runs come from if there is no dirty memory for them? | `region/block.rs` |
//! | where are huge pages asked for, and are they worth their price? | `region/huge_part.rs` (where), `huge_pages.rs` (when), `dear.rs` |
//! | do programs fill the runs that they take? | `region/filling.rs`, `probe.rs` |
//! | what goes back to the system, and how? | `region/going_back.rs`, `hollow_slabs.rs` |
//! | what happens to sealed frames that the system refuses to open? | `region/shut.rs` |
//!
//! Invariants
//! 1. A frame is free in `clean`, or free in `dirty`, or in a cached run, or in a hollow slab that
//!    waits, or shut, or leaving until it is settled, or in a block that is being opened, or lost
//!    by a move, or in use: never two of these.
//! 2. Every frame in use or dirty lies below the frontier. So do the parts of the page map, the run
//!    table and the slabs that describe it. A page of these that describes only frames given back
//!    was given back with them.
//! 3. What lies below `touched_frames` may have been used. The clean frames above never were.

mod block;
#[cfg(any(test, feature = "validate"))]
mod check;
mod dear;
mod filling;
mod frontier;
mod going_back;
mod growing;
mod hollow_slabs;
mod huge_pages;
mod huge_part;
mod moving;
mod opening;
mod probe;
mod reserve;
mod shut;
mod table;
mod taking;
#[cfg(test)]
mod tests;
mod units;
mod view;

use core::ops::Range;
use core::ptr::NonNull;

use hectare_buddy::{Bitset, Error, FrameAllocator, FrameId, Order, RangeAllocator};
use hectare_pages::PageSource;

use crate::class::SLAB_BYTES;
use crate::dirty::DirtyFrames;
use crate::run_cache::{Near, RunCache};

pub(crate) use block::Block;
use dear::DearBlocks;
use filling::Filling;
use hollow_slabs::HollowSlabs;
use huge_part::HugePart;
pub(crate) use probe::{Probe, Step};
pub(crate) use reserve::has_room;
use shut::Shut;
use table::Table;
pub(crate) use taking::{Blocks, Refusal, Run, Wanted};
pub(crate) use units::UNIT_FRAMES;
use view::RunEntry;
pub(crate) use view::{RegionView, SlabTable};

/// The size of a frame in bytes, the unit of runs. If the system's page is larger, runs are whole
/// pages of the system.
pub(crate) const FRAME_BYTES: usize = 4096;
/// The size of a huge page of the processor, as x86-64 and AArch64 with 4 KiB pages have it.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
pub(crate) const SLAB_FRAMES: usize = SLAB_BYTES / FRAME_BYTES;

/// The most bytes that a region has. The number of a frame, and twice that, must fit into 31 bits
/// (`dirty/notes.rs`, `region/shut.rs`).
pub(crate) const MOST_REGION_BYTES: usize = 4 << 40;
const _: () = assert!(2 * (MOST_REGION_BYTES / FRAME_BYTES) <= 1 << 31);

/// How much the cache of freed runs holds, 4 MiB, and how many runs of each length.
const MAX_CACHED_FRAMES: usize = 1024;
const CACHED_DEPTH: usize = 31;
type RegionCache = RunCache<CACHED_DEPTH>;

/// A region. Guarded by the backend's lock.
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<u8>,
    bytes: usize,
    /// How far the region is committed from the start.
    frontier_bytes: usize,
    /// How far it may have been used.
    touched_frames: usize,
    /// The frontier has moved, or there may be a new verdict (`region/filling.rs`): threads have
    /// not been shown this yet.
    has_news: bool,
    /// Where huge pages are asked for.
    huge: HugePart,
    /// Where what was set aside for the process ends, from the start; 0 if nothing was.
    set_aside_until_bytes: usize,
    /// Frames without memory that were taken for big runs that will be filled, each run counting
    /// for at most half of `MANY_FRAMES`. 0 again once a long run has come back untouched and gone.
    big_run_frames: usize,
    /// Clean frames that were taken page by page since any went back.
    paged_frames: usize,
    /// Frames that held no memory when they were taken for runs that are not big, since any went
    /// back.
    short_run_frames: usize,
    filling: Filling,
    /// What came with the last units and nobody has had since, in frames from the start.
    fresh: Range<usize>,
    /// The system has refused to move a unit, so none is moved any more.
    refuses_moves: bool,
    dear_blocks: DearBlocks,
    clean: Bitset<'static>,
    dirty: DirtyFrames,
    /// In the metadata, not here: a region is made on the stack of a thread that may have little of
    /// it.
    cached: &'static mut RegionCache,
    hollow_slabs: HollowSlabs,
    shut: Shut,
    page_map: Table,
    run_table: Table,
    slabs: Table,
    far_words: Table,
}

impl Region {
    /// How many frames are free and still hold memory. Hollow slabs count in full.
    pub(crate) fn dirty_frames(&self) -> usize {
        self.dirty.count() + self.cached.frames() + self.hollow_slabs.frames()
    }

    /// Whether there is room in dirty frames for a run of `frames` at a multiple of `align`, as far
    /// as is known.
    pub(crate) fn has_dirty(&self, frames: usize, align: usize) -> bool {
        self.dirty.may_fit(frames, align) || self.cached.frames() >= frames
    }

    /// How much longer than requested a cached run may be.
    pub(crate) fn near(&self) -> Near {
        if self.is_sparse() { Near::WIDE } else { Near::USUAL }
    }

    /// Takes back a large object's run. The next request of its length is likely to get it, so it
    /// is kept as it is. If there is no room, all other cached runs go.
    ///
    /// # Safety
    /// Nobody uses the memory of the run.
    pub(crate) unsafe fn give_run(
        &mut self,
        start: NonNull<u8>,
        frames: usize,
        source: &impl PageSource,
    ) {
        let first = self.frame_of(start);
        let were_untouched = self.filling.are_long_untouched();
        // SAFETY: the caller's promise; what was in use is committed.
        if unsafe { self.filling.probe(start, frames) } {
            self.has_news = true;
            if self.filling.are_long_untouched() && !were_untouched {
                return self.decommit_untouched(FrameId(first), frames, source);
            }
        }
        // SAFETY: as above.
        if unsafe { self.holds_for_nothing(start, frames, source) } {
            self.decommit_run(FrameId(first), frames, source);
            return;
        }
        if self.cached.frames() + frames > MAX_CACHED_FRAMES {
            self.uncache();
        }
        if !self.cached.push(first, frames) {
            self.give(start, frames);
        }
    }

    /// Lets all cached runs coalesce. Returns whether there were any.
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
        self.run_entry(start).frames()
    }

    /// Notes the length in frames of the run at `start`.
    pub(crate) fn set_run_length(&mut self, start: NonNull<u8>, frames: usize) {
        self.run_entry(start).note(frames);
    }

    fn run_entry(&self, start: NonNull<u8>) -> &RunEntry {
        // SAFETY: a frame in use lies below the frontier, and by invariant 2 the run table reaches as far.
        let entry = unsafe { self.run_table.start.cast::<RunEntry>().add(self.frame_of(start)) };
        // SAFETY: as above; entries are only ever reached as atomics.
        unsafe { entry.as_ref() }
    }

    fn at(&self, frame: FrameId) -> NonNull<u8> {
        // SAFETY: a frame number of this region's allocators is less than its frame count.
        unsafe { self.start.add(frame.0 * FRAME_BYTES) }
    }

    fn frame_of(&self, start: NonNull<u8>) -> usize {
        (start.addr().get() - self.start.addr().get()) / FRAME_BYTES
    }
}

/// Takes `frames` frames at a multiple of `align`, the lowest that fit, so that the frontier does
/// not run ahead of what is used. A slab, which is by far the most frequent request and a block of
/// the buddy system, takes the shorter way.
pub(crate) fn lowest_range(
    from: &mut Bitset<'_>,
    frames: usize,
    align: usize,
) -> Result<FrameId, Error> {
    match Order::for_frames(frames) {
        Some(order) if frames == order.frames() && align == frames => from.alloc(order),
        _ => from.alloc_range(frames, align, usize::MAX),
    }
}
