//! Latencies of single operations, put together after each segment.

use std::sync::atomic::{AtomicU32, Ordering};

use hectare_trace::Histogram;

use super::clock::Rate;
use super::plan::{Call, Segment};
use crate::bench::LatencyRecord;

/// Latency by call. Percentiles are exact to 1.6 %, the worst exactly.
pub(crate) struct Latencies {
    rate: Rate,
    calls: Vec<(Call, Distribution)>,
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
    pub(crate) fn new(rate: Rate) -> Self {
        let calls = Call::ALL.map(|call| (call, Distribution::default())).into();
        Self { rate, calls }
    }

    /// Counts a segment's; `ticks` is empty when operations were not timed.
    pub(crate) fn add(&mut self, segment: &Segment, ticks: &[Vec<AtomicU32>]) {
        for (lane, ticks) in segment.lanes.iter().zip(ticks) {
            for (op, ticks) in lane.ops.iter().zip(ticks) {
                let ticks = ticks.load(Ordering::Relaxed);
                let (_, distribution) = &mut self.calls[op.call() as usize];
                distribution.histogram.add(u64::from(ticks));
                distribution.sum_ticks += u64::from(ticks);
                distribution.worst_ticks = distribution.worst_ticks.max(ticks);
                distribution.count += 1;
            }
        }
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
