//! A region: reserved address space, and what the heap knows of each of its pages.
//!
//! ```text
//!   region:    │ committed, up to the frontier ──────▶│ reserved only …                │
//!   metadata:  page map   1 byte a frame: which class, or a run's first frame, or nothing
//!              run table  4 bytes a run's first frame: its length in frames
//!              slabs      one descriptor for each SLAB_BYTES
//!              clean      frames that are free and read as zero          ┐ two bit-set
//!              dirty      frames that are free and still hold memory     ┘ buddy allocators
//! ```
//! Invariants
//! 1. A frame is free in `clean`, or free in `dirty`, or in a cached run, or in use: never two of
//!    these.
//! 2. Every frame in use or dirty lies below the frontier; so do the parts of the page map, the
//!    run table and the slabs that describe them.
//!    A page of those that describes nothing but frames given back was given back with them.
//! 3. What lies below `touched` may have been used; the clean frames above never were.

mod slab_block;
#[cfg(test)]
mod tests;

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering::Relaxed};

use hectare_base::align::{align_down, align_up};
use hectare_buddy::{Bitset, FrameAllocator, FrameId, RangeAllocator};
use hectare_pages::{PageSource, SourceError};

use crate::class::{ClassId, SLAB_BYTES};
use crate::dirty::{DirtyFrames, take_range};
use crate::huge::MIN_HUGE_BYTES;
use crate::run_cache::{MAX_KEPT_FRAMES, RunCache};
use crate::slab::{Slab, SlabRef};

/// The size of a frame in bytes, the unit of runs. Where the system's page is larger, runs are
/// whole pages of the system.
pub(crate) const FRAME_BYTES: usize = 4096;
/// The size of a huge page of the processor, as x86-64 and AArch64 with 4 KiB pages have it.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
pub(crate) const SLAB_FRAMES: usize = SLAB_BYTES / FRAME_BYTES;

/// What a thread must know of a region to tell where an address belongs, readable without a lock.
/// Zeroed, it is a region of no bytes.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct RegionView {
    start: AtomicUsize,
    /// Up to the frontier.
    bytes: AtomicUsize,
    /// Where the page map would begin if it began with address 0: the way from an address to its
    /// entry is on the critical path of a free, and this saves a step of it.
    page_map_of_zero: AtomicPtr<AtomicU8>,
    slabs: AtomicPtr<Slab>,
    run_lengths: AtomicPtr<AtomicU32>,
}

impl RegionView {
    pub(crate) const fn new() -> Self {
        Self {
            start: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            page_map_of_zero: AtomicPtr::new(core::ptr::null_mut()),
            slabs: AtomicPtr::new(core::ptr::null_mut()),
            run_lengths: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// How far behind the region's start `address` lies, if it lies in the committed part.
    #[inline(always)]
    pub(crate) fn offset_of(&self, address: usize) -> Option<usize> {
        let offset = address.wrapping_sub(self.start.load(Relaxed));
        (offset < self.bytes.load(Relaxed)).then_some(offset)
    }

    /// What the page map says of the frame that `address` lies in.
    ///
    /// # Safety
    /// [`offset_of`](Self::offset_of) has an offset for the address.
    #[inline(always)]
    pub(crate) unsafe fn class_of(&self, address: usize) -> ClassId {
        let entry = self.page_map_of_zero.load(Relaxed).wrapping_add(address / FRAME_BYTES);
        // SAFETY: by invariant 2 the page map is committed as far as the region; its entries are
        // only ever reached as atomics.
        let byte = unsafe { &*entry }.load(Relaxed);
        // SAFETY: an entry is 0, or was written by `mark`.
        unsafe { ClassId::from_byte(byte) }
    }

    /// Writes `class` into the page map for `frames` frames from `address`.
    ///
    /// # Safety
    /// The frames lie in the region and are the caller's.
    pub(crate) unsafe fn mark(&self, address: usize, frames: usize, class: ClassId) {
        let first = self.page_map_of_zero.load(Relaxed).wrapping_add(address / FRAME_BYTES);
        for frame in 0..frames {
            // SAFETY: by invariant 2 the page map is committed as far as the region; its entries
            // are only ever reached as atomics.
            unsafe { &*first.wrapping_add(frame) }.store(class.byte(), Relaxed);
        }
    }

    /// The run that begins at `address`, if one does: its first frame and its length in frames.
    #[inline(always)]
    pub(crate) fn run_at(&self, address: usize) -> Option<(usize, usize)> {
        let offset = self.offset_of(address)?;
        // SAFETY: the address lies in the region.
        let class = unsafe { self.class_of(address) };
        if class != ClassId::RUN || offset % FRAME_BYTES != 0 {
            return None;
        }
        let first = offset / FRAME_BYTES;
        let entry = self.run_lengths.load(Relaxed).wrapping_add(first);
        // SAFETY: by invariant 2 the run table is committed as far as the region; its entries are
        // only ever reached as atomics.
        Some((first, unsafe { &*entry }.load(Relaxed) as usize))
    }

    /// The address of a frame of the region.
    #[inline(always)]
    pub(crate) fn at(&self, frame: usize) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.start.load(Relaxed) + frame * FRAME_BYTES)
    }

    /// Writes `class` into the page map for the first frame of a run at `address`.
    ///
    /// # Safety
    /// As for [`mark`](Self::mark).
    #[inline(always)]
    pub(crate) unsafe fn mark_run(&self, address: usize, class: ClassId) {
        let entry = self.page_map_of_zero.load(Relaxed).wrapping_add(address / FRAME_BYTES);
        // SAFETY: as in `class_of`.
        unsafe { &*entry }.store(class.byte(), Relaxed);
    }

    /// How many of the `frames` frames from `address` on the page map says nothing of.
    ///
    /// # Safety
    /// As for [`mark`](Self::mark).
    pub(crate) unsafe fn unmarked(&self, address: usize, frames: usize) -> usize {
        let frames = (0..frames).map(|frame| address + frame * FRAME_BYTES);
        // SAFETY: the caller's promise.
        frames.filter(|&frame| unsafe { self.class_of(frame) } == ClassId::NONE).count()
    }

    /// The descriptor of the slab at `offset`, which [`offset_of`](Self::offset_of) gave.
    pub(crate) fn slab_at(&self, offset: usize) -> Option<SlabRef> {
        self.slab_table().slab_of(self.start.load(Relaxed).wrapping_add(offset))
    }

    /// Where the descriptors are: for whoever looks up many.
    #[inline(always)]
    pub(crate) fn slab_table(&self) -> SlabTable {
        SlabTable {
            start: self.start.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            slabs: self.slabs.load(Relaxed),
        }
    }
}

/// A region's slabs, as far as they were there when they were asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlabTable {
    start: usize,
    bytes: usize,
    slabs: *mut Slab,
}

impl SlabTable {
    /// The slab that `address` lies in, or would if there were one.
    #[inline(always)]
    pub(crate) fn slab_of(self, address: usize) -> Option<SlabRef> {
        let offset = address.wrapping_sub(self.start);
        if offset >= self.bytes {
            return None;
        }
        // SAFETY: offset < bytes, so by invariant 2 there are descriptors, committed as far.
        let slab = unsafe { self.slabs.add(offset / SLAB_BYTES) };
        // SAFETY: as above.
        let slab = unsafe { NonNull::new_unchecked(slab) };
        // SAFETY: as above.
        Some(unsafe { SlabRef::new(slab) })
    }
}

/// An array in reserved address space of which the front is committed.
#[derive(Debug)]
struct Table {
    start: NonNull<u8>,
    committed_bytes: usize,
}

impl Table {
    /// Commits the first `bytes`.
    fn reach(&mut self, bytes: usize, source: &impl PageSource) -> Result<(), SourceError> {
        let wanted = align_up(bytes, source.page_bytes());
        if wanted > self.committed_bytes {
            // SAFETY: the caller keeps `bytes` within the table's part of the reservation.
            let start = unsafe { self.start.add(self.committed_bytes) };
            // SAFETY: as above.
            unsafe { source.commit(start, wanted - self.committed_bytes) }?;
            self.committed_bytes = wanted;
        }
        Ok(())
    }

    /// Gives back the pages that lie within `unused` and of which a part lies in `changed`: the
    /// others went before. The table reads as zero there.
    fn forget(&self, unused: Range<usize>, changed: Range<usize>, source: &impl PageSource) {
        let page = source.page_bytes();
        let from = align_up(unused.start, page).max(align_down(changed.start, page));
        let to = align_down(unused.end, page).min(align_up(changed.end, page));
        let to = to.min(self.committed_bytes);
        if from < to {
            // SAFETY: from < committed bytes.
            let start = unsafe { self.start.add(from) };
            // A refusal leaves what nobody reads.
            // SAFETY: committed, and the caller says that it is unused.
            let _ = unsafe { source.decommit(start, to - from) };
        }
    }
}

/// A region. Guarded by the backend's lock.
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<u8>,
    bytes: usize,
    /// Committed bytes from the start.
    frontier: usize,
    /// In frames from the start.
    touched: usize,
    /// From how many bytes on huge pages are asked for; `usize::MAX` while it does without.
    huge_from: usize,
    /// Clean frames that were taken for long runs.
    filled_frames: usize,
    clean: Bitset<'static>,
    dirty: DirtyFrames,
    cached: RunCache<CACHED_DEPTH>,
    page_map: Table,
    run_lengths: Table,
    slabs: Table,
}

/// What frames are wanted for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wanted {
    /// A run of `frames` at a multiple of `align` frames. One that was kept may be a little longer.
    /// The caller is going to fill it, if it `fills`.
    Run { frames: usize, align: usize, fills: bool },
    /// A slab of a class that has `siblings` slabs now.
    Slab { siblings: usize },
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
    /// It is clean because it was decommitted, so that using it will fault once more.
    pub(crate) refaults: bool,
    /// It comes as part of huge pages, each of them by its first touch.
    pub(crate) huge: bool,
}

/// Why a region had no run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No range of free frames is long enough: another region may have one.
    NoRange,
    /// There is a range, but the source has no memory for it: another region is no help.
    NoMemory,
}

impl Region {
    /// The size of the metadata's parts for `bytes` of region: page map, run table, slabs, and
    /// one bit set.
    fn parts(bytes: usize, page: usize) -> [usize; 4] {
        let frames = bytes / FRAME_BYTES;
        [
            align_up(frames, page),
            align_up(frames * size_of::<u32>(), page),
            align_up(bytes / SLAB_BYTES * size_of::<Slab>(), page),
            align_up(Bitset::metadata_words(frames) * size_of::<u64>(), page),
        ]
    }

    /// Reserves a region of `bytes`, a multiple of [`SLAB_BYTES`] and of the page, and publishes
    /// it in `view`.
    pub(crate) fn open(
        bytes: usize,
        source: &impl PageSource,
        view: &RegionView,
    ) -> Result<Self, SourceError> {
        let page = source.page_bytes();
        let frames = bytes / FRAME_BYTES;
        let parts = Self::parts(bytes, page);
        let [page_map, run_lengths, slabs, bit_set] = parts;
        let metadata_bytes = page_map + run_lengths + slabs + 2 * bit_set;
        let metadata = source.reserve(metadata_bytes, page)?;
        // SAFETY: each offset lies within the metadata's reservation.
        let part = |offset: usize| unsafe { metadata.add(offset) };
        let bit_sets = part(page_map + run_lengths + slabs);
        // SAFETY: the last part of the reservation.
        let opened = unsafe { source.commit(bit_sets, 2 * bit_set) }
            .and_then(|()| reserve_region(bytes, page, source));
        let start = match opened {
            Ok(start) => start,
            Err(error) => {
                // SAFETY: the reservation made above, which nobody uses.
                unsafe { source.release(metadata, metadata_bytes) };
                return Err(error);
            }
        };
        let words = |offset: usize| {
            let first = part(page_map + run_lengths + slabs + offset).cast::<u64>();
            // SAFETY: committed above, zeroed, aligned to a page, this bit set's alone, and never
            // given back.
            unsafe { core::slice::from_raw_parts_mut(first.as_ptr(), bit_set / 8) }
        };
        let empty = |words| Bitset::over_zeroed(frames, words).map_err(|_| SourceError::Exhausted);
        let mut clean = empty(words(0))?;
        let dirty = empty(words(bit_set))?;
        clean.add_region(FrameId(0), frames).map_err(|_| SourceError::Exhausted)?;
        let first_frame = start.addr().get() / FRAME_BYTES;
        let map = part(0).as_ptr().cast::<AtomicU8>();
        view.page_map_of_zero.store(map.wrapping_sub(first_frame), Relaxed);
        view.slabs.store(part(page_map + run_lengths).as_ptr().cast(), Relaxed);
        view.run_lengths.store(part(page_map).as_ptr().cast(), Relaxed);
        view.start.store(start.expose_provenance().get(), Relaxed);
        Ok(Self {
            start,
            bytes,
            frontier: 0,
            touched: 0,
            huge_from: HUGE_PAGES_FROM_BYTES,
            filled_frames: 0,
            clean,
            dirty: DirtyFrames::new(dirty),
            cached: RunCache::new(),
            page_map: Table { start: part(0), committed_bytes: 0 },
            run_lengths: Table { start: part(page_map), committed_bytes: 0 },
            slabs: Table { start: part(page_map + run_lengths), committed_bytes: 0 },
        })
    }

    /// Frames that are free and still hold memory.
    pub(crate) fn dirty_frames(&self) -> usize {
        self.dirty.count() + self.cached.frames()
    }

    /// Committed bytes.
    pub(crate) fn frontier_bytes(&self) -> usize {
        self.frontier
    }

    /// Takes what is `wanted`: dirty frames if there are any, the lowest that fit.
    pub(crate) fn take(
        &mut self,
        wanted: Wanted,
        source: &impl PageSource,
        view: &RegionView,
    ) -> Result<Run, Refusal> {
        match wanted {
            Wanted::Run { frames, align, fills } => {
                let run = self.take_run(frames, align, source, view)?;
                if fills && run.clean && frames >= LONG_FRAMES {
                    self.note_filled(run, source);
                }
                Ok(run)
            }
            Wanted::Slab { siblings } => self.take_slab(siblings, source, view),
        }
    }

    fn take_run(
        &mut self,
        frames: usize,
        align: usize,
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
            && let Some((first, frames)) = self.cached.pop(frames)
        {
            let start = self.at(FrameId(first));
            return Ok(Run { start, frames, clean: false, refaults: false, huge: false });
        }
        if frames > MAX_KEPT_FRAMES {
            // For what is never kept, the kept ones are but holes in the ranges that it needs.
            self.uncache();
        }
        let dirty = self
            .take_dirty(frames, align, source, view)
            .or_else(|| self.uncache().then(|| self.take_dirty(frames, align, source, view))?);
        if let Some(first) = dirty {
            let start = self.at(first);
            return Ok(Run { start, frames, clean: false, refaults: false, huge: false });
        }
        let first = take_range(&mut self.clean, frames, align).map_err(|_| Refusal::NoRange)?;
        if self.reach(first.0 + frames, source, view).is_err() {
            self.give_clean(first, frames);
            return Err(Refusal::NoMemory);
        }
        let refaults = first.0 < self.touched;
        self.touched = self.touched.max(first.0 + frames);
        let huge = !refaults && first.0 * FRAME_BYTES >= self.huge_from;
        Ok(Run { start: self.at(first), frames, clean: true, refaults, huge })
    }

    /// Takes dirty frames: a block for what is one, the best fit for other runs; and if no dirty
    /// run is long enough, a large part of one with the clean frames behind it.
    fn take_dirty(
        &mut self,
        frames: usize,
        align: usize,
        source: &impl PageSource,
        view: &RegionView,
    ) -> Option<FrameId> {
        if align > 1 {
            return self.dirty.take_lowest(frames, align);
        }
        if let Some(start) = self.dirty.take_best(frames) {
            return Some(start);
        }
        let (start, length) = self.dirty.longest().filter(|&(_, length)| length >= frames / 2)?;
        let (behind, more) = (FrameId(start.0 + length), frames - length);
        if behind.0 + more > self.bytes / FRAME_BYTES || self.clean.reserve(behind, more).is_err() {
            return None;
        }
        if self.reach(behind.0 + more, source, view).is_err() {
            self.give_clean(behind, more);
            return None;
        }
        self.touched = self.touched.max(behind.0 + more);
        self.dirty.take_at(start, length).then_some(start)
    }

    /// Lengthens a run in place, if the frames behind it are free.
    pub(crate) fn extend(
        &mut self,
        run: NonNull<u8>,
        frames: usize,
        wanted: usize,
        source: &impl PageSource,
        view: &RegionView,
    ) -> bool {
        let behind = FrameId(self.frame_of(run) + frames);
        let more = wanted - frames;
        if behind.0 + more > self.bytes / FRAME_BYTES {
            return false;
        }
        if self.dirty.take_at(behind, more) {
            return true;
        }
        if self.clean.reserve(behind, more).is_err() {
            return false;
        }
        if self.reach(behind.0 + more, source, view).is_err() {
            self.give_clean(behind, more);
            return false;
        }
        self.touched = self.touched.max(behind.0 + more);
        true
    }

    /// Takes back a large object's run. The next of the same length is likely to be this one: so
    /// it is kept as it is, in place of all others if there is no room.
    pub(crate) fn give_run(&mut self, start: NonNull<u8>, frames: usize) {
        let first = self.frame_of(start);
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
    fn give_clean(&mut self, first: FrameId, frames: usize) {
        let given = self.clean.free_range(first, frames);
        debug_assert!(given.is_ok(), "{first:?} + {frames}: {given:?}");
    }

    /// Gives memory back to the system until at most `keep` dirty frames are left, the highest
    /// first, since the lowest are used next; but first of all whole huge pages, since one of
    /// which a part has gone comes back page by page. Returns how many frames it gave back.
    pub(crate) fn decommit(&mut self, keep: usize, source: &impl PageSource) -> usize {
        self.uncache();
        let before = self.dirty.count();
        let page_frames = source.page_bytes().div_ceil(FRAME_BYTES);
        if self.huge_from < self.frontier && page_frames == 1 {
            self.decommit_units(HUGE_PAGE_BYTES / FRAME_BYTES, keep, source);
        }
        self.decommit_units(page_frames, keep, source);
        before - self.dirty.count()
    }

    /// As [`decommit`](Self::decommit), only whole units of so many frames.
    fn decommit_units(&mut self, unit: usize, keep: usize, source: &impl PageSource) {
        let mut end = FrameId(self.touched);
        while self.dirty.count() > keep
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
                return;
            }
            let start = self.at(first);
            // SAFETY: the frames are free, below the frontier by invariant 2, and just taken.
            if unsafe { source.decommit(start, frames * FRAME_BYTES) }.is_err() {
                return self.give(start, frames);
            }
            self.give_clean(first, frames);
            self.forget(first.0, frames, source);
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
            (&self.run_lengths, 1, size_of::<u32>()),
            (&self.slabs, SLAB_FRAMES, size_of::<Slab>()),
        ] {
            let whole = start.div_ceil(unit_frames)..end / unit_frames;
            let changed = first / unit_frames..(first + frames).div_ceil(unit_frames);
            let bytes = |units: Range<usize>| units.start * entry_bytes..units.end * entry_bytes;
            table.forget(bytes(whole), bytes(changed), source);
        }
    }

    /// Moves the frontier so that `frames` frames lie below it.
    fn reach(
        &mut self,
        frames: usize,
        source: &impl PageSource,
        view: &RegionView,
    ) -> Result<(), SourceError> {
        let needed = frames * FRAME_BYTES;
        if needed <= self.frontier {
            return Ok(());
        }
        // Steps that grow with the heap keep the calls few, and what a system without overcommit
        // charges close to what is used; when a step is refused, the least that will do.
        let step = (self.frontier / 8).clamp(MIN_STEP_BYTES, MAX_STEP_BYTES);
        let step = align_up(step, MIN_STEP_BYTES);
        let generous = needed.next_multiple_of(step).min(self.bytes);
        let exact = align_up(needed, source.page_bytes().max(SLAB_BYTES)).min(self.bytes);
        self.commit(generous, source).or_else(|_| self.commit(exact, source))?;
        view.bytes.store(self.frontier, Relaxed);
        Ok(())
    }

    fn commit(&mut self, frontier: usize, source: &impl PageSource) -> Result<(), SourceError> {
        let frames = frontier / FRAME_BYTES;
        self.page_map.reach(frames, source)?;
        self.run_lengths.reach(frames * size_of::<u32>(), source)?;
        self.slabs.reach(frontier.div_ceil(SLAB_BYTES) * size_of::<Slab>(), source)?;
        // SAFETY: frontier < bytes.
        let start = unsafe { self.start.add(self.frontier) };
        // SAFETY: the part of the reservation behind the old frontier.
        unsafe { source.commit(start, frontier - self.frontier) }?;
        if self.frontier >= self.huge_from {
            // SAFETY: as above.
            unsafe { source.advise_huge(start, frontier - self.frontier, true) };
        }
        self.frontier = frontier;
        Ok(())
    }

    /// Has the next `bytes` of the region come from what was set aside for the process.
    ///
    /// # Safety
    /// No other thread uses the source.
    pub(crate) unsafe fn set_aside(
        &mut self,
        bytes: usize,
        source: &impl PageSource,
    ) -> Result<(), SourceError> {
        let next = align_up(self.frontier, HUGE_PAGE_BYTES);
        if bytes > self.bytes - next {
            return Err(SourceError::Exhausted);
        }
        // SAFETY: next < bytes of the region.
        let start = unsafe { self.start.add(next) };
        // SAFETY: reserved, and not committed yet; the rest is the caller's promise.
        unsafe { source.set_aside(start, bytes) }
    }

    /// Notes that a long run was taken that its caller will fill. Where there are many, huge pages
    /// begin with it, if they do not begin below.
    fn note_filled(&mut self, run: Run, source: &impl PageSource) {
        self.filled_frames = self.filled_frames.saturating_add(run.frames);
        let from = self.frame_of(run.start) * FRAME_BYTES;
        let has_many = self.filled_frames >= FILLED_FRAMES;
        if has_many && from < self.huge_from && self.huge_from <= HUGE_PAGES_FROM_BYTES {
            let end = self.huge_from.min(self.frontier);
            // SAFETY: from the run just taken to the frontier at most.
            unsafe { source.advise_huge(run.start, end - from, true) };
            self.huge_from = from;
        }
    }

    /// Does without huge pages where less than three quarters of what was once committed is of use,
    /// `frames` frames: the rest, which went back in pieces, would come again two mebibytes at a time,
    /// each for a single object. Huge pages come again when seven eighths are of use. Where it is
    /// not for the most part `of_slabs`, runs fill what comes again: there a half is enough.
    pub(crate) fn choose_pages(&mut self, frames: usize, of_slabs: bool, source: &impl PageSource) {
        let was_plain = self.huge_from == usize::MAX;
        let eighths = if of_slabs { 6 } else { 4 } + usize::from(was_plain);
        let plain = frames * FRAME_BYTES < self.frontier / 8 * eighths;
        let from = self.huge_from.min(HUGE_PAGES_FROM_BYTES);
        if plain == was_plain || self.frontier <= HUGE_PAGES_FROM_BYTES {
            return;
        }
        self.huge_from = if plain { usize::MAX } else { from };
        // SAFETY: the region is longer than that.
        let start = unsafe { self.start.add(from) };
        // SAFETY: committed memory of this region.
        unsafe { source.advise_huge(start, self.frontier - from, !plain) };
        if plain {
            self.decommit_clean(FrameId(from / FRAME_BYTES), source);
        }
    }

    /// Gives back what has come into clean frames from `from` on as parts of huge pages, by a fault
    /// in another part or by the kernel's own making of them.
    fn decommit_clean(&self, mut from: FrameId, source: &impl PageSource) {
        while let Some((first, length)) = self.clean.next_free_run(from)
            && first.0 < self.touched
        {
            let frames = length.min(self.touched - first.0);
            // A refusal leaves it as it is.
            // SAFETY: the frames are free, and below the frontier by invariant 3.
            let _ = unsafe { source.decommit(self.at(first), frames * FRAME_BYTES) };
            from = FrameId(first.0 + length);
        }
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

    /// Whether a slab begins at `frame`: of its frames, those that were given back are not in the
    /// page map.
    #[cfg(any(test, feature = "validate"))]
    fn has_slab(&self, frame: usize) -> bool {
        let end = (frame + SLAB_FRAMES).min(self.frontier / FRAME_BYTES);
        (frame..end).any(|frame| {
            // SAFETY: below the frontier, as far as the page map reaches.
            let entry = unsafe { self.page_map.start.cast::<AtomicU8>().add(frame) };
            // SAFETY: as above.
            let byte = unsafe { entry.as_ref() }.load(Relaxed);
            ![ClassId::NONE, ClassId::RUN, ClassId::KEPT].map(ClassId::byte).contains(&byte)
        })
    }

    /// Panics unless invariants 1 and 2 hold and the page map agrees with the bit sets. Returns
    /// how many frames are in use. For tests. O(frames below the frontier).
    #[cfg(any(test, feature = "validate"))]
    pub(crate) fn validate(&self) -> usize {
        self.clean.validate().expect("the clean frames");
        self.dirty.validate();
        let mut mapped_frames = 0;
        let mut run_end = 0;
        for frame in 0..self.frontier / FRAME_BYTES {
            let (clean, dirty) =
                (self.clean.is_free(FrameId(frame)), self.dirty.has(FrameId(frame)));
            assert!(!(clean && dirty), "frame {frame} is both clean and dirty");
            assert!(!dirty || frame < self.touched, "frame {frame} is dirty, but never touched");
            // SAFETY: below the frontier, as far as the page map reaches.
            let entry = unsafe { self.page_map.start.cast::<AtomicU8>().add(frame) };
            // SAFETY: as above.
            let byte = unsafe { entry.as_ref() }.load(Relaxed);
            if byte == ClassId::RUN.byte() || byte == ClassId::KEPT.byte() {
                assert!(frame >= run_end, "the run at frame {frame} begins within another");
                run_end = frame + self.run_length(self.at(FrameId(frame)));
            }
            if frame % SLAB_FRAMES == 0 && self.has_slab(frame) {
                run_end = frame + SLAB_FRAMES;
            }
            let mapped = byte != ClassId::NONE.byte() || frame < run_end;
            assert!(!mapped || !clean && !dirty, "frame {frame} is free, but of class {byte}");
            mapped_frames += usize::from(mapped);
        }
        // What is neither free nor mapped must be in a cached run: the sum says so.
        let free_frames = self.clean.free_frames() + self.dirty_frames();
        assert_eq!(free_frames + mapped_frames, self.bytes / FRAME_BYTES, "frames are lost");
        mapped_frames
    }
}

/// How much the cache of freed runs holds, 4 MiB, and how many runs of each length.
const MAX_CACHED_FRAMES: usize = 1024;
const CACHED_DEPTH: usize = 31;

/// Runs of so many frames are long, 256 KiB, and so many frames of them are many, 4 MiB.
const LONG_FRAMES: usize = 64;
const FILLED_FRAMES: usize = 1024;

/// From which size on a region asks for huge pages anyhow: what is untouched of the last one is then a
/// few per cent of the whole at most, and a small program does not grow.
const HUGE_PAGES_FROM_BYTES: usize = 16 << 20;

/// Address space for a region, aligned as far as any run can ask; a source that cannot align so
/// far gives one aligned to huge pages.
fn reserve_region(
    bytes: usize,
    page: usize,
    source: &impl PageSource,
) -> Result<NonNull<u8>, SourceError> {
    let widest = MIN_HUGE_BYTES / 2;
    source
        .reserve(bytes, widest.max(page))
        .or_else(|_| source.reserve(bytes, HUGE_PAGE_BYTES.max(page)))
}

const MIN_STEP_BYTES: usize = HUGE_PAGE_BYTES;
const MAX_STEP_BYTES: usize = 64 << 20;
