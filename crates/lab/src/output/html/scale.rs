//! Scales: where a value lies on an axis, and which values are marked.

/// Values beyond this, of either sign, are not placed: computations with them would overflow.
const LARGEST: f64 = 1e100;

/// Maps values to pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    low: f64,
    high: f64,
    log: bool,
    /// Whether the scale is marked at powers of two, as for bytes.
    binary: bool,
}

impl Scale {
    /// A scale around `values`, from zero if `zero`; logarithmic if `log` and all values are
    /// positive. NaN and values out of range are drawn at the edge.
    pub(crate) fn around(values: impl IntoIterator<Item = f64>, log: bool, zero: bool) -> Self {
        let finite: Vec<f64> = values.into_iter().filter(|value| value.abs() <= LARGEST).collect();
        let low = finite.iter().copied().fold(f64::INFINITY, f64::min);
        let high = finite.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if finite.is_empty() {
            return Self { low: 0.0, high: 1.0, log: false, binary: false };
        }
        if log && low >= LARGEST.recip() {
            let margin = ((high / low).ln() * 0.06).max(0.02).exp();
            return Self { low: low / margin, high: high * margin, log: true, binary: false };
        }
        let low = if zero { low.min(0.0) } else { low };
        // If all values are zero, the labels of marks between them would all be zero.
        let high = if low == 0.0 && high == 0.0 { 1.0 } else { high };
        let margin = ((high - low) * 0.06).max(high.abs() * 0.01).max(f64::MIN_POSITIVE);
        Self {
            low: if zero && low == 0.0 { 0.0 } else { low - margin },
            high: high + margin,
            log: false,
            binary: false,
        }
    }

    /// The same, marked at powers of two.
    pub(crate) fn binary(self) -> Self {
        Self { binary: true, ..self }
    }

    /// The position of `value`, 0 to 1.
    pub(crate) fn share(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        share.clamp(0.0, 1.0)
    }

    /// Round values to be marked, about `count` of them.
    pub(super) fn ticks(&self, count: usize) -> Vec<f64> {
        let base: f64 = if self.binary { 2.0 } else { 10.0 };
        if self.log && self.high / self.low > 30.0 {
            let first = self.low.log(base).ceil() as i32;
            let last = self.high.log(base).floor() as i32;
            let step = ((last - first) as usize / count.max(1) + 1) as i32;
            return (first..=last).step_by(step as usize).map(|power| base.powi(power)).collect();
        }
        let raw = (self.high - self.low) / count as f64;
        let magnitude = base.powf(raw.log(base).floor());
        let factors: &[f64] = if self.binary { &[1.0, 2.0] } else { &[1.0, 2.0, 2.5, 5.0, 10.0] };
        let step = factors
            .iter()
            .map(|factor| factor * magnitude)
            .find(|&step| step >= raw)
            .unwrap_or(base * magnitude);
        let first = (self.low / step).ceil() as i64;
        (first..)
            .map(|index| index as f64 * step)
            .take_while(|&value| value <= self.high * (1.0 + 1e-9))
            .take(4 * count)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_map_their_ends_inside() {
        let linear = Scale::around([2.0, 4.0], false, true);
        assert_eq!(linear.share(0.0), 0.0);
        assert!(linear.share(4.0) < 1.0 && linear.share(4.0) > 0.9);
        let log = Scale::around([1.0, 1e6], true, false);
        assert!((log.share(1e3) - 0.5).abs() < 1e-9);
        // Zero has no place on a logarithmic axis, so the scale falls back to a linear one.
        assert!(!Scale::around([0.0, 5.0], true, false).log);
        let one = Scale::around([3.0], false, false);
        assert!(one.share(3.0) > 0.0 && one.share(3.0) < 1.0);
    }

    #[test]
    fn no_record_breaks_a_scale() {
        let odd = [0.0, 1.0, -1.0, 5e-324, 1e-200, 1e308, -1e308, f64::INFINITY, f64::NAN];
        for low in odd {
            for high in odd {
                for (log, zero) in [(true, false), (false, true), (false, false)] {
                    let scale = Scale::around([low, 1.0, high], log, zero);
                    assert!(scale.share(1.0).is_finite(), "{low} {high}");
                    assert!(scale.ticks(5).len() <= 20, "{low} {high}");
                }
            }
        }
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(Scale::around([0.0, 10.0], false, true).ticks(5), [0.0, 2.5, 5.0, 7.5, 10.0]);
        let bytes = Scale::around([0.0, 14.0 * 1048576.0], false, true).binary().ticks(5);
        assert_eq!(bytes, [0.0, 4.0, 8.0, 12.0].map(|mib| mib * 1048576.0));
        let log = Scale::around([1.0, 1e6], true, false).ticks(5);
        assert!(log.contains(&1e3) || log.contains(&1e4), "{log:?}");
        for scale in [Scale::around([], true, true), Scale::around([0.0], false, true)] {
            assert!(scale.ticks(5).len() <= 20);
        }
    }
}
