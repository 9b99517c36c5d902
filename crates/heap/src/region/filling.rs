//! Whether the program fills the large objects that it asks for.
//!
//! A buffer is often longer than what is ever put into it, and of clean memory nothing is there but
//! what was touched. That is lost by huge pages, and where runs begin wherever there is room: then the
//! fronts of some lie where the ends of others were, until all is there. So of the clean runs taken
//! lately each is looked at when it comes back: in some pages of it, a word of each eighth. Where most of
//! them still read as zero the region is *sparse*:
//! - runs begin at multiples of a slab, so that their fronts lie where fronts were;
//! - a kept run serves requests down to half its length: what is not touched costs nothing, and what
//!   was is still in the processor's cache;
//! - runs ask for no huge pages;
//! - more may stay dirty, and threads may keep more (`backend/keeping.rs`), since it holds little.
//!
//! To ask the system which pages are there would tell zeros from what was never written, but it is one
//! call more that a sandbox may not know.

use core::ptr::NonNull;

use hectare_buddy::FrameId;
use hectare_pages::PageSource;

use super::huge_pages::HUGE_PAGES_FROM_BYTES;
use super::units::UNIT_FRAMES;
use super::{FRAME_BYTES, Region, Run, SLAB_FRAMES};

/// How many runs are waited for at most; then the oldest is forgotten.
const AWAITED: usize = 16;

/// How many pages of a run are looked at, and how many words of each.
const PAGES: usize = 8;
const WORDS: usize = 8;

/// After so many pages there is a verdict; of twice as many, half are forgotten.
const MIN_PAGES_SEEN: u32 = 64;

/// What was seen of the runs.
#[derive(Debug)]
pub(super) struct Filling {
    /// Where runs begin that were clean when they were taken.
    awaited: [Option<NonNull<u8>>; AWAITED],
    next: usize,
    pages_seen: u32,
    pages_filled: u32,
}

impl Filling {
    pub(super) const fn new() -> Self {
        Self { awaited: [None; AWAITED], next: 0, pages_seen: 0, pages_filled: 0 }
    }

    /// Whether most of what was asked for stayed untouched.
    pub(super) fn is_sparse(&self) -> bool {
        self.pages_seen >= MIN_PAGES_SEEN && self.pages_filled < self.pages_seen / 2
    }

    /// Notes that a run was taken, if it is worth a look.
    pub(super) fn note_taken(&mut self, run: &Run) {
        if run.clean && (SLAB_FRAMES..UNIT_FRAMES).contains(&run.frames) {
            self.awaited[self.next % AWAITED] = Some(run.start);
            self.next = self.next.wrapping_add(1);
        }
    }

    /// Looks at a run that comes back, if it is waited for. Whether it was.
    ///
    /// # Safety
    /// The `frames` frames from `start` are committed memory that nobody uses.
    pub(super) unsafe fn look(&mut self, start: NonNull<u8>, frames: usize) -> bool {
        let is_awaited = |awaited: &&mut Option<NonNull<u8>>| **awaited == Some(start);
        let Some(awaited) = self.awaited.iter_mut().find(is_awaited) else { return false };
        *awaited = None;
        let is_filled = |page: &usize| {
            let first = page * frames / PAGES * FRAME_BYTES;
            (0..WORDS).any(|word| {
                // SAFETY: within the run: page < PAGES, word < WORDS.
                let word = unsafe { start.add(first + word * (FRAME_BYTES / WORDS)) };
                // SAFETY: committed, aligned to a word, and nobody writes there.
                unsafe { word.cast::<usize>().read() != 0 }
            })
        };
        let filled = (0..PAGES).filter(is_filled).count();
        if self.pages_seen >= 2 * MIN_PAGES_SEEN {
            self.pages_seen /= 2;
            self.pages_filled /= 2;
        }
        self.pages_seen += PAGES as u32;
        self.pages_filled += filled as u32;
        true
    }
}

impl Region {
    /// Whether most of what is in runs was never touched.
    pub(crate) fn is_sparse(&self) -> bool {
        self.filling.is_sparse()
    }

    /// Whether a run of `frames` frames that is asked for will stay untouched for the most part.
    pub(super) fn is_for_sparse(&self, frames: usize) -> bool {
        (SLAB_FRAMES..UNIT_FRAMES).contains(&frames) && self.is_sparse()
    }

    /// Does without huge pages in what was committed behind `frontier`, and where only long runs have
    /// asked for them.
    pub(super) fn stay_plain(&mut self, frontier: usize, source: &impl PageSource) {
        let is_of_runs = self.huge_from < HUGE_PAGES_FROM_BYTES;
        let from = if is_of_runs { self.huge_from } else { self.huge_from.max(frontier) };
        if from < self.frontier {
            let start = self.at(FrameId(from / FRAME_BYTES));
            // SAFETY: committed memory of this region.
            unsafe { source.advise_huge(start, self.frontier - from, false) };
            self.huge_from = self.frontier.max(HUGE_PAGES_FROM_BYTES);
        }
    }
}
