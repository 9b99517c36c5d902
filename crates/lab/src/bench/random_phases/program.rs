//! The program of phases that is drawn from a seed.

use std::fmt;

/// Sizes of objects come from one of these ranges, bytes: from small ones to those that many
/// allocators map individually.
const RANGES: [(u32, u32); 7] = [
    (16, 256),
    (64, 2000),
    (1000, 8000),
    (4000, 40_000),
    (16_000, 70_000),
    (40_000, 300_000),
    (300_000, LARGEST_BYTES),
];

/// The largest object of any program, bytes.
pub(super) const LARGEST_BYTES: u32 = 3_000_000;

/// Live memory stays at most at this share, in per cent, of what may be live. The rest is for
/// objects that come and go within a phase.
pub(super) const FULL_PERCENT: u64 = 90;

/// A part of the program in which every thread does one kind of thing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Phase {
    pub(super) kind: Kind,
    /// Sizes of the objects that the phase allocates.
    pub(super) sizes: Sizes,
    pub(super) written: Written,
}

/// The kind of work in a phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// Allocates until live memory is this share, in per cent, of what may be live.
    Grow { percent: u64 },
    /// Frees this share of all objects, in per cent.
    Free { percent: usize, pattern: Pattern },
    /// Replaces random objects, each by one of a new size.
    Replace,
    /// Gives random objects a new size.
    Realloc,
    /// Grows vectors by half until they have their size. One in four is kept.
    Vectors,
    /// Allocates 50 to 250 objects, then frees them all.
    Bursts,
}

/// Which objects are freed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Pattern {
    /// As evenly spread over the ages as possible: for a half, every second object.
    Spread,
    Random,
    Oldest,
    Youngest,
}

/// How sizes are distributed between `low` and `high`, bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sizes {
    pub(super) low: u32,
    pub(super) high: u32,
    pub(super) distribution: Distribution,
}

/// See [`Sizes`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Distribution {
    /// All of them `low`.
    Fixed,
    Uniform,
    /// Uniform in the logarithm.
    LogUniform,
}

/// What part of an object is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Written {
    All,
    /// One byte in each page.
    Pages,
    /// The first eight bytes, which hold the stamp.
    First,
    Quarter,
}

/// The program of `seed`. It depends on nothing else, so that it is the same for any number of
/// threads. What a phase leaves live is only estimated here.
pub(super) fn draw(seed: u64, phases: usize) -> Vec<Phase> {
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut live_percent, mut middle_bytes) = (0, 0);
    let phase = |_| {
        let kind = Kind::draw(&mut random, live_percent);
        let sizes = Sizes::draw(&mut random);
        match kind {
            Kind::Grow { percent } => live_percent = percent,
            Kind::Free { percent, .. } => {
                live_percent = live_percent * (100 - percent as u64) / 100
            }
            // Larger objects in place of others fill the available memory.
            Kind::Replace | Kind::Realloc if sizes.middle_bytes() > middle_bytes => {
                live_percent = FULL_PERCENT;
            }
            Kind::Replace | Kind::Realloc | Kind::Vectors | Kind::Bursts => {}
        }
        if matches!(kind, Kind::Grow { .. } | Kind::Replace | Kind::Realloc) {
            middle_bytes = sizes.middle_bytes();
        }
        Phase { kind, sizes, written: Written::draw(&mut random) }
    };
    (0..phases).map(phase).collect()
}

impl Kind {
    /// Draws the next kind, when live memory is about this share, in per cent, of what may be live.
    fn draw(random: &mut fastrand::Rng, live_percent: u64) -> Self {
        let least_percent = (live_percent + 10).max(40);
        let can_grow = least_percent <= FULL_PERCENT;
        let must_grow = live_percent < 12;
        match random.u32(0..100) {
            drawn if must_grow || drawn < 25 && can_grow => {
                Self::Grow { percent: random.u64(least_percent..=FULL_PERCENT) }
            }
            0..55 => {
                let percent = one_of(random, &[10, 25, 50, 50, 75, 90, 98]);
                let patterns =
                    [Pattern::Spread, Pattern::Random, Pattern::Oldest, Pattern::Youngest];
                Self::Free { percent, pattern: one_of(random, &patterns) }
            }
            55..75 => Self::Replace,
            75..83 => Self::Realloc,
            83..90 => Self::Vectors,
            _ => Self::Bursts,
        }
    }

    /// The word for the kind in the names of figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Grow { .. } => "grow",
            Self::Free { .. } => "free",
            Self::Replace => "replace",
            Self::Realloc => "realloc",
            Self::Vectors => "vectors",
            Self::Bursts => "bursts",
        }
    }

    /// Whether a step on an occupied slot resizes its object instead of replacing it.
    pub(super) fn resizes(self) -> bool {
        matches!(self, Self::Realloc | Self::Vectors)
    }
}

impl Pattern {
    /// Which of `count` objects, numbered from the oldest, are freed, and in which order: `percent`
    /// of them, rounded down.
    pub(super) fn choose(
        self,
        count: usize,
        percent: usize,
        random: &mut fastrand::Rng,
    ) -> Vec<usize> {
        let freed = |count: usize| count * percent / 100;
        match self {
            Self::Spread => (0..count).filter(|&nth| freed(nth + 1) > freed(nth)).collect(),
            Self::Random => {
                let mut all: Vec<usize> = (0..count).collect();
                random.shuffle(&mut all);
                all.truncate(freed(count));
                all
            }
            Self::Oldest => (0..freed(count)).collect(),
            Self::Youngest => (count - freed(count)..count).rev().collect(),
        }
    }
}

impl Sizes {
    fn draw(random: &mut fastrand::Rng) -> Self {
        let (least, most) = one_of(random, &RANGES);
        let low = log_uniform(random, least, most);
        let high = log_uniform(random, low, most);
        let distributions = [Distribution::Fixed, Distribution::Uniform, Distribution::LogUniform];
        Self { low, high, distribution: one_of(random, &distributions) }
    }

    /// The size between the two ends, bytes.
    fn middle_bytes(&self) -> u32 {
        match self.distribution {
            Distribution::Fixed => self.low,
            Distribution::Uniform | Distribution::LogUniform => self.low.midpoint(self.high),
        }
    }

    /// The size of an object, bytes.
    pub(super) fn size_bytes(&self, random: &mut fastrand::Rng) -> u32 {
        match self.distribution {
            Distribution::Fixed => self.low,
            Distribution::Uniform => random.u32(self.low..=self.high),
            Distribution::LogUniform => log_uniform(random, self.low, self.high),
        }
    }
}

impl Written {
    fn draw(random: &mut fastrand::Rng) -> Self {
        // Most programs write all that they ask for.
        one_of(random, &[Self::All, Self::All, Self::All, Self::Pages, Self::First, Self::Quarter])
    }

    /// How much of an object is used, from its beginning to the last byte written.
    pub(super) fn used_bytes(self, size_bytes: u32) -> u32 {
        match self {
            Self::All | Self::Pages => size_bytes,
            Self::First => size_bytes.min(8),
            Self::Quarter => (size_bytes / 4).max(8).min(size_bytes),
        }
    }

    /// About how many bytes could be written in the time that an object takes. This bounds a phase.
    pub(super) fn cost_bytes(self, size_bytes: u32) -> u64 {
        let written_bytes = match self {
            Self::All => size_bytes,
            Self::Pages | Self::Quarter => size_bytes / 4,
            Self::First => 0,
        };
        // The cost of a call, and of a first page that may be a fault.
        u64::from(written_bytes) + 512 + u64::from(size_bytes.min(4096))
    }
}

/// In words, as `free 50 % at random` or `replace random objects: 16 to 90 bytes, all written`.
impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Grow { percent } => write!(f, "grow to {percent} %")?,
            Kind::Free { percent, pattern } => {
                return match pattern {
                    Pattern::Spread => write!(f, "free {percent} %, evenly spread"),
                    Pattern::Random => write!(f, "free {percent} % at random"),
                    Pattern::Oldest => write!(f, "free the oldest {percent} %"),
                    Pattern::Youngest => write!(f, "free the youngest {percent} %"),
                };
            }
            Kind::Replace => f.write_str("replace random objects")?,
            Kind::Realloc => f.write_str("realloc random objects")?,
            Kind::Vectors => f.write_str("vectors that grow by half")?,
            Kind::Bursts => f.write_str("bursts of 50 to 250 objects")?,
        }
        let Sizes { low, high, distribution } = self.sizes;
        match distribution {
            Distribution::Fixed => write!(f, ": {low} bytes")?,
            Distribution::Uniform => write!(f, ": {low} to {high} bytes")?,
            Distribution::LogUniform => {
                write!(f, ": {low} to {high} bytes, uniform in the logarithm")?
            }
        }
        f.write_str(match self.written {
            Written::All => ", all written",
            Written::Pages => ", a byte in each page written",
            Written::First => ", the first bytes written",
            Written::Quarter => ", the first quarter written",
        })
    }
}

fn one_of<T: Copy>(random: &mut fastrand::Rng, all: &[T]) -> T {
    all[random.usize(0..all.len())]
}

fn log_uniform(random: &mut fastrand::Rng, low: u32, high: u32) -> u32 {
    let factor = (f64::from(high) / f64::from(low)).powf(random.f64());
    ((f64::from(low) * factor) as u32).clamp(low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_a_function_of_its_seed_and_begins_with_growth() {
        assert_eq!(draw(7, 20), draw(7, 20));
        assert_ne!(draw(7, 20), draw(8, 20));
        assert_eq!(draw(7, 20)[..8], draw(7, 8), "more phases come behind the others");
        for seed in 1..=200 {
            assert!(matches!(draw(seed, 1)[0].kind, Kind::Grow { .. }));
        }
    }

    #[test]
    fn two_hundred_seeds_draw_everything_there_is() {
        let phases: Vec<Phase> = (1..=200).flat_map(|seed| draw(seed, 8)).collect();
        let any = |what: &dyn Fn(&Phase) -> bool| phases.iter().any(what);
        for name in ["grow", "free", "replace", "realloc", "vectors", "bursts"] {
            assert!(any(&|phase| phase.kind.name() == name), "{name}");
        }
        for wanted in [Pattern::Spread, Pattern::Random, Pattern::Oldest, Pattern::Youngest] {
            let is = |p: &Phase| matches!(p.kind, Kind::Free { pattern, .. } if pattern == wanted);
            assert!(any(&is), "{wanted:?}");
        }
        for wanted in [Distribution::Fixed, Distribution::Uniform, Distribution::LogUniform] {
            assert!(any(&|phase| phase.sizes.distribution == wanted), "{wanted:?}");
        }
        for wanted in [Written::All, Written::Pages, Written::First, Written::Quarter] {
            assert!(any(&|phase| phase.written == wanted), "{wanted:?}");
        }
        for (least, most) in RANGES {
            let inside = |phase: &Phase| least <= phase.sizes.low && phase.sizes.high <= most;
            assert!(any(&inside), "{least} to {most}");
        }
        let freed = |phase: &Phase| match phase.kind {
            Kind::Free { percent, .. } => Some(percent),
            _ => None,
        };
        let shares: Vec<usize> = phases.iter().filter_map(freed).collect();
        assert_eq!((shares.iter().min(), shares.iter().max()), (Some(&10), Some(&98)));
    }

    #[test]
    fn sizes_lie_between_their_ends() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            let sizes = Sizes::draw(&mut random);
            let size_bytes = sizes.size_bytes(&mut random);
            assert!(16 <= sizes.low && sizes.high <= LARGEST_BYTES, "{sizes:?}");
            assert!((sizes.low..=sizes.high).contains(&size_bytes), "{size_bytes} of {sizes:?}");
            for written in [Written::All, Written::Pages, Written::First, Written::Quarter] {
                assert!((8..=size_bytes).contains(&written.used_bytes(size_bytes)), "{written:?}");
            }
        }
    }

    #[test]
    fn each_pattern_frees_its_share_of_the_objects_it_tells() {
        let mut random = fastrand::Rng::with_seed(1);
        let patterns = [Pattern::Spread, Pattern::Random, Pattern::Oldest, Pattern::Youngest];
        for (count, percent) in [(0, 50), (1, 98), (7, 25), (1000, 10), (1000, 98), (999, 75)] {
            for pattern in patterns {
                let mut freed = pattern.choose(count, percent, &mut random);
                freed.sort_unstable();
                freed.dedup();
                assert_eq!(freed.len(), count * percent / 100, "{pattern:?} of {count}");
                assert!(freed.iter().all(|&nth| nth < count), "{pattern:?} of {count}");
            }
        }
        let mut of_ten = |pattern: Pattern| pattern.choose(10, 30, &mut random);
        assert_eq!(of_ten(Pattern::Oldest), [0, 1, 2]);
        assert_eq!(of_ten(Pattern::Youngest), [9, 8, 7]);
        assert_eq!(of_ten(Pattern::Spread), [3, 6, 9]);
        let drawn: Vec<_> = (0..5).map(|_| of_ten(Pattern::Random)).collect();
        assert!(drawn.iter().any(|other| *other != drawn[0]), "{drawn:?}");
    }
}
