//! Memory on its way back to the system. Many ranges go in one call, since each call takes as long
//! as giving back several pages.

use core::ptr::NonNull;

use hectare_pages::{PageRange, PageSource};

/// Ranges of memory that nobody uses.
pub(crate) struct Leaving {
    ranges: [PageRange; Self::MOST],
    len: usize,
    bytes: usize,
}

/// What became of the ranges.
pub(crate) struct Gone<'a> {
    pub(crate) ranges: &'a [PageRange],
    pub(crate) bytes: usize,
    /// Whether all went. If not, it is not known which did.
    pub(crate) all: bool,
}

impl Leaving {
    /// How many ranges go in a call: as many as the stack easily holds.
    pub(crate) const MOST: usize = 64;

    pub(crate) const NONE: Self = Self {
        ranges: [PageRange { start: NonNull::dangling(), bytes: 0 }; Self::MOST],
        len: 0,
        bytes: 0,
    };

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether there is no room for more.
    pub(crate) fn is_full(&self) -> bool {
        self.len == Self::MOST
    }

    /// Adds a range, for which there must be room.
    pub(crate) fn add(&mut self, start: NonNull<u8>, bytes: usize) {
        self.ranges[self.len] = PageRange { start, bytes };
        self.len += 1;
        self.bytes += bytes;
    }

    /// Gives all ranges back. None is left.
    ///
    /// # Safety
    /// The ranges are committed memory of `source`, and nothing in them is in use.
    #[inline(never)]
    pub(crate) unsafe fn decommit(&mut self, source: &impl PageSource) -> Gone<'_> {
        let ranges = &self.ranges[..core::mem::take(&mut self.len)];
        // SAFETY: the caller's promise.
        let bytes = unsafe { source.decommit_all(ranges) };
        Gone { ranges, bytes, all: bytes == core::mem::take(&mut self.bytes) }
    }
}
