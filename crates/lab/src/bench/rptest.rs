//! Rptest: blocks of up to 16 KB, some of which another thread frees.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use super::heap::{Object, stamp};
use super::script::{Step, drain, empty_slots};
use super::{Domain, Domains, Outcome, Parameters, Tally, Workload, script, team};

/// The smallest and the largest block, bytes.
const SMALLEST: f64 = 16.0;
const LARGEST: f64 = 16_000.0;

/// The workload.
pub(crate) struct Rptest;

impl Workload for Rptest {
    fn name(&self) -> &'static str {
        "rptest"
    }

    fn about(&self) -> &'static str {
        "each thread allocates `ops` blocks of 16 to 16000 bytes and writes into each page; \
         small ones are more frequent, by a `sizes` distribution, linear or exponential; most \
         replace a random one of its `slots`; `cross_percent` of each `loop` blocks go as a \
         parcel to the next thread, which frees them (a thread waits where the next one is \
         `depth` parcels behind); an operation is one malloc and its free"
    }

    fn source(&self) -> &'static str {
        "after rpmalloc-benchmark (Jansson), rptest of the mimalloc-bench collection"
    }

    fn defaults(&self) -> Parameters {
        let parameters = Parameters::new(2, 300_000).with("slots", 1000).with("loop", 200);
        parameters.with("cross_percent", 25).with("depth", 64).with("sizes", "linear")
    }

    fn rows(&self) -> Vec<Parameters> {
        Vec::new()
    }

    fn published_rows(&self) -> Vec<Parameters> {
        let exponential = self.defaults().with("sizes", "exponential").on_threads();
        self.defaults().on_threads().into_iter().chain(exponential).collect()
    }

    fn domains(&self) -> Domains {
        &[
            ("slots", Domain::Whole(1, 1 << 30)),
            ("loop", Domain::Whole(1, 1 << 30)),
            ("cross_percent", Domain::Whole(0, 100)),
            ("depth", Domain::Whole(1, 100_000)),
            ("sizes", Domain::Words(&["linear", "exponential"])),
        ]
    }

    fn written_bytes(&self, parameters: &Parameters) -> anyhow::Result<f64> {
        let ops = parameters.ops as f64;
        let crossing = ops * parameters.get::<f64>("cross_percent")? / 100.0;
        let parcels = ops / parameters.get::<f64>("loop")? + parameters.get::<f64>("depth")?;
        // An empty parcel takes about as much as two slots.
        let slots = parameters.get::<f64>("slots")? + crossing + 2.0 * parcels;
        Ok(parameters.threads as f64 * script::written_bytes(ops, slots))
    }

    fn run(&self, parameters: &Parameters) -> anyhow::Result<Outcome> {
        let slots: usize = parameters.get("slots")?;
        let per_loop: usize = parameters.get("loop")?;
        let depth: usize = parameters.get("depth")?;
        let cross_percent: u32 = parameters.get("cross_percent")?;
        let size_bytes = match parameters.text("sizes")? {
            "linear" => linear,
            _ => exponential,
        };
        let (mut senders, receivers): (Vec<_>, Vec<_>) =
            (0..parameters.threads).map(|_| sync_channel(depth)).unzip();
        senders.rotate_left(1);
        let workers: Vec<Worker> = parameters
            .seeds()
            .zip(senders.into_iter().zip(receivers))
            .map(|(mut random, (next, received))| {
                let steps = script(&mut random, parameters.ops, slots, cross_percent, size_bytes);
                let crossing = |steps: &[Step]| {
                    let crossing = steps.iter().filter(|step| step.slot as usize == slots);
                    empty_slots(crossing.count())
                };
                let parcels = steps.chunks(per_loop).map(crossing).collect();
                Worker { steps, table: empty_slots(slots), parcels, next, received }
            })
            .collect();
        let timed = team::run(workers, |worker| worker.work(per_loop))?;
        team::outcome(parameters.ops * parameters.threads as u64, timed)
    }
}

/// One thread. A slot beyond those of its table means its next parcel.
struct Worker {
    steps: Vec<Step>,
    table: Vec<Object>,
    /// One parcel for each loop, made beforehand so that none is allocated on the way.
    parcels: Vec<Vec<Object>>,
    next: SyncSender<Vec<Object>>,
    received: Receiver<Vec<Object>>,
}

impl Worker {
    fn work(self, per_loop: usize) -> Tally {
        let Self { steps, mut table, parcels, next, received } = self;
        let mut tally = Tally::default();
        for (turn, (steps, mut parcel)) in steps.chunks(per_loop).zip(parcels).enumerate() {
            let mut crossing = parcel.iter_mut();
            for (place, step) in steps.iter().enumerate() {
                let stamp = stamp((turn * per_loop + place) as u64, step.size_bytes);
                let new = Object::allocate(step.size_bytes, stamp, &mut tally);
                new.touch_pages();
                match table.get_mut(step.slot as usize) {
                    Some(slot) => std::mem::replace(slot, new).free(&mut tally),
                    None => *crossing.next().expect("as many as the script has") = new,
                }
            }
            hand_over(parcel, &next, &received, &mut tally);
        }
        drain(&mut table, &mut tally);
        // The thread before this one sends until it is done.
        drop(next);
        received.iter().for_each(|mut parcel| drain(&mut parcel, &mut tally));
        tally
    }
}

/// Frees what the thread before has sent, and gives `parcel` to the next thread.
fn hand_over(
    mut parcel: Vec<Object>,
    next: &SyncSender<Vec<Object>>,
    received: &Receiver<Vec<Object>>,
    tally: &mut Tally,
) {
    loop {
        received.try_iter().for_each(|mut parcel| drain(&mut parcel, tally));
        match next.try_send(parcel) {
            Ok(()) => return,
            // A thread that waits frees what it receives, so threads never wait for each other in a
            // circle.
            Err(TrySendError::Full(back)) => parcel = back,
            Err(TrySendError::Disconnected(_)) => unreachable!("a thread receives to the end"),
        }
        std::thread::yield_now();
    }
}

fn script(
    random: &mut fastrand::Rng,
    ops: u64,
    slots: usize,
    cross_percent: u32,
    size_bytes: fn(&mut fastrand::Rng) -> u32,
) -> Vec<Step> {
    (0..ops)
        .map(|_| {
            let crosses = random.u32(0..100) < cross_percent;
            let slot = if crosses { slots } else { random.usize(0..slots) };
            Step { slot: slot as u32, size_bytes: size_bytes(random) }
        })
        .collect()
}

/// A size. Its density falls in a straight line, to zero at the largest.
fn linear(random: &mut fastrand::Rng) -> u32 {
    (LARGEST - (LARGEST - SMALLEST) * random.f64().sqrt()) as u32
}

/// A size. Its density halves with every 1600 bytes.
fn exponential(random: &mut fastrand::Rng) -> u32 {
    (SMALLEST - 1600.0 * (1.0 - random.f64()).log2()).min(LARGEST) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_are_what_they_are_called() {
        let mut random = fastrand::Rng::with_seed(1);
        let below = |random: &mut fastrand::Rng, draw: fn(&mut fastrand::Rng) -> u32, end: u32| {
            let sizes = (0..10_000).map(|_| draw(random));
            let sizes = sizes.inspect(|size| assert!((16..=16_000).contains(size), "{size}"));
            sizes.filter(|&size| size < end).count()
        };
        // Half of the range has three quarters of the area under the line.
        let lower_half = below(&mut random, linear, 8000);
        assert!((7300..7700).contains(&lower_half), "{lower_half}");
        let first_step = below(&mut random, exponential, 1616);
        assert!((4800..5200).contains(&first_step), "{first_step}");
    }

    #[test]
    fn what_crosses_is_freed_whoever_is_ahead() {
        // Every block crosses, one at a time, and a mailbox has room for one.
        let all = Rptest.defaults().with("cross_percent", 100).with("loop", 1).with("depth", 1);
        let none = Rptest.defaults().with("cross_percent", 0);
        for parameters in [all, none, Rptest.defaults()] {
            for threads in [1, 2, 5] {
                let parameters = Parameters { threads, ops: 2000, ..parameters.clone() };
                let outcome = Rptest.run(&parameters).unwrap();
                assert_eq!(outcome.ops, 2000 * threads as u64);
                let again = Rptest.run(&parameters.with("depth", 7)).unwrap();
                assert_eq!(outcome.checksum, again.checksum, "{threads}");
            }
        }
    }
}
