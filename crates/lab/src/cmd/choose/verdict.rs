//! The verdict in words. Its figures are those of the table, against the same reference.

use std::time::Duration;

use crate::contest::LEAST_ROUNDS;
use crate::output::table::time;
use crate::report::{Report, Row};
use crate::stats::{Ratio, SAME_SHARE};

/// What an allocator is judged by, and the words for it.
struct Metric {
    name: &'static str,
    runs: &'static str,
    less: &'static str,
    more: &'static str,
    even: &'static str,
}

const METRICS: [Metric; 2] = [
    Metric { name: "time", runs: "time_ns_runs", less: "faster", more: "slower", even: "as fast" },
    Metric { name: "memory", runs: "memory_runs", less: "leaner", more: "fatter", even: "as lean" },
];

/// Where the replay takes a smaller share of what the program ran than this, time is no reason to choose.
const LEAST_SHARE: f64 = SAME_SHARE;

/// The verdict: the choice first, then every allocator. `ran` is how long the program took while it was recorded.
pub(super) fn lines(report: &Report, ran: Duration) -> Vec<String> {
    let of_role =
        |role: &'static str| report.rows.iter().filter(move |row| text(row, "role") == Some(role));
    let at_reference = of_role("reference").next();
    let unsound: Vec<(&Row, String)> =
        of_role("subject").filter_map(|row| Some((row, unsound(row, at_reference)?))).collect();
    let subjects: Vec<&Row> = of_role("subject")
        .filter(|row| row.number("time_ratio").is_some())
        .filter(|row| unsound.iter().all(|(other, _)| other.subject != row.subject))
        .collect();
    let reference = report.parameters.get("reference").and_then(|v| v.as_str()).unwrap_or("it");
    let sure = report.parameters.get("confidence").and_then(|v| v.as_f64()).unwrap_or(0.0);
    let rounds = report.parameters.get("rounds").and_then(|v| v.as_u64()).unwrap_or(u64::MAX);
    let replay_ns = at_reference.and_then(|row| row.number("time_ns"));
    let share = replay_ns.map(|ns| ns / ran.as_nanos() as f64);
    let is_slight = share.is_some_and(|share| share < LEAST_SHARE);
    let mut lines = vec![if rounds < LEAST_ROUNDS as u64 {
        format!("no advice: it takes {LEAST_ROUNDS} complete rounds, and there are {rounds}")
    } else {
        choice(&subjects, reference, is_slight)
    }];
    let is_seen = |row: &Row| verdict(row, &METRICS[0]) == Some("more");
    if of_role("planted").next().is_some_and(|planted| !is_seen(planted)) {
        lines.push(
            "by time nothing is sure: the slowness that was planted to test this was not seen; raise \
             --rounds"
                .to_owned(),
        );
    }
    for row in subjects {
        lines.push(format!(
            "{} against {reference}: {}; {}",
            row.subject,
            part(row, &METRICS[0], sure),
            part(row, &METRICS[1], sure)
        ));
    }
    for (row, why) in unsound {
        lines.push(format!("no advice on {}: {why}", row.subject));
    }
    let part = match (replay_ns, share) {
        (Some(ns), Some(share)) => format!(
            " ({} under {reference}, {:.2} % of the {} that the program ran)",
            time(ns),
            100.0 * share,
            time(ran.as_nanos() as f64)
        ),
        _ => String::new(),
    };
    lines.push(format!(
        "a replay has the allocator's time alone{part}: the whole program gains less, `--check` or \
         `hectare compare -- CMD` measures it"
    ));
    lines
}

/// Why an allocator's figures are no reason to choose it, however good they are.
fn unsound(row: &Row, reference: Option<&Row>) -> Option<String> {
    let failed = |row: &Row| row.number("failed_allocations").unwrap_or(0.0);
    if let Some(why) = text(row, "broken") {
        Some(format!("it broke: {why}"))
    } else if let Some(how) = text(row, "other_work") {
        Some(format!("it did other work ({how})"))
    } else if failed(row) > reference.map_or(0.0, failed) {
        Some(format!("{} of its allocations failed", failed(row)))
    } else {
        None
    }
}

/// What to choose; by memory alone if the allocator's time `is_slight`.
fn choice(subjects: &[&Row], reference: &str, is_slight: bool) -> String {
    let [time, memory] = &METRICS;
    let (fast, lean) = (best(subjects, time), best(subjects, memory));
    if is_slight {
        return match &lean[..] {
            [] => format!("stay with {reference}: the program hardly uses its allocator"),
            lean => format!(
                "choose {} for memory; in time it hardly matters, for the program hardly uses its allocator",
                either(lean, Some(time))
            ),
        };
    }
    match (&fast[..], &lean[..]) {
        ([], []) => format!("stay with {reference}: nothing better is shown"),
        (fast, []) => format!(
            "choose {} for time; nobody is shown to be leaner than {reference}",
            either(fast, Some(memory))
        ),
        ([], lean) => format!(
            "choose {} for memory; nobody is shown to be faster than {reference}",
            either(lean, Some(time))
        ),
        (fast, lean) => {
            let both: Vec<&Row> = fast
                .iter()
                .filter(|row| lean.iter().any(|l| l.subject == row.subject))
                .copied()
                .collect();
            if both.is_empty() {
                format!(
                    "choose {} for time, {} for memory",
                    either(fast, Some(memory)),
                    either(lean, Some(time))
                )
            } else {
                format!(
                    "choose {}: none is shown to be faster here, and none leaner",
                    either(&both, None)
                )
            }
        }
    }
}

/// The best by a metric, and all that cannot be distinguished from it; empty when none is shown to
/// be better than the reference.
fn best<'a>(subjects: &[&'a Row], metric: &Metric) -> Vec<&'a Row> {
    let ratio = |row: &Row| row.number(&format!("{}_ratio", metric.name)).unwrap_or(f64::INFINITY);
    let mut better: Vec<&Row> =
        subjects.iter().filter(|row| verdict(row, metric) == Some("less")).copied().collect();
    better.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let Some(&first) = better.first() else { return better };
    better.retain(|row| row.subject == first.subject || !is_beaten(row, first, metric));
    better
}

/// Whether `first` is shown to be below `row`, round by round.
fn is_beaten(row: &Row, first: &Row, metric: &Metric) -> bool {
    let runs = |row: &Row| -> Option<Vec<f64>> {
        row.figures.get(metric.runs)?.as_array()?.iter().map(|value| value.as_f64()).collect()
    };
    let (Some(row), Some(first)) = (runs(row), runs(first)) else { return true };
    if row.len() != first.len() {
        return true;
    }
    let ratios: Vec<f64> = row.iter().zip(&first).map(|(a, b)| a / b).collect();
    Ratio::of(&ratios).is_none_or(|ratio| ratio.low > 1.0 + SAME_SHARE / 2.0)
}

/// What the choice by one metric costs in the other.
fn cost(row: &Row, other: &Metric) -> String {
    match verdict(row, other) {
        Some("more") => format!(" ({} by {:.1} %)", other.more, percent(row, other, "")),
        _ => String::new(),
    }
}

/// What one metric shows about an allocator, with an interval of confidence `sure`.
fn part(row: &Row, metric: &Metric, sure: f64) -> String {
    let (near, far) = (percent(row, metric, "_low"), percent(row, metric, "_high"));
    let sure = sure * 100.0;
    let range = format!("{sure:.0} % sure of {:.1} to {:.1} %", near.min(far), near.max(far));
    let by = |word: &str| format!("{word} by {:.1} % ({range})", percent(row, metric, ""));
    match verdict(row, metric) {
        Some("less") => by(metric.less),
        Some("more") => by(metric.more),
        Some("same") => format!("{} within {:.0} %", metric.even, SAME_SHARE * 100.0),
        _ => format!("not shown to be {} or {}", metric.less, metric.more),
    }
}

/// How far a ratio is from one, in per cent.
fn percent(row: &Row, metric: &Metric, end: &str) -> f64 {
    let ratio = row.number(&format!("{}_ratio{end}", metric.name)).unwrap_or(1.0);
    (ratio - 1.0).abs() * 100.0
}

/// The names, each with what it costs by the `other` metric.
fn either(rows: &[&Row], other: Option<&Metric>) -> String {
    let name = |row: &&Row| {
        let cost = other.map(|other| cost(row, other)).unwrap_or_default();
        format!("{}{cost}", row.subject)
    };
    rows.iter().map(name).collect::<Vec<_>>().join(" or ")
}

fn verdict<'a>(row: &'a Row, metric: &Metric) -> Option<&'a str> {
    text(row, &format!("{}_verdict", metric.name))
}

fn text<'a>(row: &'a Row, name: &str) -> Option<&'a str> {
    row.figures.get(name).and_then(|value| value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(subject: &str, time: f64, memory: f64) -> Row {
        let mut row = Row::new(subject, "x").with("role", "subject");
        for (metric, ratio) in [("time", time), ("memory", memory)] {
            let verdict = match ratio {
                ..0.99 => "less",
                1.01.. => "more",
                _ => "same",
            };
            row = row
                .with(&format!("{metric}_ratio"), ratio)
                .with(&format!("{metric}_ratio_low"), ratio * 0.99)
                .with(&format!("{metric}_ratio_high"), ratio * 1.01)
                .with(&format!("{metric}_verdict"), verdict);
        }
        row.with("time_ns_runs", vec![time; 5]).with("memory_runs", vec![memory; 5])
    }

    fn lines_of(rows: Vec<Row>) -> Vec<String> {
        let mut report = Report::new("choose");
        report.parameter("reference", "system");
        report.parameter("confidence", 0.75);
        report.rows = rows;
        lines(&report, Duration::from_millis(10))
    }

    #[test]
    fn the_choice_follows_what_is_shown() {
        let (even, fast) = (row("even", 1.0, 1.0), row("fast", 0.8, 1.2));
        let (lean, both) = (row("lean", 1.1, 0.7), row("both", 0.5, 0.5));
        assert!(lines_of(vec![even.clone()])[0].starts_with("stay with system"));
        let told = lines_of(vec![even.clone(), fast.clone()]);
        assert_eq!(
            told[0],
            "choose fast (fatter by 20.0 %) for time; nobody is shown to be leaner than system"
        );
        assert!(told[1].contains("as fast within 2 %; as lean within 2 %"), "{}", told[1]);
        let told = lines_of(vec![fast.clone(), lean.clone()]);
        assert_eq!(
            told[0],
            "choose fast (fatter by 20.0 %) for time, lean (slower by 10.0 %) for memory"
        );
        assert!(told[1].contains("faster by 20.0 % (75 % sure of"), "{}", told[1]);
        assert!(lines_of(vec![fast, lean, both])[0].starts_with("choose both:"));
    }

    #[test]
    fn time_is_no_reason_where_the_program_hardly_allocates() {
        let (fast, lean) = (row("fast", 0.5, 1.2), row("lean", 1.1, 0.7));
        for (ns, alone, both) in [
            (
                100_000.0,
                "stay with system: the program hardly",
                "choose lean (slower by 10.0 %) for memory; in time",
            ),
            (
                1e6,
                "choose fast (fatter by 20.0 %) for time",
                "choose fast (fatter by 20.0 %) for time, lean",
            ),
        ] {
            let reference = Row::new("system", "x").with("role", "reference").with("time_ns", ns);
            let told = lines_of(vec![reference.clone(), fast.clone()]);
            assert!(told[0].starts_with(alone), "{}", told[0]);
            let share = format!("{:.2} % of the 10.0 ms", ns / 1e5);
            assert!(told.last().unwrap().contains(&share), "{told:?}");
            let told = lines_of(vec![reference, fast.clone(), lean.clone()]);
            assert!(told[0].starts_with(both), "{}", told[0]);
        }
    }

    #[test]
    fn what_is_not_seen_of_the_planted_slowness_is_told() {
        for (ratio, is_told) in [(1.1, false), (1.0, true)] {
            let planted = row("system +10 %", ratio, 1.0).with("role", "planted");
            let told = lines_of(vec![row("fast", 0.8, 1.0), planted]);
            assert_eq!(told[1].starts_with("by time nothing is sure"), is_told, "{told:?}");
        }
    }

    #[test]
    fn those_that_cannot_be_told_apart_are_named_together() {
        let fast = row("fast", 0.80, 1.0);
        let near = row("near", 0.801, 1.0);
        let told = lines_of(vec![fast, near, row("behind", 0.9, 1.0)]);
        assert!(told[0].starts_with("choose fast or near for time"), "{}", told[0]);
        let fat = row("fat", 0.80, 1.5);
        let told = lines_of(vec![row("fast", 0.80, 1.0), fat]);
        assert!(
            told[0].starts_with("choose fast or fat (fatter by 50.0 %) for time"),
            "{}",
            told[0]
        );
    }

    #[test]
    fn who_did_not_do_the_work_is_not_advised() {
        let fast = row("fast", 0.5, 0.5);
        let reference = Row::new("system", "x").with("role", "reference");
        for (name, value, part) in [
            ("broken", "killed by SIGSEGV".into(), "it broke: killed by SIGSEGV"),
            ("other_work", "checksum differs".into(), "it did other work (checksum differs)"),
            ("failed_allocations", serde_json::Value::from(3), "3 of its allocations failed"),
        ] {
            let fast = fast.clone().with(name, value);
            let told = lines_of(vec![reference.clone(), fast]);
            assert!(told[0].starts_with("stay with system"), "{}", told[0]);
            assert_eq!(told[1], format!("no advice on fast: {part}"));
        }
        // What also fails under the reference is due to the trace, which asks for memory that is
        // not there.
        let reference = reference.with("failed_allocations", 3);
        let told = lines_of(vec![reference, fast.with("failed_allocations", 3)]);
        assert!(told[0].starts_with("choose fast:"), "{}", told[0]);
    }
}
