//! Places in a shard: segments of address space, told apart by one number.
//!
//! A [`Place`] counts 4-byte units from the shard's start; its upper part is the segment's number.
//! 31 bits name 8 GiB.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Release;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed};

use super::block::Head;
use crate::span::Span;
use crate::table::{Entry, Table};

/// The bytes in a unit: every block is as many units as it needs.
pub(super) const UNIT: usize = 4;
/// Places have this many bits: a handle cell is a word with one bit for its lock.
pub(super) const PLACE_BITS: u32 = 31;
/// A segment has this many pages at most: [`Segment`] has a bit for each.
pub(super) const MAX_SEGMENT_PAGES: usize = 256;

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
}

/// One reservation of the source, committed page by page from its start.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Segment {
    base: AtomicPtr<u8>,
    /// Bit `p`: page `p` was given back and has not been used since.
    given_back: [AtomicU64; MAX_SEGMENT_PAGES / 64],
}

// SAFETY: atomics are valid as zero; 64 bytes.
unsafe impl Entry for Segment {}

impl Segment {
    #[inline]
    pub(super) fn is_given_back(&self, page: usize) -> bool {
        self.given_back[page / 64].load(Relaxed) & (1 << (page % 64)) != 0
    }

    /// Flips the page's bit; under the shard's lock.
    pub(super) fn set_given_back(&self, page: usize, given_back: bool) {
        debug_assert_ne!(self.is_given_back(page), given_back);
        self.given_back[page / 64].fetch_xor(1 << (page % 64), Relaxed);
    }

    pub(super) fn set_base(&self, base: Option<NonNull<u8>>) {
        let base = base.map_or(core::ptr::null_mut(), NonNull::as_ptr);
        for word in &self.given_back {
            word.store(0, Relaxed);
        }
        self.base.store(base, Release);
    }

    #[inline]
    pub(super) fn base(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.base.load(Acquire))
    }
}

/// The segments of a shard, found without its lock.
#[derive(Debug)]
pub(super) struct Segments {
    pub(super) table: Table<Segment>,
    pub(super) page_bytes: usize,
    segment_shift: u32,
}

impl Segments {
    pub(super) const fn new(
        table: Table<Segment>,
        page_bytes: usize,
        segment_bytes: usize,
    ) -> Self {
        Self { table, page_bytes, segment_shift: segment_bytes.trailing_zeros() }
    }

    #[inline]
    pub(super) const fn segment_bytes(&self) -> usize {
        1 << self.segment_shift
    }

    #[inline]
    pub(super) fn number_of(&self, place: Place) -> usize {
        (place.0 as usize * UNIT) >> self.segment_shift
    }

    #[inline]
    pub(super) fn start_of(&self, number: usize) -> Place {
        Place(((number << self.segment_shift) / UNIT) as u32)
    }

    #[inline]
    pub(super) fn segment(&self, number: usize) -> &Segment {
        self.table.get(number)
    }

    /// The words of the segment that `place` lies in.
    #[inline]
    pub(super) fn words(&self, place: Place) -> Words {
        let segment = self.segment(self.number_of(place));
        let Some(base) = segment.base() else { gone(place) };
        Words { base, last_unit: (self.segment_bytes() / UNIT - 1) as u32 }
    }
}

#[cold]
#[inline(never)]
fn gone(place: Place) -> ! {
    panic!("{place:?} is in a segment that was given back")
}

/// The words of one segment. A block, its neighbours and their tags are in one: it is found once.
///
/// A place's lower bits alone say where it lies in its segment, so that no access leaves it.
#[derive(Clone, Copy)]
pub(super) struct Words {
    base: NonNull<u8>,
    last_unit: u32,
}

impl Words {
    #[inline]
    fn offset(self, place: Place) -> usize {
        (place.0 & self.last_unit) as usize * UNIT
    }

    #[inline]
    fn word(&self, place: Place) -> &AtomicU32 {
        // SAFETY: an offset is less than the segment's bytes, all of them reserved.
        let word = unsafe { self.base.add(self.offset(place)) };
        // SAFETY: aligned, as the segment's start and a unit are; committed, by the shard's
        // invariant 1; threads touch the words of a segment that they share as atomics only.
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

    /// The segment as bytes, and how many bytes into it `place` is.
    #[inline]
    pub(super) fn span(self, place: Place) -> (Span, usize) {
        // SAFETY: reserved in whole; blocks lie in the committed part by the shard's invariant 1.
        let span = unsafe { Span::new(self.base, (self.last_unit as usize + 1) * UNIT) };
        (span, self.offset(place))
    }
}
