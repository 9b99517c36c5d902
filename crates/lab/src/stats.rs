//! Paired ratios, bootstrap intervals, and when two subjects are the same.
//!
//! Two subjects are compared round by round. Both run once in each round, moments apart, so what
//! slows the whole machine for a while cancels out in their ratio. The statistic is the median of
//! the per-round ratios; its interval is the expanded percentile bootstrap's (Efron 1979;
//! Hesterberg, "What Teachers Should Know About the Bootstrap", 2015), see [`interval`].

/// Resamples of one bootstrap: with more, the interval's ends move by less than 1 % of its width.
const RESAMPLES: usize = 4000;

/// Confidence of an interval of [`BOOTSTRAP_ROUNDS`] rounds or more.
const CONFIDENCE: f64 = 0.95;

/// Fewer rounds than this show nothing.
pub(crate) const LEAST_ROUNDS: usize = 3;

/// Fewer rounds than this have the smallest and the largest ratio as their interval.
pub(crate) const BOOTSTRAP_ROUNDS: usize = 6;

/// Confidence of the interval for that many rounds. The smallest and the largest of n values from
/// any distribution enclose its median with probability 1 − 2^(1−n): 75 % for three, 94 % for five.
pub(crate) fn confidence(rounds: usize) -> f64 {
    if rounds < BOOTSTRAP_ROUNDS { 1.0 - 2_f64.powi(1 - rounds.max(1) as i32) } else { CONFIDENCE }
}

/// A ratio with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    /// Median of the per-round ratios.
    pub(crate) value: f64,
    /// Lower end.
    pub(crate) low: f64,
    /// Upper end.
    pub(crate) high: f64,
    /// How far the median of as many rounds with the same spread strays, 95 times in 100.
    pub(crate) spread: f64,
    /// Rounds behind it.
    pub(crate) rounds: usize,
}

/// Two subjects are the same when their ratio is shown to be within this share of one.
pub(crate) const SAME_SHARE: f64 = 0.02;

/// What a ratio shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Shown to be below one.
    Less,
    /// Shown to be equal within [`SAME_SHARE`].
    Same,
    /// Shown to be above one.
    More,
    /// Nothing shown: too few rounds or too much noise.
    Undecided,
}

impl Ratio {
    /// The ratio from the per-round ratios; `None` when there are none.
    pub(crate) fn of(ratios: &[f64]) -> Option<Self> {
        let value = median(ratios)?;
        let (low, high) = interval(ratios);
        Some(Self { value, low, high, spread: spread(ratios, value), rounds: ratios.len() })
    }

    /// What the ratio shows. Equality: the whole interval lies within [`SAME_SHARE`] of one. A
    /// difference: the interval excludes one, and the effect is larger than `noise`, the
    /// [`noise_floor`](Self::noise_floor) of a subject against itself. With fewer than
    /// [`LEAST_ROUNDS`], or if no floor is known, it shows nothing.
    pub(crate) fn verdict(&self, noise: f64) -> Verdict {
        let beyond_noise = (self.value - 1.0).abs() > noise;
        if self.rounds < LEAST_ROUNDS || !noise.is_finite() {
            Verdict::Undecided
        } else if (1.0 - self.low).max(self.high - 1.0) <= SAME_SHARE {
            Verdict::Same
        } else if beyond_noise && self.high < 1.0 {
            Verdict::Less
        } else if beyond_noise && self.low > 1.0 {
            Verdict::More
        } else {
            Verdict::Undecided
        }
    }

    /// For a subject against itself: the difference that its rounds could show by chance. It is
    /// based on the median and its spread and not on the ends, since one disturbed round says
    /// nothing about the others. Fewer than [`LEAST_ROUNDS`] bound nothing: a single round has no
    /// spread at all.
    pub(crate) fn noise_floor(&self) -> f64 {
        if self.rounds < LEAST_ROUNDS {
            return f64::INFINITY;
        }
        (self.value - 1.0).abs() + self.spread
    }
}

/// Median; `None` if there are no values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        length if length % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// Geometric mean; `None` if there are no values or one is not positive.
pub(crate) fn geometric_mean(values: &[f64]) -> Option<f64> {
    if values.is_empty() || values.iter().any(|&value| value <= 0.0) {
        return None;
    }
    Some((values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp())
}

/// The interval of the median of `ratios`, with the [`confidence`] for their number.
///
/// With fewer than six values the interval reaches from the smallest to the largest: a bootstrap of
/// so few values would claim more than they can show. With six or more it is the percentile
/// bootstrap with its tails moved outward, as Hesterberg advises. Plain percentiles of few values
/// are too narrow, by the factor √((n−1)/n) and because they take a normal quantile where Student's
/// belongs.
fn interval(ratios: &[f64]) -> (f64, f64) {
    let mut sorted = ratios.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (Some(&least), Some(&greatest)) = (sorted.first(), sorted.last()) else {
        return (f64::NAN, f64::NAN);
    };
    if sorted.len() < BOOTSTRAP_ROUNDS {
        return (least, greatest);
    }
    // The seed is fixed, so that a report reproduced from its record shows the same interval.
    let mut random = fastrand::Rng::with_seed(0x68_6563_7461_7265);
    let mut resample = vec![0.0; sorted.len()];
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            resample.fill_with(|| sorted[random.usize(..sorted.len())]);
            median(&resample).expect("a resample is as long as its source")
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let tail = expanded_tail(sorted.len());
    let at = |share: f64| medians[((share * RESAMPLES as f64) as usize).min(RESAMPLES - 1)];
    (at(tail), at(1.0 - tail))
}

/// The 95 % half-width of the median of values with the median absolute deviation of `ratios`.
/// 1.4826 times that deviation is a standard deviation, and the median of a normal sample strays
/// 1.2533 times as far as its mean.
fn spread(ratios: &[f64], middle: f64) -> f64 {
    let deviations: Vec<f64> = ratios.iter().map(|ratio| (ratio - middle).abs()).collect();
    let deviation = 1.4826 * median(&deviations).unwrap_or(0.0);
    let count = ratios.len().max(2);
    student(count) * 1.2533 * deviation / (count as f64).sqrt()
}

/// Student's 97.5 % quantile for `n` values, by its Cornish–Fisher series.
fn student(n: usize) -> f64 {
    const Z: f64 = 1.959_963_984_540_054;
    let freedom = (n - 1) as f64;
    Z + (Z.powi(3) + Z) / (4.0 * freedom)
        + (5.0 * Z.powi(5) + 16.0 * Z.powi(3) + 3.0 * Z) / (96.0 * freedom * freedom)
}

/// The share of resamples to cut at each end for `n` values: Φ(−√(n/(n−1)) · t) with Student's 97.5
/// % quantile t at n − 1 degrees of freedom.
fn expanded_tail(n: usize) -> f64 {
    let x = (n as f64 / (n - 1) as f64).sqrt() * student(n);
    // Φ(−x) by Abramowitz & Stegun 26.2.17, good to 7.5e-8.
    let k = 1.0 / (1.0 + 0.231_641_9 * x);
    let polynomial = k
        * (0.319_381_530
            + k * (-0.356_563_782
                + k * (1.781_477_937 + k * (-1.821_255_978 + k * 1.330_274_429))));
    (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt() * polynomial
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_nears_the_nominal_one_with_many_rounds() {
        assert!((expanded_tail(100_000) - 0.025).abs() < 1e-4);
        assert!(expanded_tail(10) < 0.011 && expanded_tail(10) > 0.005);
    }

    /// Normal noise by the Box–Muller transform.
    fn normal(random: &mut fastrand::Rng) -> f64 {
        let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
        radius * (std::f64::consts::TAU * random.f64()).cos()
    }

    #[test]
    fn medians_and_means_of_known_values() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert!((geometric_mean(&[1.0, 4.0]).unwrap() - 2.0).abs() < 1e-12);
        assert_eq!(geometric_mean(&[1.0, 0.0]), None);
        assert_eq!(geometric_mean(&[]), None);
    }

    #[test]
    fn few_rounds_are_as_sure_as_their_number_lets_them_be() {
        let sure = [1, 2, 3, 4, 5, 6, 100].map(confidence);
        assert_eq!(sure, [0.0, 0.5, 0.75, 0.875, 0.9375, 0.95, 0.95]);
    }

    #[test]
    fn few_values_give_their_range() {
        let ratio = Ratio::of(&[1.1, 0.9, 1.3]).unwrap();
        assert_eq!((ratio.value, ratio.low, ratio.high), (1.1, 0.9, 1.3));
        assert_eq!(Ratio::of(&[]), None);
    }

    #[test]
    fn the_interval_covers_the_truth_as_often_as_it_claims() {
        let mut random = fastrand::Rng::with_seed(7);
        for rounds in [3, 4, 5, 8, 15, 30] {
            let trials = 400;
            let covered = (0..trials)
                .filter(|_| {
                    let ratios: Vec<f64> =
                        (0..rounds).map(|_| (0.05 * normal(&mut random)).exp()).collect();
                    let ratio = Ratio::of(&ratios).unwrap();
                    ratio.low <= 1.0 && 1.0 <= ratio.high
                })
                .count();
            let share = covered as f64 / f64::from(trials);
            let claimed = confidence(rounds);
            // Three standard deviations of such a share are 0.033 at 95 %, 0.065 at 75 %.
            let strays = 3.0 * (claimed * (1.0 - claimed) / f64::from(trials)).sqrt();
            assert!(share > claimed - strays, "{rounds} rounds: covered {share} of {claimed}");
        }
    }

    /// Simulates contests: reference, subject and reference again, each once a round, one run in
    /// seven disturbed. Returns how often in 500 contests each verdict was found.
    fn verdicts(rounds: usize, effect: f64, random: &mut fastrand::Rng) -> [usize; 4] {
        let mut found = [0; 4];
        for _ in 0..500 {
            let (mut subject, mut again) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                let mut time = || {
                    let noise = normal(random);
                    let disturbed = random.u8(0..7) == 0;
                    (0.03 * if disturbed { 8.0 * noise.abs() } else { noise }).exp()
                };
                let reference = time();
                subject.push(effect * time() / reference);
                again.push(time() / reference);
            }
            let noise = Ratio::of(&again).unwrap().noise_floor();
            let verdict = Ratio::of(&subject).unwrap().verdict(noise);
            found[verdict as usize] += 1;
        }
        found
    }

    #[test]
    fn a_verdict_is_rarely_wrong_however_few_the_rounds() {
        let mut random = fastrand::Rng::with_seed(3);
        for rounds in [3, 5, 8] {
            let [less, same, more, _] = verdicts(rounds, 1.0, &mut random);
            let most = if rounds == 3 { 25 } else { 10 };
            assert!(less + more < most, "{rounds} rounds invented {less} + {more} differences");
            assert!(same < 25, "{rounds} rounds of such noise show no equality: {same}");
            let [less, same, more, _] = verdicts(rounds, 1.3, &mut random);
            assert!(less + same < 5, "{rounds} rounds: {less} less, {same} the same");
            assert!(more > 250, "{rounds} rounds show 30 % in {more} of 500");
        }
    }

    #[test]
    fn a_planted_difference_is_seen_and_none_is_not_invented() {
        let mut random = fastrand::Rng::with_seed(11);
        let mut draw = |effect: f64| -> Vec<f64> {
            (0..12).map(|_| effect * (0.01 * normal(&mut random)).exp()).collect()
        };
        assert_eq!(Ratio::of(&draw(1.05)).unwrap().verdict(0.01), Verdict::More);
        assert_eq!(Ratio::of(&draw(0.95)).unwrap().verdict(0.01), Verdict::Less);
        let invented = (0..200)
            .map(|_| Ratio::of(&draw(1.0)).unwrap().verdict(0.0))
            .filter(|verdict| matches!(verdict, Verdict::Less | Verdict::More))
            .count();
        assert!(invented < 30, "{invented} of 200 differences were invented");
    }

    #[test]
    fn the_same_is_said_where_it_is_shown_and_nothing_where_nothing_is() {
        let ratio = Ratio { value: 0.95, low: 0.94, high: 0.96, spread: 0.01, rounds: 10 };
        assert_eq!(ratio.verdict(0.0), Verdict::Less);
        assert_eq!(ratio.verdict(0.06), Verdict::Undecided);
        assert_eq!(Ratio { rounds: 2, ..ratio }.verdict(0.0), Verdict::Undecided);
        let wide = Ratio { low: 0.7, high: 1.2, ..ratio };
        assert_eq!(wide.verdict(0.0), Verdict::Undecided);
        let around_one = Ratio { low: 0.985, high: 1.015, ..ratio };
        assert_eq!(around_one.verdict(0.0), Verdict::Same);
        // Shown to be below one, but by too little to matter.
        let little = Ratio { value: 0.99, low: 0.985, high: 0.995, ..ratio };
        assert_eq!(little.verdict(0.0), Verdict::Same);
        // No further from one than the reference is from itself, but not shown to be at one.
        let biased = Ratio { value: 1.05, low: 1.04, high: 1.06, ..ratio };
        assert_eq!(biased.verdict(0.06), Verdict::Undecided);
        assert!((ratio.noise_floor() - 0.06).abs() < 1e-12);
        // Infinity means that no floor is known, not that it is zero.
        assert_eq!(Ratio::of(&[1.0]).unwrap().noise_floor(), f64::INFINITY);
        assert_eq!(Ratio::of(&[1.0, 1.0]).unwrap().noise_floor(), f64::INFINITY);
        for shown in [ratio, around_one] {
            assert_eq!(shown.verdict(f64::INFINITY), Verdict::Undecided);
        }
    }

    #[test]
    fn one_disturbed_round_does_not_raise_the_noise_floor() {
        let calm = [0.98, 0.99, 1.0, 1.0, 1.01, 1.02];
        let floor = |ratios: &[f64]| Ratio::of(ratios).unwrap().noise_floor();
        let disturbed: Vec<f64> = calm.iter().copied().chain([2.5]).collect();
        assert!(floor(&disturbed) < 2.0 * floor(&calm) + 0.01);
        // The floor holds: the reference against itself stays below it as often as the floor
        // claims.
        let mut random = fastrand::Rng::with_seed(5);
        let within = (0..400)
            .filter(|_| {
                let mut draw =
                    || -> Vec<f64> { (0..9).map(|_| (0.05 * normal(&mut random)).exp()).collect() };
                let (floor, other) = (floor(&draw()), draw());
                (median(&other).unwrap() - 1.0).abs() <= floor
            })
            .count();
        assert!(within > 360, "{within} of 400");
    }
}
