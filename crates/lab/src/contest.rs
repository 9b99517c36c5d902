//! A contest: every case run on every contestant, in complete shuffled rounds.
//!
//! ```text
//!  warm-up: each case once on the reference ──► length of a round, size of the planted slowness
//!  round 1: cases shuffled { contestants shuffled { one fresh process } }
//!  round 2: …                                      └ Run { case, contestant, round, figures }
//! ```
//!
//! Two contestants are controls. *Again* is the reference under a second name: what it shows
//! against the reference is noise. *Planted* is the reference with a known slowness: a contest that
//! does not see it could not have seen a real difference of that size either.
//!
//! 1. Ratios pair runs of one round of one case, which lie moments apart.
//! 2. A contestant that breaks in a case is not run in that case again, and said by name.
//! 3. Ctrl-C ends the contest after what was measured; nothing measured is lost.

pub(crate) mod analysis;
pub(crate) mod assertion;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::bench::{self, Entry, LatencyRecord, Memory, Parameters};
use crate::progress::Progress;
use crate::replay::{Ideal, Mode, Touch};
use crate::report::Series;
use crate::runner::{self, Failure, Job, Measured, Sample};
use crate::subject::Subject;

/// How often resident memory is looked at: 500 looks a second cost a core about 1 %.
const SAMPLE_EVERY: Duration = Duration::from_millis(2);

/// The planted slowness as a share of the reference's time.
pub(crate) const PLANTED_SHARE: f64 = 0.10;

/// Fewer rounds cannot show anything (see [`crate::stats`]).
const LEAST_ROUNDS: usize = 3;

/// More rounds than this gain little beside their time.
const MOST_ROUNDS: usize = 20;

/// What any program has resident before it allocates (code, stack, C library), bytes: part of every
/// ratio by which memory is judged, as it is of every program, so that a heap of no size at all does
/// not make all others infinitely large. `hectare run -- true` shows about this.
const PROCESS_BYTES: f64 = 2_097_152.0;

/// What is run.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    /// A trace is replayed.
    Trace {
        /// The file.
        path: PathBuf,
        /// Order and pace.
        mode: Mode,
        /// Touching of memory.
        touch: Touch,
        /// Single operations to tell of each latency run.
        points: usize,
    },
    /// A workload of `hectare bench`.
    Bench {
        /// Its name.
        name: String,
        /// Its parameters.
        parameters: Parameters,
    },
    /// A user's program with its arguments.
    Program(Vec<std::ffi::OsString>),
}

/// One thing that every contestant does.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// The name in tables.
    pub(crate) name: String,
    /// What is run.
    pub(crate) work: Work,
    /// Peaks of Ideal, where known.
    pub(crate) ideal: Option<Ideal>,
    /// What is known of the case before it is run, for plots: sizes, lifetimes, live bytes.
    pub(crate) known: Vec<Series>,
}

/// What is looked at beside time and memory, in a run of its own for each case and subject.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Looks {
    /// Single operations are timed.
    pub(crate) latency: bool,
    /// A map of the memory of replays is drawn.
    pub(crate) map: bool,
}

/// What a contestant is there for.
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

/// How many rounds are run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rounds {
    /// As many as asked for.
    Exactly(usize),
    /// As many as fit, but at least three.
    Within(Duration),
}

/// Everything that decides what is run.
#[derive(Clone, Debug)]
pub(crate) struct Contest {
    /// What every contestant does.
    pub(crate) cases: Vec<Case>,
    /// Who does it; exactly one is the reference.
    pub(crate) contestants: Vec<Contestant>,
    /// How often.
    pub(crate) rounds: Rounds,
    /// Seed of the shuffles.
    pub(crate) seed: u64,
    /// What else is looked at.
    pub(crate) looks: Looks,
    /// Whether a program that fails is measured all the same.
    pub(crate) ignore_failure: bool,
}

/// The figures of one run.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    /// Index of the case.
    pub(crate) case: usize,
    /// Index of the contestant.
    pub(crate) contestant: usize,
    /// Number of the round, from 0.
    pub(crate) round: usize,
    /// Operations.
    pub(crate) ops: u64,
    /// Time, ns: the timed section, or a program's time from start to end.
    pub(crate) time_ns: f64,
    /// Processor time, ns.
    pub(crate) cpu_ns: f64,
    /// Resident before the work began: the harness, and what the subject brought with it, bytes;
    /// 0 for programs.
    pub(crate) baseline_bytes: f64,
    /// Resident as the process began, bytes.
    pub(crate) start_bytes: f64,
    /// Peak resident memory (above the harness's own, except for programs), bytes.
    pub(crate) peak_bytes: f64,
    /// The figure by which the case judges memory: the peak, unless its workload names another.
    pub(crate) memory: f64,
    /// Time-weighted mean of resident memory, likewise, bytes; `None` when too short to sample.
    pub(crate) mean_bytes: Option<f64>,
    /// Page faults, minor and major.
    pub(crate) faults: u64,
    /// Context switches, voluntary and not.
    pub(crate) switches: u64,
    /// Time stolen by the hypervisor, ns.
    pub(crate) steal_ns: u64,
    /// Allocations that failed.
    pub(crate) failed_allocations: u64,
    /// Exit code of a program.
    pub(crate) exit_code: i32,
    /// Largest live bytes that the workload itself counted; 0 when unknown.
    pub(crate) live_peak_bytes: u64,
    /// Hash of what was done; equal for all contestants of a case.
    pub(crate) checksum: u64,
    /// Further figures of the workload.
    pub(crate) more: std::collections::BTreeMap<String, f64>,
    /// Resident memory over the timed section: (share of the section, bytes).
    pub(crate) curve: Vec<[f64; 2]>,
}

/// A contestant that broke in a case.
#[derive(Clone, Debug)]
pub(crate) struct Broken {
    /// Index of the case.
    pub(crate) case: usize,
    /// Index of the contestant.
    pub(crate) contestant: usize,
    /// Why.
    pub(crate) why: String,
}

/// Latencies of one contestant in one case.
#[derive(Clone, Debug)]
pub(crate) struct Latency {
    /// Index of the case.
    pub(crate) case: usize,
    /// Index of the contestant.
    pub(crate) contestant: usize,
    /// By kind of operation.
    pub(crate) records: Vec<LatencyRecord>,
    /// Single operations ([`crate::bench::Outcome::points`]).
    pub(crate) points: Vec<[f64; 3]>,
}

/// What a contest gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Results {
    /// Every run.
    pub(crate) runs: Vec<Run>,
    /// Who broke.
    pub(crate) broken: Vec<Broken>,
    /// Latencies, when asked for.
    pub(crate) latencies: Vec<Latency>,
    /// Maps, when asked for: case, contestant, stretches of memory ([`crate::bench::Outcome::map`]).
    pub(crate) maps: Vec<(usize, usize, Vec<[f64; 2]>)>,
    /// Planted slowness per case, as a share of the reference's time.
    pub(crate) planted_shares: Vec<f64>,
    /// Complete rounds.
    pub(crate) rounds: usize,
    /// Whether the user stopped it.
    pub(crate) interrupted: bool,
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

    /// Runs it.
    ///
    /// # Errors
    /// When no process can be started at all, or the reference breaks in every case.
    pub(crate) fn run(&self) -> anyhow::Result<Results> {
        let mut results = Results::default();
        let mut bar = Progress::new();
        let begun = Instant::now();
        let Some(planted_ns) = self.warm_up(&mut results, &mut bar)? else {
            results.interrupted = true;
            return Ok(results);
        };
        anyhow::ensure!(results.broken.len() < self.cases.len(), "{}", self.nothing_runs(&results));
        let round_estimate = begun.elapsed() * self.contestants.len() as u32;
        let mut planned = self.planned_rounds(Duration::ZERO, 0, round_estimate);
        let mut random = fastrand::Rng::with_seed(self.seed);
        let per_round = (self.cases.len() * self.contestants.len()) as u64;
        while results.rounds < planned {
            bar.set_length(planned as u64 * per_round);
            if !self.round(results.rounds, &planted_ns, &mut random, &mut results, &mut bar)? {
                results.interrupted = true;
                break;
            }
            results.rounds += 1;
            let spent = begun.elapsed();
            planned = self.planned_rounds(spent, results.rounds, spent / results.rounds as u32);
        }
        for look in [Look::Latency, Look::Map] {
            let wanted = match look {
                Look::Latency => self.looks.latency,
                _ => self.looks.map,
            };
            if wanted && !results.interrupted {
                self.look(look, &mut results, &mut bar)?;
            }
        }
        results.level_baselines(&self.cases);
        bar.finish();
        Ok(results)
    }

    /// Runs each case once on the reference. Gives the planted slowness of each case in its own
    /// unit (ns per operation, or ns per program); `None` when interrupted.
    fn warm_up(
        &self,
        results: &mut Results,
        bar: &mut Progress,
    ) -> anyhow::Result<Option<Vec<u64>>> {
        let mut planted_ns = Vec::new();
        for (index, case) in self.cases.iter().enumerate() {
            bar.begin(format!("warm-up: {}", case.name));
            match runner::execute(
                &self.contestants[0].subject,
                &case.job(0, Look::Time),
                SAMPLE_EVERY,
            )? {
                Err(Failure::Interrupted) => return Ok(None),
                Err(Failure::Broken(why)) => {
                    planted_ns.push(0);
                    results.planted_shares.push(0.0);
                    results.broken.push(Broken { case: index, contestant: 0, why });
                }
                Ok(measured) => {
                    if let Some(why) = self.failed(&measured) {
                        planted_ns.push(0);
                        results.planted_shares.push(0.0);
                        results.broken.push(Broken { case: index, contestant: 0, why });
                        continue;
                    }
                    let run = case.figures(&measured, 0, 0, index);
                    let units =
                        if measured.outcome.is_some() { run.ops.max(1) as f64 } else { 1.0 };
                    let per_unit = (run.time_ns * PLANTED_SHARE / units).ceil();
                    planted_ns.push(per_unit as u64);
                    results.planted_shares.push(per_unit * units / run.time_ns);
                }
            }
        }
        Ok(Some(planted_ns))
    }

    /// One complete round; `false` when interrupted.
    fn round(
        &self,
        round: usize,
        planted_ns: &[u64],
        random: &mut fastrand::Rng,
        results: &mut Results,
        bar: &mut Progress,
    ) -> anyhow::Result<bool> {
        let mut cases: Vec<usize> = (0..self.cases.len()).collect();
        random.shuffle(&mut cases);
        for case in cases {
            let mut order: Vec<usize> = (0..self.contestants.len()).collect();
            random.shuffle(&mut order);
            for index in order {
                let contestant = &self.contestants[index];
                let what = &self.cases[case];
                bar.step(format!("{} on {}", what.name, contestant.name));
                if results.is_out(case, index, &self.contestants) {
                    continue;
                }
                let planted = if contestant.role == Role::Planted { planted_ns[case] } else { 0 };
                let job = what.job(planted, Look::Time);
                match runner::execute(&contestant.subject, &job, SAMPLE_EVERY)? {
                    Err(Failure::Interrupted) => return Ok(false),
                    Err(Failure::Broken(why)) => {
                        results.broken.push(Broken { case, contestant: index, why });
                    }
                    Ok(measured) => {
                        if measured.library_seen == Some(false)
                            && contestant.subject.library.is_some()
                        {
                            let why = "its library was never mapped into the program".to_owned();
                            results.broken.push(Broken { case, contestant: index, why });
                            continue;
                        }
                        if let Some(why) = self.failed(&measured) {
                            results.broken.push(Broken { case, contestant: index, why });
                            continue;
                        }
                        results.runs.push(what.figures(&measured, index, round, case));
                    }
                }
            }
        }
        Ok(true)
    }

    /// One run per case and subject to look at something else than time and memory.
    fn look(&self, look: Look, results: &mut Results, bar: &mut Progress) -> anyhow::Result<()> {
        for (index, case) in self.cases.iter().enumerate() {
            if !case.can_be_looked_at(look) {
                continue;
            }
            for (number, contestant) in self.contestants.iter().enumerate() {
                let control = matches!(contestant.role, Role::Again | Role::Planted);
                if control || results.is_out(index, number, &self.contestants) {
                    continue;
                }
                bar.begin(format!("{look:?}: {} on {}", case.name, contestant.name));
                match runner::execute(&contestant.subject, &case.job(0, look), SAMPLE_EVERY)? {
                    Err(Failure::Interrupted) => {
                        results.interrupted = true;
                        return Ok(());
                    }
                    Err(Failure::Broken(why)) => {
                        results.broken.push(Broken { case: index, contestant: number, why });
                    }
                    Ok(measured) => {
                        let outcome = measured.outcome.unwrap_or_default();
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
            }
        }
        Ok(())
    }

    /// Why there is nothing to compare with.
    fn nothing_runs(&self, results: &Results) -> String {
        let reference = &self.contestants[0].name;
        let Some(broken) = results.broken.first() else { return String::new() };
        let case = &self.cases[broken.case];
        let advice = match case.work {
            Work::Program(_) => {
                "; the figures of a failing program say little (--ignore-failure measures it all \
                 the same)"
            }
            _ => "",
        };
        format!("{} under {reference}: {}{advice}", case.name, broken.why)
    }

    /// How a program failed, where that is to be told.
    fn failed(&self, measured: &Measured) -> Option<String> {
        if self.ignore_failure || measured.outcome.is_some() {
            return None;
        }
        runner::failure(measured.exit_code)
    }

    fn planned_rounds(&self, spent: Duration, done: usize, per_round: Duration) -> usize {
        match self.rounds {
            Rounds::Exactly(rounds) => rounds,
            Rounds::Within(budget) => {
                let left = budget.saturating_sub(spent).as_secs_f64();
                let more = (left / per_round.as_secs_f64().max(1e-3)) as usize;
                (done + more).clamp(LEAST_ROUNDS, MOST_ROUNDS)
            }
        }
    }
}

impl Results {
    /// Counts what a subject holds as its process begins (its library, a first chunk taken in
    /// advance) as its memory, beyond what the leanest start of a case had. What the harness takes
    /// between then and the work is no part of it: it differs from run to run.
    fn level_baselines(&mut self, cases: &[Case]) {
        for (index, case) in cases.iter().enumerate() {
            let least = self
                .runs
                .iter()
                .filter(|run| run.case == index)
                .map(|run| run.start_bytes)
                .fold(f64::INFINITY, f64::min);
            let is_ratio =
                matches!(case.memory(), Memory::Figure(name) if !name.ends_with("bytes"));
            for run in self.runs.iter_mut().filter(|run| run.case == index) {
                let brought = run.start_bytes - least;
                run.peak_bytes += brought;
                run.mean_bytes = run.mean_bytes.map(|mean| mean + brought);
                for point in &mut run.curve {
                    point[1] += brought;
                }
                if !is_ratio {
                    run.memory += brought;
                }
                // Programs and ratios contain the process already.
                if run.baseline_bytes > 0.0 && !is_ratio {
                    run.memory += PROCESS_BYTES;
                }
            }
        }
    }

    /// Whether a contestant broke in a case; the controls share the reference's fate.
    fn is_out(&self, case: usize, contestant: usize, contestants: &[Contestant]) -> bool {
        let control = matches!(contestants[contestant].role, Role::Again | Role::Planted);
        self.broken.iter().any(|broken| {
            broken.case == case
                && (broken.contestant == contestant || (control && broken.contestant == 0))
        })
    }
}

/// What a run is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// Time and memory.
    Time,
    /// Single operations.
    Latency,
    /// Where objects lie.
    Map,
}

impl Case {
    fn can_be_looked_at(&self, look: Look) -> bool {
        match self.work {
            Work::Trace { .. } => true,
            Work::Bench { .. } => look != Look::Map,
            Work::Program(_) => false,
        }
    }

    /// The process that does this case once.
    fn job(&self, planted_ns: u64, look: Look) -> Job {
        let planted = planted_ns.to_string();
        match &self.work {
            Work::Trace { path, .. } if look == Look::Map => {
                Job::Child(vec!["map".into(), path.into()])
            }
            Work::Trace { path, mode, touch, points } => {
                let mut arguments = vec!["replay".into(), path.into()];
                arguments.extend(["--mode".into(), value_name(*mode)]);
                arguments.extend(["--touch".into(), value_name(*touch)]);
                arguments.extend(["--planted-ns".into(), planted.into()]);
                if look == Look::Latency {
                    arguments.push("--latency".into());
                    arguments.extend(["--points".into(), points.to_string().into()]);
                }
                Job::Child(arguments)
            }
            Work::Bench { name, parameters } => {
                let parameters = serde_json::to_string(parameters).expect("maps of text serialise");
                Job::Child(vec![
                    "bench".into(),
                    name.into(),
                    parameters.into(),
                    "--planted-ns".into(),
                    planted.into(),
                ])
            }
            Work::Program(command) => {
                Job::Program { command: command.clone(), planted_ns, show_output: false }
            }
        }
    }

    /// By which figure the case judges memory.
    pub(crate) fn memory(&self) -> Memory {
        match &self.work {
            Work::Bench { name, .. } => match bench::find(name) {
                Ok(Entry::Workload(workload)) => workload.memory(),
                _ => Memory::Peak,
            },
            Work::Trace { .. } | Work::Program(_) => Memory::Peak,
        }
    }

    fn figures(&self, measured: &Measured, contestant: usize, round: usize, case: usize) -> Run {
        let usage = measured.usage;
        let mut run = Run {
            case,
            contestant,
            round,
            ops: 0,
            time_ns: measured.wall_ns as f64,
            baseline_bytes: 0.0,
            start_bytes: 0.0,
            cpu_ns: (usage.user_ns + usage.system_ns) as f64,
            peak_bytes: measured.peak_bytes as f64,
            memory: measured.peak_bytes as f64,
            mean_bytes: None,
            faults: usage.minor_faults + usage.major_faults,
            switches: usage.voluntary_switches + usage.involuntary_switches,
            steal_ns: measured.steal_ns,
            failed_allocations: 0,
            exit_code: measured.exit_code,
            live_peak_bytes: 0,
            checksum: 0,
            more: std::collections::BTreeMap::new(),
            curve: Vec::new(),
        };
        let Some(outcome) = &measured.outcome else {
            let (start, end) = span(&measured.samples);
            run.mean_bytes = runner::mean_bytes(&measured.samples, start, end);
            run.curve = curve(&measured.samples, start, end, 0);
            return run;
        };
        run.ops = outcome.ops;
        run.time_ns = outcome.ns as f64;
        run.failed_allocations = outcome.failed_allocations;
        run.live_peak_bytes = outcome.live_peak_bytes;
        run.checksum = outcome.checksum;
        run.more.clone_from(&outcome.more);
        if let Some(window) = &outcome.window {
            run.cpu_ns = (window.user_ns + window.system_ns) as f64;
            run.baseline_bytes = window.baseline_bytes as f64;
            run.start_bytes = window.start_bytes as f64;
            run.peak_bytes = window.peak_bytes as f64;
            run.memory = self.memory().of(outcome).unwrap_or(run.peak_bytes);
            run.mean_bytes = runner::mean_bytes(&measured.samples, window.start_ns, window.end_ns)
                .map(|mean| (mean - window.baseline_bytes as f64).max(0.0));
            run.faults = window.minor_faults + window.major_faults;
            run.switches = window.voluntary_switches + window.involuntary_switches;
            run.curve =
                curve(&measured.samples, window.start_ns, window.end_ns, window.baseline_bytes);
        }
        run
    }
}

/// The name of a value as the command line spells it.
fn value_name(value: impl clap::ValueEnum) -> std::ffi::OsString {
    value.to_possible_value().expect("no value is skipped").get_name().into()
}

fn span(samples: &[Sample]) -> (u64, u64) {
    (samples.first().map_or(0, |first| first.at_ns), samples.last().map_or(0, |last| last.at_ns))
}

/// Samples as (share of the section, bytes above the baseline), thinned to what a plot can show.
fn curve(samples: &[Sample], start_ns: u64, end_ns: u64, baseline_bytes: u64) -> Vec<[f64; 2]> {
    const POINTS: usize = 160;
    let within: Vec<&Sample> =
        samples.iter().filter(|sample| (start_ns..=end_ns).contains(&sample.at_ns)).collect();
    let step = within.len().div_ceil(POINTS).max(1);
    let length = (end_ns - start_ns).max(1) as f64;
    within
        .chunks(step)
        .map(|chunk| {
            // The largest of a chunk: a thinned curve must not lose its peaks.
            let top = chunk.iter().max_by_key(|sample| sample.bytes).expect("chunks are not empty");
            let share = (top.at_ns - start_ns) as f64 / length;
            [share, top.bytes.saturating_sub(baseline_bytes) as f64]
        })
        .collect()
}
