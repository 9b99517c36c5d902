//! `hectare tlsf regions`: which region size suits a heap that grows by regions?
//!
//! The compcache project's study of its TLSF: objects are compressed pages of a swap device;
//! writing a page replaces its object. Every region counts in full, including the free space
//! inside.

use std::ptr::NonNull;
use std::time::Instant;

use anyhow::Context;
use hectare_pages::{Counted, Os};
use hectare_tlsf::{Growing, GrowthPolicy};

use crate::list;
use crate::output::Outputs;
use crate::report::{Report, Row, Series};
use crate::within::within;

/// The arguments of `hectare tlsf regions`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    outputs: Outputs,
    /// Region sizes in KiB, separated by commas: whole pages
    #[arg(long, value_name = "KIB,…", value_delimiter = ',', default_value = "4,8,16,32,64,128",
        value_parser = region_kib)]
    regions: Vec<usize>,
    /// Pages of the swap device
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = within(1_usize, 10_000_000))]
    pages: usize,
    /// Writes
    #[arg(long, value_name = "N", default_value_t = 400_000, value_parser = within(1_usize, 100_000_000))]
    writes: usize,
    /// Seed of the sizes and of the order
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = within(0_u64, u64::MAX))]
    seed: u64,
    /// Bytes that must stay free elsewhere before a free region goes back
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = within(0_usize, usize::MAX))]
    keep_free_bytes: usize,
}

/// Parses a region's size. Only whole pages are taken: anything else would be rounded up.
fn region_kib(text: &str) -> Result<usize, String> {
    let kib = within(4, 1 << 20)(text)?;
    if kib % 4 == 0 { Ok(kib) } else { Err("regions are whole pages of 4 KiB".to_owned()) }
}

/// How often the footprint is noted.
const SAMPLES: usize = 200;

/// One event: the page, and the length of its new contents; zero drops the page.
type Write = (usize, usize);

/// Runs the verb.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    list::refuse_twice("--regions", &args.regions)?;
    let writes = writes(args);
    let mut report = Report::new("tlsf regions");
    report.parameter("pages", args.pages as u64);
    report.parameter("writes", args.writes as u64);
    report.parameter("seed", args.seed);
    report.parameter("keep_free_bytes", args.keep_free_bytes as u64);
    for &region_kib in &args.regions {
        let policy =
            GrowthPolicy { region_bytes: region_kib << 10, keep_free_bytes: args.keep_free_bytes };
        replay(&mut report, &writes, args.pages, policy)?;
    }
    report.notes.push(
        "overhead is the size of all regions held over the live bytes, in the mean over time and \
         of the two peaks; after the writes half of the pages are dropped at random"
            .to_owned(),
    );
    args.outputs.deliver(&report)
}

/// Page writes as of a machine under memory pressure: some pages hot, most cold; lengths as from LZ
/// compression of mixed pages.
fn writes(args: &Args) -> Vec<Write> {
    let mut random = fastrand::Rng::with_seed(args.seed);
    let mut writes: Vec<Write> = (0..args.writes)
        .map(|_| {
            // The square of a uniform number favours low pages.
            let hot = random.f64() * random.f64();
            let page = ((hot * args.pages as f64) as usize).min(args.pages - 1);
            let length = match random.u32(0..100) {
                0..10 => random.usize(40..300),
                10..75 => (300.0 + 1500.0 * (random.f64() + random.f64()) / 1.2) as usize,
                75..92 => random.usize(1800..3300),
                _ => random.usize(3300..=4096),
            };
            (page, length)
        })
        .collect();
    let mut dropped: Vec<usize> = (0..args.pages).collect();
    random.shuffle(&mut dropped);
    writes.extend(dropped.into_iter().take(args.pages / 2).map(|page| (page, 0)));
    writes
}

/// The size of all regions over the live bytes, minus one. `None` if nothing is live.
fn overhead(region_bytes: usize, live_bytes: usize) -> Option<f64> {
    (live_bytes > 0).then(|| region_bytes as f64 / live_bytes as f64 - 1.0)
}

fn replay(
    report: &mut Report,
    writes: &[Write],
    pages: usize,
    policy: GrowthPolicy,
) -> anyhow::Result<()> {
    let source = Counted::new(Os);
    let mut heap: Growing<_> = Growing::new(&source, policy);
    let mut objects: Vec<Option<(NonNull<u8>, usize)>> = vec![None; pages];
    let (mut live_bytes, mut peak_live_bytes) = (0usize, 0usize);
    let (mut overhead_sum, mut samples) = (0.0, 0u32);
    let mut points = Vec::new();
    let drops = pages / 2;
    let mut before_drop_overhead = None;
    let start = Instant::now();
    for (number, &(page, length)) in writes.iter().enumerate() {
        if let Some((object, old)) = objects[page].take() {
            live_bytes -= old;
            // SAFETY: the page's object, taken out of the table.
            unsafe { heap.free(object) }?;
        }
        if length > 0 {
            let object = heap.malloc(length).context("the system gave no memory")?;
            objects[page] = Some((object, length));
            live_bytes += length;
            peak_live_bytes = peak_live_bytes.max(live_bytes);
        }
        let overhead = || overhead(heap.counts().region_bytes, live_bytes);
        if number % (writes.len() / SAMPLES).max(1) == 0 && number > 0 {
            if let Some(overhead) = overhead() {
                overhead_sum += overhead;
                samples += 1;
            }
            points.push([number as f64, heap.counts().region_bytes as f64]);
        }
        if number + drops + 1 == writes.len() {
            before_drop_overhead = overhead();
        }
    }
    let ns = start.elapsed().as_nanos() as f64;
    let counts = heap.counts();
    let workload = format!("regions of {} KiB", policy.region_bytes >> 10);
    let mut row = Row::new("hectare-tlsf", &workload);
    for (name, overhead) in [
        ("mean_overhead_ratio", (samples > 0).then(|| overhead_sum / f64::from(samples))),
        ("peak_overhead_ratio", overhead(counts.peak_region_bytes, peak_live_bytes)),
        ("full_overhead_ratio", before_drop_overhead),
        ("half_dropped_overhead_ratio", overhead(counts.region_bytes, live_bytes)),
    ] {
        if let Some(overhead) = overhead {
            row = row.with(name, overhead);
        }
    }
    report.rows.push(
        row.with("get_mem_calls", counts.get_mem_calls)
            .with("put_mem_calls", counts.put_mem_calls)
            .with("write_ns", ns / writes.len() as f64),
    );
    report.series.push(Series {
        plot: "regions held over writes".to_owned(),
        subject: "hectare-tlsf".to_owned(),
        workload,
        x_name: "writes".to_owned(),
        y_name: "region_bytes".to_owned(),
        points,
    });
    Ok(())
}
