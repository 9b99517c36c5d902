//! Frames of hardened objects that the system refuses to open again.
//!
//! Opening a sealed page counts as more memory against a limit (`RLIMIT_DATA`, or no overcommit).
//! If the system refuses, all that the page belongs to is sealed. It then counts as nothing and
//! holds nothing, and what comes back next can be opened in its stead. Shut frames are opened
//! before the hardened front takes more memory.
//!
//! ```text
//!   run table:   │ length │ next │ … │     first ─▶ of the frames shut last
//! ```
//! Lengths and links of shut frames lie in the run table. Nobody else looks there while the page
//! map says that no run begins there. A single frame has but one entry, since the next may be
//! another run's: this entry is its link, with [`SINGLE`] set.

use core::ptr::NonNull;

use hectare_buddy::FrameId;
use hectare_pages::PageSource;

use super::{FRAME_BYTES, Region};

/// More than any length or link.
const SINGLE: usize = 1 << 31;

/// What is shut: nothing, if zeroed.
#[derive(Debug)]
pub(super) struct Shut {
    /// The first of the frames that were shut last, plus one.
    first: usize,
    frames: usize,
}

impl Shut {
    pub(super) const NOTHING: Self = Self { first: 0, frames: 0 };
}

impl Region {
    /// Takes back frames that are the caller's, some of which cannot be opened.
    #[cold]
    #[inline(never)]
    pub(crate) fn shut(&mut self, start: NonNull<u8>, frames: usize, source: &impl PageSource) {
        self.filling.forget(start);
        // Frames that cannot be sealed either count as before.
        // SAFETY: below the frontier, and in use by nobody.
        let _ = unsafe { source.seal(start, frames * FRAME_BYTES) };
        if frames > 1 {
            self.set_run_length(start, frames);
            self.set_run_length(second(start), self.shut.first);
        } else {
            self.set_run_length(start, SINGLE | self.shut.first);
        }
        self.shut.first = self.frame_of(start) + 1;
        self.shut.frames += frames;
    }

    /// Opens the frames that were shut last, which frees them. Returns whether there were any and
    /// they could be opened.
    #[cold]
    #[inline(never)]
    pub(crate) fn reopen(&mut self, source: &impl PageSource) -> bool {
        let Some(first) = self.shut.first.checked_sub(1).map(FrameId) else { return false };
        let start = self.at(first);
        let (frames, next) = self.shut_at(start);
        // SAFETY: below the frontier, and in use by nobody.
        if unsafe { source.commit(start, frames * FRAME_BYTES) }.is_err() {
            return false;
        }
        self.shut.first = next;
        self.shut.frames -= frames;
        self.decommit_run(first, frames, source);
        true
    }

    /// How many frames are shut from `start` on, and the first frame of those shut before, plus one.
    fn shut_at(&self, start: NonNull<u8>) -> (usize, usize) {
        let length = self.run_entry(start).word();
        if length & SINGLE == 0 {
            (length, self.run_entry(second(start)).word())
        } else {
            (1, length & !SINGLE)
        }
    }

    /// Whether any frames are shut.
    pub(crate) fn has_shut(&self) -> bool {
        self.shut.first > 0
    }

    /// How many frames are shut; panics unless the list has as many. For tests.
    #[cfg(any(test, feature = "validate"))]
    pub(super) fn validate_shut(&self) -> usize {
        let (mut next, mut frames) = (self.shut.first, 0);
        while next > 0 && frames <= self.shut.frames {
            let (length, before) = self.shut_at(self.at(FrameId(next - 1)));
            frames += length;
            next = before;
        }
        assert_eq!(frames, self.shut.frames, "frames that are shut");
        frames
    }
}

/// The second frame of two or more.
fn second(start: NonNull<u8>) -> NonNull<u8> {
    // SAFETY: within them.
    unsafe { start.add(FRAME_BYTES) }
}
