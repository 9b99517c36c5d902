//! Large blocks, and a vector that grows.

use std::time::Instant;

use super::heap::{Object, stamp};
use super::script::{empty_slots, live_peak_bytes, replacements};
use super::{Domain, Domains, Outcome, Parameters, Tally, Workload, script, team};
use crate::measure::Window;

/// Blocks of 64 KiB to 8 MiB.
pub(crate) struct Large;

impl Workload for Large {
    fn name(&self) -> &'static str {
        "large"
    }

    fn about(&self) -> &'static str {
        "each thread replaces `ops` random ones of `slots` blocks of 64 KiB to 8 MiB (uniform in \
         the logarithm) and writes into every page; an operation is one free, one malloc and the \
         writes"
    }

    fn source(&self) -> &'static str {
        "after malloc-large of the mimalloc-bench collection (Leijen)"
    }

    fn defaults(&self) -> Parameters {
        Parameters::new(1, 1000).with("slots", 24)
    }

    fn domains(&self) -> Domains {
        &[("slots", Domain::Whole(1, 1_000_000))]
    }

    fn written_bytes(&self, parameters: &Parameters) -> anyhow::Result<f64> {
        script::written_bytes_in_each_thread(parameters)
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        let slots: usize = parameters.get("slots")?;
        let inputs: Vec<_> = parameters
            .seeds()
            .map(|mut random| {
                let steps = replacements(&mut random, slots, parameters.ops, |random| {
                    (65_536.0 * 128_f64.powf(random.f64())) as u32
                });
                (steps, empty_slots(slots))
            })
            .collect();
        let live_bytes: u64 = inputs.iter().map(|(steps, _)| live_peak_bytes(steps, slots)).sum();
        let timed = team::run(inputs, |(steps, mut slots)| {
            let mut tally = Tally::default();
            for (place, step) in steps.iter().enumerate() {
                let slot = &mut slots[step.slot as usize];
                std::mem::replace(slot, Object::NONE).free(&mut tally);
                let stamp = stamp(place as u64, step.size_bytes);
                *slot = Object::allocate(step.size_bytes, stamp, &mut tally);
                slot.touch_pages();
            }
            script::drain(&mut slots, &mut tally);
            tally
        })?;
        let ops = parameters.ops * parameters.threads as u64;
        Ok(Outcome { live_peak_bytes: live_bytes, ..team::outcome(ops, timed)? })
    }
}

/// A vector grown by `realloc`.
pub(crate) struct Grow;

impl Workload for Grow {
    fn name(&self) -> &'static str {
        "grow"
    }

    fn about(&self) -> &'static str {
        "a vector grows by `realloc` to `largest_mib` MiB, half again each time, and its new pages \
         are written; `ops` times over; an operation is one `realloc`"
    }

    fn source(&self) -> &'static str {
        "hectare; shows who moves pages (mremap) and who copies them"
    }

    fn defaults(&self) -> Parameters {
        Parameters::new(1, 1).with("largest_mib", 512)
    }

    fn domains(&self) -> Domains {
        &[("threads", Domain::Whole(1, 1)), ("largest_mib", Domain::Whole(1, 4095))]
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        let largest_mib: u32 = parameters.get("largest_mib")?;
        let largest = largest_mib << 20;
        let mut tally = Tally::default();
        let mut ops = 0;
        let window = Window::open()?;
        let start = Instant::now();
        for turn in 0..parameters.ops {
            let mut vector = Object::allocate(4096, stamp(turn, 4096), &mut tally);
            while vector.used_bytes() < largest && tally.failed == 0 {
                let was = vector.used_bytes();
                vector.resize(was.saturating_add(was / 2).min(largest), &mut tally);
                vector.touch_pages_from(was);
                ops += 1;
            }
            vector.free(&mut tally);
        }
        let ns = start.elapsed().as_nanos() as u64;
        let outcome = team::finish(ops, ns, window.close()?, tally)?;
        Ok(Outcome { live_peak_bytes: u64::from(largest), ..outcome })
    }
}
