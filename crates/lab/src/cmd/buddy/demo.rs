//! The demo: takes a number of blocks of one order, one by one.

use std::collections::HashSet;
use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context, ensure};
use hectare_buddy::{FrameId, MAX_ORDER, Order};

use super::subjects::{self, FRAME_BYTES, Job, Listed, Subject};
use super::{Common, Exit, MOST_FRAMES, frames, order};
use crate::list;
use crate::report::{Report, Row};
use crate::say::counted;
use crate::stats::median;
use crate::threads;
use crate::within::{number, within};

/// The arguments of the demo.
#[derive(clap::Args)]
// Flattened into the verb's arguments, whose group has the same name.
#[group(skip)]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    /// Blocks to take [default: 100000]
    #[arg(short, long, value_parser = number(1, MOST_FRAMES))]
    blocks: Option<usize>,
    /// Size of a block: 2^ORDER frames of 4 KiB, 0 to 18
    #[arg(short, long, default_value_t = 0, value_parser = number(0, MAX_ORDER))]
    order: u8,
    /// Print the address of each block
    #[arg(short, long)]
    print_addresses: bool,
    /// Free the blocks again, in the order in which they were taken, and time that too
    #[arg(long)]
    free: bool,
    /// Free them in random order instead
    #[arg(long)]
    shuffle: bool,
    /// Take and free this many blocks in one call (allocators that cannot take them one by one)
    #[arg(long, value_name = "BLOCKS", default_value_t = 1, value_parser = number(1, MOST_FRAMES))]
    batch: usize,
    /// Threads that share the blocks (with a lock around single-owner allocators); several numbers,
    /// as in `1,2`, are measured in turn beside a control that shares nothing
    #[arg(long, value_name = "THREADS", value_delimiter = ',', default_values_t = [1],
        value_parser = within(1_usize, 1000))]
    threads: Vec<usize>,
    /// Measurements of each allocator; the median is reported
    #[arg(long, default_value_t = 5, value_parser = within(1_usize, 1000))]
    rounds: usize,
}

/// The heading of the names in the table.
const NAMES: &str = "allocator";

/// The number of blocks if none is given: that of the workshop.
const DEFAULT_BLOCKS: usize = 100_000;

/// The result of one run.
struct Timed {
    alloc_ns: f64,
    free_ns: f64,
    blocks: Vec<FrameId>,
}

/// The work of the demo.
#[derive(Clone, Copy)]
struct Demo<'a> {
    blocks: usize,
    order: Order,
    batch: usize,
    frees: bool,
    /// Whether everything is taken and given back once before the timing. A new thread finds the
    /// metadata in another processor's cache, a single thread in its own. To compare numbers of
    /// threads, each thread must have used the metadata before.
    warms: bool,
    /// The order of freeing, if not that of taking.
    shuffled: Option<&'a [usize]>,
}

impl Demo<'_> {
    fn take<S: Subject>(&self, subject: &mut S, out: &mut [FrameId]) {
        let mut missing = 0;
        if self.batch == 1 {
            for slot in &mut *out {
                match subject.alloc(self.order) {
                    Some(frame) => *slot = FrameId(frame),
                    None => missing += 1,
                }
            }
        } else {
            for part in out.chunks_mut(self.batch) {
                missing += part.len() - subject.alloc_many(self.order, part);
            }
        }
        assert_eq!(missing, 0, "there were as many blocks as frames for them");
    }

    fn give_back<S: Subject>(&self, subject: &mut S, blocks: &[FrameId]) {
        if self.batch == 1 {
            for block in blocks {
                subject.free(block.0, self.order);
            }
        } else {
            for part in blocks.chunks(self.batch) {
                subject.free_many(self.order, part);
            }
        }
    }
}

impl Job for Demo<'_> {
    type Output = Timed;

    fn run<S: Subject>(self, mut subject: S) -> Timed {
        // Written once beforehand, so that the timing includes no page fault of the harness.
        let mut blocks = vec![FrameId(usize::MAX); self.blocks];
        if self.warms {
            self.take(&mut subject, &mut blocks);
            self.give_back(&mut subject, &blocks);
        }
        let start = Instant::now();
        self.take(&mut subject, &mut blocks);
        let alloc_ns = start.elapsed().as_nanos() as f64;
        let mut free_ns = 0.0;
        if self.frees {
            let order: Vec<FrameId> = match self.shuffled {
                Some(order) => order.iter().map(|&at| blocks[at]).collect(),
                None => blocks.clone(),
            };
            let start = Instant::now();
            self.give_back(&mut subject, &order);
            free_ns = start.elapsed().as_nanos() as f64;
            // If everything merged, the largest block that fits can be taken again.
            let frames = self.blocks * self.order.frames();
            let largest = Order::new(frames.ilog2().min(18) as u8).expect("18 at most");
            assert!(subject.alloc(largest).is_some(), "all is free, but was not merged");
        }
        Timed { alloc_ns, free_ns, blocks }
    }

    fn run_shared<S: Subject + Send>(self, subjects: Vec<S>) -> Timed {
        let threads = subjects.len();
        let barrier = Barrier::new(threads);
        let share = self.blocks / threads;
        let mut all = Vec::with_capacity(self.blocks);
        let (mut alloc_ns, mut free_ns) = (0.0_f64, 0.0_f64);
        std::thread::scope(|scope| {
            let running: Vec<_> = subjects
                .into_iter()
                .map(|mut subject| {
                    let barrier = &barrier;
                    threads::start(scope, move || {
                        let mut blocks = vec![FrameId(usize::MAX); share];
                        if self.warms {
                            self.take(&mut subject, &mut blocks);
                            barrier.wait();
                            self.give_back(&mut subject, &blocks);
                        }
                        barrier.wait();
                        let start = Instant::now();
                        self.take(&mut subject, &mut blocks);
                        let alloc_ns = start.elapsed().as_nanos() as f64;
                        let order: Vec<FrameId> = match self.shuffled {
                            Some(order) => {
                                order.iter().filter_map(|&at| blocks.get(at).copied()).collect()
                            }
                            None => blocks.clone(),
                        };
                        barrier.wait();
                        let start = Instant::now();
                        if self.frees {
                            self.give_back(&mut subject, &order);
                        }
                        (alloc_ns, start.elapsed().as_nanos() as f64, blocks)
                    })
                })
                .collect();
            for thread in running {
                let (alloc, free, blocks) = thread.join().expect("a measured thread panicked");
                alloc_ns = alloc_ns.max(alloc);
                free_ns = free_ns.max(free);
                all.extend(blocks);
            }
        });
        Timed { alloc_ns, free_ns, blocks: all }
    }
}

/// Checks that the blocks are aligned, disjoint, and as many as asked for.
fn verify(blocks: &[FrameId], order: Order) -> anyhow::Result<()> {
    let distinct: HashSet<usize> = blocks.iter().map(|block| block.0).collect();
    ensure!(distinct.len() == blocks.len(), "a block was handed out twice");
    ensure!(blocks.iter().all(|block| block.is_aligned(order)), "a block is not aligned");
    Ok(())
}

/// How many blocks an allocator gets, and why fewer than asked for.
fn blocks_for(subject: &Listed, args: &Args) -> (usize, Option<String>) {
    let asked = args.blocks.unwrap_or(DEFAULT_BLOCKS);
    // A user who names a slow allocator and a number of blocks means it.
    let is_meant = args.blocks.is_some() && args.common.names(subject.name);
    if is_meant || asked <= subject.default_blocks {
        return (asked, None);
    }
    let few = subject.default_blocks;
    let note =
        format!("{few} of {asked} blocks: quadratic; -a {0} -b {asked} for all", subject.name);
    (few, Some(note))
}

/// One line of the table: an allocator at a number of threads, and its times.
struct Measured {
    subject: &'static Listed,
    threads: usize,
    blocks: usize,
    note: Option<String>,
    alloc_ns: Vec<f64>,
    free_ns: Vec<f64>,
}

/// Everything to measure. With several numbers of threads that includes the control.
fn lines(args: &Args, order: Order) -> anyhow::Result<Vec<Measured>> {
    let mut subjects = args.common.subjects()?;
    if args.threads.len() > 1 {
        subjects.push(&subjects::CONTROL);
    }
    let line = |subject: &'static Listed, threads: usize| {
        let (blocks, note) = blocks_for(subject, args);
        let blocks = blocks - blocks % threads;
        let note = subject.refuses(blocks * order.frames()).or(note);
        Measured { subject, threads, blocks, note, alloc_ns: Vec::new(), free_ns: Vec::new() }
    };
    let all = subjects
        .iter()
        .flat_map(|&subject| args.threads.iter().map(move |&threads| line(subject, threads)));
    Ok(all.collect())
}

fn check(args: &Args) -> anyhow::Result<()> {
    ensure!(
        args.batch > 0,
        Exit::misused("a batch of 0 blocks was asked for: it must have at least one")
    );
    let asked = args.blocks.unwrap_or(DEFAULT_BLOCKS);
    list::refuse_twice("--threads", &args.threads)?;
    let threads = args.threads.iter().copied().max().unwrap_or(1);
    ensure!(
        asked >= threads,
        Exit::misused(format!(
            "{} cannot be shared by {threads} threads: give at least one a thread",
            counted(asked, "block")
        ))
    );
    Ok(())
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let order = order(args.order)?;
    let asked = args.blocks.unwrap_or(DEFAULT_BLOCKS);
    frames(asked, order)?;
    check(args)?;
    args.common.refuse_plot_alone()?;
    let frees = args.free || args.shuffle;
    let mut report = Report::new("buddy");
    report.parameter("blocks", asked);
    report.parameter("order", args.order);
    report.parameter("threads", args.threads.clone());
    report.parameter("batch", args.batch);
    report.parameter("rounds", args.rounds);
    report.parameter("shuffle", args.shuffle);

    let mut random = fastrand::Rng::with_seed(1);
    let shuffled = args.shuffle.then(|| {
        let mut shuffled: Vec<usize> = (0..asked).collect();
        random.shuffle(&mut shuffled);
        shuffled
    });
    let shuffled = shuffled.as_deref();

    let mut lines = lines(args, order)?;
    for round in 0..args.rounds {
        // Shuffled, so that a temporary disturbance hits a different allocator each round.
        let mut turns: Vec<usize> = (0..lines.len()).collect();
        random.shuffle(&mut turns);
        for turn in turns {
            let Measured { subject, threads, blocks, .. } = lines[turn];
            if subject.refuses(blocks * order.frames()).is_some()
                || (round > 0 && blocks > subject.default_blocks)
            {
                continue;
            }
            let shuffled = shuffled.filter(|_| blocks == asked || threads > 1);
            let warms = args.threads.len() > 1;
            let demo = Demo { blocks, order, batch: args.batch, frees, warms, shuffled };
            let result = subject.with(blocks * order.frames(), threads, demo);
            if !subject.is_control() {
                verify(&result.blocks, order).context(subject.name)?;
            }
            if args.print_addresses && round == 0 {
                for block in &result.blocks {
                    args.common.tell(&format!("{} {:#x}\n", subject.name, block.0 * FRAME_BYTES));
                }
            }
            lines[turn].alloc_ns.push(result.alloc_ns);
            lines[turn].free_ns.push(result.free_ns);
        }
    }
    // The row for the first number of threads. The others are compared with it.
    let mut first: Option<Row> = None;
    for line in lines {
        if line.threads == args.threads[0] {
            first = None;
        }
        let row = row(line, order, frees, first.as_ref());
        first.get_or_insert_with(|| row.clone());
        report.rows.push(row);
    }
    args.common.tell(&table(&report, frees, args.threads.len() > 1));
    if args.threads.iter().any(|&threads| threads > 1) {
        args.common.tell(&format!("{OF_A_THREAD}\n"));
        report.notes.push(OF_A_THREAD.to_owned());
    }
    args.common.finish(&report, &[])
}

/// What the time of a block is.
const OF_A_THREAD: &str = "ns/block: the time for which a thread waits for each of its own blocks, while the \
                           others take theirs";

/// The figures of a line; `first` is the same allocator with the first number of threads.
fn row(line: Measured, order: Order, frees: bool, first: Option<&Row>) -> Row {
    let Measured { subject, threads, blocks, note, alloc_ns, free_ns } = line;
    let mut row = Row::new(subject.name, "demo")
        .with("kind", if subject.is_peer { "peer" } else { "hectare" })
        .with("about", subject.about)
        .with("threads", threads);
    if let Some(note) = note {
        row = row.with("note", note);
    }
    let Some(alloc) = median(&alloc_ns) else { return row };
    let bytes = (blocks * order.frames() * FRAME_BYTES) as f64;
    let rounds = alloc_ns.len();
    let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    // A block's time is the time that its thread waits for it: the threads run in parallel.
    let share = (blocks / threads) as f64;
    let times_first =
        |name: &str, value: f64| first.and_then(|row| Some(value / row.number(name)?));
    row = row
        .with("blocks", blocks)
        .with("rounds", rounds)
        .with("alloc_ms", alloc / 1e6)
        .with("best_alloc_ms", least(&alloc_ns) / 1e6)
        .with("worst_alloc_ms", most(&alloc_ns) / 1e6)
        .with("alloc_ns", alloc / share)
        .with("alloc_gib_per_s", bytes / (1u64 << 30) as f64 / (alloc / 1e9));
    if let Some(ratio) = times_first("alloc_ns", alloc / share) {
        row = row.with("alloc_times_first", ratio);
    }
    if let Some(free) = median(&free_ns).filter(|_| frees) {
        row = row
            .with("free_ms", free / 1e6)
            .with("best_free_ms", least(&free_ns) / 1e6)
            .with("worst_free_ms", most(&free_ns) / 1e6)
            .with("free_ns", free / share);
        if let Some(ratio) = times_first("free_ns", free / share) {
            row = row.with("free_times_first", ratio);
        }
    }
    row
}

fn table(report: &Report, frees: bool, has_threads: bool) -> String {
    let longest = report.rows.iter().map(|row| row.subject.len()).max();
    let width = longest.unwrap_or(0).max(NAMES.len());
    let mut text = format!("{NAMES:width$}");
    if has_threads {
        text += &format!("  {:>7}", "threads");
    }
    text += &format!("  {:>9}  {:>12}  {:>9}  {:>10}", "blocks", "alloc ms", "ns/block", "GiB/s");
    if frees {
        text += &format!("  {:>12}  {:>9}", "free ms", "ns/block");
    }
    if has_threads {
        text += "  times the first: alloc";
        text += if frees { ", free" } else { "" };
    }
    text += "\n";
    for row in &report.rows {
        text += &format!("{:width$}", row.subject);
        let number = |name| row.number(name).unwrap_or(f64::NAN);
        if has_threads {
            text += &format!("  {:>7}", number("threads"));
        }
        if row.number("alloc_ms").is_some() {
            text += &format!(
                "  {:>9}  {:>12.3}  {:>9.2}  {:>10.1}",
                number("blocks"),
                number("alloc_ms"),
                number("alloc_ns"),
                number("alloc_gib_per_s"),
            );
            if frees {
                text += &format!("  {:>12.3}  {:>9.2}", number("free_ms"), number("free_ns"));
            }
        }
        for name in ["alloc_times_first", "free_times_first"] {
            text.extend(row.number(name).map(|ratio| format!("  {ratio:>5.2}")));
        }
        if let Some(note) = row.text("note") {
            text += &format!("  ({note})");
        }
        text += "\n";
    }
    text
}
