//! A server through its day: load grows and shrinks, and its sizes change.

use std::time::Instant;

use super::heap::{Object, stamp};
use super::script::{Step, drain, empty_slots};
use super::{Memory, Outcome, Parameters, Tally, Workload, resident_bytes, team};
use crate::measure::Window;

/// Resident memory is read once in so many operations.
const SAMPLE_EVERY: usize = 4096;

/// What the objects of a phase are like: smallest and largest size, bytes.
const MIXES: [(u32, u32); 4] = [(16, 128), (200, 1200), (48, 300), (1000, 6000)];

/// The workload.
pub(crate) struct Phases;

impl Workload for Phases {
    fn name(&self) -> &'static str {
        "phases"
    }

    fn about(&self) -> &'static str {
        "`phases` times: live memory grows to `mib` MiB with objects of one mix of sizes, churns, \
         and shrinks to a fifth; the next phase has another mix; the figure of interest is \
         resident over live memory, mean over all samples; an operation is one malloc or free, \
         reading resident memory is not timed"
    }

    fn source(&self) -> &'static str {
        "hectare; fragmentation of long-running servers"
    }

    fn defaults(&self) -> Parameters {
        Parameters::new(1, 60_000).with("mib", 48).with("phases", 8)
    }

    fn memory(&self) -> Memory {
        Memory::Figure("resident_over_live_ratio")
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        anyhow::ensure!(parameters.threads == 1, "phases runs on one thread");
        let top_bytes = parameters.get::<u64>("mib")? << 20;
        let phases: usize = parameters.get("phases")?;
        anyhow::ensure!(top_bytes > 0 && phases > 0, "phases needs memory and phases");
        let (steps, slots, live_bytes) = script(parameters, top_bytes, phases);
        let mut slots = empty_slots(slots);
        let mut tally = Tally::default();
        let (mut live, mut ns) = (0_u64, 0_u64);
        let (mut ratios, mut samples) = (0.0, 0_u32);
        let window = Window::open()?;
        let baseline_bytes = resident_bytes()?;
        for (chunk, steps) in steps.chunks(SAMPLE_EVERY).enumerate() {
            let start = Instant::now();
            for (place, step) in steps.iter().enumerate() {
                let slot = &mut slots[step.slot as usize];
                let old = std::mem::replace(slot, Object::NONE);
                live = live - u64::from(old.size_bytes()) + u64::from(step.size_bytes);
                if old.is_some() {
                    old.free(&mut tally);
                }
                if step.size_bytes > 0 {
                    let stamp = stamp((chunk * SAMPLE_EVERY + place) as u64, step.size_bytes);
                    *slot = Object::allocate(step.size_bytes, stamp, &mut tally);
                }
            }
            ns += start.elapsed().as_nanos() as u64;
            // The first climb starts from nothing: a ratio to almost nothing says nothing.
            if live > top_bytes / 8 {
                let resident = resident_bytes()?.saturating_sub(baseline_bytes);
                ratios += resident as f64 / live as f64;
                samples += 1;
            }
        }
        let mut outcome = team::finish(steps.len() as u64, ns, window.close()?, tally)?;
        drain(&mut slots, &mut tally);
        outcome.live_peak_bytes = live_bytes;
        outcome
            .more
            .insert("resident_over_live_ratio".to_owned(), ratios / f64::from(samples.max(1)));
        Ok(outcome)
    }
}

/// The operations, how many slots they need, and the largest sum of sizes.
fn script(parameters: &Parameters, top_bytes: u64, phases: usize) -> (Vec<Step>, usize, u64) {
    let mut random = fastrand::Rng::with_seed(parameters.seed);
    let mut steps = Vec::new();
    let mut sizes: Vec<u32> = Vec::new();
    // Full slots in no order, so that one at random can be taken; the rest is free for reuse.
    let (mut full, mut empty): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
    let (mut live, mut peak) = (0_u64, 0_u64);
    for phase in 0..phases {
        let (smallest, largest) = MIXES[phase % MIXES.len()];
        let mut put = |random: &mut fastrand::Rng,
                       full: &mut Vec<u32>,
                       empty: &mut Vec<u32>,
                       live: &mut u64,
                       sizes: &mut Vec<u32>| {
            let size_bytes = random.u32(smallest..=largest);
            let slot = empty.pop().unwrap_or_else(|| {
                sizes.push(0);
                sizes.len() as u32 - 1
            });
            sizes[slot as usize] = size_bytes;
            *live += u64::from(size_bytes);
            full.push(slot);
            steps.push(Step { slot, size_bytes });
        };
        while live < top_bytes {
            put(&mut random, &mut full, &mut empty, &mut live, &mut sizes);
        }
        peak = peak.max(live);
        for _ in 0..parameters.ops {
            let at = random.usize(0..full.len());
            let slot = full.swap_remove(at);
            live -= u64::from(sizes[slot as usize]);
            empty.push(slot);
            put(&mut random, &mut full, &mut empty, &mut live, &mut sizes);
        }
        while live > top_bytes / 5 {
            let at = random.usize(0..full.len());
            let slot = full.swap_remove(at);
            live -= u64::from(sizes[slot as usize]);
            empty.push(slot);
            steps.push(Step { slot, size_bytes: 0 });
        }
    }
    (steps, sizes.len(), peak)
}
