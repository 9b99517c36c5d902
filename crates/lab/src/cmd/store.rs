//! `hectare store`: real pages in the compressed page store, and in the kernel's zram.
//!
//! The pages of a file or of running processes are put one after the other, then got in random
//! order. Then every other one is put again and the rest got. One thread does this, then several,
//! each with a part of the pages. All subjects take turns in several rounds, and the best counts.
//! Each page is compared with what was put, outside the reported time. If the machine has
//! `/dev/zram0` and this runs as root, the same pages are written to and read from the device, one
//! at a time and without the page cache.

use std::sync::Barrier;
use std::time::Instant;

use anyhow::{bail, ensure};
use hectare_pool::Pool;
use hectare_store::{Codec, Config, Lz4, Stats, Store, Zstd};

use super::Exit;
use crate::list;
use crate::machine::page_bytes;
use crate::output::Outputs;
use crate::pools;
use crate::pools::process::Sources;
use crate::pools::zram::{AlignedPage, Device};
use crate::report::{Report, Row};
use crate::runner;
use crate::say::counted;
use crate::threads;
use crate::within::within;

/// The arguments of `hectare store`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sources: Sources,
    /// Pools to store in, separated by commas
    #[arg(long, value_name = "POOL,…", num_args = 1.., default_value = "dense")]
    pools: Vec<String>,
    /// Codecs, separated by commas: lz4, zstd, zstd:LEVEL
    #[arg(long, value_name = "CODEC,…", num_args = 1.., value_delimiter = ',', default_value = "lz4,zstd")]
    codecs: Vec<String>,
    /// Numbers of threads that put and get, separated by commas
    #[arg(long, value_name = "N,…", num_args = 1.., value_delimiter = ',', default_value = "1,2",
        value_parser = within(1_usize, 1000))]
    threads: Vec<usize>,
    /// Store equal contents once
    #[arg(long)]
    dedup: bool,
    /// Rounds; the best time of each subject counts
    #[arg(long, default_value_t = 3, value_parser = within(1_usize, 1000))]
    rounds: usize,
    #[command(flatten)]
    outputs: Outputs,
}

/// Runs the verb.
pub(crate) fn run(mut args: Args) -> anyhow::Result<()> {
    args.sources.check()?;
    args.pools = pools::asked(&args.pools)?;
    list::refuse_twice("--codecs", &args.codecs)?;
    list::refuse_twice("--threads", &args.threads)?;
    let pages = args.sources.collect()?;
    ensure!(!pages.is_empty(), "there is no whole page, {} bytes, to store", page_bytes());
    let no_device = Device::missing().map(|what| format!("the kernel's zram was left out: {what}"));
    let has_device = no_device.is_none();
    let mut left_out: Vec<_> = no_device.into_iter().collect();
    let mut kinds = Vec::new();
    for codec in &args.codecs {
        match kernel_algorithm(codec) {
            Some(algorithm) if has_device && Device::has(algorithm) => {
                kinds.push(Kind::Kernel { algorithm });
            }
            Some(algorithm) if has_device => left_out.push(format!(
                "the kernel's zram was left out with {algorithm}, which it does not have"
            )),
            _ => {}
        }
        kinds.extend(args.pools.iter().map(|pool| Kind::Store { pool, codec }));
    }
    let of_kind = |kind| args.threads.iter().map(move |&threads| Subject { kind, threads });
    let subjects: Vec<_> = kinds.into_iter().flat_map(of_kind).collect();
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
    let workload =
        format!("{}, {:.1} MB", counted(pages.len(), "page"), original_bytes as f64 / 1e6);
    let mut report = Report::new("store");
    report.parameter("pages", pages.len());
    report.parameter("dedup", args.dedup);
    report.parameter("rounds", args.rounds);
    for (subject, outcome) in subjects.iter().zip(outcomes.into_iter().flatten()) {
        report.rows.push(outcome.row(&subject.name(), &workload, original_bytes));
    }
    report.notes.extend(left_out);
    report.notes.push(
        "density: memory used for each byte stored, by mm_stat's mem_used_total (the kernel's has \
         pages alone, a store's the pool's cells and descriptors as well); with_table: a store's \
         slots too; MiB/s of uncompressed pages, of all threads together; mixed: half put, half got, after the density was told"
            .to_owned(),
    );
    args.outputs.deliver(&report)
}

/// The kernel's name for a codec, if the kernel does the same under that name.
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
            // Outside the range the codec would take the nearest level, measured under another's
            // name.
            let level = within(-7, 22)(level)
                .map_err(|why| Exit::misused(format!("the level of `{spec}`: {why}")))?;
            Box::new(Zstd::new(level))
        }
        _ => bail!(Exit::misused(format!(
            "there is no codec `{spec}`; there are: lz4, zstd, zstd:LEVEL"
        ))),
    })
}

#[derive(Clone, Copy)]
enum Kind<'a> {
    Kernel { algorithm: &'static str },
    Store { pool: &'a str, codec: &'a str },
}

struct Subject<'a> {
    kind: Kind<'a>,
    threads: usize,
}

struct Outcome {
    used_bytes: usize,
    table_bytes: usize,
    times: Times,
    stats: Option<Stats>,
}

/// Nanoseconds until the last thread was done.
#[derive(Clone, Copy)]
struct Times {
    put: u64,
    get: u64,
    mixed: u64,
}

/// Where pages are put and got, by any thread.
trait Pages: Sync {
    fn put(&self, key: usize, page: &[u8], room: &mut [u8]) -> anyhow::Result<()>;
    fn get(&self, key: usize, room: &mut [u8]) -> anyhow::Result<()>;
    /// The memory that the pages take, and that the table of keys takes.
    fn used_bytes(&self) -> anyhow::Result<(usize, usize)>;
}

impl Pages for Device {
    fn put(&self, key: usize, page: &[u8], room: &mut [u8]) -> anyhow::Result<()> {
        room.copy_from_slice(page);
        self.write(key, room)
    }

    fn get(&self, key: usize, room: &mut [u8]) -> anyhow::Result<()> {
        self.read(key, room)
    }

    fn used_bytes(&self) -> anyhow::Result<(usize, usize)> {
        Ok((self.account()?.used_bytes, 0))
    }
}

impl<P: Pool> Pages for Store<P> {
    fn put(&self, key: usize, page: &[u8], _room: &mut [u8]) -> anyhow::Result<()> {
        Ok(self.put(key, page)?)
    }

    fn get(&self, key: usize, room: &mut [u8]) -> anyhow::Result<()> {
        ensure!(self.get(key, room)?, "page {key} is not there");
        Ok(())
    }

    fn used_bytes(&self) -> anyhow::Result<(usize, usize)> {
        let stats = self.stats();
        Ok((stats.pool_bytes, stats.table_bytes))
    }
}

/// Gives each of `threads` threads a part of the keys, and measures the time until all are done.
fn time(
    threads: usize,
    keys: &[usize],
    act: impl Fn(usize, &mut [u8]) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<u64> {
    let (start, act) = (&Barrier::new(threads + 1), &act);
    std::thread::scope(|scope| {
        let mut parts = keys.chunks(keys.len().div_ceil(threads));
        let spawn = |_| {
            let part = parts.next().unwrap_or(&[]);
            threads::start(scope, move || {
                let mut room = AlignedPage::new();
                start.wait();
                part.iter().try_for_each(|&key| {
                    runner::go_on()?;
                    act(key, room.bytes())
                })
            })
        };
        let running: Vec<_> = (0..threads).map(spawn).collect();
        let begun = Instant::now();
        start.wait();
        for thread in running {
            thread.join().expect("a thread panicked")?;
        }
        Ok(begun.elapsed().as_nanos() as u64)
    })
}

fn measure(
    subject: &impl Pages,
    threads: usize,
    pages: &[Vec<u8>],
    order: &[usize],
) -> anyhow::Result<Outcome> {
    let keys: Vec<_> = (0..pages.len()).collect();
    let put = time(threads, &keys, |key, room| subject.put(key, &pages[key], room))?;
    let (used_bytes, table_bytes) = subject.used_bytes()?;
    let get = time(threads, order, |key, room| subject.get(key, room))?;
    let mixed = time(threads, order, |key, room| {
        if key % 2 == 0 { subject.put(key, &pages[key], room) } else { subject.get(key, room) }
    })?;
    let mut room = AlignedPage::new();
    for (key, page) in pages.iter().enumerate() {
        runner::go_on()?;
        subject.get(key, room.bytes())?;
        ensure!(room.bytes() == page.as_slice(), "page {key} did not come back as it was put");
    }
    Ok(Outcome { used_bytes, table_bytes, times: Times { put, get, mixed }, stats: None })
}

impl Subject<'_> {
    fn name(&self) -> String {
        let name = match self.kind {
            Kind::Kernel { algorithm } => format!("kernel zram, {algorithm}"),
            Kind::Store { pool, codec } => format!("store, {pool}, {codec}"),
        };
        if self.threads == 1 { name } else { format!("{name}, {} threads", self.threads) }
    }

    fn measure(&self, pages: &[Vec<u8>], order: &[usize], dedup: bool) -> anyhow::Result<Outcome> {
        match self.kind {
            Kind::Kernel { algorithm } => {
                let device = Device::open(algorithm, pages.len())?;
                measure(&device, self.threads, pages, order)
            }
            Kind::Store { pool, codec } => {
                let pool = pools::make(pool)?;
                let codecs = vec![make_codec(codec)?];
                let config = Config { codecs, dedup, ..Config::new(pages.len()) };
                let store = Store::new(&*pool, config)?;
                let outcome = measure(&store, self.threads, pages, order)?;
                Ok(Outcome { stats: Some(store.stats()), ..outcome })
            }
        }
    }
}

impl Outcome {
    fn faster(self, other: Self) -> Self {
        let times = Times {
            put: self.times.put.min(other.times.put),
            get: self.times.get.min(other.times.get),
            mixed: self.times.mixed.min(other.times.mixed),
        };
        Self { times, ..other }
    }

    fn row(&self, subject: &str, workload: &str, original_bytes: usize) -> Row {
        let percent = |bytes: usize| (bytes as f64 / original_bytes as f64 * 1e4).round() / 1e2;
        let mib_s = |ns: u64| {
            (original_bytes as f64 / f64::from(1 << 20) / (ns as f64 / 1e9) * 10.0).round() / 10.0
        };
        let row = Row::new(subject, workload)
            .with("density_percent", percent(self.used_bytes))
            .with("with_table_percent", percent(self.used_bytes + self.table_bytes))
            .with("put_mib_per_s", mib_s(self.times.put))
            .with("get_mib_per_s", mib_s(self.times.get))
            .with("mixed_mib_per_s", mib_s(self.times.mixed));
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
        assert!(make_codec("zstd:99").is_err() && make_codec("zstd:-3").is_ok());
    }

    #[test]
    fn every_page_comes_back() {
        let text = include_bytes!("store.rs");
        let mut pages: Vec<Vec<u8>> = text.chunks_exact(4096).map(<[u8]>::to_vec).collect();
        pages.push(vec![7; 4096]);
        pages.push(pages[0].clone());
        let order: Vec<_> = (0..pages.len()).rev().collect();
        for (pool, threads) in [("dense", 1), ("zs", 2), ("xv", 3)] {
            let subject = Subject { kind: Kind::Store { pool, codec: "zstd" }, threads };
            let outcome = subject.measure(&pages, &order, true).expect("a run");
            let stats = outcome.stats.expect("of a store");
            assert_eq!(stats.same_filled_pages, 1);
            // Two threads that put the same page at the same moment do not find each other's
            // object.
            let least_sharing = usize::from(threads == 1);
            assert!((least_sharing..=1).contains(&stats.sharing_pages), "{stats:?}");
        }
    }
}
