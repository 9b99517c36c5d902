//! The clock for single operations: the processor's counter.

/// Whether [`ticks`] is the processor's own counter.
pub(crate) const IS_COUNTER: bool = cfg!(target_arch = "x86_64");

/// The counter now. On x86-64 it is read only after earlier instructions have been executed.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    let mut processor = 0;
    // SAFETY: reading the counter has no precondition; `processor` is valid for writing.
    unsafe { core::arch::x86_64::__rdtscp(&mut processor) }
}

/// `CLOCK_MONOTONIC`, ns.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    crate::measure::monotonic_ns()
}

/// The counter's rate and the cost of reading it, measured once at the beginning of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    /// Nanoseconds a tick.
    pub(crate) ns_per_tick: f64,
    /// Time shown by an empty measurement, ns (median).
    pub(crate) cost_ns: f64,
}

impl Rate {
    /// Measures the rate and the cost, for some 20 ms.
    pub(crate) fn measure() -> Self {
        let start_ns = crate::measure::monotonic_ns();
        let start = ticks();
        let mut empty: Vec<u64> = Vec::with_capacity(20_000);
        // Another process may have the processor for all of that time, so there is at least one
        // measurement.
        while empty.is_empty() || crate::measure::monotonic_ns() - start_ns < 20_000_000 {
            let before = ticks();
            let after = ticks();
            if empty.len() < empty.capacity() {
                empty.push(after - before);
            }
        }
        let elapsed_ns = (crate::measure::monotonic_ns() - start_ns) as f64;
        let ns_per_tick = elapsed_ns / (ticks() - start) as f64;
        empty.sort_unstable();
        Self { ns_per_tick, cost_ns: empty[empty.len() / 2] as f64 * ns_per_tick }
    }
}
