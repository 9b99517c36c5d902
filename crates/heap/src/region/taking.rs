//! How a run is found: the places that memory comes from. Each is asked when those before it have
//! none.
//!
//! ```text
//!   cached       a run of about that length that was freed lately
//!   dirty        frames that hold memory, where they fit best
//!   units        clean units, to which dirty ones move: for what will fill them     region/units.rs
//!   lengthened   the longest dirty run, and the clean frames behind it
//!   block        the caller opens one without the lock, and asks again              region/block.rs
//!   hollow       for a slab, one that waits to go back                              region/hollow_slabs.rs
//!   clean        frames that hold no memory, the lowest
//! ```

use core::ptr::NonNull;

use hectare_base::align::align_down;
use hectare_buddy::{FrameId, RangeAllocator};
use hectare_pages::PageSource;

use super::filling::SLAB_PROBE_FRAMES;
use super::huge_pages::BIG_FRAMES;
use super::{FRAME_BYTES, Region, SLAB_FRAMES, lowest_range};
use crate::run_cache::LONGEST_CACHED_FRAMES;

/// What frames are wanted for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wanted {
    /// A run of `frames` at a multiple of `align` frames. A cached run may be a little longer. If
    /// it `fills`, the caller is going to fill the run.
    Run { frames: usize, align: usize, fills: bool },
    /// A slab of a class that has `siblings`. If it is `of_pages`, its objects have pages of their
    /// own.
    Slab { of_pages: bool, siblings: usize },
}

impl Wanted {
    /// How many frames in a row have a place for it, wherever they begin.
    pub(crate) fn room_frames(self) -> usize {
        match self {
            Self::Run { frames, align, .. } => frames + align,
            Self::Slab { .. } => 2 * SLAB_FRAMES,
        }
    }

    /// The number of the first frame must be a multiple of this.
    pub(crate) fn align_frames(self) -> usize {
        match self {
            Self::Run { align, .. } => align,
            Self::Slab { .. } => SLAB_FRAMES,
        }
    }

    /// How long a run counts when `run`, taken for this, is probed later. `None` if it is not
    /// probed.
    fn probed_frames(self, run: &Run) -> Option<usize> {
        match self {
            Self::Run { fills: true, .. } => Some(run.frames),
            Self::Slab { of_pages: true, .. } => Some(SLAB_PROBE_FRAMES),
            Self::Run { .. } | Self::Slab { .. } => None,
        }
    }
}

/// A run just taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    pub(crate) start: NonNull<u8>,
    /// At least as many as were asked for.
    pub(crate) frames: usize,
    /// The run reads as zero.
    pub(crate) clean: bool,
    /// How many frames that hold no memory were taken for the run.
    pub(crate) bare_frames: usize,
    /// How many of these are clean because they were decommitted, so that using them faults once
    /// more.
    pub(crate) again_frames: usize,
    /// The run was never touched and comes as part of huge pages, each by its first touch. Set for
    /// the lowest clean frames alone, since this is only asked of slabs.
    pub(crate) huge: bool,
}

impl Run {
    /// A run all of whose frames hold memory.
    pub(super) fn holding(start: NonNull<u8>, frames: usize) -> Self {
        Self { start, frames, clean: false, bare_frames: 0, again_frames: 0, huge: false }
    }
}

/// Why a region has no run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No range of free frames is long enough: another region may have one.
    NoRange,
    /// There is a range, but the source has no memory for it: another region is no help.
    NoMemory,
    /// The run is to come from a block, which is opened without the lock.
    Block,
}

/// What a caller does if a block is the place for what it wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blocks {
    /// The caller takes what there is.
    AsTheyAre,
    /// The caller opens a block when it is told to.
    MayOpen,
}

/// What is to be found: what is wanted, and what is known of it before memory is looked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) frames: usize,
    /// The first frame's number must be a multiple of this.
    pub(super) align: usize,
    /// The same, but only preferred: runs of which only the fronts are used begin where slabs do.
    pub(super) grid: usize,
    outlook: Outlook,
    /// A block is the place for it, and the caller can open one.
    opens: bool,
}

/// What will become of a run, judging by other runs (`region/filling.rs`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outlook {
    /// The caller is going to fill it, and nothing seen says otherwise.
    Filled,
    /// Most of it is likely to stay untouched.
    Plain,
    Unknown,
}

impl Request {
    /// Whether the run is expected to be filled.
    pub(super) fn is_filled(&self) -> bool {
        self.outlook == Outlook::Filled
    }
}

impl Region {
    /// Takes what is `wanted`, and notes what may be learned from it for the next: a probe may be
    /// [due](Self::due_probe).
    pub(crate) fn take(
        &mut self,
        wanted: Wanted,
        blocks: Blocks,
        source: &impl PageSource,
    ) -> Result<Run, Refusal> {
        let before_bytes = self.frontier_bytes;
        let request = self.request_for(wanted, blocks);
        let run = self.find(&request, source)?;
        if request.is_filled() && run.bare_frames > 0 {
            self.note_bare(run, source);
        }
        let is_fresh = self.is_fresh(&run);
        self.pass_fresh(&run);
        if is_fresh && let Some(frames) = wanted.probed_frames(&run) {
            self.filling.note_taken(run.start, frames);
        }
        if request.outlook == Outlook::Plain {
            let is_huge = run.clean && self.is_huge_from(FrameId(self.frame_of(run.start)));
            self.stay_plain(is_huge || before_bytes < self.frontier_bytes, source);
        }
        Ok(run)
    }

    /// The request for what is `wanted`.
    fn request_for(&self, wanted: Wanted, blocks: Blocks) -> Request {
        let opens = blocks == Blocks::MayOpen;
        match wanted {
            Wanted::Run { frames, align, fills } => {
                let has_grid = align == 1 && self.is_for_sparse(frames);
                let grid = if has_grid { SLAB_FRAMES } else { align };
                let outlook = if self.is_for_plain(frames) {
                    Outlook::Plain
                } else if fills {
                    Outlook::Filled
                } else {
                    Outlook::Unknown
                };
                let opens = opens && outlook == Outlook::Filled && self.wants_block_for_run(frames);
                Request { frames, align, grid, outlook, opens }
            }
            Wanted::Slab { of_pages, siblings } => {
                let is_plain = of_pages && self.is_for_plain(SLAB_PROBE_FRAMES);
                let outlook = if is_plain { Outlook::Plain } else { Outlook::Unknown };
                let opens = opens && !is_plain && self.wants_block(siblings);
                let frames = SLAB_FRAMES;
                Request { frames, align: frames, grid: frames, outlook, opens }
            }
        }
    }

    /// Asks one place after the other for memory, the cheapest first.
    fn find(&mut self, request: &Request, source: &impl PageSource) -> Result<Run, Refusal> {
        if !self.can_align(request.align) {
            return Err(Refusal::NoRange);
        }
        let found = self
            .take_cached(request, source)
            .or_else(|| self.take_dirty(request))
            .or_else(|| self.take_units(request, source))
            .or_else(|| self.take_lengthened(request, source));
        match found {
            Some(run) => Ok(run),
            None if request.opens => Err(Refusal::Block),
            None => match self.take_hollow(request) {
                Some(run) => Ok(run),
                None => self.take_clean(request, source),
            },
        }
    }

    /// Takes a hollow slab if one will do. It will not do for what is likely to stay untouched,
    /// since a part of it is resident.
    fn take_hollow(&mut self, request: &Request) -> Option<Run> {
        let is_slab = request.frames == SLAB_FRAMES && request.align == SLAB_FRAMES;
        let suits = is_slab && request.outlook != Outlook::Plain && self.hollow_slabs.frames() > 0;
        if suits { self.take_hollow_slab() } else { None }
    }

    /// Whether a multiple of `align` frames from the region's start is also a multiple in memory.
    fn can_align(&self, align: usize) -> bool {
        let start = self.start.addr().get();
        align_down(start, align * FRAME_BYTES) == start
    }

    /// Takes a run that was freed lately and kept as it was. All runs begin at a page.
    fn take_cached(&mut self, request: &Request, source: &impl PageSource) -> Option<Run> {
        let begins_with_page =
            request.align == 1 || request.align * FRAME_BYTES <= source.page_bytes();
        if !begins_with_page || request.frames > LONGEST_CACHED_FRAMES {
            return None;
        }
        let (first, frames) = self.cached.pop(request.frames, self.near())?;
        Some(Run::holding(self.at(FrameId(first)), frames))
    }

    /// Takes dirty frames. If there is no place, takes those of the cached runs, too.
    fn take_dirty(&mut self, request: &Request) -> Option<Run> {
        if request.frames > LONGEST_CACHED_FRAMES {
            // For a run that is too long to be cached, cached runs are but holes in the ranges that
            // it needs.
            self.uncache();
        }
        let first = self.take_fitting_or_cached(request)?;
        let is_left = request.outlook == Outlook::Plain && self.fresh.contains(&first.0);
        let first = if is_left { self.take_beside_fresh(request, first)? } else { first };
        Some(Run::holding(self.at(first), request.frames))
    }

    #[inline(never)]
    fn take_fitting_or_cached(&mut self, request: &Request) -> Option<FrameId> {
        let &Request { frames, grid, .. } = request;
        self.take_fitting(frames, grid)
            .or_else(|| self.uncache().then(|| self.take_fitting(frames, grid))?)
    }

    /// Takes other dirty frames in place of those from `found` on, which came with the last units.
    /// These are resident. What is likely to stay untouched would use them up, and the next run
    /// that fills its memory would bring more.
    #[cold]
    fn take_beside_fresh(&mut self, request: &Request, found: FrameId) -> Option<FrameId> {
        self.dirty.give(found, request.frames);
        let fresh = FrameId(self.fresh.start);
        let frames = self.fresh.len();
        if !self.dirty.take_at(fresh, frames) {
            // A part of them has gone: what is left is like any other dirty memory.
            self.fresh = 0..0;
            return self.take_fitting_or_cached(request);
        }
        let first = self.take_fitting_or_cached(request);
        self.dirty.give(fresh, frames);
        first
    }

    /// Takes dirty frames as they are: the lowest place for a slab, the best fit for other runs.
    pub(super) fn take_fitting(&mut self, frames: usize, align: usize) -> Option<FrameId> {
        if frames == SLAB_FRAMES && align == SLAB_FRAMES {
            self.dirty.take_for_slab()
        } else {
            self.dirty.take_best(frames, align)
        }
    }

    /// Takes the longest dirty run with the clean frames behind it, if at most half of the frames
    /// needed are clean.
    fn take_lengthened(&mut self, request: &Request, source: &impl PageSource) -> Option<Run> {
        let frames = request.frames;
        // If a block is opened for the request, the run begins in the dirty frames in front of it.
        // Lengthened now, it would take the first frames of the next unit, and the block would lie
        // behind that unit.
        if request.grid != 1 || request.opens {
            return None;
        }
        // A dirty run that is as long as the request or longer was left to others.
        let fits = |&(_, length): &(FrameId, usize)| (frames / 2..frames).contains(&length);
        let (first, length) = self.dirty.longest().filter(fits)?;
        let (behind, bare_frames) = (FrameId(first.0 + length), frames - length);
        self.take_behind(behind, bare_frames, source)?;
        let taken = self.dirty.take_at(first, length);
        debug_assert!(taken, "it is the longest of the dirty runs");
        if request.is_filled() {
            self.ask_for_units(behind, bare_frames, source);
        }
        Some(Run { bare_frames, ..Run::holding(self.at(first), frames) })
    }

    /// Takes clean frames, on the grid if there is a place and memory for it.
    fn take_clean(&mut self, request: &Request, source: &impl PageSource) -> Result<Run, Refusal> {
        let &Request { frames, align, grid, .. } = request;
        let (first, again_frames) = match self.take_clean_at(frames, grid, source) {
            Err(_) if grid != align => self.take_clean_at(frames, align, source),
            taken => taken,
        }?;
        if request.is_filled() {
            self.ask_for_units(first, frames, source);
        }
        let huge = again_frames == 0 && self.is_huge_from(first);
        let start = self.at(first);
        Ok(Run { start, frames, clean: true, bare_frames: frames, again_frames, huge })
    }

    /// Takes the lowest clean frames at a multiple of `align`. Returns the first of them, and how
    /// many of them may have been used.
    #[inline(never)]
    fn take_clean_at(
        &mut self,
        frames: usize,
        align: usize,
        source: &impl PageSource,
    ) -> Result<(FrameId, usize), Refusal> {
        let first = lowest_range(&mut self.clean, frames, align).map_err(|_| Refusal::NoRange)?;
        let again_frames = self.touched_of(first, frames);
        if self.touch_clean(first, frames, source).is_ok() {
            return Ok((first, again_frames));
        }
        // The frontier cannot move. A place beyond it may have been taken, behind many runs that
        // are too short, although a place below may do.
        let limit = self.frontier_frames();
        let first = self.clean.alloc_range(frames, align, limit).map_err(|_| Refusal::NoMemory)?;
        let again_frames = self.touched_of(first, frames);
        self.touch_clean(first, frames, source)?;
        Ok((first, again_frames))
    }

    /// Takes `frames` frames from `first` on, if all are clean.
    #[inline(never)]
    pub(super) fn take_behind(
        &mut self,
        first: FrameId,
        frames: usize,
        source: &impl PageSource,
    ) -> Option<()> {
        let has_room = first.0 + frames <= self.bytes / FRAME_BYTES;
        if !has_room || self.clean.reserve(first, frames).is_err() {
            return None;
        }
        self.touch_clean(first, frames, source).ok()
    }

    /// Ensures that clean frames just taken may be used. Gives them back when out of memory.
    #[inline(never)]
    pub(super) fn touch_clean(
        &mut self,
        first: FrameId,
        frames: usize,
        source: &impl PageSource,
    ) -> Result<(), Refusal> {
        if self.touch(first.0 + frames, source).is_err() {
            self.give_clean(first, frames);
            return Err(Refusal::NoMemory);
        }
        self.paged_frames += if self.is_huge_from(first) { 0 } else { frames };
        Ok(())
    }

    /// How many of the `frames` frames from `first` on may have been used.
    pub(super) fn touched_of(&self, first: FrameId, frames: usize) -> usize {
        self.touched_frames.saturating_sub(first.0).min(frames)
    }

    /// Counts the memory that a run brings when it is filled.
    fn note_bare(&mut self, run: Run, source: &impl PageSource) {
        if run.frames >= BIG_FRAMES {
            self.note_filled(run, source);
        } else {
            self.short_run_frames += run.bare_frames;
        }
    }

    /// Whether nobody has had the memory of a run that was just taken, as far as is known.
    fn is_fresh(&self, run: &Run) -> bool {
        run.clean || self.fresh.contains(&self.frame_of(run.start))
    }

    /// Removes the frames of `run` from what came with the last units and nobody has had: at the
    /// end, if the end is nearer.
    #[inline(never)]
    pub(super) fn pass_fresh(&mut self, run: &Run) {
        let first = self.frame_of(run.start);
        let end = first + run.frames;
        if first >= self.fresh.end || self.fresh.start >= end {
            return;
        }
        if first.saturating_sub(self.fresh.start) > self.fresh.end.saturating_sub(end) {
            self.fresh.end = first;
        } else {
            self.fresh.start = end;
        }
    }
}
