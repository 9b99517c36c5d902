//! `hectare tlsf wcet`: the most instructions that each call takes.

use std::collections::BTreeMap;
use std::ptr::NonNull;

use anyhow::{Context, ensure};
use hectare_tlsf::{Row as ListRow, Rows, Tlsf, WideTlsf};

use super::step::{self, Count};
use super::worst::{CALLS, FREE, MEMALIGN_REFUSED, NOTHING, drive, drive_growth};
use crate::cmd::Exit;
use crate::output::Outputs;
use crate::progress::Progress;
use crate::replay::clock::{Rate, ticks};
use crate::report::{Report, Row};
use crate::runner::{affinity, pin_to};
use crate::within::within;

/// The most that any malloc or free may take, in instructions.
const BOUND_INSTRUCTIONS: u64 = 200;
/// The most that any memalign, or any realloc including its copy, may take, in instructions.
const BOUND_ALIGNED_INSTRUCTIONS: u64 = 300;

/// The arguments of `hectare tlsf wcet`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    outputs: Outputs,
    /// Calls timed for the distribution of latencies
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = within(1_usize, 100_000_000))]
    latencies: usize,
}

/// A heap to be measured: its index width, its total memory, and the number of pools.
struct Setting {
    name: &'static str,
    pool_bytes: usize,
    pools: usize,
    wide: bool,
}

const SETTINGS: [Setting; 6] = [
    Setting { name: "64 KiB, 1 pool", pool_bytes: 64 << 10, pools: 1, wide: false },
    Setting { name: "62 MiB, 1000 pools", pool_bytes: 64 << 10, pools: 1000, wide: false },
    Setting { name: "30 GiB, 4 pools", pool_bytes: 15 << 29, pools: 4, wide: false },
    Setting { name: "64 KiB, 1 pool, wide", pool_bytes: 64 << 10, pools: 1, wide: true },
    Setting { name: "64 GiB, 1 pool, wide", pool_bytes: 64 << 30, pools: 1, wide: true },
    Setting { name: "62 GiB, 1000 pools, wide", pool_bytes: 64 << 20, pools: 1000, wide: true },
];

/// Address space for pools. It takes memory only where it is touched.
struct Space {
    start: NonNull<u8>,
    bytes: usize,
}

impl Space {
    fn new(bytes: usize) -> anyhow::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, wherever the kernel likes.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        ensure!(
            start != libc::MAP_FAILED,
            "no address space of {bytes} bytes: {}",
            std::io::Error::last_os_error()
        );
        Ok(Self { start: NonNull::new(start.cast()).context("a mapping at zero")?, bytes })
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which the heap over it no longer uses.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut report = Report::new("tlsf wcet");
    match pin() {
        Ok(cpu) => report.parameter("cpu", cpu as u64),
        Err(error) => report.notes.push(format!("could not be pinned to one processor: {error}")),
    }
    report.parameter("bound_instructions", BOUND_INSTRUCTIONS);
    report.parameter("bound_aligned_instructions", BOUND_ALIGNED_INSTRUCTIONS);
    eprintln!("every instruction of each call is stepped over: about two minutes");
    let mut worst: BTreeMap<usize, Count> = BTreeMap::new();
    let mut bar = Progress::of_one_thread();
    bar.set_length(SETTINGS.len() as u64 + 1);
    bar.begin(format!("counting on {}", SETTINGS[0].name));
    for (nth, setting) in SETTINGS.iter().enumerate() {
        let counts = if setting.wide {
            measure::<[ListRow<usize, 32>; 32]>(setting, WideTlsf::new)?
        } else {
            measure::<[ListRow<u32, 32>; 26]>(setting, Tlsf::new)?
        };
        note_counts(&mut report, setting.name, &counts);
        for (label, count) in counts {
            let entry = worst.entry(label).or_default();
            entry.most = entry.most.max(count.most);
            entry.calls += count.calls;
        }
        let next = SETTINGS.get(nth + 1).map_or("a growing heap", |next| next.name);
        bar.step(format!("counting on {next}"));
    }
    let growth = step::count(drive_growth)?;
    bar.finish();
    note_counts(&mut report, "regions of 64 KiB", &growth);
    note_counts(&mut report, "all: the bound", &worst);
    for setting in [&SETTINGS[0], &SETTINGS[2]] {
        latencies(&mut report, setting, args.latencies)?;
    }
    report.notes.push(format!(
        "instructions counted by single steps from before the call to after it; no malloc and no \
         free may exceed {BOUND_INSTRUCTIONS}, no memalign {BOUND_ALIGNED_INSTRUCTIONS}; a realloc \
         that moves counts the copy of what it moves, too"
    ));
    args.outputs.deliver(&report)?;
    for (&label, count) in worst.range(..=MEMALIGN_REFUSED) {
        let bound = if label <= FREE { BOUND_INSTRUCTIONS } else { BOUND_ALIGNED_INSTRUCTIONS };
        if count.most > bound {
            let message =
                format!("{} took {} instructions, more than {bound}", CALLS[label], count.most);
            return Err(Exit { code: 3, message }.into());
        }
    }
    Ok(())
}

/// Keeps this process and its children on the last of its processors. The tracer and the child take
/// turns; on two processors each would wait for the other's at each of a million steps.
fn pin() -> anyhow::Result<usize> {
    let cpu = *affinity()?.last().context("this process may run on no processor")?;
    pin_to(&[cpu])?;
    Ok(cpu)
}

fn note_counts(report: &mut Report, workload: &str, counts: &BTreeMap<usize, Count>) {
    for (&label, count) in counts.iter().filter(|&(&label, _)| label != NOTHING) {
        report.rows.push(
            Row::new(CALLS[label], workload)
                .with("worst_instructions", count.most)
                .with("calls", count.calls),
        );
    }
}

/// Counts the calls on a heap of that setting, in a child.
fn measure<R: Rows>(
    setting: &Setting,
    make: impl FnOnce() -> Tlsf<R>,
) -> anyhow::Result<BTreeMap<usize, Count>> {
    let space = Space::new(setting.pool_bytes * setting.pools)?;
    step::count(|marker| {
        let mut heap = make();
        add_pools(&mut heap, &space, setting);
        drive(&mut heap, setting.pool_bytes / 4, marker);
        assert_eq!(heap.validate(), Ok(()));
        assert_eq!(heap.stats().used_bytes, 0);
    })
    .with_context(|| format!("counting on {}", setting.name))
}

fn add_pools<R: Rows>(heap: &mut Tlsf<R>, space: &Space, setting: &Setting) {
    for pool in 0..setting.pools {
        // SAFETY: within the mapping.
        let start = unsafe { space.start.add(pool * setting.pool_bytes) };
        // SAFETY: the mapping outlives the heap, and each part of it is one pool.
        unsafe { heap.add_pool(start, setting.pool_bytes) }.expect("a pool within reach");
    }
}

/// Times single calls on random work over a heap of that setting.
fn latencies(report: &mut Report, setting: &Setting, calls: usize) -> anyhow::Result<()> {
    let space = Space::new(setting.pool_bytes * setting.pools)?;
    let mut heap: Tlsf = Tlsf::new();
    add_pools(&mut heap, &space, setting);
    let rate = Rate::measure();
    let mut random = fastrand::Rng::with_seed(11);
    let most_live = if setting.pool_bytes > 1 << 20 { 100_000 } else { 300 };
    let mut live: Vec<NonNull<u8>> = Vec::with_capacity(most_live + 1);
    let mut times: [Vec<u64>; 2] = [(); 2].map(|()| Vec::with_capacity(calls));
    // At least one call of each: a coin decides when `free` is called.
    while times[0].len() < calls || times[1].is_empty() {
        let bytes = 1 << random.u32(0..12);
        let bytes = random.usize(0..bytes);
        let before = ticks();
        let block = heap.malloc(bytes);
        times[0].push(ticks() - before);
        live.extend(block);
        if live.len() > most_live || block.is_none() || random.bool() {
            if live.is_empty() {
                continue;
            }
            let block = live.swap_remove(random.usize(..live.len()));
            let before = ticks();
            // SAFETY: taken out of the live ones.
            let freed = unsafe { heap.free(block) };
            times[1].push(ticks() - before);
            freed.context("a block of the heap")?;
        }
    }
    for (call, mut times) in ["malloc", "free"].into_iter().zip(times) {
        times.sort_unstable();
        let last = times.len().checked_sub(1).context("no call was timed")?;
        let quantile = |share: f64| times[(last as f64 * share) as usize] as f64 * rate.ns_per_tick;
        report.rows.push(
            Row::new(call, format!("latency, {}", setting.name))
                .with("p50_ns", quantile(0.5))
                .with("p99_ns", quantile(0.99))
                .with("p999_ns", quantile(0.999))
                .with("p9999_ns", quantile(0.9999))
                .with("worst_ns", quantile(1.0))
                .with("clock_ns", rate.cost_ns)
                .with("calls", times.len() as u64),
        );
    }
    Ok(())
}
