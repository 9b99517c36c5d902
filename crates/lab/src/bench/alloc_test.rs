//! Alloc-test: an array of slots, few of which are hot, with sizes as programs have them.

use super::heap::Object;
use super::script::{Step, run_in_each_thread};
use super::{Domain, Domains, Outcome, Parameters, Tally, Workload, script};

/// The workload.
pub(crate) struct AllocTest;

impl Workload for AllocTest {
    fn name(&self) -> &'static str {
        "alloc-test"
    }

    fn about(&self) -> &'static str {
        "each thread draws one of its `slots` `ops` times, four times in five one of a fifth of \
         them, and so on within that: a full one is freed, an empty one gets an object of 8 to \
         1024 bytes, mostly small, which is written as a whole; at the end all are freed; an \
         operation is one malloc or one free"
    }

    fn source(&self) -> &'static str {
        "after alloc-test of OLogN Technologies (ITHare.com), in the mimalloc-bench collection"
    }

    fn defaults(&self) -> Parameters {
        Parameters::new(2, 2_000_000).with("slots", 100_000)
    }

    fn rows(&self) -> Vec<Parameters> {
        Vec::new()
    }

    fn published_rows(&self) -> Vec<Parameters> {
        self.defaults().on_threads()
    }

    fn domains(&self) -> Domains {
        &[("slots", Domain::Whole(1, 1 << 30))]
    }

    fn written_bytes(&self, parameters: &Parameters) -> anyhow::Result<f64> {
        script::written_bytes_in_each_thread(parameters)
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        let slots: usize = parameters.get("slots")?;
        let script = |random: &mut fastrand::Rng| script(random, parameters.ops, slots);
        let write = |object: &Object| object.write_from(0);
        run_in_each_thread(parameters, Tally::default(), slots, script, write)
    }
}

fn script(random: &mut fastrand::Rng, ops: u64, slots: usize) -> Vec<Step> {
    let mut full = vec![false; slots];
    (0..ops)
        .map(|_| {
            let slot = hot(random, slots);
            full[slot] = !full[slot];
            let size_bytes = if full[slot] { size_bytes(random) } else { 0 };
            Step { slot: slot as u32, size_bytes }
        })
        .collect()
}

/// A number below `end`. A fifth of the numbers gets four fifths of the draws, and so on within
/// that fifth.
fn hot(random: &mut fastrand::Rng, mut end: usize) -> usize {
    while end >= 5 && random.u32(0..5) != 0 {
        end /= 5;
    }
    random.usize(0..end)
}

/// Each power of two comes half as often as the one before; sizes between two powers are uniform.
fn size_bytes(random: &mut fastrand::Rng) -> u32 {
    let power = 3 + random.u32(..).leading_zeros().min(6);
    random.u32(1 << power..=2 << power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifth_of_the_slots_gets_most_draws() {
        let mut random = fastrand::Rng::with_seed(1);
        let draws = (0..100_000).filter(|_| hot(&mut random, 1000) < 200).count();
        assert!((83_000..85_000).contains(&draws), "{draws}");
        assert_eq!(hot(&mut random, 1), 0);
    }

    #[test]
    fn sizes_are_mostly_small_and_reach_1024() {
        let mut random = fastrand::Rng::with_seed(1);
        let sizes: Vec<u32> = (0..100_000).map(|_| size_bytes(&mut random)).collect();
        assert!(sizes.iter().all(|size| (8..=1024).contains(size)));
        let small = sizes.iter().filter(|&&size| size <= 32).count();
        assert!((73_000..80_000).contains(&small), "{small}");
        assert!(sizes.iter().any(|&size| size > 900));
    }

    #[test]
    fn slots_are_filled_and_freed_in_turn() {
        let steps = script(&mut fastrand::Rng::with_seed(1), 10_000, 50);
        let mut full = [false; 50];
        for step in &steps {
            let slot = &mut full[step.slot as usize];
            assert_eq!(step.size_bytes == 0, *slot);
            *slot = !*slot;
        }
        let outcome = AllocTest.run(&Parameters::new(2, 10_000).with("slots", 50)).unwrap();
        assert_eq!(outcome.ops, 20_000);
        assert!(outcome.live_peak_bytes > 1000);
    }
}
