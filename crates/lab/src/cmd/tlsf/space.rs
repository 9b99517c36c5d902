//! `hectare tlsf space`: how much more memory than the live bytes a heap needs at its peak, on
//! random work and on recorded traces, and how long it takes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use hectare_trace::{Event, ObjectId, Ordered, Trace};
use rustc_hash::FxHashMap;

use crate::bench::tlsf::subjects::{Arena, Library, Subject, Who, Work};
use crate::cmd::Exit;
use crate::cmd::compare::{bundled_traces, trace_names};
use crate::list;
use crate::output::Outputs;
use crate::report::{Report, Row};
use crate::within::within;

/// The arguments of `hectare tlsf space`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    outputs: Outputs,
    /// Operations of each run
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = within(1_usize, 100_000_000))]
    ops: usize,
    /// Most blocks live at once
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = within(1_usize, 10_000_000))]
    slots: usize,
    /// Runs with seeds of their own
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = within(1_u64, 1000))]
    seeds: u64,
    /// Traces to replay instead of the bundled ones, separated by commas
    #[arg(long = "trace", value_name = "FILE.hxt,…")]
    traces: Vec<PathBuf>,
    /// Rounds of each trace, the fastest of which is reported; 0 replays none
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = within(0_usize, 1000))]
    trace_rounds: usize,
    /// C TLSFs with mattconte's names, as shared libraries, separated by commas
    #[arg(long = "library", value_name = "FILE,…")]
    libraries: Vec<PathBuf>,
}

/// The arena. Only the part that is touched takes memory.
const ARENA_BYTES: usize = 3 << 30;

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

/// One operation.
#[derive(Clone, Copy, Debug)]
enum Op {
    Alloc(u32),
    /// Frees the live block of that number; the last one takes its place.
    Free(u32),
}

/// Runs the verb.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let traces = traces(args)?;
    let mut report = Report::new("tlsf space");
    report.parameter("ops", args.ops as u64);
    report.parameter("slots", args.slots as u64);
    report.parameter("seeds", args.seeds);
    report.parameter("trace_rounds", args.trace_rounds as u64);
    let whos = comparable(&list::files(&args.libraries))?;
    let mut arena = Arena::new(ARENA_BYTES, false)?;
    for sizes in [Sizes::Uniform, Sizes::Biased, Sizes::LogUniform] {
        // Subjects touch the same part of the arena again and again, so a subject's footprint is
        // the highest byte it handed out: a smaller pool would not have served it.
        let works: Vec<Vec<Op>> = (0..args.seeds).map(|seed| ops(args, sizes, seed)).collect();
        for who in &whos {
            let mut overheads = Vec::new();
            let mut failed = 0;
            for ops in &works {
                let mut work = Stress { ops, base: arena.address(), slots: args.slots };
                let outcome = measure(who, &mut arena, &mut work)?;
                overheads.extend(outcome.overhead);
                failed += outcome.failed_allocations;
            }
            let mut row = Row::new(who.name(), format!("stress, {sizes:?}"));
            if overheads.len() == works.len() {
                let worst = overheads.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                row = row
                    .with("mean_overhead_ratio", overheads.iter().sum::<f64>() / works.len() as f64)
                    .with("worst_overhead_ratio", worst);
            }
            report.rows.push(row.with("failed_allocations", failed));
        }
    }
    for trace in &traces {
        replay(&mut report, &mut arena, &whos, trace, args.trace_rounds)?;
    }
    report.notes.push(
        "traces: all threads merged to one; a realloc allocates anew and frees the old block; \
         alignments above 16 bytes are not asked for; the contents are not written"
            .to_owned(),
    );
    report.notes.push(
        "overhead: highest address in use, counted from the start of the arena, over the peak of \
         the live bytes, minus one; everything that a heap keeps in its arena counts; of \
         buddy-alloc, which fills its arena from the top, the smallest arena that serves all"
            .to_owned(),
    );
    args.outputs.deliver(&report)
}

/// A trace as operations.
struct Replayed {
    name: String,
    ops: Vec<Op>,
}

/// The traces to be replayed, read before anything is measured.
fn traces(args: &Args) -> anyhow::Result<Vec<Replayed>> {
    if args.trace_rounds == 0 {
        let message = "--trace gives traces, and --trace-rounds 0 replays none";
        ensure!(args.traces.is_empty(), Exit::misused(message));
        return Ok(Vec::new());
    }
    let paths = if args.traces.is_empty() { bundled_traces()? } else { list::files(&args.traces) };
    let read = |(path, name): (&PathBuf, String)| {
        let ops = trace_ops(path).with_context(|| path.display().to_string())?;
        Ok(Replayed { name, ops })
    };
    paths.iter().zip(trace_names(&paths)).map(read).collect()
}

/// The heaps whose footprint is measured.
fn comparable(libraries: &[PathBuf]) -> anyhow::Result<Vec<Who>> {
    // linked_list_allocator's free takes time proportional to the holes, minutes for this work.
    let comparable = |who: &Who| who.uses_arena() && !matches!(who, Who::LinkedList);
    let built_in = Who::BUILT_IN.into_iter().filter(comparable).map(Ok);
    built_in
        .chain(libraries.iter().map(|path| Ok(Who::Library(Arc::new(Library::load(path)?)))))
        .collect()
}

/// Does the work, and finds how much of the arena it needs.
fn measure(who: &Who, arena: &mut Arena, work: &mut Stress) -> anyhow::Result<Outcome> {
    if who.fills_from_below() {
        return who.with(arena, work);
    }
    // The smallest arena that serves everything, by bisection to a thousandth.
    let peak_bytes = work.peak_live_bytes();
    let (mut refusing, mut serving) = (peak_bytes, (4 * peak_bytes + (1 << 20)).min(ARENA_BYTES));
    let mut outcome = arena.shrunk(serving, |arena| who.with(arena, work))?;
    if outcome.failed_allocations > 0 {
        return Ok(Outcome { overhead: None, ..outcome });
    }
    while serving - refusing > peak_bytes / 1000 + 8192 {
        let bytes = refusing.midpoint(serving) & !4095;
        let in_this = arena.shrunk(bytes, |arena| who.with(arena, work))?;
        if in_this.failed_allocations == 0 {
            (serving, outcome) = (bytes, in_this);
        } else {
            refusing = bytes;
        }
    }
    outcome.overhead = Some(serving as f64 / peak_bytes as f64 - 1.0);
    Ok(outcome)
}

/// Replays a trace over each heap.
fn replay(
    report: &mut Report,
    arena: &mut Arena,
    whos: &[Who],
    Replayed { name, ops }: &Replayed,
    rounds: usize,
) -> anyhow::Result<()> {
    let mut work = Stress { ops, base: arena.address(), slots: 0 };
    let mut best: Vec<Option<Outcome>> = vec![None; whos.len()];
    let mut order: Vec<usize> = (0..whos.len()).collect();
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..rounds {
        random.shuffle(&mut order);
        for &who in &order {
            if best[who].is_some() && !whos[who].fills_from_below() {
                // The search for the arena's size has already taken a dozen runs.
                continue;
            }
            let outcome = measure(&whos[who], arena, &mut work)?;
            let best = best[who].get_or_insert(outcome);
            best.op_ns = best.op_ns.min(outcome.op_ns);
        }
    }
    for (who, best) in whos.iter().zip(best) {
        let best = best.context("no round was made")?;
        let mut row = Row::new(who.name(), format!("trace {name}"));
        if let Some(overhead) = best.overhead {
            row = row.with("peak_overhead_ratio", overhead);
        }
        report.rows.push(
            row.with("op_ns", best.op_ns).with("failed_allocations", best.failed_allocations),
        );
    }
    Ok(())
}

/// What the trace's program allocated and freed, all threads in one order.
///
/// # Errors
/// When the trace cannot be read to its end, or asks for no memory.
fn trace_ops(path: &Path) -> anyhow::Result<Vec<Op>> {
    let trace = Trace::open(path)?;
    let mut ordered = Ordered::new(&trace);
    let mut live: Vec<ObjectId> = Vec::new();
    let mut numbers: FxHashMap<ObjectId, u32> = FxHashMap::default();
    let mut ops = Vec::new();
    while let Some(step) = ordered.next_step()? {
        let event = step.record.event;
        if let (Some(bytes), Some(object)) = (event.asked_bytes(), step.record.made) {
            numbers.insert(object, live.len() as u32);
            live.push(object);
            ops.push(Op::Alloc(u32::try_from(bytes).context("a block of 4 GiB or more")?));
        }
        let ended = match event {
            // A refused call leaves the old object unchanged.
            Event::Realloc { old, .. } if step.record.made.is_some() => old,
            Event::Free { object } | Event::SizedFree { object } => object,
            _ => None,
        };
        if let Some(number) = ended.and_then(|object| numbers.remove(&object)) {
            live.swap_remove(number as usize);
            if let Some(&moved) = live.get(number as usize) {
                numbers.insert(moved, number);
            }
            ops.push(Op::Free(number));
        }
    }
    trace.check()?;
    let asks = |op: &Op| matches!(op, Op::Alloc(1..));
    ensure!(ops.iter().any(asks), "there is no allocation in it");
    Ok(ops)
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

#[derive(Clone, Copy)]
struct Outcome {
    /// The arena needed, over the peak of the live bytes, minus one. `None` if no available arena
    /// serves all requests.
    overhead: Option<f64>,
    /// Mean time of an operation, including the harness's part.
    op_ns: f64,
    failed_allocations: u64,
}

impl Stress<'_> {
    /// The most bytes that are live at once.
    fn peak_live_bytes(&self) -> usize {
        let mut live: Vec<usize> = Vec::with_capacity(self.slots);
        let (mut live_bytes, mut peak_bytes) = (0, 0);
        for &op in self.ops {
            match op {
                Op::Alloc(bytes) => {
                    live.push(bytes as usize);
                    live_bytes += bytes as usize;
                    peak_bytes = peak_bytes.max(live_bytes);
                }
                Op::Free(number) => live_bytes -= live.swap_remove(number as usize),
            }
        }
        peak_bytes
    }
}

impl Work for Stress<'_> {
    type Result = Outcome;

    fn on<S: Subject>(&mut self, subject: &mut S) -> Outcome {
        let mut live: Vec<(*mut u8, usize)> = Vec::with_capacity(self.slots);
        let (mut live_bytes, mut peak_live_bytes, mut end) = (0, 0, 0);
        let mut failed_allocations = 0;
        let start = Instant::now();
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
        let op_ns = start.elapsed().as_nanos() as f64 / self.ops.len().max(1) as f64;
        for (ptr, bytes) in live {
            if !ptr.is_null() {
                // SAFETY: as above.
                unsafe { subject.free(ptr, bytes) };
            }
        }
        let overhead =
            (peak_live_bytes > 0).then(|| (end - self.base) as f64 / peak_live_bytes as f64 - 1.0);
        Outcome { overhead, op_ns, failed_allocations }
    }
}
