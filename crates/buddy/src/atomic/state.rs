//! A sector's state in one word, and what is derived from it.

use crate::bits::blocks;

/// Words of bits in a sector: 8 MiB of 4 KiB frames.
pub(super) const SECTOR_WORDS: usize = 32;
/// Words of bits of a huge frame.
const HUGE_WORDS: u32 = 8;

/// What a sector state keeps of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Empty,
    Between,
    Full,
}

impl Class {
    #[inline]
    pub(super) const fn of(bits: u64) -> Self {
        match bits {
            0 => Self::Empty,
            u64::MAX => Self::Full,
            _ => Self::Between,
        }
    }
}

/// The classes of the words of a sector: in the low half a bit for each that is not empty, in the
/// high half one for each that is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct SectorState {
    nonempty: u32,
    full: u32,
}

/// What `top` keeps of a sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Summary {
    /// It has free frames outside whole huge frames.
    pub(super) has_partial: bool,
    /// It has a huge frame that is free as a whole.
    pub(super) has_whole: bool,
}

impl SectorState {
    pub(super) const fn new(word: u64) -> Self {
        Self { nonempty: word as u32, full: (word >> 32) as u32 }
    }

    pub(super) const fn get(self) -> u64 {
        (self.full as u64) << 32 | self.nonempty as u64
    }

    /// The same with another class for a word.
    pub(super) const fn with(self, at: usize, class: Class) -> Self {
        let bit = 1 << at;
        let (nonempty, full) = match class {
            Class::Empty => (0, 0),
            Class::Between => (bit, 0),
            Class::Full => (bit, bit),
        };
        Self { nonempty: self.nonempty & !bit | nonempty, full: self.full & !bit | full }
    }

    /// The same with the classes that `other` has for the words in `which`.
    pub(super) const fn replace(self, which: u32, other: Self) -> Self {
        Self {
            nonempty: self.nonempty & !which | other.nonempty & which,
            full: self.full & !which | other.full & which,
        }
    }

    pub(super) const fn class(self, at: usize) -> Class {
        match (self.nonempty >> at & 1, self.full >> at & 1) {
            (0, _) => Class::Empty,
            (_, 0) => Class::Between,
            _ => Class::Full,
        }
    }

    /// The words with a free frame.
    pub(super) const fn nonempty(self) -> u32 {
        self.nonempty
    }

    /// The words of whole huge frames, all of them full.
    pub(super) const fn whole(self) -> u32 {
        blocks(self.full as u64, HUGE_WORDS.ilog2()) as u32 * 0xff
    }

    /// Words with free frames outside whole huge frames: first those that are not full.
    pub(super) const fn partial(self) -> [u32; 2] {
        [self.nonempty & !self.full, self.full & !self.whole()]
    }

    /// As [`partial`](Self::partial), for the owner of the tree; but if only a single full word is
    /// left and there are whole huge frames, one of those is broken first. Taking the last piece
    /// would mark the sector as having no pieces, and breaking a huge frame afterwards would mark
    /// it as having some again: two writes, for 512 frames, to a line that all threads share.
    pub(super) const fn pieces(self) -> [u32; 2] {
        match self.partial() {
            [0, last] if last.is_power_of_two() && self.whole() != 0 => [self.whole(), last],
            pieces => pieces,
        }
    }

    /// The first words of aligned runs of 2^order full words: outside whole huge frames, and
    /// anywhere. `order` is at most 5.
    pub(super) const fn runs(self, order: u32) -> [u32; 2] {
        let outside = (self.full & !self.whole()) as u64;
        [blocks(outside, order) as u32, blocks(self.full as u64, order) as u32]
    }

    pub(super) const fn is_full(self) -> bool {
        self.full == u32::MAX
    }

    /// Whether `top` must say something different for `other`.
    #[inline]
    pub(super) fn summary_differs(self, other: Self) -> bool {
        // The usual change: a word outside whole huge frames, and not the only one.
        let both = self.nonempty & other.nonempty & !(self.full | other.full);
        (self.full != other.full || both == 0) && self.summary() != other.summary()
    }

    pub(super) const fn summary(self) -> Summary {
        let whole = self.whole();
        Summary { has_partial: self.nonempty & !whole != 0, has_whole: whole != 0 }
    }
}

/// The numbers of the set bits.
pub(super) fn each(mut bits: u32) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let at = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (at < 32).then_some(at)
    })
}
