//! Size sweep: the same work in windows of growing size.

use std::time::Instant;

use super::script::{drain, empty_slots, execute, live_peak_bytes, replacements};
use super::{Domain, Domains, Outcome, Parameters, Tally, Workload, script, team};
use crate::measure::Window;

/// The workload.
pub(crate) struct Sweep;

impl Workload for Sweep {
    fn name(&self) -> &'static str {
        "sweep"
    }

    fn about(&self) -> &'static str {
        "one thread; for each size from 16 bytes in steps of a quarter doubling to `largest`: \
         `ops` replacements in slots that hold `live_kib` KiB in all; an operation is one free \
         and one malloc; the time of each size stands in the record"
    }

    fn source(&self) -> &'static str {
        "after the size sweep of the compcache project's allocator study"
    }

    fn defaults(&self) -> Parameters {
        Parameters::new(1, 40_000).with("largest", 1 << 17).with("live_kib", 2048)
    }

    fn domains(&self) -> Domains {
        &[
            ("threads", Domain::Whole(1, 1)),
            ("largest", Domain::Whole(16, 1 << 30)),
            ("live_kib", Domain::Whole(1, 1 << 21)),
        ]
    }

    fn written_bytes(&self, parameters: &Parameters) -> anyhow::Result<f64> {
        // Four sizes for each power of two from 16 on.
        let sizes = 4.0 * (parameters.get::<f64>("largest")?.log2() - 3.0);
        Ok(sizes * script::written_bytes(parameters.ops as f64, 20_000.0))
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        let largest: u32 = parameters.get("largest")?;
        let live_kib: u32 = parameters.get("live_kib")?;
        let mut phases = Vec::new();
        for quarter in 0.. {
            let size_bytes = 2_f64.powf(4.0 + f64::from(quarter) / 4.0) as u32;
            if size_bytes > largest {
                break;
            }
            // A window reaches to the next step, so that luck does not decide whether it has a
            // class boundary.
            let above = size_bytes + (size_bytes / 6).max(1);
            let slots = (live_kib * 1024 / size_bytes).clamp(16, 20_000) as usize;
            let mut random = fastrand::Rng::with_seed(parameters.seed.wrapping_add(quarter as u64));
            let steps = replacements(&mut random, slots, parameters.ops, |random| {
                random.u32(size_bytes..above)
            });
            phases.push((size_bytes, steps, empty_slots(slots)));
        }
        let live_bytes = phases.iter().map(|(_, steps, slots)| live_peak_bytes(steps, slots.len()));
        let live_bytes = live_bytes.max().unwrap_or(0);
        let ops = parameters.ops * phases.len() as u64;
        let mut tally = Tally::default();
        let mut each = Vec::new();
        let window = Window::open()?;
        let start = Instant::now();
        // By reference: the memory of the scripts must not be freed while resident memory is
        // watched.
        for (size_bytes, steps, slots) in &mut phases {
            let phase = Instant::now();
            execute(steps, slots, &mut tally);
            each.push((*size_bytes, phase.elapsed()));
            drain(slots, &mut tally);
        }
        let ns = start.elapsed().as_nanos() as u64;
        let mut outcome = team::finish(ops, ns, window.close()?, tally)?;
        outcome.live_peak_bytes = live_bytes;
        for (size_bytes, time) in each {
            let ns = time.as_nanos() as f64 / parameters.ops as f64;
            outcome.more.insert(format!("size_{size_bytes:06}_ns"), ns);
        }
        Ok(outcome)
    }
}
