//! Survivors: objects outlive the threads that allocated them.

use std::sync::Mutex;
use std::time::Instant;

use super::heap::{Object, stamp};
use super::script::{Step, drain, empty_slots};
use super::{Domain, Domains, Outcome, Parameters, Tally, Workload, script, team};
use crate::measure::Window;
use crate::threads;

/// Slots per lock of the shared table.
const SHELF: usize = 64;

/// The workload.
pub(crate) struct Survivors;

impl Workload for Survivors {
    fn name(&self) -> &'static str {
        "survivors"
    }

    fn about(&self) -> &'static str {
        "`rounds` times: `threads` new threads allocate `ops` objects each, mostly 8 to 512 bytes \
         and some up to 64 KiB, keep half for a while, put others into a shared table of `shared` \
         slots and free what was there; then they die, and the shared objects stay; an operation \
         is one malloc and its free"
    }

    fn source(&self) -> &'static str {
        "after mstress of the mimalloc authors (test-stress.c)"
    }

    fn defaults(&self) -> Parameters {
        Parameters::new(16, 12_000).with("rounds", 8).with("shared", 65_536)
    }

    fn published_rows(&self) -> Vec<Parameters> {
        Parameters { ops: 48_000, ..self.defaults() }.on_threads()
    }

    fn domains(&self) -> Domains {
        &[
            ("ops", Domain::Whole(1, 1 << 32)),
            ("rounds", Domain::Whole(1, 1_000_000)),
            ("shared", Domain::Whole(1, 1 << 30)),
        ]
    }

    fn written_bytes(&self, parameters: &Parameters) -> anyhow::Result<f64> {
        let (threads, ops) = (parameters.threads as f64, parameters.ops as f64);
        let rounds: f64 = parameters.get("rounds")?;
        let slots = threads * ops / 2.0 + parameters.get::<f64>("shared")?;
        Ok(script::written_bytes(rounds * threads * ops, slots))
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        let rounds: usize = parameters.get("rounds")?;
        let shared: usize = parameters.get("shared")?;
        let own = (parameters.ops as usize / 2).max(1);
        // Each step goes to one of the thread's own slots, or (above `own`) to a shared one.
        let scripts: Vec<Vec<Vec<Step>>> = (0..rounds)
            .map(|round| {
                let seeded = Parameters {
                    seed: parameters.seed.wrapping_add(round as u64),
                    ..parameters.clone()
                };
                seeded
                    .seeds()
                    .map(|mut random| script(&mut random, own, shared, seeded.ops))
                    .collect()
            })
            .collect();
        let shelves: Vec<Mutex<Vec<Object>>> =
            (0..shared.div_ceil(SHELF)).map(|_| Mutex::new(empty_slots(SHELF))).collect();
        let mut tables: Vec<Vec<Object>> =
            (0..parameters.threads).map(|_| empty_slots(own)).collect();
        let mut tally = Tally::default();
        let window = Window::open()?;
        let start = Instant::now();
        for round in &scripts {
            std::thread::scope(|scope| {
                let threads: Vec<_> = round
                    .iter()
                    .zip(&mut tables)
                    .map(|(steps, table)| {
                        let shelves = &shelves;
                        threads::start(scope, move || live(steps, table, shelves))
                    })
                    .collect();
                for thread in threads {
                    tally.add(&thread.join().expect("a survivors thread panicked"));
                }
            });
        }
        for shelf in shelves {
            drain(&mut shelf.into_inner().expect("no thread panics"), &mut tally);
        }
        let ns = start.elapsed().as_nanos() as u64;
        let ops = parameters.ops * (rounds * parameters.threads) as u64;
        team::finish(ops, ns, window.close()?, tally)
    }
}

fn script(random: &mut fastrand::Rng, own: usize, shared: usize, count: u64) -> Vec<Step> {
    (0..count)
        .map(|_| {
            let size_bytes = match random.u32(0..1000) {
                0 => random.u32(8192..65_536),
                1..=20 => random.u32(512..8192),
                _ => random.u32(8..512),
            };
            let slot =
                if random.bool() { random.usize(0..own) } else { own + random.usize(0..shared) };
            Step { slot: slot as u32, size_bytes }
        })
        .collect()
}

fn live(steps: &[Step], table: &mut [Object], shelves: &[Mutex<Vec<Object>>]) -> Tally {
    let mut tally = Tally::default();
    for (place, step) in steps.iter().enumerate() {
        let new =
            Object::allocate(step.size_bytes, stamp(place as u64, step.size_bytes), &mut tally);
        let old = if let Some(slot) = table.get_mut(step.slot as usize) {
            std::mem::replace(slot, new)
        } else {
            let slot = step.slot as usize - table.len();
            let mut shelf = shelves[slot / SHELF].lock().expect("no thread panics");
            std::mem::replace(&mut shelf[slot % SHELF], new)
        };
        old.free(&mut tally);
    }
    drain(table, &mut tally);
    tally
}
