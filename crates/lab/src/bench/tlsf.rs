//! `hectare bench tlsf`: the size sweep for heaps over memory that they are given.
//!
//! Each subject does the same operations over the same arena, in this process, one subject after
//! the other, in an order drawn anew for each round. The time of a window is the least of its
//! rounds, since any disturbance makes a run longer. Wide ranges are repeated, to see how stable
//! the time of each subject is.

mod counted;
pub(crate) mod subjects;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::{Study, sizes_within};
use crate::cmd::Exit;
use crate::list;
use crate::report::{Report, Row, Series};
use crate::say::counted;
use crate::stats::{geometric_mean, median};
use crate::within::within;
use subjects::{Arena, Library, Subject, Who, Work};

/// The study behind `hectare bench tlsf`.
pub(crate) struct Tlsf;

/// What can follow `hectare bench tlsf --`.
#[derive(clap::Parser)]
#[command(name = "hectare bench tlsf --", no_binary_name = true)]
struct Args {
    /// Slots, each of which holds one block
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = within(1_usize, 10_000_000))]
    slots: usize,
    /// Replacements of a slot's block timed, in each window and round
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = within(1_usize, 100_000_000))]
    ops: usize,
    /// From one window of sizes to the next, in bytes; the windows are 64 bytes wide
    #[arg(long, value_name = "BYTES", default_value_t = 512, value_parser = within(1_usize, 1 << 20))]
    step: usize,
    /// The largest size
    #[arg(long, value_name = "BYTES", default_value_t = 16_384, value_parser = within(FIRST_WINDOWS[3] + 64, LARGEST_BYTES))]
    largest: usize,
    /// Rounds of each window
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = within(1_usize, 10_000))]
    rounds: usize,
    /// Rounds of each wide range
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = within(1_usize, 10_000))]
    wide_rounds: usize,
    /// The arena in MiB
    #[arg(long, value_name = "MIB", default_value_t = 400, value_parser = within(1_usize, 1 << 20))]
    arena_mib: usize,
    /// Only the subjects of these names, separated by commas; if none has such a name, those whose
    /// name contains it
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    only: Vec<String>,
    /// Measure only this range of sizes, as `16..80`
    #[arg(long, value_parser = sizes_within(LARGEST_BYTES))]
    range: Option<(usize, usize)>,
    /// Count instructions and simulated cache misses under valgrind instead, which takes minutes
    #[arg(long)]
    callgrind: bool,
    /// C TLSFs with mattconte's names, as shared libraries, separated by commas
    #[arg(long = "library", value_name = "FILE,…")]
    libraries: Vec<PathBuf>,
    /// Seed of the sizes and of the order
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = within(0_u64, u64::MAX))]
    seed: u64,
}

impl Args {
    /// The subjects to be measured.
    fn subjects(&self) -> anyhow::Result<Vec<Who>> {
        let mut whos: Vec<Who> = Who::BUILT_IN.to_vec();
        for path in list::files(&self.libraries) {
            whos.push(Who::Library(Arc::new(Library::load(&path)?)));
        }
        let names: Vec<String> = whos.iter().map(|who| who.name().to_owned()).collect();
        let is_meant = |only: &String, name: &str| {
            if names.contains(only) { only == name } else { name.contains(only.as_str()) }
        };
        for only in &self.only {
            anyhow::ensure!(
                names.iter().any(|name| is_meant(only, name)),
                Exit::misused(format!(
                    "--only: no subject is called {only}; there are: {}",
                    names.join(", ")
                ))
            );
        }
        whos.retain(|who| {
            self.only.is_empty() || self.only.iter().any(|only| is_meant(only, who.name()))
        });
        Ok(whos)
    }
}

/// The first windows of sizes begin here, bytes; the others are steps apart.
const FIRST_WINDOWS: [usize; 4] = [16, 64, 128, 256];

/// The largest size that can be asked for.
const LARGEST_BYTES: usize = 1 << 30;

/// The wide ranges of the study.
const WIDE: [(usize, usize); 3] = [(1, 2048), (1, 16_384), (2048, 16_384)];

/// The arenas of the test for failures, as multiples of the live bytes.
const TIGHT_FACTORS: [f64; 6] = [1.0, 1.03, 1.06, 1.09, 1.15, 1.3];

/// The fewest slots for that test: what fewer hold may be too little for a subject's own state.
const TIGHT_SLOTS: usize = 100;

impl Study for Tlsf {
    fn name(&self) -> &'static str {
        "tlsf"
    }

    fn about(&self) -> &'static str {
        "heaps over memory that they are given: free and malloc of random slots, in windows of 64 \
         bytes of size and in wide ranges, and how many allocations fail in an arena that is \
         hardly larger than what is live; an operation is one free and one malloc"
    }

    fn source(&self) -> &'static str {
        "after the TLSF study of the compcache project (10,000 slots)"
    }

    fn run(&self, args: &[String]) -> anyhow::Result<Report> {
        let args = super::study_args::<Args>(args);
        let whos = args.subjects()?;
        if args.callgrind {
            return counted::count(&args, &whos);
        }
        anyhow::ensure!(
            args.range.is_some() || args.slots >= TIGHT_SLOTS,
            Exit::misused(format!(
                "--slots {}: the sweep ends with arenas that are hardly larger than what is live, \
                 and needs {TIGHT_SLOTS} or more; --range can be measured with fewer",
                args.slots
            ))
        );
        let tightest_mib = ((args.slots * 2047) as f64 * TIGHT_FACTORS[5]) as usize >> 20;
        anyhow::ensure!(
            args.range.is_some() || tightest_mib < args.arena_mib,
            Exit::misused(format!(
                "--arena-mib {}: {} of up to 2047 bytes may need {}",
                args.arena_mib,
                counted(args.slots, "slot"),
                tightest_mib + 1
            ))
        );
        let mut arena = Arena::new(args.arena_mib << 20, true)?;
        let mut report = Report::new("bench tlsf");
        for (name, value) in [
            ("slots", args.slots),
            ("ops", args.ops),
            ("step_bytes", args.step),
            ("rounds", args.rounds),
            ("wide_rounds", args.wide_rounds),
            ("arena_mib", args.arena_mib),
        ] {
            report.parameter(name, value as u64);
        }
        report.parameter("seed", args.seed);
        let mut sweep =
            Sweep { args: &args, arena: &mut arena, random: fastrand::Rng::with_seed(args.seed) };
        if let Some(range) = args.range {
            let outcomes = sweep.rounds(&whos, range, args.rounds)?;
            note(&mut report, &whos, &format!("[{}, {})", range.0, range.1), &outcomes);
        } else {
            sweep.windows(&whos, &mut report)?;
            sweep.wide(&whos, &mut report)?;
            sweep.tight(&whos, &mut report)?;
        }
        report.notes.push(
            "time is that of one free and one malloc, the least over the rounds; the ratio is to \
             the fastest peer in the same window"
                .to_owned(),
        );
        Ok(report)
    }
}

/// One replacement: the slot, and the size of its new block.
type Op = (u32, u32);

struct Replacements<'a> {
    /// Fills every slot, then warms up. Not timed.
    before: &'a [Op],
    timed: &'a [Op],
    slots: usize,
}

/// The result of a run.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    op_ns: f64,
    failed_allocations: u64,
}

impl Replacements<'_> {
    #[inline(always)]
    fn execute<S: Subject>(subject: &mut S, slots: &mut [(*mut u8, u32)], ops: &[Op]) -> u64 {
        let mut failed = 0;
        for &(slot, bytes) in ops {
            let slot = &mut slots[slot as usize];
            if !slot.0.is_null() {
                // SAFETY: the slot's block, which nothing else names.
                unsafe { subject.free(slot.0, slot.1 as usize) };
            }
            let ptr = subject.alloc(bytes as usize);
            failed += u64::from(ptr.is_null());
            *slot = (ptr, bytes);
        }
        failed
    }
}

/// The measured part. It is a function of its own, so that `counted` can name it.
#[inline(never)]
fn execute_timed<S: Subject>(subject: &mut S, slots: &mut [(*mut u8, u32)], ops: &[Op]) -> u64 {
    Replacements::execute(subject, slots, ops)
}

impl Work for Replacements<'_> {
    type Result = Outcome;

    fn on<S: Subject>(&mut self, subject: &mut S) -> Outcome {
        let mut slots = vec![(std::ptr::null_mut(), 0); self.slots];
        let mut failed = Self::execute(subject, &mut slots, self.before);
        let start = Instant::now();
        failed += execute_timed(subject, &mut slots, self.timed);
        let op_ns = start.elapsed().as_nanos() as f64 / self.timed.len() as f64;
        for (ptr, bytes) in slots {
            if !ptr.is_null() {
                // SAFETY: as above.
                unsafe { subject.free(ptr, bytes as usize) };
            }
        }
        Outcome { op_ns, failed_allocations: failed }
    }
}

struct Sweep<'a> {
    args: &'a Args,
    arena: &'a mut Arena,
    random: fastrand::Rng,
}

impl Sweep<'_> {
    /// Operations with sizes from `low` to below `high`.
    fn ops(&mut self, low: usize, high: usize) -> Vec<Op> {
        let slots = self.args.slots as u32;
        let random = &mut self.random;
        let size = |random: &mut fastrand::Rng| random.u32(low as u32..high as u32);
        let mut ops: Vec<Op> = (0..slots).map(|slot| (slot, size(random))).collect();
        let more = self.args.ops + self.args.ops / 4;
        ops.extend((0..more).map(|_| (random.u32(..slots), size(random))));
        ops
    }

    /// All rounds of one range: the outcomes of each subject.
    fn rounds(
        &mut self,
        whos: &[Who],
        (low, high): (usize, usize),
        rounds: usize,
    ) -> anyhow::Result<Vec<Vec<Outcome>>> {
        let ops = self.ops(low, high);
        let (before, timed) = ops.split_at(ops.len() - self.args.ops);
        let mut work = Replacements { before, timed, slots: self.args.slots };
        let mut outcomes = vec![Vec::new(); whos.len()];
        let mut order: Vec<usize> = (0..whos.len()).collect();
        for _ in 0..rounds {
            self.random.shuffle(&mut order);
            for &who in &order {
                outcomes[who].push(whos[who].with(self.arena, &mut work)?);
            }
        }
        Ok(outcomes)
    }

    /// The windows of 64 bytes.
    fn windows(&mut self, whos: &[Who], report: &mut Report) -> anyhow::Result<()> {
        let mut lows = FIRST_WINDOWS.to_vec();
        lows.extend((self.args.step..=self.args.largest - 64).step_by(self.args.step));
        if lows.last() != Some(&(self.args.largest - 64)) {
            lows.push(self.args.largest - 64);
        }
        lows.sort_unstable();
        lows.dedup();
        let mut points = vec![Vec::new(); whos.len()];
        let mut ratios = vec![Vec::new(); whos.len()];
        for low in lows {
            let outcomes = self.rounds(whos, (low, low + 64), self.args.rounds)?;
            let best: Vec<f64> = outcomes.iter().map(|outcomes| least(outcomes)).collect();
            note(report, whos, &format!("[{low}, {})", low + 64), &outcomes);
            for (who, &ns) in best.iter().enumerate() {
                points[who].push([low as f64, ns]);
                ratios[who].extend(ratio_to_best_peer(whos, &best, who));
            }
        }
        for ((who, points), ratios) in whos.iter().zip(points).zip(ratios) {
            let mut row = Row::new(who.name(), "all windows");
            if let Some(mean) = geometric_mean(&ratios) {
                let worst = ratios.iter().copied().fold(0.0, f64::max);
                row = row
                    .with("over_best_peer_ratio", mean)
                    .with("worst_over_best_peer_ratio", worst);
            }
            report.rows.push(row);
            report.series.push(Series {
                plot: "time over size".to_owned(),
                subject: who.name().to_owned(),
                workload: "windows of 64 bytes".to_owned(),
                x_name: "size_bytes".to_owned(),
                y_name: "op_ns".to_owned(),
                points,
            });
        }
        Ok(())
    }

    /// The wide ranges, many times over.
    fn wide(&mut self, whos: &[Who], report: &mut Report) -> anyhow::Result<()> {
        for range in WIDE {
            let outcomes = self.rounds(whos, range, self.args.wide_rounds)?;
            let workload = format!("[{}, {})", range.0, range.1);
            note(report, whos, &workload, &outcomes);
            for (who, outcomes) in whos.iter().zip(outcomes) {
                report.series.push(Series {
                    plot: "stability of rounds".to_owned(),
                    subject: who.name().to_owned(),
                    workload: workload.clone(),
                    x_name: "round".to_owned(),
                    y_name: "op_ns".to_owned(),
                    points: outcomes
                        .iter()
                        .enumerate()
                        .map(|(round, outcome)| [round as f64, outcome.op_ns])
                        .collect(),
                });
            }
        }
        Ok(())
    }

    /// How many allocations fail when the arena is hardly larger than the live bytes.
    fn tight(&mut self, whos: &[Who], report: &mut Report) -> anyhow::Result<()> {
        let ops = self.ops(1, 2048);
        let (before, timed) = ops.split_at(ops.len() - self.args.ops);
        let live_bytes: usize = before[..self.args.slots].iter().map(|op| op.1 as usize).sum();
        let mut work = Replacements { before, timed, slots: self.args.slots };
        let whos: Vec<&Who> = whos.iter().filter(|who| who.uses_arena()).collect();
        let mut points = vec![Vec::new(); whos.len()];
        for factor in TIGHT_FACTORS {
            let bytes = (live_bytes as f64 * factor) as usize & !4095;
            for (who, points) in whos.iter().zip(&mut points) {
                let outcome = self.arena.shrunk(bytes, |arena| who.with(arena, &mut work))?;
                report.rows.push(
                    Row::new(who.name(), format!("[1, 2048) in an arena of {factor} × live"))
                        .with("failed_allocations", outcome.failed_allocations)
                        .with("failed_ratio", outcome.failed_allocations as f64 / ops.len() as f64),
                );
                points.push([100.0 * factor, outcome.failed_allocations as f64]);
            }
        }
        for (who, points) in whos.into_iter().zip(points) {
            report.series.push(Series {
                plot: "failed allocations over arena".to_owned(),
                subject: who.name().to_owned(),
                workload: "[1, 2048)".to_owned(),
                x_name: "arena_over_live_percent".to_owned(),
                y_name: "failed_allocations".to_owned(),
                points,
            });
        }
        Ok(())
    }
}

/// The least time of all rounds.
fn least(outcomes: &[Outcome]) -> f64 {
    outcomes.iter().map(|outcome| outcome.op_ns).fold(f64::INFINITY, f64::min)
}

/// The time of `who` over that of the fastest peer.
fn ratio_to_best_peer(whos: &[Who], best: &[f64], who: usize) -> Option<f64> {
    let peers = whos.iter().zip(best).filter(|(peer, _)| !peer.is_ours());
    let fastest = peers.map(|(_, &ns)| ns).fold(f64::INFINITY, f64::min);
    fastest.is_finite().then(|| best[who] / fastest)
}

/// One row for each subject.
fn note(report: &mut Report, whos: &[Who], workload: &str, outcomes: &[Vec<Outcome>]) {
    let best: Vec<f64> = outcomes.iter().map(|outcomes| least(outcomes)).collect();
    for (number, (who, outcomes)) in whos.iter().zip(outcomes).enumerate() {
        let times: Vec<f64> = outcomes.iter().map(|outcome| outcome.op_ns).collect();
        let mut row = Row::new(who.name(), workload)
            .with("op_ns", best[number])
            .with("median_op_ns", median(&times).expect("there is at least one round"))
            .with("worst_op_ns", times.iter().copied().fold(0.0, f64::max))
            .with("failed_allocations", outcomes.iter().map(|o| o.failed_allocations).sum::<u64>());
        if let Some(ratio) = ratio_to_best_peer(whos, &best, number) {
            row = row.with("over_best_peer_ratio", ratio);
        }
        report.rows.push(row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subject_does_the_sweep_without_a_failure() {
        let args = ["--slots", "200", "--ops", "2000", "--step", "4096", "--rounds", "1"];
        let more = ["--wide-rounds", "1", "--arena-mib", "32"];
        let args: Vec<String> = args.into_iter().chain(more).map(str::to_owned).collect();
        let report = Tlsf.run(&args).expect("a small sweep");
        for row in &report.rows {
            if !row.workload.contains("arena") && row.workload != "all windows" {
                assert_eq!(row.number("failed_allocations"), Some(0.0), "{row:?}");
                assert!(row.number("op_ns") > Some(0.0), "{row:?}");
            }
        }
        let subjects =
            |workload: &str| report.rows.iter().filter(|row| row.workload == workload).count();
        assert_eq!(subjects("all windows"), Who::BUILT_IN.len());
        assert_eq!(subjects("[1, 2048)"), Who::BUILT_IN.len());
    }
}
