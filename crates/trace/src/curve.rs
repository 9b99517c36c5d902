//! Live bytes over the rows of a trace, thinned to what a plot can show.

/// The most live bytes in a stretch of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LivePoint {
    /// Rows read when the stretch ended.
    pub rows: u64,
    /// Live bytes as asked for.
    pub live_bytes: u64,
    /// The same with every size rounded up to 16.
    pub rounded_bytes: u64,
}

/// The most points kept. When there are this many, they are merged in pairs.
const MOST_POINTS: usize = 512;

/// Collects points. Takes memory for [`MOST_POINTS`], whatever the length of the trace.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    points: Vec<LivePoint>,
    open: LivePoint,
    stride: u64,
}

impl Curve {
    pub(crate) fn new() -> Self {
        Self { points: Vec::new(), open: LivePoint::default(), stride: 1 }
    }

    /// Must be called after each row.
    #[inline]
    pub(crate) fn row(&mut self, live_bytes: u64, rounded_bytes: u64) {
        self.open.rows += 1;
        self.open.live_bytes = self.open.live_bytes.max(live_bytes);
        self.open.rounded_bytes = self.open.rounded_bytes.max(rounded_bytes);
        if self.open.rows.is_multiple_of(self.stride) {
            self.close();
        }
    }

    fn close(&mut self) {
        self.points.push(self.open);
        self.open = LivePoint { rows: self.open.rows, ..LivePoint::default() };
        if self.points.len() == MOST_POINTS {
            self.points = self.points.chunks(2).map(larger).collect();
            self.stride *= 2;
        }
    }

    /// The points, including the last stretch.
    pub(crate) fn into_points(mut self) -> Vec<LivePoint> {
        if !self.open.rows.is_multiple_of(self.stride) {
            self.points.push(self.open);
        }
        self.points
    }
}

fn larger(points: &[LivePoint]) -> LivePoint {
    points.iter().fold(LivePoint::default(), |a, b| LivePoint {
        rows: b.rows,
        live_bytes: a.live_bytes.max(b.live_bytes),
        rounded_bytes: a.rounded_bytes.max(b.rounded_bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_curve_is_thinned_and_keeps_its_peak_and_end() {
        const PEAK: u64 = 9_999_999;
        for peak in [0, 333_333, 777_777] {
            let mut curve = Curve::new();
            for nth in 0..1_000_003_u64 {
                let live = if nth == peak { PEAK } else { nth };
                curve.row(live, live + 1);
            }
            let points = curve.into_points();
            assert!((MOST_POINTS / 2..=MOST_POINTS).contains(&points.len()));
            let most = |of: fn(&LivePoint) -> u64| points.iter().map(of).max();
            assert_eq!(most(|point| point.live_bytes), Some(PEAK));
            assert_eq!(most(|point| point.rounded_bytes), Some(PEAK + 1));
            assert_eq!(
                points.last().map(|point| (point.rows, point.live_bytes)),
                Some((1_000_003, 1_000_002))
            );
            assert!(points.windows(2).all(|pair| pair[0].rows < pair[1].rows));
        }
    }
}
