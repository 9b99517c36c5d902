//! Random numbers: xorshift64* (Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled", 2016).
//! And a hash.

/// Spreads every bit of `word` over the upper bits (Knuth's multiplicative hashing, by the golden
/// ratio).
#[inline]
pub(crate) fn spread(word: usize) -> usize {
    (word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize
}

/// A generator. If all zeros, it has not begun yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const NEW: Self = Self(0);

    /// Whether the generator has yet to [begin](Self::stir).
    pub(crate) fn is_new(self) -> bool {
        self.0 == 0
    }

    /// Begins with `seed`. If the generator has begun already, mixes `seed` into its state.
    pub(crate) fn stir(&mut self, seed: u64) {
        self.0 = (self.0 ^ seed) | 1;
    }

    /// The next number. 0 as long as the generator is new.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
