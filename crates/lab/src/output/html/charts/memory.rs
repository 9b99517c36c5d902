//! Thousands of points: where objects lie in memory, and single operations over time.

use std::fmt::Write;

use super::{format_of, is_narrow, names_width};
use crate::output::html::plot::{Axis, Plot, escape, svg};
use crate::output::html::scale::Scale;
use crate::report::Series;

/// Single operations: time to the right, latency upwards, a colour for each band of sizes.
pub(super) fn scatter(lines: &[&Series], width: f64) -> String {
    let all =
        |axis: usize| lines.iter().flat_map(move |line| line.points.iter().map(move |p| p[axis]));
    let first = lines[0];
    let x = Axis {
        name: "time in the recording",
        scale: Scale::around(all(0), false, true),
        format: format_of(&first.x_name),
    };
    // A clock cannot show less than its resolution, so zero is drawn as one. The space above the
    // highest point is for the legend, which takes three lines in a narrow chart.
    let highest = all(1).fold(1.0, f64::max);
    let legend_share = if is_narrow(width) { 40.0 } else { 4.0 };
    let y = Axis {
        name: "latency",
        scale: Scale::around(
            all(1).map(|ns| ns.max(1.0)).chain([highest * legend_share]),
            true,
            false,
        ),
        format: format_of(&first.y_name),
    };
    let mut plot = Plot::new(width, 320.0, x, y);
    let mut legend = Vec::new();
    for (band, line) in lines.iter().enumerate() {
        let points: Vec<[f64; 2]> = line.points.iter().map(|&[x, y]| [x, y.max(1.0)]).collect();
        plot.scatter(&format!("s{band}"), &points);
        legend.push((format!("s{band}"), line.subject.clone()));
    }
    plot.legend(&legend);
    plot.finish(&first.plot)
}

/// A map of memory: a row of cells for each subject, by address. The fuller a cell, the darker.
pub(super) fn occupancy(lines: &[&Series], width: f64) -> String {
    const PER_LINE: usize = 64;
    /// The number of shades: one path for each, since a report holds thousands of cells.
    const SHADES: usize = 8;
    // The names stand before the cells, or above them if there is no room.
    let beside = !is_narrow(width);
    let names = if beside { names_width(width) + 28.0 } else { 0.0 };
    let side = (width - names) / PER_LINE as f64;
    let mut body = String::new();
    let mut y = 4.0;
    for line in lines {
        y += if beside { 0.0 } else { 14.0 };
        let mut shades = vec![String::new(); SHADES];
        let shade_of = |point: &[f64; 2]| {
            ((point[1].clamp(0.0, 1.0) * SHADES as f64) as usize).min(SHADES - 1)
        };
        for (row, cells) in line.points.chunks(PER_LINE).enumerate() {
            let top = y + side * row as f64;
            let mut column = 0;
            // Neighbours of the same shade are one stroke.
            for run in cells.chunk_by(|a, b| shade_of(a) == shade_of(b)) {
                let left = names + side * column as f64;
                let (long, high) = (side * run.len() as f64 - 0.6, side - 0.6);
                let path = &mut shades[shade_of(&run[0])];
                let _ = write!(path, "M{left:.1} {top:.1}h{long:.1}v{high:.1}h-{long:.1}z");
                column += run.len();
            }
        }
        let mean =
            line.points.iter().map(|point| point[1]).sum::<f64>() / line.points.len().max(1) as f64;
        let (x, baseline, anchor) =
            if beside { (names - 8.0, y + side + 2.0, "end") } else { (0.0, y - 3.0, "start") };
        let _ = write!(
            body,
            r#"<g><title>{name}: {mean:.0} % in use</title><text class="label" text-anchor="{anchor}" x="{x:.1}" y="{baseline:.1}">{name} · {mean:.0} %</text>"#,
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
    svg(width, y, "occupancy map", &body)
}
