//! The replay engine: a trace's operations on this process's `malloc`.
//!
//! ```text
//!  trace ──▶ plan: operations in arrays ──▶ engine: the calls, one thread a lane ──▶ Outcome
//!              (no clock runs)                 (nothing but the calls)
//!              └────────────── again for every segment of 4 M operations ──────┘
//! ```
//!
//! `hectare child replay` calls [`run`] in a fresh process with the subject preloaded. The calls go
//! through the dynamic linker, so the preloaded library decides. The harness's own memory comes
//! from its own allocator (see `main.rs`) and is resident before a window opens.
//!
//! A trace of any length is replayed in the memory of one segment. If it has several segments, its
//! threads are started anew in each, and the record says so (`segments`).

pub(crate) mod clock;
mod engine;
mod latency;
pub(crate) mod occupancy;
mod plan;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, ensure};
use hectare_trace::{Summary, Trace};

use crate::bench::Outcome;
use crate::measure::{Stretch, Window, WindowRecord};
use crate::say::counted;
use clock::Rate;
use engine::{Counts, Run, Table};
use latency::Latencies;
use plan::{Planner, SEGMENT_OPS, Wanted};

/// How a trace is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Mode {
    /// Each recorded thread on a thread of its own, as fast as the order across threads allows.
    Speed,
    /// At the recorded times; latency counts from the intended start.
    Paced,
    /// One thread, in recorded order.
    Serial,
}

/// What is written into a block after it was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Touch {
    /// Nothing.
    None,
    /// One byte per cache line.
    Line,
    /// One byte per page.
    Page,
    /// Every byte.
    Full,
}

/// The parameters of a replay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Order and pace.
    pub(crate) mode: Mode,
    /// Touching of memory.
    pub(crate) touch: Touch,
    /// A known slowness per operation, ns: the planted control. 0 for none.
    pub(crate) planted_ns: u64,
    /// Whether every operation is timed (percentiles). This costs two clock reads each.
    pub(crate) latency: bool,
    /// How many single operations are reported ([`Outcome::points`]); only with `latency`.
    pub(crate) points: usize,
}

/// The three versions of Ideal for a trace: peaks, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ideal {
    /// Peak of the live bytes as asked for.
    pub(crate) live_bytes: u64,
    /// Peak with each size rounded up to 16.
    pub(crate) rounded16_bytes: u64,
    /// The peak of the live bytes, rounded up to whole pages.
    pub(crate) pages_bytes: u64,
}

impl Ideal {
    /// Ideal's peaks for a whole trace.
    pub(crate) fn of(summary: &Summary) -> Self {
        Self {
            live_bytes: summary.peak_bytes,
            rounded16_bytes: summary.peak_rounded_bytes,
            // A trace can ask for more than there are addresses.
            pages_bytes: summary
                .peak_bytes
                .checked_next_multiple_of(crate::machine::page_bytes())
                .unwrap_or(u64::MAX),
        }
    }
}

/// What a trace holds, if it can be replayed.
///
/// # Errors
/// When the trace cannot be read, part of it is damaged, or it allocates nothing.
pub(crate) fn summary(path: &Path) -> anyhow::Result<Summary> {
    let trace = open(path)?;
    let named = || path.display().to_string();
    let summary = Summary::of(&trace).with_context(named)?;
    trace.check().with_context(named)?;
    ensure!(
        summary.objects > 0,
        "{} holds no allocation: there is nothing to replay",
        path.display()
    );
    Ok(summary)
}

/// Opens a trace for replaying.
fn open(path: &Path) -> anyhow::Result<Trace> {
    Trace::open(path).with_context(|| path.display().to_string())
}

/// Replays the trace once in this process.
///
/// # Errors
/// When the trace cannot be read or is damaged, or memory lost its content.
pub(crate) fn run(path: &Path, options: Options) -> anyhow::Result<Outcome> {
    run_in_segments(path, options, SEGMENT_OPS)
}

fn run_in_segments(path: &Path, options: Options, most_ops: u64) -> anyhow::Result<Outcome> {
    let trace = open(path)?;
    let paced = options.mode == Mode::Paced;
    let wanted = Wanted { serial: options.mode == Mode::Serial, starts: paced || options.latency };
    let mut planner = Planner::new(&trace, wanted);
    let rate = Rate::measure();
    let mut table = Table::default();
    let mut latencies = Latencies::new(rate, options.points);
    let mut counts = Counts::default();
    let mut outcome = Outcome::default();
    let mut memory = Memory::default();
    let (mut segments, mut lanes) = (0_u64, 0);

    while let Some(segment) =
        planner.segment(most_ops).with_context(|| path.display().to_string())?
    {
        if segments == 0 && segment.ops < most_ops {
            // The whole trace has been read, so a damaged one is refused before anything is
            // measured.
            trace.check().with_context(|| path.display().to_string())?;
        }
        table.grow(segment.slots);
        let timed = options.latency || paced;
        let run = Run::new(&segment, &table, options, timed, rate);
        let window = memory.open()?;
        let start = Instant::now();
        let segment_counts = run.execute()?;
        outcome.ns += start.elapsed().as_nanos() as u64;
        memory.close(window)?;
        ensure!(segment_counts.ops == segment.ops, "not every operation was executed");
        counts.add(segment_counts);
        let ticks = run.into_latencies();
        latencies.add(&segment, &ticks);
        segments += 1;
        lanes = lanes.max(segment.lanes.len());
    }
    trace.check().with_context(|| path.display().to_string())?;
    ensure!(segments > 0, "{} holds no operation to replay", path.display());
    ensure!(counts.corrupt == 0, "{} lost content", counted(counts.corrupt, "block"));

    let totals = planner.totals();
    let ns = |ticks: u64| (ticks as f64 * rate.ns_per_tick).round();
    outcome.ops = counts.ops;
    outcome.checksum = totals.hash;
    outcome.failed_allocations = counts.failed;
    outcome.live_peak_bytes = totals.live_peak_bytes;
    outcome.window = memory.record;
    outcome.latencies = latencies.records();
    outcome.points = latencies.points();
    let figures = [
        ("threads_count", lanes as f64),
        ("segments_count", segments as f64),
        ("skipped_ops_count", totals.skipped_ops as f64),
        ("live_mean_bytes", totals.live_mean_bytes().round()),
        // Sums over the threads: the time of their own work, and the time they waited for others.
        ("busy_ns", ns(counts.elapsed_ticks.saturating_sub(counts.waiting_ticks))),
        ("waiting_ns", ns(counts.waiting_ticks)),
        ("clock_ns", rate.cost_ns),
    ];
    outcome.more.extend(figures.map(|(name, value)| (name.to_owned(), value)));
    Ok(outcome)
}

/// The windows of all segments as one. When a later window opens, resident memory includes what the
/// subject held before and what decoding added to the harness. The latter raises the baseline.
#[derive(Default)]
struct Memory {
    record: Option<WindowRecord>,
    /// Resident when the last window closed, bytes.
    closed_bytes: u64,
    /// The part of the resident memory that is the harness's, bytes.
    baseline_bytes: u64,
}

impl Memory {
    fn open(&mut self) -> anyhow::Result<Window> {
        let resident = crate::measure::resident_bytes()?;
        if self.record.is_none() {
            self.baseline_bytes = resident;
        } else {
            self.baseline_bytes =
                (self.baseline_bytes + resident).saturating_sub(self.closed_bytes);
        }
        Window::open()
    }

    fn close(&mut self, window: Window) -> anyhow::Result<()> {
        let mut now = window.close()?;
        self.closed_bytes = crate::measure::resident_bytes()?;
        let above = now.baseline_bytes.saturating_sub(self.baseline_bytes);
        now.peak_bytes += above;
        let baseline_bytes = self.baseline_bytes;
        let stretch = Stretch { start_ns: now.start_ns, end_ns: now.end_ns, baseline_bytes };
        now.stretches.push(stretch);
        match &mut self.record {
            None => self.record = Some(now),
            Some(record) => {
                record.stretches.push(stretch);
                record.end_ns = now.end_ns;
                record.peak_bytes = record.peak_bytes.max(now.peak_bytes);
                record.cpu_ns += now.cpu_ns;
                record.faults += now.faults;
                record.switches += now.switches;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
