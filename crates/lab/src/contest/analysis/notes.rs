//! What the reader must know besides the rows, in words: what the controls showed, who broke, who
//! did different work, how much the machine was disturbed.

use super::{Analysis, Metric, OTHER_WORK};
use crate::contest::{LEAST_ROUNDS, PLANTED_SHARE, Role};
use crate::runner::{Served, Shortfall};
use crate::say::counted;
use crate::stats::{self, Verdict};

impl Analysis<'_> {
    /// What the controls showed, who broke, and what else the reader must know.
    pub(super) fn notes(&self, cpus: usize) -> Vec<String> {
        let mut notes = Vec::new();
        let whole = if self.contest.cases.len() == 1 { Some(0) } else { None };
        if let Some(again) = self.of_role(Role::Again) {
            for metric in [Metric::Time, Metric::Memory] {
                let Some(ratio) = self.ratio(metric, whole, again) else { continue };
                let floor = ratio.noise_floor();
                let floor = if floor.is_finite() {
                    format!("±{:.1} % by the median absolute deviation", floor * 100.0)
                } else {
                    "not bounded by so few rounds".to_owned()
                };
                notes.push(format!(
                    "noise floor, {}: {floor}; {} against itself {:.3} [{:.3}, {:.3}]",
                    metric.name(),
                    self.contest.contestants[0].name,
                    ratio.value,
                    ratio.low,
                    ratio.high,
                ));
            }
        }
        notes.extend(self.undecided_note(whole));
        notes.extend(self.planted_note(whole));
        for broken in &self.results.broken {
            notes.push(format!(
                "{} broke in {}: {}",
                self.contest.contestants[broken.contestant].name,
                self.contest.cases[broken.case].name,
                broken.why
            ));
        }
        notes.extend(self.not_served());
        notes.extend(self.disagreements());
        let steal: u64 = self.results.runs.iter().map(|run| run.steal_ns).sum();
        let lived: u64 = self.results.runs.iter().map(|run| run.lived_ns).sum();
        let stolen = steal as f64 / (lived as f64 * cpus as f64).max(1.0);
        if stolen > 0.01 {
            notes.push(format!(
                "the hypervisor took {:.1} % of the processors' time: repeat on a quieter machine",
                stolen * 100.0
            ));
        }
        let rounds = self.results.rounds;
        if rounds < LEAST_ROUNDS {
            notes.push(format!(
                "complete rounds: {rounds}; {LEAST_ROUNDS} are needed before a difference is called \
                 one (--rounds)"
            ));
        } else if rounds < stats::BOOTSTRAP_ROUNDS {
            notes.push(format!(
                "the intervals are the least and the greatest of {rounds} rounds, {:.0} % sure; {} \
                 rounds make it 95 % (--rounds)",
                stats::confidence(rounds) * 100.0,
                stats::BOOTSTRAP_ROUNDS
            ));
        }
        if self.results.interrupted && !self.results.runs.is_empty() {
            let of = if rounds > 0 { "complete rounds" } else { "runs measured" };
            notes.push(format!("interrupted: the figures are those of the {of}"));
        }
        notes
    }

    /// A note if nothing is decided because the reference was not measured against itself. Another
    /// note covers too few rounds.
    fn undecided_note(&self, whole: Option<usize>) -> Option<String> {
        if self.results.rounds < LEAST_ROUNDS {
            return None;
        }
        let cases = self.contest.cases.iter().enumerate();
        let mut places: Vec<&str> = cases
            .filter(|&(case, _)| self.runs(case, 0).next().is_some())
            .filter(|&(case, _)| self.noise(Metric::Time, Some(case)).is_infinite())
            .map(|(_, case)| case.name.as_str())
            .collect();
        if whole.is_none() && self.noise(Metric::Time, None).is_infinite() {
            places.push("all of them together");
        }
        (!places.is_empty()).then(|| {
            format!(
                "nothing is decided in {}: {} against itself has too few rounds there",
                places.join(", "),
                self.contest.contestants[0].name
            )
        })
    }

    /// Whether the planted slowness was seen.
    fn planted_note(&self, whole: Option<usize>) -> Option<String> {
        let planted = self.of_role(Role::Planted)?;
        let ratio = self.ratio(Metric::Time, whole, planted)?;
        let seen = ratio.verdict(self.noise(Metric::Time, whole)) == Verdict::More;
        // Nothing was planted where the reference broke. One run of the warm-up fixed the slowness,
        // and may have been disturbed, so its share is computed from the times measured since.
        let factors: Vec<f64> = (0..self.contest.cases.len())
            .filter(|&case| self.runs(case, planted).next().is_some())
            .filter_map(|case| {
                let times: Vec<f64> = self.runs(case, 0).map(|run| run.time_ns).collect();
                Some(1.0 + self.results.planted_ns.get(case)? / stats::median(&times)?)
            })
            .collect();
        let expected = stats::geometric_mean(&factors)?;
        let meaning = if !seen {
            "; differences of this size cannot be told here, raise --rounds"
        } else if expected - 1.0 > 2.0 * PLANTED_SHARE {
            "; the run that it was derived from was slow, so that it is more than was meant: smaller \
             differences may go unseen"
        } else {
            ""
        };
        Some(format!(
            "planted slowness {}: {:.3} [{:.3}, {:.3}], {expected:.3} planted{meaning}",
            if seen { "seen" } else { "NOT SEEN" },
            ratio.value,
            ratio.low,
            ratio.high,
        ))
    }

    /// Programs that another allocator served in part, or of which nobody knows.
    fn not_served(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for (index, case) in self.contest.cases.iter().enumerate() {
            let mut unknown = Vec::new();
            for (contestant, who) in self.contest.contestants.iter().enumerate() {
                let served = self.results.served.get(&(index, contestant));
                match served.filter(|_| !who.is_control()).and_then(Served::shortfall) {
                    Some(Shortfall::Part(part)) => notes.push(format!(
                        "{} was not loaded in all that {} runs: {part}",
                        who.name, case.name
                    )),
                    Some(Shortfall::Unknown) => unknown.push(who.name.as_str()),
                    Some(Shortfall::Whole(_)) | None => {}
                }
            }
            if !unknown.is_empty() {
                notes.push(format!(
                    "{} is too short to see whether all that it runs loads what is preloaded ({})",
                    case.name,
                    unknown.join(", ")
                ));
            }
        }
        notes
    }

    /// Cases in which contestants did not do the same work.
    fn disagreements(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for (index, case) in self.contest.cases.iter().enumerate() {
            for (contestant, who) in self.contest.contestants.iter().enumerate() {
                if self.did_other_work(index, contestant) {
                    notes.push(format!(
                        "{} did other work than {} in {} ({OTHER_WORK}): its figures there cannot be \
                         compared",
                        who.name, self.contest.contestants[0].name, case.name
                    ));
                }
                if let failed @ 1.. = self.failed_allocations(index, contestant) {
                    notes.push(format!(
                        "{}: {} failed in {}",
                        who.name,
                        counted(failed, "allocation"),
                        case.name
                    ));
                }
            }
        }
        notes
    }
}
