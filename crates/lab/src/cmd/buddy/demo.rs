//! The demo: so many blocks of an order, one by one.

use std::collections::HashSet;
use std::sync::Barrier;
use std::time::Instant;

use anyhow::ensure;
use hectare_buddy::{FrameId, Order};

use super::subjects::{FRAME_BYTES, Job, Listed, Subject};
use super::{Common, frames, order};
use crate::report::{Report, Row};

/// What the demo can be given.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    /// Blocks to take [default: 100000]
    #[arg(short, long)]
    blocks: Option<usize>,
    /// Size of a block: 2^ORDER frames of 4 KiB, 0 to 18
    #[arg(short, long, default_value_t = 0)]
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
    /// Take and free so many blocks by one call (for those that can; others take them in turn)
    #[arg(long, value_name = "BLOCKS", default_value_t = 1)]
    batch: usize,
    /// Threads that share the blocks (a lock around those that are for one owner)
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Measurements of each allocator; the median is told
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// Blocks of the demo if none are given: the workshop's.
const DEFAULT_BLOCKS: usize = 100_000;

/// What one run found.
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
        // Written once before, so that no page fault of the harness is timed.
        let mut blocks = vec![FrameId(usize::MAX); self.blocks];
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
            // Merged? Then the largest block that fits can be had again.
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
                    scope.spawn(move || {
                        let mut blocks = vec![FrameId(usize::MAX); share];
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

/// Whether the blocks are aligned, apart, and as many as asked for.
fn verify(blocks: &[FrameId], order: Order) -> anyhow::Result<()> {
    let distinct: HashSet<usize> = blocks.iter().map(|block| block.0).collect();
    ensure!(distinct.len() == blocks.len(), "a block was handed out twice");
    ensure!(blocks.iter().all(|block| block.is_aligned(order)), "a block is not aligned");
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// How many blocks an allocator gets, and why fewer than asked for.
fn blocks_for(subject: &Listed, args: &Args) -> (usize, Option<String>) {
    let asked = args.blocks.unwrap_or(DEFAULT_BLOCKS);
    // Whoever names a slow one and a number means it.
    let is_meant = args.blocks.is_some() && args.common.demos.iter().any(|n| n == subject.name);
    if is_meant || asked <= subject.default_blocks {
        return (asked, None);
    }
    let few = subject.default_blocks;
    let note =
        format!("{few} of {asked} blocks: quadratic; -d {0} -b {asked} for all", subject.name);
    (few, Some(note))
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let order = order(args.order)?;
    ensure!(args.threads > 0, "0 threads were asked for: there must be at least one");
    ensure!(args.batch > 0, "a batch of 0 blocks was asked for: it must have at least one");
    ensure!(args.rounds > 0, "0 rounds were asked for: there must be at least one");
    let asked = args.blocks.unwrap_or(DEFAULT_BLOCKS);
    frames(asked, order)?;
    ensure!(
        asked >= args.threads,
        "{asked} blocks cannot be shared by {} threads: give at least one a thread",
        args.threads
    );
    let frees = args.free || args.shuffle;
    let subjects = args.common.subjects()?;
    let mut report = Report::new("buddy");
    report.parameter("blocks", asked);
    report.parameter("order", args.order);
    report.parameter("threads", args.threads);
    report.parameter("batch", args.batch);
    report.parameter("rounds", args.rounds);
    report.parameter("shuffle", args.shuffle);

    let mut random = fastrand::Rng::with_seed(1);
    let mut shuffled: Vec<usize> = (0..asked).collect();
    random.shuffle(&mut shuffled);
    let shuffled = args.shuffle.then_some(shuffled.as_slice());

    let mut timed: Vec<(Vec<f64>, Vec<f64>)> = vec![Default::default(); subjects.len()];
    for round in 0..args.rounds {
        // A slow neighbour in time hits a different allocator each round.
        let mut turns: Vec<usize> = (0..subjects.len()).collect();
        random.shuffle(&mut turns);
        for turn in turns {
            let subject = subjects[turn];
            let (mut blocks, _) = blocks_for(subject, args);
            blocks -= blocks % args.threads;
            if subject.refuses(blocks * order.frames()).is_some()
                || (round > 0 && blocks > subject.default_blocks)
            {
                continue;
            }
            let shuffled = shuffled.filter(|_| blocks == asked || args.threads > 1);
            let demo = Demo { blocks, order, batch: args.batch, frees, shuffled };
            let result = subject.with(blocks * order.frames(), args.threads, demo);
            verify(&result.blocks, order)?;
            if args.print_addresses && round == 0 {
                for block in &result.blocks {
                    println!("{} {:#x}", subject.name, block.0 * FRAME_BYTES);
                }
            }
            timed[turn].0.push(result.alloc_ns);
            timed[turn].1.push(result.free_ns);
        }
    }

    for (subject, (alloc, free)) in subjects.iter().zip(timed) {
        let (blocks, note) = blocks_for(subject, args);
        let blocks = blocks - blocks % args.threads;
        let mut row = Row::new(subject.name, "demo")
            .with("kind", if subject.is_peer { "peer" } else { "hectare" })
            .with("about", subject.about);
        if let Some(why) = subject.refuses(blocks * order.frames()) {
            report.rows.push(row.with("note", why));
            continue;
        }
        let bytes = (blocks * order.frames() * FRAME_BYTES) as f64;
        let rounds = alloc.len();
        let best = alloc.iter().copied().fold(f64::INFINITY, f64::min);
        let alloc = median(alloc);
        // One block's time on the thread that waits for it: the threads run side by side.
        let share = (blocks / args.threads) as f64;
        row = row
            .with("blocks", blocks)
            .with("rounds", rounds)
            .with("alloc_ms", alloc / 1e6)
            .with("best_alloc_ms", best / 1e6)
            .with("alloc_ns", alloc / share)
            .with("alloc_gib_per_s", bytes / (1u64 << 30) as f64 / (alloc / 1e9));
        if frees {
            let best = free.iter().copied().fold(f64::INFINITY, f64::min);
            let free = median(free);
            row = row
                .with("free_ms", free / 1e6)
                .with("best_free_ms", best / 1e6)
                .with("free_ns", free / share);
        }
        if let Some(note) = note {
            row = row.with("note", note);
        }
        report.rows.push(row);
    }
    if args.common.prints_table() {
        print(&report, frees);
    }
    args.common.finish(&report, &[])
}

fn print(report: &Report, frees: bool) {
    let width = report.rows.iter().map(|row| row.subject.len()).max().unwrap_or(0);
    print!(
        "{:width$}  {:>9}  {:>12}  {:>9}  {:>10}",
        "demo", "blocks", "alloc ms", "ns/block", "GiB/s"
    );
    if frees {
        print!("  {:>12}  {:>9}", "free ms", "ns/block");
    }
    println!();
    for row in &report.rows {
        print!("{:width$}", row.subject);
        let number = |name| row.number(name).unwrap_or(f64::NAN);
        if row.number("alloc_ms").is_some() {
            print!(
                "  {:>9}  {:>12.3}  {:>9.2}  {:>10.1}",
                number("blocks"),
                number("alloc_ms"),
                number("alloc_ns"),
                number("alloc_gib_per_s"),
            );
            if frees {
                print!("  {:>12.3}  {:>9.2}", number("free_ms"), number("free_ns"));
            }
        }
        if let Some(note) = row.figures.get("note").and_then(|note| note.as_str()) {
            print!("  ({note})");
        }
        println!();
    }
}
