//! Writes the script of one thread for the phases of a program.

use std::ops::Range;

use super::program::{FULL_PERCENT, Kind, Pattern, Phase};
use crate::bench::script::{Draft, Step};

/// A phase may take as long as writing, this many times over, the most that may be live.
const WORK_TIMES: u64 = 5;

/// The least and the greatest number of objects in a burst.
const BURST: (usize, usize) = (50, 250);

/// A vector begins with one part in this many of the size it grows to.
const VECTOR_BEGINS: u32 = 16;

/// One vector in this many is kept.
const VECTORS_KEPT: usize = 4;

/// The operations of one thread. A step on an occupied slot resizes its object if the phase
/// [resizes](Kind::resizes).
pub(super) struct Script {
    pub(super) steps: Vec<Step>,
    pub(super) parts: Vec<Part>,
    /// How many slots the steps need.
    pub(super) slots: usize,
}

/// The part of a script that belongs to one phase.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Its steps.
    pub(super) steps: Range<usize>,
    /// Live bytes at its end.
    pub(super) live_bytes: u64,
    /// Most live bytes during it.
    pub(super) peak_bytes: u64,
}

impl Script {
    /// Writes the script of a thread that may hold `top_bytes`, plus one object, and does at most
    /// `ops` allocating operations in a phase.
    pub(super) fn write(
        program: &[Phase],
        random: fastrand::Rng,
        ops: u64,
        top_bytes: u64,
    ) -> Self {
        let mut author = Author { random, top_bytes, ..Author::default() };
        let mut parts = Vec::with_capacity(program.len());
        for phase in program {
            let begin = author.draft.steps.len();
            author.peak_bytes = author.draft.live_bytes;
            author.ops_left = ops;
            author.work_left_bytes = WORK_TIMES * top_bytes;
            author.write_phase(phase);
            parts.push(Part {
                steps: begin..author.draft.steps.len(),
                live_bytes: author.draft.live_bytes,
                peak_bytes: author.peak_bytes,
            });
        }
        let slots = author.draft.slots();
        Self { steps: author.draft.steps, parts, slots }
    }
}

#[derive(Default)]
struct Author {
    random: fastrand::Rng,
    top_bytes: u64,
    draft: Draft,
    /// The step by which each slot was filled.
    births: Vec<usize>,
    /// The slots that hold an object.
    full: Vec<u32>,
    peak_bytes: u64,
    ops_left: u64,
    work_left_bytes: u64,
}

impl Author {
    fn write_phase(&mut self, phase: &Phase) {
        match phase.kind {
            Kind::Grow { percent } => self.grow(phase, self.top_bytes * percent / 100),
            Kind::Free { percent, pattern } => self.free(percent, pattern),
            Kind::Replace | Kind::Realloc => self.change(phase),
            Kind::Vectors => self.grow_vectors(phase),
            Kind::Bursts => self.burst(phase),
        }
    }

    fn grow(&mut self, phase: &Phase, target_bytes: u64) {
        // Growth is bounded by its target and not by work, so that there are many objects even if
        // they are small.
        self.work_left_bytes = u64::MAX;
        while let Some(size_bytes) = self.next_size(phase) {
            let live_bytes = self.draft.live_bytes;
            if live_bytes > 0 && live_bytes + u64::from(size_bytes) > target_bytes {
                break;
            }
            self.allocate(size_bytes);
        }
    }

    fn free(&mut self, percent: usize, pattern: Pattern) {
        let mut oldest_first = std::mem::take(&mut self.full);
        oldest_first.sort_unstable_by_key(|&slot| self.births[slot as usize]);
        for nth in pattern.choose(oldest_first.len(), percent, &mut self.random) {
            self.draft.free(oldest_first[nth]);
        }
        oldest_first.retain(|&slot| self.draft.size_bytes(slot) > 0);
        self.full = oldest_first;
    }

    /// Replaces or resizes random objects. If the new ones are larger, random others are freed.
    fn change(&mut self, phase: &Phase) {
        while !self.full.is_empty() {
            let Some(size_bytes) = self.next_size(phase) else { break };
            let slot = self.full[self.random.usize(0..self.full.len())];
            if !phase.kind.resizes() {
                self.births[slot as usize] = self.draft.steps.len();
            }
            self.change_size(slot, size_bytes);
            while self.draft.live_bytes > self.full_bytes() {
                let at = self.random.usize(0..self.full.len());
                self.draft.free(self.full.swap_remove(at));
            }
        }
    }

    fn grow_vectors(&mut self, phase: &Phase) {
        for nth in 0.. {
            let end_bytes = phase.sizes.size_bytes(&mut self.random);
            let mut size_bytes = (end_bytes / VECTOR_BEGINS).max(16).min(end_bytes);
            if !self.can_pay(phase, size_bytes) {
                break;
            }
            let slot = self.allocate(size_bytes);
            while size_bytes < end_bytes && self.can_pay(phase, size_bytes) {
                size_bytes = (size_bytes + size_bytes / 2).min(end_bytes);
                self.change_size(slot, size_bytes);
            }
            if nth % VECTORS_KEPT != 0 || self.draft.live_bytes > self.full_bytes() {
                self.full.pop();
                self.draft.free(slot);
            }
        }
    }

    fn burst(&mut self, phase: &Phase) {
        let kept = self.full.len();
        while self.ops_left > 0 && self.work_left_bytes > 0 {
            for _ in 0..self.random.usize(BURST.0..=BURST.1) {
                let Some(size_bytes) = self.next_size(phase) else { break };
                self.allocate(size_bytes);
                if self.draft.live_bytes > self.top_bytes {
                    break;
                }
            }
            for slot in self.full.split_off(kept) {
                self.draft.free(slot);
            }
        }
    }

    /// The size of the phase's next object; `None` if the phase has done its work.
    fn next_size(&mut self, phase: &Phase) -> Option<u32> {
        let size_bytes = phase.sizes.size_bytes(&mut self.random);
        self.can_pay(phase, size_bytes).then_some(size_bytes)
    }

    /// Deducts the work for an object of that size from the work that the phase may do. Returns
    /// whether any work was left.
    fn can_pay(&mut self, phase: &Phase, size_bytes: u32) -> bool {
        if self.ops_left == 0 || self.work_left_bytes == 0 {
            return false;
        }
        self.ops_left -= 1;
        let cost_bytes = phase.written.cost_bytes(size_bytes);
        self.work_left_bytes = self.work_left_bytes.saturating_sub(cost_bytes);
        true
    }

    /// Fills an empty slot, which becomes the last of `full`.
    fn allocate(&mut self, size_bytes: u32) -> u32 {
        let birth = self.draft.steps.len();
        let slot = self.draft.allocate(size_bytes);
        self.births.resize(self.draft.slots(), 0);
        self.births[slot as usize] = birth;
        self.full.push(slot);
        self.peak_bytes = self.peak_bytes.max(self.draft.live_bytes);
        slot
    }

    /// Replaces or resizes the object in a slot.
    fn change_size(&mut self, slot: u32, size_bytes: u32) {
        self.draft.step(slot, size_bytes);
        self.peak_bytes = self.peak_bytes.max(self.draft.live_bytes);
    }

    /// The most bytes that may stay live.
    fn full_bytes(&self) -> u64 {
        self.top_bytes * FULL_PERCENT / 100
    }
}

#[cfg(test)]
mod tests {
    use super::super::program::{LARGEST_BYTES, draw};
    use super::*;

    const TOP_BYTES: u64 = 8 << 20;

    fn script(seed: u64, ops: u64) -> (Vec<Phase>, Script) {
        let program = draw(seed, 8);
        let random = fastrand::Rng::with_seed(seed);
        let script = Script::write(&program, random, ops, TOP_BYTES);
        (program, script)
    }

    /// The effect of a script's steps on its slots, phase by phase: the objects before and after.
    fn played(script: &Script) -> Vec<[Vec<u32>; 2]> {
        let mut held = vec![0; script.slots];
        let mut live = 0;
        let played = script.parts.iter().map(|part| {
            let before = held.clone();
            let mut peak = live;
            for step in &script.steps[part.steps.clone()] {
                let was = std::mem::replace(&mut held[step.slot as usize], step.size_bytes);
                assert!(was > 0 || step.size_bytes > 0, "an empty slot is emptied");
                live = live - u64::from(was) + u64::from(step.size_bytes);
                peak = peak.max(live);
            }
            assert_eq!((part.live_bytes, part.peak_bytes), (live, peak));
            [before, held.clone()]
        });
        played.collect()
    }

    #[test]
    fn live_memory_stays_within_its_bounds_and_work_within_its_own() {
        for seed in 1..=200 {
            let (program, script) = script(seed, 20_000);
            played(&script);
            for (phase, part) in program.iter().zip(&script.parts) {
                let most = TOP_BYTES + u64::from(LARGEST_BYTES);
                assert!(part.peak_bytes <= most, "seed {seed}, {phase}: {part:?}");
                let stays = TOP_BYTES * FULL_PERCENT / 100;
                assert!(part.live_bytes <= stays, "seed {seed}, {phase}: {part:?}");
            }
            // Every allocated object is freed once.
            assert!(script.steps.len() <= 2 * 8 * 20_000, "seed {seed}");
        }
    }

    #[test]
    fn phases_do_what_they_are_called() {
        let objects = |slots: &Vec<u32>| slots.iter().filter(|&&bytes| bytes > 0).count();
        for seed in 1..=100 {
            let (program, script) = script(seed, 100_000);
            for (phase, [before, after]) in program.iter().zip(played(&script)) {
                let (had, has) = (objects(&before), objects(&after));
                let live: u64 = after.iter().copied().map(u64::from).sum();
                let told = format!("seed {seed}, {phase}: {had} objects, then {has}");
                match phase.kind {
                    Kind::Grow { percent } => {
                        let next = live + u64::from(phase.sizes.high);
                        let full = next > TOP_BYTES * percent / 100;
                        assert!(full || has >= 100_000, "{told}");
                    }
                    Kind::Free { percent, .. } => {
                        assert_eq!(had - has, had * percent / 100, "{told}");
                    }
                    Kind::Replace | Kind::Realloc => assert!(has <= had, "{told}"),
                    Kind::Vectors => assert!(has >= had, "{told}"),
                    Kind::Bursts => assert!(before == after, "{told}"),
                }
            }
        }
    }

    #[test]
    fn the_oldest_are_those_that_were_there_first() {
        let phase = |kind| Phase { kind, ..draw(1, 1)[0] };
        let program = [
            Kind::Grow { percent: 50 },
            Kind::Replace,
            Kind::Free { percent: 50, pattern: Pattern::Oldest },
        ]
        .map(phase);
        let script = Script::write(&program, fastrand::Rng::with_seed(1), 3000, TOP_BYTES);
        let mut births = vec![0; script.slots];
        let mut freed = Vec::new();
        for (place, step) in script.steps.iter().enumerate() {
            if step.size_bytes > 0 {
                births[step.slot as usize] = place;
            } else if script.parts[2].steps.contains(&place) {
                freed.push(births[step.slot as usize]);
            }
        }
        assert!(freed.len() > 10 && freed.is_sorted(), "{freed:?}");
    }
}
