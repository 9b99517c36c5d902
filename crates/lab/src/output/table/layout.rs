//! A table as lines of text that fit into the reader's window.
//!
//! ```text
//!  fits with its headings in one line? ──► so
//!  fits with the headings broken at their spaces? ──► so
//!  else ──► blocks of columns one above the other, each beginning with the first column
//! ```

use std::fmt::Write;

use super::{Column, Table};

/// The space between two columns, and the indentation of the lines.
const GAP: usize = 2;

/// Draws a table with lines of at most `most` characters, if possible.
pub(super) fn draw(table: &Table, most: usize) -> String {
    let mut widths: Vec<usize> = (0..table.head.len()).map(|at| cell_width(table, at)).collect();
    let one_line =
        widths.iter().zip(&table.head).map(|(&width, head)| width.max(length(&head.name)));
    let one_line: Vec<usize> = one_line.collect();
    if total(&one_line) <= most {
        widths = one_line;
    } else {
        for (width, head) in widths.iter_mut().zip(&table.head) {
            let words = head.name.split(' ').map(length);
            *width = words.fold(*width, usize::max);
        }
    }
    let blocks = blocks(&table.head, &widths, most);
    let of_figures = |at: usize| table.lines.iter().any(|line| is_figure(&line[at]));
    let columns = widths.into_iter().enumerate();
    let columns =
        columns.map(|(at, width)| Shape { width, to_the_right: at > 0 && of_figures(at) });
    let columns: Vec<Shape> = columns.collect();
    let mut out = String::new();
    for (nth, block) in blocks.iter().enumerate() {
        if nth > 0 {
            out.push('\n');
        }
        draw_block(&mut out, table, &columns, block, nth == 0);
    }
    out
}

/// The layout of a column's cells.
struct Shape {
    /// In characters.
    width: usize,
    /// Whether the text is at the right edge, as figures are.
    to_the_right: bool,
}

/// The length of a line with columns of these widths, in characters.
fn total(widths: &[usize]) -> usize {
    widths.iter().map(|width| width + GAP).sum()
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// The width that the cells of a column need, without its heading.
fn cell_width(table: &Table, at: usize) -> usize {
    let lines = table.lines.iter().filter(|line| at != 1 || !is_remark(line));
    lines.map(|line| length(&line[at])).max().unwrap_or(0)
}

/// Whether a line has a text instead of figures. The text may extend over all columns.
fn is_remark(line: &[String]) -> bool {
    line.len() > 2 && !is_figure(&line[1]) && line[2..].iter().all(String::is_empty)
}

/// The columns of each block. Columns that belong together stay together.
fn blocks(head: &[Column], widths: &[usize], most: usize) -> Vec<Vec<usize>> {
    let mut blocks = vec![vec![0]];
    let mut used = total(&widths[..1]);
    let mut at = 1;
    while at < head.len() {
        let end = (at + 1..head.len()).find(|&next| !head[next].joined).unwrap_or(head.len());
        let needed = total(&widths[at..end]);
        let last = blocks.last_mut().expect("begun with one");
        if used + needed > most && last.len() > 1 {
            blocks.push([0].into_iter().chain(at..end).collect());
            used = total(&widths[..1]) + needed;
        } else {
            last.extend(at..end);
            used += needed;
        }
        at = end;
    }
    blocks
}

fn draw_block(out: &mut String, table: &Table, columns: &[Shape], block: &[usize], first: bool) {
    let heads: Vec<Vec<String>> =
        block.iter().map(|&at| broken(&table.head[at].name, columns[at].width)).collect();
    let height = heads.iter().map(Vec::len).max().unwrap_or(0);
    for row in 0..height {
        let cells = heads.iter().map(|lines| {
            let above = height - lines.len();
            row.checked_sub(above).map_or("", |row| lines[row].as_str())
        });
        draw_line(out, columns, block, cells);
    }
    for line in &table.lines {
        if is_remark(line) && first {
            let _ = writeln!(out, "  {:width$}  {}", line[0], line[1], width = columns[0].width);
        } else if !is_remark(line) {
            draw_line(out, columns, block, block.iter().map(|&at| line[at].as_str()));
        }
    }
}

fn draw_line<'a>(
    out: &mut String,
    columns: &[Shape],
    block: &[usize],
    cells: impl Iterator<Item = &'a str>,
) {
    let mut text = String::new();
    for (&at, cell) in block.iter().zip(cells) {
        let Shape { width, to_the_right } = columns[at];
        text.extend(std::iter::repeat_n(' ', GAP));
        let _ = if to_the_right {
            write!(text, "{cell:>width$}")
        } else {
            write!(text, "{cell:width$}")
        };
    }
    out.push_str(text.trim_end());
    out.push('\n');
}

/// A text in lines of at most `width` characters, broken at its spaces.
pub(super) fn broken(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if length(line) + 1 + length(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn is_figure(cell: &str) -> bool {
    cell.starts_with(|c: char| c.is_ascii_digit() || "+-–".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let head = ["", "overhead, mean over time", "verdict", "peak"]
            .map(|name| Column { name: name.to_owned(), joined: name == "verdict" });
        let line = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        Table {
            title: String::new(),
            head: head.to_vec(),
            lines: vec![
                line(["dense", "5.66 %", "less", "184.2 KiB"]),
                line(["zs", "broke: it was killed by SIGSEGV, and no figure is there", "", ""]),
            ],
        }
    }

    #[test]
    fn what_fits_stands_in_one_line() {
        assert_eq!(
            draw(&table(), 100),
            "         overhead, mean over time  verdict       peak\n  \
             dense                    5.66 %  less     184.2 KiB\n  \
             zs     broke: it was killed by SIGSEGV, and no figure is there\n"
        );
    }

    #[test]
    fn headings_break_before_tables_do() {
        assert_eq!(
            draw(&table(), 40),
            "         overhead,\n         mean over\n              time  verdict       peak\n  \
             dense     5.66 %  less     184.2 KiB\n  \
             zs     broke: it was killed by SIGSEGV, and no figure is there\n"
        );
        assert_eq!(
            draw(&table(), 30),
            "         overhead,\n         mean over\n              time  verdict\n  \
             dense     5.66 %  less\n  \
             zs     broke: it was killed by SIGSEGV, and no figure is there\n\n              \
             peak\n  dense  184.2 KiB\n"
        );
    }
}
