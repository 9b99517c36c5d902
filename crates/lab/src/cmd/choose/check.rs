//! `hectare choose --check`: whether the program itself agrees with its replay.

use crate::cmd::Exit;
use crate::cmd::contesting::ContestArgs;
use crate::contest::{Case, Looks};
use crate::report::{Report, Row};
use crate::runner::Given;

/// How often the replay and the program itself agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Agreement {
    /// Both show a difference, in the same direction.
    same: u32,
    /// Both show one, in opposite directions.
    opposite: u32,
    /// The program shows one, the replay none.
    missed: u32,
}

/// Measures `program` and compares the verdicts with those of `replayed`. The recording read
/// `input`.
///
/// # Errors
/// As [`ContestArgs::hold`], and when the program contradicts the replay.
pub(super) fn run(
    contest: &ContestArgs,
    program: Case,
    replayed: &Report,
    input: Given,
) -> anyhow::Result<()> {
    let mut contest = contest.clone();
    // The files asked for hold the advice; the check is reported in words.
    contest.outputs = Default::default();
    contest.claims.clear();
    let mut found = Agreement::default();
    contest.hold_and("choose --check", vec![program], Looks::default(), |report| {
        let (mut lines, agreement) = compare(replayed, report);
        if input == Given::Pipe {
            lines.push(
                "the program had no standard input here: it was recorded with a pipe, which can be read once \
                 (a file can be read by all: `< FILE`)"
                    .to_owned(),
            );
        }
        report.notes.splice(0..0, lines);
        found = agreement;
    })?;
    if found.opposite > 0 {
        let message = "the program contradicts its replay in the lines marked OPPOSITE".to_owned();
        return Err(Exit { code: 3, message }.into());
    }
    Ok(())
}

/// One line for every difference that the program shows.
fn compare(replayed: &Report, program: &Report) -> (Vec<String>, Agreement) {
    let mut lines = Vec::new();
    let mut agreement = Agreement::default();
    for row in program.rows.iter().filter(|row| is_subject(row)) {
        let Some(other) = replayed.rows.iter().find(|r| is_subject(r) && r.subject == row.subject)
        else {
            continue;
        };
        for metric in ["time", "memory"] {
            let (Some(shown), Some(ratio)) = (verdict(row, metric), ratio(row, metric)) else {
                continue;
            };
            if !["less", "more"].contains(&shown) {
                continue;
            }
            let (said, count) = match verdict(other, metric) {
                Some(said) if said == shown => ("the same direction", &mut agreement.same),
                Some("less" | "more") => ("OPPOSITE", &mut agreement.opposite),
                Some("same") => ("no difference", &mut agreement.missed),
                _ => ("nothing shown", &mut agreement.missed),
            };
            *count += 1;
            lines.push(format!(
                "{}, {metric}: program {ratio:.3}, replay {:.3}: {said}",
                row.subject,
                self::ratio(other, metric).unwrap_or(f64::NAN)
            ));
        }
    }
    lines.push(format!(
        "differences that the program shows: in the same direction in the replay {}, in the opposite \
         {}, nothing shown there {}",
        agreement.same, agreement.opposite, agreement.missed
    ));
    (lines, agreement)
}

fn is_subject(row: &Row) -> bool {
    row.text("role") == Some("subject")
}

fn verdict<'a>(row: &'a Row, metric: &str) -> Option<&'a str> {
    row.text(&format!("{metric}_verdict"))
}

fn ratio(row: &Row, metric: &str) -> Option<f64> {
    row.number(&format!("{metric}_ratio"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_differences_that_the_program_shows_are_checked() {
        let report = |verdicts: [(&str, &str); 3]| {
            let mut report = Report::new("x");
            for (subject, verdict) in verdicts {
                report.rows.push(
                    Row::new(subject, "w")
                        .with("role", "subject")
                        .with("time_ratio", 0.9)
                        .with("time_verdict", verdict),
                );
            }
            report
        };
        let program = report([("a", "less"), ("b", "more"), ("c", "undecided")]);
        let replay = report([("a", "less"), ("b", "less"), ("c", "more")]);
        let (lines, agreement) = compare(&replay, &program);
        assert_eq!(agreement, Agreement { same: 1, opposite: 1, missed: 0 });
        assert!(lines[1].contains("OPPOSITE"), "{}", lines[1]);
        let (_, agreement) =
            compare(&report([("a", "same"), ("b", "more"), ("c", "less")]), &program);
        assert_eq!(agreement, Agreement { same: 1, opposite: 0, missed: 1 });
    }
}
