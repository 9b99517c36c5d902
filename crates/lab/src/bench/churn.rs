//! Churn: a fixed number of slots, each operation frees one and fills it anew.

use super::script::{drain, empty_slots, execute, live_peak_bytes, replacements};
use super::{Outcome, Parameters, Tally, Workload, team};

/// The simplest steady workload: what `hectare doctor` and the tests use to check the machinery.
pub(crate) struct Churn;

impl Workload for Churn {
    fn name(&self) -> &'static str {
        "churn"
    }

    fn about(&self) -> &'static str {
        "short-lived small objects: each operation frees a random one of `slots` and fills it with \
         1 to `largest` bytes"
    }

    fn source(&self) -> &'static str {
        "hectare; the inner loop of many allocator benchmarks (t-test1, larson)"
    }

    fn defaults(&self) -> Parameters {
        Parameters::new(1, 5_000_000).with("slots", 10_000).with("largest", 512)
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        let slots: usize = parameters.get("slots")?;
        let largest: u32 = parameters.get("largest")?;
        anyhow::ensure!(slots > 0 && largest > 0, "churn needs at least one slot and one byte");
        let inputs: Vec<_> = parameters
            .seeds()
            .map(|mut random| {
                let steps = replacements(&mut random, slots, parameters.ops, |random| {
                    random.u32(1..=largest)
                });
                (steps, empty_slots(slots))
            })
            .collect();
        let live_bytes: u64 = inputs.iter().map(|(steps, _)| live_peak_bytes(steps, slots)).sum();
        let timed = team::run(inputs, |(steps, mut slots)| {
            let mut tally = Tally::default();
            execute(&steps, &mut slots, &mut tally);
            drain(&mut slots, &mut tally);
            tally
        })?;
        let ops = parameters.ops * parameters.threads as u64;
        Ok(Outcome { live_peak_bytes: live_bytes, ..team::outcome(ops, timed)? })
    }
}
