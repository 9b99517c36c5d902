//! Instructions and simulated cache misses of a free and an alloc, counted by callgrind.
//!
//! This command runs itself under valgrind for one pool and one range of sizes, and counts only
//! inside [`take_steps`](super::take_steps), when the slots are already full. Of the harness, that
//! includes the loop over the steps and the write of an object's first bytes. The cost of the
//! pool's calls themselves is reported beside it.

use std::path::Path;

use super::Args;
use crate::bench::callgrind;
use crate::report::{Report, Row};

/// A program takes some fifty times as long under callgrind, so this many times fewer steps are
/// done. A step's counts, unlike its time, hardly vary.
const FEWER: usize = 10;

/// Counts every pool over every range.
///
/// # Errors
/// When valgrind is missing, or a run under it fails.
pub(super) fn count(args: &Args) -> anyhow::Result<Report> {
    let mut report = Report::new("bench pools --callgrind");
    let steps = (args.steps / FEWER).max(1);
    report.parameter("slots", args.slots);
    report.parameter("steps", steps);
    report.parameter("seed", args.seed);
    for range in args.ranges() {
        for spec in &args.pools {
            let text = run(args, spec, range, steps)?;
            let counts = callgrind::parse(&text, Path::new("hectare"))?;
            let per_step = |count: u64| (count as f64 / steps as f64 * 100.0).round() / 100.0;
            report.rows.push(
                Row::new(spec, format!("{}..{}", range.0, range.1))
                    .with("alloc_instructions", per_step(spent_in(&text, "alloc")?))
                    .with("free_instructions", per_step(spent_in(&text, "free")?))
                    .with("pair_instructions", per_step(counts.instructions))
                    .with("first_level_misses", per_step(counts.first_level_misses))
                    .with("last_level_misses", per_step(counts.last_level_misses)),
            );
        }
    }
    report.notes.push(
        "a free, an alloc and a write of 8 bytes, by valgrind's callgrind, the harness's loop \
         included; the system's part is not counted; cache misses are simulated"
            .to_owned(),
    );
    Ok(report)
}

/// Runs one pool under callgrind. Returns the profile.
fn run(args: &Args, spec: &str, range: (usize, usize), steps: usize) -> anyhow::Result<String> {
    callgrind::profile_of_study(spec, &["--toggle-collect=*take_steps*"], |command| {
        command
            .args(["bench", "pools", "--", "--runs", "1", "--threads", "1"])
            .args(["--pools", spec, "--range", &format!("{}..{}", range.0, range.1)])
            .args(["--slots", &args.slots.to_string(), "--steps", &steps.to_string()])
            .args(["--seed", &args.seed.to_string()]);
    })
}

/// Instructions of a pool's method, with everything it calls: the line after `calls=` is the cost
/// of a call. The method's name is `<A as Pool>::method`, `<impl Pool for A>::method` after a
/// module, or `Pool::method` if the trait provides it.
fn spent_in(text: &str, method: &str) -> anyhow::Result<u64> {
    let ends = [format!(">::{method}"), format!("Pool::{method}")];
    let (mut is_it, mut is_cost) = (false, false);
    let mut instructions = 0;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("cfn=") {
            is_it = name.contains("Pool") && ends.iter().any(|end| name.ends_with(end));
        } else if line.starts_with("calls=") {
            is_cost = is_it;
        } else if std::mem::take(&mut is_cost) {
            let count = line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
            instructions += count.unwrap_or(0);
        }
    }
    anyhow::ensure!(instructions > 0, "callgrind saw no call of a pool's `{method}`");
    Ok(instructions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_calls_cost_is_summed_over_the_callers() {
        let text = "events: Ir Dr\nfn=fill\n10 5 1\ncfn=<A as Pool>::alloc\ncalls=2 0\n11 70 9\n\
                    cfn=<B>::alloc\ncalls=2 0\n11 8 9\nfn=other\ncfn=a::<impl Pool for A<S>>::alloc\n\
                    calls=1 0\n9 30 2\ncfn=a::Pool::free\ncalls=1 0\n12 40 1\n";
        assert_eq!(spent_in(text, "alloc").ok(), Some(100));
        assert_eq!(spent_in(text, "free").ok(), Some(40));
        assert!(spent_in(text, "read").is_err());
    }
}
