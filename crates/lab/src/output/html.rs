//! The HTML report: one file that works offline, drawn as inline SVG, light and dark.
//!
//! The rows and series of a report decide which charts the page has: a chart without its data is
//! left out. Each chart carries the command that reproduces it.

mod charts;
mod plot;
mod scale;

use anyhow::Context;
use minijinja::{Environment, Value, context};

use crate::machine::Machine;
use crate::output::table;
use crate::report::Report;
use crate::say::shown;

const TEMPLATE: &str = include_str!("html/report.html.j2");

/// A page is kept below this size, bytes, if possible. Plots with thousands of points are thinned
/// until it fits.
const MOST_BYTES: usize = 1_900_000;

/// Width of a chart, pixels.
const WIDE: f64 = 720.0;

/// Width of a chart in a narrow window, pixels.
const NARROW: f64 = 360.0;

/// A plot with fewer points is never thinned.
const LEAST_POINTS: usize = 64;

/// One page with all `reports`.
///
/// # Errors
/// When the template is wrong, which its test would show.
pub(crate) fn page(reports: &[Report]) -> anyhow::Result<String> {
    let mut page = draw(reports, false)?;
    let mut reports = reports.to_vec();
    while page.len() > MOST_BYTES {
        let mut thinned = false;
        for series in reports.iter_mut().flat_map(|report| &mut report.series) {
            if series.points.len() > LEAST_POINTS {
                // The higher of two neighbours is kept: a reader looks for peaks in a plot.
                let higher = |pair: &[[f64; 2]]| {
                    if pair[0][1] >= pair[pair.len() - 1][1] {
                        pair[0]
                    } else {
                        pair[pair.len() - 1]
                    }
                };
                let mean = |pair: &[[f64; 2]]| {
                    let sum: f64 = pair.iter().map(|point| point[1]).sum();
                    [pair[0][0], sum / pair.len() as f64]
                };
                let pairs = series.points.chunks(2);
                series.points = match series.plot.as_str() {
                    "occupancy map" => pairs.map(mean).collect(),
                    _ => pairs.map(higher).collect(),
                };
                thinned = true;
            }
        }
        if !thinned {
            break;
        }
        page = draw(&reports, true)?;
    }
    Ok(shown(&page).into_owned())
}

fn draw(reports: &[Report], thinned: bool) -> anyhow::Result<String> {
    let mut environment = Environment::new();
    environment.add_template("report.html", TEMPLATE).context("the report's template")?;
    let machine = reports.first().map(|report| &report.machine);
    let sections: Vec<Value> = reports
        .iter()
        .map(|report| {
            let is_other = machine.is_some_and(|machine| *machine != report.machine);
            section(report, is_other.then(|| line_of(&report.machine)))
        })
        .collect();
    environment
        .get_template("report.html")?
        .render(context! {
            sections,
            machine => machine.map(line_of),
            thinned,
            version => env!("CARGO_PKG_VERSION"),
        })
        .context("rendering the report")
}

/// The machine and its settings in one line.
fn line_of(machine: &Machine) -> String {
    format!(
        "{} × {}{}, {}{} · Linux {} · {} · governor {} · huge pages {} · ASLR {}",
        machine.cpus,
        machine.cpu,
        if machine.virtualised { " (virtual machine)" } else { "" },
        table::bytes(machine.memory_bytes as f64),
        if machine.takes_memory_back { " (free memory goes back to the host)" } else { "" },
        machine.kernel,
        machine.libc,
        machine.governor,
        machine.thp,
        machine.aslr
    )
}

/// The part of the page for one report. `machine` is given if it is not the one that the page
/// begins with.
fn section(report: &Report, machine: Option<String>) -> Value {
    let charts: Vec<Value> = charts::of(report, WIDE)
        .into_iter()
        .zip(charts::of(report, NARROW))
        .map(|(chart, narrow)| {
            context! {
                title => chart.title,
                about => chart.about,
                svg => Value::from_safe_string(chart.svg),
                narrow => Value::from_safe_string(narrow.svg),
            }
        })
        .collect();
    let tables: Vec<Value> = table::tables(report)
        .into_iter()
        .map(|table| {
            let head: Vec<String> = table.head.into_iter().map(|column| column.name).collect();
            context! { title => table.title, head, lines => table.lines }
        })
        .collect();
    let names = charts::subjects(report);
    let legend: Vec<Value> = names
        .iter()
        .enumerate()
        .map(|(index, name)| context! { name => *name, class => plot::class(index) })
        .collect();
    context! {
        verb => report.verb.clone(),
        command => report.command.clone(),
        machine,
        charts,
        tables,
        legend,
        notes => report.notes.clone(),
        parameters => report
            .parameters
            .iter()
            .filter(|(_, value)| !value.is_object() && !value.is_array())
            .map(|(name, value)| {
                let name = name.replace('_', " ");
                context! { name, value => value.as_str().map_or_else(|| value.to_string(), str::to_owned) }
            })
            .collect::<Vec<_>>(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contest::analysis::ALL_CASES;
    use crate::measure::thread_time_ns;
    use crate::report::{Row, Series};

    fn report() -> Report {
        let mut report = Report::new("compare");
        report.parameter("reference", "system");
        for workload in ["redis", "all"] {
            for (name, factor) in [("hectare", 0.8), ("system", 1.0), ("je<malloc>\u{1b}", 0.9)] {
                let mut row = Row::new(name, workload)
                    .with("role", "subject")
                    .with("time_ns", 1e6 * factor)
                    .with("memory", 1e6 * factor);
                for metric in ["time", "memory", "peak"] {
                    row = row
                        .with(&format!("{metric}_ratio"), factor)
                        .with(&format!("{metric}_ratio_low"), factor * 0.98)
                        .with(&format!("{metric}_ratio_high"), factor * 1.02);
                }
                report.rows.push(row);
            }
        }
        report.series.push(Series {
            plot: "resident over time".to_owned(),
            subject: "hectare".to_owned(),
            workload: "redis".to_owned(),
            x_name: "share of the run".to_owned(),
            y_name: "resident_bytes".to_owned(),
            points: vec![[0.0, 1000.0], [0.5, 3000.0], [1.0, 2000.0]],
        });
        report
    }

    #[test]
    fn a_page_is_whole_escaped_and_needs_nothing_from_outside() {
        let page = page(&[report()]).unwrap();
        assert!(page.trim_end().ends_with("</html>"));
        assert!(page.contains("je&lt;malloc&gt;") && !page.contains("je<malloc>"));
        assert!(page.contains(r"&gt;\u{1b}") && !page.contains('\u{1b}'));
        assert!(page.contains("<svg") && page.len() < 2_000_000);
        for outside in ["http://", "https://", "<script src", "<link", "@import", "NaN"] {
            let at = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!at.contains(outside), "the page holds {outside}");
        }
    }

    #[test]
    fn every_cell_of_a_table_has_a_heading_for_those_who_hear_it() {
        let page = page(&[report()]).unwrap();
        let tables: Vec<&str> = page
            .split("<table")
            .skip(1)
            .map(|rest| rest.split("</table>").next().unwrap())
            .collect();
        assert!(tables.len() >= 2);
        for table in tables {
            assert!(table.starts_with(" aria-label=\""), "{table}");
            let columns = table.matches("<th scope=\"col\">").count();
            let rows = table.matches("<th scope=\"row\">").count();
            assert!(columns > 1 && rows > 0, "{table}");
            assert_eq!(table.matches("<tr").count(), rows + 1, "{table}");
            assert_eq!(table.matches("<td").count(), rows * (columns - 1), "{table}");
            assert!(!table.contains("\"></th>"), "a heading says nothing: {table}");
        }
    }

    #[test]
    fn every_plot_of_a_trace_is_drawn_and_thousands_of_cells_stay_small() {
        let mut report = report();
        let series = |plot: &str, subject: &str, x_name: &str, y_name: &str| Series {
            plot: plot.to_owned(),
            subject: subject.to_owned(),
            workload: "redis".to_owned(),
            x_name: x_name.to_owned(),
            y_name: y_name.to_owned(),
            points: (0..1000).map(|n| [f64::from(n), f64::from(n % 7) / 7.0]).collect(),
        };
        report.series.push(series("sizes", "ideal", "size_bytes", "objects"));
        report.series.push(series("lifetimes", "ideal", "lifetime_ns", "objects"));
        for nth in 0..15 {
            let subject = format!("subject-{nth}");
            report.series.push(series("occupancy map", &subject, "page", "share in use"));
            let plot = format!("latency over time, {subject}");
            report.series.push(series(&plot, "up to 64 B", "time_ms", "latency_ns"));
        }
        report.rows.push(Row::new("hectare", "redis").with("library_instructions", 30.0));
        report.rows.push(Row::new("system", "redis").with("library_instructions", 60.0));
        let page = page(&[report]).unwrap();
        for title in [
            "Sizes: redis",
            "Lifetimes: redis",
            "Occupancy map: redis",
            "Latency over time, subject-3: redis",
            "Instructions in the allocator",
        ] {
            assert!(page.contains(title), "{title}");
        }
        assert!(page.len() < 1_800_000, "{} bytes, each plot drawn twice", page.len());
        assert!(!page.contains("NaN") && !page.contains("inf\""));
    }

    #[test]
    fn a_page_stays_below_its_limit_whatever_it_holds() {
        let mut report = report();
        for nth in 0..300 {
            report.series.push(Series {
                plot: format!("latency over time, subject-{nth}"),
                subject: "up to 64 B".to_owned(),
                workload: "redis".to_owned(),
                x_name: "time_ms".to_owned(),
                y_name: "latency_ns".to_owned(),
                points: (0..1500).map(|n| [f64::from(n), f64::from(n * 7919 % 1000)]).collect(),
            });
        }
        let page = page(&[report]).unwrap();
        assert!(page.len() < 2_000_000, "{} bytes", page.len());
        assert!(page.matches("Latency over time").count() >= 300);
        assert!(page.contains("neighbours are drawn as one"));
    }

    #[test]
    fn each_record_has_its_machine_and_can_be_found() {
        let mut other = report();
        other.machine.kernel = "0.0-other".to_owned();
        other.command = "hectare compare --seed 2".to_owned();
        let page = page(&[report(), report(), other]).unwrap();
        assert_eq!(page.matches("Linux 0.0-other").count(), 1);
        assert_eq!(page.matches("Another machine").count(), 1);
        for nth in 1..=3 {
            assert_eq!(page.matches(&format!("<a href=\"#record-{nth}\">")).count(), 1);
            assert_eq!(page.matches(&format!("id=\"record-{nth}\"")).count(), 1);
        }
        assert!(page.contains("<title>hectare: compare</title>"));
        assert!(!page.contains("neighbours are drawn as one"));
        let single = super::page(&[report()]).unwrap();
        assert!(!single.contains("<nav>") && !single.contains("Another machine"));
    }

    /// A report with `rows` rows and plots: four allocators on each case. The cases are named as
    /// `scaling` wants them.
    fn many(rows: usize) -> Report {
        let mut report = report();
        for nth in 0..rows {
            let (subject, case) = (format!("subject-{}", nth % 4), nth / 4);
            let workload = format!("w{}, {} threads", case / 2, 1 + case % 2);
            let mut row = Row::new(&subject, &workload).with("op_ns", 5.0).with("time_ns", 9.0);
            for metric in ["time_ratio", "memory_ratio"] {
                row = row.with(metric, 1.0 + nth as f64);
            }
            report.rows.push(row);
            report.series.push(Series { subject, workload, ..report.series[0].clone() });
        }
        // As many allocators on one case.
        for nth in 0..rows {
            let row = Row::new(format!("other-{nth}"), ALL_CASES).with("library_instructions", 3.0);
            report
                .rows
                .push(row.with("time_ratio", nth as f64).with("memory_ratio", (rows - nth) as f64));
        }
        report
    }

    #[test]
    fn a_page_takes_time_in_proportion_to_its_rows() {
        let least = |rows: usize| {
            let report = [many(rows)];
            let once = |_| {
                let since = thread_time_ns();
                assert!(draw(&report, false).unwrap().contains("</html>"));
                thread_time_ns() - since
            };
            (0..3).map(once).min().unwrap()
        };
        let (few, many) = (least(125), least(2000));
        let ratio = many as f64 / few as f64;
        // Sixteen times the rows take some 16 to 20 times the time. If each row looked at all rows,
        // it would be 256 times.
        assert!(ratio < 48.0, "{few} ns for 125, {many} for 2000: {ratio:.1} times as long");
    }

    #[test]
    fn an_empty_report_still_makes_a_page() {
        assert!(page(&[Report::new("compare")]).unwrap().contains("</html>"));
    }
}
