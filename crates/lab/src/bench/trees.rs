//! Trees that are built and dropped: the pattern of interpreters and compilers.

use super::heap::{Object, stamp};
use super::{Domain, Domains, Outcome, Parameters, Tally, Workload, script, team};

/// The workload.
pub(crate) struct Trees;

impl Workload for Trees {
    fn name(&self) -> &'static str {
        "trees"
    }

    fn about(&self) -> &'static str {
        "each thread `ops` times: builds a binary tree of `depth` levels in depth-first order, \
         nodes of 24 to 88 bytes, and frees it in the same order; an operation is the malloc and \
         free of one node"
    }

    fn source(&self) -> &'static str {
        "after Boehm's GCBench and binary-trees of the Benchmarks Game"
    }

    fn defaults(&self) -> Parameters {
        Parameters::new(1, 300).with("depth", 14)
    }

    fn published_rows(&self) -> Vec<Parameters> {
        self.defaults().on_threads()
    }

    fn domains(&self) -> Domains {
        &[("depth", Domain::Whole(1, 28))]
    }

    fn written_bytes(&self, parameters: &Parameters) -> anyhow::Result<f64> {
        let nodes = parameters.get::<f64>("depth")?.exp2();
        Ok(parameters.threads as f64 * script::written_bytes(nodes, nodes))
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        let depth: u32 = parameters.get("depth")?;
        let count = (1_usize << depth) - 1;
        let inputs: Vec<_> = parameters
            .seeds()
            .map(|mut random| {
                let sizes: Vec<u8> = (0..count).map(|_| random.u8(0..9)).collect();
                (sizes, script::empty_slots(count))
            })
            .collect();
        let live_bytes: u64 =
            inputs.iter().flat_map(|(sizes, _)| sizes).map(|&size| u64::from(bytes(size))).sum();
        let timed = team::run(inputs, |(sizes, mut nodes): (Vec<u8>, Vec<Object>)| {
            let mut tally = Tally::default();
            for turn in 0..parameters.ops {
                for (place, (node, &size)) in nodes.iter_mut().zip(&sizes).enumerate() {
                    let stamp = stamp(turn << 32 | place as u64, bytes(size));
                    *node = Object::allocate(bytes(size), stamp, &mut tally);
                }
                script::drain(&mut nodes, &mut tally);
            }
            tally
        })?;
        let ops = parameters.ops * (parameters.threads * count) as u64;
        Ok(Outcome { live_peak_bytes: live_bytes, ..team::outcome(ops, timed)? })
    }
}

/// Node sizes, as in a program with a few node types.
fn bytes(size: u8) -> u32 {
    24 + u32::from(size) * 8
}
