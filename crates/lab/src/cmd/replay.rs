//! `hectare replay`: traces on every allocator, with the latencies of single operations.

use std::path::PathBuf;

use super::compare::trace_cases;
use super::contesting::ContestArgs;
use crate::contest::{Looks, Work};
use crate::replay::{Mode, Touch};
use crate::within::within;

/// The arguments of `hectare replay`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The traces
    #[arg(required = true, value_name = "FILE.hxt")]
    traces: Vec<PathBuf>,
    #[command(flatten)]
    contest: ContestArgs,
    /// Order and pace
    #[arg(long, value_enum, default_value = "speed")]
    mode: Mode,
    /// What is written into each block
    #[arg(long, value_enum, default_value = "page")]
    touch: Touch,
    /// Single operations kept in the record, for a plot of latency over time: the slowest and an
    /// even sample of the others
    #[arg(long, value_name = "N", default_value_t = 1500, value_parser = within(0_usize, 1_000_000))]
    points: usize,
}

/// Runs the verb.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    args.contest.refuse_ignore_failure()?;
    let mut cases = trace_cases(&args.traces, args.mode, args.touch)?;
    for case in &mut cases {
        if let Work::Trace { points, .. } = &mut case.work {
            *points = args.points;
        }
    }
    args.contest.hold("replay", cases, Looks { latency: true, map: true })
}
