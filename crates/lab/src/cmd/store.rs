//! `hectare store`: real pages in the compressed page store, and in the kernel's zram.
//!
//! The pages of a file or of running processes are put one after the other, and then got in an order
//! drawn at random, by one thread; the best of several rounds counts, in which all subjects take
//! turns. Each page that is got is compared with what was put, outside the time that is told. Where
//! the machine has `/dev/zram0` and this is root, the same pages are written to and read from the
//! device, one at a time and without the page cache.

use std::time::Instant;

use anyhow::{Context, bail, ensure};
use hectare_store::{Codec, Config, Lz4, Stats, Store, Zstd};

use crate::machine::page_bytes;
use crate::output::Outputs;
use crate::pools;
use crate::pools::process::Sources;
use crate::pools::zram::Device;
use crate::report::{Report, Row};

/// What `hectare store` can be given.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sources: Sources,
    /// Pools to store in
    #[arg(long, num_args = 1.., default_values_t = ["dense".to_owned()])]
    pools: Vec<String>,
    /// What compresses: lz4, zstd, zstd:LEVEL
    #[arg(long, num_args = 1.., default_values_t = ["lz4", "zstd"].map(str::to_owned))]
    codecs: Vec<String>,
    /// Store equal contents once
    #[arg(long)]
    dedup: bool,
    /// Rounds; the best time of each subject counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[command(flatten)]
    outputs: Outputs,
}

/// Runs the verb.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    args.sources.check()?;
    ensure!(args.rounds > 0, "zero is no number of rounds");
    let pages = args.sources.collect()?;
    ensure!(!pages.is_empty(), "there are no pages to store");
    let mut missing: Vec<_> = Device::missing().into_iter().collect();
    let has_device = missing.is_empty();
    let mut subjects = Vec::new();
    for codec in &args.codecs {
        match kernel_algorithm(codec) {
            Some(algorithm) if has_device && Device::has(algorithm) => {
                subjects.push(Subject::Kernel { algorithm });
            }
            Some(algorithm) if has_device => missing.push(format!("it has no {algorithm}")),
            _ => {}
        }
        subjects.extend(args.pools.iter().map(|pool| Subject::Store { pool, codec }));
    }
    let mut order: Vec<_> = (0..pages.len()).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut order);
    let mut outcomes: Vec<Option<Outcome>> = subjects.iter().map(|_| None).collect();
    for _ in 0..args.rounds {
        for (subject, best) in subjects.iter().zip(&mut outcomes) {
            let outcome = subject.measure(&pages, &order, args.dedup)?;
            *best = Some(match best.take() {
                Some(best) => best.faster(outcome),
                None => outcome,
            });
        }
    }

    let original_bytes = pages.len() * page_bytes() as usize;
    let workload = format!("{} pages, {:.1} MB", pages.len(), original_bytes as f64 / 1e6);
    let mut report = Report::new("store");
    report.parameter("pages", pages.len());
    report.parameter("dedup", args.dedup);
    report.parameter("rounds", args.rounds);
    for (subject, outcome) in subjects.iter().zip(outcomes.into_iter().flatten()) {
        report.rows.push(outcome.row(&subject.name(), &workload, original_bytes));
    }
    let left_out = missing.iter().map(|what| format!("the kernel's zram was left out: {what}"));
    report.notes.extend(left_out);
    report.notes.push(
        "density: memory used for each byte stored, by mm_stat's mem_used_total (the kernel's has \
         pages alone, a store's the pool's cells and descriptors as well); with_table: a store's \
         slots too; MiB/s of uncompressed pages, one thread"
            .to_owned(),
    );
    args.outputs.deliver(&report)
}

/// The kernel's name of a codec, if what it does by that name is the same.
fn kernel_algorithm(codec: &str) -> Option<&'static str> {
    match codec {
        "lz4" => Some("lz4"),
        "zstd" | "zstd:3" => Some("zstd"),
        _ => None,
    }
}

fn make_codec(spec: &str) -> anyhow::Result<Box<dyn Codec>> {
    Ok(match spec.split_once(':') {
        None if spec == "lz4" => Box::new(Lz4),
        None if spec == "zstd" => Box::new(Zstd::new(3)),
        Some(("zstd", level)) => {
            Box::new(Zstd::new(level.parse().with_context(|| format!("the level of `{spec}`"))?))
        }
        _ => bail!("there is no codec `{spec}`; there are: lz4, zstd, zstd:LEVEL"),
    })
}

enum Subject<'a> {
    Kernel { algorithm: &'static str },
    Store { pool: &'a str, codec: &'a str },
}

struct Outcome {
    used_bytes: usize,
    table_bytes: usize,
    put_ns: u64,
    get_ns: u64,
    stats: Option<Stats>,
}

impl Subject<'_> {
    fn name(&self) -> String {
        match self {
            Self::Kernel { algorithm } => format!("kernel zram, {algorithm}"),
            Self::Store { pool, codec } => format!("store, {pool}, {codec}"),
        }
    }

    fn measure(&self, pages: &[Vec<u8>], order: &[usize], dedup: bool) -> anyhow::Result<Outcome> {
        match self {
            Self::Kernel { algorithm } => {
                let device = Device::open(algorithm, pages.len())?;
                let (put_ns, get_ns) = device.time(pages, order)?;
                let used_bytes = device.account()?.used_bytes;
                Ok(Outcome { used_bytes, table_bytes: 0, put_ns, get_ns, stats: None })
            }
            Self::Store { pool, codec } => {
                let pool = pools::make(pool)?;
                let codecs = vec![make_codec(codec)?];
                let config = Config { codecs, dedup, ..Config::new(pages.len()) };
                let store = Store::new(&*pool, config)?;
                let start = Instant::now();
                for (key, page) in pages.iter().enumerate() {
                    store.put(key, page)?;
                }
                let put_ns = start.elapsed().as_nanos() as u64;
                let mut room = vec![0; page_bytes() as usize];
                let start = Instant::now();
                for &key in order {
                    store.get(key, &mut room)?;
                }
                let get_ns = start.elapsed().as_nanos() as u64;
                for (key, page) in pages.iter().enumerate() {
                    let is_same = store.get(key, &mut room)? && room == *page;
                    ensure!(is_same, "page {key} did not come back as it was put");
                }
                let stats = store.stats();
                let (used_bytes, table_bytes) = (stats.pool_bytes, stats.table_bytes);
                Ok(Outcome { used_bytes, table_bytes, put_ns, get_ns, stats: Some(stats) })
            }
        }
    }
}

impl Outcome {
    fn faster(self, other: Self) -> Self {
        Self {
            put_ns: self.put_ns.min(other.put_ns),
            get_ns: self.get_ns.min(other.get_ns),
            ..other
        }
    }

    fn row(&self, subject: &str, workload: &str, original_bytes: usize) -> Row {
        let percent = |bytes: usize| (bytes as f64 / original_bytes as f64 * 1e4).round() / 1e2;
        let mib_s = |ns: u64| {
            (original_bytes as f64 / f64::from(1 << 20) / (ns as f64 / 1e9) * 10.0).round() / 10.0
        };
        let row = Row::new(subject, workload)
            .with("density_percent", percent(self.used_bytes))
            .with("with_table_percent", percent(self.used_bytes + self.table_bytes))
            .with("put_mib_per_s", mib_s(self.put_ns))
            .with("get_mib_per_s", mib_s(self.get_ns));
        match &self.stats {
            Some(stats) => row
                .with("same_filled_pages", stats.same_filled_pages)
                .with("raw_pages", stats.raw_pages)
                .with("sharing_pages", stats.sharing_pages),
            None => row,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codecs_are_made_by_name() {
        assert_eq!(make_codec("zstd:9").expect("a codec").name(), "zstd-9");
        assert_eq!(make_codec("lz4").expect("a codec").name(), "lz4");
        assert!(make_codec("lzo").is_err() && make_codec("zstd:x").is_err());
    }

    #[test]
    fn every_page_comes_back() {
        let text = include_bytes!("store.rs");
        let mut pages: Vec<Vec<u8>> = text.chunks_exact(4096).map(<[u8]>::to_vec).collect();
        pages.push(vec![7; 4096]);
        pages.push(pages[0].clone());
        let order: Vec<_> = (0..pages.len()).rev().collect();
        for pool in ["dense", "zs", "xv"] {
            let subject = Subject::Store { pool, codec: "zstd" };
            let outcome = subject.measure(&pages, &order, true).expect("a run");
            let stats = outcome.stats.expect("of a store");
            assert_eq!((stats.same_filled_pages, stats.sharing_pages), (1, pages.len() - 1));
        }
    }
}
