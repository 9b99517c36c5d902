//! The workloads that `hectare bench NAME` runs, and the interface they share.
//!
//! ```text
//!            Entry::Workload ── measured through `malloc`: a fresh `hectare child` process
//!  ENTRIES ─┤                   per subject and round, the subject preloaded
//!            Entry::Study    ── brings its own subjects (TLSF, pools, …): runs in this process
//!                               and gives a finished report
//! ```
//!
//! 1. A workload generates its operations from the seed *before* it opens its
//!    [`Window`](crate::measure::Window); inside the window only the measured calls and the
//!    touching of memory happen.
//! 2. Every subject executes the same operations: `Outcome::checksum` is a function of the
//!    parameters alone, and the runner refuses rows whose checksums differ.
//! 3. A failed allocation is counted in `Outcome::failed_allocations`, never skipped silently.
//! 4. Memory under measurement comes from `libc::malloc` and its family only; the harness's own
//!    `Vec`s and `Box`es never touch that heap (see the global allocator in `main.rs`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::measure::WindowRecord;
use crate::report::Report;

/// What a workload can be varied by. Recorded with each row, so that the row can be made again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameters {
    /// Threads that allocate.
    pub(crate) threads: usize,
    /// Operations in all (what one operation is, the workload's `about` tells).
    pub(crate) ops: u64,
    /// Seed of every random choice.
    pub(crate) seed: u64,
    /// Parameters of this workload alone, by name (`slots=100000`).
    #[serde(default)]
    pub(crate) more: BTreeMap<String, String>,
}

impl Parameters {
    /// Parameters with the given threads and operations, seed 1 and nothing more.
    pub(crate) fn new(threads: usize, ops: u64) -> Self {
        Self { threads, ops, seed: 1, more: BTreeMap::new() }
    }

    /// The same with one parameter more.
    pub(crate) fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.more.insert(name.to_owned(), value.to_string());
        self
    }

    /// The workload's own parameter `name`.
    ///
    /// # Errors
    /// When it is missing or not of type `T`.
    pub(crate) fn get<T: std::str::FromStr>(&self, name: &str) -> anyhow::Result<T> {
        let text = self
            .more
            .get(name)
            .ok_or_else(|| anyhow::anyhow!("the parameter `{name}` is missing"))?;
        text.parse().map_err(|_| {
            anyhow::anyhow!("the parameter `{name}={text}` is not a {}", std::any::type_name::<T>())
        })
    }
}

/// What one run of a workload gave.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Operations done.
    pub(crate) ops: u64,
    /// Time of the timed section, ns.
    pub(crate) ns: u64,
    /// A hash over the operations executed (and memory read back): equal for every subject.
    pub(crate) checksum: u64,
    /// Allocations that returned null.
    pub(crate) failed_allocations: u64,
    /// Largest sum of sizes asked for and not freed, bytes; 0 when the workload does not know.
    #[serde(default)]
    pub(crate) live_peak_bytes: u64,
    /// The window of measurement: resident memory, faults, switches.
    #[serde(default)]
    pub(crate) window: Option<WindowRecord>,
    /// Latency of single operations, where they were timed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) latencies: Vec<LatencyRecord>,
    /// Further figures, the unit the last word of the name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) more: BTreeMap<String, f64>,
}

/// Percentiles of the latency of one kind of operation, ns, the clock's own cost not subtracted.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct LatencyRecord {
    /// `malloc`, `free`, …
    pub(crate) operation: String,
    /// Operations timed.
    pub(crate) count: u64,
    /// Mean, ns.
    pub(crate) mean_ns: f64,
    /// Median, ns.
    pub(crate) p50_ns: f64,
    /// 90th percentile, ns.
    pub(crate) p90_ns: f64,
    /// 99th percentile, ns.
    pub(crate) p99_ns: f64,
    /// 99.9th percentile, ns.
    pub(crate) p999_ns: f64,
    /// 99.99th percentile, ns.
    pub(crate) p9999_ns: f64,
    /// The longest, ns.
    pub(crate) worst_ns: f64,
    /// What reading the clock costs by itself, ns (median of an empty measurement).
    pub(crate) clock_ns: f64,
}

/// A workload over `malloc`.
pub(crate) trait Workload: Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;
    /// What it does and what one operation is, in one or two sentences.
    fn about(&self) -> &'static str;
    /// Where it comes from: paper, repository, study.
    fn source(&self) -> &'static str;
    /// The parameters used when none are given: a run of about half a second.
    fn defaults(&self) -> Parameters;
    /// Runs it once in this process, on this process's `malloc`.
    ///
    /// # Errors
    /// When the parameters make no sense or a result is wrong (memory that lost its content).
    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome>;
}

/// A benchmark with subjects of its own, such as TLSF implementations or pools.
pub(crate) trait Study: Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;
    /// What it measures, in one or two sentences.
    fn about(&self) -> &'static str;
    /// Where it comes from: paper, repository, study.
    fn source(&self) -> &'static str;
    /// Parses `args` (what stood after the name) and measures.
    ///
    /// # Errors
    /// When the arguments make no sense or a result is wrong.
    fn run(&self, args: &[String]) -> anyhow::Result<Report>;
}

/// One line of `hectare bench --list`.
#[derive(Clone, Copy)]
pub(crate) enum Entry {
    /// Measured through `malloc`, in child processes.
    Workload(&'static dyn Workload),
    /// Brings its own subjects.
    Study(&'static dyn Study),
}

impl Entry {
    /// The name on the command line.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Workload(workload) => workload.name(),
            Self::Study(study) => study.name(),
        }
    }
}

mod churn;
mod pools;
mod stress;
mod tlsf;

/// Everything that `hectare bench` knows, in the order of `--list`.
pub(crate) const ENTRIES: &[Entry] = &[
    Entry::Workload(&churn::Churn),
    Entry::Study(&tlsf::Tlsf),
    Entry::Study(&stress::Stress),
    Entry::Study(&pools::Pools),
];

/// The entry of that name.
///
/// # Errors
/// When there is none; the message lists the names.
pub(crate) fn find(name: &str) -> anyhow::Result<Entry> {
    ENTRIES.iter().copied().find(|entry| entry.name() == name).ok_or_else(|| {
        let names: Vec<_> = ENTRIES.iter().map(Entry::name).collect();
        anyhow::anyhow!("no benchmark is called `{name}`; there are: {}", names.join(", "))
    })
}
