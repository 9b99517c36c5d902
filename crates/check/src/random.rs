//! Random numbers determined by a seed, and a run's settings from the environment.

use std::str::FromStr;

/// A small generator (SplitMix64; Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", 2014). Its seed names the whole run.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The generator of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 random bits.
    #[inline]
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`; 0 for `bound` 0. Slightly uneven, which matters to no test.
    #[inline]
    pub const fn below(&mut self, bound: usize) -> usize {
        ((self.bits() as u128 * bound as u128) >> 64) as usize
    }

    /// A number in `low..=high` whose logarithm is evenly distributed: as many small ones as large
    /// ones.
    ///
    /// # Panics
    /// If `low` is 0, or above `high`.
    #[inline]
    pub const fn log_between(&mut self, low: usize, high: usize) -> usize {
        assert!(low > 0, "0 has no logarithm");
        assert!(low <= high, "no number lies between");
        let shift = self.below((high / low).ilog2() as usize + 1);
        let from = low << shift;
        let to = if from > high / 2 { high } else { from * 2 };
        from + self.below(to - from + 1)
    }

    /// True once in `times`.
    #[inline]
    pub const fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

fn from_environment<T: FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    let Ok(value) = value.parse() else { panic!("{name}={value}: not a whole number") };
    Some(value)
}

/// The seed of a run: `default`, or the value of `HECTARE_SEED`.
#[must_use]
pub fn seed(default: u64) -> u64 {
    from_environment("HECTARE_SEED").unwrap_or(default)
}

/// The number of operations of a run: `default`, or the value of `HECTARE_SOAK_OPS`.
#[must_use]
pub fn soak_operations(default: u64) -> u64 {
    from_environment("HECTARE_SOAK_OPS").unwrap_or(default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_within_their_bounds_and_reach_them() {
        let mut random = Random::new(1);
        let mut seen = [0; 8];
        for _ in 0..10_000 {
            seen[random.below(8)] += 1;
            let number = random.log_between(3, 1000);
            assert!((3..=1000).contains(&number), "{number}");
        }
        assert!(seen.iter().all(|&times| times > 1000), "{seen:?}");
        assert_eq!(random.below(0), 0);
        assert_eq!(random.log_between(5, 5), 5);
    }

    #[test]
    #[should_panic(expected = "0 has no logarithm")]
    fn no_logarithm_is_drawn_from_zero() {
        Random::new(1).log_between(0, 1000);
    }

    #[test]
    fn a_seed_names_its_numbers() {
        // The first output of the published reference for seed 1234567.
        assert_eq!(Random::new(1_234_567).bits(), 6_457_827_717_110_365_317);
    }
}
