//! One offline HTML page: the table, the curves, and the occupancy of the frames.

use std::fmt::Write as _;

use crate::output::place::MADE_BY;
use crate::report::{Report, Row, Series};
use crate::say::in_one_line;

/// Colours that everyone can tell apart, in light and in dark (after Okabe and Ito).
const COLOURS: [&str; 13] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b",
    "#b8a800", "#8a5cc0", "#17becf", "#c44e52", "#4c9f38",
];

/// How full each 2 MiB of an allocator's frames is.
pub(super) struct Occupancy {
    pub(super) name: String,
    /// Allocated frames of each 512.
    pub(super) used_frames: Vec<u16>,
}

/// The page of a report.
pub(super) fn page(report: &Report, pictures: &[Occupancy]) -> String {
    let mut html = String::new();
    html.push_str(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>hectare buddy</title><style>\
         :root{color-scheme:light dark;--ink:#222;--paper:#fff;--grid:#ddd;--full:#0072b2}\
         @media(prefers-color-scheme:dark){:root{--ink:#ddd;--paper:#181818;--grid:#444;--full:#56b4e9}}\
         body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;\
         color:var(--ink);background:var(--paper)}h1,h2{line-height:1.2}h2{font-size:1.2rem}\
         svg{width:100%;height:auto;display:block}\
         .wide{overflow-x:auto}.wide svg{min-width:42rem}text{fill:var(--ink);font-size:12px}\
         table{border-collapse:collapse;font-size:13px}\
         td,th{padding:.15rem .5rem;text-align:right;border-bottom:1px solid var(--grid);\
         white-space:nowrap;font-variant-numeric:tabular-nums}th{white-space:normal;\
         vertical-align:bottom}td:first-child,th:first-child{text-align:left;position:sticky;left:0;\
         background:var(--paper)}td.text{text-align:left;white-space:normal;min-width:12rem}\
         code{overflow-wrap:anywhere}.maps{display:grid;gap:1rem;\
         grid-template-columns:repeat(auto-fill,minmax(13rem,1fr))}figure{margin:0}\
         figcaption{font-size:13px}</style>",
    );
    let _ = write!(html, "<h1>{}</h1><p>Made by <code>", escape(&report.verb));
    let _ =
        write!(html, "{}</code> on {}.</p>", escape(&report.command), escape(&report.machine.cpu));
    for (name, title) in BARS {
        bars(&mut html, report, name, title);
    }
    let mut plots: Vec<&str> = report.series.iter().map(|series| series.plot.as_str()).collect();
    plots.dedup();
    for plot in plots {
        let lines: Vec<&Series> = report.series.iter().filter(|line| line.plot == plot).collect();
        let _ = write!(html, "<h2>{}</h2><div class=\"wide\">", escape(plot));
        chart(&mut html, &lines);
        html.push_str("</div>");
    }
    if !pictures.is_empty() {
        html.push_str(
            "<h2>Occupancy at the end</h2><p>A square is 2 MiB: empty squares are whole huge \
             frames, the darker the more of its 512 frames are in use. Frame 0 is at the top \
             left.</p><div class=\"maps\">",
        );
        for picture in pictures {
            map(&mut html, &picture.name, &picture.used_frames);
        }
        html.push_str("</div>");
    }
    for note in &report.notes {
        let _ = write!(html, "<p>{}</p>", escape(note));
    }
    table(&mut html, report);
    html.push_str("</html>\n");
    html
}

/// The first plot alone, as SVG instead of HTML.
pub(super) fn svg(report: &Report) -> String {
    let plot = report.series.first().map(|series| series.plot.as_str());
    let of_plot = |line: &&Series| Some(line.plot.as_str()) == plot;
    let lines: Vec<&Series> = report.series.iter().filter(of_plot).collect();
    let mut svg = MADE_BY.to_owned();
    chart(&mut svg, &lines);
    // An embedded image does not inherit the page's colours.
    let style = "<style>svg{--grid:#ccc}text{fill:#222}@media(prefers-color-scheme:dark){\
                 svg{--grid:#555}text{fill:#ddd}}</style></svg>";
    svg.replacen("</svg>", style, 1) + "\n"
}

fn escape(text: &str) -> String {
    in_one_line(text).replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

/// Figures that are drawn as bars if rows have them.
const BARS: [(&str, &str); 4] = [
    ("alloc_ns", "ns to take a block"),
    ("free_ns", "ns to give a block back"),
    ("op_ns", "ns a request"),
    ("span_ratio", "memory reached over, times the most in use"),
];

/// One bar for each row with the figure `name`, from 1 (or the power of ten below) on a logarithmic
/// scale. Rows already drawn as points of a curve are left out.
fn bars(html: &mut String, report: &Report, name: &str, title: &str) {
    const WIDTH: f64 = 900.0;
    const LEFT: f64 = 260.0;
    const RIGHT: f64 = 80.0;
    const STEP: f64 = 20.0;
    let is_bar = |row: &&Row| report.series.is_empty() && row.number(name).is_some();
    let rows: Vec<&Row> = report.rows.iter().filter(is_bar).collect();
    if rows.is_empty() {
        return;
    }
    let values = rows.iter().filter_map(|row| row.number(name));
    let mut axis = Axis::over(values, true);
    axis.low = axis.low.min(0.0);
    let px = |value: f64| LEFT + axis.place(value) * (WIDTH - LEFT - RIGHT);
    let height = STEP * rows.len() as f64 + 24.0;
    let _ = write!(
        html,
        "<h2>{title}</h2><div class=\"wide\"><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         font-family=\"sans-serif\">"
    );
    for (value, label) in axis.ticks() {
        let at = px(value);
        let _ = write!(
            html,
            "<path d=\"M{at:.1} 0V{:.1}\" stroke=\"var(--grid,#ccc)\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            height - 18.0,
            height - 4.0
        );
    }
    for (at, row) in rows.iter().enumerate() {
        let (value, top) = (row.number(name).unwrap_or(0.0), STEP * at as f64);
        let has_threads = report.rows.iter().any(|row| row.number("threads") > Some(1.0));
        let threads = row.number("threads").filter(|_| has_threads);
        let threads = threads.map_or(String::new(), |threads| format!(", threads: {threads}"));
        let workload = if row.workload == "demo" { "" } else { &row.workload };
        let workload = if workload.is_empty() { String::new() } else { format!(", {workload}") };
        let is_peer = row.text("kind") == Some("peer");
        let _ = write!(
            html,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}{}{threads}</text>\
             <rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LEFT - 6.0,
            top + 14.0,
            escape(&row.subject),
            escape(&workload),
            top + 3.0,
            (px(value) - LEFT).max(1.0),
            STEP - 6.0,
            if is_peer { COLOURS[4] } else { COLOURS[0] },
            px(value) + 5.0,
            top + 14.0,
            digits(value)
        );
    }
    html.push_str("</svg></div>");
}

/// Four significant digits.
fn digits(value: f64) -> String {
    let places = if value == 0.0 { 0.0 } else { (3.0 - value.abs().log10().floor()).max(0.0) };
    let text = format!("{value:.0$}", places as usize);
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// The columns of the table: what was done, then the results, then extremes and texts.
fn columns(report: &Report) -> Vec<&str> {
    const FIRST: [&str; 16] = [
        "threads",
        "frames",
        "blocks",
        "requests",
        "rounds",
        "alloc_ms",
        "alloc_ns",
        "alloc_times_first",
        "free_ms",
        "free_ns",
        "free_times_first",
        "huge_after_1_ratio",
        "huge_after_10_ratio",
        "huge_after_30_ratio",
        "huge_after_100_ratio",
        "huge_ratio",
    ];
    let names = report.rows.iter().flat_map(|row| row.figures.keys().map(String::as_str));
    let mut columns: Vec<&str> =
        names.filter(|name| !["about", "kind", "load_percent"].contains(name)).collect();
    let rank = |name: &str| match name {
        "note" => FIRST.len() + 1,
        _ => FIRST.iter().position(|&first| first == name).unwrap_or(FIRST.len()),
    };
    columns.sort_by_key(|&name| (rank(name), name));
    columns.dedup();
    columns
}

fn table(html: &mut String, report: &Report) {
    let columns = columns(report);
    html.push_str("<h2>Figures</h2><div class=\"wide\"><table><tr><th>allocator<th>workload");
    for column in &columns {
        let _ = write!(html, "<th>{}", escape(&column.replace('_', " ")));
    }
    for row in &report.rows {
        let _ = write!(html, "<tr><td>{}<td>{}", escape(&row.subject), escape(&row.workload));
        for &column in &columns {
            let _ = match (row.number(column), row.figures.get(column)) {
                (Some(number), _) if number.fract() != 0.0 => {
                    write!(html, "<td>{}", digits(number))
                }
                (Some(number), _) => write!(html, "<td>{number}"),
                (None, Some(value)) => {
                    let text = value.as_str().map(escape).unwrap_or_default();
                    write!(html, "<td class=\"text\">{text}")
                }
                (None, None) => write!(html, "<td>"),
            };
        }
    }
    html.push_str("</table></div>");
}

/// Where a value lies between the ends of an axis, 0 to 1.
struct Axis {
    low: f64,
    high: f64,
    is_log: bool,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64> + Clone, is_log: bool) -> Self {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(f64::NEG_INFINITY, f64::max);
        if is_log {
            let (low, high) = (low.max(1e-9).log10().floor(), high.max(1e-9).log10().ceil());
            Self { low, high: high.max(low + 1.0), is_log }
        } else {
            // To the next round number.
            let power = 10f64.powf(high.max(1e-9).log10().floor());
            let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
            let round = steps.into_iter().find(|&step| step >= high).unwrap_or(high);
            Self { low: 0.0, high: if high > 0.0 { round } else { 1.0 }, is_log }
        }
    }

    fn place(&self, value: f64) -> f64 {
        let value = if self.is_log { value.max(1e-9).log10() } else { value };
        (value - self.low) / (self.high - self.low)
    }

    /// Values worth a grid line, with their labels.
    fn ticks(&self) -> Vec<(f64, String)> {
        if self.is_log {
            let name = |power: i32| {
                if (-3..=4).contains(&power) {
                    format!("{}", 10f64.powi(power))
                } else {
                    format!("10^{power}")
                }
            };
            (self.low as i32..=self.high as i32)
                .map(|power| (10f64.powi(power), name(power)))
                .collect()
        } else {
            (0..=5)
                .map(|step| self.high * f64::from(step) / 5.0)
                .map(|value| (value, format!("{}", (value * 1000.0).round() / 1000.0)))
                .collect()
        }
    }
}

/// A line chart with the names beside the ends of the lines.
fn chart(html: &mut String, lines: &[&Series]) {
    const WIDTH: f64 = 900.0;
    const HEIGHT: f64 = 420.0;
    const LEFT: f64 = 60.0;
    const RIGHT: f64 = 220.0;
    const BOTTOM: f64 = 40.0;
    const LINE_HEIGHT: f64 = 14.0;
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let is_log = lines.first().is_some_and(|line| line.x_name == "blocks");
    let x = Axis::over(points().map(|point| point[0]), is_log);
    let y = Axis::over(points().map(|point| point[1]), is_log);
    let px = |value: f64| LEFT + x.place(value) * (WIDTH - LEFT - RIGHT);
    let py = |value: f64| 10.0 + (1.0 - y.place(value)) * (HEIGHT - BOTTOM - 10.0);
    let _ = write!(
        html,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         font-family=\"sans-serif\" font-size=\"11\">"
    );
    for (value, name) in x.ticks() {
        let at = px(value);
        let (top, bottom) = (10.0, HEIGHT - BOTTOM);
        let _ = write!(
            html,
            "<path d=\"M{at:.1} {top}V{bottom}\" stroke=\"var(--grid,#ccc)\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{name}</text>",
            bottom + 14.0
        );
    }
    for (value, name) in y.ticks() {
        let at = py(value);
        let _ = write!(
            html,
            "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"var(--grid,#ccc)\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0
        );
    }
    if let Some(line) = lines.first() {
        let _ = write!(
            html,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text><text x=\"66\" y=\"24\">{}</text>",
            WIDTH - RIGHT,
            HEIGHT - 8.0,
            escape(&line.x_name),
            escape(&line.y_name)
        );
    }
    let mut names: Vec<(f64, usize)> = lines
        .iter()
        .enumerate()
        .filter_map(|(at, line)| Some((py(line.points.last()?[1]), at)))
        .collect();
    names.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Names are placed at the height of the line's end, pushed down if they would collide, and up
    // again if that took them out of the picture.
    let mut above = f64::NEG_INFINITY;
    for name in &mut names {
        name.0 = name.0.max(above + LINE_HEIGHT);
        above = name.0;
    }
    let mut below = HEIGHT - BOTTOM + LINE_HEIGHT;
    for name in names.iter_mut().rev() {
        name.0 = name.0.min(below - LINE_HEIGHT);
        below = name.0;
    }
    for (height, at) in names {
        let line = lines[at];
        let colour = COLOURS[at % COLOURS.len()];
        let path: Vec<String> = line
            .points
            .iter()
            .map(|point| format!("{:.1} {:.1}", px(point[0]), py(point[1])))
            .collect();
        let _ = write!(
            html,
            "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" style=\"fill:{colour}\">{}</text>",
            path.join("L"),
            WIDTH - RIGHT + 6.0,
            height + 4.0,
            escape(&line.subject)
        );
    }
    html.push_str("</svg>");
}

/// The frames of one allocator: a square for each 2 MiB.
fn map(html: &mut String, name: &str, used: &[u16]) {
    let columns = (used.len() as f64).sqrt().ceil().max(1.0) as usize;
    let rows = used.len().div_ceil(columns);
    let whole = used.iter().filter(|&&used| used == 0).count();
    let _ = write!(
        html,
        "<figure><svg viewBox=\"0 0 {columns} {rows}\" role=\"img\">\
         <rect width=\"{columns}\" height=\"{rows}\" fill=\"var(--grid,#ccc)\" fill-opacity=\".4\"/>"
    );
    for (at, &used) in used.iter().enumerate().filter(|&(_, &used)| used > 0) {
        let _ = write!(
            html,
            "<rect x=\"{}\" y=\"{}\" width=\".9\" height=\".9\" fill=\"var(--full)\" \
             fill-opacity=\"{:.2}\"/>",
            at % columns,
            at / columns,
            0.15 + 0.85 * f64::from(used) / 512.0
        );
    }
    let _ = write!(
        html,
        "</svg><figcaption>{}: {whole} of {} huge frames whole</figcaption></figure>",
        escape(name),
        used.len()
    );
}
