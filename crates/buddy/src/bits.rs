//! Arithmetic on aligned blocks inside one 64-bit word.

/// Bits in a word.
pub(crate) const WORD: usize = 64;
/// log2 of [`WORD`].
pub(crate) const WORD_SHIFT: u32 = 6;

/// The bits at which a block of 2^order bits may start.
const STARTS: [u64; 7] = [
    !0,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    1,
];

/// The starts of all aligned blocks of 2^order set bits. `order` is at most 6.
#[inline]
pub(crate) const fn blocks(word: u64, order: u32) -> u64 {
    let mut runs = word;
    let mut step = 0;
    while step < order {
        // Bit i: bits i .. i + 2^(step + 1) are set.
        runs &= runs >> (1 << step);
        step += 1;
    }
    runs & STARTS[order as usize]
}

/// The largest order of an aligned block of set bits in `word`, which must not be 0. At most 5: a
/// full word is not a block *in* a word.
#[inline]
pub(crate) const fn largest_block(word: u64) -> u32 {
    debug_assert!(word != 0);
    let mut runs = word;
    let mut order = 0;
    while order < WORD_SHIFT - 1 {
        runs &= runs >> (1 << order);
        // If there is no aligned pair of blocks, there is no aligned pair of pairs.
        if runs & STARTS[order as usize + 1] == 0 {
            break;
        }
        order += 1;
    }
    order
}

/// A word whose bits `from .. to` are set; `from < to <= 64`.
#[inline]
pub(crate) const fn span(from: usize, to: usize) -> u64 {
    debug_assert!(from < to && to <= WORD);
    (!0 << from) & (!0 >> (WORD - to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_agree_with_looking_at_every_place() {
        let words = [0, 1, !0, 0xff00, 0x8000_0000_0000_0000, 0x0ff0_1234_ffff_fff1, !0 << 32];
        for word in words {
            for order in 0..=6u32 {
                let length = 1usize << order;
                let expected = (0..WORD)
                    .step_by(length)
                    .filter(|&at| word & span(at, at + length) == span(at, at + length))
                    .fold(0, |starts, at| starts | 1 << at);
                assert_eq!(blocks(word, order), expected, "{word:#x}, order {order}");
            }
        }
    }

    #[test]
    fn the_largest_block_is_below_a_whole_word() {
        assert_eq!(largest_block(!0), 5);
        assert_eq!(largest_block(0b110), 0);
        assert_eq!(largest_block(0b1100), 1);
    }
}
