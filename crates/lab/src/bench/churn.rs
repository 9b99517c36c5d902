//! Churn: a fixed number of slots; each operation frees one and fills it again.

use super::script::replace_in_each_thread;
use super::{Domain, Domains, Outcome, Parameters, Workload, script};

/// The simplest steady workload. The tests check the machinery with it.
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

    fn domains(&self) -> Domains {
        &[("slots", Domain::Whole(1, 1 << 30)), ("largest", Domain::Whole(1, 1 << 30))]
    }

    fn written_bytes(&self, parameters: &Parameters) -> anyhow::Result<f64> {
        script::written_bytes_in_each_thread(parameters)
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        let slots: usize = parameters.get("slots")?;
        let largest: u32 = parameters.get("largest")?;
        replace_in_each_thread(parameters, slots, |random| random.u32(1..=largest))
    }
}
