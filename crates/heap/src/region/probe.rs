//! How a run is probed, to learn whether the program fills it (`region/filling.rs`).
//!
//! A *probe* checks whether a few words in some of the run's pages are set.
//!
//! Asking the system which pages are resident would tell zeros from what was never written. But
//! that is one more call that a sandbox may not know, and of a huge page all is resident. So for
//! runs the system is only asked which long ones have huge pages.

use core::ptr::NonNull;

use hectare_pages::PageSource;

use super::FRAME_BYTES;

/// How many pages of a run are probed.
pub(super) const PAGES: usize = 8;

/// How far apart the probed words lie.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
pub(crate) enum Step {
    /// If one word tells of the whole page.
    Page = FRAME_BYTES,
    /// In a run in use, where each word takes a call of 0.4 µs.
    HalfPage = FRAME_BYTES / 2,
    /// If words can be read, or all pages are resident.
    EighthPage = FRAME_BYTES / 8,
}

/// A run, or the committed part of a huge block, that is to be probed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Probe {
    pub(super) start: NonNull<u8>,
    pub(super) frames: usize,
}

impl Probe {
    /// A probe of the `frames` frames from `start` on.
    pub(crate) fn of(start: NonNull<u8>, frames: usize) -> Self {
        Self { start, frames }
    }

    /// Whether three quarters of the probed pages are filled, according to `is_set`, which is
    /// called with words in them.
    pub(crate) fn is_full(self, step: Step, is_set: &dyn Fn(NonNull<u8>) -> bool) -> bool {
        self.filled_pages(step, is_set) >= PAGES / 4 * 3
    }

    /// In how many of [`PAGES`] pages of a run in use something was written. `None` if its front
    /// was not written. Must be called without a lock: a program can have a thread serve the page
    /// faults of its objects, and that thread may allocate. It does not matter whether the run is
    /// still there, or whose it is.
    #[inline(never)]
    pub(crate) fn in_use(self, source: &impl PageSource) -> Option<usize> {
        let is_set = |word: NonNull<u8>| source.is_zero(word.cast()) == Some(false);
        is_set(self.start).then(|| self.filled_pages(Step::HalfPage, &is_set))
    }

    /// In how many of [`PAGES`] pages one of the words that lie a `step` apart is set, according to
    /// `is_set`, which is called with places inside the run. (One copy for all callers: unrolled
    /// for each it would add a kilobyte to every process.)
    #[inline(never)]
    pub(super) fn filled_pages(self, step: Step, is_set: &dyn Fn(NonNull<u8>) -> bool) -> usize {
        let step = step as usize;
        let mut filled = 0_u32;
        for place in 0..PAGES * FRAME_BYTES / step {
            let at = place * step;
            let (page, word) = (at / FRAME_BYTES, at % FRAME_BYTES);
            let first = page * self.frames / PAGES * FRAME_BYTES;
            // SAFETY: within the run: page < PAGES, word < FRAME_BYTES.
            let word = unsafe { self.start.add(first + word) };
            if filled >> page & 1 == 0 && is_set(word) {
                filled |= 1 << page;
            }
        }
        filled.count_ones() as usize
    }
}

/// Checks whether a word is set by reading it.
///
/// # Safety
/// It is called only with words, aligned as such, of committed memory that nobody writes to.
pub(super) unsafe fn by_reading() -> impl Fn(NonNull<u8>) -> bool {
    // SAFETY: the caller's promise.
    |word| unsafe { word.cast::<usize>().read() != 0 }
}
