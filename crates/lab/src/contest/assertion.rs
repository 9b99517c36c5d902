//! `--assert`: a claim that a script can rely on, since the interval decides it and not luck.
//!
//! ```text
//!  claim  := side ("<" | "<=" | ">" | ">=") side
//!  side   := [factor "*"] metric "(" subject ["," case] ")"  |  number [unit]
//!  metric := time | cpu | rss | peak | mean | memory | faults
//!  unit   := ns us ms s of times · B KiB MiB GiB of memory; without one ns, B and faults
//! ```
//!
//! `rss` and `memory` are the figure by which the table judges memory: the peak plus what any
//! process has resident, unless the workload names another figure. `peak` is the peak above the
//! harness's own. If the workload's figure is a ratio, its limit has no unit. Without a case the
//! claim is about all of them (geometric mean of each round).
//!
//! A claim holds when the whole interval of its paired quotient lies on its side, and fails when it
//! lies on the other. It is undecided when the interval spans the limit, with fewer than
//! [`LEAST_ROUNDS`], or when a side broke in one of its cases or did other work than the reference.

use std::str::FromStr;

use anyhow::{Context, bail, ensure};

use super::Contest;
use super::analysis::{Analysis, Metric};
use crate::bench::Memory;
use crate::stats::Ratio;

/// What a side can be, for messages about a side that is something else.
const FORMS: &str = "and a side is `rss(hectare)`, `0.9*rss(system)`, `time(system, redis)` for one case, or a \
                     number with its unit like `5 ms` or `64 MiB`";

/// Fewer rounds decide no claim. By chance alone the ratios of three rounds all lie on the same
/// side of the limit one time in four, those of five one time in sixteen.
pub(crate) const LEAST_ROUNDS: usize = 5;

/// A parsed claim.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Claim {
    text: String,
    left: Side,
    operator: Operator,
    right: Side,
}

/// What a contest says about a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Shown.
    Holds,
    /// The opposite is shown.
    Fails,
    /// The noise is larger than the margin.
    Undecided,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Operator {
    less: bool,
    /// Whether both sides may be equal, as counts can be.
    or_equal: bool,
}

/// What a figure is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dimension {
    Time,
    Memory,
    Count,
}

impl Dimension {
    fn of(metric: Metric) -> Self {
        match metric {
            Metric::Time | Metric::Cpu => Self::Time,
            Metric::Faults => Self::Count,
            Metric::Peak | Metric::Mean | Metric::Memory => Self::Memory,
        }
    }

    fn units(self) -> &'static str {
        match self {
            Self::Time => "ns, us, ms or s",
            Self::Memory => "B, KiB, MiB or GiB",
            Self::Count => "numbers alone",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Side {
    Figure {
        factor: f64,
        metric: Metric,
        subject: String,
        case: Option<String>,
    },
    /// A number, and what its unit measures if it has one. Without a unit it is in ns, bytes or
    /// faults.
    Number(f64, Option<Dimension>),
}

impl FromStr for Claim {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let compares = outside(text).find(|&(_, c)| "<>".contains(c)).map(|(at, _)| at);
        let at = compares.or_else(|| text.find(['<', '>'])).with_context(|| {
            format!("`{text}` compares nothing: write it like `rss(hectare) < 0.9*rss(system)`")
        })?;
        let less = text[at..].starts_with('<');
        let rest = &text[at + 1..];
        let or_equal = rest.starts_with('=');
        let rest = rest.strip_prefix('=').unwrap_or(rest);
        let again = outside(rest).any(|(_, c)| "<>=".contains(c));
        ensure!(!again, "`{text}` compares more than once");
        let left = side(&text[..at]).with_context(|| format!("left side of `{text}`"))?;
        let right = side(rest).with_context(|| format!("right side of `{text}`"))?;
        match (&left, &right) {
            (Side::Number(..), Side::Number(..)) => bail!("`{text}` names no allocator"),
            (Side::Figure { metric, .. }, Side::Number(_, dimension))
            | (Side::Number(_, dimension), Side::Figure { metric, .. })
                if dimension.is_some_and(|unit| unit != Dimension::of(*metric)) =>
            {
                let units = Dimension::of(*metric).units();
                bail!("`{text}`: {} is given in {units}", metric.name())
            }
            (Side::Figure { metric: a, .. }, Side::Figure { metric: b, .. }) if a != b => {
                bail!("`{text}` compares {} with {}", a.name(), b.name())
            }
            (Side::Figure { case: a, .. }, Side::Figure { case: b, .. }) if a != b => {
                bail!("`{text}`: the two sides name different cases")
            }
            _ => {}
        }
        let operator = Operator { less, or_equal };
        Ok(Self { text: text.trim().to_owned(), left, operator, right })
    }
}

impl std::fmt::Display for Claim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Claim {
    /// Checks that the contest knows every name in the claim, and that the claim's limit has the
    /// dimension by which the cases judge memory.
    ///
    /// # Errors
    /// When a name is unknown; the message lists the names. When some case judges memory by a
    /// ratio, and the claim gives a limit in bytes or covers other cases, too.
    pub(crate) fn check(&self, contest: &Contest) -> anyhow::Result<()> {
        for side in [&self.left, &self.right] {
            side.indices(contest).with_context(|| format!("--assert `{self}`"))?;
        }
        let (figure, unit) = match (&self.left, &self.right) {
            (figure, Side::Number(_, unit)) | (Side::Number(_, unit), figure) => (figure, unit),
            _ => return Ok(()),
        };
        let (Side::Figure { metric: Metric::Memory, .. }, Some((_, case))) =
            (figure, figure.indices(contest)?)
        else {
            return Ok(());
        };
        let cases = case.map_or(&contest.cases[..], |case| &contest.cases[case..=case]);
        let by_ratio = cases.iter().filter(|case| matches!(case.memory(), Memory::Ratio { .. }));
        let ratios = by_ratio.clone().count();
        if let Some(case) = by_ratio.clone().next()
            && (unit.is_some() || ratios < cases.len())
        {
            bail!(
                "--assert `{self}`: the memory of `{}` is judged by a ratio, {}: its limit is a number \
                 alone, in a claim about no other kind of case (`peak` is given in bytes)",
                case.name,
                case.memory().name().unwrap_or_default()
            );
        }
        Ok(())
    }

    /// What keeps the claim undecided whatever the figures say: one of its allocators broke, or did
    /// not do the reference's work, in a case that the claim is about.
    ///
    /// # Errors
    /// When a name is unknown.
    pub(crate) fn obstacle(
        &self,
        contest: &Contest,
        analysis: &Analysis<'_>,
    ) -> anyhow::Result<Option<String>> {
        for side in [&self.left, &self.right] {
            let Some((who, case)) = side.indices(contest)? else { continue };
            let name = &contest.contestants[who].name;
            if analysis.breaks(case, who) > 0 {
                return Ok(Some(format!("{name} broke")));
            }
            if let Some(why) = analysis.incomparable(case, who) {
                return Ok(Some(format!("{name} {why}")));
            }
        }
        Ok(None)
    }

    /// Decides the claim, and returns the decision with the quotient left/right and its interval.
    /// Nothing when some round has no quotient (a program ended before its memory could be sampled,
    /// a multiple of zero), or an [obstacle](Self::obstacle) hides it.
    ///
    /// # Errors
    /// When a name is unknown.
    pub(crate) fn decide(
        &self,
        contest: &Contest,
        analysis: &Analysis<'_>,
    ) -> anyhow::Result<Option<(Decision, Ratio)>> {
        if self.obstacle(contest, analysis)?.is_some() {
            return Ok(None);
        }
        let Some(ratio) = Ratio::of(&self.quotients(contest, analysis)?) else { return Ok(None) };
        let decision = if ratio.rounds < LEAST_ROUNDS {
            Decision::Undecided
        } else {
            self.operator.decide(ratio.low, ratio.high)
        };
        Ok(Some((decision, ratio)))
    }

    /// Per-round quotients of the two sides.
    fn quotients(&self, contest: &Contest, analysis: &Analysis<'_>) -> anyhow::Result<Vec<f64>> {
        let left = self.left.indices(contest)?;
        let right = self.right.indices(contest)?;
        Ok(match (&self.left, left, &self.right, right) {
            (
                Side::Figure { factor: a, metric, .. },
                Some((above, case)),
                Side::Figure { factor: b, .. },
                Some((below, _)),
            ) => {
                let scale = a / b;
                analysis.ratios(*metric, case, above, below).iter().map(|r| r * scale).collect()
            }
            (Side::Figure { factor, metric, .. }, Some((who, case)), Side::Number(limit, _), _) => {
                analysis.values(*metric, case, who).iter().map(|v| v * factor / limit).collect()
            }
            (Side::Number(limit, _), _, Side::Figure { factor, metric, .. }, Some((who, case))) => {
                analysis.values(*metric, case, who).iter().map(|v| limit / (v * factor)).collect()
            }
            _ => bail!("--assert `{self}` names no allocator"),
        })
    }
}

impl Operator {
    /// What an interval of left/right says: both ends must be on the same side.
    fn decide(self, low: f64, high: f64) -> Decision {
        let holds = |quotient: f64| match (self.less, self.or_equal) {
            (true, false) => quotient < 1.0,
            (true, true) => quotient <= 1.0,
            (false, false) => quotient > 1.0,
            (false, true) => quotient >= 1.0,
        };
        match (holds(low), holds(high)) {
            (true, true) => Decision::Holds,
            (false, false) => Decision::Fails,
            _ => Decision::Undecided,
        }
    }
}

impl Side {
    /// Indices of the contestant and the case; `None` for a plain number.
    fn indices(&self, contest: &Contest) -> anyhow::Result<Option<(usize, Option<usize>)>> {
        let Self::Figure { subject, case, .. } = self else { return Ok(None) };
        let who = contest.contestants.iter().position(|c| c.name == *subject);
        let who = who.with_context(|| {
            let names: Vec<_> = contest.contestants.iter().map(|c| c.name.as_str()).collect();
            format!("no allocator is called `{subject}` here; there are: {}", names.join(", "))
        })?;
        let Some(case) = case else { return Ok(Some((who, None))) };
        let index = contest.cases.iter().position(|c| c.name == *case);
        let index = index.with_context(|| {
            let names: Vec<_> = contest.cases.iter().map(|c| c.name.as_str()).collect();
            format!("no case is called `{case}` here; there are: {}", names.join(", "))
        })?;
        Ok(Some((who, Some(index))))
    }
}

/// The characters outside of parentheses, with their positions. A name inside may contain any
/// character.
fn outside(text: &str) -> impl Iterator<Item = (usize, char)> {
    let mut depth = 0;
    text.char_indices().filter(move |&(_, c)| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth <= 0
    })
}

/// The text behind the parenthesis that closes the one open at the beginning of `text`.
fn behind(text: &str) -> &str {
    let mut depth = 1;
    let closes = |c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth == 0
    };
    text.find(closes).map_or("", |at| text[at + 1..].trim())
}

fn side(text: &str) -> anyhow::Result<Side> {
    let text = text.trim();
    let Some((before, inside)) = text.split_once('(') else { return number(text) };
    let rest = behind(inside);
    // (A name may contain a closing parenthesis that matches none.)
    let is_name = rest.ends_with(')') && !rest.contains('(');
    ensure!(rest.is_empty() || is_name, "`{rest}` stands after a figure, {FORMS}");
    let inside = inside.strip_suffix(')').context("a closing parenthesis is missing")?;
    let (factor, name) = match before.split_once('*') {
        None => (1.0, before.trim()),
        Some((factor, name)) => {
            let value: f64 = factor
                .trim()
                .parse()
                .map_err(|_| anyhow::anyhow!("`{}` is not a factor, {FORMS}", factor.trim()))?;
            (value, name.trim())
        }
    };
    ensure!(factor.is_finite() && factor > 0.0, "a factor must be above zero, not {factor}");
    let metric = match name {
        "rss" => Metric::Memory,
        _ => Metric::ALL.into_iter().find(|metric| metric.name() == name).with_context(|| {
            format!("`{name}` is no figure; there are: time, cpu, rss, peak, mean, memory, faults")
        })?,
    };
    let (subject, case) = match inside.split_once(',') {
        None => (inside.trim(), None),
        Some((subject, case)) => (subject.trim(), Some(case.trim().to_owned())),
    };
    ensure!(!subject.is_empty(), "an allocator is missing in `{text}`");
    Ok(Side::Figure { factor, metric, subject: subject.to_owned(), case })
}

fn number(text: &str) -> anyhow::Result<Side> {
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (value, unit) = text.split_at(digits);
    let value: f64 = value
        .parse()
        .map_err(|_| anyhow::anyhow!("`{text}` is neither a number nor a figure, {FORMS}"))?;
    let (scale, dimension) = match unit.trim() {
        "" => (1.0, None),
        "ns" => (1.0, Some(Dimension::Time)),
        "us" => (1e3, Some(Dimension::Time)),
        "ms" => (1e6, Some(Dimension::Time)),
        "s" => (1e9, Some(Dimension::Time)),
        "B" => (1.0, Some(Dimension::Memory)),
        "KiB" => (1024.0, Some(Dimension::Memory)),
        "MiB" => (1024.0 * 1024.0, Some(Dimension::Memory)),
        "GiB" => (1024.0 * 1024.0 * 1024.0, Some(Dimension::Memory)),
        other => bail!("`{other}` is no unit; there are: ns us ms s B KiB MiB GiB"),
    };
    ensure!(value > 0.0, "a limit must be above zero, not `{text}`");
    Ok(Side::Number(value * scale, dimension))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(factor: f64, metric: Metric, subject: &str, case: Option<&str>) -> Side {
        let (subject, case) = (subject.to_owned(), case.map(str::to_owned));
        Side::Figure { factor, metric, subject, case }
    }

    #[test]
    fn claims_are_read() {
        let claim: Claim = "rss(hectare) < 0.9*rss(system)".parse().unwrap();
        assert_eq!(claim.left, figure(1.0, Metric::Memory, "hectare", None));
        assert_eq!(claim.right, figure(0.9, Metric::Memory, "system", None));
        assert_eq!(claim.operator, Operator { less: true, or_equal: false });
        let claim: Claim = " 2 * time( a , redis )>=1.5ms".parse().unwrap();
        assert_eq!(claim.left, figure(2.0, Metric::Time, "a", Some("redis")));
        assert_eq!(claim.right, Side::Number(1.5e6, Some(Dimension::Time)));
        assert_eq!(claim.operator, Operator { less: false, or_equal: true });
        assert_eq!(
            "64 MiB > mean(x)".parse::<Claim>().unwrap().left,
            Side::Number(64.0 * 1024.0 * 1024.0, Some(Dimension::Memory))
        );
        // Names of cases contain characters that are comparisons outside of names.
        let claim: Claim =
            "time(a, w, kind=x <(1)>) >= 2*time(b, w, kind=x <(1)>)".parse().unwrap();
        assert_eq!(claim.left, figure(1.0, Metric::Time, "a", Some("w, kind=x <(1)>")));
        assert_eq!(claim.right, figure(2.0, Metric::Time, "b", Some("w, kind=x <(1)>")));
        assert_eq!(claim.operator, Operator { less: false, or_equal: true });
    }

    #[test]
    fn an_interval_decides_by_both_its_ends() {
        let decide = |operator: &str, low, high| {
            let claim: Claim = format!("faults(a) {operator} 1").parse().unwrap();
            claim.operator.decide(low, high)
        };
        use Decision::{Fails, Holds, Undecided};
        for (operator, below, on, above) in [
            ("<", Holds, Fails, Fails),
            ("<=", Holds, Holds, Fails),
            (">", Fails, Fails, Holds),
            (">=", Fails, Holds, Holds),
        ] {
            assert_eq!(decide(operator, 0.8, 0.9), below, "{operator}");
            assert_eq!(decide(operator, 1.0, 1.0), on, "{operator}: what is always the limit");
            assert_eq!(decide(operator, 1.1, 1.2), above, "{operator}");
            assert_eq!(decide(operator, 0.9, 1.1), Undecided, "{operator}");
        }
    }

    #[test]
    fn wrong_claims_are_told_what_is_wrong() {
        for (text, part) in [
            ("rss(hectare)", "compares nothing"),
            ("1 < 2", "names no allocator"),
            ("time(a) < rss(b)", "compares time with memory"),
            ("time(a, x) < time(b)", "different cases"),
            ("time(a, x) < time(b, y)", "different cases"),
            ("time(a) < 100MiB", "time is given in ns, us, ms or s"),
            ("5ms > peak(a)", "peak is given in B, KiB, MiB or GiB"),
            ("faults(a) < 3ms", "faults is given in numbers alone"),
            ("speed(a) < 1", "`speed` is no figure"),
            ("time(a < 1", "closing parenthesis"),
            ("time() < 1", "allocator is missing"),
            ("x*time(a) < 1", "not a factor"),
            ("0*time(a) < 1", "above zero"),
            ("time(a) < 3 parsecs", "no unit"),
            ("time(a) < time(b) < time(c)", "more than once"),
            ("time(a) < -1", "neither a number"),
            ("", "compares nothing"),
            (
                "x < y*0.9",
                "`x` is neither a number nor a figure, and a side is `rss(hectare)`, `0.9*rss",
            ),
            ("rss(a) < rss(b)*0.9", "`*0.9` stands after a figure, and a side is `rss(hectare)`"),
            ("rss(a)/rss(b) < 0.9", "`/rss(b)` stands after a figure"),
            ("rss(a) + 5 MiB < 1 GiB", "`+ 5 MiB` stands after a figure"),
        ] {
            let message = format!("{:#}", text.parse::<Claim>().unwrap_err());
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}
