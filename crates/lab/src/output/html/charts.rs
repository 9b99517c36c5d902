//! Which charts a report can have, and how each is made from its rows and series.
//!
//! Every chart is drawn for a width: 720 pixels, or 360 for narrow windows, where panels stand below
//! each other. The page shows one of the two.

mod bars;
mod lines;
mod memory;
mod ratios;

use indexmap::{IndexMap, IndexSet};

use super::plot::{Format, class};
use super::scale::Scale;
use crate::contest::analysis::ALL_CASES;
use crate::output::table::bytes;
use crate::report::{Report, Row, Series, by_workload};

/// One chart.
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) about: String,
    pub(crate) svg: String,
}

/// Whether there is no room for two things side by side.
fn is_narrow(width: f64) -> bool {
    width < 500.0
}

/// The width of the allocators' names, pixels.
fn names_width(width: f64) -> f64 {
    if is_narrow(width) { 130.0 } else { 150.0 }
}

/// Every chart that `report` has the data for, `width` pixels wide.
pub(crate) fn of(report: &Report, width: f64) -> Vec<Chart> {
    let view = View::of(report);
    let mut charts = Vec::new();
    charts.extend(ratios::pareto(&view, width));
    // The intervals over all cases come first, next to the plot above.
    let (all, each): (Vec<&str>, Vec<&str>) =
        view.workloads.keys().copied().partition(|workload| *workload == ALL_CASES);
    for workload in all.into_iter().chain(each) {
        charts.extend(ratios::intervals(&view, workload, width));
    }
    charts.extend(lines::scaling(&view, width));
    charts.extend(bars::counted(&view, width));
    for workload in view.workloads.keys() {
        charts.extend(lines::latencies(&view, workload, width));
    }
    charts.extend(series(&view, width));
    charts
}

/// A report in the form that its charts need. They ask for rows and colours by name, once for each
/// of what may be thousands, so both are indexed.
struct View<'a> {
    report: &'a Report,
    workloads: IndexMap<&'a str, Vec<&'a Row>>,
    subjects: IndexSet<&'a str>,
}

impl<'a> View<'a> {
    fn of(report: &'a Report) -> Self {
        Self { report, workloads: by_workload(&report.rows), subjects: subjects(report) }
    }

    /// The rows of a workload.
    fn rows(&self, workload: &str) -> &[&'a Row] {
        self.workloads.get(workload).map_or(&[], Vec::as_slice)
    }

    /// The class that gives a subject its colour.
    fn class_of(&self, subject: &str) -> String {
        self.subjects.get_index_of(subject).map_or("other".to_owned(), class)
    }

    /// The name of the subject that ratios are relative to.
    fn reference(&self) -> &'a str {
        self.report.reference().unwrap_or("the reference")
    }
}

/// The subjects in the order of their colours: the order in which they first appear, without
/// controls.
pub(crate) fn subjects(report: &Report) -> IndexSet<&str> {
    let rows = report.rows.iter().filter(|row| !row.is_control());
    let mut names: IndexSet<&str> = rows.map(|row| row.subject.as_str()).collect();
    // Our allocator has the same colour in every report.
    if let Some(at) = names.get_index_of("hectare") {
        names.move_index(at, 0);
    }
    names
}

/// Every plot that a verb put into the report's series.
fn series(view: &View<'_>, width: f64) -> Vec<Chart> {
    let mut plots: IndexMap<(&str, &str), Vec<&Series>> = IndexMap::new();
    for one in &view.report.series {
        plots.entry((&one.plot, &one.workload)).or_default().push(one);
    }
    plots
        .into_iter()
        .map(|((plot, workload), lines)| {
            let first = lines[0];
            let svg = match plot {
                "occupancy map" => memory::occupancy(&lines, width),
                "sizes" | "lifetimes" => bars::histogram(first, width),
                _ if plot.starts_with("latency over time") => memory::scatter(&lines, width),
                _ => {
                    let spread = |axis: usize| {
                        let values =
                            lines.iter().flat_map(|line| line.points.iter().map(move |p| p[axis]));
                        let positive: Vec<f64> = values.filter(|value| *value > 0.0).collect();
                        let low = positive.iter().copied().fold(f64::INFINITY, f64::min);
                        positive.iter().copied().fold(0.0, f64::max) / low > 1e3
                    };
                    let (x, y) = (format_of(&first.x_name), format_of(&first.y_name));
                    let over_time = plot.ends_with("over time");
                    let (log_x, log_y) = (!over_time && spread(0), !over_time && spread(1));
                    lines::line_plot(view, &lines, width, (log_x, x), (log_y, y))
                }
            };
            Chart {
                title: format!("{}: {workload}", capitalised(plot)),
                about: about_series(plot).to_owned(),
                svg,
            }
        })
        .collect()
}

fn about_series(plot: &str) -> &'static str {
    match plot {
        "resident over time" => {
            "Resident memory over the share of the run's time; of a replay, what is above the \
             harness's own, and the dashed lines are Ideal, over the share of its operations: live \
             bytes as asked for, and above it with each size rounded up to 16."
        }
        "sizes" => "How many objects were asked for of each size.",
        "lifetimes" => "How long objects lived in the recorded program.",
        "occupancy map" => {
            "Where the live objects lie after the peak, when half of it is left: each cell is a \
             stretch of resident memory, by address; the fuller, the darker. The fewer cells the \
             better: the number is the share in use of all that is resident."
        }
        _ if plot.starts_with("latency over time") => {
            "Each dot is one call, at its time in the recording: the slowest and an even sample of \
             the others (the plot of the Doom 3 allocator study)."
        }
        _ => "",
    }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// A time on an axis. Round values have no digits behind the point.
fn tick_time(ns: f64) -> String {
    let (value, unit) = match ns.abs() {
        ..1e3 => (ns, "ns"),
        ..1e6 => (ns / 1e3, "µs"),
        ..1e9 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    let digits = if (value - value.round()).abs() < 1e-6 { 0 } else { 1 };
    format!("{value:.digits$} {unit}")
}

/// A factor on an axis. A mark between two hundredths is not rounded to one of them.
fn factor(value: f64) -> String {
    let digits = if (value * 100.0 - (value * 100.0).round()).abs() < 1e-6 { 2 } else { 3 };
    format!("{value:.digits$}")
}

fn count(value: f64) -> String {
    let (value, unit) = match value.abs() {
        ..1e3 => (value, ""),
        ..1e6 => (value / 1e3, "k"),
        _ => (value / 1e6, "M"),
    };
    format!("{}{unit}", short(value))
}

fn percent(value: f64) -> String {
    format!("{} %", short(value * 100.0))
}

/// A number with at most two digits after the point, and no trailing zeros.
fn short(value: f64) -> String {
    ((value * 100.0).round() / 100.0).to_string()
}

fn format_of(name: &str) -> Format {
    match name.rsplit('_').next() {
        Some("ns") => tick_time,
        Some("ms") => |value| tick_time(value * 1e6),
        Some("bytes") => bytes,
        Some("ratio") => factor,
        _ if name.starts_with("share") => percent,
        _ => count,
    }
}

/// The scale of an axis, by the unit of its name.
fn scale_of(name: &str, scale: Scale) -> Scale {
    if name.ends_with("bytes") { scale.binary() } else { scale }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::html::scale::Scale;

    #[test]
    fn no_two_marks_of_an_axis_are_written_alike() {
        for high in [0.0, 1.0, 3.0, 40.0, 2100.0, 7_300.0, 1.3e6, 2.1e6] {
            let ticks = Scale::around([high], false, true).ticks(5);
            let mut written: Vec<String> = ticks.iter().map(|&tick| count(tick)).collect();
            written.dedup();
            assert_eq!(written.len(), ticks.len(), "{written:?}");
        }
        assert_eq!([count(1500.0), count(2000.0), count(0.25)], ["1.5k", "2k", "0.25"]);
        assert_eq!([factor(0.975), factor(1.0)], ["0.975", "1.00"]);
        assert_eq!([percent(0.025), percent(0.5)], ["2.5 %", "50 %"]);
    }
}
