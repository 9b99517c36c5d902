//! glibc's malloc benchmark with threads: random replacement of blocks by an inverse power law.

use super::script::replace_in_each_thread;
use super::{Domain, Domains, Outcome, Parameters, Workload, script};

/// The smallest and the largest block, bytes.
const SMALLEST: f64 = 4.0;
const LARGEST: f64 = 32_768.0;

/// The workload.
pub(crate) struct GlibcThread;

impl Workload for GlibcThread {
    fn name(&self) -> &'static str {
        "glibc-thread"
    }

    fn about(&self) -> &'static str {
        "each thread replaces `ops` random ones of its `slots` blocks of 4 to 32768 bytes, which \
         are the rarer by the square of their size; an operation is one free and one malloc"
    }

    fn source(&self) -> &'static str {
        "after bench-malloc-thread of glibc's benchtests"
    }

    fn defaults(&self) -> Parameters {
        Parameters::new(2, 3_000_000).with("slots", 1024)
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
        replace_in_each_thread(parameters, parameters.get("slots")?, size_bytes)
    }
}

/// With a density of one over the square, the inverse of a size is uniform.
fn size_bytes(random: &mut fastrand::Rng) -> u32 {
    let inverse = 1.0 / LARGEST + random.f64() * (1.0 / SMALLEST - 1.0 / LARGEST);
    (1.0 / inverse) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_the_size_is_half_as_often_exceeded() {
        let mut random = fastrand::Rng::with_seed(1);
        let sizes: Vec<u32> = (0..1_000_000).map(|_| size_bytes(&mut random)).collect();
        assert!(sizes.iter().all(|size| (4..=32_768).contains(size)));
        for (size_bytes, expected) in [(8, 500_000), (64, 62_500), (1024, 3800)] {
            let above = sizes.iter().filter(|&&size| size >= size_bytes).count();
            let off = above.abs_diff(expected) as f64 / expected as f64;
            assert!(off < 0.05, "{above} of {size_bytes} bytes or more, not {expected}");
        }
    }

    #[test]
    fn every_replacement_is_counted() {
        let outcome = GlibcThread.run(&Parameters::new(3, 5000).with("slots", 64)).unwrap();
        assert_eq!((outcome.ops, outcome.failed_allocations), (15_000, 0));
    }
}
