//! `hectare bench pools`: time of a free and an alloc against the object's size.
//!
//! Ten thousand slots are filled; then each step frees the object in a slot drawn at random and
//! allocates a new one there, of a size drawn from the window. The steps are drawn beforehand.
//! Each new object's first bytes are written, for every subject alike, so that nobody hands out
//! memory that was never there; nobody clears it but the system, whose pages every subject gets.

use std::time::Instant;

use anyhow::ensure;
use clap::Parser;
use hectare_pool::{Handle, Pool};

use super::Study;
use crate::pools;
use crate::report::{Report, Row, Series};

/// The study behind `hectare bench pools`.
pub(crate) struct Pools;

const DEFAULT_POOLS: [&str; 5] = ["xv", "zs", "dense", "page-granular", "powers-of-two"];
const WINDOW_BYTES: usize = 64;
const LARGEST_BYTES: usize = 4096;
/// The wide ranges of the kernel study.
const WIDE: [(usize, usize); 3] = [(0, 2048), (0, 4096), (2048, 4096)];

/// What can stand after `hectare bench pools --`.
#[derive(Parser)]
#[command(name = "hectare bench pools --", no_binary_name = true)]
struct Args {
    /// Pools to measure
    #[arg(long, num_args = 1.., default_values_t = DEFAULT_POOLS.map(str::to_owned))]
    pools: Vec<String>,
    /// Slots, each with an object
    #[arg(long, default_value_t = 10_000)]
    slots: usize,
    /// Frees with allocations in each run
    #[arg(long, default_value_t = 50_000)]
    steps: usize,
    /// Runs of each window; the median counts
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Measure every Nth window of 64 bytes
    #[arg(long, default_value_t = 4)]
    every: usize,
    /// Seed of slots and sizes
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Slots and sizes drawn beforehand.
struct Plan {
    first: Vec<u16>,
    steps: Vec<(u32, u16)>,
}

impl Plan {
    fn draw(args: &Args, range: (usize, usize), seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut size = || random.usize(range.0..range.1).max(1) as u16;
        let first = (0..args.slots).map(|_| size()).collect();
        let sizes: Vec<u16> = (0..args.steps).map(|_| size()).collect();
        let steps = sizes.into_iter().map(|size| (random.u32(..args.slots as u32), size));
        Self { first, steps: steps.collect() }
    }
}

#[derive(Clone, Copy, Default)]
struct Timed {
    ns: u64,
    failed: u64,
}

fn fill(pool: &dyn Pool, size: u16, failed: &mut u64) -> Option<Handle> {
    let size = usize::from(size);
    match pool.alloc(size) {
        Ok(handle) => {
            // SAFETY: just allocated with `size` bytes, and this slot's alone.
            unsafe { pool.write(handle, &[1; 8][..size.min(8)]) };
            Some(handle)
        }
        Err(_) => {
            *failed += 1;
            None
        }
    }
}

fn work(pool: &dyn Pool, plan: &Plan, started: impl FnOnce()) -> Timed {
    let mut failed = 0;
    let mut slots: Vec<Option<Handle>> = Vec::with_capacity(plan.first.len());
    slots.extend(plan.first.iter().map(|&size| fill(pool, size, &mut failed)));
    failed = 0;
    started();
    let start = Instant::now();
    for &(slot, size) in &plan.steps {
        let slot = &mut slots[slot as usize];
        if let Some(old) = slot.take() {
            // SAFETY: live in this slot until now.
            unsafe { pool.free(old) };
        }
        *slot = fill(pool, size, &mut failed);
    }
    let ns = start.elapsed().as_nanos() as u64;
    for handle in slots.into_iter().flatten() {
        // SAFETY: live until now.
        unsafe { pool.free(handle) };
    }
    Timed { ns, failed }
}

/// The time of `threads` threads that each do a plan of their own: that of the slowest.
fn run(pool: &dyn Pool, plans: &[Plan]) -> anyhow::Result<Timed> {
    if let [plan] = plans {
        return Ok(work(pool, plan, || ()));
    }
    let barrier = std::sync::Barrier::new(plans.len());
    let times: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = plans
            .iter()
            .map(|plan| {
                let barrier = &barrier;
                scope.spawn(move || {
                    work(pool, plan, || {
                        barrier.wait();
                    })
                })
            })
            .collect();
        threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
    });
    let mut all = Timed::default();
    for time in times {
        let time = time.map_err(|_| anyhow::anyhow!("a measuring thread panicked"))?;
        all.ns = all.ns.max(time.ns);
        all.failed += time.failed;
    }
    Ok(all)
}

/// The median run, of runs that take turns with the other subjects.
fn median(runs: &mut [Timed]) -> Timed {
    runs.sort_by_key(|run| run.ns);
    runs[runs.len() / 2]
}

impl Study for Pools {
    fn name(&self) -> &'static str {
        "pools"
    }

    fn about(&self) -> &'static str {
        "Pools for compressed data: time of a free and an alloc over 64-byte windows of size to \
         4096 and three wide ranges, and what two threads gain"
    }

    fn source(&self) -> &'static str {
        "the size study of xvmalloc, zsmalloc, kmalloc and vmalloc in the kernel (2012)"
    }

    fn run(&self, args: &[String]) -> anyhow::Result<Report> {
        let args = Args::try_parse_from(args)?;
        ensure!(
            args.slots > 0 && args.steps > 0 && args.runs > 0 && args.every > 0,
            "zero is no number of slots, steps, runs or windows"
        );
        let mut report = Report::new("bench pools");
        report.parameter("slots", args.slots);
        report.parameter("steps", args.steps);
        report.parameter("runs", args.runs);
        report.parameter("seed", args.seed);
        let windows = (0..LARGEST_BYTES).step_by(WINDOW_BYTES * args.every);
        let windows: Vec<_> = windows.map(|low| (low, low + WINDOW_BYTES)).collect();
        let mut curves: Vec<Vec<[f64; 2]>> = vec![Vec::new(); args.pools.len()];
        for &range in windows.iter().chain(&WIDE) {
            let is_window = range.1 - range.0 == WINDOW_BYTES;
            let single = measure(&args, range, 1)?;
            // Two threads only where it says something: over all sizes.
            let double =
                if range == (0, LARGEST_BYTES) { Some(measure(&args, range, 2)?) } else { None };
            for (at, spec) in args.pools.iter().enumerate() {
                let pair_ns = single[at].ns as f64 / args.steps as f64;
                let mut row = Row::new(spec, format!("{}..{}", range.0, range.1))
                    .with("pair_ns", (pair_ns * 10.0).round() / 10.0)
                    .with("failed_allocations", single[at].failed);
                if let Some(double) = &double {
                    let scaling = 2.0 * single[at].ns as f64 / double[at].ns as f64;
                    row = row.with("two_threads_ratio", (scaling * 100.0).round() / 100.0);
                }
                report.rows.push(row);
                if is_window {
                    curves[at].push([range.0 as f64, pair_ns]);
                }
            }
        }
        for (spec, points) in args.pools.iter().zip(curves) {
            report.series.push(Series {
                plot: "time of a free and an alloc over size".to_owned(),
                subject: spec.clone(),
                workload: "64-byte windows".to_owned(),
                x_name: "size_bytes".to_owned(),
                y_name: "pair_ns".to_owned(),
                points,
            });
        }
        report.notes.push(
            "every subject takes its pages from the system, which clears them; two_threads_ratio: \
             throughput of two threads over one's"
                .to_owned(),
        );
        Ok(report)
    }
}

fn measure(args: &Args, range: (usize, usize), threads: u64) -> anyhow::Result<Vec<Timed>> {
    let mut runs: Vec<Vec<Timed>> = vec![Vec::new(); args.pools.len()];
    for round in 0..args.runs as u64 {
        let seed = args.seed + round;
        let plans: Vec<_> =
            (0..threads).map(|thread| Plan::draw(args, range, seed << 8 | thread)).collect();
        let mut order: Vec<_> = (0..args.pools.len()).collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut order);
        for at in order {
            runs[at].push(run(pools::make(&args.pools[at])?.as_ref(), &plans)?);
        }
    }
    Ok(runs.iter_mut().map(|runs| median(runs)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subject_is_measured_and_only_xv_fails_at_a_page() {
        let args = ["--slots", "50", "--steps", "500", "--runs", "1", "--every", "21"];
        let report = Pools.run(&args.map(str::to_owned)).expect("a report");
        assert_eq!(report.rows.len(), DEFAULT_POOLS.len() * (4 + WIDE.len()));
        for row in &report.rows {
            assert!(row.number("pair_ns") > Some(0.0));
            let failed = row.number("failed_allocations") > Some(0.0);
            assert!(!failed || row.subject == "xv", "{} {}", row.subject, row.workload);
        }
    }
}
