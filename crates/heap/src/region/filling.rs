//! Whether the program fills the large objects that it asks for.
//!
//! A buffer is often longer than what is ever put into it, and of clean memory only what was
//! touched is resident. Two things lose that advantage. One is huge pages. The other is runs that
//! begin wherever there is room: then the fronts of some lie where the ends of others were, until
//! all is resident. So some runs that held nothing when they were taken are probed later, to learn
//! what the next ones are likely to be.
//!
//! # Which runs are probed
//!
//! The last sixteen are waited for (`region/probe.rs` says how they are probed):
//! - A run that comes back is read.
//! - A run that is still in use when sixteen more have been taken is probed as it is, through the
//!   system and without a lock: its owner may write to it, have protected it, or serve its page
//!   faults. If its front reads as zero it is passed over, since it may yet be filled. Slabs of
//!   objects that have pages of their own are probed in this way, too.
//!
//! # What follows if most pages read as zero
//!
//! | what | which | the verdict comes | what follows |
//! |---|---|---|---|
//! | runs of 64 KiB to 2 MiB | come back | after some runs | the region is *sparse*, below |
//! | runs and slabs of any kind | are in use | after some of this kind | the next of the kind stay *plain*: they ask for no huge pages |
//! | runs of 2 MiB and more | come back | with the first | that run goes back to the system as a whole, below |
//!
//! In a sparse region runs of 64 KiB to 2 MiB stay plain. Besides:
//! - they begin at multiples of a slab, so that their fronts lie where fronts were;
//! - a cached run serves requests down to half its length: what is not touched costs nothing, and
//!   what was touched is still in the processor's cache;
//! - more may stay dirty, and threads may keep more (`backend/keeping.rs`, `lending.rs`), since it
//!   holds little.
//!
//! Most programs have few runs of 2 MiB or more, so the first that comes back is a verdict. (One
//! whose front reads as zero says nothing, since its pages may have moved to where it has grown.)
//! The run goes back because, if it became dirty memory, the part that is not resident would be
//! used before the part that is. If only big runs had asked for huge pages, nobody does any longer.
//! That is all: the next long runs still have huge pages in their own units. What reads as zero may
//! have been filled with zeros, and the next may be filled with something else. Another run that
//! comes back empty becomes dirty memory, unless others have come back filled since. So a program
//! that has such a run again and again keeps its memory.
//!
//! Once most of the long runs in use were seen to stay empty, those that came in huge pages before
//! hold all of their memory for nothing, and so would the next owner's. So they go back when they
//! are freed, if they read as zero for the most part.

use core::ptr::NonNull;

use hectare_base::rolled;
use hectare_buddy::FrameId;
use hectare_pages::PageSource;

use super::probe::{PAGES, Probe, Step, by_reading};
use super::units::UNIT_FRAMES;
use super::{FRAME_BYTES, Region, SLAB_FRAMES};

/// The most runs that are waited for. Beyond that the oldest is probed in use.
const AWAITED: usize = 16;

/// A slab is probed like a run of this length: a short one.
pub(super) const SLAB_PROBE_FRAMES: usize = SLAB_FRAMES - 1;

/// There is a verdict after this many pages. At twice as many, half are forgotten.
const MIN_PAGES_SEEN: u32 = 64;

/// Each time that a run in use agrees with the verdict, half as many are probed from then on, down
/// to one in 2⁵. Once one does not agree, all are probed again.
const MAX_EASE: u32 = 5;

/// The kinds of runs that are told apart. Each has verdicts of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Runs shorter than a slab, and slabs of objects that have pages of their own.
    Short,
    Middle,
    /// Runs of a huge page or more.
    Long,
}

impl Kind {
    /// The kind of a run of `frames` frames.
    fn of_run(frames: usize) -> Self {
        match frames {
            ..SLAB_FRAMES => Self::Short,
            SLAB_FRAMES..UNIT_FRAMES => Self::Middle,
            UNIT_FRAMES.. => Self::Long,
        }
    }
}

/// What was seen of runs and slabs.
#[derive(Debug)]
pub(super) struct Filling {
    /// Those waited for. They held nothing when they were taken.
    awaited: [Option<Probe>; AWAITED],
    next: usize,
    /// The run or slab whose turn it is to be probed in use.
    due: Option<Probe>,
    returned: Seen,
    long_returned: Seen,
    /// By [`Kind`].
    in_use: [Seen; 3],
}

/// How many pages were probed, and how many of them were filled.
#[derive(Debug)]
struct Seen {
    pages: u32,
    filled: u32,
    /// One in 2 to the power of this of the runs in use is probed. 0 until there is a verdict.
    ease: u32,
}

impl Seen {
    const NOTHING: Self = Self { pages: 0, filled: 0, ease: 0 };

    #[inline(never)]
    fn note(&mut self, filled_pages: usize) {
        if self.pages >= 2 * MIN_PAGES_SEEN {
            self.pages /= 2;
            self.filled /= 2;
        }
        self.pages += PAGES as u32;
        self.filled += filled_pages as u32;
    }

    /// Whether there is a verdict.
    fn is_enough(&self) -> bool {
        self.pages >= MIN_PAGES_SEEN
    }

    fn is_mostly_empty(&self) -> bool {
        self.filled < self.pages / 2
    }

    fn is_filled_for_sure(&self) -> bool {
        self.is_enough() && self.filled >= self.pages / 4 * 3
    }

    fn is_mostly_empty_for_sure(&self) -> bool {
        self.is_enough() && self.is_mostly_empty()
    }

    /// Whether it is the turn of the `nth` run in use to be probed.
    fn is_turn_of(&self, nth: u32) -> bool {
        nth.is_multiple_of(1 << self.ease)
    }

    /// Notes what was seen of a run in use.
    fn note_in_use(&mut self, filled_pages: usize) {
        let is_as_expected =
            self.is_enough() && (2 * filled_pages < PAGES) == self.is_mostly_empty();
        self.ease = if is_as_expected { MAX_EASE.min(self.ease + 1) } else { 0 };
        self.note(filled_pages);
    }
}

impl Filling {
    pub(super) const fn new() -> Self {
        Self {
            awaited: [None; AWAITED],
            next: 0,
            due: None,
            returned: Seen::NOTHING,
            long_returned: Seen::NOTHING,
            in_use: [const { Seen::NOTHING }; 3],
        }
    }

    /// Notes that `frames` frames that hold nothing were taken at `start`. The run that they
    /// replace among those waited for may become due to be probed.
    pub(super) fn note_taken(&mut self, start: NonNull<u8>, frames: usize) {
        let oldest = self.awaited[self.next % AWAITED].replace(Probe::of(start, frames));
        self.next = self.next.wrapping_add(1);
        let nth = self.next as u32;
        let is_turn = |run: &Probe| self.in_use[Kind::of_run(run.frames) as usize].is_turn_of(nth);
        self.due = oldest.filter(is_turn);
    }

    /// Notes what was seen of a run in use.
    fn note_in_use(&mut self, run: Probe, filled_pages: usize) {
        let kind = Kind::of_run(run.frames);
        self.in_use[kind as usize].note_in_use(filled_pages);
        if kind == Kind::Middle && self.in_use[kind as usize].is_filled_for_sure() {
            self.returned = Seen::NOTHING;
        }
    }

    /// Forgets the run at `start`, which comes back. Returns whether it was waited for.
    #[inline(never)]
    pub(super) fn forget(&mut self, start: NonNull<u8>) -> bool {
        let is_it = |awaited: &Option<Probe>| awaited.is_some_and(|run| run.start == start);
        let place = rolled(&self.awaited).iter().position(is_it);
        place.is_some_and(|place| self.awaited[place].take().is_some())
    }

    /// Probes a run that comes back, if it is waited for and not short, and notes what it saw. Of a
    /// long run whose front reads as zero it notes nothing. Returns whether it noted anything.
    ///
    /// # Safety
    /// The frames of the run at `start` are committed memory that nobody uses.
    pub(super) unsafe fn probe(&mut self, start: NonNull<u8>, frames: usize) -> bool {
        if !self.forget(start) {
            return false;
        }
        // SAFETY: the caller's promise. Only words of the run are read.
        let is_set = unsafe { by_reading() };
        let seen = match Kind::of_run(frames) {
            Kind::Middle => &mut self.returned,
            Kind::Long if is_set(start) => &mut self.long_returned,
            Kind::Short | Kind::Long => return false,
        };
        seen.note(Probe::of(start, frames).filled_pages(Step::EighthPage, &is_set));
        true
    }

    /// Whether most of what is in use of this kind was never touched.
    fn are_empty(&self, kind: Kind) -> bool {
        self.in_use[kind as usize].is_mostly_empty_for_sure()
    }

    /// Whether most of the long runs that came back was never touched.
    pub(super) fn are_long_untouched(&self) -> bool {
        self.long_returned.is_mostly_empty()
    }
}

impl Region {
    /// The run in use that is to be [probed](Probe::in_use), once.
    #[inline]
    pub(crate) fn due_probe(&mut self) -> Option<Probe> {
        self.filling.due.take()
    }

    /// Notes what was seen of a run in use.
    pub(crate) fn note_probe(&mut self, run: Probe, filled_pages: usize) {
        self.filling.note_in_use(run, filled_pages);
        self.has_news = true;
    }

    /// Whether objects that have pages of their own are likely to leave most of these untouched.
    pub(super) fn leaves_pages_bare(&self) -> bool {
        self.is_for_plain(SLAB_PROBE_FRAMES)
    }

    /// Whether most of the runs that came back was never touched.
    #[inline(never)]
    pub(crate) fn is_sparse(&self) -> bool {
        self.filling.returned.is_mostly_empty_for_sure()
    }

    /// Whether a run of `frames` frames is likely to come back mostly untouched.
    pub(super) fn is_for_sparse(&self, frames: usize) -> bool {
        (SLAB_FRAMES..UNIT_FRAMES).contains(&frames) && self.is_sparse()
    }

    /// Whether a run of `frames` frames that is asked for is likely to be filled, judging by others
    /// in use.
    pub(super) fn is_for_filled(&self, frames: usize) -> bool {
        self.filling.in_use[Kind::of_run(frames) as usize].is_filled_for_sure()
    }

    /// Whether a run of `frames` frames that is asked for is likely to stay mostly untouched.
    #[inline(never)]
    pub(super) fn is_for_plain(&self, frames: usize) -> bool {
        let kind = Kind::of_run(frames);
        self.filling.are_empty(kind) || kind == Kind::Middle && self.is_sparse()
    }

    /// Whether the run that comes back is a long one that came in huge pages and stayed mostly
    /// empty, as most long runs in use were seen to: all of it is resident. (A run that came page
    /// by page holds little.)
    ///
    /// # Safety
    /// The frames of the run at `start` are committed memory that nobody uses.
    #[inline(never)]
    pub(super) unsafe fn holds_for_nothing(
        &self,
        start: NonNull<u8>,
        frames: usize,
        source: &impl PageSource,
    ) -> bool {
        if Kind::of_run(frames) != Kind::Long || !self.filling.are_empty(Kind::Long) {
            return false;
        }
        // SAFETY: within the run.
        let middle = unsafe { start.add(frames / 2 * FRAME_BYTES) };
        // SAFETY: as in `Filling::probe`.
        let is_set = unsafe { by_reading() };
        source.is_resident(middle) == Some(true)
            && 2 * Probe::of(start, frames).filled_pages(Step::EighthPage, &is_set) < PAGES
    }

    /// Gives back a long run that was mostly never touched. If only big runs had asked for huge
    /// pages, nobody does any more, until there are many such runs again.
    pub(super) fn decommit_untouched(
        &mut self,
        first: FrameId,
        frames: usize,
        source: &impl PageSource,
    ) {
        if !self.decommit_run(first, frames, source) {
            return;
        }
        self.big_run_frames = 0;
        self.stay_plain(false, source);
        if !self.is_huge_from(first) {
            // SAFETY: committed memory of this region.
            unsafe { source.advise_huge(self.at(first), frames * FRAME_BYTES, false) };
        }
    }
}

#[cfg(test)]
mod tests {
    use hectare_pages::Os;

    use super::*;

    #[test]
    fn only_what_is_waited_for_is_probed() {
        const MIDDLE: usize = SLAB_FRAMES * FRAME_BYTES;
        let bytes = UNIT_FRAMES * FRAME_BYTES;
        let start = Os.get(bytes, FRAME_BYTES).expect("memory");
        // SAFETY: within the memory just taken.
        let [first, second, short] = [0, 1, 2].map(|i| unsafe { start.add(i * MIDDLE) });
        let mut filling = Filling::new();
        for (run, frames) in
            [(first, SLAB_FRAMES), (second, SLAB_FRAMES), (short, SLAB_PROBE_FRAMES)]
        {
            filling.note_taken(run, frames);
        }
        // SAFETY: committed memory that nobody uses.
        let probe = |filling: &mut Filling, run, frames| unsafe { filling.probe(run, frames) };
        assert!(filling.forget(second) && !filling.forget(second));
        assert!(!probe(&mut filling, second, SLAB_FRAMES));
        assert!(!probe(&mut filling, short, SLAB_PROBE_FRAMES), "short ones come and go");
        assert_eq!(filling.returned.pages, 0);
        assert!(
            probe(&mut filling, first, SLAB_FRAMES) && !probe(&mut filling, first, SLAB_FRAMES)
        );
        assert_eq!((filling.returned.pages, filling.returned.filled), (8, 0));
        for front in [0, 1] {
            // SAFETY: the first byte of the memory.
            unsafe { start.write(front) };
            filling.note_taken(start, UNIT_FRAMES);
            assert_eq!(probe(&mut filling, start, UNIT_FRAMES), front > 0, "by its front");
        }
        assert_eq!((filling.long_returned.pages, filling.long_returned.filled), (8, 1));
        // SAFETY: taken above, and of no use any more.
        unsafe { Os.release(start, bytes) };
    }

    #[test]
    fn runs_that_are_as_expected_are_probed_less_often() {
        let bytes = SLAB_FRAMES * FRAME_BYTES;
        let mut run_of = |filled: usize| {
            let start = Os.get(bytes, FRAME_BYTES).expect("memory");
            for frame in 0..filled {
                // SAFETY: within the memory just taken.
                unsafe { start.add(frame * FRAME_BYTES).write(1) };
            }
            Probe::of(start, SLAB_FRAMES)
        };
        let [full, empty] = [SLAB_FRAMES, 1].map(&mut run_of);
        let mut seen = Seen::NOTHING;
        let mut nth = 0;
        // How many runs pass until one is probed.
        let mut passes = |seen: &mut Seen, run: Probe| {
            let first = nth;
            let before = (seen.pages, seen.filled);
            while (seen.pages, seen.filled) == before {
                nth += 1;
                if seen.is_turn_of(nth)
                    && let Some(filled_pages) = run.in_use(&Os)
                {
                    seen.note_in_use(filled_pages);
                }
            }
            nth - first
        };
        for (turn, expected) in [1; 9].into_iter().chain([1, 2, 4, 16, 32, 32]).enumerate() {
            assert_eq!(passes(&mut seen, full), expected, "turn {turn}");
        }
        assert_eq!((passes(&mut seen, empty), seen.ease), (32, 0));
        for run in [full, empty] {
            // SAFETY: taken above, and of no use any more.
            unsafe { Os.release(run.start, bytes) };
        }
    }
}
