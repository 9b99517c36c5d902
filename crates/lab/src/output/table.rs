//! Tables for people: plain text for the terminal, and the same as Markdown.
//!
//! Reports of contests get the columns that their readers ask for; every other report gets one
//! column per figure.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::Value;

use crate::contest::analysis::ALL_CASES;
use crate::report::{Report, Row};

/// One table: a title, a head, lines of cells.
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) head: Vec<String>,
    pub(crate) lines: Vec<Vec<String>>,
}

/// The report for a terminal.
pub(crate) fn text(report: &Report) -> String {
    let mut out = String::new();
    for table in tables(report) {
        let _ = writeln!(out, "\n{}", table.title);
        let widths: Vec<usize> = (0..table.head.len())
            .map(|column| {
                let cells = table.lines.iter().chain([&table.head]).map(|line| &line[column]);
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        for line in [&table.head].into_iter().chain(&table.lines) {
            let mut text = String::from(" ");
            for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
                let gap = width - cell.chars().count();
                if column == 0 || !is_figure(cell) && !is_figure_column(&table, column) {
                    let _ = write!(text, " {cell}{:gap$} ", "");
                } else {
                    let _ = write!(text, " {:gap$}{cell} ", "");
                }
            }
            let _ = writeln!(out, "{}", text.trim_end());
        }
    }
    if !report.notes.is_empty() {
        out.push('\n');
    }
    for note in &report.notes {
        let _ = writeln!(out, "· {note}");
    }
    out
}

/// The report as Markdown, with the command that makes it again.
pub(crate) fn markdown(report: &Report) -> String {
    let mut out = String::new();
    for table in tables(report) {
        let _ = writeln!(out, "### {}\n", table.title);
        let line = |cells: &[String]| {
            let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        out.push_str(&line(&table.head));
        let rule: Vec<_> = (0..table.head.len())
            .map(|column| if column == 0 { "---".to_owned() } else { "---:".to_owned() })
            .collect();
        out.push_str(&line(&rule));
        for cells in &table.lines {
            out.push_str(&line(cells));
        }
        out.push('\n');
    }
    for note in &report.notes {
        let _ = writeln!(out, "- {note}");
    }
    let machine = &report.machine;
    let _ = writeln!(
        out,
        "\nMade by `{}` on {} × {}, Linux {}, {}.",
        report.command, machine.cpus, machine.cpu, machine.kernel, machine.libc
    );
    out
}

fn is_figure(cell: &str) -> bool {
    cell.starts_with(|c: char| c.is_ascii_digit() || c == '+' || c == '-' || c == '–')
}

fn is_figure_column(table: &Table, column: usize) -> bool {
    table.lines.iter().any(|line| is_figure(&line[column]))
}

/// The tables of a report: one per workload.
pub(crate) fn tables(report: &Report) -> Vec<Table> {
    let mut workloads: Vec<&str> = Vec::new();
    for row in &report.rows {
        if !workloads.contains(&row.workload.as_str()) {
            workloads.push(&row.workload);
        }
    }
    let contest = report.rows.iter().any(|row| row.figures.contains_key("time_ratio"));
    workloads
        .into_iter()
        .map(|workload| {
            let rows: Vec<&Row> =
                report.rows.iter().filter(|row| row.workload == workload).collect();
            if contest { contest_table(report, workload, &rows) } else { plain(workload, &rows) }
        })
        .collect()
}

fn contest_table(report: &Report, workload: &str, rows: &[&Row]) -> Table {
    let reference =
        report.parameters.get("reference").and_then(Value::as_str).unwrap_or("the first");
    let all = workload == ALL_CASES;
    let mut title =
        if all { "all of them (geometric mean)".to_owned() } else { workload.to_owned() };
    let ideal = |name| rows.iter().find_map(|row| row.number(name)).map(bytes);
    if let (Some(live), Some(rounded), Some(pages)) =
        (ideal("ideal_live_bytes"), ideal("ideal_rounded16_bytes"), ideal("ideal_pages_bytes"))
    {
        let _ = write!(
            title,
            " — Ideal: {live} live, {rounded} rounded to 16, {pages} rounded to pages"
        );
    }
    let any = |name: &str| rows.iter().any(|row| row.figures.contains_key(name));
    let mut head = vec!["allocator".to_owned()];
    if !all {
        head.push("time".to_owned());
    }
    head.extend([format!("time/{reference}"), String::new()]);
    // The memory column shows the peak unless the workload is judged by another figure.
    let judged = rows.iter().find_map(|row| row.figures.get("memory_figure")?.as_str());
    let memory = judged.map_or_else(|| "peak".to_owned(), heading);
    if !all {
        head.push(memory);
    }
    head.extend([format!(
        "{}/{reference}",
        if all || judged.is_some() { "memory" } else { "peak" }
    )]);
    head.push(String::new());
    let overhead = any("overhead_ratio");
    if overhead {
        head.push("over Ideal".to_owned());
    }
    if !all {
        head.extend(["mean".to_owned(), "faults".to_owned()]);
    }
    let lines = rows
        .iter()
        .map(|row| {
            let allocator = row.figures.get("allocator").and_then(Value::as_str);
            let mut cells = vec![match allocator {
                Some(allocator) => format!("{} = {allocator}", row.subject),
                None => row.subject.clone(),
            }];
            if let Some(why) = row.figures.get("broken").and_then(Value::as_str) {
                cells.push(format!("broke: {why}"));
                cells.resize(head.len(), String::new());
                return cells;
            }
            let cell = |name: &str, format: fn(f64) -> String| {
                row.number(name).map_or_else(|| "–".to_owned(), format)
            };
            if !all {
                cells.push(cell("time_ns", time));
            }
            cells.extend([ratio(row, "time"), word(row, "time", "faster", "slower")]);
            if !all {
                let value = row.number("memory");
                let show = |value| figure(judged.unwrap_or("peak_bytes"), value);
                cells.push(value.map_or_else(|| "–".to_owned(), show));
            }
            cells.extend([ratio(row, "memory"), word(row, "memory", "leaner", "fatter")]);
            if overhead {
                cells.push(cell("overhead_ratio", |share| format!("{:+.1} %", share * 100.0)));
            }
            if !all {
                cells.extend([cell("mean_bytes", bytes), cell("faults", count)]);
            }
            cells
        })
        .collect();
    Table { title, head, lines }
}

fn plain(workload: &str, rows: &[&Row]) -> Table {
    let flat = |value: &Value| !value.is_array() && !value.is_object();
    let columns: BTreeSet<&str> = rows
        .iter()
        .flat_map(|row| row.figures.iter().filter(|(_, value)| flat(value)))
        .map(|(name, _)| name.as_str())
        .collect();
    let head =
        [String::new()].into_iter().chain(columns.iter().map(|name| heading(name))).collect();
    let lines = rows
        .iter()
        .map(|row| {
            let cells = columns.iter().map(|name| match row.figures.get(*name) {
                None => String::new(),
                Some(Value::String(word)) => word.clone(),
                Some(value) => figure(name, value.as_f64().unwrap_or(f64::NAN)),
            });
            [row.subject.clone()].into_iter().chain(cells).collect()
        })
        .collect();
    Table { title: workload.to_owned(), head, lines }
}

/// `alloc_ns` is headed `alloc`, its cells carry the unit.
fn heading(name: &str) -> String {
    let stem =
        ["_ns", "_bytes", "_ratio", "_count"].iter().find_map(|unit| name.strip_suffix(unit));
    stem.unwrap_or(name).replace('_', " ")
}

/// A figure in the unit that the last word of its name tells.
pub(crate) fn figure(name: &str, value: f64) -> String {
    match name.rsplit('_').next() {
        Some("ns") => time(value),
        Some("bytes") => bytes(value),
        Some("ratio") => format!("{value:.3}"),
        _ => count(value),
    }
}

fn ratio(row: &Row, metric: &str) -> String {
    let part = |end: &str| row.number(&format!("{metric}_ratio{end}"));
    match (part(""), part("_low"), part("_high")) {
        (Some(value), Some(low), Some(high)) => {
            format!("{value:.3} [{low:.3}, {high:.3}]")
        }
        _ => "–".to_owned(),
    }
}

fn word(row: &Row, metric: &str, less: &str, more: &str) -> String {
    let verdict = row.figures.get(&format!("{metric}_verdict")).and_then(Value::as_str);
    match verdict {
        Some("less") => less,
        Some("more") => more,
        Some("same") => "same",
        Some("undecided") => "undecided",
        _ => "",
    }
    .to_owned()
}

/// Nanoseconds in the unit a person would choose.
pub(crate) fn time(ns: f64) -> String {
    match ns.abs() {
        ..1e3 => format!("{ns:.1} ns"),
        ..1e6 => format!("{:.2} µs", ns / 1e3),
        ..1e9 => format!("{:.1} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

/// Bytes in the binary unit a person would choose.
pub(crate) fn bytes(bytes: f64) -> String {
    const KIB: f64 = 1024.0;
    match bytes.abs() {
        ..KIB => format!("{bytes:.0} B"),
        size if size < KIB * KIB => format!("{:.1} KiB", bytes / KIB),
        size if size < KIB * KIB * KIB => format!("{:.1} MiB", bytes / KIB / KIB),
        _ => format!("{:.2} GiB", bytes / KIB / KIB / KIB),
    }
}

fn count(value: f64) -> String {
    if value.fract() == 0.0 || value.abs() >= 1e4 {
        format!("{value:.0}")
    } else {
        format!("{value:.3}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_shown_in_fitting_units() {
        assert_eq!(time(12.34), "12.3 ns");
        assert_eq!(time(12_340_000.0), "12.3 ms");
        assert_eq!(bytes(512.0), "512 B");
        assert_eq!(bytes(3.0 * 1024.0 * 1024.0), "3.0 MiB");
        assert_eq!(figure("alloc_ns", 5.0), "5.0 ns");
        assert_eq!(figure("frames", 12.0), "12");
    }

    #[test]
    fn a_plain_report_has_a_column_per_figure() {
        let mut report = Report::new("test");
        report.rows.push(Row::new("bitset", "buddy").with("alloc_ns", 7.0));
        report.rows.push(Row::new("list", "buddy").with("free_ns", 8.0));
        let text = text(&report);
        for part in ["buddy", "alloc", "free", "bitset", "7.0 ns", "8.0 ns"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(markdown(&report).contains("| bitset | 7.0 ns |"));
    }
}
