//! Latencies of single operations, collected after each segment.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU32, Ordering};

use hectare_trace::Histogram;

use super::clock::Rate;
use super::plan::{Call, Segment};
use crate::bench::LatencyRecord;

/// Latency by call. Percentiles are exact to 1.6 %, the worst is exact.
pub(crate) struct Latencies {
    rate: Rate,
    calls: Vec<(Call, Distribution)>,
    points: Points,
}

/// Single operations for a plot of latency over time.
#[derive(Default)]
struct Points {
    /// Room for that many of the slowest, and as many again for the sample.
    most: usize,
    /// The slowest: ticks, time in ns, size in bytes.
    slowest: BinaryHeap<Reverse<(u32, u64, u64)>>,
    /// Every `stride`th of the others.
    sample: Vec<(u32, u64, u64)>,
    stride: u64,
    seen: u64,
}

impl Points {
    fn add(&mut self, point: (u32, u64, u64)) {
        if self.most == 0 {
            return;
        }
        self.slowest.push(Reverse(point));
        if self.slowest.len() <= self.most {
            return;
        }
        let Some(Reverse(other)) = self.slowest.pop() else { return };
        self.seen += 1;
        if self.seen.is_multiple_of(self.stride) {
            self.sample.push(other);
        }
        if self.sample.len() > self.most {
            let mut nth = 0;
            self.sample.retain(|_| {
                nth += 1;
                nth % 2 == 0
            });
            self.stride *= 2;
        }
    }
}

#[derive(Default)]
struct Distribution {
    /// Ticks.
    histogram: Histogram<6>,
    sum_ticks: u64,
    worst_ticks: u32,
    count: u64,
}

impl Latencies {
    /// Keeps at most `points` single operations.
    pub(crate) fn new(rate: Rate, points: usize) -> Self {
        let calls = Call::ALL.map(|call| (call, Distribution::default())).into();
        let points = Points { most: points / 2, stride: 1, ..Points::default() };
        Self { rate, calls, points }
    }

    /// Counts the latencies of a segment. `ticks` is empty when operations were not timed.
    pub(crate) fn add(&mut self, segment: &Segment, ticks: &[Vec<AtomicU32>]) {
        for (lane, ticks) in segment.lanes.iter().zip(ticks) {
            for (nth, (op, ticks)) in lane.ops.iter().zip(ticks).enumerate() {
                let ticks = ticks.load(Ordering::Relaxed);
                let (_, distribution) = &mut self.calls[op.call() as usize];
                distribution.histogram.add(u64::from(ticks));
                distribution.sum_ticks += u64::from(ticks);
                distribution.worst_ticks = distribution.worst_ticks.max(ticks);
                distribution.count += 1;
                let since_ns = lane.start_ns.get(nth).copied().unwrap_or(0);
                // A damaged trace can claim any time.
                let time_ns = segment.beginning_ns.saturating_add(since_ns);
                self.points.add((ticks, time_ns, op.size_bytes));
            }
        }
    }

    /// Single operations by time: ms, ns, bytes.
    pub(crate) fn points(&self) -> Vec<[f64; 3]> {
        let slowest = self.points.slowest.iter().map(|Reverse(point)| point);
        let mut points: Vec<_> = slowest.chain(&self.points.sample).collect();
        points.sort_unstable_by_key(|point| point.1);
        let ns = |ticks: u32| (f64::from(ticks) * self.rate.ns_per_tick).round();
        let plain = |&&(ticks, time_ns, size): &&(u32, u64, u64)| {
            [time_ns as f64 / 1e6, ns(ticks), size as f64]
        };
        points.iter().map(plain).collect()
    }

    /// One record for each call that was timed.
    pub(crate) fn records(&self) -> Vec<LatencyRecord> {
        let timed = self.calls.iter().filter(|(_, distribution)| distribution.count > 0);
        timed.map(|(call, distribution)| self.record(*call, distribution)).collect()
    }

    fn record(&self, call: Call, distribution: &Distribution) -> LatencyRecord {
        let ns = |ticks: f64| ticks * self.rate.ns_per_tick;
        let worst = u64::from(distribution.worst_ticks);
        let quantile = |share| ns(distribution.histogram.quantile(share).min(worst) as f64);
        LatencyRecord {
            operation: call.name().to_owned(),
            count: distribution.count,
            mean_ns: ns(distribution.sum_ticks as f64 / distribution.count as f64),
            p50_ns: quantile(0.5),
            p90_ns: quantile(0.9),
            p99_ns: quantile(0.99),
            p999_ns: quantile(0.999),
            p9999_ns: quantile(0.9999),
            worst_ns: ns(worst as f64),
            clock_ns: self.rate.cost_ns,
        }
    }
}
