//! Instructions and simulated cache misses of a free and an alloc, counted by callgrind.
//!
//! This command runs itself under valgrind for one pool and one range of sizes, once with so many
//! steps and once with twice as many: what the second run counted more belongs to the steps alone.
//! Of the harness, the loop over the steps is in it, and the write of an object's first bytes.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, ensure};

use super::Args;
use crate::bench::callgrind::{self, Counts};
use crate::report::{Report, Row};
use crate::scratch::Scratch;

/// Under callgrind a program takes some fifty times as long.
const FEWER: usize = 10;

/// Counts every pool over every range.
///
/// # Errors
/// When valgrind is missing, or a run under it fails.
pub(super) fn count(args: &Args) -> anyhow::Result<Report> {
    ensure!(
        callgrind::is_here(),
        "valgrind is needed to count instructions, and cannot be started"
    );
    let mut report = Report::new("bench pools --callgrind");
    let steps = (args.steps / FEWER).max(1);
    report.parameter("slots", args.slots);
    report.parameter("steps", steps);
    report.parameter("seed", args.seed);
    for range in args.ranges() {
        for spec in &args.pools {
            let (less, more) = (run(args, spec, range, steps)?, run(args, spec, range, 2 * steps)?);
            let per_pair = |part: fn(&Counts) -> u64| {
                let each = (part(&more) as f64 - part(&less) as f64) / steps as f64;
                (each * 100.0).round() / 100.0
            };
            report.rows.push(
                Row::new(spec, format!("{}..{}", range.0, range.1))
                    .with("pair_instructions", per_pair(|counts| counts.instructions))
                    .with("first_level_misses", per_pair(|counts| counts.first_level_misses))
                    .with("last_level_misses", per_pair(|counts| counts.last_level_misses)),
            );
        }
    }
    report.notes.push(
        "a free, an alloc and a write of 8 bytes, by valgrind's callgrind: the difference of a run \
         and one twice as long, the harness's loop included; cache misses are simulated"
            .to_owned(),
    );
    Ok(report)
}

fn run(args: &Args, spec: &str, range: (usize, usize), steps: usize) -> anyhow::Result<Counts> {
    let scratch = Scratch::new()?;
    let file = scratch.path().join("callgrind.out");
    let output = callgrind::valgrind(&file)?
        .args(["bench", "pools", "--", "--runs", "1", "--threads", "1"])
        .args(["--pools", spec, "--range", &format!("{}..{}", range.0, range.1)])
        .args(["--slots", &args.slots.to_string(), "--steps", &steps.to_string()])
        .args(["--seed", &args.seed.to_string()])
        .stdin(Stdio::null())
        .output()
        .context("starting valgrind")?;
    ensure!(
        output.status.success(),
        "{spec} under valgrind ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("no word")
    );
    let text = std::fs::read_to_string(&file).context("reading callgrind's output")?;
    callgrind::parse(&text, Path::new("hectare"))
}
