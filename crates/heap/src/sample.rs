//! When an allocation is sampled.
//!
//! Every allocated byte is a sampling point with the probability 1 / `mean_bytes`, independent of
//! all others: so the gaps between points are exponential, an object of s bytes is sampled with
//! the probability 1 − e^(−s / mean), and one that was stands for 1 / that many like it. What is
//! estimated so is true on average whatever the program's pattern. (Poisson sampling, as
//! gperftools' and TCMalloc's heap profilers do it.) Guarded allocations are drawn the same way,
//! with calls in place of bytes.
//!
//! A thread counts down without looking at anybody else; one test of a sign serves both counts.

/// A gap that no thread lives to see the end of: 2⁶² bytes.
const NEVER: i64 = 1 << 62;

/// How often to sample; 0 is never.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rates {
    /// One allocated byte in so many is a sampling point of the profile.
    pub(crate) mean_bytes: usize,
    /// One call in so many gets a guarded object.
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

/// A thread's gaps, as far as they are left.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Countdown {
    bytes_left: i64,
    calls_left: i64,
    /// The state of xorshift64*; 0 before the first gaps are drawn.
    random: u64,
}

impl Countdown {
    /// Before the first gap is drawn.
    pub(crate) const NEW: Self = Self { bytes_left: 0, calls_left: 0, random: 0 };

    /// Counts an allocation of `bytes` and says what is due at it. `rates` gives the rates, and
    /// a seed for a thread that has drawn no gap yet.
    #[inline(always)]
    pub(crate) fn step(&mut self, bytes: usize, rates: impl FnOnce() -> (Rates, u64)) -> Due {
        if self.passes(bytes) {
            return Due::NOTHING;
        }
        let (rates, seed) = rates();
        self.ended(bytes, rates, seed)
    }

    /// Counts an allocation of `bytes` if nothing is due at it; `false`, and nothing has changed, if
    /// anything is, or no gap was drawn yet: [`step`](Self::step) must follow.
    #[inline(always)]
    pub(crate) fn passes(&mut self, bytes: usize) -> bool {
        let bytes_left = self.bytes_left - bytes.max(1) as i64;
        let calls_left = self.calls_left - 1;
        if bytes_left | calls_left < 0 {
            return false;
        }
        self.bytes_left = bytes_left;
        self.calls_left = calls_left;
        true
    }

    /// A gap has ended, or none was drawn yet.
    #[cold]
    fn ended(&mut self, bytes: usize, rates: Rates, seed: u64) -> Due {
        if self.random == 0 {
            self.random = seed | 1;
            self.bytes_left = self.bytes(rates.mean_bytes);
            self.calls_left = self.calls(rates.guard_one_in);
        }
        self.bytes_left -= bytes.max(1) as i64;
        self.calls_left -= 1;
        let (bytes_ended, calls_ended) = (self.bytes_left < 0, self.calls_left < 0);
        // An exponential gap has no memory: by how far the last was overrun says nothing.
        if bytes_ended {
            self.bytes_left = self.bytes(rates.mean_bytes);
        }
        if calls_ended {
            self.calls_left = self.calls(rates.guard_one_in);
        }
        Due {
            profile: bytes_ended && rates.mean_bytes > 0,
            guard: calls_ended && rates.guard_one_in > 0,
        }
    }

    /// How many bytes until the next sampling point.
    fn bytes(&mut self, mean: usize) -> i64 {
        if mean == 0 { NEVER } else { self.gap(mean as f64) }
    }

    /// How many calls to pass by until the next that is drawn, each with the probability
    /// 1 / `one_in`: geometric, which is an exponential gap rounded down.
    fn calls(&mut self, one_in: usize) -> i64 {
        match one_in {
            0 => NEVER,
            1 => 0,
            _ => self.gap(-1.0 / ln(1.0 - 1.0 / one_in as f64)),
        }
    }

    fn gap(&mut self, mean: f64) -> i64 {
        let gap = -ln(self.uniform()) * mean;
        if gap < NEVER as f64 { gap as i64 } else { NEVER }
    }

    /// A number in (0, 1], each multiple of 2⁻⁵³ as likely.
    fn uniform(&mut self) -> f64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let bits = self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11;
        (bits + 1) as f64 / (1u64 << 53) as f64
    }
}

/// What one sampled object of `bytes` stands for: (objects × 2¹⁰, bytes).
pub(crate) fn weight(bytes: usize, mean_bytes: usize) -> (u64, u64) {
    let bytes = bytes.max(1) as f64;
    let probability = 1.0 - exp_of_negative(bytes / mean_bytes.max(1) as f64);
    ((1024.0 / probability + 0.5) as u64, (bytes / probability + 0.5) as u64)
}

/// The natural logarithm of a positive normal number: its exponent's, and that of its mantissa m
/// in [1/√2, √2) by 2 artanh((m − 1) / (m + 1)), whose series converges by more than five bits a
/// term. The core library has none, and the C library's would mean one more library to load.
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

/// e^(−x) for x ≥ 0, so that 1 − it keeps its precision for small x: by Taylor's series of x / 2¹⁰,
/// squared ten times.
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

    #[test]
    fn logarithm_and_exponential_are_the_librarys() {
        for i in 1..200_000u32 {
            let x = f64::from(i) / 1000.0;
            assert!((ln(x) - x.ln()).abs() < 1e-12, "ln {x}");
            assert!((exp_of_negative(x) - (-x).exp()).abs() < 1e-12, "exp -{x}");
        }
        assert!((ln(f64::EPSILON / 2.0) - (f64::EPSILON / 2.0).ln()).abs() < 1e-10);
    }

    #[test]
    fn never_when_both_rates_are_zero() {
        let mut countdown = Countdown::NEW;
        for bytes in 0..100_000 {
            assert_eq!(countdown.step(bytes, || (Rates::default(), 9)), Due::NOTHING);
        }
    }

    /// Sums of what the samples stand for must come near the truth for sizes far below the mean,
    /// near it and far above.
    #[test]
    fn estimates_are_true_for_every_size() {
        let rates = Rates { mean_bytes: 4096, guard_one_in: 0 };
        for bytes in [1, 16, 100, 4096, 10_000, 1_000_000] {
            let mut countdown = Countdown::NEW;
            let rounds = (rates.mean_bytes * 3000 / bytes).max(3000);
            let (mut objects, mut sum) = (0, 0);
            for _ in 0..rounds {
                if countdown.step(bytes, || (rates, bytes as u64)).profile {
                    let (objects_1024, weight_bytes) = weight(bytes, rates.mean_bytes);
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

    #[test]
    fn one_call_in_so_many_is_guarded() {
        for one_in in [1, 2, 3, 100] {
            let rates = Rates { mean_bytes: 0, guard_one_in: one_in };
            let mut countdown = Countdown::NEW;
            let due = |_: &i32| countdown.step(50, || (rates, 5)).guard;
            let guarded = (0..1_000_000).filter(due).count();
            let ratio = guarded as f64 * one_in as f64 / 1e6;
            assert!((ratio - 1.0).abs() < 0.03, "{guarded} of a million, one in {one_in}");
        }
    }
}
