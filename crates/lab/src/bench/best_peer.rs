//! Compares every subject with the best peer of each row.
//!
//! The table that `hectare bench all`, `bench published` and `compare --programs` end with. It has,
//! for each workload, the peer with the least time and the peer with the least memory, and every
//! subject's ratio to them; then the geometric means over the rows. Ours (`hectare` and names that
//! begin with it) are compared with the best of the others. A peer is compared with the best of the
//! peers, itself included, so its ratio is never below 1.
//!
//! The ratio is the median over rounds of the paired ratio to the peer with the least median.
//! Rounds of different records cannot be paired: between records it is the ratio of the medians,
//! without an interval. Beside it is what the reference showed against itself in that row: a
//! difference no larger than that is none.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use indexmap::IndexSet;

use crate::contest::analysis::ALL_CASES;
use crate::report::{Report, Row};
use crate::stats::{self, Ratio};

/// The figure of a row that says which record it was read from.
const FROM: &str = "from";

/// The parameter of the report that holds the summary: subject → name of the mean → value.
const MEANS: &str = "geometric_means_to_best_peer";

/// What is compared: the figure of a row, its per-round values if they were kept, and the name of
/// the ratio to be added.
struct Judged {
    title: &'static str,
    figure: &'static str,
    runs: &'static str,
    ratio: &'static str,
    /// The name of the figure that names the peer.
    best_peer: &'static str,
    /// The noise floor, in the row of the reference against itself.
    noise: &'static str,
}

const JUDGED: [Judged; 2] = [
    Judged {
        title: "time",
        figure: "time_ns",
        runs: "time_ns_runs",
        ratio: "time_to_best_peer_ratio",
        best_peer: "time_best_peer",
        noise: "time_noise_floor_ratio",
    },
    Judged {
        title: "memory",
        figure: "memory",
        runs: "memory_runs",
        ratio: "memory_to_best_peer_ratio",
        best_peer: "memory_best_peer",
        noise: "memory_noise_floor_ratio",
    },
];

/// Whether a subject is one of ours.
fn is_ours(subject: &str) -> bool {
    subject.starts_with("hectare")
}

/// Whether a row is a measured subject on one workload: neither a control nor a summary, and not
/// broken in any round.
fn is_measured(row: &Row) -> bool {
    row.figures.contains_key("time_ns")
        && !row.is_broken()
        && row.workload != ALL_CASES
        && (has_role(row, "subject") || has_role(row, "reference"))
}

/// Whether the subject of a measured row did the work that the reference did: an allocation that
/// failed took no time and no memory.
fn did_the_work(report: &Report, row: &Row) -> bool {
    let failed = |row: &Row| row.number("failed_allocations").unwrap_or(0.0);
    let mut references = measured(report, &row.workload).filter(|row| has_role(row, "reference"));
    let failed_more = references.next().is_some_and(|reference| failed(row) > failed(reference));
    !failed_more && !row.figures.contains_key("other_work")
}

/// Whether a row is the reference against itself on one workload.
fn is_again(row: &Row) -> bool {
    row.workload != ALL_CASES && has_role(row, "again")
}

fn has_role(row: &Row, role: &str) -> bool {
    row.text("role") == Some(role)
}

/// Merges several reports into one, in the order given. A later row replaces an earlier one of the
/// same subject and workload.
///
/// # Errors
/// When a file is not a record of `verb`, or comes from a different machine than the first.
pub(crate) fn merged(verb: &str, files: &[PathBuf]) -> anyhow::Result<Report> {
    let mut report = Report::new(verb);
    for (nth, file) in files.iter().enumerate() {
        let name = file.display();
        let part = Report::read(file)?;
        // A record of a single workload may have other parameters, which the names of its rows do
        // not show.
        anyhow::ensure!(
            part.verb == report.verb,
            "{name} is a record of `{}`, not of `{verb}`",
            part.verb
        );
        if nth == 0 {
            report.machine = part.machine;
        } else {
            let differences = report.machine.differences(&part.machine);
            anyhow::ensure!(
                differences.is_empty(),
                "{name} was measured on another machine than {}, or with other settings of it: {}",
                files[0].display(),
                differences.join(", ")
            );
        }
        let single = |row: &Row| row.workload != ALL_CASES;
        let wanted = |row: &Row| {
            single(row) && ["subject", "reference", "again"].iter().any(|role| has_role(row, role))
        };
        for mut row in part.rows.into_iter().filter(wanted) {
            // A row of a merged record already says which record it comes from.
            let from = match row.text(FROM) {
                Some(before) => format!("{name}: {before}"),
                None => name.to_string(),
            };
            row.figures.insert(FROM.to_owned(), from.into());
            report
                .rows
                .retain(|known| (&known.subject, &known.workload) != (&row.subject, &row.workload));
            report.rows.push(row);
        }
        report.notes.push(format!("from `{}`", part.command));
        report.notes.extend(part.notes);
    }
    Ok(report)
}

/// Adds to each measured row its ratios to the best peer, and to the report the geometric means of
/// each subject.
pub(crate) fn judge(report: &mut Report) {
    // Rows of a record may have been judged before, beside other peers.
    let of_judgement =
        |name: &str| JUDGED.iter().any(|it| name.starts_with(it.ratio) || name == it.best_peer);
    for row in &mut report.rows {
        row.figures.retain(|name, _| !of_judgement(name));
    }
    let mut means: BTreeMap<(String, &'static str), Vec<f64>> = BTreeMap::new();
    for judged in &JUDGED {
        let mut ratios = Vec::new();
        for workload in workloads(report) {
            let rows: Vec<&Row> =
                measured(report, &workload).filter(|row| did_the_work(report, row)).collect();
            let peers = rows.iter().filter(|row| !is_ours(&row.subject));
            let value = |row: &Row| row.number(judged.figure).filter(|value| *value > 0.0);
            let best = peers
                .filter(|row| value(row).is_some())
                .min_by(|a, b| value(a).partial_cmp(&value(b)).expect("positive numbers"));
            let Some(best) = best else { continue };
            for &row in &rows {
                if let Some((ratio, ends)) = paired(row, best, judged) {
                    let best = best.subject.clone();
                    ratios.push((row.subject.clone(), workload.clone(), ratio, ends, best));
                }
            }
        }
        for (subject, workload, ratio, ends, best) in ratios {
            means.entry((subject.clone(), judged.ratio)).or_default().push(ratio);
            let row = report
                .rows
                .iter_mut()
                .find(|row| row.subject == subject && row.workload == workload && is_measured(row));
            let row = row.expect("the ratio was made from this row");
            row.figures.insert(judged.ratio.to_owned(), ratio.into());
            if let Some([low, high]) = ends {
                row.figures.insert(format!("{}_low", judged.ratio), low.into());
                row.figures.insert(format!("{}_high", judged.ratio), high.into());
            }
            row.figures.insert(judged.best_peer.to_owned(), best.into());
        }
    }
    let rows = workloads(report).len();
    let mut summary = serde_json::Map::new();
    for ((subject, name), ratios) in means {
        // A subject that broke in a row, or left out work, has no mean over all rows.
        let Some(mean) = stats::geometric_mean(&ratios).filter(|_| ratios.len() == rows) else {
            report.notes.push(format!(
                "{subject} has {} of {rows} rows: no geometric mean of {name}",
                ratios.len()
            ));
            continue;
        };
        let worst = ratios.iter().fold(0.0_f64, |worst, &ratio| worst.max(ratio));
        let of_subject =
            summary.entry(subject).or_insert_with(|| serde_json::Value::Object(Default::default()));
        of_subject[name] = mean.into();
        of_subject[format!("worst_{name}")] = worst.into();
    }
    report.parameter(MEANS, serde_json::Value::Object(summary));
}

/// A geometric mean of a subject; or its worst row, if the name begins with `worst_`.
fn mean(report: &Report, subject: &str, name: &str) -> Option<f64> {
    report.parameters.get(MEANS)?.get(subject)?.get(name)?.as_f64()
}

/// Median over rounds of the paired ratio, with the ends of its interval. Only the ratio of the
/// medians if the rounds were not kept, differ or come from two records.
fn paired(row: &Row, best: &Row, judged: &Judged) -> Option<(f64, Option<[f64; 2]>)> {
    let runs = |row: &Row| -> Option<Vec<f64>> {
        row.figures.get(judged.runs)?.as_array()?.iter().map(serde_json::Value::as_f64).collect()
    };
    let sound = |ratio: f64| ratio.is_finite() && ratio > 0.0;
    let is_one_record = row.figures.get(FROM) == best.figures.get(FROM);
    if let (Some(above), Some(below)) = (runs(row), runs(best))
        && is_one_record
        && above.len() == below.len()
    {
        let ratios: Vec<f64> = above.iter().zip(&below).map(|(a, b)| a / b).collect();
        let ratio = Ratio::of(&ratios).filter(|ratio| sound(ratio.value))?;
        return Some((ratio.value, Some([ratio.low, ratio.high])));
    }
    let ratio = row.number(judged.figure)? / best.number(judged.figure)?;
    sound(ratio).then_some((ratio, None))
}

fn measured<'a>(report: &'a Report, workload: &str) -> impl Iterator<Item = &'a Row> {
    report.rows.iter().filter(move |row| row.workload == workload && is_measured(row))
}

/// Workloads in the order of the rows.
fn workloads(report: &Report) -> IndexSet<String> {
    let rows = report.rows.iter().filter(|row| is_measured(row));
    rows.map(|row| row.workload.clone()).collect()
}

/// Subjects in the order of the rows, ours first.
fn subjects(report: &Report) -> IndexSet<String> {
    let rows = report.rows.iter().filter(|row| is_measured(row));
    let (mut ours, others): (IndexSet<String>, IndexSet<String>) =
        rows.map(|row| row.subject.clone()).partition(|name| is_ours(name));
    ours.extend(others);
    ours
}

/// Both tables as Markdown: ratios to the best peer, the best peer named, the means last. Below
/// them is the worst row of each of ours, by name.
pub(crate) fn tables(report: &Report) -> String {
    let mut text = String::new();
    let (subjects, workloads) = (subjects(report), workloads(report));
    for judged in &JUDGED {
        let head = [format!("{} / best peer", judged.title), "best peer".into(), "noise".into()];
        let mut lines = vec![Vec::from(head)];
        lines[0].extend(subjects.iter().cloned());
        for workload in &workloads {
            let find =
                |subject: &str| measured(report, workload).find(|row| row.subject == subject);
            let best = measured(report, workload).find_map(|row| {
                let name = row.text(judged.best_peer)?;
                Some(format!("{name} {}", absolute(find(name)?, judged)))
            });
            let mut line = vec![workload.clone(), best.unwrap_or_default()];
            line.push(noise(report, workload, judged));
            line.extend(subjects.iter().map(|subject| {
                let ratio = find(subject).and_then(|row| row.number(judged.ratio));
                ratio.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2}"))
            }));
            lines.push(line);
        }
        for (title, prefix) in [("**geometric mean**", ""), ("worst row", "worst_")] {
            let mut line = vec![title.to_owned(), String::new(), String::new()];
            line.extend(subjects.iter().map(|subject| {
                let mean = mean(report, subject, &format!("{prefix}{}", judged.ratio));
                mean.map_or_else(|| "–".to_owned(), |mean| format!("{mean:.2}"))
            }));
            lines.push(line);
        }
        text.push('\n');
        text.push_str(&aligned(&lines));
        for subject in subjects.iter().filter(|subject| is_ours(subject)) {
            let rows = report.rows.iter().filter(|row| is_measured(row) && row.subject == *subject);
            let ratio = |row: &Row| row.number(judged.ratio);
            let worst = rows
                .filter_map(|row| Some((ratio(row)?, &row.workload)))
                .max_by(|a, b| a.0.total_cmp(&b.0));
            if let Some((ratio, workload)) = worst {
                let _ = writeln!(
                    text,
                    "\n{subject}, {}: worst in {workload}, {ratio:.2}",
                    judged.title
                );
            }
        }
    }
    text
}

/// The noise floor of a row.
fn noise(report: &Report, workload: &str, judged: &Judged) -> String {
    let again = report.rows.iter().find(|row| row.workload == workload && is_again(row));
    let floor = again.and_then(|row| row.number(judged.noise));
    floor.map_or_else(|| "–".to_owned(), |floor| format!("±{:.1} %", floor * 100.0))
}

/// The best peer's figure in a readable unit.
fn absolute(row: &Row, judged: &Judged) -> String {
    let value = row.number(judged.figure).unwrap_or(0.0);
    match (judged.figure, row.text("memory_figure")) {
        ("time_ns", _) => format!("{:.1} ms", value / 1e6),
        (_, Some(name)) if !name.ends_with("bytes") => format!("{value:.2}×"),
        _ => format!("{:.1} MiB", value / f64::from(1 << 20)),
    }
}

/// A Markdown table whose columns line up in plain text too.
fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines[0].len();
    let width = |column: usize| {
        lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0).max(3)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        for (column, cell) in line.iter().enumerate() {
            let pad = widths[column] - cell.chars().count();
            let (left, right) = if column == 0 { (0, pad) } else { (pad, 0) };
            let _ = write!(text, "| {}{cell}{} ", " ".repeat(left), " ".repeat(right));
        }
        text.push_str("|\n");
        if number == 0 {
            for (column, width) in widths.iter().enumerate() {
                let dashes = "-".repeat(width - usize::from(column > 0));
                let _ = write!(text, "| {dashes}{} ", if column > 0 { ":" } else { "" });
            }
            text.push_str("|\n");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn row(subject: &str, workload: &str, time_ns: &[f64], memory: f64) -> Row {
        Row::new(subject, workload)
            .with("role", if subject == "system" { "reference" } else { "subject" })
            .with("time_ns", stats::median(time_ns).unwrap())
            .with("time_ns_runs", time_ns.to_vec())
            .with("memory", memory)
    }

    fn example() -> Report {
        let mut report = Report::new("bench all");
        report.rows = vec![
            row("system", "a", &[200.0, 220.0, 240.0], 10.0),
            row("fast", "a", &[100.0, 110.0, 120.0], 20.0),
            row("hectare", "a", &[50.0, 55.0, 60.0], 5.0),
            row("system", "b", &[100.0, 100.0, 100.0], 10.0),
            row("fast", "b", &[400.0, 400.0, 400.0], 10.0),
            row("hectare", "b", &[200.0, 200.0, 200.0], 20.0),
        ];
        let control = row("system again", "a", &[1.0], 1.0)
            .with("role", "again")
            .with("time_noise_floor_ratio", 0.03);
        report.rows.push(control);
        report
    }

    fn close(value: Option<f64>, expected: f64) -> bool {
        value.is_some_and(|value| (value - expected).abs() < 1e-9)
    }

    #[test]
    fn ours_is_measured_against_the_best_of_the_others() {
        let mut report = example();
        judge(&mut report);
        // a: 0.5 of fast; b: 2.0 of system.
        assert!(close(mean(&report, "hectare", "time_to_best_peer_ratio"), 1.0));
        assert!(close(mean(&report, "fast", "time_to_best_peer_ratio"), 2.0));
        assert!(close(mean(&report, "hectare", "worst_time_to_best_peer_ratio"), 2.0));
        // a: 0.5 of system; b: 2.0 of both.
        assert!(close(mean(&report, "hectare", "memory_to_best_peer_ratio"), 1.0));
        let text = tables(&report);
        assert!(text.contains("| a ") && !text.contains("again"), "{text}");
        assert!(text.contains("fast 0.0 ms") && text.contains("±3.0 %"), "{text}");
        assert!(text.contains("hectare, time: worst in b, 2.00"), "{text}");
        // The interval of three rounds is their range.
        let a = report.rows.iter().find(|row| row.subject == "hectare" && row.workload == "a");
        assert!(close(a.unwrap().number("time_to_best_peer_ratio_low"), 0.5));
    }

    /// Merges records that it writes into files.
    fn merged_records(records: &[Report]) -> anyhow::Result<Report> {
        let folder = Scratch::new().unwrap();
        let place = |(nth, record): (usize, &Report)| {
            let path = folder.path().join(format!("{nth}.json"));
            std::fs::write(&path, serde_json::to_vec(record).unwrap()).unwrap();
            path
        };
        let files: Vec<PathBuf> = records.iter().enumerate().map(place).collect();
        merged("bench all", &files)
    }

    #[test]
    fn rounds_of_two_records_are_not_paired() {
        let (mut first, mut second) = (example(), example());
        first.rows.retain(|row| row.subject != "hectare" && row.workload == "a");
        second.rows.retain(|row| row.subject == "hectare" && row.workload == "a");
        // The ratio of the medians is 0.5. Pairing the rounds, which are unrelated, would give 0.6.
        second.rows[0].figures["time_ns_runs"] = vec![60.0, 55.0, 72.0].into();
        second.rows[0].figures["time_ns"] = 55.0.into();
        let mut report = merged_records(&[first.clone(), second.clone()]).unwrap();
        judge(&mut report);
        let row = |subject: &str| report.rows.iter().find(|row| row.subject == subject).unwrap();
        assert!(close(row("hectare").number("time_to_best_peer_ratio"), 0.5));
        assert_eq!(row("hectare").number("time_to_best_peer_ratio_low"), None);
        assert!(row("system").number("time_to_best_peer_ratio_low").is_some(), "of one record");

        second.machine.kernel.push_str("-other");
        second.machine.memory_bytes += 4096;
        let refused = merged_records(&[first.clone(), second]).unwrap_err().to_string();
        assert!(refused.ends_with("settings of it: kernel"), "{refused}");
        let other = Report { verb: "bench a".to_owned(), ..first.clone() };
        let refused = merged_records(&[first.clone(), other]).unwrap_err().to_string();
        assert!(refused.ends_with("is a record of `bench a`, not of `bench all`"), "{refused}");
        let other = Report { schema: 2, ..first.clone() };
        let refused = merged_records(&[first, other]).unwrap_err().to_string();
        assert!(refused.contains("has schema 2"), "{refused}");
    }

    #[test]
    fn what_records_said_of_the_best_peer_is_judged_anew() {
        let (mut first, mut second) = (example(), example());
        judge(&mut first);
        // One workload has a better peer from a record in which no round is paired with ours; in
        // the other all peers break.
        second.rows.retain(|row| row.subject != "hectare");
        for row in &mut second.rows {
            if row.workload == "b" {
                row.figures.insert("broken".to_owned(), "killed by SIGSEGV".into());
            } else if row.subject == "fast" {
                row.figures["time_ns"] = 11.0.into();
            }
        }
        judge(&mut second);
        let mut report = merged_records(&[first, second]).unwrap();
        judge(&mut report);
        let ours = |workload: &str| {
            let mut rows = report.rows.iter();
            rows.find(|row| row.subject == "hectare" && row.workload == workload).unwrap()
        };
        assert!(close(ours("a").number("time_to_best_peer_ratio"), 5.0));
        assert_eq!(ours("a").number("time_to_best_peer_ratio_low"), None);
        assert_eq!(ours("b").number("time_to_best_peer_ratio"), None);
        assert_eq!(ours("b").figures.get("time_best_peer"), None);
    }

    #[test]
    fn who_broke_in_a_later_record_is_not_taken_from_an_earlier() {
        let (first, mut second) = (example(), example());
        second.rows.retain(|row| row.subject == "fast");
        for row in &mut second.rows {
            row.figures.insert("broken".to_owned(), "killed by SIGSEGV".into());
        }
        let mut report = merged_records(&[first, second]).unwrap();
        judge(&mut report);
        let ratio = report.rows.iter().filter(|row| row.subject == "fast");
        assert!(ratio.clone().count() == 2);
        assert!(ratio.into_iter().all(|row| row.number("time_to_best_peer_ratio").is_none()));
    }

    #[test]
    fn who_left_work_out_is_no_best_peer() {
        for (name, value) in [("other_work", "differs".into()), ("failed_allocations", 9.into())] {
            let mut report = example();
            let row = report.rows.iter_mut().find(|row| row.subject == "fast").unwrap();
            row.figures.insert(name.to_owned(), serde_json::Value::clone(&value));
            judge(&mut report);
            let ours = report.rows.iter().find(|row| row.subject == "hectare").unwrap();
            assert!(close(ours.number("time_to_best_peer_ratio"), 0.25), "{name}");
            assert_eq!(ours.figures["time_best_peer"], "system", "{name}");
            assert_eq!(mean(&report, "fast", "time_to_best_peer_ratio"), None, "{name}");
            // Allocations that also fail under the reference are due to the machine.
            let reference = report.rows.iter_mut().find(|row| row.subject == "system").unwrap();
            reference.figures.insert("failed_allocations".to_owned(), 9.into());
            judge(&mut report);
            let fast = report.rows.iter().find(|row| row.subject == "fast").unwrap();
            let is_best = fast.figures.get("time_best_peer").is_some();
            assert_eq!(is_best, name == "failed_allocations");
        }
    }

    #[test]
    fn a_subject_that_broke_has_no_mean() {
        let mut report = example();
        let is_broken = |row: &&mut Row| row.subject == "fast" && row.workload == "b";
        let row = report.rows.iter_mut().find(is_broken).unwrap();
        row.figures.insert("broken".to_owned(), "killed by SIGSEGV".into());
        judge(&mut report);
        assert_eq!(mean(&report, "fast", "time_to_best_peer_ratio"), None);
        assert!(report.notes.iter().any(|note| note.contains("fast has 1 of 2 rows")));
    }
}
