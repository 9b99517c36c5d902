//! Which charts a report can carry, and how each is made from its rows and series.

use std::fmt::Write;

use serde_json::Value;

use super::plot::{Axis, Format, Plot, Scale, class, escape, svg};
use crate::bench::LatencyRecord;
use crate::contest::analysis::ALL_CASES;
use crate::output::table::{bytes, figure};
use crate::report::{Report, Row, Series};

/// One chart.
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) about: String,
    pub(crate) svg: String,
}

/// Every chart that `report` has the data for.
pub(crate) fn of(report: &Report) -> Vec<Chart> {
    let mut charts = Vec::new();
    charts.extend(pareto(report));
    // What holds for all cases stands beside it.
    let (all, each): (Vec<&str>, Vec<&str>) =
        workloads(report).into_iter().partition(|workload| *workload == ALL_CASES);
    for workload in all.into_iter().chain(each) {
        charts.extend(ratios(report, workload));
    }
    charts.extend(scaling(report));
    charts.extend(counted(report));
    for workload in workloads(report) {
        charts.extend(latencies(report, workload));
    }
    charts.extend(series(report));
    charts
}

/// The subjects in the order of their colours: as they first appear, controls left out.
pub(crate) fn subjects(report: &Report) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for row in report.rows.iter().filter(|row| !is_control(row)) {
        if !names.contains(&row.subject.as_str()) {
            names.push(&row.subject);
        }
    }
    // Ours keeps one colour in every report.
    if let Some(at) = names.iter().position(|name| *name == "hectare") {
        names[..=at].rotate_right(1);
    }
    names
}

fn workloads(report: &Report) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for row in &report.rows {
        if !names.contains(&row.workload.as_str()) {
            names.push(&row.workload);
        }
    }
    names
}

fn is_control(row: &Row) -> bool {
    let role = row.figures.get("role").and_then(Value::as_str);
    matches!(role, Some("again" | "planted"))
}

fn class_of(report: &Report, subject: &str) -> String {
    subjects(report).iter().position(|name| *name == subject).map_or("other".to_owned(), class)
}

/// A time on an axis: round values need no digits behind the point.
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

fn factor(value: f64) -> String {
    format!("{:.2}", value)
}

fn count(value: f64) -> String {
    match value.abs() {
        ..1e3 => format!("{value:.0}"),
        ..1e6 => format!("{:.0}k", value / 1e3),
        _ => format!("{:.0}M", value / 1e6),
    }
}

fn percent(value: f64) -> String {
    format!("{:.0} %", value * 100.0)
}

fn reference(report: &Report) -> &str {
    report.parameters.get("reference").and_then(Value::as_str).unwrap_or("the reference")
}

/// Time against memory, both as ratios to the reference.
fn pareto(report: &Report) -> Option<Chart> {
    let workloads = workloads(report);
    let workload = workloads.iter().find(|name| **name == ALL_CASES).or(workloads.first())?;
    let points: Vec<(&str, [f64; 2])> = report
        .rows
        .iter()
        .filter(|row| row.workload == **workload && !is_control(row))
        .filter_map(|row| {
            Some((row.subject.as_str(), [row.number("time_ratio")?, row.number("memory_ratio")?]))
        })
        .collect();
    if points.len() < 2 {
        return None;
    }
    let around_one = |axis: usize| points.iter().map(move |(_, p)| p[axis]).chain([1.0]);
    let x = Axis {
        name: &format!("time / {} (left is faster)", reference(report)),
        scale: Scale::around(around_one(0), true, false),
        format: factor,
    };
    let y = Axis {
        name: "memory (down is leaner)",
        scale: Scale::around(around_one(1), true, false),
        format: factor,
    };
    let mut plot = Plot::new(720.0, 400.0, x, y);
    plot.unit_cross();
    let mut front: Vec<[f64; 2]> = points
        .iter()
        .map(|(_, point)| *point)
        .filter(|a| !points.iter().any(|(_, b)| b != a && b[0] <= a[0] && b[1] <= a[1]))
        .collect();
    front.sort_by(|a, b| a[0].total_cmp(&b[0]));
    plot.steps("front", "nobody is both faster and leaner than these", &front);
    for (name, point) in &points {
        let title = format!("{name}: time {:.3}, memory {:.3}", point[0], point[1]);
        plot.dot(&class_of(report, name), &title, *point);
    }
    let labels: Vec<_> = points.iter().map(|(name, point)| ((*name).to_owned(), *point)).collect();
    plot.labels(&labels);
    let whole = if *workload == ALL_CASES { "all cases (geometric mean)" } else { workload };
    Some(Chart {
        title: "Speed and memory together".to_owned(),
        about: format!(
            "{whole}; towards the lower left is better. The dotted line joins those that nobody \
             beats in both."
        ),
        svg: plot.finish("time against memory"),
    })
}

/// Ratios with their intervals, one line per subject, time and memory side by side.
fn ratios(report: &Report, workload: &str) -> Option<Chart> {
    let mut rows: Vec<&Row> = report
        .rows
        .iter()
        .filter(|row| row.workload == workload && row.number("time_ratio").is_some())
        .collect();
    if rows.len() < 2 {
        return None;
    }
    rows.sort_by(|a, b| {
        let ratio = |row: &Row| row.number("time_ratio").unwrap_or(f64::INFINITY);
        ratio(a).total_cmp(&ratio(b))
    });
    const LINE: f64 = 22.0;
    const NAMES: f64 = 150.0;
    let (width, panel) = (720.0, (720.0 - NAMES) / 2.0);
    let height = LINE * rows.len() as f64 + 44.0;
    let mut body = String::new();
    for (column, metric) in ["time", "memory"].into_iter().enumerate() {
        let part = |row: &Row, end: &str| row.number(&format!("{metric}_ratio{end}"));
        let ends = rows.iter().flat_map(|row| [part(row, "_low"), part(row, "_high")]);
        let scale = Scale::around(ends.flatten().chain([1.0]), true, false);
        let left = NAMES + panel * column as f64;
        let at = |value: f64| left + 12.0 + scale.share(value) * (panel - 24.0);
        body.push_str(&format!(
            r#"<text class="axis" x="{:.1}" y="12">{metric} / {}</text><line class="unit" x1="{one:.1}" x2="{one:.1}" y1="20" y2="{:.1}"/><text class="tick" text-anchor="middle" x="{one:.1}" y="{:.1}">1</text>"#,
            left + 12.0,
            escape(reference(report)),
            height - 20.0,
            height - 6.0,
            one = at(1.0),
        ));
        for (index, row) in rows.iter().enumerate() {
            let y = 34.0 + LINE * index as f64;
            if column == 0 {
                let weight = if row.subject == "hectare" { " strong" } else { "" };
                body.push_str(&format!(
                    r#"<text class="label{weight}" text-anchor="end" x="{:.1}" y="{:.1}">{}</text>"#,
                    NAMES - 4.0,
                    y + 4.0,
                    escape(&row.subject)
                ));
            }
            let (Some(value), Some(low), Some(high)) =
                (part(row, ""), part(row, "_low"), part(row, "_high"))
            else {
                continue;
            };
            let class = class_of(report, &row.subject);
            let title = format!("{}: {value:.3} [{low:.3}, {high:.3}]", row.subject);
            body.push_str(&format!(
                r#"<g><title>{}</title><line class="whisker {class}" x1="{:.1}" x2="{:.1}" y1="{y:.1}" y2="{y:.1}"/><circle class="dot {class}" cx="{:.1}" cy="{y:.1}" r="4"/></g>"#,
                escape(&title),
                at(low),
                at(high).max(at(low) + 1.0),
                at(value)
            ));
            let (x, anchor) = if at(high) > left + panel - 60.0 {
                (at(low) - 8.0, "end")
            } else {
                (at(high) + 8.0, "start")
            };
            body.push_str(&format!(
                r#"<text class="tick" text-anchor="{anchor}" x="{x:.1}" y="{:.1}">{value:.2}</text>"#,
                y + 4.0
            ));
        }
    }
    Some(Chart {
        title: if workload == ALL_CASES { "All cases".to_owned() } else { workload.to_owned() },
        about: "Ratios per round with their 95 % intervals; left of the line is better.".to_owned(),
        svg: svg(width, height, &format!("ratios in {workload}"), &body),
    })
}

/// Time per operation over the number of threads, for workloads run with several numbers.
fn scaling(report: &Report) -> Vec<Chart> {
    let threads_of = |workload: &str| -> Option<(String, f64)> {
        let (name, rest) = workload.split_once(", ")?;
        let (threads, more) = rest.split_once(" thread")?;
        let more = more.trim_start_matches('s');
        Some((format!("{name}{more}"), threads.parse().ok()?))
    };
    let mut groups: Vec<String> = Vec::new();
    for workload in workloads(report) {
        if let Some((group, _)) = threads_of(workload)
            && !groups.contains(&group)
        {
            groups.push(group);
        }
    }
    groups
        .into_iter()
        .filter_map(|group| {
            let lines: Vec<Series> = subjects(report)
                .into_iter()
                .map(|subject| {
                    let mut points: Vec<[f64; 2]> = report
                        .rows
                        .iter()
                        .filter(|row| row.subject == subject)
                        .filter_map(|row| {
                            let (name, threads) = threads_of(&row.workload)?;
                            (name == group).then_some([threads, row.number("op_ns")?])
                        })
                        .collect();
                    points.sort_by(|a, b| a[0].total_cmp(&b[0]));
                    Series {
                        plot: String::new(),
                        subject: subject.to_owned(),
                        workload: group.clone(),
                        x_name: "threads".to_owned(),
                        y_name: "time per operation".to_owned(),
                        points,
                    }
                })
                .filter(|series| series.points.len() > 1)
                .collect();
            let references: Vec<&Series> = lines.iter().collect();
            (!lines.is_empty()).then(|| Chart {
                title: format!("Scaling: {group}"),
                about: "Time per operation over the number of threads; lower is better.".to_owned(),
                svg: line_plot(report, &references, true, true, count, tick_time),
            })
        })
        .collect()
}

/// Percentiles of the latency of each kind of operation.
fn latencies(report: &Report, workload: &str) -> Vec<Chart> {
    let records: Vec<(&str, Vec<LatencyRecord>)> = report
        .rows
        .iter()
        .filter(|row| row.workload == workload)
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
                        // A clock cannot show less than its own step: zero is drawn as one.
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
                svg: line_plot(report, &references, false, true, mark, tick_time),
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

/// Every plot that a verb put into the report's series.
fn series(report: &Report) -> Vec<Chart> {
    let mut keys: Vec<(&str, &str)> = Vec::new();
    for one in &report.series {
        let key = (one.plot.as_str(), one.workload.as_str());
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys.into_iter()
        .map(|(plot, workload)| {
            let lines: Vec<&Series> = report
                .series
                .iter()
                .filter(|one| one.plot == plot && one.workload == workload)
                .collect();
            let first = lines[0];
            let svg = match plot {
                "occupancy map" => occupancy(&lines),
                "sizes" | "lifetimes" => histogram(first),
                _ if plot.starts_with("latency over time") => scatter(&lines),
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
                    line_plot(
                        report,
                        &lines,
                        !over_time && spread(0),
                        !over_time && spread(1),
                        x,
                        y,
                    )
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
            "Resident memory above the harness's own, over the share of the replay's time; the dashed \
             lines are Ideal, over the share of its operations: live bytes as asked for, and above \
             it with each size rounded up to 16."
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

fn line_plot(
    report: &Report,
    lines: &[&Series],
    log_x: bool,
    log_y: bool,
    x_format: Format,
    y_format: Format,
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
    let mut plot = Plot::new(720.0, 320.0, x, y);
    let mut ends = Vec::new();
    for line in lines {
        let class = match line.subject.as_str() {
            "live" | "ideal" => "ideal".to_owned(),
            name => class_of(report, name),
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
    if lines.len() <= 4 {
        plot.labels(&ends);
    }
    plot.finish(&first.y_name)
}

fn histogram(series: &Series) -> String {
    let bars: Vec<(f64, f64, f64)> = series
        .points
        .iter()
        .map(|&[from, height]| (from.max(1.0), (from * 1.25).max(from + 1.0).max(2.0), height))
        .collect();
    let format = format_of(&series.x_name);
    let ends = bars.iter().flat_map(|bar| [bar.0, bar.1]);
    let x = Axis {
        name: &series.x_name.replace('_', " "),
        scale: scale_of(&series.x_name, Scale::around(ends, true, false)),
        format,
    };
    let heights = bars.iter().map(|bar| bar.2);
    let y = Axis {
        name: &series.y_name.replace('_', " "),
        scale: Scale::around(heights, false, true),
        format: count,
    };
    let mut plot = Plot::new(720.0, 280.0, x, y);
    plot.bars("c0", &bars, format);
    plot.finish(&series.plot)
}

/// Single operations: time to the right, latency upwards, a colour for each band of sizes.
fn scatter(lines: &[&Series]) -> String {
    let all =
        |axis: usize| lines.iter().flat_map(move |line| line.points.iter().map(move |p| p[axis]));
    let first = lines[0];
    let x = Axis {
        name: "time in the recording",
        scale: Scale::around(all(0), false, true),
        format: format_of(&first.x_name),
    };
    // A clock cannot show less than its own step: zero is drawn as one. A decade above the highest
    // is left to the legend.
    let highest = all(1).fold(1.0, f64::max);
    let y = Axis {
        name: "latency",
        scale: Scale::around(all(1).map(|ns| ns.max(1.0)).chain([highest * 4.0]), true, false),
        format: format_of(&first.y_name),
    };
    let mut plot = Plot::new(720.0, 320.0, x, y);
    let mut legend = Vec::new();
    for (band, line) in lines.iter().enumerate() {
        let points: Vec<[f64; 2]> = line.points.iter().map(|&[x, y]| [x, y.max(1.0)]).collect();
        plot.scatter(&format!("s{band}"), &points);
        legend.push((format!("s{band}"), line.subject.clone()));
    }
    plot.legend(&legend);
    plot.finish(&first.plot)
}

/// A map of memory: cells for each subject, by address; the fuller, the darker.
fn occupancy(lines: &[&Series]) -> String {
    const WIDTH: f64 = 720.0;
    const NAMES: f64 = 178.0;
    const PER_LINE: usize = 64;
    /// Shades that are told apart: one path each, since a report holds thousands of cells.
    const SHADES: usize = 8;
    let side = (WIDTH - NAMES) / PER_LINE as f64;
    let mut body = String::new();
    let mut y = 4.0;
    for line in lines {
        let mut shades = vec![String::new(); SHADES];
        let shade_of = |point: &[f64; 2]| {
            ((point[1].clamp(0.0, 1.0) * SHADES as f64) as usize).min(SHADES - 1)
        };
        for (row, cells) in line.points.chunks(PER_LINE).enumerate() {
            let top = y + side * row as f64;
            let mut column = 0;
            // Neighbours of one shade are one stroke.
            for run in cells.chunk_by(|a, b| shade_of(a) == shade_of(b)) {
                let left = NAMES + side * column as f64;
                let (width, height) = (side * run.len() as f64 - 0.6, side - 0.6);
                let path = &mut shades[shade_of(&run[0])];
                let _ = write!(path, "M{left:.1} {top:.1}h{width:.1}v{height:.1}h-{width:.1}z");
                column += run.len();
            }
        }
        let mean =
            line.points.iter().map(|point| point[1]).sum::<f64>() / line.points.len().max(1) as f64;
        let _ = write!(
            body,
            r#"<g><title>{name}: {mean:.0} % in use</title><text class="label" text-anchor="end" x="{:.1}" y="{:.1}">{name} · {mean:.0} %</text>"#,
            NAMES - 8.0,
            y + side + 2.0,
            name = escape(&line.subject),
            mean = mean * 100.0
        );
        for (shade, path) in shades.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
            let opacity = 0.08 + 0.92 * shade as f64 / (SHADES - 1) as f64;
            let _ = write!(body, r#"<path class="cell" fill-opacity="{opacity:.2}" d="{path}"/>"#);
        }
        body.push_str("</g>");
        y += side * line.points.len().div_ceil(PER_LINE).max(2) as f64 + 8.0;
    }
    svg(WIDTH, y, "occupancy map", &body)
}

/// Bars for figures that are counted once and have no interval: instructions, cache misses.
fn counted(report: &Report) -> Vec<Chart> {
    const FIGURES: [(&str, &str); 4] = [
        ("library_instructions", "Instructions in the allocator"),
        ("all_instructions", "Instructions in all, with the harness"),
        ("first_level_misses", "Simulated misses of the first cache"),
        ("last_level_misses", "Simulated misses of the last cache"),
    ];
    const LINE: f64 = 22.0;
    const NAMES: f64 = 150.0;
    const WIDTH: f64 = 720.0;
    let mut charts = Vec::new();
    for (figure, title) in FIGURES {
        let mut rows: Vec<(&Row, f64)> =
            report.rows.iter().filter_map(|row| Some((row, row.number(figure)?))).collect();
        if rows.len() < 2 {
            continue;
        }
        rows.sort_by(|a, b| a.1.total_cmp(&b.1));
        let most = rows.iter().map(|row| row.1).fold(f64::MIN_POSITIVE, f64::max);
        let mut body = String::new();
        for (index, (row, value)) in rows.iter().enumerate() {
            let y = 4.0 + LINE * index as f64;
            let length = (value / most).max(0.0) * (WIDTH - NAMES - 80.0);
            let _ = write!(
                body,
                r#"<text class="label" text-anchor="end" x="{:.1}" y="{:.1}">{}</text><rect class="bar {}" x="{NAMES}" y="{y:.1}" width="{length:.1}" height="14"/><text class="tick" x="{:.1}" y="{:.1}">{value:.3}</text>"#,
                NAMES - 6.0,
                y + 11.0,
                escape(&row.subject),
                class_of(report, &row.subject),
                NAMES + length + 6.0,
                y + 11.0
            );
        }
        charts.push(Chart {
            title: format!("{title}: {}", rows[0].0.workload),
            about: "An operation, counted by valgrind's callgrind; fewer is better.".to_owned(),
            svg: svg(WIDTH, LINE * rows.len() as f64 + 8.0, title, &body),
        });
    }
    charts
}
