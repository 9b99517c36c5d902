//! `hectare bench pools`: time of a free and an alloc against the object's size.
//!
//! Ten thousand slots are filled. Then each step frees the object in a slot drawn at random and
//! allocates a new one there, of a size drawn from the window. The steps are drawn beforehand. Each
//! new object's first bytes are written, for every subject alike, so that no subject hands out
//! memory that is never touched. Only the system clears memory, and every subject gets its pages.
//!
//! Two threads that share a pool are compared with one thread. Two threads with a pool each, in the
//! same rounds, show what the machine itself gives two threads.

mod counted;

use std::time::Instant;

use clap::Parser;
use hectare_pool::{Handle, Pool};

use super::{Study, sizes_within};
use crate::pools;
use crate::report::{Report, Row, Series};
use crate::stats;
use crate::threads;
use crate::within::within;

/// The study behind `hectare bench pools`.
pub(crate) struct Pools;

const DEFAULT_POOLS: &str = "xv,zs,dense,page-granular,powers-of-two";
const WINDOW_BYTES: usize = 64;
const LARGEST_BYTES: usize = 4096;
/// The wide ranges of the kernel study.
const WIDE: [(usize, usize); 3] = [(0, 2048), (0, 4096), (2048, 4096)];

/// What can follow `hectare bench pools --`.
#[derive(Parser)]
#[command(name = "hectare bench pools --", no_binary_name = true)]
struct Args {
    /// Pools to measure, separated by commas
    #[arg(long, value_name = "POOL,…", num_args = 1.., default_value = DEFAULT_POOLS)]
    pools: Vec<String>,
    /// Slots, each with an object
    #[arg(long, default_value_t = 10_000, value_parser = within(1_usize, 10_000_000))]
    slots: usize,
    /// Frees with allocations in each run
    #[arg(long, default_value_t = 50_000, value_parser = within(1_usize, 100_000_000))]
    steps: usize,
    /// Runs of each window; the median counts
    #[arg(long, default_value_t = 5, value_parser = within(1_usize, 1000))]
    runs: usize,
    /// Measure every Nth window of 64 bytes
    #[arg(long, default_value_t = 4, value_parser = within(1_usize, 64))]
    every: usize,
    /// Measure only this range of sizes, as `512..576`
    #[arg(long, value_parser = sizes_within(LARGEST_BYTES))]
    range: Option<(usize, usize)>,
    /// Up to how many threads: 1 or 2
    #[arg(long, default_value_t = 2, value_parser = within(1_u64, 2))]
    threads: u64,
    /// Count instructions and cache misses with valgrind's callgrind instead of measuring time
    #[arg(long)]
    callgrind: bool,
    /// Seed of slots and sizes
    #[arg(long, default_value_t = 1, value_parser = within(0_u64, u64::MAX))]
    seed: u64,
}

impl Args {
    /// The ranges to measure: the windows and the wide ranges, or the one range asked for.
    fn ranges(&self) -> Vec<(usize, usize)> {
        if let Some(range) = self.range {
            return vec![range];
        }
        let windows = (0..LARGEST_BYTES).step_by(WINDOW_BYTES * self.every);
        windows.map(|low| (low, low + WINDOW_BYTES)).chain(WIDE).collect()
    }
}

/// Slots and sizes drawn beforehand.
struct Plan {
    first: Vec<u16>,
    steps: Vec<(u32, u16)>,
}

impl Plan {
    fn draw(args: &Args, range: (usize, usize), seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let size = |random: &mut fastrand::Rng| random.usize(range.0..range.1).max(1) as u16;
        let first = (0..args.slots).map(|_| size(&mut random)).collect();
        // A longer run begins with the steps of a shorter one.
        let mut step = || (random.u32(..args.slots as u32), size(&mut random));
        Self { first, steps: (0..args.steps).map(|_| step()).collect() }
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
    let mut slots: Vec<Option<Handle>> = Vec::with_capacity(plan.first.len());
    slots.extend(plan.first.iter().map(|&size| fill(pool, size, &mut 0)));
    started();
    let start = Instant::now();
    let failed = take_steps(pool, &plan.steps, &mut slots);
    let ns = start.elapsed().as_nanos() as u64;
    for handle in slots.into_iter().flatten() {
        // SAFETY: live until now.
        unsafe { pool.free(handle) };
    }
    Timed { ns, failed }
}

/// The measured part. Returns how many allocations failed. It is a function of its own, so that
/// `counted` can name it.
#[inline(never)]
fn take_steps(pool: &dyn Pool, steps: &[(u32, u16)], slots: &mut [Option<Handle>]) -> u64 {
    let mut failed = 0;
    for &(slot, size) in steps {
        let slot = &mut slots[slot as usize];
        if let Some(old) = slot.take() {
            // SAFETY: live in this slot until now.
            unsafe { pool.free(old) };
        }
        *slot = fill(pool, size, &mut failed);
    }
    failed
}

/// Which threads a run has, and which pools they use.
#[derive(Clone, Copy, PartialEq)]
enum Team {
    /// One thread.
    Alone,
    /// Two threads, one pool.
    Shared,
    /// Two threads, each with a pool of its own: shows what the machine lets two threads do at all.
    Apart,
}

/// The time of the slowest of the threads. Each does its own plan; the pools are assigned in turn.
fn run(pools: &[Box<dyn Pool + Send>], plans: &[Plan]) -> anyhow::Result<Timed> {
    let barrier = std::sync::Barrier::new(plans.len());
    let times: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = plans
            .iter()
            .zip(pools.iter().cycle())
            .map(|(plan, pool)| {
                let (barrier, pool) = (&barrier, pool.as_ref());
                threads::start(scope, move || {
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

/// The median time of runs that took turns with the other subjects, with what failed in the run in
/// the middle.
fn median(runs: &mut [Timed]) -> Timed {
    runs.sort_by_key(|run| run.ns);
    let times: Vec<f64> = runs.iter().map(|run| run.ns as f64).collect();
    let ns = stats::median(&times).expect("there is at least one run");
    Timed { ns: ns as u64, ..runs[runs.len() / 2] }
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
        let mut args = super::study_args::<Args>(args);
        args.pools = pools::asked(&args.pools)?;
        if args.callgrind {
            return counted::count(&args);
        }
        let mut report = Report::new("bench pools");
        report.parameter("slots", args.slots);
        report.parameter("steps", args.steps);
        report.parameter("runs", args.runs);
        report.parameter("seed", args.seed);
        let mut curves: Vec<Vec<[f64; 2]>> = vec![Vec::new(); args.pools.len()];
        for range in args.ranges() {
            let is_window = range.1 - range.0 == WINDOW_BYTES;
            // Two threads run only where they say something: over all sizes.
            let is_shared = args.threads > 1 && range == (0, LARGEST_BYTES);
            let teams: &[Team] =
                if is_shared { &[Team::Alone, Team::Shared, Team::Apart] } else { &[Team::Alone] };
            let times = measure(&args, range, teams)?;
            for (at, (spec, times)) in args.pools.iter().zip(times).enumerate() {
                let single = times[0];
                let pair_ns = single.ns as f64 / args.steps as f64;
                let mut row = Row::new(spec, format!("{}..{}", range.0, range.1))
                    .with("pair_ns", (pair_ns * 10.0).round() / 10.0)
                    .with("failed_allocations", single.failed);
                if let [_, shared, apart] = times[..] {
                    let ratio = |both: Timed| {
                        (2.0 * single.ns as f64 / both.ns as f64 * 100.0).round() / 100.0
                    };
                    row = row
                        .with("two_threads_ratio", ratio(shared))
                        .with("two_pools_ratio", ratio(apart));
                }
                report.rows.push(row);
                if is_window {
                    curves[at].push([range.0 as f64, pair_ns]);
                }
            }
        }
        let curves = curves.into_iter().filter(|points| !points.is_empty());
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
             throughput of two threads on one pool over one's; two_pools_ratio: of two threads with \
             a pool each, which is the machine's own"
                .to_owned(),
        );
        Ok(report)
    }
}

/// The median times of each pool for each team; pools and teams take turns.
fn measure(args: &Args, range: (usize, usize), teams: &[Team]) -> anyhow::Result<Vec<Vec<Timed>>> {
    let mut runs = vec![vec![Vec::new(); teams.len()]; args.pools.len()];
    for round in 0..args.runs as u64 {
        let seed = args.seed.wrapping_add(round);
        let plans: Vec<_> =
            (0..2).map(|thread| Plan::draw(args, range, seed << 8 | thread)).collect();
        let mut order: Vec<_> = (0..args.pools.len()).collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut order);
        for at in order {
            for (team, runs) in teams.iter().zip(&mut runs[at]) {
                let pools = (0..if *team == Team::Apart { 2 } else { 1 })
                    .map(|_| pools::make(&args.pools[at]))
                    .collect::<anyhow::Result<Vec<_>>>()?;
                let threads = if *team == Team::Alone { 1 } else { 2 };
                runs.push(run(&pools, &plans[..threads])?);
            }
        }
    }
    let medians = |mut runs: Vec<Vec<Timed>>| runs.iter_mut().map(|runs| median(runs)).collect();
    Ok(runs.into_iter().map(medians).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_runs_the_median_lies_between() {
        let run = |ns, failed| Timed { ns, failed };
        assert_eq!(median(&mut [run(30, 3), run(10, 1)]).ns, 20);
        assert_eq!(median(&mut [run(30, 3), run(10, 1), run(12, 2)]).ns, 12);
    }

    #[test]
    fn every_subject_is_measured_and_only_xv_fails_at_a_page() {
        let args = ["--slots", "50", "--steps", "500", "--runs", "1", "--every", "21"];
        let report = Pools.run(&args.map(str::to_owned)).expect("a report");
        assert_eq!(report.rows.len(), DEFAULT_POOLS.split(',').count() * (4 + WIDE.len()));
        for row in &report.rows {
            assert!(row.number("pair_ns") > Some(0.0));
            let failed = row.number("failed_allocations") > Some(0.0);
            assert!(!failed || row.subject == "xv", "{} {}", row.subject, row.workload);
        }
    }
}
