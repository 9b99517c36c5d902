//! Memory on its way back to the system: many ranges to a call, since each call takes as long as giving back
//! several pages.

use core::mem::MaybeUninit;
use core::ptr::NonNull;

use hectare_pages::{PageRange, PageSource};

/// How many ranges go in a call: 4 KiB of the stack. Each call interrupts all other processors on which the program
/// runs, so the more the better.
pub(crate) const MOST: usize = 256;

/// Ranges that nobody uses.
pub(crate) struct Leaving {
    /// The first `len` of them are written.
    ranges: [MaybeUninit<PageRange>; MOST],
    len: usize,
}

/// What became of them.
pub(crate) struct Gone<'a> {
    pub(crate) ranges: &'a [PageRange],
    pub(crate) bytes: usize,
    /// Whether all went; else it is not known which.
    pub(crate) all: bool,
}

impl Leaving {
    pub(crate) const NONE: Self = Self { ranges: [MaybeUninit::uninit(); MOST], len: 0 };

    /// Adds one, of which there may be [`MOST`]. Returns how many there are.
    pub(crate) fn add(&mut self, start: NonNull<u8>, bytes: usize) -> usize {
        self.ranges[self.len].write(PageRange { start, bytes });
        self.len += 1;
        self.len
    }

    /// Gives all back; none is left.
    ///
    /// # Safety
    /// They are committed memory of `source`, and nothing in them is in use.
    pub(crate) unsafe fn decommit(&mut self, source: &impl PageSource) -> Gone<'_> {
        let ranges = &self.ranges[..core::mem::take(&mut self.len)];
        // SAFETY: the first `len` are written.
        let ranges = unsafe { ranges.assume_init_ref() };
        // SAFETY: the caller's promise.
        let bytes = unsafe { source.decommit_all(ranges) };
        Gone { ranges, bytes, all: bytes == ranges.iter().map(|range| range.bytes).sum() }
    }
}
