//! Sh8bench: rounds of small blocks, freed in order, in reverse, or not until later.

use super::script::{Step, run_in_each_thread};
use super::{Domain, Domains, Outcome, Parameters, Tally, Workload, script};

/// How many rounds a left block lives.
const LEFT_ROUNDS: usize = 3;

/// The workload.
pub(crate) struct Sh8bench;

impl Workload for Sh8bench {
    fn name(&self) -> &'static str {
        "sh8bench"
    }

    fn about(&self) -> &'static str {
        "each thread allocates `ops` blocks of 1 to 1000 bytes, mostly small, in rounds of \
         `blocks`; of each three blocks one is freed at the end of its round in the order of \
         allocation, one there in reverse order, and one three rounds later (`read_back=no`: without \
         a look at what is in it); an operation is one malloc and its free"
    }

    fn source(&self) -> &'static str {
        "after MicroQuill's sh6bench and sh8bench (SmartHeap), as the mimalloc-bench collection \
         describes them"
    }

    fn defaults(&self) -> Parameters {
        Parameters::new(2, 1_500_000).with("blocks", 6000).with("read_back", "yes")
    }

    fn rows(&self) -> Vec<Parameters> {
        Vec::new()
    }

    fn published_rows(&self) -> Vec<Parameters> {
        self.defaults().with("read_back", "no").on_threads()
    }

    fn domains(&self) -> Domains {
        &[("blocks", Domain::Whole(1, 100_000_000)), Tally::READ_BACK]
    }

    fn written_bytes(&self, parameters: &Parameters) -> anyhow::Result<f64> {
        let slots = slots(parameters.get("blocks")?) as f64;
        Ok(parameters.threads as f64 * script::written_bytes(2.0 * parameters.ops as f64, slots))
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        let blocks: usize = parameters.get("blocks")?;
        let script = |random: &mut fastrand::Rng| script(random, parameters.ops as usize, blocks);
        run_in_each_thread(parameters, Tally::of(parameters)?, slots(blocks), script, |_| ())
    }
}

/// The slots of one round, and as many for each round whose blocks are left.
fn slots(blocks: usize) -> usize {
    blocks * (1 + LEFT_ROUNDS)
}

/// The slots of a round are 0 to `blocks`. The slots of left blocks lie beyond, by round.
fn script(random: &mut fastrand::Rng, ops: usize, blocks: usize) -> Vec<Step> {
    let mut steps = Vec::with_capacity(2 * ops);
    for (round, begin) in (0..ops).step_by(blocks).enumerate() {
        let left = blocks * (1 + round % LEFT_ROUNDS);
        let free = |slot| Step { slot: slot as u32, size_bytes: 0 };
        if round >= LEFT_ROUNDS {
            steps.extend((2..blocks).step_by(3).map(|block| free(left + block)));
        }
        let blocks = blocks.min(ops - begin);
        steps.extend((0..blocks).map(|block| {
            let slot = if block % 3 == 2 { left + block } else { block };
            Step { slot: slot as u32, size_bytes: size_bytes(random) }
        }));
        steps.extend((0..blocks).step_by(3).map(free));
        steps.extend((1..blocks).step_by(3).rev().map(free));
    }
    steps
}

/// Uniform in the logarithm.
fn size_bytes(random: &mut fastrand::Rng) -> u32 {
    1000_f64.powf(random.f64()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_goes_in_order_a_third_in_reverse_and_a_third_later() {
        let steps = script(&mut fastrand::Rng::with_seed(1), 30, 6);
        let allocated = steps.iter().filter(|step| step.size_bytes > 0).count();
        assert_eq!(allocated, 30);
        let slots = |steps: &[Step]| steps.iter().map(|step| step.slot).collect::<Vec<_>>();
        assert_eq!(slots(&steps[..10]), [0, 1, 8, 3, 4, 11, 0, 3, 4, 1]);
        // The fourth round begins by freeing the blocks that the first has left.
        assert_eq!(slots(&steps[30..34]), [8, 11, 0, 1]);
        assert!(steps[30..32].iter().all(|step| step.size_bytes == 0));
        let live = script::live_peak_bytes(&steps, 24);
        assert!((1..14 * 1000).contains(&live), "{live}");
    }

    #[test]
    fn a_last_round_may_be_shorter() {
        let parameters =
            |read_back| Parameters::new(2, 100).with("blocks", 30).with("read_back", read_back);
        let outcome = Sh8bench.run(&parameters("yes")).unwrap();
        assert_eq!(outcome.ops, 200);
        let unread = Sh8bench.run(&parameters("no")).unwrap();
        assert_eq!(outcome.checksum, unread.checksum);
    }

    #[test]
    fn sizes_are_mostly_small() {
        let mut random = fastrand::Rng::with_seed(1);
        let sizes: Vec<u32> = (0..10_000).map(|_| size_bytes(&mut random)).collect();
        assert!(sizes.iter().all(|size| (1..=1000).contains(size)));
        let small = sizes.iter().filter(|&&size| size < 32).count();
        assert!((4700..5300).contains(&small), "{small}");
    }
}
