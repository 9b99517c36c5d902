//! The replay engine: a trace's operations on this process's `malloc`.
//!
//! To be filled by the trace work. `hectare child replay` calls [`run`] in a fresh process with the
//! subject preloaded; `compare` calls [`Ideal::of`] once per trace in the parent.

use std::path::Path;

use crate::bench::Outcome;

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

/// Everything a replay can be varied by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Order and pace.
    pub(crate) mode: Mode,
    /// Touching of memory.
    pub(crate) touch: Touch,
    /// A known slowness per operation, ns: the planted control. 0 for none.
    pub(crate) planted_ns: u64,
    /// Whether every operation is timed (percentiles); costs two clock reads each.
    pub(crate) latency: bool,
}

/// The three lines of Ideal over a trace: peaks, bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ideal {
    /// Peak of the live bytes as asked for.
    pub(crate) live_bytes: u64,
    /// Peak with each size rounded up to 16.
    pub(crate) rounded16_bytes: u64,
    /// The first, rounded up to whole pages.
    pub(crate) pages_bytes: u64,
}

impl Ideal {
    /// Reads the whole trace once.
    ///
    /// # Errors
    /// When the trace cannot be read.
    pub(crate) fn of(_path: &Path) -> anyhow::Result<Self> {
        anyhow::bail!("replaying is not built yet")
    }
}

/// Replays the trace once in this process.
///
/// # Errors
/// When the trace cannot be read or memory lost its content.
pub(crate) fn run(_path: &Path, _options: Options) -> anyhow::Result<Outcome> {
    anyhow::bail!("replaying is not built yet")
}
