//! What every contestant runs: a trace, a workload or a user's program, as a process to start and
//! as the figures read from it.

use std::ffi::OsString;
use std::path::PathBuf;

use super::Run;
use crate::bench::{self, Entry, Memory, Parameters};
use crate::measure::WindowRecord;
use crate::replay::{Ideal, Mode, Touch};
use crate::report::Series;
use crate::runner::{self, Job, Measured, Sample};

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
        /// Single operations to report from each latency run.
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
    Program(Vec<OsString>),
}

/// One thing that every contestant runs.
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

/// What a run is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Time and memory.
    Time,
    /// Single operations.
    Latency,
    /// Where objects lie.
    Map,
}

impl Look {
    /// What is looked at.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Latency => "latency",
            Self::Map => "occupancy",
        }
    }
}

impl Case {
    /// A case of which nothing is known before it is run.
    pub(crate) fn new(name: impl Into<String>, work: Work) -> Self {
        Self { name: name.into(), work, ideal: None, known: Vec::new() }
    }

    pub(super) fn can_be_looked_at(&self, look: Look) -> bool {
        match self.work {
            Work::Trace { .. } => true,
            Work::Bench { .. } => look != Look::Map,
            Work::Program(_) => false,
        }
    }

    /// The process that does this case once.
    pub(super) fn job(&self, planted_ns: u64, look: Look) -> Job {
        let planted = planted_ns.to_string();
        match &self.work {
            Work::Trace { path, touch, .. } if look == Look::Map => {
                Job::Child(vec!["map".into(), path.into(), "--touch".into(), value_name(*touch)])
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
                Job::Program { command: command.clone(), planted_ns, has_streams: false }
            }
        }
    }

    /// The least memory that a run needs, as far as known before any run, bytes.
    pub(super) fn known_bytes(&self) -> u64 {
        let written = match &self.work {
            Work::Bench { name, parameters } => match bench::find(name) {
                Ok(Entry::Workload(workload)) => workload.written_bytes(parameters).unwrap_or(0.0),
                _ => 0.0,
            },
            Work::Trace { .. } | Work::Program(_) => 0.0,
        };
        written as u64 + self.ideal.map_or(0, |ideal| ideal.pages_bytes)
    }

    /// The figure by which the case judges memory.
    pub(crate) fn memory(&self) -> Memory {
        match &self.work {
            Work::Bench { name, .. } => match bench::find(name) {
                Ok(Entry::Workload(workload)) => workload.memory(),
                _ => Memory::Peak,
            },
            Work::Trace { .. } | Work::Program(_) => Memory::Peak,
        }
    }

    /// The time of a run that the planted slowness is a share of, ns. A workload or a program loses
    /// the slowness once, so this is the run's time. A replay loses it in its operations, on the
    /// threads that do them, so this is the time that all threads worked, which exceeds the run's
    /// time when they work in parallel. No more threads can work in parallel than there are
    /// processors, so the sum is bounded by the processor time, which in turn includes the time
    /// that threads waited for each other.
    pub(super) fn work_ns(&self, run: &Run) -> f64 {
        match self.work {
            Work::Trace { .. } => {
                let busy_ns = run.more.get("busy_ns").copied().unwrap_or(run.time_ns);
                busy_ns.min(run.cpu_ns).max(run.time_ns)
            }
            Work::Bench { .. } | Work::Program(_) => run.time_ns,
        }
    }

    pub(super) fn figures(
        &self,
        measured: &Measured,
        contestant: usize,
        round: usize,
        case: usize,
    ) -> Run {
        let usage = measured.usage;
        let mut run = Run {
            case,
            contestant,
            round,
            time_ns: measured.wall_ns as f64,
            cpu_ns: usage.cpu_ns() as f64,
            peak_bytes: measured.peak_bytes as f64,
            memory: measured.peak_bytes as f64,
            faults: usage.faults(),
            switches: usage.switches(),
            steal_ns: measured.steal_ns,
            lived_ns: measured.lived_ns,
            exit_code: runner::exit_code(measured.status),
            ..Run::default()
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
            run.cpu_ns = window.cpu_ns as f64;
            run.baseline_bytes = window.baseline_bytes as f64;
            run.start_bytes = window.start_bytes as f64;
            run.peak_bytes = window.peak_bytes as f64;
            run.memory = self.memory().of(outcome).unwrap_or(run.peak_bytes);
            let (samples, end_ns) = within(window, &measured.samples);
            run.mean_bytes = runner::mean_bytes(&samples, window.start_ns, end_ns)
                .map(|mean| (mean - window.baseline_bytes as f64).max(0.0));
            run.faults = window.faults;
            run.switches = window.switches;
            run.curve = curve(&samples, window.start_ns, end_ns, window.baseline_bytes);
        }
        run
    }
}

/// The name of a value as spelled on the command line.
fn value_name(value: impl clap::ValueEnum) -> OsString {
    value.to_possible_value().expect("no value is skipped").get_name().into()
}

fn span(samples: &[Sample]) -> (u64, u64) {
    (samples.first().map_or(0, |first| first.at_ns), samples.last().map_or(0, |last| last.at_ns))
}

/// The samples of a window, and its end. Several stretches are joined into one, above the baseline
/// of the first. Neither the time nor the memory between stretches is the workload's.
fn within(window: &WindowRecord, samples: &[Sample]) -> (Vec<Sample>, u64) {
    if window.stretches.is_empty() {
        return (samples.to_vec(), window.end_ns);
    }
    let mut joined = Vec::new();
    let mut end_ns = window.start_ns;
    for stretch in &window.stretches {
        let inside = |sample: &&Sample| (stretch.start_ns..=stretch.end_ns).contains(&sample.at_ns);
        joined.extend(samples.iter().filter(inside).map(|sample| Sample {
            at_ns: end_ns + (sample.at_ns - stretch.start_ns),
            bytes: (sample.bytes + window.baseline_bytes).saturating_sub(stretch.baseline_bytes),
        }));
        end_ns += stretch.end_ns - stretch.start_ns;
    }
    (joined, end_ns)
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
            // The largest of each chunk, so that a thinned curve does not lose its peaks.
            let top = chunk.iter().max_by_key(|sample| sample.bytes).expect("chunks are not empty");
            let share = (top.at_ns - start_ns) as f64 / length;
            [share, top.bytes.saturating_sub(baseline_bytes) as f64]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Stretch;

    #[test]
    fn what_lies_between_the_stretches_of_a_window_is_not_seen() {
        let samples: Vec<Sample> =
            [(0, 100), (10, 110), (20, 120), (30, 900), (105, 210), (115, 230)]
                .map(|(at_ns, bytes)| Sample { at_ns, bytes })
                .to_vec();
        let mut window = WindowRecord { end_ns: 120, baseline_bytes: 100, ..Default::default() };
        assert_eq!(within(&window, &samples), (samples.clone(), 120), "one stretch");
        // The harness takes a hundred more bytes while it decodes the second stretch.
        window.stretches = [(0, 25, 100), (100, 120, 200)]
            .map(|(start_ns, end_ns, baseline_bytes)| Stretch { start_ns, end_ns, baseline_bytes })
            .to_vec();
        let (joined, end_ns) = within(&window, &samples);
        assert_eq!(end_ns, 45);
        let expected = [(0, 100), (10, 110), (20, 120), (30, 110), (40, 130)];
        assert_eq!(joined, expected.map(|(at_ns, bytes)| Sample { at_ns, bytes }));
        let points = curve(&joined, 0, end_ns, 100);
        assert!(points.iter().all(|point| point[1] <= 30.0), "{points:?}");
    }
}
