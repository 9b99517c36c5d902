//! What a contest gave: the figures of every run, and who broke.

use super::{Case, Contestant};
use crate::bench::{LatencyRecord, Memory};
use crate::runner::Warmth;

/// What any program has resident before it allocates (code, stack, C library), bytes: part of every
/// ratio by which memory is judged, as it is of every program, so that a heap of no size at all does
/// not make all others infinitely large. `hectare run -- true` shows about this.
const PROCESS_BYTES: f64 = 2_097_152.0;

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
    /// What of that is no measured memory but a process without a heap ([`PROCESS_BYTES`]), bytes.
    pub(crate) added_bytes: f64,
    /// Time-weighted mean of resident memory, likewise, bytes; `None` when too short to sample.
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
    /// Whether its exit code tells so: `--ignore-failure` measures it then.
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
    /// How much longer a run should take by the slowness planted in each case, ns.
    pub(crate) planted_ns: Vec<f64>,
    /// Complete rounds.
    pub(crate) rounds: usize,
    /// Whether the user stopped it.
    pub(crate) interrupted: bool,
    /// How memory was warmed before the runs.
    pub(crate) warmth: Warmth,
}

impl Results {
    /// Counts what a subject holds as its process begins (its library, a first chunk taken in
    /// advance) as its memory, beyond what the leanest start of a case had. What the harness takes
    /// between then and the work is no part of it: it differs from run to run.
    pub(super) fn level_baselines(&mut self, cases: &[Case]) {
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
                    run.added_bytes = PROCESS_BYTES;
                }
            }
        }
    }

    /// Whether a contestant broke in a case; the controls share the reference's fate.
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
