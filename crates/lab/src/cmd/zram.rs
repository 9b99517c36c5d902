//! `hectare zram`: our zs beside the running kernel's zsmalloc, on the same compressed pages.
//!
//! Pages of real processes are written to `/dev/zram0` one at a time. The device's own account
//! gives each compressed length, so that our pools store objects of exactly the same lengths in the
//! same order. Then half of the pages, drawn at random, are discarded, and both compact. The device
//! is reset before and after. If the machine lacks something, the command names it.

use anyhow::{Context, bail, ensure};
use hectare_pool::{Handle, Pool};

use super::swap::overhead_percent;
use crate::machine::page_bytes;
use crate::output::Outputs;
use crate::pools;
use crate::pools::process::{self, Sources};
use crate::pools::zram::{Account, Device};
use crate::report::{Report, Row};
use crate::runner;
use crate::say::counted;
use crate::within::within;

/// The arguments of `hectare zram`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    sources: Sources,
    /// The device's compressor
    #[arg(long, default_value = "lz4")]
    algorithm: String,
    /// The kernel's CONFIG_ZSMALLOC_CHAIN_SIZE
    #[arg(long, default_value_t = 8, value_parser = within(1_usize, 16))]
    chain: usize,
    #[command(flatten)]
    outputs: Outputs,
}

/// Runs the verb.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    args.sources.check()?;
    if let Some(missing) = Device::missing() {
        bail!("{missing}");
    }
    let mut pages = args.sources.collect()?;
    pages.retain(|page| !process::is_same_filled(page));
    ensure!(
        !pages.is_empty(),
        "there is nothing to store: no pages, or only pages that repeat one word"
    );
    let device = Device::open(&args.algorithm, pages.len())?;
    let mut kernel = Counted::default();
    let lengths = device.store(&pages)?;
    kernel.full = device.account()?;
    let dropped = dropped(&lengths);
    device.discard(&dropped)?;
    kernel.half = device.account()?;
    device.compact()?;
    kernel.compacted = device.account()?;
    drop(device);

    let stored: usize = lengths.iter().sum();
    let workload =
        format!("{}, {:.1} MB compressed", counted(pages.len(), "page"), stored as f64 / 1e6);
    let mut report = Report::new("zram");
    report.parameter("pages", pages.len());
    report.parameter("algorithm", args.algorithm.as_str());
    report.parameter("chain", args.chain);
    report.rows.push(kernel.row("kernel zsmalloc", &workload));
    let specs = ["xv".to_owned(), format!("zs:chain={}", args.chain), "dense".to_owned()];
    for spec in &specs {
        let pool = pools::make(spec)?;
        let (pages, everything) = fill(pool.as_ref(), &lengths, &dropped)?;
        report.rows.push(pages.row(&format!("{spec}, pages alone"), &workload));
        report.rows.push(everything.row(&format!("{spec}, everything"), &workload));
    }
    report.notes.push(
        "overhead over the sum of compressed lengths; the kernel's own count (mm_stat) has pages \
         alone, without handle cells and descriptors; half: after half of the pages are discarded"
            .to_owned(),
    );
    args.outputs.deliver(&report)
}

/// Half of the stored pages, drawn at random.
fn dropped(lengths: &[usize]) -> Vec<usize> {
    let mut stored: Vec<_> = (0..lengths.len()).filter(|&page| lengths[page] > 0).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut stored);
    stored.truncate(stored.len() / 2);
    stored
}

/// The figures at the three moments.
#[derive(Default)]
struct Counted {
    full: Account,
    half: Account,
    compacted: Account,
}

impl Counted {
    fn row(&self, subject: &str, workload: &str) -> Row {
        let overhead =
            |account: Account| overhead_percent(account.used_bytes, account.compressed_bytes);
        Row::new(subject, workload)
            .with("used_bytes", self.full.used_bytes)
            .with("overhead_percent", overhead(self.full))
            .with("half_percent", overhead(self.half))
            .with("half_compacted_percent", overhead(self.compacted))
    }
}

/// Does with a pool what was done with the device. Memory is counted twice: pages alone, and
/// everything.
fn fill(
    pool: &dyn Pool,
    lengths: &[usize],
    dropped: &[usize],
) -> anyhow::Result<(Counted, Counted)> {
    let content = vec![0x5A; page_bytes() as usize];
    let mut compressed_bytes = 0;
    let mut handles: Vec<Option<Handle>> = Vec::with_capacity(lengths.len());
    for &length in lengths {
        runner::go_on()?;
        if length == 0 {
            handles.push(None);
            continue;
        }
        // xv cannot hold a whole page; a user would store such a page outside the pool.
        let stored = length.min(pool.max_size_bytes());
        let handle =
            pool.alloc(stored).with_context(|| format!("{}: {length} bytes", pool.name()))?;
        // SAFETY: just allocated with that length.
        unsafe { pool.write(handle, &content[..stored]) };
        handles.push(Some(handle));
        compressed_bytes += length;
    }
    let account = |compressed_bytes: usize| {
        let stats = pool.stats();
        let with = |used_bytes| Account { compressed_bytes, used_bytes };
        (with(stats.page_bytes), with(stats.footprint_bytes()))
    };
    let full = account(compressed_bytes);
    for &page in dropped {
        if let Some(handle) = handles[page].take() {
            // SAFETY: stored above, forgotten now.
            unsafe { pool.free(handle) };
            compressed_bytes -= lengths[page];
        }
    }
    let half = account(compressed_bytes);
    pool.compact();
    let compacted = account(compressed_bytes);
    for handle in handles.into_iter().flatten() {
        // SAFETY: as above.
        unsafe { pool.free(handle) };
    }
    let pages = Counted { full: full.0, half: half.0, compacted: compacted.0 };
    Ok((pages, Counted { full: full.1, half: half.1, compacted: compacted.1 }))
}
