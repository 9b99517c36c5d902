//! The verdict in words. Its figures are those of the table, against the same reference.

use crate::contest::LEAST_ROUNDS;
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

/// The verdict: the choice first, then every allocator.
pub(super) fn lines(report: &Report) -> Vec<String> {
    let subjects: Vec<&Row> = report
        .rows
        .iter()
        .filter(|row| text(row, "role") == Some("subject") && row.number("time_ratio").is_some())
        .collect();
    let reference = report.parameters.get("reference").and_then(|v| v.as_str()).unwrap_or("it");
    let sure = report.parameters.get("confidence").and_then(|v| v.as_f64()).unwrap_or(0.0);
    let rounds = report.parameters.get("rounds").and_then(|v| v.as_u64()).unwrap_or(u64::MAX);
    let mut lines = vec![if rounds < LEAST_ROUNDS as u64 {
        format!("no advice: it takes {LEAST_ROUNDS} complete rounds, and there are {rounds}")
    } else {
        choice(&subjects, reference)
    }];
    for row in subjects {
        lines.push(format!(
            "{} against {reference}: {}; {}",
            row.subject,
            part(row, &METRICS[0], sure),
            part(row, &METRICS[1], sure)
        ));
    }
    lines.push(
        "a replay has the allocator's time alone: the whole program gains less, `--check` or \
         `hectare compare -- CMD` measures it"
            .to_owned(),
    );
    lines
}

fn choice(subjects: &[&Row], reference: &str) -> String {
    let (fast, lean) = (best(subjects, &METRICS[0]), best(subjects, &METRICS[1]));
    match (&fast[..], &lean[..]) {
        ([], []) => format!("stay with {reference}: nothing better is shown"),
        (fast, []) => {
            let cost = cost(fast[0], &METRICS[1]);
            format!("choose {} for time{cost}; nobody is leaner than {reference}", either(fast))
        }
        ([], lean) => {
            let cost = cost(lean[0], &METRICS[0]);
            format!("choose {} for memory{cost}; nobody is faster than {reference}", either(lean))
        }
        (fast, lean) => {
            let both: Vec<&Row> = fast
                .iter()
                .filter(|row| lean.iter().any(|l| l.subject == row.subject))
                .copied()
                .collect();
            if both.is_empty() {
                format!(
                    "choose {} for time{}, {} for memory{}",
                    either(fast),
                    cost(fast[0], &METRICS[1]),
                    either(lean),
                    cost(lean[0], &METRICS[0])
                )
            } else {
                format!("choose {}: none is faster here, and none leaner", either(&both))
            }
        }
    }
}

/// The best by a metric, and all that cannot be told from it; empty when none is shown to be better
/// than the reference.
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

/// What is shown of an allocator by one metric, with an interval that is `sure` so far.
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

/// How far a ratio is from one, per cent.
fn percent(row: &Row, metric: &Metric, end: &str) -> f64 {
    let ratio = row.number(&format!("{}_ratio{end}", metric.name)).unwrap_or(1.0);
    (ratio - 1.0).abs() * 100.0
}

fn either(rows: &[&Row]) -> String {
    rows.iter().map(|row| row.subject.as_str()).collect::<Vec<_>>().join(" or ")
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
        lines(&report)
    }

    #[test]
    fn the_choice_follows_what_is_shown() {
        let (even, fast) = (row("even", 1.0, 1.0), row("fast", 0.8, 1.2));
        let (lean, both) = (row("lean", 1.1, 0.7), row("both", 0.5, 0.5));
        assert!(lines_of(vec![even.clone()])[0].starts_with("stay with system"));
        let told = lines_of(vec![even.clone(), fast.clone()]);
        assert_eq!(
            told[0],
            "choose fast for time (fatter by 20.0 %); nobody is leaner than system"
        );
        assert!(told[1].contains("as fast within 2 %; as lean within 2 %"), "{}", told[1]);
        let told = lines_of(vec![fast.clone(), lean.clone()]);
        assert!(told[0].starts_with("choose fast for time") && told[0].contains("lean for memory"));
        assert!(told[1].contains("faster by 20.0 % (75 % sure of"), "{}", told[1]);
        assert!(lines_of(vec![fast, lean, both])[0].starts_with("choose both:"));
    }

    #[test]
    fn those_that_cannot_be_told_apart_are_named_together() {
        let fast = row("fast", 0.80, 1.0);
        let near = row("near", 0.801, 1.0);
        let told = lines_of(vec![fast, near, row("behind", 0.9, 1.0)]);
        assert!(told[0].starts_with("choose fast or near for time"), "{}", told[0]);
    }
}
