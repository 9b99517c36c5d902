//! The numbers of the free lists: which sizes go to which.
//!
//! ```text
//!   SECOND = 4      bin 0  1  2  3 │ 4  5  6  7 │  8   9   10  11 │  12 …
//!   granules            1  2  3  4 │ 5  6  7  8 │9,10 11,12 …     │ 17…20 …
//!   row                   0        │     1      │       2         │   3
//! ```
//!
//! The first `2 * SECOND` bins are one granule wide; from there on each power of two is divided
//! into `SECOND` bins. Bins are numbered consecutively across rows, so that the bin after the last
//! of a row is the first of the next, and rounding a size up to the start of a bin needs no special
//! case.
//!
//! Bins start one granule above a multiple of their width. A power of two of bytes plus a header is
//! such a size, so the most common requests lose nothing to rounding. The offset also keeps
//! the blocks of one bin from following each other at a stride of a power of two, which would put
//! all their headers into a few sets of the caches (blocks of 8 KiB and more took half as long
//! again).

use crate::block::Header;
use crate::table::Shape;
use crate::word::Word;

/// The number of a free list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Bin(pub(crate) usize);

impl Bin {
    /// The list where a block of `granules` is filed.
    #[inline(always)]
    pub(crate) fn of<S: Shape>(granules: usize) -> Self {
        Self::of_parts::<S>(granules, 0)
    }

    /// The list where a block with this header is filed. In the first row this takes no logarithm.
    /// The latency of one would show: the loads of the next `malloc` wait for the address of the
    /// list.
    #[inline(always)]
    pub(crate) fn of_header<S: Shape>(header: Header) -> Self {
        let granules = header.granules();
        if granules <= 1 << S::SECOND_LOG2 {
            return Self(granules - 1);
        }
        Self::of_parts::<S>(header.size_bits(), Header::FLAG_BITS)
    }

    /// The first list all of whose blocks have more than `bytes` bytes.
    #[inline(always)]
    pub(crate) fn above<S: Shape>(bytes: usize) -> Self {
        Self(Self::of_parts::<S>(bytes, S::GRANULE_LOG2).0.wrapping_add(1))
    }

    /// As [`above`](Self::above) but without a logarithm, if that list is in the first row. All
    /// blocks of the list have one size, and so have those of the list after it.
    #[inline(always)]
    pub(crate) fn above_in_first_row<S: Shape>(bytes: usize) -> Option<Self> {
        let bin = bytes >> S::GRANULE_LOG2;
        (bin < 1 << S::SECOND_LOG2).then_some(Self(bin))
    }

    /// The header that the free blocks of this list have, which are all of one size.
    #[inline(always)]
    pub(crate) fn free_header(self) -> Header {
        Header::free(self.0 + 1)
    }

    /// The list where a block of `parts` parts is filed, with `2^part_log2` parts to a granule.
    /// Below one granule the number wraps around to before the first list.
    #[inline(always)]
    fn of_parts<S: Shape>(parts: usize, part_log2: u32) -> Self {
        let shift = ilog2(parts | 1 << (S::SECOND_LOG2 + part_log2)) - S::SECOND_LOG2;
        let rows = (shift as usize) << S::SECOND_LOG2;
        // Lists start one granule above a multiple of their width. The logarithm is that of the
        // size itself. If it is one row too high, both rows give the same number.
        let lists = (parts as isize - (1 << part_log2)) >> shift;
        Self(rows.wrapping_add_signed(lists).wrapping_sub((part_log2 as usize) << S::SECOND_LOG2))
    }

    /// Of the first list that has only blocks of at least `granules`: the size of its smallest
    /// blocks, and the list.
    #[inline(always)]
    pub(crate) fn round_up<S: Shape>(granules: usize) -> (usize, Self) {
        let above = granules - 1;
        let shift = ilog2(above | (1 << S::SECOND_LOG2)) - S::SECOND_LOG2;
        let widths = (above + ((1 << shift) - 1)) >> shift;
        ((widths << shift) + 1, Self(((shift as usize) << S::SECOND_LOG2) + widths))
    }

    /// The size of this list's smallest blocks: what [`round_up`](Self::round_up) gives for each
    /// size that has this list.
    #[inline(always)]
    pub(crate) fn least_granules<S: Shape>(self) -> usize {
        let shift = (self.0 >> S::SECOND_LOG2).saturating_sub(1);
        ((self.0 - (shift << S::SECOND_LOG2)) << shift) + 1
    }

    /// The bitmap's word that has this list's bit.
    #[inline(always)]
    pub(crate) fn word<W: Word>(self) -> usize {
        self.0 / W::BITS as usize
    }

    /// The number of this list's bit in that word.
    #[inline(always)]
    pub(crate) fn bit<W: Word>(self) -> usize {
        self.0 % W::BITS as usize
    }
}

/// The number of the highest bit that is set.
///
/// `bsr` depends on the old value of its target register. So the compiler's choice of register
/// decides whether a `free` waits twice for the header of the next block, which took up to a
/// quarter of its time. Hence the target is the source.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn ilog2(value: usize) -> u32 {
    debug_assert!(value != 0, "the logarithm of zero");
    let mut log2 = value;
    // SAFETY: an instruction on a register; its result is defined, since no value here is zero.
    unsafe { core::arch::asm!("bsr {0}, {0}", inout(reg) log2, options(pure, nomem, nostack)) };
    log2 as u32
}

/// The number of the highest bit that is set.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline(always)]
fn ilog2(value: usize) -> u32 {
    value.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Row;

    type Small = Row<u16, 4>;

    #[test]
    fn bins_are_numbered_through_and_hold_what_they_say() {
        let mut last = Bin::of::<Small>(1);
        for granules in 1..10_000 {
            let bin = Bin::of::<Small>(granules);
            assert!(bin.0 == last.0 || bin.0 == last.0 + 1, "{granules}");
            last = bin;
            let (rounded, fitting) = Bin::round_up::<Small>(granules);
            let exact = granules == 1 || Bin::of::<Small>(granules - 1) != bin;
            assert_eq!(fitting.0, bin.0 + usize::from(!exact), "{granules}");
            assert_eq!(Bin::of::<Small>(rounded), fitting, "{granules}");
            assert_eq!(fitting.least_granules::<Small>(), rounded, "{granules}");
            assert_ne!(Bin::of::<Small>(rounded - 1), fitting, "{granules}");
            assert!(granules <= rounded && rounded <= granules + granules / 4, "{granules}");
            let header = Header::free(granules).with_prev_free();
            assert_eq!(Bin::of_header::<Small>(header), bin, "{granules}");
            for bytes in 16 * (granules - 1)..16 * granules {
                assert_eq!(Bin::above::<Small>(bytes), fitting, "{bytes}");
            }
        }
    }
}
