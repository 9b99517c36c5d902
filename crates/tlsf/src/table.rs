//! The two-level table of free lists: which sizes go to which list, and which lists hold blocks.
//!
//! In memory the bitmap of all bins comes first, in words of the index width. The bins' heads
//! follow it.
//!
//! Invariants
//! 1. Bit `b` of the bitmap is set exactly while bin `b` has a block; bit `w` of `occupied` exactly
//!    while word `w` of the bitmap is not zero.
//! 2. A heap whose blocks have at most `max_granules` granules files no block past the last row.
//!
//! (Masmano, Ripoll, Crespo, Real: "TLSF: a new dynamic memory allocator for real-time systems",
//! ECRTS 2004.)

use core::hint::select_unpredictable;

use crate::bin::Bin;
use crate::word::Word;

mod sealed {
    pub trait Sealed {}
    impl<W, const SECOND: usize, const GRANULE: usize> Sealed for super::Row<W, SECOND, GRANULE> {}
    impl<T: Sealed> Sealed for [T] {}
    impl<T: Sealed, const FIRST: usize> Sealed for [T; FIRST] {}
}

/// What a first-level size class takes in a table: a bitmap and the heads of `SECOND` free lists of
/// blocks whose sizes are multiples of `GRANULE` bytes. It is only storage: the table arranges the
/// words of its rows in an order of its own, and needs fewer rows if a bitmap has few bits.
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

/// The rows of a heap: `[Row; FIRST]`, or `[Row]` if their number is chosen at run time.
pub trait Rows:
    sealed::Sealed + AsRef<[<Self as Rows>::Row]> + AsMut<[<Self as Rows>::Row]>
{
    /// What the rows are.
    type Row: Shape;
    /// How many classes the first level has.
    fn count(&self) -> usize;
}

/// How many rows of storage hold the bitmap and the heads of `rows` rows of `SECOND` lists.
pub(crate) const fn storage_rows<W: Word, const SECOND: usize>(rows: usize) -> usize {
    let heads = rows * SECOND;
    (heads + heads.div_ceil(W::BITS as usize)).div_ceil(SECOND + 1)
}

impl<W: Word, const SECOND: usize, const GRANULE: usize> Rows for [Row<W, SECOND, GRANULE>] {
    type Row = Row<W, SECOND, GRANULE>;

    #[inline(always)]
    fn count(&self) -> usize {
        // The most rows for which `storage_rows` gives no more than there are.
        let (words, bits) = (self.len() * (SECOND + 1), W::BITS as usize);
        words * bits / (SECOND * (bits + 1))
    }
}

impl<W: Word, const SECOND: usize, const GRANULE: usize, const FIRST: usize> Rows
    for [Row<W, SECOND, GRANULE>; FIRST]
{
    type Row = Row<W, SECOND, GRANULE>;

    #[inline(always)]
    fn count(&self) -> usize {
        FIRST
    }
}

/// The table itself: the rows, and a bitmap of the words of their bitmap that are not zero.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Table<R: ?Sized + Rows> {
    occupied: WordOf<R>,
    rows: R,
}

/// The index width of a heap with rows `R`.
pub(crate) type WordOf<R> = <<R as Rows>::Row as Shape>::Word;

impl<S: Shape, const FIRST: usize> Table<[S; FIRST]>
where
    [S; FIRST]: Rows<Row = S>,
{
    pub(crate) const EMPTY: Self = {
        assert!(FIRST >= 1 && FIRST <= 64);
        // One bit for each word of the bitmap.
        assert!((FIRST << S::SECOND_LOG2) <= (S::Word::BITS * S::Word::BITS) as usize);
        Self { occupied: S::Word::ZERO, rows: [S::EMPTY; FIRST] }
    };
}

impl<R: ?Sized + Rows> Table<R> {
    /// How many granules the largest block has that the table can file.
    #[inline(always)]
    pub(crate) fn max_granules(&self) -> usize {
        // The last row ends below 2^(its number + SECOND_LOG2).
        let end_log2 = self.rows.count() as u32 - 1 + R::Row::SECOND_LOG2;
        let by_rows = usize::MAX >> usize::BITS.saturating_sub(end_log2);
        by_rows.min(WordOf::<R>::MAX >> 2).min(isize::MAX as usize >> R::Row::GRANULE_LOG2)
    }

    /// The largest size that [`Bin::round_up`] keeps within the table: the start of the last list.
    #[inline(always)]
    pub(crate) fn max_class(&self) -> usize {
        let end = self.max_granules() + 1;
        end - (end >> (R::Row::SECOND_LOG2 + 1)).max(1) + 1
    }

    /// The largest size that [`Bin::round_up`] keeps below the last list.
    #[inline(always)]
    pub(crate) fn max_near_class(&self) -> usize {
        let end = self.max_granules() + 1;
        end - 2 * (end >> (R::Row::SECOND_LOG2 + 1)).max(1) + 1
    }

    /// The word of the table with that number. Unchecked, since checking each access takes a tenth
    /// of a call's instructions.
    #[inline(always)]
    fn load(&self, word: usize) -> WordOf<R> {
        debug_assert!(word < self.words(), "word {word} of a TLSF table");
        let at = self.rows.as_ref().as_ptr().cast::<WordOf<R>>().wrapping_add(word);
        // SAFETY: by invariant 2 every row and bin is one of the table, and so is its word.
        unsafe { at.read() }
    }

    #[inline(always)]
    fn store(&mut self, word: usize, value: usize) {
        debug_assert!(word < self.words(), "word {word} of a TLSF table");
        let at = self.rows.as_mut().as_mut_ptr().cast::<WordOf<R>>().wrapping_add(word);
        // SAFETY: as in `load`; the rows are borrowed mutably.
        unsafe { at.write(WordOf::<R>::truncate(value)) };
    }

    fn words(&self) -> usize {
        self.rows.as_ref().len() * ((1 << R::Row::SECOND_LOG2) + 1)
    }

    /// How many lists there are.
    #[inline(always)]
    fn bin_count(&self) -> usize {
        self.rows.count() << R::Row::SECOND_LOG2
    }

    /// How many words the bitmap has.
    #[inline(always)]
    fn bitmap_words(&self) -> usize {
        self.bin_count().div_ceil(WordOf::<R>::BITS as usize)
    }

    #[inline(always)]
    fn bitmap(&self, word: usize) -> usize {
        self.load(word).get()
    }

    /// The first block of `bin`, 0 if there is none.
    #[inline(always)]
    pub(crate) fn head(&self, bin: Bin) -> usize {
        self.load(self.bitmap_words() + bin.0).get()
    }

    #[inline(always)]
    fn set_head(&mut self, bin: Bin, head: usize) {
        self.store(self.bitmap_words() + bin.0, head);
    }

    /// Makes the block `head` the first of `bin`; returns the previous first block, or 0.
    ///
    /// Lists of small heaps keep emptying and filling. A branch on that would be mispredicted as
    /// often, so the bitmap is always written.
    #[inline(always)]
    pub(crate) fn push(&mut self, bin: Bin, head: usize) -> usize {
        let word = bin.word::<WordOf<R>>();
        let old = self.head(bin);
        self.set_head(bin, head);
        let bitmap = self.bitmap(word);
        self.store(word, bitmap | 1 << bin.bit::<WordOf<R>>());
        if bitmap == 0 {
            self.set_occupied(self.occupied.get() | 1 << word);
        }
        old
    }

    /// `bin`, or the list after it (which must exist) if `bin` is empty; and that list's first
    /// block, or 0.
    ///
    /// With mixed sizes it is unpredictable which list it is, so this takes no branch. A
    /// misprediction here would be resolved late, since the head depends on what the preceding free
    /// pushed. Both heads are loaded, so that the second need not wait for the first.
    #[inline(always)]
    pub(crate) fn near(&self, bin: Bin) -> (Bin, usize) {
        let after = Bin(bin.0 + 1);
        let (own_head, after_head) = (self.head(bin), self.head(after));
        let near = Bin(bin.0 + usize::from(own_head == 0));
        (near, select_unpredictable(own_head != 0, own_head, after_head))
    }

    /// Takes the first block of `bin` out and makes `head`, a block or 0, the new first.
    #[inline(always)]
    pub(crate) fn pop(&mut self, bin: Bin, head: usize) {
        let word = bin.word::<WordOf<R>>();
        self.set_head(bin, head);
        // By invariant 1 the bit is set.
        let bitmap = self.load(word).inverted(bin.bit::<WordOf<R>>(), head == 0).get();
        self.store(word, bitmap);
        if bitmap == 0 {
            self.set_occupied(self.occupied.get() & !(1 << word));
        }
    }

    #[inline(always)]
    fn set_occupied(&mut self, occupied: usize) {
        self.occupied = WordOf::<R>::truncate(occupied);
    }

    /// The first list that holds blocks, from `bin` on.
    #[inline(always)]
    pub(crate) fn find(&self, bin: Bin) -> Option<Bin> {
        let mut word = bin.word::<WordOf<R>>();
        let mut bits = self.bitmap(word) & (usize::MAX << bin.bit::<WordOf<R>>());
        if bits == 0 {
            // Two shifts, since the last word may be number 63.
            let later = self.occupied.get() & (usize::MAX << word << 1);
            if later == 0 {
                return None;
            }
            word = later.trailing_zeros() as usize;
            bits = self.bitmap(word);
        }
        Some(Bin(word * WordOf::<R>::BITS as usize + bits.trailing_zeros() as usize))
    }

    /// The last list that holds blocks.
    pub(crate) fn last(&self) -> Option<Bin> {
        let word = self.occupied.get().checked_ilog2()? as usize;
        let bit = self.bitmap(word).checked_ilog2()? as usize;
        Some(Bin(word * WordOf::<R>::BITS as usize + bit))
    }

    /// Whether invariant 1 holds.
    pub(crate) fn bitmaps_agree(&self) -> bool {
        let agrees = |word: usize| {
            let first = word * WordOf::<R>::BITS as usize;
            let bits = (first..self.bin_count().min(first + WordOf::<R>::BITS as usize))
                .filter(|&bin| self.head(Bin(bin)) != 0)
                .fold(0, |bits, bin| bits | 1usize << (bin - first));
            bits == self.bitmap(word) && (bits != 0) == (self.occupied.get() >> word & 1 != 0)
        };
        let words = self.bitmap_words();
        let beyond = self.occupied.get().checked_shr(words as u32).unwrap_or(0);
        (0..words).all(agrees) && beyond == 0
    }

    /// All lists.
    pub(crate) fn bins(&self) -> impl Iterator<Item = Bin> + use<R> {
        (0..self.bin_count()).map(Bin)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    type Small = Row<u16, 4>;

    #[test]
    fn the_largest_block_falls_into_the_last_row() {
        let table: Table<[Small; 7]> = Table::EMPTY;
        let max = table.max_granules();
        assert_eq!(Bin::round_up::<Small>(table.max_class()).0, table.max_class());
        assert_eq!(Bin::round_up::<Small>(table.max_class()).1, Bin(27));
        assert_eq!(Bin::of::<Small>(max), Bin(27));
        assert_eq!(Bin::of::<Small>(max + 1), Bin(27));
        assert_eq!(Bin::of::<Small>(max + 2), Bin(28));
    }

    #[test]
    fn storage_holds_the_rows_it_is_meant_for() {
        fn check<W: Word, const SECOND: usize>(rows: usize) {
            let storage = storage_rows::<W, SECOND>(rows);
            let table = std::vec![Row::<W, SECOND, 16>::EMPTY; storage];
            let count = table.as_slice().count();
            assert!(rows <= count, "{rows}");
            let words = count * SECOND + (count * SECOND).div_ceil(W::BITS as usize);
            assert!(words <= storage * (SECOND + 1), "{rows}");
        }
        for rows in 1..=16 {
            check::<u16, 2>(rows);
            check::<u16, 4>(rows);
            check::<u16, 16>(rows);
            check::<u32, 32>(rows);
            check::<usize, 32>(rows);
        }
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
