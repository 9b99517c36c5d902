//! `hectare tlsf space`: how much more memory than the live bytes a heap needs at its peak.

use crate::bench::tlsf::subjects::{Arena, Subject, Who, Work};
use crate::output::Outputs;
use crate::report::{Report, Row};

/// What `hectare tlsf space` can be given.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    outputs: Outputs,
    /// Operations of each run
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    ops: usize,
    /// Most blocks live at once
    #[arg(long, value_name = "N", default_value_t = 65_536)]
    slots: usize,
    /// Runs with seeds of their own
    #[arg(long, value_name = "N", default_value_t = 5)]
    seeds: u64,
}

/// Sizes of the stress.
#[derive(Clone, Copy, Debug)]
enum Sizes {
    /// Uniform from 32 to 2047.
    Uniform,
    /// Four of five from 1024 to 2600, the others uniform.
    Biased,
    /// Log-uniform up to 64 KiB: many small, few large.
    LogUniform,
}

/// What is done: 0 frees, everything else allocates.
#[derive(Clone, Copy, Debug)]
enum Op {
    Alloc(u32),
    /// Frees the live block of that number, whose place the last one takes.
    Free(u32),
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut report = Report::new("tlsf space");
    report.parameter("ops", args.ops as u64);
    report.parameter("slots", args.slots as u64);
    report.parameter("seeds", args.seeds);
    let mut arena = Arena::new(1 << 30, false)?;
    for sizes in [Sizes::Uniform, Sizes::Biased, Sizes::LogUniform] {
        // The same share of the arena is touched again and again, so a subject's footprint is
        // told by the highest byte that it handed out, as its pool could have been no smaller.
        let works: Vec<Vec<Op>> = (0..args.seeds).map(|seed| ops(args, sizes, seed)).collect();
        for who in Who::BUILT_IN.iter().filter(|who| who.uses_arena()) {
            if matches!(who, Who::LinkedList | Who::BuddyAlloc) {
                // The one's free takes time in proportion to the holes, minutes for this work; the
                // other hands out its arena from the top, so that its highest address says nothing.
                continue;
            }
            let (mut sum, mut worst, mut failed) = (0.0, 0.0_f64, 0);
            for ops in &works {
                let mut work = Stress { ops, base: arena.address(), slots: args.slots };
                let outcome = who.with(&mut arena, &mut work)?;
                sum += outcome.overhead;
                worst = worst.max(outcome.overhead);
                failed += outcome.failed_allocations;
            }
            report.rows.push(
                Row::new(who.name(), format!("stress, {sizes:?}"))
                    .with("mean_overhead_ratio", sum / works.len().max(1) as f64)
                    .with("worst_overhead_ratio", worst)
                    .with("failed_allocations", failed),
            );
        }
    }
    report.notes.push(
        "overhead: highest address in use, counted from the start of the arena, over the peak of \
         the live bytes, minus one; everything that a heap keeps in its arena counts"
            .to_owned(),
    );
    args.outputs.deliver(&report)
}

/// A coin decides whether to allocate or to free a random block.
fn ops(args: &Args, sizes: Sizes, seed: u64) -> Vec<Op> {
    let mut random = fastrand::Rng::with_seed(seed + 1);
    let mut live = 0u32;
    let mut ops = Vec::with_capacity(args.ops);
    while ops.len() < args.ops {
        if random.bool() {
            if (live as usize) < args.slots {
                let bytes = match sizes {
                    Sizes::Biased if random.u32(0..10) < 8 => random.u32(1024..=2600),
                    Sizes::Uniform | Sizes::Biased => random.u32(32..2048),
                    Sizes::LogUniform => {
                        let log2 = random.u32(4..16);
                        random.u32(1 << log2..2 << log2)
                    }
                };
                live += 1;
                ops.push(Op::Alloc(bytes));
            }
        } else if live > 0 {
            ops.push(Op::Free(random.u32(..live)));
            live -= 1;
        }
    }
    ops
}

struct Stress<'a> {
    ops: &'a [Op],
    base: usize,
    slots: usize,
}

struct Outcome {
    overhead: f64,
    failed_allocations: u64,
}

impl Work for Stress<'_> {
    type Result = Outcome;

    fn on<S: Subject>(&mut self, subject: &mut S) -> Outcome {
        let mut live: Vec<(*mut u8, usize)> = Vec::with_capacity(self.slots);
        let (mut live_bytes, mut peak_live_bytes, mut end) = (0, 0, 0);
        let mut failed_allocations = 0;
        for &op in self.ops {
            match op {
                Op::Alloc(bytes) => {
                    let bytes = bytes as usize;
                    let ptr = subject.alloc(bytes);
                    if ptr.is_null() {
                        failed_allocations += 1;
                    } else {
                        end = end.max(ptr.addr() + bytes);
                        live_bytes += bytes;
                        peak_live_bytes = peak_live_bytes.max(live_bytes);
                    }
                    live.push((ptr, bytes));
                }
                Op::Free(number) => {
                    let (ptr, bytes) = live.swap_remove(number as usize);
                    if !ptr.is_null() {
                        live_bytes -= bytes;
                        // SAFETY: taken out of the live ones.
                        unsafe { subject.free(ptr, bytes) };
                    }
                }
            }
        }
        for (ptr, bytes) in live {
            if !ptr.is_null() {
                // SAFETY: as above.
                unsafe { subject.free(ptr, bytes) };
            }
        }
        let overhead = (end - self.base) as f64 / peak_live_bytes as f64 - 1.0;
        Outcome { overhead, failed_allocations }
    }
}
