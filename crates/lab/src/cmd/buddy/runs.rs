//! What a heap asks of its frame allocator: slabs, which are aligned blocks of 16 frames, and runs
//! of any length, in eight steps to each doubling. Which of the candidates serves that fastest,
//! and in the least memory?
//!
//! | Candidate | A run of n frames |
//! |---|---|
//! | `bitset`, `atomic` | the lowest range that fits (`alloc_range`) |
//! | `bitset-best-run` | the shortest of the first 64 free runs that are long enough |
//! | the other ones of ours | a block of the next power of two, of which the rest is given back |
//! | peers | a block of the next power of two |
//!
//! Requests come from a seeded generator or from a recorded trace through a small model of slabs:
//! objects up to 32 KiB share slabs of their size class, larger ones are runs.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use hectare_buddy::{Atomic, Bitset, FrameAllocator, FrameId, Order, RangeAllocator};
use hectare_trace::{Event, ObjectId, Ordered, Trace};
use rustc_hash::FxHashMap;

use super::Common;
use super::demo::median;
use super::subjects::{FRAME_BYTES, Growth, Job, Listed, Subject, Words};
use crate::report::{Report, Row};
use crate::within::within;

/// What `hectare buddy runs` can be given.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    /// Take the requests from this trace; may be given several times [default: a generator]
    #[arg(long, value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// Requests of the generator
    #[arg(long, default_value_t = 200_000, value_parser = within(1_usize, 100_000_000))]
    ops: usize,
    /// Frames that the generator keeps in use
    #[arg(long, value_name = "FRAMES", default_value_t = 1 << 16)]
    live: usize,
    /// Measurements of each candidate; the median is told
    #[arg(long, default_value_t = 5, value_parser = within(1_usize, 1000))]
    rounds: usize,
    /// Seed of the generator
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Frames of a slab, and the largest object in one, bytes: those of hectare's heap.
const SLAB_FRAMES: usize = 16;
const LARGEST_SMALL_BYTES: usize = 32 << 10;
/// Runs up to so many frames come in steps.
const LARGEST_STEPPED_FRAMES: usize = 256;

/// One request.
#[derive(Clone, Copy)]
enum Op {
    Take { slot: u32, frames: u32, is_slab: bool },
    Give { slot: u32 },
}

/// A list of requests, which every candidate is given.
#[derive(Default)]
struct Requests {
    name: String,
    ops: Vec<Op>,
    free_slots: Vec<u32>,
    frames_of: Vec<u32>,
    live_frames: usize,
    peak_frames: usize,
}

impl Requests {
    fn take(&mut self, frames: usize, is_slab: bool) -> u32 {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.frames_of.push(0);
            (self.frames_of.len() - 1) as u32
        });
        self.frames_of[slot as usize] = frames as u32;
        self.live_frames += frames;
        self.peak_frames = self.peak_frames.max(self.live_frames);
        self.ops.push(Op::Take { slot, frames: frames as u32, is_slab });
        slot
    }

    fn give(&mut self, slot: u32) {
        self.live_frames -= self.frames_of[slot as usize] as usize;
        self.free_slots.push(slot);
        self.ops.push(Op::Give { slot });
    }

    /// Half slabs, half runs of 9 to 1024 frames, short ones more often; random ones end.
    fn generated(args: &Args) -> Self {
        let mut random = fastrand::Rng::with_seed(args.seed);
        let mut made = Self { name: "generated".to_owned(), ..Self::default() };
        let mut held: Vec<u32> = Vec::new();
        while made.ops.len() < args.ops {
            if made.live_frames < args.live {
                let is_slab = random.bool();
                let length = 2f64.powf(3.2 + 6.8 * random.f64()) as usize;
                let frames = if is_slab { SLAB_FRAMES } else { stepped(length) };
                held.push(made.take(frames, is_slab));
            } else {
                let ended = held.swap_remove(random.usize(..held.len()));
                made.give(ended);
            }
        }
        made
    }

    /// The requests behind the objects of a trace.
    fn of_trace(path: &Path) -> anyhow::Result<Self> {
        let trace = Trace::open(path).with_context(|| format!("opening {}", path.display()))?;
        let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let mut made = Self { name, ..Self::default() };
        let mut model = Model::default();
        let mut rows = Ordered::new(&trace);
        while let Some(step) = rows.next_step()? {
            let record = step.record;
            if let Event::Free { object: Some(object) }
            | Event::SizedFree { object: Some(object) }
            | Event::Realloc { old: Some(object), .. } = record.event
            {
                model.end(object, &mut made);
            }
            if let (Some(object), Some(bytes)) = (record.made, record.event.asked_bytes()) {
                model.begin(object, bytes as usize, &mut made);
            }
        }
        Ok(made)
    }
}

/// The length of a run for `frames` frames: eight steps to each doubling, as the heap does it.
fn stepped(frames: usize) -> usize {
    if frames > LARGEST_STEPPED_FRAMES {
        return frames;
    }
    frames.next_multiple_of((frames.next_power_of_two() / 16).max(1))
}

/// Which slabs and runs the objects of a trace need.
#[derive(Default)]
struct Model {
    /// Slabs with room, by the size of their objects.
    with_room: FxHashMap<usize, Vec<usize>>,
    slabs: Vec<Slab>,
    place_of: FxHashMap<ObjectId, Place>,
}

struct Slab {
    slot: u32,
    object_bytes: usize,
    used: usize,
}

#[derive(Clone, Copy)]
enum Place {
    Slab(usize),
    Run(u32),
}

impl Model {
    fn begin(&mut self, object: ObjectId, bytes: usize, requests: &mut Requests) {
        if bytes > LARGEST_SMALL_BYTES {
            let slot = requests.take(stepped(bytes.div_ceil(FRAME_BYTES)), false);
            self.place_of.insert(object, Place::Run(slot));
            return;
        }
        // Steps of 16 bytes up to 128, then eight to each doubling.
        let step = (bytes.next_power_of_two() / 16).max(16);
        let object_bytes = bytes.max(1).next_multiple_of(step);
        let slabs = self.with_room.entry(object_bytes).or_default();
        let at = if let Some(&at) = slabs.last() {
            at
        } else {
            let slot = requests.take(SLAB_FRAMES, true);
            self.slabs.push(Slab { slot, object_bytes, used: 0 });
            slabs.push(self.slabs.len() - 1);
            self.slabs.len() - 1
        };
        self.slabs[at].used += 1;
        if self.slabs[at].used == SLAB_FRAMES * FRAME_BYTES / object_bytes {
            slabs.pop();
        }
        self.place_of.insert(object, Place::Slab(at));
    }

    fn end(&mut self, object: ObjectId, requests: &mut Requests) {
        match self.place_of.remove(&object) {
            Some(Place::Run(slot)) => requests.give(slot),
            Some(Place::Slab(at)) => {
                let Slab { slot, object_bytes, used } = &mut self.slabs[at];
                let slabs = self.with_room.entry(*object_bytes).or_default();
                if *used == SLAB_FRAMES * FRAME_BYTES / *object_bytes {
                    slabs.push(at);
                }
                *used -= 1;
                if *used == 0 {
                    slabs.retain(|&other| other != at);
                    requests.give(*slot);
                }
            }
            None => {}
        }
    }
}

/// What a candidate does with a request.
trait Keeper {
    fn take(&mut self, frames: usize, is_slab: bool) -> Option<usize>;
    fn give(&mut self, start: usize, frames: usize);
}

/// The lowest range that fits.
struct Ranges<A>(A);

impl<A: RangeAllocator> Keeper for Ranges<A> {
    fn take(&mut self, frames: usize, is_slab: bool) -> Option<usize> {
        let found = match Order::for_frames(frames) {
            Some(order) if is_slab => self.0.alloc(order),
            _ => self.0.alloc_range(frames, 1, usize::MAX),
        };
        found.ok().map(|frame| frame.0)
    }

    fn give(&mut self, start: usize, frames: usize) {
        self.0.free_range(FrameId(start), frames).expect("it was taken");
    }
}

/// The shortest of the first free runs that are long enough.
struct BestRun<'m>(Ranges<Bitset<'m>>);

impl Keeper for BestRun<'_> {
    fn take(&mut self, frames: usize, is_slab: bool) -> Option<usize> {
        const RUNS_TRIED: usize = 64;
        let Ranges(bitset) = &mut self.0;
        let mut best: Option<(FrameId, usize)> = None;
        let mut from = FrameId(0);
        for _ in 0..if is_slab { 0 } else { RUNS_TRIED } {
            let Some((start, length)) = bitset.next_free_run(from) else { break };
            if length >= frames && best.is_none_or(|(_, least)| length < least) {
                best = Some((start, length));
            }
            from = FrameId(start.0 + length);
        }
        match best {
            Some((start, _)) => {
                bitset.reserve(start, frames).expect("the run is free");
                Some(start.0)
            }
            None => self.0.take(frames, is_slab),
        }
    }

    fn give(&mut self, start: usize, frames: usize) {
        self.0.give(start, frames);
    }
}

/// Blocks of the next power of two.
struct Blocks<S> {
    subject: S,
    /// Whether what is more than asked for can be given back.
    trims: bool,
}

impl<S: Subject> Blocks<S> {
    fn give_part(&mut self, mut start: usize, end: usize) {
        while start < end {
            let largest = start.trailing_zeros().min((end - start).ilog2());
            let order = Order::new(largest.min(18) as u8).expect("18 at most");
            self.subject.free(start, order);
            start += order.frames();
        }
    }
}

impl<S: Subject> Keeper for Blocks<S> {
    fn take(&mut self, frames: usize, _is_slab: bool) -> Option<usize> {
        let order = Order::for_frames(frames)?;
        let start = self.subject.alloc(order)?;
        if self.trims {
            self.give_part(start + frames, start + order.frames());
        }
        Some(start)
    }

    fn give(&mut self, start: usize, frames: usize) {
        if self.trims {
            return self.give_part(start, start + frames);
        }
        self.subject.free(start, Order::for_frames(frames).expect("it was taken"));
    }
}

/// What a candidate did.
struct Outcome {
    ns_per_op: f64,
    /// Frames below the end of the highest run there was.
    span_frames: usize,
    /// Frames that were in a run at some time.
    touched_frames: usize,
    /// Requests that were refused.
    refused: usize,
}

/// Carries the requests out. The time is that of the calls and of noting where the runs are.
fn replay(mut keeper: impl Keeper, requests: &Requests) -> Outcome {
    let mut start_of = vec![None; requests.frames_of.len()];
    let mut runs: Vec<(usize, usize)> = Vec::with_capacity(requests.ops.len());
    let mut refused = 0;
    let begin = Instant::now();
    for &op in &requests.ops {
        match op {
            Op::Take { slot, frames, is_slab } => {
                let frames = frames as usize;
                let start = keeper.take(frames, is_slab);
                start_of[slot as usize] = start.map(|start| (start, frames));
                match start {
                    Some(start) => runs.push((start, frames)),
                    None => refused += 1,
                }
            }
            Op::Give { slot } => {
                if let Some((start, frames)) = start_of[slot as usize].take() {
                    keeper.give(start, frames);
                }
            }
        }
    }
    let ns_per_op = begin.elapsed().as_nanos() as f64 / requests.ops.len() as f64;
    let low = runs.iter().map(|&(start, _)| start).min().unwrap_or(0);
    let high = runs.iter().map(|&(start, frames)| start + frames).max().unwrap_or(0);
    let mut touched = vec![false; high - low];
    for (start, frames) in runs {
        touched[start - low..start - low + frames].fill(true);
    }
    let touched_frames = touched.iter().filter(|&&was| was).count();
    Outcome { ns_per_op, span_frames: high - low, touched_frames, refused }
}

struct Replay<'a> {
    requests: &'a Requests,
    trims: bool,
}

impl Job for Replay<'_> {
    type Output = Outcome;

    fn run<S: Subject>(self, subject: S) -> Outcome {
        replay(Blocks { subject, trims: self.trims }, self.requests)
    }

    fn run_shared<S: Subject + Send>(self, mut subjects: Vec<S>) -> Outcome {
        self.run(subjects.remove(0))
    }
}

/// A candidate: one of the list, or the bitset with the other search.
#[derive(Clone, Copy)]
struct Candidate {
    listed: &'static Listed,
    is_best_run: bool,
}

impl Candidate {
    const fn name(self) -> &'static str {
        if self.is_best_run { "bitset-best-run" } else { self.listed.name }
    }

    fn measure(self, requests: &Requests) -> Outcome {
        // Room for what rounding up and fragmentation take.
        let frames = (requests.peak_frames * 2).next_power_of_two();
        match self.listed.name {
            "bitset" => {
                let mut metadata = vec![0; Bitset::metadata_words(frames)];
                let bitset = Bitset::new(frames, &mut metadata);
                let mut bitset = bitset.expect("the metadata has the size asked for");
                bitset.add_region(FrameId(0), frames).expect("nothing is free yet");
                if self.is_best_run {
                    replay(BestRun(Ranges(bitset)), requests)
                } else {
                    replay(Ranges(bitset), requests)
                }
            }
            "atomic" => {
                let words = Words::new(Atomic::metadata_words(frames));
                let shared = Atomic::new(frames, words.lines());
                let shared = shared.expect("the metadata has the size asked for");
                let mut local = shared.local();
                local.add_region(FrameId(0), frames).expect("nothing is free yet");
                replay(Ranges(local), requests)
            }
            _ => self.listed.with(frames, 1, Replay { requests, trims: !self.listed.is_peer }),
        }
    }
}

fn candidates(common: &Common) -> anyhow::Result<Vec<Candidate>> {
    let listed = common.subjects()?;
    let plain = listed
        .iter()
        // Lists take minutes, and exact frees are not what is asked here.
        .filter(|listed| listed.growth != Growth::Quadratic && !listed.is_checked())
        .map(|&listed| Candidate { listed, is_best_run: false });
    let bitset = listed.iter().find(|listed| listed.name == "bitset");
    let best = bitset.map(|&listed| Candidate { listed, is_best_run: true });
    Ok(plain.chain(best).collect())
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(
        (2048..=1 << 19).contains(&args.live),
        "{} frames in use were asked for: give 2048 to 524288 (2 GiB)",
        args.live
    );
    let all = if args.trace.is_empty() {
        vec![Requests::generated(args)]
    } else {
        args.trace.iter().map(|path| Requests::of_trace(path)).collect::<anyhow::Result<_>>()?
    };
    let mut report = Report::new("buddy runs");
    report.parameter("rounds", args.rounds);
    report.parameter("seed", args.seed);
    for requests in &all {
        ensure!(!requests.ops.is_empty(), "{}: there is no allocation in it", requests.name);
        contest(requests, args, &mut report)?;
    }
    args.common.finish(&report, &[])
}

fn contest(requests: &Requests, args: &Args, report: &mut Report) -> anyhow::Result<()> {
    let candidates = candidates(&args.common)?;
    let mut random = fastrand::Rng::with_seed(args.seed);
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); candidates.len()];
    let mut last: Vec<Option<Outcome>> = candidates.iter().map(|_| None).collect();
    for _ in 0..args.rounds {
        let mut turns: Vec<usize> = (0..candidates.len()).collect();
        random.shuffle(&mut turns);
        for turn in turns {
            let outcome = candidates[turn].measure(requests);
            times[turn].push(outcome.ns_per_op);
            last[turn] = Some(outcome);
        }
    }
    if args.common.prints_table() {
        println!(
            "{}: {} requests, {} frames in use at most\n{:30}  {:>8}  {:>12}  {:>12}  {:>8}",
            requests.name,
            requests.ops.len(),
            requests.peak_frames,
            "candidate",
            "ns/op",
            "span/peak",
            "touched/peak",
            "refused"
        );
    }
    for ((candidate, times), outcome) in candidates.iter().zip(times).zip(last) {
        let Some(outcome) = outcome else { continue };
        let ns = median(times);
        let over_peak = |frames: usize| frames as f64 / requests.peak_frames as f64;
        let (span, touched) = (over_peak(outcome.span_frames), over_peak(outcome.touched_frames));
        if args.common.prints_table() {
            println!(
                "{:30}  {ns:>8.1}  {span:>12.3}  {touched:>12.3}  {:>8}",
                candidate.name(),
                outcome.refused
            );
        }
        report.rows.push(
            Row::new(candidate.name(), &requests.name)
                .with("requests", requests.ops.len())
                .with("peak_frames", requests.peak_frames)
                .with("op_ns", ns)
                .with("span_ratio", span)
                .with("touched_ratio", touched)
                .with("refused", outcome.refused),
        );
    }
    Ok(())
}
