//! Threadtest: batches of objects of one size, allocated and freed over and over.

use super::heap::{Object, stamp};
use super::{Domain, Domains, Outcome, Parameters, Tally, Workload, script, team};

/// The workload.
pub(crate) struct Threadtest;

impl Workload for Threadtest {
    fn name(&self) -> &'static str {
        "threadtest"
    }

    fn about(&self) -> &'static str {
        "each thread `ops` times: allocates `objects` objects of `size_bytes` bytes, then frees \
         them in the same order; an operation is one malloc and its free"
    }

    fn source(&self) -> &'static str {
        "after threadtest of Hoard (Berger et al., Hoard: A Scalable Memory Allocator for \
         Multithreaded Applications, ASPLOS 2000)"
    }

    fn defaults(&self) -> Parameters {
        Parameters::new(2, 100).with("objects", 30_000).with("size_bytes", 64)
    }

    fn rows(&self) -> Vec<Parameters> {
        Vec::new()
    }

    fn published_rows(&self) -> Vec<Parameters> {
        self.defaults().on_threads()
    }

    fn domains(&self) -> Domains {
        &[("objects", Domain::Whole(1, 1 << 30)), ("size_bytes", Domain::Whole(1, 1 << 30))]
    }

    fn written_bytes(&self, parameters: &Parameters) -> anyhow::Result<f64> {
        let objects: f64 = parameters.get("objects")?;
        Ok(parameters.threads as f64 * script::written_bytes(0.0, objects))
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        let count: usize = parameters.get("objects")?;
        let size_bytes: u32 = parameters.get("size_bytes")?;
        let batches = (0..parameters.threads).map(|_| script::empty_slots(count)).collect();
        let timed = team::run(batches, |mut batch: Vec<Object>| {
            let mut tally = Tally::default();
            for turn in 0..parameters.ops {
                for (place, object) in batch.iter_mut().enumerate() {
                    let stamp = stamp(turn << 32 | place as u64, size_bytes);
                    *object = Object::allocate(size_bytes, stamp, &mut tally);
                }
                script::drain(&mut batch, &mut tally);
            }
            tally
        })?;
        let batches = (parameters.threads * count) as u64;
        let outcome = team::outcome(parameters.ops * batches, timed)?;
        Ok(Outcome { live_peak_bytes: batches * u64::from(size_bytes), ..outcome })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_turn_and_thread_is_counted() {
        let parameters = Parameters::new(3, 7).with("objects", 20).with("size_bytes", 40);
        let outcome = Threadtest.run(&parameters).unwrap();
        assert_eq!((outcome.ops, outcome.live_peak_bytes), (3 * 7 * 20, 3 * 20 * 40));
        let more = Threadtest.run(&Parameters { ops: 8, ..parameters }).unwrap();
        assert_ne!(outcome.checksum, more.checksum);
    }
}
