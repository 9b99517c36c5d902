//! Memory on its way back to the system: many ranges to a call, since each call takes as long as giving back
//! several pages.

use core::ptr::NonNull;

use hectare_pages::{PageRange, PageSource};

/// How many ranges go in a call: what the stack holds easily.
const MOST: usize = 64;

/// Ranges that nobody uses.
pub(crate) struct Leaving {
    ranges: [PageRange; MOST],
    len: usize,
    bytes: usize,
}

/// What became of them.
pub(crate) struct Gone<'a> {
    pub(crate) ranges: &'a [PageRange],
    pub(crate) bytes: usize,
    /// Whether all went; else it is not known which.
    pub(crate) all: bool,
}

impl Leaving {
    pub(crate) const NONE: Self = Self {
        ranges: [PageRange { start: NonNull::dangling(), bytes: 0 }; MOST],
        len: 0,
        bytes: 0,
    };

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether there is no room for more.
    pub(crate) fn is_full(&self) -> bool {
        self.len == MOST
    }

    /// Adds one, for which there must be room. Returns whether there is none for another.
    pub(crate) fn add(&mut self, start: NonNull<u8>, bytes: usize) -> bool {
        self.ranges[self.len] = PageRange { start, bytes };
        self.len += 1;
        self.bytes += bytes;
        self.is_full()
    }

    /// Gives all back; none is left.
    ///
    /// # Safety
    /// They are committed memory of `source`, and nothing in them is in use.
    #[inline(never)]
    pub(crate) unsafe fn decommit(&mut self, source: &impl PageSource) -> Gone<'_> {
        let ranges = &self.ranges[..core::mem::take(&mut self.len)];
        // SAFETY: the caller's promise.
        let bytes = unsafe { source.decommit_all(ranges) };
        Gone { ranges, bytes, all: bytes == core::mem::take(&mut self.bytes) }
    }
}
