//! Programs of phases, drawn from a seed. They look for weak spots that no other workload shows.
//!
//! ```text
//!  seed ─► program: kinds, sizes, what is written ─► a script for each thread, from its own seed
//!                                                              │
//!  every thread:  wait ── phase 1 ── wait ─────────── wait ── phase 2 ── wait …
//!  the first:                             resident?                          resident? …
//! ```

mod author;
mod program;

use std::sync::Barrier;
use std::time::Instant;

use indexmap::IndexMap;

use super::heap::{Object, Tally, stamp};
use super::script::{self, Step, drain, empty_slots};
use super::{Domain, Domains, Memory, Outcome, Parameters, Workload, team};
use crate::measure::{Window, WindowRecord, resident_bytes};
use crate::threads;
use author::Script;
use program::{Phase, Written, draw};

/// The workload.
pub(crate) struct RandomPhases;

impl Workload for RandomPhases {
    fn name(&self) -> &'static str {
        "random-phases"
    }

    fn about(&self) -> &'static str {
        "a program of `phases` phases is drawn from the seed and done by every thread, each phase by \
         all of them at once: objects are allocated, freed in one of four patterns, replaced, resized, \
         grown as vectors, or come and go in bursts, of sizes between 16 bytes and 3 MB, wholly or \
         partly written; up to `mib` MiB are live in all threads together, and a phase makes at most \
         `ops` allocations in each; the figure of interest is resident over live memory at the ends \
         of phases, weighted by what is live; JSON has time and resident memory of each phase; not \
         part of `bench all`; an operation is one malloc, free, realloc or replacement, reading \
         resident memory is not timed"
    }

    fn source(&self) -> &'static str {
        "hectare; a search for what other workloads do not show"
    }

    fn defaults(&self) -> Parameters {
        Parameters::new(1, 1_000_000).with("mib", 100).with("phases", 8)
    }

    fn rows(&self) -> Vec<Parameters> {
        Vec::new()
    }

    fn domains(&self) -> Domains {
        &[("mib", Domain::Whole(1, 1 << 20)), ("phases", Domain::Whole(1, 1000))]
    }

    /// An upper bound: most programs have far fewer operations, since their objects are larger.
    fn written_bytes(&self, parameters: &Parameters) -> anyhow::Result<f64> {
        let threads = parameters.threads as f64;
        let smallest = parameters.get::<f64>("mib")? * f64::from(1 << 20) / 16.0 / threads;
        let allocations = smallest.min(parameters.ops as f64);
        let phases: f64 = parameters.get("phases")?;
        let slots = smallest.min(phases * allocations);
        Ok(threads * script::written_bytes(2.0 * phases * allocations, slots))
    }

    fn memory(&self) -> Memory {
        Memory::Ratio { name: "resident_over_live_ratio", live: "mean_live_bytes" }
    }

    fn parts(&self, parameters: &Parameters) -> anyhow::Result<IndexMap<String, String>> {
        let program = draw(parameters.seed, parameters.get("phases")?);
        let part = |(at, phase): (usize, &Phase)| {
            (figure(at, phase, "ms"), format!("phase {}, {phase}", at + 1))
        };
        Ok(program.iter().enumerate().map(part).collect())
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        let top_bytes = (parameters.get::<u64>("mib")? << 20) / parameters.threads as u64;
        let program = draw(parameters.seed, parameters.get("phases")?);
        let mut workers: Vec<Worker> = parameters
            .seeds()
            .map(|random| Worker::new(Script::write(&program, random, parameters.ops, top_bytes)))
            .collect();
        let measured = measure(&program, &mut workers)?;
        outcome(&program, workers, measured)
    }
}

/// The name of a figure of a phase: `phase_3_replace_ms`.
fn figure(at: usize, phase: &Phase, unit: &str) -> String {
    format!("phase_{}_{}_{unit}", at + 1, phase.kind.name())
}

/// What one thread does, and has done.
struct Worker {
    script: Script,
    slots: Vec<Object>,
    tally: Tally,
    /// When each phase began and ended.
    spans: Vec<(Instant, Instant)>,
}

impl Worker {
    fn new(script: Script) -> Self {
        let slots = empty_slots(script.slots);
        let spans = Vec::with_capacity(script.parts.len());
        Self { script, slots, tally: Tally::default(), spans }
    }

    fn run_phase(&mut self, phase: &Phase) {
        let part = self.script.parts[self.spans.len()].steps.clone();
        let begun = Instant::now();
        execute(phase, part.start, &self.script.steps[part], &mut self.slots, &mut self.tally);
        self.spans.push((begun, Instant::now()));
    }
}

/// Executes the steps of a phase. The first of them is the `place`th of its script.
#[inline]
fn execute(phase: &Phase, place: usize, steps: &[Step], slots: &mut [Object], tally: &mut Tally) {
    let resizes = phase.kind.resizes();
    for (at, step) in steps.iter().enumerate() {
        let slot = &mut slots[step.slot as usize];
        let was_bytes = slot.used_bytes();
        let used_bytes = phase.written.used_bytes(step.size_bytes);
        if resizes && was_bytes > 0 && step.size_bytes > 0 {
            slot.resize_part(step.size_bytes, used_bytes, tally);
            write(slot, phase.written, was_bytes);
            continue;
        }
        if was_bytes > 0 {
            std::mem::replace(slot, Object::NONE).free(tally);
        }
        if step.size_bytes > 0 {
            let stamp = stamp((place + at) as u64, step.size_bytes);
            *slot = Object::allocate_part(step.size_bytes, used_bytes, stamp, tally);
            write(slot, phase.written, 0);
        }
    }
}

/// Writes into an object what the program writes. The first `from_bytes` of its used bytes are
/// written already, as are the ends.
#[inline]
fn write(object: &Object, written: Written, from_bytes: u32) {
    match written {
        Written::All | Written::Quarter => object.write_from(from_bytes),
        Written::Pages => object.touch_pages_from(from_bytes),
        Written::First => {}
    }
}

/// What was observed of the process.
struct Measured {
    window: WindowRecord,
    /// Resident above the baseline at the end of each phase, bytes.
    resident_bytes: Vec<u64>,
}

/// Runs the program. The calling thread is the first worker, so that a single worker has a
/// single-threaded process.
fn measure(program: &[Phase], workers: &mut [Worker]) -> anyhow::Result<Measured> {
    let together = Barrier::new(workers.len());
    let before_bytes = resident_bytes()?;
    let (first, others) = workers.split_first_mut().expect("there is at least one thread");
    std::thread::scope(|scope| {
        for worker in others {
            threads::start(scope, || {
                together.wait();
                for phase in program {
                    together.wait();
                    worker.run_phase(phase);
                    together.wait();
                }
                together.wait();
            });
        }
        together.wait();
        // Every barrier is passed before an error is returned, since the threads wait for this one.
        let window = Window::open_for_threads(before_bytes);
        let baseline_bytes = resident_bytes();
        let mut resident = Vec::with_capacity(program.len());
        for phase in program {
            together.wait();
            first.run_phase(phase);
            together.wait();
            resident.push(resident_bytes());
        }
        let window = window.and_then(Window::close);
        together.wait();
        let baseline_bytes = baseline_bytes?;
        let above = |bytes: anyhow::Result<u64>| Ok(bytes?.saturating_sub(baseline_bytes));
        let resident_bytes = resident.into_iter().map(above).collect::<anyhow::Result<_>>()?;
        Ok(Measured { window: window?, resident_bytes })
    })
}

/// Frees what is left, and sums up.
fn outcome(
    program: &[Phase],
    mut workers: Vec<Worker>,
    measured: Measured,
) -> anyhow::Result<Outcome> {
    let mut tally = Tally::default();
    for worker in &mut workers {
        drain(&mut worker.slots, &mut worker.tally);
        tally.add(&worker.tally);
    }
    let mut phase_figures = IndexMap::new();
    let (mut ns, mut live_sum, mut peak_bytes) = (0, 0, 0);
    for (at, (phase, resident_bytes)) in program.iter().zip(&measured.resident_bytes).enumerate() {
        let begun = workers.iter().map(|worker| worker.spans[at].0).min();
        let ended = workers.iter().map(|worker| worker.spans[at].1).max();
        let took = ended.zip(begun).map(|(ended, begun)| ended - begun).unwrap_or_default();
        ns += took.as_nanos() as u64;
        let parts = || workers.iter().map(|worker| &worker.script.parts[at]);
        live_sum += parts().map(|part| part.live_bytes).sum::<u64>();
        peak_bytes = peak_bytes.max(parts().map(|part| part.peak_bytes).sum());
        phase_figures.insert(figure(at, phase, "ms"), took.as_secs_f64() * 1e3);
        phase_figures.insert(figure(at, phase, "resident_bytes"), *resident_bytes as f64);
    }
    let ops = workers.iter().map(|worker| worker.script.steps.len() as u64).sum();
    let mut outcome = team::finish(ops, ns, measured.window, tally)?;
    outcome.live_peak_bytes = peak_bytes;
    let resident_sum: u64 = measured.resident_bytes.iter().sum();
    let ratio = resident_sum as f64 / live_sum.max(1) as f64;
    outcome.more.insert("resident_over_live_ratio".to_owned(), ratio);
    let mean_live_bytes = live_sum.max(1) as f64 / program.len().max(1) as f64;
    outcome.more.insert("mean_live_bytes".to_owned(), mean_live_bytes);
    outcome.more.extend(phase_figures);
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(threads: usize, seed: u64) -> Parameters {
        let few = RandomPhases.defaults().with("mib", 4);
        Parameters { threads, ops: 3000, seed, ..few }
    }

    /// The sum of the stamps of all objects, from the scripts alone.
    fn expected_checksum(parameters: &Parameters) -> u64 {
        let program = draw(parameters.seed, 8);
        let top_bytes = (4 << 20) / parameters.threads as u64;
        let of_thread = |random| {
            let script = Script::write(&program, random, parameters.ops, top_bytes);
            let mut full = vec![false; script.slots];
            let mut sum = 0_u64;
            for (phase, part) in program.iter().zip(&script.parts) {
                for place in part.steps.clone() {
                    let step = script.steps[place];
                    let was_full =
                        std::mem::replace(&mut full[step.slot as usize], step.size_bytes > 0);
                    if step.size_bytes > 0 && !(was_full && phase.kind.resizes()) {
                        sum = sum.wrapping_add(stamp(place as u64, step.size_bytes).into());
                    }
                }
            }
            sum
        };
        parameters.seeds().map(of_thread).fold(0, u64::wrapping_add)
    }

    #[test]
    fn what_is_done_is_a_function_of_the_parameters_alone() {
        for (threads, seed) in [(1, 1), (2, 2), (3, 3), (1, 4), (2, 5), (1, 6), (1, 7), (1, 8)] {
            let parameters = parameters(threads, seed);
            let outcome = RandomPhases.run(&parameters).unwrap();
            assert_eq!(outcome.checksum, expected_checksum(&parameters), "seed {seed}");
            assert_eq!(outcome.failed_allocations, 0);
            let most = (4 << 20) + threads as u64 * u64::from(program::LARGEST_BYTES);
            assert!((1 << 20..=most).contains(&outcome.live_peak_bytes), "{outcome:?}");
        }
    }

    #[test]
    fn phases_are_told_by_figures_that_add_up_and_by_words() {
        let parameters = parameters(2, 3);
        let outcome = RandomPhases.run(&parameters).unwrap();
        let parts = RandomPhases.parts(&parameters).unwrap();
        assert_eq!(parts.len(), 8);
        let sum_ms: f64 = parts.keys().map(|name| outcome.more[name]).sum();
        assert!((sum_ms * 1e6 - outcome.ns as f64).abs() < 1e3, "{sum_ms} ms: {outcome:?}");
        assert!(parts["phase_1_grow_ms"].starts_with("phase 1, grow to "), "{parts:?}");
        assert!(outcome.more.contains_key("phase_1_grow_resident_bytes"), "{outcome:?}");
    }
}
