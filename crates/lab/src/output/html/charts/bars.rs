//! Bars: what is counted, and how it is distributed.

use std::fmt::Write;

use super::{Chart, View, count, format_of, names_width, scale_of};
use crate::output::html::plot::{Axis, Plot, escape, svg};
use crate::output::html::scale::Scale;
use crate::report::{Row, Series};

/// Bars for figures that are counted once and have no interval: instructions, cache misses.
pub(super) fn counted(view: &View<'_>, width: f64) -> Vec<Chart> {
    const FIGURES: [(&str, &str); 4] = [
        ("library_instructions", "Instructions in the allocator"),
        ("all_instructions", "Instructions in all, with the harness"),
        ("first_level_misses", "Simulated misses of the first cache"),
        ("last_level_misses", "Simulated misses of the last cache"),
    ];
    const LINE: f64 = 22.0;
    let names = names_width(width);
    let mut charts = Vec::new();
    for (figure, title) in FIGURES {
        let mut rows: Vec<(&Row, f64)> =
            view.report.rows.iter().filter_map(|row| Some((row, row.number(figure)?))).collect();
        if rows.len() < 2 {
            continue;
        }
        rows.sort_by(|a, b| a.1.total_cmp(&b.1));
        let most = rows.iter().map(|row| row.1).fold(f64::MIN_POSITIVE, f64::max);
        let mut body = String::new();
        for (index, (row, value)) in rows.iter().enumerate() {
            let y = 4.0 + LINE * index as f64;
            let length = (value / most).max(0.0) * (width - names - 80.0);
            let _ = write!(
                body,
                r#"<text class="label" text-anchor="end" x="{:.1}" y="{:.1}">{}</text><rect class="bar {}" x="{names}" y="{y:.1}" width="{length:.1}" height="14"/><text class="tick" x="{:.1}" y="{:.1}">{value:.3}</text>"#,
                names - 6.0,
                y + 11.0,
                escape(&row.subject),
                view.class_of(&row.subject),
                names + length + 6.0,
                y + 11.0
            );
        }
        charts.push(Chart {
            title: format!("{title}: {}", rows[0].0.workload),
            about: "An operation, counted by valgrind's callgrind; fewer is better.".to_owned(),
            svg: svg(width, LINE * rows.len() as f64 + 8.0, title, &body),
        });
    }
    charts
}

/// Bars over a logarithmic axis, each as wide as its bucket.
pub(super) fn histogram(series: &Series, width: f64) -> String {
    let bars: Vec<(f64, f64, f64)> = series
        .points
        .iter()
        .map(|&[from, height]| (from.max(1.0), end_of_bucket(from).max(2.0), height))
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
    let mut plot = Plot::new(width, 280.0, x, y);
    plot.bars("c0", &bars, format);
    plot.finish(&series.plot)
}

/// The end of the bucket that begins at `from`: each power of two has four buckets of equal width,
/// and each number below eight has its own (`hectare_trace::Histogram`).
fn end_of_bucket(from: f64) -> f64 {
    let power = 2_f64.powf(from.max(1.0).log2().floor());
    from + (power / 4.0).max(1.0)
}

#[cfg(test)]
mod tests {
    use hectare_trace::Histogram;

    use super::*;

    #[test]
    fn a_bar_ends_where_the_next_one_begins() {
        let mut filled = Histogram::<2>::new();
        (1..100_000).for_each(|value| filled.add(value));
        let begins: Vec<f64> = filled.buckets().map(|(lower, _)| lower as f64).collect();
        for pair in begins.windows(2) {
            assert_eq!(end_of_bucket(pair[0]), pair[1]);
        }
        assert_eq!(end_of_bucket(0.0), 1.0);
    }
}
