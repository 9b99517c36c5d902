//! Reports as Markdown. Names are shown as they are, whatever they contain: characters that
//! Markdown would interpret are escaped.

use std::fmt::Write;

use super::tables;
use crate::output::place::MADE_BY;
use crate::report::Report;
use crate::say::in_one_line;

/// Characters that begin a construct in the middle of a line, or separate the cells of a table.
const MARKS: [char; 9] = ['\\', '`', '*', '_', '~', '|', '<', '&', '#'];

/// The report as Markdown, with the command that reproduces it.
pub(crate) fn markdown(report: &Report) -> String {
    let mut out = MADE_BY.to_owned();
    for table in tables(report) {
        let _ = writeln!(out, "### {}\n", escaped(&table.title));
        let line = |cells: &mut dyn Iterator<Item = &String>| {
            let cells: Vec<_> = cells.map(|cell| escaped(cell)).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        out.push_str(&line(&mut table.head.iter().map(|column| &column.name)));
        let rule: Vec<_> = (0..table.head.len())
            .map(|column| if column == 0 { "---".to_owned() } else { "---:".to_owned() })
            .collect();
        out.push_str(&line(&mut rule.iter()));
        for cells in &table.lines {
            out.push_str(&line(&mut cells.iter()));
        }
        out.push('\n');
    }
    for note in &report.notes {
        let _ = writeln!(out, "- {}", prose(&in_one_line(note)));
    }
    let machine = &report.machine;
    let [cpu, kernel, libc] = [&machine.cpu, &machine.kernel, &machine.libc].map(|it| escaped(it));
    let _ = writeln!(
        out,
        "\nMade by {} on {} × {cpu}, Linux {kernel}, {libc}.",
        code(&in_one_line(&report.command)),
        machine.cpus,
    );
    out
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if MARKS.contains(&c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// A note. Quoted code in it stays code.
fn prose(note: &str) -> String {
    let parts: Vec<&str> = note.split('`').collect();
    if parts.len().is_multiple_of(2) {
        return escaped(note);
    }
    let of_part = |(nth, part): (usize, &&str)| match nth % 2 {
        0 => escaped(part),
        _ => format!("`{part}`"),
    };
    parts.iter().enumerate().map(of_part).collect()
}

/// A text as code, between more backquotes than it has in a row.
fn code(text: &str) -> String {
    let most = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(most + 1);
    let gap = if most > 0 { " " } else { "" };
    format!("{fence}{gap}{text}{gap}{fence}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Row;

    #[test]
    fn names_break_no_table() {
        let mut report = Report::new("test");
        report.command = "hectare 'a`b\nc'".to_owned();
        report.rows.push(Row::new("a|b\\\n*c*_d_`e`<i>", "w\n<b>#").with("time_ns", 1.0));
        report.notes.push("see `--some_option`, not a_b\nor <i>".to_owned());
        report.notes.push("an odd ` is a_b".to_owned());
        let text = markdown(&report);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1..9],
            [
                r"### w\\n\<b>\#",
                "",
                "|  | time |",
                "| --- | ---: |",
                r"| a\|b\\\\n\*c\*\_d\_\`e\`\<i> | 1.0 ns |",
                "",
                r"- see `--some_option`, not a\_b\\nor \<i>",
                r"- an odd \` is a\_b",
            ]
        );
        assert!(lines[10].starts_with(r"Made by `` hectare 'a`b\nc' `` on "), "{}", lines[10]);
    }
}
