//! rnBench, the benchmark of RnAlloc.
//!
//! Each thread owns one table of slots for each of the sizes 16, 64, 128 and 256. An iteration
//! draws a coin, a slot and a size. Heads on an empty slot allocates; on a full slot either side
//! frees; tails on an empty slot does nothing. With the original's 500 000 iterations over
//! 4 × 100 000 slots, 41 % of the iterations do nothing (a test counts them).
//!
//! | `mode` | what is timed |
//! |---|---|
//! | `faithful` | as the original: creating the threads, three draws of a Mersenne Twister per iteration, the operations, giving back what is left |
//! | `alloc` | as `faithful`, but a full slot stays full: allocation only (its second table) |
//! | `planned` | the same operations from a list made beforehand, without idle iterations: the heap, not the random generator |

use std::time::Instant;

use super::heap::{Object, stamp};
use super::script::{Step, drain, empty_slots, execute, live_peak_bytes};
use super::{Domain, Domains, Outcome, Parameters, Tally, Workload, script, team};
use crate::measure::Window;
use crate::threads;

const SIZES: [u32; 4] = [16, 64, 128, 256];

/// The workload.
pub(crate) struct RnBench;

impl Workload for RnBench {
    fn name(&self) -> &'static str {
        "rnbench"
    }

    fn about(&self) -> &'static str {
        "each thread allocates and frees objects of 16, 64, 128 and 256 bytes in 4 x `slots` slots; \
         an operation is an iteration; `mode` is planned (operations listed beforehand), faithful \
         (random numbers drawn in the timed loop, as the original), or alloc (nothing is freed)"
    }

    fn source(&self) -> &'static str {
        "rnBench.cpp of github.com/roshanrn/rnAlloc; figures of its README in docs/workloads.md"
    }

    fn defaults(&self) -> Parameters {
        Parameters::new(4, 500_000).with("slots", 100_000).with("mode", "planned")
    }

    fn rows(&self) -> Vec<Parameters> {
        let threads = |threads| Parameters { threads, ..self.defaults() };
        let mode = |name| Parameters { threads: 4, ..self.defaults() }.with("mode", name);
        vec![threads(1), threads(4), threads(8), threads(16), mode("faithful"), mode("alloc")]
    }

    fn domains(&self) -> Domains {
        &[
            ("slots", Domain::Whole(1, 100_000_000)),
            ("mode", Domain::Words(&["planned", "faithful", "alloc"])),
        ]
    }

    fn written_bytes(&self, parameters: &Parameters) -> anyhow::Result<f64> {
        let slots = SIZES.len() as f64 * parameters.get::<f64>("slots")?;
        // The other modes draw while they run.
        let steps = if parameters.text("mode")? == "planned" { parameters.ops as f64 } else { 0.0 };
        Ok(parameters.threads as f64 * script::written_bytes(steps, slots))
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        let slots: u32 = parameters.get("slots")?;
        match parameters.text("mode")? {
            "planned" => planned(parameters, slots),
            "faithful" => faithful(parameters, slots, true),
            "alloc" => faithful(parameters, slots, false),
            other => anyhow::bail!("`mode={other}`: rnbench knows planned, faithful and alloc"),
        }
    }
}

/// What an iteration does to a slot.
#[derive(Clone, Copy, PartialEq)]
enum Action {
    Allocate,
    Free,
    Nothing,
}

/// Draws of one thread, in the order of the original: coin, slot, size.
struct Draws {
    twister: Twister,
    slots: u32,
}

impl Draws {
    fn new(parameters: &Parameters, thread: usize, slots: u32) -> Self {
        let seed = (parameters.seed as u32).wrapping_mul(1000).wrapping_add(thread as u32);
        Self { twister: Twister::new(seed), slots }
    }

    /// The slot (over all four tables), its size, and whether the coin showed heads.
    #[inline]
    fn next(&mut self) -> (usize, u32, bool) {
        let heads = self.twister.below(2) == 0;
        let index = self.twister.below(self.slots);
        let size = self.twister.below(SIZES.len() as u32) as usize;
        (size * self.slots as usize + index as usize, SIZES[size], heads)
    }
}

#[inline]
fn action(heads: bool, full: bool, frees: bool) -> Action {
    match (heads, full) {
        (true, false) => Action::Allocate,
        (_, true) if frees => Action::Free,
        _ => Action::Nothing,
    }
}

fn faithful(parameters: &Parameters, slots: u32, frees: bool) -> anyhow::Result<Outcome> {
    let tables: Vec<_> =
        (0..parameters.threads).map(|_| empty_slots(SIZES.len() * slots as usize)).collect();
    let window = Window::open()?;
    let start = Instant::now();
    let results: Vec<Tally> = std::thread::scope(|scope| {
        let threads: Vec<_> = tables
            .into_iter()
            .enumerate()
            .map(|(thread, mut table)| {
                threads::start(scope, move || {
                    let mut tally = Tally::default();
                    let mut draws = Draws::new(parameters, thread, slots);
                    for place in 0..parameters.ops {
                        let (slot, size_bytes, heads) = draws.next();
                        let slot = &mut table[slot];
                        match action(heads, slot.is_some(), frees) {
                            Action::Allocate => {
                                let stamp = stamp(place, size_bytes);
                                *slot = Object::allocate(size_bytes, stamp, &mut tally);
                            }
                            Action::Free => {
                                std::mem::replace(slot, Object::NONE).free(&mut tally);
                            }
                            Action::Nothing => {}
                        }
                    }
                    drain(&mut table, &mut tally);
                    tally
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("rnbench thread")).collect()
    });
    let ns = start.elapsed().as_nanos() as u64;
    let ops = parameters.ops * parameters.threads as u64;
    team::outcome(ops, team::Timed { ns, window: window.close()?, results })
}

/// The operations of one thread without its idle iterations.
fn plan(parameters: &Parameters, thread: usize, slots: u32) -> Vec<Step> {
    let mut draws = Draws::new(parameters, thread, slots);
    let mut full = vec![false; SIZES.len() * slots as usize];
    let mut steps = Vec::new();
    for _ in 0..parameters.ops {
        let (slot, size_bytes, heads) = draws.next();
        let action = action(heads, full[slot], true);
        if action != Action::Nothing {
            full[slot] = action == Action::Allocate;
            let size_bytes = if full[slot] { size_bytes } else { 0 };
            steps.push(Step { slot: slot as u32, size_bytes });
        }
    }
    steps
}

fn planned(parameters: &Parameters, slots: u32) -> anyhow::Result<Outcome> {
    let count = SIZES.len() * slots as usize;
    let inputs: Vec<_> = (0..parameters.threads)
        .map(|thread| (plan(parameters, thread, slots), empty_slots(count)))
        .collect();
    let live_bytes: u64 = inputs.iter().map(|(steps, _)| live_peak_bytes(steps, count)).sum();
    let ops: u64 = inputs.iter().map(|(steps, _)| steps.len() as u64).sum();
    let timed = team::run(inputs, |(steps, mut table)| {
        let mut tally = Tally::default();
        execute(&steps, &mut table, &mut tally);
        drain(&mut table, &mut tally);
        tally
    })?;
    Ok(Outcome { live_peak_bytes: live_bytes, ..team::outcome(ops, timed)? })
}

/// The Mersenne Twister MT19937 (Matsumoto and Nishimura, 1998). The original draws from this
/// generator inside its timed loop.
struct Twister {
    state: [u32; 624],
    next: usize,
}

impl Twister {
    fn new(seed: u32) -> Self {
        let mut state = [seed; 624];
        for i in 1..624 {
            let last = state[i - 1];
            state[i] = (last ^ last >> 30).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        Self { state, next: 624 }
    }

    #[inline]
    fn next(&mut self) -> u32 {
        if self.next == 624 {
            self.refill();
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= word << 7 & 0x9D2C_5680;
        word ^= word << 15 & 0xEFC6_0000;
        word ^ word >> 18
    }

    #[cold]
    fn refill(&mut self) {
        for i in 0..624 {
            let joined = self.state[i] & 0x8000_0000 | self.state[(i + 1) % 624] & 0x7FFF_FFFF;
            let odd = if joined & 1 == 1 { 0x9908_B0DF } else { 0 };
            self.state[i] = self.state[(i + 397) % 624] ^ joined >> 1 ^ odd;
        }
        self.next = 0;
    }

    /// Uniform in `0..bound` (the multiply-high method, as in libstdc++'s distribution).
    #[inline]
    fn below(&mut self, bound: u32) -> u32 {
        ((u64::from(self.next()) * u64::from(bound)) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twister_gives_the_published_numbers() {
        // The standard's check: the 10 000th draw from the default seed 5489.
        let mut twister = Twister::new(5489);
        let last = (0..10_000).map(|_| twister.next()).last();
        assert_eq!(last, Some(4_123_659_995));
    }

    #[test]
    fn two_fifths_of_the_originals_iterations_do_nothing() {
        let parameters = Parameters { threads: 1, ..RnBench.defaults() };
        let busy = plan(&parameters, 0, 100_000).len() as f64 / 500_000.0;
        assert!((0.405..0.420).contains(&(1.0 - busy)), "{:.4} did nothing", 1.0 - busy);
    }

    #[test]
    fn planned_and_faithful_execute_the_same_operations() {
        let parameters = Parameters::new(1, 20_000).with("slots", 2000);
        let planned = plan(&parameters, 0, 2000);
        let freed = planned.iter().filter(|step| step.size_bytes == 0).count();
        assert!(freed > 1000 && planned.len() < 20_000);
        let outcome = RnBench.run(&parameters.clone().with("mode", "planned")).unwrap();
        assert_eq!(outcome.ops, planned.len() as u64);
        let outcome = RnBench.run(&parameters.with("mode", "faithful")).unwrap();
        assert_eq!((outcome.ops, outcome.failed_allocations), (20_000, 0));
    }
}
