//! Instructions, loads, stores, branches and simulated cache misses of a free and a malloc, counted by
//! callgrind.
//!
//! This command runs itself under valgrind for one subject and one range of sizes, and counts only
//! inside [`execute_timed`](super::execute_timed). The slots are full when that begins, and of the
//! harness it includes only the loop over the operations.

use std::collections::BTreeMap;

use anyhow::Context;

use super::Args;
use super::subjects::Who;
use crate::bench::callgrind;
use crate::report::{Report, Row};

/// The ranges to count unless one is asked for.
const RANGES: [(usize, usize); 4] = [(16, 80), (128, 192), (512, 576), (1, 2048)];

/// The first-level cache that is simulated: bytes, ways, bytes a line.
const FIRST_LEVEL: &str = "--D1=49152,12,64";

/// Counts every subject over every range.
///
/// # Errors
/// When valgrind is missing, or a run under it fails.
pub(super) fn count(args: &Args, whos: &[Who]) -> anyhow::Result<Report> {
    let mut report = Report::new("bench tlsf --callgrind");
    report.parameter("slots", args.slots as u64);
    report.parameter("ops", args.ops as u64);
    report.parameter("seed", args.seed);
    let ranges = args.range.map_or(RANGES.to_vec(), |range| vec![range]);
    for range in ranges {
        for who in whos {
            let totals = run(args, who, range)?;
            let per_op = |events: &[&str]| {
                let sum: u64 = events.iter().filter_map(|&event| totals.get(event)).sum();
                sum as f64 / args.ops as f64
            };
            report.rows.push(
                Row::new(who.name(), format!("[{}, {})", range.0, range.1))
                    .with("instructions", per_op(&["Ir"]))
                    .with("loads", per_op(&["Dr"]))
                    .with("stores", per_op(&["Dw"]))
                    .with("first_level_misses", per_op(&["D1mr", "D1mw"]))
                    .with("branches", per_op(&["Bc", "Bi"]))
                    .with("mispredicted_branches", per_op(&["Bcm", "Bim"])),
            );
        }
    }
    report.notes.push(
        "a free and a malloc, by valgrind's callgrind, the loop over the operations included; caches \
         and the branch predictor are simulated"
            .to_owned(),
    );
    Ok(report)
}

/// Runs one subject under callgrind. Returns the counts, by event.
fn run(
    args: &Args,
    who: &Who,
    (low, high): (usize, usize),
) -> anyhow::Result<BTreeMap<String, u64>> {
    let options = ["--toggle-collect=*execute_timed*", "--branch-sim=yes", FIRST_LEVEL];
    let profile = callgrind::profile_of_study(who.name(), &options, |command| {
        command
            .args(["bench", "tlsf", "--", "--rounds", "1", "--only", who.name()])
            .args(["--range", &format!("{low}..{high}"), "--seed", &args.seed.to_string()])
            .args(["--slots", &args.slots.to_string(), "--ops", &args.ops.to_string()])
            .args(["--arena-mib", &args.arena_mib.to_string()]);
        for library in &args.libraries {
            command.arg("--library").arg(library);
        }
    })?;
    totals(&profile)
}

/// The sums at the end of a callgrind profile, by the names of the events.
fn totals(text: &str) -> anyhow::Result<BTreeMap<String, u64>> {
    let after = |prefix: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(prefix))
            .with_context(|| format!("callgrind's output has no line `{prefix}`"))
    };
    let events = after("events:")?.split_whitespace();
    let sums = after("totals:")?.split_whitespace();
    events
        .zip(sums)
        .map(|(event, sum)| {
            Ok((event.to_owned(), sum.parse().with_context(|| format!("the sum `{sum}`"))?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_told_by_the_names_of_their_events() {
        let text = "version: 1\nevents: Ir Dr D1mr\nfn=a\n10 5 1 0\ntotals: 12 3 1\n";
        let sums = totals(text).expect("a profile");
        assert_eq!((sums["Ir"], sums["Dr"], sums["D1mr"]), (12, 3, 1));
        assert!(totals("events: Ir\n").is_err());
    }
}
