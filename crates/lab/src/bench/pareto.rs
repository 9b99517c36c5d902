//! Stress with the sizes of real programs: many small, few large.

use super::script::replace_in_each_thread;
use super::{Domain, Domains, Outcome, Parameters, Workload, script};

/// The workload.
pub(crate) struct Pareto;

impl Workload for Pareto {
    fn name(&self) -> &'static str {
        "pareto"
    }

    fn about(&self) -> &'static str {
        "each thread replaces `ops` random ones of `slots` objects whose sizes follow a Pareto \
         distribution (shape 1.2, from 16 bytes to 1 MiB, so that half of the bytes are in few \
         large objects); an operation is one free and one malloc"
    }

    fn source(&self) -> &'static str {
        "hectare; heavy-tailed sizes as in Hunter et al., Beyond malloc Efficiency to Fleet \
         Efficiency, OSDI 2021"
    }

    fn defaults(&self) -> Parameters {
        Parameters::new(4, 400_000).with("slots", 20_000)
    }

    fn rows(&self) -> Vec<Parameters> {
        vec![Parameters { threads: 1, ops: 1_500_000, ..self.defaults() }, self.defaults()]
    }

    fn domains(&self) -> Domains {
        &[("slots", Domain::Whole(1, 1 << 30))]
    }

    fn written_bytes(&self, parameters: &Parameters) -> anyhow::Result<f64> {
        script::written_bytes_in_each_thread(parameters)
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        let slots: usize = parameters.get("slots")?;
        replace_in_each_thread(parameters, slots, size_bytes)
    }
}

/// Inverse of the distribution function, cut at 1 MiB.
fn size_bytes(random: &mut fastrand::Rng) -> u32 {
    let tail = 1.0 - random.f64();
    (16.0 * tail.powf(-1.0 / 1.2)).min(1_048_576.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_mostly_small_and_reach_far() {
        let mut random = fastrand::Rng::with_seed(1);
        let sizes: Vec<u32> = (0..100_000).map(|_| size_bytes(&mut random)).collect();
        let small = sizes.iter().filter(|&&size| size <= 64).count();
        assert!((75_000..90_000).contains(&small), "{small} of 100 000 are at most 64 bytes");
        assert!(sizes.iter().all(|&size| (16..=1_048_576).contains(&size)));
        assert!(sizes.iter().any(|&size| size > 65_536));
    }
}
