//! Allocators beside their reference: all in one plane, and one by one with their intervals.

use super::{Chart, View, factor, is_narrow, names_width};
use crate::contest::analysis::ALL_CASES;
use crate::output::html::plot::{Axis, Plot, escape, svg};
use crate::output::html::scale::Scale;
use crate::report::Row;

/// Time against memory, both as ratios to the reference.
pub(super) fn pareto(view: &View<'_>, width: f64) -> Option<Chart> {
    let all = view.workloads.get_key_value(ALL_CASES);
    let (&workload, rows) = all.or_else(|| view.workloads.first())?;
    let points: Vec<(&str, [f64; 2])> = rows
        .iter()
        .filter(|row| !row.is_control())
        .filter_map(|row| {
            Some((row.subject.as_str(), [row.number("time_ratio")?, row.number("memory_ratio")?]))
        })
        .collect();
    if points.len() < 2 {
        return None;
    }
    let around_one = |axis: usize| points.iter().map(move |(_, p)| p[axis]).chain([1.0]);
    let x = Axis {
        name: &format!("time / {} (left is faster)", view.reference()),
        scale: Scale::around(around_one(0), true, false),
        format: factor,
    };
    let y = Axis {
        name: "memory (down is leaner)",
        scale: Scale::around(around_one(1), true, false),
        format: factor,
    };
    let mut plot = Plot::new(width, 400.0, x, y);
    plot.unit_cross();
    let front = front(points.iter().map(|(_, point)| *point).collect());
    plot.steps("front", "no allocator is both faster and leaner than these", &front);
    for (name, point) in &points {
        let title = format!("{name}: time {:.3}, memory {:.3}", point[0], point[1]);
        plot.dot(&view.class_of(name), &title, *point);
    }
    let labels: Vec<_> = points.iter().map(|(name, point)| ((*name).to_owned(), *point)).collect();
    plot.labels(&labels);
    let whole = if workload == ALL_CASES { "all cases (geometric mean)" } else { workload };
    Some(Chart {
        title: "Speed and memory together".to_owned(),
        about: format!(
            "{whole}; towards the lower left is better. The dotted line joins those that no \
             allocator beats in both."
        ),
        svg: plot.finish("time against memory"),
    })
}

/// The points than which no other point is at most as large in both coordinates.
fn front(mut points: Vec<[f64; 2]>) -> Vec<[f64; 2]> {
    points.sort_by(|a, b| a[0].total_cmp(&b[0]).then(a[1].total_cmp(&b[1])));
    let mut front: Vec<[f64; 2]> = Vec::new();
    for point in points {
        // All earlier points are at most as large in the first coordinate, and the last of the
        // front is the least in the second.
        if front.last().is_none_or(|last| point[1] < last[1] || point == *last) {
            front.push(point);
        }
    }
    front
}

/// Ratios with their intervals, one line per subject, time and memory.
pub(super) fn intervals(view: &View<'_>, workload: &str, width: f64) -> Option<Chart> {
    let mut rows = view.rows(workload).to_vec();
    rows.retain(|row| row.number("time_ratio").is_some());
    if rows.len() < 2 {
        return None;
    }
    rows.sort_by(|a, b| {
        let ratio = |row: &Row| row.number("time_ratio").unwrap_or(f64::INFINITY);
        ratio(a).total_cmp(&ratio(b))
    });
    const LINE: f64 = 22.0;
    // The panels are side by side, or below each other if there is no room.
    let beside = !is_narrow(width);
    let names = names_width(width);
    let panel = if beside { (width - names) / 2.0 } else { width - names };
    let panel_height = LINE * rows.len() as f64 + 44.0;
    let mut body = String::new();
    for (column, metric) in ["time", "memory"].into_iter().enumerate() {
        let part = |row: &Row, end: &str| row.number(&format!("{metric}_ratio{end}"));
        let ends = rows.iter().flat_map(|row| [part(row, "_low"), part(row, "_high")]);
        let scale = Scale::around(ends.flatten().chain([1.0]), true, false);
        let left = if beside { names + panel * column as f64 } else { names };
        let top = if beside { 0.0 } else { panel_height * column as f64 };
        let at = |value: f64| left + 12.0 + scale.share(value) * (panel - 24.0);
        body.push_str(&format!(
            r#"<text class="axis" x="{:.1}" y="{:.1}">{metric} / {}</text><line class="unit" x1="{one:.1}" x2="{one:.1}" y1="{:.1}" y2="{:.1}"/><text class="tick" text-anchor="middle" x="{one:.1}" y="{:.1}">1</text>"#,
            left + 12.0,
            top + 12.0,
            escape(view.reference()),
            top + 20.0,
            top + panel_height - 20.0,
            top + panel_height - 6.0,
            one = at(1.0),
        ));
        for (index, row) in rows.iter().enumerate() {
            let y = top + 34.0 + LINE * index as f64;
            if column == 0 || !beside {
                let weight = if row.subject == "hectare" { " strong" } else { "" };
                body.push_str(&format!(
                    r#"<text class="label{weight}" text-anchor="end" x="{:.1}" y="{:.1}">{}</text>"#,
                    names - 4.0,
                    y + 4.0,
                    escape(&row.subject)
                ));
            }
            let (Some(value), Some(low), Some(high)) =
                (part(row, ""), part(row, "_low"), part(row, "_high"))
            else {
                continue;
            };
            let class = view.class_of(&row.subject);
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
    let height = if beside { panel_height } else { 2.0 * panel_height };
    Some(Chart {
        title: if workload == ALL_CASES { "All cases".to_owned() } else { workload.to_owned() },
        about: "Ratios per round with their intervals (95 % from six rounds on); left of the line is better.".to_owned(),
        svg: svg(width, height, &format!("ratios in {workload}"), &body),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_is_what_nobody_beats_in_both() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..200 {
            // Few distinct values, so that many are equal.
            let points: Vec<[f64; 2]> = (0..random.usize(1..30))
                .map(|_| [0, 1].map(|_| f64::from(random.u32(0..8))))
                .collect();
            let beats = |b: &[f64; 2], a: &[f64; 2]| b != a && b[0] <= a[0] && b[1] <= a[1];
            let mut expected = points.clone();
            expected.retain(|a| !points.iter().any(|b| beats(b, a)));
            expected.sort_by(|a, b| a[0].total_cmp(&b[0]));
            assert_eq!(front(points.clone()), expected, "{points:?}");
        }
    }
}
