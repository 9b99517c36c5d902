//! Which bin a free block of a given size belongs to, and which bins are not empty.
//!
//! Up to 4 KiB a bin covers 8 bytes; above, each doubling has four bins. A bitmap with a bit for
//! each bin finds the next one that is not empty.

use super::area::Place;

/// Units that a narrow bin covers, as a shift.
const NARROW_SHIFT: u32 = 1;
const NARROW: usize = 512;
/// Sizes from here on (4 KiB) go to wide bins, four per doubling.
const WIDE_FROM: usize = NARROW << NARROW_SHIFT;
const WIDE_PER_DOUBLING_SHIFT: u32 = 2;
/// Enough for 4 KiB … 8 GiB, more than an area has.
const WIDE: usize = 21 << WIDE_PER_DOUBLING_SHIFT;
pub(super) const BINS: usize = NARROW + WIDE;
const WORDS: usize = BINS.div_ceil(64);

/// The bin of a free block of `units`.
#[inline]
pub(super) const fn bin_of(units: usize) -> usize {
    if units < WIDE_FROM {
        return units >> NARROW_SHIFT;
    }
    let doubling = units.ilog2();
    let quarter = (units >> (doubling - WIDE_PER_DOUBLING_SHIFT)) & 3;
    let wide = ((doubling - WIDE_FROM.ilog2()) as usize) << WIDE_PER_DOUBLING_SHIFT;
    NARROW + wide + quarter
}

/// The heads of the bins' lists.
#[derive(Debug)]
pub(super) struct Bins {
    heads: [Place; BINS],
    words: [u64; WORDS],
    /// A bit for each word of the bitmap that is not 0.
    summary: u32,
}

impl Bins {
    pub(super) const fn new() -> Self {
        Self { heads: [Place::END; BINS], words: [0; WORDS], summary: 0 }
    }

    #[inline]
    pub(super) fn head(&self, bin: usize) -> Option<Place> {
        let head = self.heads[bin];
        (head != Place::END).then_some(head)
    }

    /// Makes `head` the first of the bin; [`Place::END`] empties it.
    #[inline(always)]
    pub(super) fn set_head(&mut self, bin: usize, head: Place) {
        self.heads[bin] = head;
        if head == Place::END {
            self.words[bin / 64] &= !(1 << (bin % 64));
            if self.words[bin / 64] == 0 {
                self.summary &= !(1 << (bin / 64));
            }
        }
    }

    /// Makes `place` the first of the bin. Returns the previous first.
    #[inline(always)]
    pub(super) fn push(&mut self, bin: usize, place: Place) -> Place {
        self.words[bin / 64] |= 1 << (bin % 64);
        self.summary |= 1 << (bin / 64);
        core::mem::replace(&mut self.heads[bin], place)
    }

    /// The first bin from `bin` on that is not empty.
    #[inline]
    pub(super) fn first_from(&self, bin: usize) -> Option<usize> {
        let word = bin / 64;
        let bits = self.words.get(word)? & (u64::MAX << (bin % 64));
        if bits != 0 {
            return Some(word * 64 + bits.trailing_zeros() as usize);
        }
        let later = self.summary & (u32::MAX << (word + 1));
        if later == 0 {
            return None;
        }
        let word = later.trailing_zeros() as usize;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }

    /// The last bin that is not empty. It has the largest free blocks.
    #[inline]
    pub(super) fn last(&self) -> Option<usize> {
        let word = self.summary.checked_ilog2()? as usize;
        Some(word * 64 + self.words[word].ilog2() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_grow_with_the_size() {
        let mut last = 0;
        for units in (4..(1 << 20)).chain((1 << 20..1 << 31).step_by(4093)) {
            let bin = bin_of(units);
            assert!(bin == last || bin == last + 1 || units == 4, "{units}");
            last = bin;
        }
        assert!(last < BINS);
    }

    #[test]
    fn the_next_and_the_last_bin_are_found() {
        let mut bins = Bins::new();
        assert_eq!((bins.first_from(0), bins.last()), (None, None));
        for bin in [3, 64, 200, BINS - 1] {
            bins.push(bin, Place(bin as u32));
        }
        assert_eq!(bins.first_from(4), Some(64));
        assert_eq!(bins.first_from(201), Some(BINS - 1));
        assert_eq!(bins.last(), Some(BINS - 1));
        bins.set_head(BINS - 1, Place::END);
        assert_eq!((bins.first_from(201), bins.last()), (None, Some(200)));
    }
}
