//! A contest: every case run on every contestant, in complete shuffled rounds.
//!
//! ```text
//!  warm-up: each case once on the reference ──► length of a round, size of the planted slowness
//!  round 1: cases shuffled { contestants shuffled { one fresh process } }
//!  round 2: …                                      └ Run { case, contestant, round, figures }
//! ```
//!
//! Two contestants are controls. *Again* is the reference under a second name: any difference
//! between the two is noise. *Planted* is the reference with a known slowness: a contest that does
//! not detect it could not have detected a real difference of that size either.
//!
//! 1. A ratio pairs two runs of the same case and round, which are moments apart.
//! 2. A contestant that breaks in a case is not run in that case again, and is reported by name.
//! 3. Ctrl-C ends the contest early. The measurements of complete rounds are kept.

pub(crate) mod analysis;
pub(crate) mod assertion;
mod case;
mod results;

use std::time::{Duration, Instant};

use crate::environment;
use crate::progress::Progress;
use crate::runner::{self, Failure, Measured, WarmMemory, Warmth};
pub(crate) use crate::stats::LEAST_ROUNDS;
use crate::subject::Subject;
use case::Look;
pub(crate) use case::{Case, Work};
pub(crate) use results::{Broken, Latency, Results, Run};

/// How often resident memory is sampled: 500 samples a second take about 1 % of a core.
pub(crate) const SAMPLE_EVERY: Duration = Duration::from_millis(2);

/// The planted slowness as a share of the reference's time.
pub(crate) const PLANTED_SHARE: f64 = 0.10;

/// More rounds than this gain little for the time they take.
const MOST_ROUNDS: usize = 20;

/// A process that takes longer than this, and longer than [`PATIENCE_FACTOR`] times what the
/// reference took, is taken to hang.
const PATIENCE: Duration = Duration::from_secs(300);

/// An allocator may be this many times slower than the reference.
const PATIENCE_FACTOR: u32 = 20;

/// What to look at besides time and memory, in a separate run for each case and subject.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Looks {
    /// Single operations are timed.
    pub(crate) latency: bool,
    /// A map of the memory of replays is drawn.
    pub(crate) map: bool,
}

impl Looks {
    fn wanted(self) -> impl Iterator<Item = Look> {
        let all = [(Look::Latency, self.latency), (Look::Map, self.map)];
        all.into_iter().filter_map(|(look, wanted)| wanted.then_some(look))
    }
}

/// The role of a contestant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The subject that the others are compared with.
    Reference,
    /// A subject.
    Subject,
    /// The reference once more.
    Again,
    /// The reference made slower.
    Planted,
}

/// An allocator in its role.
#[derive(Clone, Debug)]
pub(crate) struct Contestant {
    /// The name in tables.
    pub(crate) name: String,
    /// The allocator.
    pub(crate) subject: Subject,
    /// Its role.
    pub(crate) role: Role,
}

impl Contestant {
    /// Whether the contestant only shows how far the figures can be trusted.
    pub(crate) fn is_control(&self) -> bool {
        matches!(self.role, Role::Again | Role::Planted)
    }
}

/// How many rounds are run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rounds {
    /// As many as asked for.
    Exactly(usize),
    /// As many as fit, but at least this many.
    Within(Duration, usize),
}

/// Everything that decides what is run.
#[derive(Clone, Debug)]
pub(crate) struct Contest {
    /// What every contestant runs.
    pub(crate) cases: Vec<Case>,
    /// Who runs it; exactly one is the reference.
    pub(crate) contestants: Vec<Contestant>,
    /// How many rounds.
    pub(crate) rounds: Rounds,
    /// Seed of the shuffles.
    pub(crate) seed: u64,
    /// What else to look at.
    pub(crate) looks: Looks,
    /// Whether a program that fails is measured all the same.
    pub(crate) ignore_failure: bool,
    /// How long one process may take; by default derived from the reference's time.
    pub(crate) timeout: Option<Duration>,
    /// When memory is warmed before a run.
    pub(crate) warm_memory: WarmMemory,
}

/// What the warm-up found out about a case.
#[derive(Clone, Copy, Debug, Default)]
struct Warmed {
    /// Slowness to plant, ns: per operation, or in total for a program.
    planted_ns: u64,
    /// How long one process of this case may take.
    patience: Duration,
}

impl Contest {
    /// The contestants for `subjects`: the reference first, the two controls last.
    pub(crate) fn contestants(subjects: &[Subject], reference: &Subject) -> Vec<Contestant> {
        let mut contestants = vec![Contestant {
            name: reference.name.clone(),
            subject: reference.clone(),
            role: Role::Reference,
        }];
        for subject in subjects.iter().filter(|&subject| subject != reference) {
            contestants.push(Contestant {
                name: subject.name.clone(),
                subject: subject.clone(),
                role: Role::Subject,
            });
        }
        contestants.push(Contestant {
            name: format!("{} again", reference.name),
            subject: reference.clone(),
            role: Role::Again,
        });
        contestants.push(Contestant {
            name: format!("{} +{:.0} %", reference.name, PLANTED_SHARE * 100.0),
            subject: reference.clone(),
            role: Role::Planted,
        });
        contestants
    }

    /// Runs the contest.
    ///
    /// # Errors
    /// When no process can be started at all, or the reference breaks in every case.
    pub(crate) fn run(&self) -> anyhow::Result<Results> {
        let warmth = Warmth::new(self.warm_memory, self.cases.len(), environment::system_root());
        let mut results = Results { warmth, ..Results::default() };
        let mut bar = Progress::new();
        self.read_libraries();
        let begun = Instant::now();
        let warmed = self.warm_up(&mut results, &mut bar)?;
        if results.interrupted {
            return Ok(results);
        }
        anyhow::ensure!(results.broken.len() < self.cases.len(), "{}", self.nothing_runs(&results));
        let round_estimate = begun.elapsed() * self.contestants.len() as u32;
        let mut planned = self.planned_rounds(Duration::ZERO, 0, round_estimate);
        let mut random = fastrand::Rng::with_seed(self.seed);
        let per_round = (self.cases.len() * self.contestants.len()) as u64;
        let looks = self.count_of_looks();
        while results.rounds < planned {
            bar.set_length(planned as u64 * per_round + looks);
            self.round(&warmed, &mut random, &mut results, &mut bar)?;
            if results.interrupted {
                break;
            }
            results.rounds += 1;
            let spent = begun.elapsed();
            planned = self.planned_rounds(spent, results.rounds, spent / results.rounds as u32);
        }
        for look in self.looks.wanted() {
            if !results.interrupted {
                self.look(look, &warmed, &mut results, &mut bar)?;
            }
        }
        results.drop_incomplete_round();
        results.level_baselines(&self.cases);
        bar.finish();
        Ok(results)
    }

    /// Reads every library once. After the warm-up the reference's files are in memory; in the
    /// first round a preloaded subject alone would wait for the disk.
    fn read_libraries(&self) {
        for library in self.contestants.iter().filter_map(|who| who.subject.library.as_ref()) {
            // If a library cannot be read, its runs will say so.
            let _ = std::fs::read(library);
        }
    }

    /// Runs each case once on the reference.
    fn warm_up(&self, results: &mut Results, bar: &mut Progress) -> anyhow::Result<Vec<Warmed>> {
        let mut warmed = Vec::new();
        for (index, case) in self.cases.iter().enumerate() {
            bar.begin(format!("warm-up: {}", case.name));
            let mut known =
                Warmed { patience: self.timeout.unwrap_or(Duration::MAX), planted_ns: 0 };
            let mut planted_ns = 0.0;
            let mut by_reference = PATIENCE;
            if let Some(measured) = self.attempt(index, 0, Look::Time, known, results)? {
                let run = case.figures(&measured, 0, 0, index);
                let units = if measured.outcome.is_some() { run.ops.max(1) as f64 } else { 1.0 };
                let work_ns = case.work_ns(&run);
                let per_unit = (work_ns * PLANTED_SHARE / units).ceil();
                planted_ns = per_unit * units * run.time_ns / work_ns;
                known.planted_ns = per_unit as u64;
                let lived = Duration::from_nanos(measured.lived_ns);
                by_reference = PATIENCE.max(lived * PATIENCE_FACTOR);
            }
            if results.interrupted {
                break;
            }
            known.patience = self.timeout.unwrap_or(by_reference);
            results.planted_ns.push(planted_ns);
            warmed.push(known);
        }
        Ok(warmed)
    }

    /// One complete round, unless interrupted.
    fn round(
        &self,
        warmed: &[Warmed],
        random: &mut fastrand::Rng,
        results: &mut Results,
        bar: &mut Progress,
    ) -> anyhow::Result<()> {
        let mut cases: Vec<usize> = (0..self.cases.len()).collect();
        random.shuffle(&mut cases);
        for index in cases {
            let case = &self.cases[index];
            let mut order: Vec<usize> = (0..self.contestants.len()).collect();
            random.shuffle(&mut order);
            for number in order {
                bar.step(format!("{} on {}", case.name, self.contestants[number].name));
                if results.is_out(index, number, &self.contestants) {
                    continue;
                }
                let measured = self.attempt(index, number, Look::Time, warmed[index], results)?;
                if results.interrupted {
                    return Ok(());
                }
                if let Some(measured) = measured {
                    results.runs.push(case.figures(&measured, number, results.rounds, index));
                }
            }
        }
        Ok(())
    }

    /// How many runs [`Contest::look`] will make.
    fn count_of_looks(&self) -> u64 {
        let subjects = self.contestants.iter().filter(|contestant| !contestant.is_control());
        let cases = self
            .looks
            .wanted()
            .map(|look| self.cases.iter().filter(|case| case.can_be_looked_at(look)).count());
        (subjects.count() * cases.sum::<usize>()) as u64
    }

    /// One run per case and subject to look at something other than time and memory.
    fn look(
        &self,
        look: Look,
        warmed: &[Warmed],
        results: &mut Results,
        bar: &mut Progress,
    ) -> anyhow::Result<()> {
        for (index, case) in self.cases.iter().enumerate() {
            if !case.can_be_looked_at(look) {
                continue;
            }
            for (number, contestant) in self.contestants.iter().enumerate() {
                if contestant.is_control() {
                    continue;
                }
                bar.step(format!("{} of {} on {}", look.name(), case.name, contestant.name));
                if results.is_out(index, number, &self.contestants) {
                    continue;
                }
                let measured = self.attempt(index, number, look, warmed[index], results)?;
                if results.interrupted {
                    return Ok(());
                }
                let Some(outcome) = measured.and_then(|measured| measured.outcome) else {
                    continue;
                };
                match look {
                    Look::Map => results.maps.push((index, number, outcome.map)),
                    _ => results.latencies.push(Latency {
                        case: index,
                        contestant: number,
                        records: outcome.latencies,
                        points: outcome.points,
                    }),
                }
            }
        }
        Ok(())
    }

    /// Runs a case on a contestant. Returns nothing when the contestant broke, which is noted, or
    /// when the user interrupted the run.
    fn attempt(
        &self,
        index: usize,
        number: usize,
        look: Look,
        warmed: Warmed,
        results: &mut Results,
    ) -> anyhow::Result<Option<Measured>> {
        let Contestant { subject, role, .. } = &self.contestants[number];
        let planted = if *role == Role::Planted { warmed.planted_ns } else { 0 };
        let job = self.cases[index].job(planted, look);
        results.warmth.warm(index, self.cases[index].known_bytes())?;
        let executed = runner::execute(subject, &job, SAMPLE_EVERY, warmed.patience)?;
        if let Ok(measured) = &executed {
            let lived = Duration::from_nanos(measured.lived_ns);
            results.warmth.learn(index, measured.peak_bytes, lived);
        }
        let mut by_exit = false;
        let why = match executed {
            Err(Failure::Interrupted) => {
                results.interrupted = true;
                return Ok(None);
            }
            Err(Failure::Broken(why)) => why,
            Ok(measured) => {
                let exit = self.failed(&measured);
                by_exit = exit.is_some();
                match exit.or_else(|| results.not_served(index, number, subject, &measured)) {
                    Some(why) => why,
                    None => return Ok(Some(measured)),
                }
            }
        };
        results.broken.push(Broken { case: index, contestant: number, why, by_exit });
        Ok(None)
    }

    /// Why there is nothing to compare with.
    fn nothing_runs(&self, results: &Results) -> String {
        let reference = &self.contestants[0].name;
        let Some(broken) = results.broken.first() else { return String::new() };
        let case = &self.cases[broken.case];
        let advice = if broken.by_exit {
            "; the figures of a failing program say little (--ignore-failure measures it all the same)"
        } else {
            ""
        };
        format!("{} under {reference}: {}{advice}", case.name, broken.why)
    }

    /// How a program failed, unless failures are ignored.
    fn failed(&self, measured: &Measured) -> Option<String> {
        if self.ignore_failure || measured.outcome.is_some() {
            return None;
        }
        runner::failure(measured.status)
    }

    fn planned_rounds(&self, spent: Duration, done: usize, per_round: Duration) -> usize {
        match self.rounds {
            Rounds::Exactly(rounds) => rounds,
            Rounds::Within(budget, least) => {
                let left = budget.saturating_sub(spent).as_secs_f64();
                let more = (left / per_round.as_secs_f64().max(1e-3)) as usize;
                (done + more).clamp(least, MOST_ROUNDS)
            }
        }
    }
}
