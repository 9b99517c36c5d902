//! Operations written down beforehand, and their execution on an array of slots.
//!
//! A script is generated from the seed before the window opens. Executing it is one load per
//! operation, the same for every subject.

use super::heap::{Object, Tally, stamp};
use super::{Outcome, Parameters, team};

/// One operation: frees the slot's object, then fills the slot with `size_bytes`, or leaves it
/// empty if that is 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) slot: u32,
    pub(super) size_bytes: u32,
}

/// A script that is being written: its steps, and what they have left in the slots.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) steps: Vec<Step>,
    /// The size of each slot's object, 0 if the slot is empty.
    sizes: Vec<u32>,
    empty: Vec<u32>,
    /// The sum of the sizes.
    pub(super) live_bytes: u64,
}

impl Draft {
    /// Fills the slot that was emptied last, or a new one. Returns it.
    pub(super) fn allocate(&mut self, size_bytes: u32) -> u32 {
        let slot = self.empty.pop().unwrap_or_else(|| {
            self.sizes.push(0);
            self.sizes.len() as u32 - 1
        });
        self.step(slot, size_bytes);
        slot
    }

    /// Empties a slot.
    pub(super) fn free(&mut self, slot: u32) {
        self.step(slot, 0);
        self.empty.push(slot);
    }

    /// Writes any other step for a slot that is not empty, and stays so.
    pub(super) fn step(&mut self, slot: u32, size_bytes: u32) {
        let was_bytes = std::mem::replace(&mut self.sizes[slot as usize], size_bytes);
        self.live_bytes = self.live_bytes - u64::from(was_bytes) + u64::from(size_bytes);
        self.steps.push(Step { slot, size_bytes });
    }

    /// The size of the object in a slot.
    pub(super) fn size_bytes(&self, slot: u32) -> u32 {
        self.sizes[slot as usize]
    }

    /// How many slots the steps need.
    pub(super) fn slots(&self) -> usize {
        self.sizes.len()
    }
}

/// `count` replacements of a random slot by an object of a random size.
pub(super) fn replacements(
    random: &mut fastrand::Rng,
    slots: usize,
    count: u64,
    mut size_bytes: impl FnMut(&mut fastrand::Rng) -> u32,
) -> Vec<Step> {
    (0..count)
        .map(|_| Step { slot: random.u32(0..slots as u32), size_bytes: size_bytes(random) })
        .collect()
}

/// A whole workload: each thread replaces random objects among its own `slots`, `ops` times.
///
/// # Errors
/// When a thread's heap loses what was written into it.
pub(super) fn replace_in_each_thread(
    parameters: &Parameters,
    slots: usize,
    size_bytes: impl Fn(&mut fastrand::Rng) -> u32,
) -> anyhow::Result<Outcome> {
    let script =
        |random: &mut fastrand::Rng| replacements(random, slots, parameters.ops, &size_bytes);
    run_in_each_thread(parameters, Tally::default(), slots, script, |_| ())
}

/// A whole workload. Each thread executes a script of its own, of `ops` operations, on its own
/// `slots`. It counts from `tally` on, uses each new object by `write` beyond its stamp, and frees
/// what is left.
///
/// # Errors
/// When a thread's heap loses what was written into it.
pub(super) fn run_in_each_thread(
    parameters: &Parameters,
    tally: Tally,
    slots: usize,
    script: impl Fn(&mut fastrand::Rng) -> Vec<Step>,
    write: impl Fn(&Object) + Sync,
) -> anyhow::Result<Outcome> {
    let inputs: Vec<_> =
        parameters.seeds().map(|mut random| (script(&mut random), empty_slots(slots))).collect();
    let live_bytes: u64 = inputs.iter().map(|(steps, _)| live_peak_bytes(steps, slots)).sum();
    let timed = team::run(inputs, |(steps, mut slots)| {
        let mut tally = tally;
        execute_and(&steps, &mut slots, &mut tally, &write);
        drain(&mut slots, &mut tally);
        tally
    })?;
    let ops = parameters.ops * parameters.threads as u64;
    Ok(Outcome { live_peak_bytes: live_bytes, ..team::outcome(ops, timed)? })
}

/// Executes `steps` on `slots`.
#[inline]
pub(super) fn execute(steps: &[Step], slots: &mut [Object], tally: &mut Tally) {
    execute_and(steps, slots, tally, |_| ());
}

/// The same, but `write` uses each new object beyond its stamp.
#[inline]
fn execute_and(steps: &[Step], slots: &mut [Object], tally: &mut Tally, write: impl Fn(&Object)) {
    for (place, step) in steps.iter().enumerate() {
        let slot = &mut slots[step.slot as usize];
        if slot.is_some() {
            std::mem::replace(slot, Object::NONE).free(tally);
        }
        if step.size_bytes > 0 {
            *slot = Object::allocate(step.size_bytes, stamp(place as u64, step.size_bytes), tally);
            write(slot);
        }
    }
}

/// As [`execute`], from the `place`th step of a script on. Returns how many more bytes are live.
#[inline]
pub(super) fn execute_counted(
    steps: &[Step],
    place: usize,
    slots: &mut [Object],
    tally: &mut Tally,
) -> i64 {
    let mut gained = 0;
    for (at, step) in steps.iter().enumerate() {
        let slot = &mut slots[step.slot as usize];
        let old = std::mem::replace(slot, Object::NONE);
        gained += i64::from(step.size_bytes) - i64::from(old.used_bytes());
        if old.is_some() {
            old.free(tally);
        }
        if step.size_bytes > 0 {
            let stamp = stamp((place + at) as u64, step.size_bytes);
            *slot = Object::allocate(step.size_bytes, stamp, tally);
        }
    }
    gained
}

/// Frees everything in `slots`.
pub(super) fn drain(slots: &mut [Object], tally: &mut Tally) {
    for slot in slots {
        std::mem::replace(slot, Object::NONE).free(tally);
    }
}

/// The largest sum of sizes that is live while `steps` are executed on empty slots, bytes.
pub(super) fn live_peak_bytes(steps: &[Step], slots: usize) -> u64 {
    let mut held = vec![0_u32; slots];
    let (mut live, mut peak) = (0_u64, 0_u64);
    for step in steps {
        let was = std::mem::replace(&mut held[step.slot as usize], step.size_bytes);
        live = live - u64::from(was) + u64::from(step.size_bytes);
        peak = peak.max(live);
    }
    peak
}

/// The memory that a script of `steps` steps takes, with its slots and while it is made, bytes.
pub(super) fn written_bytes(steps: f64, slots: f64) -> f64 {
    steps * size_of::<Step>() as f64 + slots * (size_of::<Object>() + size_of::<u32>()) as f64
}

/// The same for a workload in which each thread has a script of `ops` steps and its own `slots`.
///
/// # Errors
/// When `slots` is not a number.
pub(super) fn written_bytes_in_each_thread(parameters: &Parameters) -> anyhow::Result<f64> {
    let slots: f64 = parameters.get("slots")?;
    Ok(parameters.threads as f64 * written_bytes(parameters.ops as f64, slots))
}

/// `count` empty slots. Every page of them is touched, since otherwise they would count as the
/// subject's.
pub(super) fn empty_slots(count: usize) -> Vec<Object> {
    // An empty slot is all zeros. The compiler must not know that, or it would ask for zeroed
    // memory and write none of it.
    vec![std::hint::black_box(Object::NONE); count]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_functions_of_their_seed() {
        let script = |seed| {
            let mut random = fastrand::Rng::with_seed(seed);
            let steps = replacements(&mut random, 10, 1000, |random| random.u32(1..=100));
            steps.iter().map(|step| u64::from(step.slot * 1000 + step.size_bytes)).sum::<u64>()
        };
        assert_eq!(script(7), script(7));
        assert_ne!(script(7), script(8));
    }

    #[test]
    fn live_peak_counts_replaced_objects_once() {
        let steps = [(0, 100), (1, 50), (0, 10), (1, 0), (0, 120)]
            .map(|(slot, size_bytes)| Step { slot, size_bytes });
        assert_eq!(live_peak_bytes(&steps, 2), 150);
    }

    #[test]
    fn execution_keeps_contents_and_sums_stamps() {
        let mut random = fastrand::Rng::with_seed(1);
        let steps = replacements(&mut random, 50, 20_000, |random| random.u32(1..=300));
        let mut sums = [0, 0];
        for sum in &mut sums {
            let mut tally = Tally::default();
            let mut slots = empty_slots(50);
            execute(&steps, &mut slots, &mut tally);
            drain(&mut slots, &mut tally);
            assert_eq!((tally.failed, tally.damaged), (0, 0));
            *sum = tally.checksum;
        }
        assert_eq!(sums[0], sums[1]);
    }
}
