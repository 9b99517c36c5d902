//! A server through its day: the load grows and shrinks, and sizes change.

use std::time::Instant;

use super::script::{Draft, Step, drain, empty_slots, execute_counted};
use super::{Domain, Domains, Memory, Outcome, Parameters, Tally, Workload, script, team};
use crate::measure::{Window, resident_bytes};

/// Resident memory is read once per this many operations.
const SAMPLE_EVERY: usize = 4096;

/// Number of objects in a session.
const SESSION: usize = 50;

/// The objects of each phase: smallest and largest size, bytes.
const MIXES: [(u32, u32); 4] = [(16, 128), (200, 1200), (48, 300), (1000, 6000)];

/// The workload.
pub(crate) struct Phases;

impl Workload for Phases {
    fn name(&self) -> &'static str {
        "phases"
    }

    fn about(&self) -> &'static str {
        "`phases` times: sessions of 50 objects open until live memory is `mib` MiB, `ops` objects \
         come and go with their sessions, and sessions close until a fifth is left; each leaves \
         one object until the end of the next phase, which has another mix of sizes; the figure of \
         interest is mean resident over mean live memory; an operation is one malloc or free, \
         reading resident memory is not timed"
    }

    fn source(&self) -> &'static str {
        "hectare; fragmentation of long-running servers"
    }

    fn defaults(&self) -> Parameters {
        Parameters::new(1, 60_000).with("mib", 48).with("phases", 8)
    }

    fn memory(&self) -> Memory {
        Memory::Ratio { name: "resident_over_live_ratio", live: "mean_live_bytes" }
    }

    fn domains(&self) -> Domains {
        &[
            ("threads", Domain::Whole(1, 1)),
            ("mib", Domain::Whole(1, 1 << 20)),
            ("phases", Domain::Whole(1, 100_000)),
        ]
    }

    fn written_bytes(&self, parameters: &Parameters) -> anyhow::Result<f64> {
        // A phase fills memory, empties most of it again, and replaces `ops` objects.
        let filled = parameters.get::<f64>("mib")? * f64::from(1 << 20) / 72.0;
        let steps = 2.0 * parameters.get::<f64>("phases")? * (filled + parameters.ops as f64);
        Ok(script::written_bytes(steps, filled))
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        let top_bytes = parameters.get::<u64>("mib")? << 20;
        let phases: usize = parameters.get("phases")?;
        let (steps, slots, live_bytes) = script(parameters, top_bytes, phases);
        let mut slots = empty_slots(slots);
        let mut tally = Tally::default();
        let (mut live, mut ns) = (0_u64, 0_u64);
        let (mut resident_sum, mut live_sum) = (0_u64, 0_u64);
        let window = Window::open()?;
        let baseline_bytes = resident_bytes()?;
        for (chunk, steps) in steps.chunks(SAMPLE_EVERY).enumerate() {
            let start = Instant::now();
            let place = chunk * SAMPLE_EVERY;
            live = live.wrapping_add_signed(execute_counted(steps, place, &mut slots, &mut tally));
            ns += start.elapsed().as_nanos() as u64;
            resident_sum += resident_bytes()?.saturating_sub(baseline_bytes);
            live_sum += live;
        }
        let window = window.close()?;
        drain(&mut slots, &mut tally);
        let mut outcome = team::finish(steps.len() as u64, ns, window, tally)?;
        outcome.live_peak_bytes = live_bytes;
        let ratio = resident_sum as f64 / live_sum.max(1) as f64;
        outcome.more.insert("resident_over_live_ratio".to_owned(), ratio);
        let mean_live_bytes =
            live_sum.max(1) as f64 / steps.len().div_ceil(SAMPLE_EVERY).max(1) as f64;
        outcome.more.insert("mean_live_bytes".to_owned(), mean_live_bytes);
        Ok(outcome)
    }
}

/// The operations, how many slots they need, and the largest sum of sizes.
fn script(parameters: &Parameters, top_bytes: u64, phases: usize) -> (Vec<Step>, usize, u64) {
    let mut server = Server::new(fastrand::Rng::with_seed(parameters.seed));
    let mut peak = 0;
    for phase in 0..phases {
        server.mix = MIXES[phase % MIXES.len()];
        while server.draft.live_bytes < top_bytes {
            server.open_session();
        }
        for _ in 0..parameters.ops as usize / SESSION {
            server.open_session();
            while server.draft.live_bytes > top_bytes {
                server.close_session();
            }
        }
        peak = peak.max(server.draft.live_bytes);
        while server.draft.live_bytes > top_bytes / 5 && !server.sessions.is_empty() {
            server.close_session();
        }
        server.forget();
    }
    let slots = server.draft.slots();
    (server.draft.steps, slots, peak)
}

/// Writes the script of a server whose objects belong to sessions.
struct Server {
    random: fastrand::Rng,
    mix: (u32, u32),
    draft: Draft,
    /// Slots of each open session.
    sessions: Vec<Vec<u32>>,
    /// Slots of objects left by closed sessions: in this phase, and in the one before.
    left: [Vec<u32>; 2],
}

impl Server {
    fn new(random: fastrand::Rng) -> Self {
        Self {
            random,
            mix: MIXES[0],
            draft: Draft::default(),
            sessions: Vec::new(),
            left: [Vec::new(), Vec::new()],
        }
    }

    fn open_session(&mut self) {
        let (smallest, largest) = self.mix;
        let object = |_| self.draft.allocate(self.random.u32(smallest..=largest));
        self.sessions.push((0..SESSION).map(object).collect());
    }

    /// Closes a random session; one of its objects stays (a cache entry, a statistic).
    fn close_session(&mut self) {
        let at = self.random.usize(0..self.sessions.len());
        let mut session = self.sessions.swap_remove(at);
        let stays = session.swap_remove(self.random.usize(0..session.len()));
        self.left[0].push(stays);
        session.into_iter().for_each(|slot| self.draft.free(slot));
    }

    /// At the end of a phase, frees the objects that sessions of the phase before left.
    fn forget(&mut self) {
        for slot in self.left[1].drain(..) {
            self.draft.free(slot);
        }
        self.left.swap(0, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::heap::stamp;
    use super::*;

    #[test]
    fn what_is_live_at_the_end_is_checked_too() {
        let parameters = Parameters { ops: 500, ..Phases.defaults().with("mib", 2) };
        let outcome = Phases.run(&parameters).unwrap();
        let (steps, ..) = script(&parameters, 2 << 20, 8);
        let allocated = steps.iter().enumerate().filter(|(_, step)| step.size_bytes > 0);
        let stamps: u64 =
            allocated.map(|(place, step)| u64::from(stamp(place as u64, step.size_bytes))).sum();
        assert_eq!(outcome.checksum, stamps);
    }
}
