//! How far apart two processors are: how long a cache line takes to the other processor and back.
//!
//! The processors of a virtual machine are threads of its host, which may run them on two
//! hyperthreads at one moment and on two chips at the next. Programs whose threads share lines then
//! take several times as long, and nothing else shows why.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::runner::pin_to;

/// Round trips of a line in a sample; the number of samples, and the time between them.
const TRIPS: u64 = 2000;
const SAMPLES: usize = 10;
const APART: Duration = Duration::from_millis(100);

/// A sample that takes longer than this is abandoned: one of the two did not get to run.
const MOST: Duration = Duration::from_secs(1);

/// A cache line, together with the adjacent one that is fetched with it.
#[repr(align(128))]
struct Line(AtomicU64);

/// Nanoseconds for a round trip between the processors `ours` and `theirs`: the least and the
/// greatest of [`SAMPLES`] means, taken within a second.
///
/// # Errors
/// When a thread may not be pinned to its processor, or the two did not run at the same time.
pub(crate) fn round_trip_ns(ours: usize, theirs: usize) -> anyhow::Result<RangeInclusive<u64>> {
    let mut samples = Vec::with_capacity(SAMPLES);
    for sample in 0..SAMPLES {
        if sample > 0 {
            std::thread::sleep(APART);
        }
        samples.push(mean_ns(ours, theirs)?);
    }
    let (least, most) = (samples.iter().min(), samples.iter().max());
    Ok(least.copied().unwrap_or(0)..=most.copied().unwrap_or(0))
}

/// The mean of [`TRIPS`] round trips.
fn mean_ns(ours: usize, theirs: usize) -> anyhow::Result<u64> {
    let line = Line(AtomicU64::new(0));
    // Each side increments the number after the other has: it is odd on the way there, even on the
    // way back.
    let pass = |cpu: usize, first: u64| -> anyhow::Result<Duration> {
        pin_to(&[cpu])?;
        let begun = Instant::now();
        for turn in (first..2 * TRIPS).step_by(2) {
            while line.0.load(Ordering::Acquire) != turn {
                ensure!(
                    begun.elapsed() < MOST,
                    "processors {ours} and {theirs} did not run at once"
                );
                std::hint::spin_loop();
            }
            line.0.store(turn + 1, Ordering::Release);
        }
        Ok(begun.elapsed())
    };
    // Threads of their own, which stay where they are pinned until they end.
    let (here, there) = std::thread::scope(|scope| -> anyhow::Result<_> {
        let start = |cpu, first| Builder::new().spawn_scoped(scope, move || pass(cpu, first));
        let here = start(ours, 0).context("starting a thread")?;
        let there = start(theirs, 1).context("starting another thread")?.join();
        Ok((here.join(), there))
    })?;
    let (Ok(here), Ok(there)) = (here, there) else { bail!("a thread has failed") };
    there?;
    Ok(here?.as_nanos() as u64 / TRIPS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::affinity;

    #[test]
    fn a_line_goes_there_and_back() {
        let cpus = affinity().unwrap();
        let [first, second, ..] = cpus[..] else { return };
        // With other work around, the two threads may not run at the same time. The measurement
        // must then end with a message.
        match round_trip_ns(first, second) {
            Ok(ns) => assert!(*ns.start() > 0 && ns.start() <= ns.end(), "{ns:?}"),
            Err(error) => assert!(error.to_string().contains("did not run at once"), "{error}"),
        }
    }

    #[test]
    fn a_processor_that_is_not_there_is_an_error() {
        let nobody = rustix::thread::CpuSet::MAX_CPU - 1;
        assert!(round_trip_ns(nobody, nobody).is_err());
    }
}
