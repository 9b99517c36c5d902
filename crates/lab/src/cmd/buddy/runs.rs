//! What a heap asks of its frame allocator: slabs, which are aligned blocks of 16 frames, and runs
//! of any length, in eight steps to each doubling. Which candidate serves these requests fastest,
//! and in the least memory?
//!
//! | Candidate | A run of n frames |
//! |---|---|
//! | `bitset`, `atomic` | the lowest range that fits (`alloc_range`) |
//! | `bitset-best-run` | the shortest of the first 64 free runs that are long enough |
//! | our other allocators | a block of the next power of two, whose excess is given back |
//! | peers | a block of the next power of two |
//!
//! Requests come from a seeded generator or from a recorded trace through a small model of slabs:
//! objects up to 32 KiB share slabs of their size class, larger ones are runs.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::ensure;
use hectare_buddy::{Atomic, Bitset, FrameAllocator, FrameId};

mod keeper;
mod requests;

use super::subjects::{Growth, Job, Listed, Subject, Words};
use super::{Common, Exit};
use crate::cmd::compare::trace_names;
use crate::list;
use crate::report::{Report, Row};
use crate::say::{counted, in_one_line};
use crate::stats::median;
use crate::within::{number, within};
use keeper::{BestRun, Blocks, Keeper, Ranges};
use requests::{Op, Requests};

/// The arguments of `hectare buddy runs`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    /// Take the requests from these traces, separated by commas [default: a generator]
    #[arg(long, value_name = "FILE.hxt,…")]
    trace: Vec<PathBuf>,
    /// Requests of the generator
    #[arg(long, conflicts_with = "trace", default_value_t = 200_000, value_parser = within(1_usize, 100_000_000))]
    ops: usize,
    /// Frames that the generator keeps in use
    #[arg(long, value_name = "FRAMES", conflicts_with = "trace", default_value_t = 1 << 16,
        value_parser = number(2048_usize, 1 << 19))]
    live: usize,
    /// Measurements of each candidate; the median is reported
    #[arg(long, default_value_t = 5, value_parser = within(1_usize, 1000))]
    rounds: usize,
    /// Seed of the generator
    #[arg(long, conflicts_with = "trace", default_value_t = 1, value_parser = within(0_u64, u64::MAX))]
    seed: u64,
}

/// The result of a candidate.
struct Outcome {
    ns_per_op: f64,
    /// Frames below the end of the highest run that ever existed.
    span_frames: usize,
    /// Frames that were ever in a run.
    touched_frames: usize,
    /// Refused requests.
    refused: usize,
}

/// Carries the requests out. The time covers the calls and the notes of where the runs are.
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
}

/// A candidate: an allocator of the list, or the bitset with the other search.
#[derive(Clone, Copy)]
struct Candidate {
    listed: &'static Listed,
    is_best_run: bool,
}

impl Candidate {
    const fn name(self) -> &'static str {
        if self.is_best_run { "bitset-best-run" } else { self.listed.name }
    }

    /// Why the candidate cannot serve the requests, if it cannot.
    fn left_out(self, requests: &Requests) -> Option<String> {
        self.listed.refuses(frames_for(requests))
    }

    fn measure(self, requests: &Requests) -> Outcome {
        let frames = frames_for(requests);
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

/// How many frames a candidate manages. Rounding up and fragmentation need room, too.
fn frames_for(requests: &Requests) -> usize {
    (requests.peak_frames * 2).next_power_of_two()
}

fn candidates(common: &Common) -> anyhow::Result<Vec<Candidate>> {
    let listed = common.subjects()?;
    let plain = listed
        .iter()
        // Allocators of quadratic growth would take minutes, and checked ones answer another
        // question.
        .filter(|listed| listed.growth != Growth::Quadratic && !listed.is_checked())
        .map(|&listed| Candidate { listed, is_best_run: false });
    let bitset = listed.iter().find(|listed| listed.name == "bitset");
    let best = bitset.map(|&listed| Candidate { listed, is_best_run: true });
    let all: Vec<Candidate> = plain.chain(best).collect();
    ensure!(
        !all.is_empty(),
        Exit::misused(
            "lists take minutes, and checked allocators are the same: name another, or none"
        )
    );
    Ok(all)
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(
        (2048..=1 << 19).contains(&args.live),
        Exit::misused(format!(
            "{} frames in use were asked for: give 2048 to 524288 (2 GiB)",
            args.live
        ))
    );
    args.common.refuse_plot_alone()?;
    let candidates = candidates(&args.common)?;
    let all = if args.trace.is_empty() {
        vec![Requests::generated(args)]
    } else {
        let traces = list::files(&args.trace);
        let named = traces.iter().zip(trace_names(&traces));
        named.map(|(path, name)| Requests::of_trace(path, name)).collect::<anyhow::Result<_>>()?
    };
    let mut report = Report::new("buddy runs");
    report.parameter("rounds", args.rounds);
    report.parameter("seed", args.seed);
    for requests in &all {
        ensure!(!requests.ops.is_empty(), "{}: there is no allocation in it", requests.name);
        contest(requests, &candidates, args, &mut report);
    }
    args.common.finish(&report, &[])
}

fn contest(requests: &Requests, candidates: &[Candidate], args: &Args, report: &mut Report) {
    let mut random = fastrand::Rng::with_seed(args.seed);
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); candidates.len()];
    let mut last: Vec<Option<Outcome>> = candidates.iter().map(|_| None).collect();
    for _ in 0..args.rounds {
        let mut turns: Vec<usize> = (0..candidates.len()).collect();
        random.shuffle(&mut turns);
        for turn in turns {
            if candidates[turn].left_out(requests).is_some() {
                continue;
            }
            let outcome = candidates[turn].measure(requests);
            times[turn].push(outcome.ns_per_op);
            last[turn] = Some(outcome);
        }
    }
    args.common.tell(&format!(
        "{}: {}, {} in use at most\n{:30}  {:>8}  {:>12}  {:>12}  {:>8}\n",
        in_one_line(&requests.name),
        counted(requests.ops.len(), "request"),
        counted(requests.peak_frames, "frame"),
        "candidate",
        "ns/op",
        "span/peak",
        "touched/peak",
        "refused"
    ));
    for ((candidate, times), outcome) in candidates.iter().zip(times).zip(last) {
        let Some((outcome, ns)) = outcome.zip(median(&times)) else {
            let why = candidate.left_out(requests).unwrap_or_default();
            args.common.tell(&format!("{:30}  {why}\n", candidate.name()));
            report.rows.push(Row::new(candidate.name(), &requests.name).with("note", why));
            continue;
        };
        let over_peak = |frames: usize| frames as f64 / requests.peak_frames as f64;
        let (span, touched) = (over_peak(outcome.span_frames), over_peak(outcome.touched_frames));
        args.common.tell(&format!(
            "{:30}  {ns:>8.1}  {span:>12.3}  {touched:>12.3}  {:>8}\n",
            candidate.name(),
            outcome.refused
        ));
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
}
