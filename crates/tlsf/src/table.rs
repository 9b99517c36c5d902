//! The two-level table of free lists: which sizes go to which list, and which lists hold blocks.
//!
//! ```text
//!   SECOND = 4      bin 0  1  2  3 │ 4  5  6  7 │  8   9   10  11 │  12 …
//!   granules            -  1  2  3 │ 4  5  6  7 │ 8,9 10,11 …     │ 16…19 …
//!   row                   0        │     1      │       2         │   3
//! ```
//!
//! The first `2 * SECOND` bins are one granule wide; from there on each power of two is divided
//! into `SECOND` bins. Bins are numbered through, so that the bin after the last of a row is the
//! first of the next row, and rounding a size up to the start of a bin needs no case distinction.
//!
//! In memory the bitmaps of all rows come first, then the heads of all bins.
//!
//! Invariants
//! 1. Bit `c` of row `r`'s bitmap is set exactly while bin `SECOND * r + c` has a block; bit `r` of
//!    `occupied` exactly while that bitmap is not zero.
//! 2. A heap whose blocks have at most `max_granules` granules files none past the last row.
//!
//! (Masmano, Ripoll, Crespo, Real: "TLSF: a new dynamic memory allocator for real-time systems",
//! ECRTS 2004.)

use crate::word::Word;

mod sealed {
    pub trait Sealed {}
    impl<W, const SECOND: usize, const GRANULE: usize> Sealed for super::Row<W, SECOND, GRANULE> {}
    impl<T: Sealed> Sealed for [T] {}
    impl<T: Sealed, const FIRST: usize> Sealed for [T; FIRST] {}
}

/// The number of a free list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bin(usize);

impl Bin {
    /// The list where a block of `granules` is filed.
    #[inline(always)]
    pub(crate) fn of<S: Shape>(granules: usize) -> Self {
        let shift = Self::shift::<S>(granules);
        Self(((shift as usize) << S::SECOND_LOG2) + (granules >> shift))
    }

    /// log2 of the width of the list where a block of `granules` is filed.
    #[inline(always)]
    fn shift<S: Shape>(granules: usize) -> u32 {
        (granules | (1 << S::SECOND_LOG2)).ilog2() - S::SECOND_LOG2
    }

    /// The least multiple of the width of its list that is not below `granules`, and its list:
    /// every block there and in the lists after has at least as many granules.
    #[inline(always)]
    pub(crate) fn round_up<S: Shape>(granules: usize) -> (usize, Self) {
        let shift = Self::shift::<S>(granules);
        let widths = ((granules - 1) >> shift) + 1;
        (widths << shift, Self(((shift as usize) << S::SECOND_LOG2) + widths))
    }

    #[inline(always)]
    fn row<S: Shape>(self) -> usize {
        self.0 >> S::SECOND_LOG2
    }

    #[inline(always)]
    fn column<S: Shape>(self) -> usize {
        self.0 & ((1 << S::SECOND_LOG2) - 1)
    }
}

/// What one first-level class of sizes takes in a table: a bitmap and the heads of `SECOND` free
/// lists of blocks whose sizes are multiples of `GRANULE` bytes. It is storage: the table has an order
/// of its own for the words of its rows.
///
/// `SECOND` is a power of two from 2 to the number of bits of `W`; `GRANULE`, the alignment of
/// all blocks, is a power of two from the bytes of `W` to 4096.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Row<W, const SECOND: usize, const GRANULE: usize = 16> {
    bitmap: W,
    heads: [W; SECOND],
}

/// The parameters of a heap, as its [`Row`] states them.
pub trait Shape: sealed::Sealed + Copy {
    /// The index width.
    type Word: Word;
    /// log2 of the lists a row.
    const SECOND_LOG2: u32;
    /// log2 of the alignment of all blocks in bytes.
    const GRANULE_LOG2: u32;
    /// A row of empty lists.
    const EMPTY: Self;
}

impl<W: Word, const SECOND: usize, const GRANULE: usize> Shape for Row<W, SECOND, GRANULE> {
    type Word = W;
    const SECOND_LOG2: u32 = {
        assert!(SECOND.is_power_of_two() && SECOND >= 2 && SECOND <= W::BITS as usize);
        SECOND.trailing_zeros()
    };
    const GRANULE_LOG2: u32 = {
        assert!(GRANULE.is_power_of_two() && GRANULE >= W::BYTES && GRANULE <= 4096);
        GRANULE.trailing_zeros()
    };
    const EMPTY: Self = Self { bitmap: W::ZERO, heads: [W::ZERO; SECOND] };
}

/// The rows of a heap: `[Row; FIRST]`, or `[Row]` where their number is chosen at run time.
pub trait Rows: sealed::Sealed {
    /// What the rows are.
    type Row: Shape;
    /// All rows.
    fn rows(&self) -> &[Self::Row];
    /// All rows.
    fn rows_mut(&mut self) -> &mut [Self::Row];
}

impl<W: Word, const SECOND: usize, const GRANULE: usize> Rows for [Row<W, SECOND, GRANULE>] {
    type Row = Row<W, SECOND, GRANULE>;

    #[inline(always)]
    fn rows(&self) -> &[Self::Row] {
        self
    }

    #[inline(always)]
    fn rows_mut(&mut self) -> &mut [Self::Row] {
        self
    }
}

impl<W: Word, const SECOND: usize, const GRANULE: usize, const FIRST: usize> Rows
    for [Row<W, SECOND, GRANULE>; FIRST]
{
    type Row = Row<W, SECOND, GRANULE>;

    #[inline(always)]
    fn rows(&self) -> &[Self::Row] {
        self
    }

    #[inline(always)]
    fn rows_mut(&mut self) -> &mut [Self::Row] {
        self
    }
}

/// The table itself: the rows and the bitmap of those that hold blocks.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Table<R: ?Sized> {
    pub(crate) occupied: u64,
    pub(crate) rows: R,
}

/// The index width of a heap with rows `R`.
pub(crate) type WordOf<R> = <<R as Rows>::Row as Shape>::Word;

impl<S: Shape, const FIRST: usize> Table<[S; FIRST]> {
    pub(crate) const EMPTY: Self = {
        assert!(FIRST >= 1 && FIRST <= 64);
        Self { occupied: 0, rows: [S::EMPTY; FIRST] }
    };
}

impl<R: ?Sized + Rows> Table<R> {
    /// How many granules the largest block that can be filed has.
    #[inline(always)]
    pub(crate) fn max_granules(&self) -> usize {
        // The last row ends below 2^(its number + SECOND_LOG2).
        let end_log2 = self.rows.rows().len() as u32 - 1 + R::Row::SECOND_LOG2;
        let by_rows = usize::MAX >> usize::BITS.saturating_sub(end_log2);
        by_rows.min(WordOf::<R>::MAX >> 2).min(isize::MAX as usize >> R::Row::GRANULE_LOG2)
    }

    /// The largest size that [`Bin::round_up`] keeps within the table: the start of the last list.
    #[inline(always)]
    pub(crate) fn max_class(&self) -> usize {
        let end = self.max_granules() + 1;
        end - (end >> (R::Row::SECOND_LOG2 + 1)).max(1)
    }

    /// The word of the table with that number. Unchecked, since a check for each access takes a
    /// tenth of a call's instructions.
    #[inline(always)]
    fn load(&self, word: usize) -> WordOf<R> {
        debug_assert!(word < self.words(), "word {word} of a TLSF table");
        let at = self.rows.rows().as_ptr().cast::<WordOf<R>>().wrapping_add(word);
        // SAFETY: by invariant 2 every row and bin is one of the table, and so is its word.
        unsafe { at.read() }
    }

    #[inline(always)]
    fn store(&mut self, word: usize, value: usize) {
        debug_assert!(word < self.words(), "word {word} of a TLSF table");
        let at = self.rows.rows_mut().as_mut_ptr().cast::<WordOf<R>>().wrapping_add(word);
        // SAFETY: as in `load`; the rows are borrowed mutably.
        unsafe { at.write(WordOf::<R>::truncate(value)) };
    }

    fn words(&self) -> usize {
        self.rows.rows().len() * ((1 << R::Row::SECOND_LOG2) + 1)
    }

    #[inline(always)]
    fn bitmap(&self, row: usize) -> usize {
        self.load(row).get()
    }

    /// The first block of `bin`, 0 if there is none.
    #[inline(always)]
    pub(crate) fn head(&self, bin: Bin) -> usize {
        self.load(self.rows.rows().len() + bin.0).get()
    }

    #[inline(always)]
    fn set_head(&mut self, bin: Bin, head: usize) {
        self.store(self.rows.rows().len() + bin.0, head);
    }

    /// Makes the block `head` the first of `bin`; returns the one that was first, or 0.
    ///
    /// Lists of small heaps become empty and filled all the time, and a branch on that is
    /// mispredicted as often: the bitmap is written in any case.
    #[inline(always)]
    pub(crate) fn push(&mut self, bin: Bin, head: usize) -> usize {
        let row = bin.row::<R::Row>();
        let old = self.head(bin);
        self.set_head(bin, head);
        let bitmap = self.bitmap(row);
        self.store(row, bitmap | 1 << bin.column::<R::Row>());
        if bitmap == 0 {
            self.occupied |= 1 << row;
        }
        old
    }

    /// Takes the first block of `bin` out and makes `head`, a block or 0, the first.
    #[inline(always)]
    pub(crate) fn pop(&mut self, bin: Bin, head: usize) {
        let row = bin.row::<R::Row>();
        self.set_head(bin, head);
        // By invariant 1 the bit is set.
        let bitmap = self.load(row).inverted(bin.column::<R::Row>(), head == 0).get();
        self.store(row, bitmap);
        if bitmap == 0 {
            self.occupied &= !(1 << row);
        }
    }

    /// The first list from `bin` on that holds blocks.
    #[inline(always)]
    pub(crate) fn find(&self, bin: Bin) -> Option<Bin> {
        let mut row = bin.row::<R::Row>();
        let mut columns = self.bitmap(row) & (usize::MAX << bin.column::<R::Row>());
        if columns == 0 {
            // Two shifts, since the last row may be number 63.
            let later = self.occupied & (u64::MAX << row << 1);
            if later == 0 {
                return None;
            }
            row = later.trailing_zeros() as usize;
            columns = self.bitmap(row);
        }
        Some(Bin((row << R::Row::SECOND_LOG2) + columns.trailing_zeros() as usize))
    }

    /// The last list that holds blocks.
    pub(crate) fn last(&self) -> Option<Bin> {
        let row = self.occupied.checked_ilog2()? as usize;
        let column = self.bitmap(row).checked_ilog2()? as usize;
        Some(Bin((row << R::Row::SECOND_LOG2) + column))
    }

    /// Whether invariant 1 holds.
    pub(crate) fn bitmaps_agree(&self) -> bool {
        let rows = self.rows.rows().len();
        let agrees = |row: usize| {
            let heads = (0..1 << R::Row::SECOND_LOG2)
                .filter(|column| self.head(Bin((row << R::Row::SECOND_LOG2) + column)) != 0)
                .fold(0, |bits, column| bits | 1usize << column);
            heads == self.bitmap(row) && (heads != 0) == (self.occupied >> row & 1 != 0)
        };
        (0..rows).all(agrees) && self.occupied.checked_shr(rows as u32).unwrap_or(0) == 0
    }

    /// All lists.
    pub(crate) fn bins(&self) -> impl Iterator<Item = Bin> + use<R> {
        (0..self.rows.rows().len() << R::Row::SECOND_LOG2).map(Bin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_ne!(Bin::of::<Small>(rounded - 1), fitting, "{granules}");
            assert!(granules <= rounded && rounded <= granules + granules / 4, "{granules}");
        }
    }

    #[test]
    fn the_largest_block_falls_into_the_last_row() {
        let table: Table<[Small; 7]> = Table::EMPTY;
        let max = table.max_granules();
        assert_eq!(Bin::round_up::<Small>(table.max_class()).0, table.max_class());
        assert_eq!(Bin::round_up::<Small>(table.max_class()).1, Bin(27));
        assert_eq!(Bin::of::<Small>(max).row::<Small>(), 6);
        assert_eq!(Bin::of::<Small>(max + 1).row::<Small>(), 7);
    }

    #[test]
    fn find_and_last_agree_with_a_scan() {
        let mut table: Table<[Small; 7]> = Table::EMPTY;
        let filled = [3usize, 5, 11, 12, 27];
        for &bin in &filled {
            assert_eq!(table.push(Bin(bin), 1), 0);
        }
        assert_eq!(table.last(), Some(Bin(27)));
        for from in 0..28 {
            let expected = filled.iter().copied().find(|&bin| bin >= from).map(Bin);
            assert_eq!(table.find(Bin(from)), expected, "{from}");
        }
        for &bin in &filled {
            table.pop(Bin(bin), 0);
        }
        assert_eq!(table.find(Bin(0)), None);
        assert_eq!(table.last(), None);
    }
}
