//! False sharing: does the heap give neighbours in one cache line to different threads?

use super::heap::{Object, stamp};
use super::{Domain, Domains, Outcome, Parameters, Tally, Workload, team};

/// The workload.
pub(crate) struct FalseSharing;

impl Workload for FalseSharing {
    fn name(&self) -> &'static str {
        "false-sharing"
    }

    fn about(&self) -> &'static str {
        "each thread `ops` times: allocates 8 bytes, writes them `writes` times, frees them; with \
         `kind=thrash` from the start, with `kind=scratch` after it freed an object of the main \
         thread that lies beside another thread's; an operation is one such turn"
    }

    fn source(&self) -> &'static str {
        "cache-thrash and cache-scratch of Berger et al., Hoard, ASPLOS 2000"
    }

    fn defaults(&self) -> Parameters {
        Parameters::new(2, 200_000).with("writes", 500).with("kind", "thrash")
    }

    fn rows(&self) -> Vec<Parameters> {
        vec![self.defaults(), self.defaults().with("kind", "scratch")]
    }

    fn domains(&self) -> Domains {
        &[
            ("writes", Domain::Whole(1, 1_000_000_000)),
            ("kind", Domain::Words(&["thrash", "scratch"])),
        ]
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        let writes: u32 = parameters.get("writes")?;
        let scratch = match parameters.text("kind")? {
            "thrash" => false,
            "scratch" => true,
            other => anyhow::bail!("`kind={other}`: false-sharing knows thrash and scratch"),
        };
        let mut tally = Tally::default();
        let inputs: Vec<Object> = (0..parameters.threads)
            .map(|thread| {
                if scratch {
                    Object::allocate(8, stamp(thread as u64, 8), &mut tally)
                } else {
                    Object::NONE
                }
            })
            .collect();
        let timed = team::run(inputs, |given| {
            let mut tally = Tally::default();
            given.free(&mut tally);
            for turn in 0..parameters.ops {
                let object = Object::allocate(8, stamp(turn, 8), &mut tally);
                write_often(&object, writes);
                object.free(&mut tally);
            }
            tally
        })?;
        team::outcome(parameters.ops * parameters.threads as u64, timed)
    }
}

/// Reads and writes the first byte; its value ends up unchanged.
fn write_often(object: &Object, writes: u32) {
    if !object.is_some() {
        return;
    }
    let byte = object.address();
    for _ in 0..writes {
        // SAFETY: the object has eight bytes and is ours until it is freed.
        let value = unsafe { byte.read_volatile() };
        // SAFETY: as above.
        unsafe { byte.write_volatile(value) };
    }
}
