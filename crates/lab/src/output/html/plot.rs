//! Drawing: axes, lines, dots, labels, as SVG text. Colours are classes, so that the page's style
//! decides them for light and dark.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::scale::Scale;

/// Number of colours that the style defines. If there are more subjects they share colours, and
/// dashes distinguish them.
const COLOURS: usize = 10;

/// The class of the `index`-th subject.
pub(crate) fn class(index: usize) -> String {
    let dash = match index / COLOURS {
        0 => "",
        1 => " d1",
        _ => " d2",
    };
    format!("c{}{dash}", index % COLOURS)
}

/// Text that may stand in SVG.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// How values of an axis are written.
pub(crate) type Format = fn(f64) -> String;

/// One axis.
#[derive(Clone, Copy)]
pub(crate) struct Axis<'a> {
    /// The quantity that the axis shows.
    pub(crate) name: &'a str,
    /// Its scale.
    pub(crate) scale: Scale,
    /// How its values are written.
    pub(crate) format: Format,
}

/// A drawing with two axes.
pub(crate) struct Plot<'a> {
    width: f64,
    height: f64,
    left: f64,
    x: Axis<'a>,
    y: Axis<'a>,
    body: String,
}

const LEFT: f64 = 78.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 42.0;

impl<'a> Plot<'a> {
    /// An empty plot.
    pub(crate) fn new(width: f64, height: f64, x: Axis<'a>, y: Axis<'a>) -> Self {
        let mut plot = Self { width, height, left: LEFT, x, y, body: String::new() };
        plot.axes();
        plot
    }

    /// Horizontal position of a value.
    pub(crate) fn at_x(&self, value: f64) -> f64 {
        self.left + self.x.scale.share(value) * (self.width - self.left - RIGHT)
    }

    /// Vertical position of a value.
    pub(crate) fn at_y(&self, value: f64) -> f64 {
        self.height - BOTTOM - self.y.scale.share(value) * (self.height - TOP - BOTTOM)
    }

    fn axes(&mut self) {
        let (bottom, right) = (self.height - BOTTOM, self.width - RIGHT);
        for value in self.y.scale.ticks(5) {
            let y = self.at_y(value);
            let left = self.left;
            let _ = write!(
                self.body,
                r#"<line class="grid" x1="{left}" x2="{right}" y1="{y:.1}" y2="{y:.1}"/><text class="tick" text-anchor="end" x="{:.1}" y="{:.1}">{}</text>"#,
                left - 6.0,
                y + 4.0,
                (self.y.format)(value)
            );
        }
        // About one mark in 90 pixels.
        for value in self.x.scale.ticks((self.width / 90.0) as usize) {
            let x = self.at_x(value);
            let _ = write!(
                self.body,
                r#"<line class="grid" x1="{x:.1}" x2="{x:.1}" y1="{TOP}" y2="{bottom}"/><text class="tick" text-anchor="middle" x="{x:.1}" y="{:.1}">{}</text>"#,
                bottom + 16.0,
                (self.x.format)(value)
            );
        }
        let _ = write!(
            self.body,
            r#"<text class="axis" text-anchor="middle" x="{:.1}" y="{:.1}">{}</text><text class="axis" text-anchor="middle" transform="translate(13 {:.1}) rotate(-90)">{}</text>"#,
            (self.left + right) / 2.0,
            self.height - 8.0,
            escape(self.x.name),
            (TOP + bottom) / 2.0,
            escape(self.y.name)
        );
    }

    /// A line through `points`.
    pub(crate) fn line(&mut self, class: &str, title: &str, points: &[[f64; 2]]) {
        let path: Vec<String> = points
            .iter()
            .map(|&[x, y]| format!("{:.1},{:.1}", self.at_x(x), self.at_y(y)))
            .collect();
        let _ = write!(
            self.body,
            r#"<polyline class="line {class}" points="{}"><title>{}</title></polyline>"#,
            path.join(" "),
            escape(title)
        );
    }

    /// A stepped line, for a Pareto front.
    pub(crate) fn steps(&mut self, class: &str, title: &str, points: &[[f64; 2]]) {
        let mut stepped = Vec::new();
        for pair in points.windows(2) {
            stepped.extend([pair[0], [pair[1][0], pair[0][1]]]);
        }
        stepped.extend(points.last());
        self.line(class, title, &stepped);
    }

    /// A dot with an optional label.
    pub(crate) fn dot(&mut self, class: &str, title: &str, [x, y]: [f64; 2]) {
        let _ = write!(
            self.body,
            r#"<circle class="dot {class}" cx="{:.1}" cy="{:.1}" r="4.5"><title>{}</title></circle>"#,
            self.at_x(x),
            self.at_y(y),
            escape(title)
        );
    }

    /// Bars of a histogram: (from, to, height).
    pub(crate) fn bars(&mut self, class: &str, bars: &[(f64, f64, f64)], format: Format) {
        let bottom = self.height - BOTTOM;
        for &(from, to, height) in bars {
            let (left, top) = (self.at_x(from), self.at_y(height));
            let _ = write!(
                self.body,
                r#"<rect class="bar {class}" x="{left:.1}" y="{top:.1}" width="{:.1}" height="{:.1}"><title>{} to {}: {height:.0}</title></rect>"#,
                (self.at_x(to) - left - 0.5).max(0.8),
                (bottom - top).max(0.0),
                format(from),
                format(to)
            );
        }
    }

    /// A vertical and a horizontal line through the value one.
    pub(crate) fn unit_cross(&mut self) {
        let (x, y) = (self.at_x(1.0), self.at_y(1.0));
        let _ = write!(
            self.body,
            r#"<line class="unit" x1="{x:.1}" x2="{x:.1}" y1="{TOP}" y2="{:.1}"/><line class="unit" x1="{}" x2="{:.1}" y1="{y:.1}" y2="{y:.1}"/>"#,
            self.height - BOTTOM,
            self.left,
            self.width - RIGHT
        );
    }

    /// Many dots without titles, as one path, at most one for each pixel. A dot is a line of zero
    /// length with round ends.
    pub(crate) fn scatter(&mut self, class: &str, points: &[[f64; 2]]) {
        let pixel = |&[x, y]: &[f64; 2]| (self.at_x(x).round() as i32, self.at_y(y).round() as i32);
        let mut path = String::new();
        for (x, y) in points.iter().map(pixel).collect::<BTreeSet<_>>() {
            let _ = write!(path, "M{x} {y}h0");
        }
        let _ = write!(self.body, r#"<path class="scatter {class}" d="{path}"/>"#);
    }

    /// A legend inside the drawing, along its upper edge. An entry is a class and a name.
    pub(crate) fn legend(&mut self, entries: &[(String, String)]) {
        const LINE: f64 = 15.0;
        let (mut x, mut top) = (self.left + 10.0, TOP);
        for (class, name) in entries {
            let length = 26.0 + 6.4 * name.chars().count() as f64;
            if x + length > self.width - RIGHT && x > self.left + 10.0 {
                (x, top) = (self.left + 10.0, top + LINE);
            }
            let _ = write!(
                self.body,
                r#"<circle class="dot {class}" cx="{x:.1}" cy="{:.1}" r="4"/><text class="tick" x="{:.1}" y="{:.1}">{}</text>"#,
                top + 2.0,
                x + 8.0,
                top + 6.0,
                escape(name)
            );
            x += length;
        }
    }

    /// Labels beside points, each at the nearest place where it covers neither a point nor another
    /// label. A thin line leads to the point if the label is not right beside it. If there are more
    /// labels than a plot has room for, they would only cover each other, and none is drawn.
    pub(crate) fn labels(&mut self, labels: &[(String, [f64; 2])]) {
        const HEIGHT: f64 = 13.0;
        const MOST: usize = 100;
        if labels.len() > MOST {
            return;
        }
        let dots: Vec<(f64, f64)> =
            labels.iter().map(|(_, [x, y])| (self.at_x(*x), self.at_y(*y))).collect();
        let mut taken: Vec<Box2> = dots.iter().map(|&(x, y)| Box2::around(x, y, 6.0)).collect();
        let inside =
            Box2 { left: self.left, right: self.width, top: 0.0, bottom: self.height - BOTTOM };
        for ((text, _), &(x, y)) in labels.iter().zip(&dots) {
            let width = 7.0 * text.chars().count() as f64;
            let at = |left: f64, middle: f64| Box2 {
                left,
                right: left + width,
                top: middle - HEIGHT / 2.0,
                bottom: middle + HEIGHT / 2.0,
            };
            // Rings around the point, the nearest first. On each ring the right side comes first.
            let places = (0..14).flat_map(|ring| {
                let away = 7.0 * f64::from(ring);
                let (right, left) = (x + 9.0, x - 9.0 - width);
                [
                    at(right, y - away),
                    at(right, y + away),
                    at(left, y - away),
                    at(left, y + away),
                    at(x - width / 2.0, y - 13.0 - away),
                    at(x - width / 2.0, y + 13.0 + away),
                    at(right + away, y),
                    at(left - away, y),
                ]
            });
            let free = |place: &Box2| {
                place.is_in(&inside) && taken.iter().all(|other| !place.meets(other))
            };
            let fallback = at(x + 9.0, y);
            let place = places.into_iter().find(free).unwrap_or(fallback);
            let (end_x, end_y) =
                (x.clamp(place.left, place.right), y.clamp(place.top, place.bottom));
            if (end_x - x).hypot(end_y - y) > 14.0 {
                let _ = write!(
                    self.body,
                    r#"<line class="lead" x1="{x:.1}" y1="{y:.1}" x2="{end_x:.1}" y2="{end_y:.1}"/>"#
                );
            }
            let _ = write!(
                self.body,
                r#"<text class="label" x="{:.1}" y="{:.1}">{}</text>"#,
                place.left,
                place.bottom - 3.0,
                escape(text)
            );
            taken.push(place);
        }
    }

    /// The finished drawing.
    pub(crate) fn finish(self, title: &str) -> String {
        svg(self.width, self.height, title, &self.body)
    }
}

/// A rectangle of the drawing, pixels.
#[derive(Clone, Copy, Debug)]
struct Box2 {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Box2 {
    fn around(x: f64, y: f64, reach: f64) -> Self {
        Self { left: x - reach, right: x + reach, top: y - reach, bottom: y + reach }
    }

    fn meets(&self, other: &Self) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }

    fn is_in(&self, other: &Self) -> bool {
        self.left >= other.left
            && self.right <= other.right
            && self.top >= other.top
            && self.bottom <= other.bottom
    }
}

/// A whole SVG element.
pub(crate) fn svg(width: f64, height: f64, title: &str, body: &str) -> String {
    format!(
        r#"<svg viewBox="0 0 {width} {height}" role="img" aria-label="{}" xmlns="http://www.w3.org/2000/svg">{body}</svg>"#,
        escape(title)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_crowded_points_cover_nothing() {
        let axis = Axis {
            name: "x",
            scale: Scale::around([0.0, 1.0], false, false),
            format: |_| String::new(),
        };
        let mut plot = Plot::new(720.0, 400.0, axis, axis);
        let crowd: Vec<(String, [f64; 2])> = (0..12)
            .map(|nth| (format!("allocator-{nth}"), [0.9 + 0.005 * f64::from(nth), 0.5]))
            .collect();
        let before = plot.body.len();
        plot.labels(&crowd);
        let number = |text: &str, name: &str| -> f64 {
            let rest = text.split_once(&format!("{name}=\"")).unwrap().1;
            rest.split_once('"').unwrap().0.parse().unwrap()
        };
        let places: Vec<(f64, f64)> = plot.body[before..]
            .split("<text")
            .skip(1)
            .map(|text| (number(text, " x"), number(text, " y")))
            .collect();
        assert_eq!(places.len(), 12);
        for (nth, a) in places.iter().enumerate() {
            assert!(a.0 >= LEFT && a.0 + 70.0 <= 720.0, "{a:?} is outside");
            for b in &places[..nth] {
                assert!((a.0 - b.0).abs() >= 70.0 || (a.1 - b.1).abs() >= 12.9, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn subjects_beyond_the_palette_are_dashed() {
        assert_eq!(class(0), "c0");
        assert_eq!(class(10), "c0 d1");
        assert_eq!(class(25), "c5 d2");
    }
}
