//! Tables for people: plain text for the terminal, and the same as Markdown.
//!
//! Reports of contests have a selection of columns. Every other report has one column per figure,
//! in the order in which its verb gave them.
//!
//! | File | What |
//! |---|---|
//! | `layout` | a table as lines that fit into a window |
//! | `markdown` | the same as Markdown |
//! | `words` | what columns are called, and units |

mod layout;
mod markdown;
mod words;

use std::borrow::Cow;
use std::fmt::Write;

use serde_json::Value;

use crate::contest::analysis::ALL_CASES;
use crate::report::{self, Report, Row};
use crate::say::in_one_line;
pub(crate) use markdown::markdown;
pub(crate) use words::{bytes, figure, time};
use words::{count, heading, share};

/// The width of text that does not go to a terminal, characters.
const PIPE_WIDTH: usize = 100;

/// One table: a title, a head, lines of cells.
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) head: Vec<Column>,
    pub(crate) lines: Vec<Vec<String>>,
}

/// The head of a column.
#[derive(Clone)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// Whether it qualifies the column before it, and stays beside that column at any width.
    pub(crate) joined: bool,
}

impl Column {
    fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), joined: false }
    }
}

/// The report as text for the terminal that the command runs on, or for a pipe.
pub(crate) fn text(report: &Report) -> String {
    text_within(report, width())
}

/// A text broken into lines that fit, each of them indented.
pub(crate) fn paragraph(indent: &str, text: &str) -> String {
    let lines = layout::broken(text, width().saturating_sub(indent.len()));
    lines.iter().map(|line| format!("{indent}{line}\n")).collect()
}

fn width() -> usize {
    let of_terminal = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    of_terminal.unwrap_or(PIPE_WIDTH)
}

fn text_within(report: &Report, width: usize) -> String {
    let mut out = String::new();
    for table in tables(report) {
        let _ = writeln!(out, "\n{}", table.title);
        out.push_str(&layout::draw(&table, width));
    }
    if !report.notes.is_empty() {
        out.push('\n');
    }
    for note in &report.notes {
        let lines = layout::broken(&in_one_line(note), width.saturating_sub(2));
        let _ = writeln!(out, "· {}", lines.join("\n  "));
    }
    out
}

/// The tables of a report: one per workload, or one for all workloads if each has a single row.
/// Each text in them is on one line.
pub(crate) fn tables(report: &Report) -> Vec<Table> {
    let mut tables = tables_as_named(report);
    for table in &mut tables {
        let head = table.head.iter_mut().map(|column| &mut column.name);
        for text in head.chain(table.lines.iter_mut().flatten()).chain([&mut table.title]) {
            if let Cow::Owned(line) = in_one_line(text) {
                *text = line;
            }
        }
    }
    tables
}

fn tables_as_named(report: &Report) -> Vec<Table> {
    let workloads = report::by_workload(&report.rows);
    if report.rows.iter().any(|row| row.figures.contains_key("time_ratio")) {
        let table = |(workload, rows): (_, Vec<_>)| contest_table(report, workload, &rows);
        return workloads.into_iter().map(table).collect();
    }
    if let [first, _, ..] = &report.rows[..]
        && workloads.len() == report.rows.len()
        && report.rows.iter().all(|row| row.subject == first.subject)
    {
        let lines: Vec<_> = report.rows.iter().map(|row| (row.workload.as_str(), row)).collect();
        return vec![plain(&first.subject, &lines)];
    }
    let table = |(workload, rows): (_, Vec<&Row>)| {
        let rows = rows.into_iter();
        plain(workload, &rows.map(|row| (row.subject.as_str(), row)).collect::<Vec<_>>())
    };
    workloads.into_iter().map(table).collect()
}

fn contest_table(report: &Report, workload: &str, rows: &[&Row]) -> Table {
    let reference = report.reference().unwrap_or("the first");
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
    let mut head = vec![Column::new("allocator")];
    if !all {
        head.push(Column::new("time"));
    }
    let beside = |name: String| Column { name, joined: !all };
    let verdict = || Column { name: String::new(), joined: true };
    head.extend([beside(format!("time/{reference}")), verdict()]);
    // The memory column shows the peak, unless another figure judges the workload's memory.
    let judged = rows.iter().find_map(|row| row.text("memory_figure"));
    let mut memory = judged.map_or_else(|| "peak".to_owned(), heading);
    if let Some(added) = rows.iter().find_map(|row| row.number("memory_added_bytes")) {
        let _ = write!(memory, " + {}", bytes(added));
    }
    if !all {
        head.push(Column::new(memory));
    }
    let compared = if all || judged.is_some() { "memory" } else { "peak" };
    head.extend([beside(format!("{compared}/{reference}")), verdict()]);
    let overhead = any("overhead_ratio");
    if overhead {
        head.push(Column::new("over Ideal"));
    }
    if !all {
        head.extend(["mean", "faults"].map(Column::new));
    }
    let misuse = any("seen_kinds");
    if misuse {
        head.push(Column::new("misuse seen"));
    }
    let lines = rows
        .iter()
        .map(|row| {
            let mut cells = vec![match row.text("allocator") {
                Some(allocator) => format!("{} = {allocator}", row.subject),
                None => row.subject.clone(),
            }];
            if let Some(why) = row.text("broken") {
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
                cells.push(cell("overhead_ratio", share));
            }
            if !all {
                cells.extend([cell("mean_bytes", bytes), cell("faults", count)]);
            }
            if misuse {
                cells.push(cell("seen_kinds", count));
            }
            cells
        })
        .collect();
    Table { title, head, lines }
}

/// A column for each figure. The ends of a range go into the cell of their figure.
fn plain(title: &str, lines: &[(&str, &Row)]) -> Table {
    let mut columns = report::columns(lines.iter().map(|(_, row)| *row));
    let all = columns.clone();
    columns.retain(|column| {
        let of = column.strip_suffix("_low").or_else(|| column.strip_suffix("_high"));
        of.is_none_or(|of| !all.contains(&of))
    });
    let names = columns.iter().map(|name| heading(name));
    let head = [String::new()].into_iter().chain(names).map(Column::new).collect();
    let lines = lines
        .iter()
        .map(|(name, row)| {
            let cells = columns.iter().map(|column| cell(row, column));
            [(*name).to_owned()].into_iter().chain(cells).collect()
        })
        .collect();
    Table { title: title.to_owned(), head, lines }
}

fn cell(row: &Row, column: &str) -> String {
    let end = |end: &str| row.number(&format!("{column}_{end}"));
    match (row.figures.get(column), end("low"), end("high")) {
        (None | Some(Value::Null), _, _) => String::new(),
        (Some(Value::String(word)), _, _) => word.clone(),
        (Some(Value::Bool(yes)), _, _) => if *yes { "yes" } else { "no" }.to_owned(),
        (Some(value), Some(low), Some(high)) => {
            let value = figure(column, value.as_f64().unwrap_or(f64::NAN));
            let [low, high] = [low, high].map(|end| figure(column, end).replace(" %", ""));
            format!("{value} [{low}, {high}]")
        }
        (Some(value), _, _) => figure(column, value.as_f64().unwrap_or(f64::NAN)),
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
    match row.text(&format!("{metric}_verdict")) {
        Some("less") => less,
        Some("more") => more,
        Some("same") => "same",
        Some("undecided") => "undecided",
        _ => "",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rows: Vec<Row>) -> Report {
        let mut report = Report::new("test");
        report.rows = rows;
        report
    }

    #[test]
    fn a_plain_report_has_a_column_per_figure_in_the_order_of_the_rows() {
        let report = report(vec![
            Row::new("bitset", "buddy").with("worst_ns", 9.0).with("alloc_ns", 7.0),
            Row::new("list", "buddy").with("worst_ns", 9.0).with("free_ns", 8.0),
        ]);
        let text = text_within(&report, 100);
        assert_eq!(
            text,
            "\nbuddy\n           worst   alloc    free\n  bitset  9.0 ns  7.0 ns\n  \
             list    9.0 ns          8.0 ns\n"
        );
        assert!(markdown(&report).contains("| bitset | 9.0 ns | 7.0 ns |  |"));
    }

    #[test]
    fn one_subject_on_many_workloads_makes_one_table() {
        let report = report(vec![
            Row::new("tlsf", "regions of 4 KiB").with("writes", 1),
            Row::new("tlsf", "regions of 8 KiB").with("writes", 2),
        ]);
        let tables = tables(&report);
        assert_eq!(tables.len(), 1);
        assert_eq!((tables[0].title.as_str(), tables[0].lines.len()), ("tlsf", 2));
        assert_eq!(tables[0].lines[1], ["regions of 8 KiB", "2"]);
    }

    #[test]
    fn a_contest_tells_what_its_memory_contains_and_what_misuse_was_seen() {
        let row = Row::new("a", "misuse, 1 thread")
            .with("time_ratio", 1.0)
            .with("memory", 3.0 * 1_048_576.0)
            .with("memory_added_bytes", 2_097_152.0)
            .with("seen_kinds", 7);
        let table = &tables(&report(vec![row]))[0];
        let cell = |name: &str| {
            let column = table.head.iter().position(|column| column.name == name).unwrap();
            table.lines[0][column].as_str()
        };
        assert_eq!((cell("peak + 2.0 MiB"), cell("misuse seen")), ("3.0 MiB", "7"));
    }

    #[test]
    fn a_contest_tells_its_ratios_and_verdicts_in_words() {
        let row = |metric: &str, verdict: &str| {
            let mut row = Row::new("a", "work").with("time_ratio", 1.0).with("memory_ratio", 1.0);
            for (end, value) in [("", 0.9004), ("_low", 0.8), ("_high", 0.95)] {
                row = row.with(&format!("{metric}_ratio{end}"), value);
            }
            row.with(&format!("{metric}_verdict"), verdict)
        };
        for (metric, verdict, column, word) in [
            ("time", "less", "time/the first", "faster"),
            ("time", "more", "time/the first", "slower"),
            ("memory", "less", "peak/the first", "leaner"),
            ("memory", "more", "peak/the first", "fatter"),
            ("time", "same", "time/the first", "same"),
            ("memory", "undecided", "peak/the first", "undecided"),
            ("time", "", "time/the first", ""),
        ] {
            let table = &tables(&report(vec![row(metric, verdict)]))[0];
            let at = table.head.iter().position(|head| head.name == column).unwrap();
            let cells = [&table.lines[0][at], &table.lines[0][at + 1]];
            assert_eq!(cells, ["0.900 [0.800, 0.950]", word], "{metric} {verdict}");
        }
        let one_end = Row::new("a", "work").with("time_ratio", 1.0).with("time_ratio_low", 0.9);
        assert_eq!(tables(&report(vec![one_end]))[0].lines[0][2], "–", "no interval, no ratio");
    }

    #[test]
    fn a_range_stands_beside_what_it_is_the_range_of() {
        let row = Row::new("xv", "stress")
            .with("overhead_percent", 11.0)
            .with("overhead_percent_low", 10.0)
            .with("overhead_percent_high", 12.0)
            .with("half_low", 1);
        let report = report(vec![row]);
        let table = &tables(&report)[0];
        assert_eq!(table.lines[0], ["xv", "11.00 % [10.00, 12.00]", "1"]);
    }
}
