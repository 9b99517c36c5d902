//! Places in a shard, and the memory that they name.
//!
//! A shard reserves one contiguous range of address space, as large as it may ever become. It
//! commits the range page by page: from the start for blocks, from the end for itself and its
//! cells. A [`Place`] counts 4-byte units from the start, so turning one into an address takes one
//! addition. An area has at most 2 GiB, so that one block, whose size has 29 bits, may fill all of
//! it.

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use hectare_pages::{PageSource, SourceError};

use super::block::Head;
use super::cells::Spot;
use crate::pin::PinCell32;
use crate::span::Span;
use crate::table::{Entry, Table};

/// The bytes in a unit. Every block is as many units as it needs.
pub(super) const UNIT: usize = 4;
/// The most that a shard can reserve; half the address space if that is less.
pub(super) const MAX_AREA_BYTES: usize = {
    assert!(Head::SIZE_BITS <= Spot::PLACE_BITS);
    let shift = Head::SIZE_BITS + UNIT.trailing_zeros();
    1 << if shift < usize::BITS - 2 { shift } else { usize::BITS - 2 }
};

/// A unit of a shard's memory, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(pub(super) u32);

impl Place {
    /// Beyond every place.
    pub(super) const END: Self = Self(u32::MAX);

    #[inline]
    pub(super) const fn forward(self, units: usize) -> Self {
        Self(self.0 + units as u32)
    }

    #[inline]
    pub(super) const fn backward(self, units: usize) -> Self {
        Self(self.0 - units as u32)
    }

    #[inline]
    pub(super) const fn offset_bytes(self) -> usize {
        self.0 as usize * UNIT
    }
}

/// A shard's range of address space.
#[derive(Debug, Clone, Copy)]
pub(super) struct Area {
    base: NonNull<u8>,
    /// The number of the last unit, all ones: the range is a power of two.
    last_unit: u32,
}

// SAFETY: an address and a length; the memory there is locked or atomic, see `Span`.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    /// Reserves `most_bytes`, or as much of that as the source has, down to `least_bytes`; both are
    /// powers of two.
    pub(super) fn reserve(
        source: &impl PageSource,
        most_bytes: usize,
        least_bytes: usize,
    ) -> Result<Self, SourceError> {
        let page_bytes = source.page_bytes();
        let mut bytes = most_bytes;
        loop {
            match source.reserve(bytes, page_bytes) {
                Ok(base) => return Ok(Self { base, last_unit: (bytes / UNIT - 1) as u32 }),
                Err(_) if bytes > least_bytes => bytes = (bytes / 4).max(least_bytes),
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends the reservation.
    ///
    /// # Safety
    /// The range is used no more; `source` is the one that it was reserved from.
    pub(super) unsafe fn release(self, source: &impl PageSource) {
        // SAFETY: the whole reservation, unused by the caller's promise.
        unsafe { source.release(self.base, self.bytes()) };
    }

    #[inline]
    pub(super) const fn bytes(self) -> usize {
        (self.last_unit as usize + 1) * UNIT
    }

    /// Where the byte at `offset`, at most [`bytes`](Self::bytes), lies.
    pub(super) fn at(self, offset: usize) -> NonNull<u8> {
        assert!(offset <= self.bytes(), "byte {offset} is not in the shard");
        // SAFETY: within the reservation or at its end.
        unsafe { self.base.add(offset) }
    }

    /// The word at `place`. Unchecked: a place beyond the range wraps around within it.
    #[inline]
    fn word(&self, place: Place) -> &AtomicU32 {
        let offset = Place(place.0 & self.last_unit).offset_bytes();
        // SAFETY: all units up to the last one are reserved.
        let word = unsafe { self.base.add(offset) };
        // SAFETY: aligned, as the base and a unit are; committed, by the shard's invariants 1 and
        // 6; threads touch words that they share only as atomics.
        unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }
    }

    #[inline]
    pub(super) fn read(&self, place: Place) -> u32 {
        self.word(place).load(Relaxed)
    }

    #[inline]
    pub(super) fn write(&self, place: Place, value: u32) {
        self.word(place).store(value, Relaxed);
    }

    #[inline]
    pub(super) fn head(&self, place: Place) -> Head {
        Head(self.read(place))
    }

    #[inline]
    pub(super) fn set_head(&self, place: Place, head: Head) {
        self.write(place, head.0);
    }

    /// The place stored at `place`.
    #[inline]
    pub(super) fn link(&self, place: Place) -> Place {
        Place(self.read(place))
    }

    /// The cell at `place`.
    #[inline]
    pub(super) fn cell(&self, place: Place) -> &PinCell32 {
        let word: *const AtomicU32 = self.word(place);
        // SAFETY: a cell is an atomic word, and any word is one; it lives as long as the area.
        unsafe { &*word.cast() }
    }

    /// The area as bytes.
    #[inline]
    pub(super) fn span(self) -> Span {
        // SAFETY: the whole range is reserved; blocks lie in the committed part by the shard's
        // invariant 1.
        unsafe { Span::new(self.base, self.bytes()) }
    }
}

/// Bit `n` of the `w`-th word: page `64 w + n` was given back and has not been used since.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct GivenBack(AtomicU64);

// SAFETY: an atomic word is valid as zero.
unsafe impl Entry for GivenBack {}

/// Pages in an entry of the table.
pub(super) const PAGES_A_WORD: usize = 64;

impl Table<GivenBack> {
    /// How many pages of the area the table has bits for.
    pub(super) fn pages(&self) -> usize {
        (self.end() - self.first()) * PAGES_A_WORD
    }

    /// The word that has the page's bit. A page without a bit in the table was not given back.
    fn bits_around(&self, page: usize) -> u64 {
        if page >= self.pages() {
            return 0;
        }
        let GivenBack(word) = self.get(self.first() + page / PAGES_A_WORD);
        word.load(Relaxed)
    }

    pub(super) fn is_given_back(&self, page: usize) -> bool {
        self.bits_around(page) & (1 << (page % PAGES_A_WORD)) != 0
    }

    /// The first of the pages that was given back, or that was not. O(pages / 64), as are the
    /// functions below.
    pub(super) fn first_page(&self, pages: Range<usize>, given_back: bool) -> Option<usize> {
        let mut page = pages.start;
        while page < pages.end {
            let bits = self.bits_around(page);
            let wanted = if given_back { bits } else { !bits } >> (page % PAGES_A_WORD);
            if wanted != 0 {
                let found = page + wanted.trailing_zeros() as usize;
                return Some(found).filter(|&found| found < pages.end);
            }
            page = (page / PAGES_A_WORD + 1) * PAGES_A_WORD;
        }
        None
    }

    /// The end of the last page that was not given back; the start of `pages` if all were.
    pub(super) fn held_end(&self, pages: Range<usize>) -> usize {
        let mut end = pages.end;
        while end > pages.start {
            let last = end - 1;
            let held = !self.bits_around(last) << (PAGES_A_WORD - 1 - last % PAGES_A_WORD);
            if held != 0 {
                return pages.start.max(end - held.leading_zeros() as usize);
            }
            end = last / PAGES_A_WORD * PAGES_A_WORD;
        }
        pages.start
    }

    /// Sets the bits of the pages, which must all have one in the table. Under the shard's lock.
    pub(super) fn set_given_back(&self, pages: Range<usize>, given_back: bool) {
        let mut page = pages.start;
        while page < pages.end {
            let end = pages.end.min((page / PAGES_A_WORD + 1) * PAGES_A_WORD);
            let mask = u64::MAX >> (PAGES_A_WORD - (end - page)) << (page % PAGES_A_WORD);
            let GivenBack(word) = self.get(self.first() + page / PAGES_A_WORD);
            let bits = word.load(Relaxed);
            word.store(if given_back { bits | mask } else { bits & !mask }, Relaxed);
            page = end;
        }
    }
}
