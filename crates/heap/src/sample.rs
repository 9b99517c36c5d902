//! When an allocation is sampled.
//!
//! Every allocated byte is a sampling point with the probability 1 / `mean_bytes`, independent of
//! all others. So the gaps between points are exponential, an object of s bytes is sampled with the
//! probability 1 − e^(−s / mean), and a sampled object stands for 1 / that many like it. Estimates
//! made in this way are true on average whatever the program's pattern. (Poisson sampling, as the
//! heap profilers of gperftools and TCMalloc do it.) Guarded allocations are drawn the same way,
//! with calls in place of bytes.
//!
//! The points of one size class say nothing of those of another. So a thread counts down for each
//! class separately, beside its list of free objects, and in whole objects. The hit path of a
//! watched `malloc` has that line at hand, and needs one count for both draws. What counts of a
//! request are the bytes that it takes up: those of its class, or whole frames of a run. An object
//! that `realloc` leaves in place stays sampled or not: what a sampled object stands for is always
//! told by the class by which it was drawn.

use crate::class::{ClassId, MAX_SMALL_BYTES, MIN_ALIGN};
use crate::random::Random;
use crate::region::FRAME_BYTES;

/// The highest mean of either rate, in bytes or calls. With this mean one in millions of the
/// profile's gaps, in objects of 16 bytes and more, is cut off at 2³². Gaps between guarded objects
/// may be cut off, since nothing is estimated by them.
pub const MAX_SAMPLE_MEAN: usize = 1 << 32;

/// How often to sample. 0 means never.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rates {
    /// One allocated byte in this many is a sampling point of the profile.
    pub(crate) mean_bytes: usize,
    /// One call in this many gets a guarded object.
    pub(crate) guard_one_in: usize,
}

/// What is due at an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Due {
    pub(crate) profile: bool,
    pub(crate) guard: bool,
}

impl Due {
    /// Nothing, for nearly every allocation.
    pub(crate) const NOTHING: Self = Self { profile: false, guard: false };
}

/// The class by which a request of `bytes` aligned to `align` is counted: the least that serves it.
#[inline(always)]
pub(crate) fn class_of(bytes: usize, align: usize) -> ClassId {
    if align > MIN_ALIGN {
        return ClassId::for_aligned(bytes, align).unwrap_or(ClassId::RUN);
    }
    if bytes <= MAX_SMALL_BYTES { ClassId::for_bytes(bytes) } else { ClassId::RUN }
}

/// How many units of its `class` a request of `bytes` counts as.
#[inline(always)]
pub(crate) fn units(bytes: usize, class: ClassId) -> usize {
    if class.is_small() { 1 } else { bytes.max(1).div_ceil(FRAME_BYTES) }
}

/// How many bytes a unit of `class` has.
fn unit_bytes(class: ClassId) -> f64 {
    if class.is_small() { class.object_bytes() as f64 } else { FRAME_BYTES as f64 }
}

/// A thread's draws.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draws {
    random: Random,
}

impl Draws {
    /// Before the first draw.
    pub(crate) const NEW: Self = Self { random: Random::NEW };

    /// Whether nothing was drawn yet. Then each class's gap must be drawn.
    pub(crate) fn are_new(&self) -> bool {
        self.random.is_new()
    }

    /// Begins with `seed`.
    pub(crate) fn begin(&mut self, seed: u64) {
        self.random.stir(seed);
    }

    /// How many units of `class` pass until the next at which anything is due.
    pub(crate) fn gap(&mut self, class: ClassId, rates: Rates) -> u32 {
        let mean_units = rates.mean_bytes as f64 / unit_bytes(class);
        let profile = if rates.mean_bytes == 0 { NEVER } else { self.exponential() * mean_units };
        // Geometric: an exponential gap rounded down. No run is guarded.
        let guard = match rates.guard_one_in {
            one_in if one_in == 0 || !class.is_small() => NEVER,
            1 => 0.0,
            one_in => self.exponential() / -ln(1.0 - 1.0 / one_in as f64),
        };
        profile.min(guard) as u32
    }

    /// What is due at an object of `class` at which a gap has ended. (Gaps have no memory, so how
    /// they were drawn need not be kept.)
    pub(crate) fn due(&mut self, class: ClassId, rates: Rates) -> Due {
        let may_guard = rates.guard_one_in > 0 && class.is_small();
        if rates.mean_bytes == 0 || !may_guard {
            return Due { profile: rates.mean_bytes > 0, guard: may_guard };
        }
        let profile = 1.0 - exp_of_negative(unit_bytes(class) / rates.mean_bytes as f64);
        let guard = 1.0 / rates.guard_one_in as f64;
        let both = profile * guard;
        let drawn = self.uniform() * (profile + guard - both);
        Due { profile: drawn <= profile, guard: drawn <= both || drawn > profile }
    }

    /// An exponential number with the mean 1.
    fn exponential(&mut self) -> f64 {
        -ln(self.uniform())
    }

    /// A number in (0, 1]. Each multiple of 2⁻⁵³ is equally likely.
    fn uniform(&mut self) -> f64 {
        let bits = self.random.next() >> 11;
        (bits + 1) as f64 / (1u64 << 53) as f64
    }
}

/// A gap longer than any that is counted.
const NEVER: f64 = u32::MAX as f64;

/// What one sampled object of `bytes` that was drawn by `class` stands for: (objects × 2¹⁰, bytes).
pub(crate) fn weight(bytes: usize, class: ClassId, mean_bytes: usize) -> (u64, u64) {
    let counted_bytes = units(bytes, class) as f64 * unit_bytes(class);
    let probability = 1.0 - exp_of_negative(counted_bytes / mean_bytes.max(1) as f64);
    ((1024.0 / probability + 0.5) as u64, (bytes.max(1) as f64 / probability + 0.5) as u64)
}

/// The natural logarithm of a positive normal number: that of its exponent, and that of its
/// mantissa m in [1/√2, √2) by 2 artanh((m − 1) / (m + 1)). The series converges by more than five
/// bits a term. The core library has no logarithm, and the C library's would mean one more library
/// to load.
#[inline(never)]
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i64 - 1023;
    let mut mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    if mantissa > core::f64::consts::SQRT_2 {
        mantissa /= 2.0;
        exponent += 1;
    }
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let terms = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];
    let series = terms.iter().rev().fold(0.0, |sum, term| sum * s * s + 1.0 / term);
    exponent as f64 * core::f64::consts::LN_2 + 2.0 * s * series
}

/// e^(−x) for x ≥ 0, by Taylor's series of x / 2¹⁰, squared ten times. So 1 − the result keeps its
/// precision for small x.
fn exp_of_negative(x: f64) -> f64 {
    if x > 700.0 {
        return 0.0;
    }
    let small = -x / 1024.0;
    let series = (1..=8).rev().fold(1.0, |sum, n| 1.0 + sum * small / f64::from(n));
    (0..10).fold(series, |power, _| power * power)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::class::STATES;

    #[test]
    fn logarithm_and_exponential_are_the_librarys() {
        for i in 1..200_000u32 {
            let x = f64::from(i) / 1000.0;
            assert!((ln(x) - x.ln()).abs() < 1e-12, "ln {x}");
            assert!((exp_of_negative(x) - (-x).exp()).abs() < 1e-12, "exp -{x}");
        }
        assert!((ln(f64::EPSILON / 2.0) - (f64::EPSILON / 2.0).ln()).abs() < 1e-10);
    }

    /// A thread's counts, as its cache has them.
    struct Counts {
        draws: Draws,
        until_due: [u32; STATES],
        rates: Rates,
    }

    impl Counts {
        fn new(rates: Rates, seed: u64) -> Self {
            let mut draws = Draws::NEW;
            draws.begin(seed);
            let mut until_due = [0; STATES];
            for class in ClassId::all().chain([ClassId::RUN]) {
                until_due[class.index()] = draws.gap(class, rates);
            }
            Self { draws, until_due, rates }
        }

        fn step(&mut self, bytes: usize) -> Due {
            let class = class_of(bytes, MIN_ALIGN);
            let units = units(bytes, class);
            let left = &mut self.until_due[class.index()];
            if *left as usize >= units {
                *left -= units as u32;
                return Due::NOTHING;
            }
            *left = self.draws.gap(class, self.rates);
            self.draws.due(class, self.rates)
        }
    }

    #[test]
    fn never_when_both_rates_are_zero() {
        let mut counts = Counts::new(Rates::default(), 9);
        for bytes in 0..100_000 {
            assert_eq!(counts.step(bytes), Due::NOTHING);
        }
    }

    /// The sums of what the samples stand for must come near the truth for sizes far below the
    /// mean, near it and far above, whether or not objects are guarded, too.
    #[test]
    fn estimates_are_true_for_every_size() {
        for guard_one_in in [0, 50] {
            let rates = Rates { mean_bytes: 4096, guard_one_in };
            for bytes in [1, 16, 100, 4096, 10_000, 50_000, 1_000_000] {
                let mut counts = Counts::new(rates, bytes as u64);
                let rounds = (rates.mean_bytes * 3000 / bytes).max(3000);
                let (mut objects, mut sum) = (0, 0);
                for _ in 0..rounds {
                    if counts.step(bytes).profile {
                        let class = class_of(bytes, MIN_ALIGN);
                        let (objects_1024, weight_bytes) = weight(bytes, class, rates.mean_bytes);
                        objects += objects_1024;
                        sum += weight_bytes;
                    }
                }
                let ratio = objects as f64 / 1024.0 / rounds as f64;
                assert!((ratio - 1.0).abs() < 0.06, "{ratio} of the objects of {bytes} bytes");
                let ratio = sum as f64 / (rounds * bytes) as f64;
                assert!((ratio - 1.0).abs() < 0.06, "{ratio} of the bytes in objects of {bytes}");
            }
        }
    }

    #[test]
    fn one_call_in_so_many_is_guarded() {
        for (one_in, mean_bytes) in [(1, 0), (2, 0), (3, 0), (100, 0), (2, 500), (100, 500)] {
            let mut counts = Counts::new(Rates { mean_bytes, guard_one_in: one_in }, 5);
            let guarded = (0..1_000_000).filter(|_| counts.step(50).guard).count();
            let ratio = guarded as f64 * one_in as f64 / 1e6;
            assert!((ratio - 1.0).abs() < 0.03, "{guarded} of a million, one in {one_in}");
        }
    }
}
