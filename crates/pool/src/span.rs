//! Memory of the page source as bytes with bounds.
//!
//! The pools keep headers, links and tables inside the memory that they hand out. All accesses to
//! them go through [`Span`], which checks each against the span's end. So a wrong header causes a
//! panic, not a stray write, and the layouts themselves need no `unsafe`.
//!
//! Invariants
//! 1. A span's bytes are committed memory of one source, from `base` on, for as long as any copy of
//!    the span is used. The code that makes the span guarantees that.
//! 2. A pool reads and writes through spans only its own bookkeeping, under the lock that guards
//!    it, or as atomic words; the bytes of a live object are touched only for its owner.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// `len` bytes of committed memory at `base`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a span is an address and a length; by invariant 2 the memory behind it is locked or
// atomic.
unsafe impl Send for Span {}

impl Span {
    /// # Safety
    /// As invariant 1 says: `len` committed bytes at `base`, while the span or a copy is used.
    pub(crate) const unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len }
    }

    #[inline]
    pub(crate) const fn base(self) -> NonNull<u8> {
        self.base
    }

    #[inline]
    pub(crate) const fn len(self) -> usize {
        self.len
    }

    #[inline]
    fn check(self, offset: usize, len: usize) {
        if offset > self.len || len > self.len - offset {
            outside(offset, len, self.len);
        }
    }

    #[inline]
    fn at<T>(self, offset: usize) -> *mut T {
        self.check(offset, size_of::<T>());
        // SAFETY: within the span, just checked.
        unsafe { self.base.add(offset) }.as_ptr().cast()
    }

    #[inline]
    pub(crate) fn read_u16(self, offset: usize) -> u16 {
        let place = self.at::<u16>(offset);
        // SAFETY: `at` checked the bounds; by invariant 1 the memory is committed.
        unsafe { place.read_unaligned() }
    }

    #[inline]
    pub(crate) fn write_u16(self, offset: usize, value: u16) {
        let place = self.at::<u16>(offset);
        // SAFETY: as in `read_u16`; by invariant 2 it is ours to write.
        unsafe { place.write_unaligned(value) };
    }

    #[inline]
    pub(crate) fn read_pointer(self, offset: usize) -> Option<NonNull<u8>> {
        let place = self.at::<Option<NonNull<u8>>>(offset);
        // SAFETY: as in `read_u16`; a pool reads pointers only where it wrote one.
        unsafe { place.read_unaligned() }
    }

    #[inline]
    pub(crate) fn write_pointer(self, offset: usize, value: Option<NonNull<u8>>) {
        let place = self.at::<Option<NonNull<u8>>>(offset);
        // SAFETY: as in `write_u16`.
        unsafe { place.write_unaligned(value) };
    }

    /// The word at `offset`; both `offset` and the span's address are multiples of 4.
    #[inline]
    pub(crate) fn word(self, offset: usize) -> &'static AtomicU32 {
        let place = self.at::<u32>(offset);
        if !place.is_aligned() {
            misaligned(offset);
        }
        // SAFETY: in bounds and aligned; by invariants 1 and 2 the memory outlives every use, and
        // words that threads share are only ever touched as atomics.
        unsafe { AtomicU32::from_ptr(place) }
    }

    #[inline]
    pub(crate) fn read_u32(self, offset: usize) -> u32 {
        self.word(offset).load(Relaxed)
    }

    #[inline]
    pub(crate) fn write_u32(self, offset: usize, value: u32) {
        self.word(offset).store(value, Relaxed);
    }

    /// Copies `len` bytes at `from_offset` of `from` to `offset`. The two ranges do not overlap.
    pub(crate) fn copy_from(self, offset: usize, from: Self, from_offset: usize, len: usize) {
        self.check(offset, len);
        from.check(from_offset, len);
        // SAFETY: within the span, just checked.
        let to = unsafe { self.base.add(offset) };
        // SAFETY: within the other span, just checked.
        let from = unsafe { from.base.add(from_offset) };
        // SAFETY: both in bounds and committed; by invariant 2 the caller owns both ranges.
        unsafe { to.copy_from_nonoverlapping(from, len) };
    }

    /// Copies `data` to `offset`.
    #[inline]
    pub(crate) fn copy_in(self, offset: usize, data: &[u8]) {
        self.check(offset, data.len());
        // SAFETY: within the span, just checked.
        let place = unsafe { self.base.add(offset) };
        // SAFETY: in bounds; `data` is borrowed, so it does not overlap an object's memory.
        unsafe { place.copy_from_nonoverlapping(NonNull::from(data).cast(), data.len()) };
    }

    /// The `len` bytes at `offset`.
    ///
    /// # Safety
    /// They are a live object's and initialised, and nobody writes them while the slice lives.
    #[inline]
    pub(crate) unsafe fn bytes<'a>(self, offset: usize, len: usize) -> &'a [u8] {
        self.check(offset, len);
        // SAFETY: within the span, just checked.
        let place = unsafe { self.base.add(offset) };
        // SAFETY: in bounds, committed; the rest is the caller's promise.
        unsafe { core::slice::from_raw_parts(place.as_ptr(), len) }
    }
}

/// By value and out of line: a message that borrowed its numbers would force them into memory on
/// the path of every access.
#[cold]
#[inline(never)]
fn outside(offset: usize, len: usize, span_len: usize) -> ! {
    panic!("a pool's page is damaged: {len} bytes at offset {offset} of {span_len}");
}

#[cold]
#[inline(never)]
fn misaligned(offset: usize) -> ! {
    panic!("a pool's word at offset {offset} is misaligned");
}
