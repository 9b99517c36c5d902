//! The results of a contest: the figures of every run, and which contestants broke.

use std::collections::BTreeMap;

use super::{Case, Contestant};
use crate::bench::{LatencyRecord, Memory};
use crate::runner::{Measured, Served, Shortfall, Warmth};
use crate::subject::Subject;

/// What any program has resident before it allocates (code, stack, C library), bytes. It is part of
/// every program, and so of every ratio that judges memory. Without it a heap of size zero would
/// make all others infinitely large. `hectare run -- true` shows about this.
const PROCESS_BYTES: f64 = 2_097_152.0;

/// The figures of one run.
#[derive(Clone, Debug, Default)]
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
    /// Resident before the work began: the harness, and the memory that the subject brought with
    /// it, bytes. 0 for programs.
    pub(crate) baseline_bytes: f64,
    /// Resident when the process began, bytes.
    pub(crate) start_bytes: f64,
    /// Peak resident memory (above the harness's own, except for programs), bytes.
    pub(crate) peak_bytes: f64,
    /// The figure by which the case judges memory: the peak, unless its workload names another.
    pub(crate) memory: f64,
    /// The part of that which is not measured memory but stands for a process without a heap
    /// ([`PROCESS_BYTES`]), bytes.
    pub(crate) added_bytes: f64,
    /// Time-weighted mean of resident memory, likewise, bytes; `None` if the run was too short to
    /// sample.
    pub(crate) mean_bytes: Option<f64>,
    /// Page faults, minor and major.
    pub(crate) faults: u64,
    /// Context switches, voluntary and not.
    pub(crate) switches: u64,
    /// Time that the hypervisor took from all processors while the process lived, ns.
    pub(crate) steal_ns: u64,
    /// How long the process lived, ns.
    pub(crate) lived_ns: u64,
    /// Allocations that failed.
    pub(crate) failed_allocations: u64,
    /// Exit code of a program.
    pub(crate) exit_code: i32,
    /// Largest live bytes that the workload itself counted; 0 when unknown.
    pub(crate) live_peak_bytes: u64,
    /// Hash of what was done; equal for all contestants of a case.
    pub(crate) checksum: u64,
    /// Further figures of the workload.
    pub(crate) more: indexmap::IndexMap<String, f64>,
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
    /// Whether its exit code is the reason. `--ignore-failure` measures such a program.
    pub(crate) by_exit: bool,
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

/// The results of a contest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Results {
    /// Every run.
    pub(crate) runs: Vec<Run>,
    /// The contestants that broke.
    pub(crate) broken: Vec<Broken>,
    /// Latencies, when asked for.
    pub(crate) latencies: Vec<Latency>,
    /// Maps, when asked for: case, contestant, stretches of memory ([`crate::bench::Outcome::map`]).
    pub(crate) maps: Vec<(usize, usize, Vec<[f64; 2]>)>,
    /// How much longer a run of each case should take with the planted slowness, ns.
    pub(crate) planted_ns: Vec<f64>,
    /// Complete rounds.
    pub(crate) rounds: usize,
    /// Whether the user stopped it.
    pub(crate) interrupted: bool,
    /// How memory was warmed before the runs.
    pub(crate) warmth: Warmth,
    /// Whether programs had the library, over all runs of a case and a contestant.
    pub(crate) served: BTreeMap<(usize, usize), Served>,
}

impl Results {
    /// Notes whether a program had the library of `subject`. Returns why nothing was measured if it
    /// had not.
    pub(super) fn not_served(
        &mut self,
        case: usize,
        contestant: usize,
        subject: &Subject,
        measured: &Measured,
    ) -> Option<String> {
        if subject.library.is_none() || measured.outcome.is_some() {
            return None;
        }
        let served = self.served.entry((case, contestant)).or_default();
        served.add(&measured.served);
        match served.shortfall() {
            Some(Shortfall::Whole(why)) => Some(why),
            _ => None,
        }
    }

    /// Leaves out the round that an interruption cut, unless there is no other. Otherwise some
    /// cases would have a round more than the report says, and a verdict where it says that there
    /// is none.
    pub(super) fn drop_incomplete_round(&mut self) {
        if self.rounds > 0 {
            self.runs.retain(|run| run.round < self.rounds);
        }
    }

    /// Counts what a subject holds when its process begins (its library, a first chunk taken in
    /// advance) as its memory, as far as it exceeds the leanest start in the case. What the harness
    /// takes between then and the work is excluded, since it differs from run to run.
    pub(super) fn level_baselines(&mut self, cases: &[Case]) {
        for (index, case) in cases.iter().enumerate() {
            let least = self
                .runs
                .iter()
                .filter(|run| run.case == index)
                .map(|run| run.start_bytes)
                .fold(f64::INFINITY, f64::min);
            let memory = case.memory();
            for run in self.runs.iter_mut().filter(|run| run.case == index) {
                let brought = run.start_bytes - least;
                run.peak_bytes += brought;
                run.mean_bytes = run.mean_bytes.map(|mean| mean + brought);
                for point in &mut run.curve {
                    point[1] += brought;
                }
                // The difference becomes a share of live memory, like the workload's own figure.
                let divisor = match memory {
                    Memory::Ratio { live, .. } => run.more.get(live).copied(),
                    Memory::Peak | Memory::Figure(_) => None,
                };
                run.memory += brought / divisor.unwrap_or(1.0);
                if let Some(figure) = memory.name().and_then(|name| run.more.get_mut(name)) {
                    *figure = run.memory;
                }
                // Programs and ratios already include the process.
                if run.baseline_bytes > 0.0 && divisor.is_none() {
                    run.memory += PROCESS_BYTES;
                    run.added_bytes = PROCESS_BYTES;
                }
            }
        }
    }

    /// Whether a contestant broke in a case. The controls share the reference's fate.
    pub(super) fn is_out(
        &self,
        case: usize,
        contestant: usize,
        contestants: &[Contestant],
    ) -> bool {
        let control = contestants[contestant].is_control();
        self.broken.iter().any(|broken| {
            broken.case == case
                && (broken.contestant == contestant || (control && broken.contestant == 0))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Parameters;
    use crate::contest::Work;

    fn case(name: &str) -> Case {
        Case::new(name, Work::Bench { name: name.to_owned(), parameters: Parameters::new(1, 1) })
    }

    /// A run of a subject with that much resident when its process began.
    fn run(start_bytes: f64, memory: f64, more: &[(&str, f64)]) -> Run {
        let more = more.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        Run { baseline_bytes: 5000.0, start_bytes, memory, more, ..Run::default() }
    }

    #[test]
    fn what_a_subject_brings_is_part_of_every_kind_of_memory() {
        let leveled = |name: &str, memory: f64, more: &[(&str, f64)]| {
            let runs = vec![run(700.0, memory, more), run(1000.0, memory, more)];
            let mut results = Results { runs, ..Results::default() };
            results.level_baselines(&[case(name)]);
            results.runs
        };
        let runs = leveled("churn", 1000.0, &[]);
        assert_eq!(runs[0].memory, 1000.0 + PROCESS_BYTES);
        assert_eq!(runs[1].memory, 1300.0 + PROCESS_BYTES);
        let runs = leveled("drain", 400.0, &[("after_1000_ms_bytes", 400.0)]);
        assert_eq!(runs[1].memory, 700.0 + PROCESS_BYTES);
        assert_eq!(runs[1].more["after_1000_ms_bytes"], 700.0);
        for (name, live) in [
            ("phases", "mean_live_bytes"),
            ("random-phases", "mean_live_bytes"),
            ("server", "harmonic_live_bytes"),
        ] {
            let runs = leveled(name, 1.5, &[("resident_over_live_ratio", 1.5), (live, 600.0)]);
            assert_eq!((runs[0].memory, runs[1].memory), (1.5, 2.0), "{name}");
            assert_eq!(runs[1].more["resident_over_live_ratio"], 2.0, "{name}");
            assert_eq!(runs[1].added_bytes, 0.0, "{name}: no process in a ratio");
        }
    }
}
