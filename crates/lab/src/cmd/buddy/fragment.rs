//! The fragmentation experiment. All frames are taken, and random ones freed down to a load. Then,
//! round by round, a tenth of what is held is freed at random and taken anew. How much of the free
//! memory lies in whole huge frames? (After Wrenger and others, "LLFree", ATC 2023, section 5.4.)
//!
//! The harness keeps a map of the frames and counts in it, in the same way for all allocators. The
//! calls of the rounds are timed: single frames under load, freed in random order.

use std::time::{Duration, Instant};

use anyhow::ensure;
use hectare_buddy::{HUGE_ORDER, Order};

use super::picture::Occupancy;
use super::subjects::{Job, Subject};
use super::{Common, Exit, PLOT_ALONE};
use crate::list;
use crate::report::{Report, Row, Series};
use crate::within::{number, within};

/// The arguments of `hectare buddy fragment`.
#[derive(clap::Args)]
#[command(after_help = PLOT_ALONE)]
pub(super) struct Args {
    #[command(flatten)]
    common: Common,
    /// Loads in per cent of the frames, separated by commas
    #[arg(long, value_name = "LOAD,…", value_delimiter = ',', default_value = "50,70,90",
        value_parser = number(1_usize, 99))]
    load: Vec<usize>,
    /// Rounds of reallocation
    #[arg(long, default_value_t = 100, value_parser = within(1_usize, 100_000))]
    rounds: usize,
    /// Managed frames, a multiple of 512
    #[arg(long, default_value_t = 1 << 18, value_parser = within(2048_usize, 1 << 26))]
    frames: usize,
    /// Seed of the random choices
    #[arg(long, default_value_t = 1, value_parser = within(0_u64, u64::MAX))]
    seed: u64,
}

/// One run of the experiment at one load.
struct Life {
    frames: usize,
    load_percent: usize,
    rounds: usize,
    seed: u64,
}

/// The result of a run.
struct Outcome {
    /// The share of the free frames that lie in whole huge frames, after each round.
    huge_ratio: Vec<f64>,
    /// Allocated frames in each 2 MiB at the end, for the picture.
    occupancy: Vec<u16>,
    /// Mean time of a call in the rounds.
    alloc_ns: f64,
    free_ns: f64,
}

impl Job for Life {
    type Output = Outcome;

    fn run<S: Subject>(self, mut subject: S) -> Outcome {
        let mut random = fastrand::Rng::with_seed(self.seed);
        // Until no frames are left: a peer may manage a few more than were asked for.
        let mut held: Vec<usize> = Vec::with_capacity(self.frames);
        while let Some(frame) = subject.alloc(Order::ZERO) {
            held.push(frame);
        }
        // The first frame that a subject hands out need not be its frame 0.
        let base = held.iter().copied().min().unwrap_or(0);
        held.retain(|&frame| frame < base + self.frames);
        assert_eq!(held.len(), self.frames, "there are as many frames");
        let mut in_use = vec![512_u16; self.frames / HUGE_ORDER.frames()];
        let mut huge_ratio = Vec::with_capacity(self.rounds);
        random.shuffle(&mut held);
        let kept = self.frames * self.load_percent / 100;
        let give = |subject: &mut S, in_use: &mut [u16], frames: &[usize]| {
            let start = Instant::now();
            for &frame in frames {
                subject.free(frame, Order::ZERO);
            }
            let elapsed = start.elapsed();
            for &frame in frames {
                in_use[(frame - base) / HUGE_ORDER.frames()] -= 1;
            }
            elapsed
        };
        give(&mut subject, &mut in_use, &held[kept..]);
        held.truncate(kept);
        let tenth = kept / 10;
        let (mut alloc, mut free) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..self.rounds {
            random.shuffle(&mut held);
            free += give(&mut subject, &mut in_use, &held[kept - tenth..]);
            let start = Instant::now();
            for slot in &mut held[kept - tenth..] {
                *slot = subject.alloc(Order::ZERO).expect("as many were freed");
            }
            alloc += start.elapsed();
            for &frame in &held[kept - tenth..] {
                in_use[(frame - base) / HUGE_ORDER.frames()] += 1;
            }
            let whole = in_use.iter().filter(|&&used| used == 0).count() * HUGE_ORDER.frames();
            huge_ratio.push(whole as f64 / (self.frames - kept) as f64);
        }
        let per_call = |time: Duration| time.as_nanos() as f64 / (self.rounds * tenth) as f64;
        let (alloc_ns, free_ns) = (per_call(alloc), per_call(free));
        Outcome { huge_ratio, occupancy: in_use, alloc_ns, free_ns }
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(
        args.frames.is_multiple_of(HUGE_ORDER.frames()),
        Exit::misused(format!("--frames {}: the experiment needs a multiple of 512", args.frames))
    );
    for &load in &args.load {
        ensure!(
            (1..100).contains(&load),
            Exit::misused(format!("a load of {load} %: give one from 1 to 99"))
        );
    }
    list::refuse_twice("--load", &args.load)?;
    let mut report = Report::new("buddy fragment");
    report.parameter("frames", args.frames);
    report.parameter("rounds", args.rounds);
    report.parameter("load_percent", args.load.clone());
    report.parameter("seed", args.seed);
    let mut pictures = Vec::new();
    for &load_percent in &args.load {
        let title =
            format!("load {load_percent} %: share of the free memory in whole 2 MiB frames\n");
        args.common.tell(&title);
        for subject in args.common.subjects()? {
            let frames = args.frames.min(subject.fragment_frames);
            let mut row = Row::new(subject.name, format!("load {load_percent} %"));
            if let Some(why) = subject.refuses(frames) {
                args.common.tell(&format!("  {:30}  {why}\n", subject.name));
                report.rows.push(row.with("note", why));
                continue;
            }
            let life = Life { frames, load_percent, rounds: args.rounds, seed: args.seed };
            let outcome = subject.with(frames, 1, life);
            let at = |round: usize| outcome.huge_ratio[round.min(args.rounds) - 1];
            row = row.with("frames", frames).with("load_percent", load_percent);
            for round in [1, 10, 30, 100].into_iter().filter(|&round| round <= args.rounds) {
                row = row.with(&format!("huge_after_{round}_ratio"), at(round));
            }
            row = row
                .with("huge_ratio", at(args.rounds))
                .with("alloc_ns", outcome.alloc_ns)
                .with("free_ns", outcome.free_ns);
            let mut note = String::new();
            if frames < args.frames {
                note = format!("{frames} of {} frames: too slow with all", args.frames);
                row = row.with("note", note.clone());
            }
            let mut line = format!("  {:30}", subject.name);
            let earlier = [1, 10, 30, 100].into_iter().filter(|&round| round < args.rounds);
            for round in earlier.chain([args.rounds]) {
                line += &format!("  after {round:>3} {:>6.2} %", at(round) * 100.0);
            }
            let (get, put) = (outcome.alloc_ns, outcome.free_ns);
            line += &format!("  get {get:>6.1} ns  put {put:>8.1} ns  {note}");
            args.common.tell(&format!("{}\n", line.trim_end()));
            let points = outcome.huge_ratio.iter().enumerate();
            report.series.push(Series {
                plot: format!("free memory in whole huge frames, load {load_percent} %"),
                subject: subject.name.to_owned(),
                workload: format!("load {load_percent} %"),
                x_name: "rounds".to_owned(),
                y_name: "huge_ratio".to_owned(),
                points: points.map(|(round, &ratio)| [round as f64 + 1.0, ratio]).collect(),
            });
            pictures.push(Occupancy {
                name: format!("{}, load {load_percent} %", subject.name),
                used_frames: outcome.occupancy,
            });
            report.rows.push(row);
        }
    }
    args.common.finish(&report, &pictures)
}
