//! `hectare choose`: records a program, replays it on every allocator found, and says in words
//! which is faster and which leaner, by how much, and how sure that is.

use std::ffi::OsString;
use std::path::PathBuf;

use super::compare::{program_case, trace_case};
use super::contesting::ContestArgs;
use super::record::{self, Options};
use crate::replay::{Mode, Touch};
use crate::report::{Report, Row};

/// What `hectare choose` can be given.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    contest: ContestArgs,
    /// Keep the trace in this file
    #[arg(long, value_name = "F.hxt")]
    keep: Option<PathBuf>,
    /// The program with its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

/// A trace that is removed when the verb is done.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Runs the verb.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let words: Vec<OsString> = args.command.iter().map(OsString::from).collect();
    let name = program_case(&words)?.name;
    let temporary = std::env::temp_dir().join(format!("hectare-{}.hxt", std::process::id()));
    let path = args.keep.clone().unwrap_or_else(|| temporary.clone());
    let _remove = args.keep.is_none().then(|| Temporary(temporary));
    record::record(&path, &args.command, Options { all: false, tick_ns: 100 })?;
    let mut case = trace_case(&path, Mode::Speed, Touch::Page)?;
    case.name = name;
    args.contest.hold_and("choose", vec![case], false, |report| {
        let lines = verdict(report);
        report.notes.splice(0..0, lines);
    })
}

/// The verdict in words: the choice first, then every allocator.
fn verdict(report: &Report) -> Vec<String> {
    let text =
        |row: &Row, name: &str| row.figures.get(name).and_then(|v| v.as_str()).map(str::to_owned);
    let subjects: Vec<&Row> = report
        .rows
        .iter()
        .filter(|row| text(row, "role").as_deref() == Some("subject"))
        .filter(|row| row.number("time_ratio").is_some())
        .collect();
    let best = |metric: &str| {
        let ratio = |row: &Row| row.number(&format!("{metric}_ratio")).unwrap_or(f64::INFINITY);
        let shown =
            |row: &&&Row| text(row, &format!("{metric}_verdict")).as_deref() == Some("less");
        subjects.iter().filter(shown).min_by(|a, b| ratio(a).total_cmp(&ratio(b))).copied()
    };
    let reference = report.parameters.get("reference").and_then(|v| v.as_str()).unwrap_or("it");
    let mut lines = vec![match (best("time"), best("peak")) {
        (Some(fast), Some(lean)) if fast.subject == lean.subject => {
            format!("choose {}: it is both the fastest and the leanest here", fast.subject)
        }
        (Some(fast), Some(lean)) => {
            format!("choose {} for time, {} for memory", fast.subject, lean.subject)
        }
        (Some(fast), None) => {
            format!("choose {} for time; nobody is leaner than {reference}", fast.subject)
        }
        (None, Some(lean)) => {
            format!("choose {} for memory; nobody is faster than {reference}", lean.subject)
        }
        (None, None) => format!("stay with {reference}: nothing better is shown"),
    }];
    for row in subjects {
        let part = |metric: &str, less: &str, more: &str| {
            let ratio =
                |end: &str| row.number(&format!("{metric}_ratio{end}")).unwrap_or(1.0) - 1.0;
            let percent = |share: f64| share.abs() * 100.0;
            let (near, far) = (percent(ratio("_low")), percent(ratio("_high")));
            let range = format!("95 % sure of {:.1} to {:.1} %", near.min(far), near.max(far));
            match text(row, &format!("{metric}_verdict")).as_deref() {
                Some("less") => format!("{less} by {:.1} % ({range})", percent(ratio(""))),
                Some("more") => format!("{more} by {:.1} % ({range})", percent(ratio(""))),
                _ => format!("no {less} or {more} as far as can be shown"),
            }
        };
        lines.push(format!(
            "{} against {reference}: {}; {}",
            row.subject,
            part("time", "faster", "slower"),
            part("peak", "leaner", "fatter")
        ));
    }
    lines.push(
        "a replay has the allocator's time alone: the whole program gains less, `hectare compare \
         -- CMD` measures it"
            .to_owned(),
    );
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(subject: &str, time: f64, peak: f64) -> Row {
        let mut row = Row::new(subject, "x").with("role", "subject");
        for (metric, ratio) in [("time", time), ("peak", peak)] {
            let verdict = if ratio < 0.99 {
                "less"
            } else if ratio > 1.01 {
                "more"
            } else {
                "same"
            };
            row = row
                .with(&format!("{metric}_ratio"), ratio)
                .with(&format!("{metric}_ratio_low"), ratio * 0.99)
                .with(&format!("{metric}_ratio_high"), ratio * 1.01)
                .with(&format!("{metric}_verdict"), verdict);
        }
        row
    }

    #[test]
    fn the_choice_follows_what_is_shown() {
        let mut report = Report::new("choose");
        report.parameter("reference", "system");
        report.rows = vec![row("same", 1.0, 1.0)];
        assert!(verdict(&report)[0].starts_with("stay with system"));
        report.rows.push(row("fast", 0.8, 1.2));
        assert!(verdict(&report)[0].contains("choose fast for time; nobody is leaner"));
        report.rows.push(row("lean", 1.1, 0.7));
        assert_eq!(verdict(&report)[0], "choose fast for time, lean for memory");
        assert!(verdict(&report)[2].contains("faster by 20.0 %"));
        report.rows.push(row("both", 0.5, 0.5));
        assert!(verdict(&report)[0].starts_with("choose both"));
    }
}
