//! The workloads that `hectare bench NAME` runs, and the interface they share.
//!
//! ```text
//!            Entry::Workload ── measured through `malloc`: a fresh `hectare child` process
//!  ENTRIES ─┤                   per subject and round, the subject preloaded
//!            Entry::Study    ── brings its own subjects (TLSF, pools, …): runs in this process
//!                               and returns a finished report
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
use std::process::Stdio;

use anyhow::Context;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::measure::WindowRecord;
use crate::report::Report;
use crate::{parser, say};
pub(crate) use domain::{Domain, Domains};

/// The parameters of a workload. Recorded with each row, so that the row can be reproduced.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parameters {
    /// Threads that allocate.
    pub(crate) threads: usize,
    /// Operations of each thread (the workload's `about` says what an operation is).
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

    /// The same parameters with one more.
    pub(crate) fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.more.insert(name.to_owned(), value.to_string());
        self
    }

    /// The rows of a published benchmark: on one, two and eight threads. Each of the eight threads
    /// does a quarter of the operations, so that two processors do as much as with two threads.
    fn on_threads(&self) -> Vec<Self> {
        let on = |(threads, ops)| Self { threads, ops, ..self.clone() };
        [(1, self.ops), (2, self.ops), (8, (self.ops / 4).max(1))].map(on).into()
    }

    /// The value of the workload's own parameter `name`, as it was given.
    ///
    /// # Errors
    /// When the parameter is missing.
    pub(crate) fn text(&self, name: &str) -> anyhow::Result<&str> {
        self.more
            .get(name)
            .map(String::as_str)
            .ok_or_else(|| anyhow::anyhow!("the parameter `{name}` is missing"))
    }

    /// One generator of random numbers per thread, each with a seed of its own.
    pub(crate) fn seeds(&self) -> impl Iterator<Item = fastrand::Rng> {
        let mut root = fastrand::Rng::with_seed(self.seed);
        (0..self.threads).map(move |_| root.fork())
    }

    /// The value of the workload's own parameter `name`.
    ///
    /// # Errors
    /// When the parameter is missing or not of type `T`.
    pub(crate) fn get<T: std::str::FromStr>(&self, name: &str) -> anyhow::Result<T> {
        let text = self.text(name)?;
        text.parse().map_err(|_| {
            anyhow::anyhow!("--set `{name}={text}`: no number that this parameter can be")
        })
    }
}

/// The result of one run of a workload.
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
    /// Single operations, if asked for: the slowest and an even sample of the others, each as time
    /// in the recording (ms), latency (ns), size (bytes).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) points: Vec<[f64; 3]>,
    /// Where live objects lie, if asked for: stretches of resident memory, each as the number of
    /// its first page and the share in use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) map: Vec<[f64; 2]>,
    /// Further figures; the unit is the last word of the name.
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub(crate) more: IndexMap<String, f64>,
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

/// The figure by which a workload's use of memory is judged; less is better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Memory {
    /// Peak of resident memory above the baseline.
    Peak,
    /// The figure of that name in [`Outcome::more`], in bytes.
    Figure(&'static str),
    /// The ratio of that name in [`Outcome::more`], of resident to live memory.
    Ratio {
        /// Its name.
        name: &'static str,
        /// The figure with the live bytes that the ratio is relative to. That many more bytes
        /// resident throughout raise the ratio by one.
        live: &'static str,
    },
}

impl Memory {
    /// Reads the figure from an outcome.
    pub(crate) fn of(self, outcome: &Outcome) -> Option<f64> {
        match self {
            Self::Peak => outcome.window.as_ref().map(|window| window.peak_bytes as f64),
            Self::Figure(name) | Self::Ratio { name, .. } => outcome.more.get(name).copied(),
        }
    }

    /// The name of the figure; `None` for the peak.
    pub(crate) fn name(self) -> Option<&'static str> {
        match self {
            Self::Peak => None,
            Self::Figure(name) | Self::Ratio { name, .. } => Some(name),
        }
    }
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
    /// The parameter sets of `hectare bench all`, one row each.
    fn rows(&self) -> Vec<Parameters> {
        vec![self.defaults()]
    }
    /// The parameter sets of `hectare bench published`, one row each: none for most.
    fn published_rows(&self) -> Vec<Parameters> {
        Vec::new()
    }
    /// The values that the workload's own parameters can have; also those of `threads` and `ops`,
    /// if not every value will do.
    fn domains(&self) -> Domains {
        &[]
    }
    /// Roughly how much memory the workload takes for what it writes down before the window opens,
    /// bytes.
    ///
    /// # Errors
    /// When a parameter is not a number.
    fn written_bytes(&self, _parameters: &Parameters) -> anyhow::Result<f64> {
        Ok(0.0)
    }
    /// The figure that judges the workload's use of memory.
    fn memory(&self) -> Memory {
        Memory::Peak
    }
    /// The parts of the workload with these parameters, in words, keyed by the figure of
    /// [`Outcome::more`] that holds the time of each. A report on a single case has a note for each
    /// part.
    ///
    /// # Errors
    /// When a parameter is not a number.
    fn parts(&self, _parameters: &Parameters) -> anyhow::Result<IndexMap<String, String>> {
        Ok(IndexMap::new())
    }
    /// Runs the workload once in this process, on this process's `malloc`.
    ///
    /// # Errors
    /// When the parameters make no sense or a result is wrong (memory that lost its content).
    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome>;
}

/// Rows of many workloads, measured as one contest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Table {
    /// What the project compares over time.
    All,
    /// Known benchmarks, and a server's sessions, on one, two and eight threads.
    Published,
}

impl Table {
    /// Every table.
    pub(crate) const EACH: [Self; 2] = [Self::All, Self::Published];

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Published => "published",
        }
    }

    /// The rows that a workload has in the table.
    pub(crate) fn rows(self, workload: &dyn Workload) -> Vec<Parameters> {
        match self {
            Self::All => workload.rows(),
            Self::Published => workload.published_rows(),
        }
    }
}

/// A benchmark with subjects of its own, such as TLSF implementations or pools.
pub(crate) trait Study: Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;
    /// What it measures, in one or two sentences.
    fn about(&self) -> &'static str;
    /// Where it comes from: paper, repository, study.
    fn source(&self) -> &'static str;
    /// Parses `args` (the words after the name) and measures.
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

mod alloc_test;
pub(crate) mod best_peer;
pub(crate) mod callgrind;
mod churn;
pub(crate) mod domain;
mod drain;
mod false_sharing;
pub(crate) mod flame;
mod glibc_thread;
mod heap;
mod idle;
mod large;
mod larson;
mod misuse;
mod pareto;
mod phases;
mod pools;
mod producer_consumer;
mod random_phases;
mod rnbench;
mod rptest;
mod script;
mod server;
mod sessions;
mod sh8bench;
mod stress;
mod survivors;
mod sweep;
mod team;
mod threadtest;
pub(crate) mod tlsf;
mod trees;

use heap::Tally;

/// Everything that `hectare bench` knows, in the order of `--list`.
pub(crate) const ENTRIES: &[Entry] = &[
    Entry::Workload(&churn::Churn),
    Entry::Workload(&trees::Trees),
    Entry::Workload(&rnbench::RnBench),
    Entry::Workload(&sweep::Sweep),
    Entry::Workload(&pareto::Pareto),
    Entry::Workload(&larson::Larson),
    Entry::Workload(&producer_consumer::ProducerConsumer),
    Entry::Workload(&survivors::Survivors),
    Entry::Workload(&false_sharing::FalseSharing),
    Entry::Workload(&large::Large),
    Entry::Workload(&large::Grow),
    Entry::Workload(&idle::IdleThreads),
    Entry::Workload(&drain::Drain),
    Entry::Workload(&phases::Phases),
    Entry::Workload(&threadtest::Threadtest),
    Entry::Workload(&sh8bench::Sh8bench),
    Entry::Workload(&rptest::Rptest),
    Entry::Workload(&alloc_test::AllocTest),
    Entry::Workload(&glibc_thread::GlibcThread),
    Entry::Workload(&sessions::Sessions),
    Entry::Workload(&random_phases::RandomPhases),
    Entry::Workload(&server::Server),
    Entry::Workload(&misuse::Misuse),
    Entry::Study(&tlsf::Tlsf),
    Entry::Study(&stress::Stress),
    Entry::Study(&pools::Pools),
];

/// The workloads among the entries.
pub(crate) fn workloads() -> impl Iterator<Item = &'static dyn Workload> {
    ENTRIES.iter().filter_map(|entry| match entry {
        Entry::Workload(workload) => Some(*workload),
        Entry::Study(_) => None,
    })
}

/// Whether a tool can be started.
pub(crate) fn is_installed(tool: &str) -> bool {
    let mut command = std::process::Command::new(tool);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The last line of what a tool has said.
fn last_line(said: &[u8]) -> String {
    String::from_utf8_lossy(said).lines().last().unwrap_or_default().to_owned()
}

/// The entry of that name.
///
/// # Errors
/// When there is no such entry; the message lists the names.
pub(crate) fn find(name: &str) -> anyhow::Result<Entry> {
    ENTRIES.iter().copied().find(|entry| entry.name() == name).ok_or_else(|| {
        let names: Vec<_> = ENTRIES.iter().map(Entry::name).collect();
        anyhow::anyhow!("no workload or study is called `{name}`; there are: {}", names.join(", "))
    })
}

/// The parsed arguments of a study. Wrong arguments and `--help` end the command as they do for a
/// verb.
fn study_args<T: clap::Parser>(args: &[String]) -> T {
    let command = parser::with_negative_values(T::command());
    let parsed =
        command.try_get_matches_from(args).and_then(|matches| T::from_arg_matches(&matches));
    parsed.unwrap_or_else(|error| say::parsers(&error))
}

/// A parser for the command line: a range of sizes up to `most` bytes, as `512..576`.
fn sizes_within(most: usize) -> impl Fn(&str) -> anyhow::Result<(usize, usize)> + Clone {
    move |text| {
        let ends =
            text.split_once("..").and_then(|(low, high)| low.parse().ok().zip(high.parse().ok()));
        let (low, high) =
            ends.context("a range of sizes is LOW..HIGH, two whole numbers of bytes")?;
        anyhow::ensure!(low < high, "no size is from {low} to below {high}");
        anyhow::ensure!(high <= most, "sizes go from 0 to {most}");
        Ok((low, high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small parameters: the test is of the workload, not of the heap.
    fn small(workload: &dyn Workload) -> Parameters {
        let mut small = workload.defaults();
        small.threads = small.threads.min(4);
        small.ops = small.ops.min(500);
        for (name, value) in [
            ("mib", "2"),
            ("largest_mib", "4"),
            ("slots", "50"),
            ("live_kib", "64"),
            ("depth", "6"),
            ("seconds", "0.2"),
            ("day_seconds", "0.2"),
        ] {
            if small.more.contains_key(name) {
                small.more.insert(name.to_owned(), value.to_owned());
            }
        }
        small
    }

    #[test]
    fn every_workload_repeats_itself_and_depends_on_its_seed() {
        // `misuse` damages the heap on purpose; in practice it has a process of its own.
        for workload in workloads().filter(|workload| workload.name() != "misuse") {
            let name = workload.name();
            let first = small(workload);
            let second = Parameters { seed: 2, ..first.clone() };
            let run = |parameters: &Parameters| {
                workload.run(parameters).unwrap_or_else(|error| panic!("{name}: {error:#}"))
            };
            let (one, again, other) = (run(&first), run(&first), run(&second));
            assert_eq!(one.checksum, again.checksum, "{name} did something else the second time");
            assert_eq!(one.ops, again.ops, "{name}");
            assert_eq!(one.failed_allocations, 0, "{name}");
            assert!(one.ops > 0 && one.ns > 0 && one.window.is_some(), "{name}: {one:?}");
            // These make no random choices: they only grow, or use one size.
            if !["grow", "false-sharing", "threadtest"].contains(&name) {
                assert_ne!(one.checksum, other.checksum, "{name} ignores its seed");
            }
            assert!(workload.memory().of(&one).is_some(), "{name} lacks its memory figure");
            if let Memory::Ratio { live, .. } = workload.memory() {
                assert!(one.more[live] > 1.0, "{name}: {one:?}");
            }
        }
    }

    #[test]
    fn every_row_of_the_table_runs_on_parameters_the_workload_knows() {
        for workload in workloads() {
            let known = workload.defaults().more;
            for row in Table::EACH.iter().flat_map(|table| table.rows(workload)) {
                assert!(row.more.keys().all(|name| known.contains_key(name)), "{row:?}");
            }
        }
    }

    #[test]
    fn a_range_is_two_sizes() {
        let parse = sizes_within(4096);
        assert_eq!(parse("512..4096").expect("a range"), (512, 4096));
        for wrong in ["512", "576..512", "512..512", "0..4097", "4294967296..4294967300"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_are_found_and_an_unknown_one_lists_them() {
        assert_eq!(find("larson").map(|entry| entry.name()).ok(), Some("larson"));
        let message = find("larsen").map(|_| ()).unwrap_err().to_string();
        assert!(message.contains("larsen") && message.contains("larson"), "{message}");
    }
}
