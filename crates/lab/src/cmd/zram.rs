//! `hectare zram`: our zs beside the running kernel's zsmalloc, on the same compressed pages.
//!
//! Pages of real processes are written to `/dev/zram0` one at a time; the device's own account
//! tells how long each became, so that ours store objects of exactly the same lengths in the same
//! order. Then half of the pages, drawn at random, are discarded, and both compact. The device is
//! reset before and after. What is missing on this machine is said by name.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use hectare_pool::{Handle, Pool};

use super::swap::overhead_percent;
use crate::machine::page_bytes;
use crate::output::Outputs;
use crate::pools::{self, process};
use crate::report::{Report, Row};

const DEVICE: &str = "/dev/zram0";
const SYSFS: &str = "/sys/block/zram0";
/// Linux's `BLKDISCARD`.
const BLKDISCARD: libc::c_ulong = 0x1277;

/// What `hectare zram` can be given.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Processes whose private pages to store
    #[arg(long, num_args = 1..)]
    pid: Vec<u32>,
    /// Store the private pages of every process of this machine, whosever it is
    #[arg(long, conflicts_with = "pid")]
    all: bool,
    /// Files whose pages to store after those
    #[arg(long, num_args = 1..)]
    file: Vec<PathBuf>,
    /// Store at most this much, uncompressed
    #[arg(long, default_value_t = 256)]
    limit_mib: usize,
    /// The device's compressor
    #[arg(long, default_value = "lz4")]
    algorithm: String,
    /// The kernel's CONFIG_ZSMALLOC_CHAIN_SIZE
    #[arg(long, default_value_t = 8)]
    chain: usize,
    #[command(flatten)]
    outputs: Outputs,
}

/// Runs the verb.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    ensure!(
        args.all || !args.pid.is_empty() || !args.file.is_empty(),
        "whose pages? --pid N for some processes, --file F for files, --all for every process of \
         this machine, whosever it is"
    );
    if let Some(missing) = missing() {
        println!("skipped: {missing}");
        return Ok(());
    }
    let pages = collect(&args)?;
    ensure!(!pages.is_empty(), "there are no pages to store");
    let device = Device::open(&args.algorithm, pages.len())?;
    let mut kernel = Counted::default();
    let lengths = device.store(&pages)?;
    kernel.full = device.account()?;
    let dropped = dropped(&lengths);
    device.discard(&dropped)?;
    kernel.half = device.account()?;
    write(&Path::new(SYSFS).join("compact"), "1")?;
    kernel.compacted = device.account()?;
    drop(device);

    let stored: usize = lengths.iter().sum();
    let workload = format!("{} pages, {:.1} MB compressed", pages.len(), stored as f64 / 1e6);
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

/// What this machine lacks for the comparison, by name.
fn missing() -> Option<String> {
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return Some(format!("root is needed to set up {DEVICE}"));
    }
    if !Path::new(DEVICE).exists() {
        return Some(format!("{DEVICE} does not exist (modprobe zram)"));
    }
    match std::fs::read_to_string(Path::new(SYSFS).join("initstate")) {
        Ok(state) if state.trim() == "0" => None,
        Ok(_) => Some(format!("{DEVICE} is in use; it is left alone")),
        Err(error) => Some(format!("{SYSFS}/initstate: {error}")),
    }
}

/// The pages of the processes and files, those filled with one word left out.
fn collect(args: &Args) -> anyhow::Result<Vec<Vec<u8>>> {
    let limit = (args.limit_mib << 20) / page_bytes() as usize;
    let mut pages = Vec::new();
    let mut add = |page: &[u8]| {
        if pages.len() < limit && !process::is_same_filled(page) {
            pages.push(page.to_vec());
        }
    };
    let own = std::process::id();
    let pids = if args.all { all_pids()? } else { args.pid.clone() };
    for pid in pids.into_iter().filter(|&pid| pid != own) {
        let result = process::for_each_page(pid, |_, page| {
            add(page);
            Ok(())
        });
        // Of all processes, some have no memory and some end meanwhile.
        if !args.all {
            result?;
        }
    }
    for path in &args.file {
        let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        bytes.chunks_exact(page_bytes() as usize).for_each(&mut add);
    }
    Ok(pages)
}

fn all_pids() -> anyhow::Result<Vec<u32>> {
    let entries = std::fs::read_dir("/proc").context("reading /proc")?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut pids: Vec<u32> = names.collect();
    pids.sort_unstable();
    Ok(pids)
}

/// Half of the stored pages, drawn at random.
fn dropped(lengths: &[usize]) -> Vec<usize> {
    let mut stored: Vec<_> = (0..lengths.len()).filter(|&page| lengths[page] > 0).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut stored);
    stored.truncate(stored.len() / 2);
    stored
}

/// Bytes stored, and bytes that takes.
#[derive(Clone, Copy, Default)]
struct Account {
    compressed_bytes: usize,
    used_bytes: usize,
}

/// The three moments.
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

/// Does with a pool what was done with the device. Counted twice: pages alone, and everything.
fn fill(
    pool: &dyn Pool,
    lengths: &[usize],
    dropped: &[usize],
) -> anyhow::Result<(Counted, Counted)> {
    let content = vec![0x5A; page_bytes() as usize];
    let mut compressed_bytes = 0;
    let mut handles: Vec<Option<Handle>> = Vec::with_capacity(lengths.len());
    for &length in lengths {
        if length == 0 {
            handles.push(None);
            continue;
        }
        // xv holds no whole page; a user stores such a page as one of its own.
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

/// The device, set up by this process; reset when dropped.
struct Device {
    file: File,
}

impl Device {
    fn open(algorithm: &str, pages: usize) -> anyhow::Result<Self> {
        let sysfs = Path::new(SYSFS);
        write(&sysfs.join("reset"), "1")?;
        write(&sysfs.join("comp_algorithm"), algorithm)?;
        write(&sysfs.join("disksize"), &(pages as u64 * page_bytes()).to_string())?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_DIRECT);
        match options.open(DEVICE) {
            Ok(file) => Ok(Self { file }),
            Err(error) => {
                write(&sysfs.join("reset"), "1")?;
                bail!("opening {DEVICE}: {error}")
            }
        }
    }

    /// Writes the pages and returns the length that each became; 0 for one that is not stored.
    fn store(&self, pages: &[Vec<u8>]) -> anyhow::Result<Vec<usize>> {
        // O_DIRECT wants a buffer aligned to the device's block.
        let bytes = page_bytes() as usize;
        let mut room = vec![0u8; 2 * bytes];
        let skip = room.as_ptr().align_offset(bytes);
        let buffer = &mut room[skip..skip + bytes];
        let mut lengths = Vec::with_capacity(pages.len());
        let mut before = self.account()?.compressed_bytes;
        for (number, page) in pages.iter().enumerate() {
            buffer.copy_from_slice(page);
            let offset = number as u64 * bytes as u64;
            self.file.write_all_at(buffer, offset).with_context(|| format!("writing {DEVICE}"))?;
            let now = self.account()?.compressed_bytes;
            lengths.push(now.checked_sub(before).context("mm_stat went backwards")?);
            before = now;
        }
        Ok(lengths)
    }

    fn discard(&self, pages: &[usize]) -> anyhow::Result<()> {
        for &page in pages {
            let range = [page as u64 * page_bytes(), page_bytes()];
            // SAFETY: the ioctl reads two 64-bit numbers, which live through the call.
            let status = unsafe { libc::ioctl(self.file.as_raw_fd(), BLKDISCARD, range.as_ptr()) };
            if status != 0 {
                bail!("discarding a page of {DEVICE}: {}", std::io::Error::last_os_error());
            }
        }
        Ok(())
    }

    /// The second and third number of `mm_stat`.
    fn account(&self) -> anyhow::Result<Account> {
        let path = Path::new(SYSFS).join("mm_stat");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let mut numbers = text.split_whitespace().skip(1).map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(compressed_bytes)), Some(Ok(used_bytes))) => {
                Ok(Account { compressed_bytes, used_bytes })
            }
            _ => bail!("{} has not the columns expected: {text}", path.display()),
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // A device that is open cannot be reset: another file takes this one's place.
        if let Ok(null) = File::open("/dev/null") {
            self.file = null;
        }
        if let Err(error) = write(&Path::new(SYSFS).join("reset"), "1") {
            eprintln!("hectare: {DEVICE} could not be reset: {error:#}");
        }
    }
}

fn write(path: &Path, value: &str) -> anyhow::Result<()> {
    std::fs::write(path, value).with_context(|| format!("writing `{value}` to {}", path.display()))
}
