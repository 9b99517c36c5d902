//! Churn: a fixed number of slots, each operation frees one and fills it anew.

use std::hint::black_box;
use std::time::Instant;

use super::{Outcome, Parameters, Workload};
use crate::measure::Window;

/// The simplest steady workload: what `hectare doctor` and the tests use to check the machinery.
pub(crate) struct Churn;

impl Workload for Churn {
    fn name(&self) -> &'static str {
        "churn"
    }

    fn about(&self) -> &'static str {
        "one thread; each operation frees a random slot and fills it with 1 to `largest` bytes"
    }

    fn source(&self) -> &'static str {
        "hectare"
    }

    fn defaults(&self) -> Parameters {
        Parameters::new(1, 4_000_000).with("slots", 10_000).with("largest", 512)
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        let slots: usize = parameters.get("slots")?;
        let largest: u32 = parameters.get("largest")?;
        anyhow::ensure!(slots > 0 && largest > 0, "churn needs at least one slot and one byte");
        anyhow::ensure!(parameters.threads == 1, "churn runs on one thread");
        let mut random = fastrand::Rng::with_seed(parameters.seed);
        let operations: Vec<(u32, u32)> = (0..parameters.ops)
            .map(|_| (random.u32(0..slots as u32), random.u32(1..=largest)))
            .collect();
        let checksum = operations.iter().fold(0_u64, |hash, &(slot, size)| {
            (hash ^ (u64::from(slot) << 32 | u64::from(size))).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        });
        let mut held = vec![std::ptr::null_mut::<libc::c_void>(); slots];
        let mut outcome = Outcome { ops: parameters.ops, checksum, ..Outcome::default() };
        let window = Window::open()?;
        let start = Instant::now();
        for &(slot, size) in &operations {
            let slot = &mut held[slot as usize];
            // SAFETY: a slot holds null or a pointer from `malloc` that is freed only here and below.
            unsafe { libc::free(*slot) };
            // SAFETY: any size may be asked for; `black_box` keeps the pair from being elided.
            *slot = black_box(unsafe { libc::malloc(size as usize) });
            if slot.is_null() {
                outcome.failed_allocations += 1;
            } else {
                // SAFETY: the block has at least one byte.
                unsafe { slot.cast::<u8>().write_volatile(size as u8) };
            }
        }
        outcome.ns = start.elapsed().as_nanos() as u64;
        outcome.window = Some(window.close()?);
        for slot in held {
            // SAFETY: as above; each slot is freed once.
            unsafe { libc::free(slot) };
        }
        Ok(outcome)
    }
}
