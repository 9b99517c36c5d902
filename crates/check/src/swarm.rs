//! The behaviour of a random program for a while.
//!
//! Each stretch of a run draws its own weights, among them zeros: a program that does a little of
//! everything reaches few of the states reached by one that only grows, or only resizes, or uses a
//! single size. (Groce et al., "Swarm testing", 2012.)

use crate::operation::Operation;
use crate::random::Random;

/// The limits of a run.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Live objects of a thread.
    pub objects: usize,
    /// Live bytes of a thread. Above this, objects are freed.
    pub live_bytes: usize,
    /// The largest request in bytes.
    pub max_bytes: usize,
    /// The largest alignment in bytes.
    pub max_align: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { objects: 2000, live_bytes: 32 << 20, max_bytes: 48 << 20, max_align: 64 << 20 }
    }
}

const KINDS: usize = 5;

/// The weights of one stretch.
#[derive(Debug, Clone, Copy)]
pub struct Swarm {
    limits: Limits,
    /// Of 64 operations: malloc, calloc, aligned, realloc, exchange. The rest are frees.
    weights: [usize; KINDS],
    low_bytes: usize,
    high_bytes: usize,
    /// One request in this many is of any size at all.
    any_size_one_in: usize,
    newest_first: bool,
    trim_one_in: usize,
}

impl Swarm {
    /// Draws a stretch's weights.
    pub fn draw(random: &mut Random, limits: Limits) -> Self {
        let alloc = [10, 26, 32, 36, 52][random.below(5)];
        let mut weights = [0; KINDS];
        weights[random.below(3)] = alloc / 2;
        weights[random.below(3)] += alloc - alloc / 2;
        weights[3] = [0, 2, 8, 0][random.below(4)];
        weights[4] = [0, 1, 4][random.below(3)];
        let (low, high) = match random.below(16) {
            0 => (1 << 10, 32 << 10),
            1 => (8 << 10, 256 << 10),
            2 => {
                // One size class, or the border between two.
                let bytes = 1 + random.log_between(8, 4096);
                (bytes, bytes)
            }
            3 => (1, 16),
            4..=6 => (1, 128),
            7 => (1, 4096),
            _ => (1, 1024),
        };
        Self {
            limits,
            weights,
            low_bytes: low.min(limits.max_bytes),
            high_bytes: high.min(limits.max_bytes),
            any_size_one_in: [300, 3000, 30_000, usize::MAX][random.below(4)],
            newest_first: random.one_in(4),
            trim_one_in: [usize::MAX, usize::MAX, 100_000, 10_000][random.below(4)],
        }
    }

    fn bytes(&self, random: &mut Random) -> usize {
        if random.one_in(self.any_size_one_in) {
            return match random.below(32) {
                0 => 0,
                1 => random.log_between(1, self.limits.max_bytes),
                _ => random.log_between(1, self.limits.max_bytes.min(1 << 20)),
            };
        }
        self.low_bytes + random.below(self.high_bytes - self.low_bytes + 1)
    }

    fn align(&self, random: &mut Random) -> usize {
        let most = self.limits.max_align.ilog2() as usize;
        // Mostly within a page; the largest alignments cost a mapping each.
        let shift = match random.below(4096) {
            0 => random.below(most + 1),
            1..=128 => random.below(most.min(20) + 1),
            _ => random.below(most.min(12) + 1),
        };
        1 << shift
    }

    /// The next operation of a thread with `live_objects` objects of `live_bytes` in total.
    pub fn operation(
        &self,
        random: &mut Random,
        live_objects: usize,
        live_bytes: usize,
    ) -> Operation {
        if random.one_in(self.trim_one_in) {
            return Operation::Trim;
        }
        let index = match live_objects.checked_sub(1) {
            Some(last) if self.newest_first => last,
            _ => random.below(live_objects),
        };
        let mut draw = random.below(64);
        let kind = self.weights.iter().position(|&weight| {
            let hit = draw < weight;
            draw = draw.wrapping_sub(weight);
            hit
        });
        let full = live_objects >= self.limits.objects || live_bytes >= self.limits.live_bytes;
        match kind {
            _ if live_objects == 0 => Operation::Malloc { bytes: self.bytes(random) },
            Some(0..=2) if full => Operation::Free { index },
            Some(0) => Operation::Malloc { bytes: self.bytes(random) },
            Some(1) => Operation::Calloc { bytes: self.bytes(random) },
            Some(2) => Operation::Aligned { bytes: self.bytes(random), align: self.align(random) },
            Some(3) if !full => Operation::Realloc { index, bytes: self.bytes(random).max(1) },
            Some(4) => Operation::Exchange { index },
            _ => Operation::Free { index },
        }
    }
}
