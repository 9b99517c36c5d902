//! What stays resident after a peak is freed.

use std::time::{Duration, Instant};

use super::heap::{Object, stamp};
use super::script::{drain, empty_slots};
use super::{Domain, Domains, Memory, Outcome, Parameters, Tally, Workload, script, team};
use crate::measure::{Window, resident_bytes};

/// The workload.
pub(crate) struct Drain;

impl Workload for Drain {
    fn name(&self) -> &'static str {
        "drain"
    }

    fn about(&self) -> &'static str {
        "one thread allocates `mib` MiB of objects of 16 to 512 bytes, frees them in random order, \
         and sleeps; resident memory 0.1 s and 1 s later (and after `seconds`, up to 5) is the \
         figure of interest; the time is that of the work, without the sleep; an operation is one \
         malloc and its free"
    }

    fn source(&self) -> &'static str {
        "hectare; the most frequent complaint about allocators: memory not given back"
    }

    fn defaults(&self) -> Parameters {
        Parameters::new(1, 1).with("mib", 256).with("seconds", 1)
    }

    fn memory(&self) -> Memory {
        Memory::Figure("after_1000_ms_bytes")
    }

    fn domains(&self) -> Domains {
        &[
            ("threads", Domain::Whole(1, 1)),
            ("mib", Domain::Whole(1, 1 << 20)),
            ("seconds", Domain::Number(0.0, 3600.0)),
        ]
    }

    fn written_bytes(&self, parameters: &Parameters) -> anyhow::Result<f64> {
        // Objects of 264 bytes on average, and for each a size, a place and a slot.
        let objects = parameters.get::<f64>("mib")? * f64::from(1 << 20) / 264.0;
        Ok(script::written_bytes(objects, objects))
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        let mib: u64 = parameters.get("mib")?;
        let seconds: f64 = parameters.get("seconds")?;
        let mut random = fastrand::Rng::with_seed(parameters.seed);
        let mut sizes = Vec::new();
        let mut live_bytes = 0_u64;
        while live_bytes < mib << 20 {
            let size_bytes = random.u32(16..=512);
            live_bytes += u64::from(size_bytes);
            sizes.push(size_bytes);
        }
        // The shuffled order assigns objects to slots, so that freeing in slot order is random.
        let mut order: Vec<u32> = (0..sizes.len() as u32).collect();
        random.shuffle(&mut order);
        let mut slots: Vec<Object> = empty_slots(sizes.len());
        let mut tally = Tally::default();
        let mut ns = 0;
        let window = Window::open()?;
        let baseline_bytes = resident_bytes()?;
        for turn in 0..parameters.ops {
            let start = Instant::now();
            for (&slot, &size_bytes) in order.iter().zip(&sizes) {
                slots[slot as usize] = Object::allocate(
                    size_bytes,
                    stamp(turn << 32 | u64::from(slot), size_bytes),
                    &mut tally,
                );
            }
            drain(&mut slots, &mut tally);
            ns += start.elapsed().as_nanos() as u64;
        }
        let freed = Instant::now();
        let mut after = Vec::new();
        for ms in [100, 1000, 5000]
            .into_iter()
            .filter(|&ms| ms as f64 <= 1000.0_f64.max(seconds * 1000.0))
        {
            std::thread::sleep(Duration::from_millis(ms).saturating_sub(freed.elapsed()));
            after.push((ms, resident_bytes()?.saturating_sub(baseline_bytes)));
        }
        let ops = sizes.len() as u64 * parameters.ops;
        let mut outcome = team::finish(ops, ns, window.close()?, tally)?;
        outcome.live_peak_bytes = live_bytes;
        for (ms, bytes) in after {
            outcome.more.insert(format!("after_{ms}_ms_bytes"), bytes as f64);
        }
        Ok(outcome)
    }
}
