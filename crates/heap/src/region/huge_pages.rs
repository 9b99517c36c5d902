//! When a region begins to ask for huge pages, and when it does without.

use hectare_base::align::{align_down, align_up};
use hectare_buddy::{FrameId, Order};
use hectare_pages::PageSource;

use super::huge_part::HugePart;
use super::units::{NEARLY_UNIT_FRAMES, UNIT_FRAMES};
use super::{FRAME_BYTES, HUGE_PAGE_BYTES, Region, Run, SLAB_FRAMES};

/// Runs of at least this many frames, 256 KiB, are *big*. If there are many, huge pages are asked
/// for.
pub(super) const BIG_FRAMES: usize = 64;

/// This many frames of big runs are many in a region that is long enough for blocks: a huge page
/// without a slab. One run counts for half of that at most. (From 1.75 MiB on `pareto` on four
/// threads is a twentieth larger.)
const MANY_FRAMES: usize = UNIT_FRAMES - SLAB_FRAMES;

/// This many clean units in a row, 32 MiB, are not a hole among slabs: a long run was there.
const LONG_GAP_UNITS: usize = 16;

/// The order of a unit.
const UNIT_ORDER: Order = Order::for_frames(UNIT_FRAMES).unwrap();

/// What is asked of the system for a part of the region.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Advice {
    Huge,
    Plain,
}

impl Region {
    /// Whether the region's units can be huge pages.
    pub(super) fn has_units(&self, source: &impl PageSource) -> bool {
        source.page_bytes() <= FRAME_BYTES
            && self.start.addr().get().is_multiple_of(HUGE_PAGE_BYTES)
    }

    /// Whether huge pages are asked for from `first` on.
    pub(super) fn is_huge_from(&self, first: FrameId) -> bool {
        first.0 * FRAME_BYTES >= self.huge.start()
    }

    /// Notes that a big run was taken that its caller will fill. If there are many, huge pages
    /// begin with its first unit, unless they already begin with the first unit of another run.
    pub(super) fn note_filled(&mut self, run: Run, source: &impl PageSource) {
        self.big_run_frames =
            self.big_run_frames.saturating_add(run.bare_frames.min(MANY_FRAMES / 2));
        let from = self.first_unit_of(run) * FRAME_BYTES;
        let has_many = self.has_blocks() && self.big_run_frames >= MANY_FRAMES;
        let is_usual = !self.dear_blocks.are_dear() && !self.huge.is_hollow();
        if has_many && is_usual && !self.huge.is_of_runs() && from < self.huge.start() {
            if from < self.frontier_bytes {
                self.ask_from(from, Advice::Huge, source);
            }
            self.huge = HugePart::from_byte(from);
        }
    }

    /// The frame where the first unit begins that lies within the run or behind it. If the run
    /// fills less than seven eighths of its last unit, it is the frame behind that unit, since the
    /// run's last frames would bring the rest. (The units that it fills have asked for themselves.)
    fn first_unit_of(&self, run: Run) -> usize {
        let start = self.frame_of(run.start);
        let end = start + run.frames;
        let first = align_up(start, UNIT_FRAMES);
        let last = align_down(end, UNIT_FRAMES).max(first);
        let filled = end.saturating_sub(last);
        if filled > 0 && filled < NEARLY_UNIT_FRAMES { last + UNIT_FRAMES } else { first }
    }

    /// Asks for no huge pages while blocks are dear. Once they are no longer dear, asks for huge
    /// pages in what is committed from then on.
    #[cold]
    #[inline(never)]
    pub(super) fn follow_price(&mut self, source: &impl PageSource) {
        let are_dear = self.dear_blocks.are_dear();
        let from = self.huge.start();
        if are_dear && from < self.frontier_bytes {
            self.ask_from(from, Advice::Plain, source);
        }
        self.huge =
            if are_dear { HugePart::NOWHERE } else { HugePart::behind(self.frontier_bytes) };
    }

    /// How many committed frames lie in wholly clean units, counting only rows of at least `least`
    /// units.
    pub(super) fn empty_unit_frames(&mut self, least: usize) -> usize {
        let (mut frames, mut from) = (0, FrameId(0));
        while let Some((first, length)) = self.clean.next_free_run_with(from, UNIT_ORDER) {
            let end = (first.0 + length).min(self.frontier_frames());
            let whole = align_down(end, UNIT_FRAMES);
            let empty = whole.saturating_sub(align_up(first.0, UNIT_FRAMES));
            frames += if empty >= least * UNIT_FRAMES { empty } else { 0 };
            if end < first.0 + length {
                break;
            }
            from = FrameId(end);
        }
        frames
    }

    /// Does without huge pages in what is committed if only little of it is of use: `frames`
    /// frames, most of them `of_slabs` or else of runs. Has huge pages again if much is of use.
    /// What is committed later comes in huge pages all the same, until the next such look: a heap
    /// that grows that far has no holes for what it needs.
    pub(crate) fn choose_pages(&mut self, frames: usize, of_slabs: bool, source: &impl PageSource) {
        let is_hollow = self.is_hollow_with(frames, of_slabs);
        let changed_from = if is_hollow {
            self.huge.hollow_out(self.frontier_bytes)
        } else {
            self.huge.fill_in(self.frontier_bytes)
        };
        if let Some(from) = changed_from {
            self.ask_from(from, if is_hollow { Advice::Plain } else { Advice::Huge }, source);
        }
    }

    /// Whether the `frames` frames of use are less than three quarters of what was once committed;
    /// or less than seven eighths, if the region was hollow at the last look. The rest, which went
    /// back in pieces, would come again 2 MiB at a time, each for a single object. If most is not
    /// `of_slabs`, runs fill what comes again. Then half is enough (five eighths after a hollow
    /// look), and units from which all has gone, or moved elsewhere, do not count.
    fn is_hollow_with(&mut self, frames: usize, of_slabs: bool) -> bool {
        let usual = if of_slabs { 6 } else { 4 };
        let eighths = usual + usize::from(self.huge.is_hollow());
        let empty_frames = self.empty_unit_frames(if of_slabs { LONG_GAP_UNITS } else { 1 });
        frames < (self.frontier_frames() - empty_frames) / 8 * eighths
    }

    /// Does without huge pages in all that is committed, if only big runs have asked for them; or
    /// if something that is likely to stay untouched has come in them or has moved the frontier:
    /// `is_reached`. Whatever stayed huge would have to be known as such, since its pages come with
    /// others.
    pub(super) fn stay_plain(&mut self, is_reached: bool, source: &impl PageSource) {
        if (self.huge.is_of_runs() || is_reached)
            && let Some(from) = self.huge.withdraw(self.frontier_bytes)
        {
            self.ask_from(from, Advice::Plain, source);
        }
    }

    /// Asks for huge pages in what is committed from byte `from` on, or does without. In the latter
    /// case, what has come into clean frames there as parts of huge pages goes back, since nobody
    /// would know of it.
    #[inline(never)]
    pub(super) fn ask_from(&mut self, from: usize, advice: Advice, source: &impl PageSource) {
        let first = FrameId(from / FRAME_BYTES);
        let (start, bytes) = (self.at(first), self.frontier_bytes - from);
        // SAFETY: committed memory of this region.
        unsafe { source.advise_huge(start, bytes, advice == Advice::Huge) };
        if advice == Advice::Plain {
            self.decommit_clean(first, source);
        }
    }

    /// Has the whole units among `frames` clean frames from `first` on, which are going to be
    /// filled, come as huge pages, even where the region does without.
    pub(super) fn ask_for_units(&self, first: FrameId, frames: usize, source: &impl PageSource) {
        if !self.dear_blocks.are_dear() {
            self.advise_units(first, frames, Advice::Huge, source);
        }
    }

    /// Asks for huge pages, or asks for them no longer, in those whole units among `frames` clean
    /// frames from `first` on where the region does without. If the advice stayed after they have
    /// gone, the next object there would bring a whole unit that nobody knows of.
    #[inline(never)]
    pub(super) fn advise_units(
        &self,
        first: FrameId,
        frames: usize,
        advice: Advice,
        source: &impl PageSource,
    ) {
        let (first, end) = (align_up(first.0, UNIT_FRAMES), first.0 + frames);
        let bytes_to =
            |end: usize| align_down(end, UNIT_FRAMES).saturating_sub(first) * FRAME_BYTES;
        if bytes_to(end) == 0 || !self.has_units(source) {
            return;
        }
        let start = self.at(FrameId(first));
        if advice == Advice::Huge {
            // What went in parts has left a page table behind. The table goes with the whole (since
            // Linux 6.14). A refusal leaves it as it is.
            // SAFETY: clean frames below the frontier.
            let _ = unsafe { source.decommit(start, bytes_to(end)) };
        }
        let plain_end = self.huge.start() / FRAME_BYTES;
        let plain_bytes = bytes_to(end.min(plain_end));
        if plain_bytes > 0 {
            // SAFETY: as above.
            unsafe { source.advise_huge(start, plain_bytes, advice == Advice::Huge) };
        }
    }
}
