//! `hectare bench stress`: the random test with which xvMalloc was presented.
//!
//! A million flips of a coin: heads allocates an object, tails frees one at random. Ideal, whose
//! footprint is the live bytes, runs beside every pool. A pool's footprint includes everything it
//! takes. Objects carry a tag that is verified when they are freed.

use anyhow::{Context, ensure};
use clap::Parser;
use hectare_pool::{Handle, Pool};

use super::Study;
use crate::pools;
use crate::report::{Report, Row, Series, columns};
use crate::within::within;

/// The study behind `hectare bench stress`.
pub(crate) struct Stress;

/// What can follow `hectare bench stress --`.
#[derive(Parser)]
#[command(name = "hectare bench stress --", no_binary_name = true)]
struct Args {
    /// Pools to measure, separated by commas
    #[arg(long, value_name = "POOL,…", num_args = 1.., default_value = "xv,zs,dense")]
    pools: Vec<String>,
    /// Coin flips
    #[arg(long, default_value_t = 1_000_000, value_parser = within(1_u64, 100_000_000))]
    ops: u64,
    /// The most objects alive at once
    #[arg(long, default_value_t = 65_536, value_parser = within(1_usize, 100_000_000))]
    max_live: usize,
    /// First seed
    #[arg(long, default_value_t = 1, value_parser = within(0_u64, u64::MAX))]
    seed: u64,
    /// How many seeds; each has rows of its own, followed by their mean
    #[arg(long, default_value_t = 3, value_parser = within(1_u64, 10_000))]
    runs: u64,
}

/// How sizes are drawn.
#[derive(Clone, Copy)]
struct Sizes {
    name: &'static str,
    /// How often, in per cent, a size is drawn from `preferred` instead of from 32 … 2047.
    preferred_of_100: usize,
    preferred: (usize, usize),
}

/// The two distributions of the xvMalloc study.
const SIZES: [Sizes; 2] = [
    Sizes { name: "uniform 32..2048", preferred_of_100: 0, preferred: (0, 0) },
    Sizes { name: "80 % in 1024..=2600", preferred_of_100: 80, preferred: (1024, 2600) },
];

const LOW_BYTES: usize = 32;
const HIGH_BYTES: usize = 2048;
const SAMPLES: u64 = 500;

/// One flip, drawn beforehand: the size of an allocation; or the place in the table of live objects
/// of the one to free, as a fraction of 2³².
#[derive(Clone, Copy)]
enum Flip {
    Alloc(u16),
    Free(u32),
}

impl Sizes {
    fn flips(&self, ops: u64, max_live: usize, seed: u64) -> Vec<Flip> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut live = 0;
        let draw = |random: &mut fastrand::Rng| {
            if random.usize(..100) < self.preferred_of_100 {
                random.usize(self.preferred.0..=self.preferred.1)
            } else {
                random.usize(LOW_BYTES..HIGH_BYTES)
            }
        };
        let flips = (0..ops).map(|_| {
            let heads = random.bool();
            if live == 0 || (heads && live < max_live) {
                live += 1;
                Flip::Alloc(draw(&mut random) as u16)
            } else {
                live -= 1;
                Flip::Free(random.u32(..))
            }
        });
        flips.collect()
    }
}

/// The figures of one pool.
struct Run {
    ideal_peak_bytes: usize,
    peak_bytes: usize,
    /// The peak of pages alone, without cells and descriptors, as the study counted.
    page_peak_bytes: usize,
    /// Means over time of the footprint and of live bytes.
    mean_bytes: f64,
    ideal_mean_bytes: f64,
    failed: u64,
    ns: u64,
    footprint: Vec<[f64; 2]>,
    ideal: Vec<[f64; 2]>,
}

/// Runs the flips. Footprints are read after every flip that may raise them, in an untimed run. The
/// time is taken in a second run that does not read them.
fn run(spec: &str, flips: &[Flip]) -> anyhow::Result<Run> {
    let mut result = watch(pools::make(spec)?.as_ref(), flips)?;
    result.ns = time(pools::make(spec)?.as_ref(), flips)?;
    Ok(result)
}

fn tag(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()
}

fn watch(pool: &dyn Pool, flips: &[Flip]) -> anyhow::Result<Run> {
    let mut live: Vec<(Handle, usize, u64)> = Vec::new();
    let mut bounce = vec![0; pool.max_size_bytes()];
    let mut result = Run {
        ideal_peak_bytes: 0,
        peak_bytes: 0,
        page_peak_bytes: 0,
        mean_bytes: 0.0,
        ideal_mean_bytes: 0.0,
        failed: 0,
        ns: 0,
        footprint: Vec::new(),
        ideal: Vec::new(),
    };
    let mut live_bytes = 0;
    let step = (flips.len() as u64 / SAMPLES).max(1);
    for (number, flip) in (0..).zip(flips) {
        match *flip {
            Flip::Alloc(size) => {
                let size = size as usize;
                match pool.alloc(size) {
                    Ok(handle) => {
                        // SAFETY: just allocated with room for the tag: sizes are 32 and more.
                        unsafe { pool.write(handle, &tag(number)) };
                        live.push((handle, size, number));
                        live_bytes += size;
                    }
                    Err(_) => result.failed += 1,
                }
            }
            Flip::Free(_) if live.is_empty() => {}
            Flip::Free(at) => {
                let at = (at as usize * live.len()) >> 32;
                let (handle, size, written) = live.swap_remove(at);
                let mut is_right = false;
                let mut reader = |bytes: &[u8]| is_right = bytes[..8] == tag(written);
                // SAFETY: a live object whose first bytes were written; the rest was zeroed by
                // the source or written by objects before.
                unsafe { pool.read(handle, &mut bounce, &mut reader) };
                ensure!(is_right, "{}: the object of flip {written} lost its content", pool.name());
                // SAFETY: live until now.
                unsafe { pool.free(handle) };
                live_bytes -= size;
            }
        }
        let stats = pool.stats();
        let footprint = stats.footprint_bytes();
        result.peak_bytes = result.peak_bytes.max(footprint);
        result.page_peak_bytes = result.page_peak_bytes.max(stats.page_bytes);
        result.ideal_peak_bytes = result.ideal_peak_bytes.max(live_bytes);
        result.mean_bytes += footprint as f64;
        result.ideal_mean_bytes += live_bytes as f64;
        if number % step == 0 {
            result.footprint.push([number as f64, footprint as f64]);
            result.ideal.push([number as f64, live_bytes as f64]);
        }
    }
    result.mean_bytes /= flips.len() as f64;
    result.ideal_mean_bytes /= flips.len() as f64;
    free_all(pool, live.iter().map(|&(handle, ..)| handle));
    Ok(result)
}

fn time(pool: &dyn Pool, flips: &[Flip]) -> anyhow::Result<u64> {
    let mut live: Vec<Handle> = Vec::with_capacity(flips.len());
    let start = std::time::Instant::now();
    for flip in flips {
        match *flip {
            Flip::Alloc(size) => live.extend(pool.alloc(size as usize)),
            Flip::Free(_) if live.is_empty() => {}
            Flip::Free(at) => {
                let at = (at as usize * live.len()) >> 32;
                // SAFETY: a live object, forgotten here.
                unsafe { pool.free(live.swap_remove(at)) };
            }
        }
    }
    let ns = u64::try_from(start.elapsed().as_nanos()).context("the run took centuries")?;
    free_all(pool, live.iter().copied());
    Ok(ns)
}

fn free_all(pool: &dyn Pool, handles: impl Iterator<Item = Handle>) {
    for handle in handles {
        // SAFETY: live objects of this pool; the callers forget them.
        unsafe { pool.free(handle) };
    }
}

impl Study for Stress {
    fn name(&self) -> &'static str {
        "stress"
    }

    fn about(&self) -> &'static str {
        "Pools for compressed data: a million coin flips, heads allocates, tails frees at random; \
         peak footprint, everything counted, against Ideal"
    }

    fn source(&self) -> &'static str {
        "alloc_stress of the xvMalloc study (compcache, 2008)"
    }

    fn run(&self, args: &[String]) -> anyhow::Result<Report> {
        let mut args = super::study_args::<Args>(args);
        args.pools = pools::asked(&args.pools)?;
        let mut report = Report::new("bench stress");
        report.parameter("ops", args.ops);
        report.parameter("max_live", args.max_live);
        report.parameter("seed", args.seed);
        report.parameter("runs", args.runs);
        for sizes in SIZES {
            let first_row = report.rows.len();
            for seed in (0..args.runs).map(|nth| args.seed.wrapping_add(nth)) {
                let flips = sizes.flips(args.ops, args.max_live, seed);
                let workload = format!("{}, seed {seed}", sizes.name);
                for (first, spec) in args.pools.iter().enumerate().map(|(at, spec)| (at == 0, spec))
                {
                    let run = run(spec, &flips)?;
                    report.rows.push(row(spec, &workload, args.ops, &run));
                    if seed == args.seed {
                        let plot = |subject: &str, points: &[[f64; 2]]| Series {
                            plot: format!("footprint over time, {}", sizes.name),
                            subject: subject.to_owned(),
                            workload: workload.clone(),
                            x_name: "operations".to_owned(),
                            y_name: "footprint_bytes".to_owned(),
                            points: points.to_vec(),
                        };
                        if first {
                            report.series.push(plot("ideal", &run.ideal));
                        }
                        report.series.push(plot(spec, &run.footprint));
                    }
                }
            }
            if args.runs > 1 {
                let workload = format!("{}, mean of {} seeds", sizes.name, args.runs);
                let means = means(&args.pools, &workload, &report.rows[first_row..]);
                report.rows.extend(means);
            }
        }
        report.notes.push(
            "footprint = pages + handle cells + descriptors; overhead = peak footprint / peak \
             live bytes - 1; of pages alone: as the xvMalloc study counted; contents were verified \
             at each free of the watched run; [least, greatest] of the seeds stand beside their mean"
                .to_owned(),
        );
        Ok(report)
    }
}

fn row(spec: &str, workload: &str, ops: u64, run: &Run) -> Row {
    let percent = |part: f64, whole: f64| ((part / whole - 1.0) * 1e4).round() / 1e2;
    let overhead = percent(run.peak_bytes as f64, run.ideal_peak_bytes as f64);
    let page_overhead = percent(run.page_peak_bytes as f64, run.ideal_peak_bytes as f64);
    let mean_overhead = percent(run.mean_bytes, run.ideal_mean_bytes);
    Row::new(spec, workload)
        .with("overhead_percent", overhead)
        .with("page_overhead_percent", page_overhead)
        .with("mean_overhead_percent", mean_overhead)
        .with("peak_bytes", run.peak_bytes)
        .with("ideal_peak_bytes", run.ideal_peak_bytes)
        .with("op_ns", (run.ns as f64 / ops as f64 * 10.0).round() / 10.0)
        .with("failed_allocations", run.failed)
}

/// A row for each pool: the means of its rows for single seeds. The overheads differ more between
/// seeds than between designs, so they come with their least and greatest values.
fn means(pools: &[String], workload: &str, seeds: &[Row]) -> Vec<Row> {
    let of_pool = |pool: &String| {
        let rows: Vec<&Row> = seeds.iter().filter(|row| row.subject == *pool).collect();
        let mut mean = Row::new(pool, workload);
        for name in columns(rows.iter().copied()) {
            let figures: Vec<f64> = rows.iter().filter_map(|row| row.number(name)).collect();
            let sum: f64 = figures.iter().sum();
            mean = mean.with(name, (sum / figures.len() as f64 * 1e2).round() / 1e2);
            if name.ends_with("_percent") {
                let least = figures.iter().fold(f64::INFINITY, |least, &figure| least.min(figure));
                let most = figures.iter().fold(0.0_f64, |most, &figure| most.max(figure));
                mean = mean.with(&format!("{name}_low"), least);
                mean = mean.with(&format!("{name}_high"), most);
            }
        }
        mean
    };
    pools.iter().map(of_pool).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_stand_beside_their_ranges() {
        let row = |pool: &str, overhead: f64, peak: usize| {
            Row::new(pool, "seed").with("overhead_percent", overhead).with("peak_bytes", peak)
        };
        let seeds = [row("xv", 5.5, 100), row("dense", 2.5, 90), row("xv", 4.5, 300)];
        let means = means(&["xv".to_owned(), "dense".to_owned()], "all", &seeds);
        let figures = |row: &Row| {
            ["overhead_percent", "overhead_percent_low", "overhead_percent_high", "peak_bytes"]
                .map(|name| row.number(name))
        };
        assert_eq!(figures(&means[0]), [5.0, 4.5, 5.5, 200.0].map(Some));
        assert_eq!(figures(&means[1]), [2.5, 2.5, 2.5, 90.0].map(Some));
    }

    #[test]
    fn every_pool_runs_and_keeps_its_contents() {
        let args = ["--ops", "5000", "--runs", "1"].map(str::to_owned);
        let report = Stress.run(&args).expect("a report");
        assert_eq!(report.rows.len(), 6);
        for row in &report.rows {
            assert_eq!(row.number("failed_allocations"), Some(0.0), "{}", row.subject);
            assert!(row.number("overhead_percent") > Some(0.0), "{}", row.subject);
        }
    }
}
