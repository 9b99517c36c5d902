//! Lines over threads, percentiles or time.

use std::collections::BTreeMap;

use indexmap::IndexMap;

use super::{Chart, View, count, is_narrow, scale_of, tick_time};
use crate::bench::LatencyRecord;
use crate::output::html::plot::{Axis, Format, Plot};
use crate::output::html::scale::Scale;
use crate::output::table::figure;
use crate::report::Series;

/// A workload's name without its number of threads, and that number.
fn threads_of(workload: &str) -> Option<(String, f64)> {
    let (name, rest) = workload.split_once(", ")?;
    let (threads, more) = rest.split_once(" thread")?;
    let more = more.trim_start_matches('s');
    Some((format!("{name}{more}"), threads.parse().ok()?))
}

/// Time per operation over the number of threads, for workloads run with several numbers.
pub(super) fn scaling(view: &View<'_>, width: f64) -> Vec<Chart> {
    // Grouped by what is run, then by the number of the subject.
    let mut groups: IndexMap<String, BTreeMap<usize, Vec<[f64; 2]>>> = IndexMap::new();
    for (workload, rows) in &view.workloads {
        let Some((group, threads)) = threads_of(workload) else { continue };
        let lines = groups.entry(group).or_default();
        for row in rows.iter().filter(|row| !row.is_broken()) {
            let subject = view.subjects.get_index_of(row.subject.as_str());
            if let (Some(subject), Some(ns)) = (subject, row.number("op_ns")) {
                lines.entry(subject).or_default().push([threads, ns]);
            }
        }
    }
    groups
        .into_iter()
        .filter_map(|(group, lines)| {
            let lines: Vec<Series> = lines
                .into_iter()
                .filter(|(_, points)| points.len() > 1)
                .map(|(subject, mut points)| {
                    points.sort_by(|a, b| a[0].total_cmp(&b[0]));
                    Series {
                        plot: String::new(),
                        subject: view.subjects[subject].to_owned(),
                        workload: group.clone(),
                        x_name: "threads".to_owned(),
                        y_name: "time per operation".to_owned(),
                        points,
                    }
                })
                .collect();
            let references: Vec<&Series> = lines.iter().collect();
            (!lines.is_empty()).then(|| Chart {
                title: format!("Scaling: {group}"),
                about: "Time per operation over the number of threads; lower is better.".to_owned(),
                svg: line_plot(view, &references, width, (true, count), (true, tick_time)),
            })
        })
        .collect()
}

/// Percentiles of the latency of each kind of operation.
pub(super) fn latencies(view: &View<'_>, workload: &str, width: f64) -> Vec<Chart> {
    let records: Vec<(&str, Vec<LatencyRecord>)> = view
        .rows(workload)
        .iter()
        .filter_map(|row| {
            let value = row.figures.get("latencies")?.clone();
            Some((row.subject.as_str(), serde_json::from_value(value).ok()?))
        })
        .collect();
    let mut operations: Vec<&str> = Vec::new();
    for record in records.iter().flat_map(|(_, list)| list) {
        if !operations.contains(&record.operation.as_str()) {
            operations.push(&record.operation);
        }
    }
    operations
        .into_iter()
        .map(|operation| {
            let lines: Vec<Series> = records
                .iter()
                .filter_map(|(subject, list)| {
                    let one = list.iter().find(|record| record.operation == operation)?;
                    let values = [
                        one.p50_ns,
                        one.p90_ns,
                        one.p99_ns,
                        one.p999_ns,
                        one.p9999_ns,
                        one.worst_ns,
                    ];
                    let points = values.iter().enumerate();
                    Some(Series {
                        plot: String::new(),
                        subject: (*subject).to_owned(),
                        workload: workload.to_owned(),
                        x_name: "share of the calls".to_owned(),
                        y_name: format!("latency of {operation}"),
                        // A clock cannot show less than its resolution, so zero is drawn as one.
                        points: points.map(|(index, ns)| [index as f64, ns.max(1.0)]).collect(),
                    })
                })
                .collect();
            let clock = records
                .iter()
                .flat_map(|(_, list)| list)
                .map(|record| record.clock_ns)
                .fold(0.0, f64::max);
            let references: Vec<&Series> = lines.iter().collect();
            Chart {
                title: format!("Latency of {operation}: {workload}"),
                about: format!(
                    "Each operation timed, in a run of its own; reading the clock costs {clock:.0} \
                     ns, which is in every figure."
                ),
                svg: line_plot(view, &references, width, (false, mark), (true, tick_time)),
            }
        })
        .collect()
}

/// The percentile at a place of the latency axis.
fn mark(place: f64) -> String {
    const MARKS: [&str; 6] = ["p50", "p90", "p99", "p99.9", "p99.99", "worst"];
    let whole = (place - place.round()).abs() < 1e-6 && place >= 0.0;
    if whole { MARKS.get(place.round() as usize).copied().unwrap_or("") } else { "" }.to_owned()
}

/// Lines over a common axis. For each axis the caller says whether it is logarithmic and how its
/// values are written.
pub(super) fn line_plot(
    view: &View<'_>,
    lines: &[&Series],
    width: f64,
    (log_x, x_format): (bool, Format),
    (log_y, y_format): (bool, Format),
) -> String {
    let all =
        |axis: usize| lines.iter().flat_map(move |line| line.points.iter().map(move |p| p[axis]));
    let first = lines[0];
    let x = Axis {
        name: &first.x_name.replace('_', " "),
        scale: scale_of(&first.x_name, Scale::around(all(0), log_x, false)),
        format: x_format,
    };
    let y = Axis {
        name: &first.y_name.replace('_', " "),
        scale: scale_of(&first.y_name, Scale::around(all(1), log_y, !log_y)),
        format: y_format,
    };
    let mut plot = Plot::new(width, 320.0, x, y);
    let mut ends = Vec::new();
    for line in lines {
        let class = match line.subject.as_str() {
            "live" | "ideal" => "ideal".to_owned(),
            name => view.class_of(name),
        };
        plot.line(&class, &line.subject, &line.points);
        if let Some(end) = line.points.last() {
            ends.push((line.subject.clone(), *end));
        }
        if line.points.len() <= 12 {
            for point in &line.points {
                let at = figure(&line.y_name, point[1]);
                let value = if line.y_name.ends_with("_ns") || line.y_name.ends_with("_bytes") {
                    at
                } else {
                    y_format(point[1])
                };
                plot.dot(&class, &format!("{}: {value}", line.subject), *point);
            }
        }
    }
    if lines.len() <= 4 && !is_narrow(width) {
        plot.labels(&ends);
    }
    plot.finish(&first.y_name)
}
