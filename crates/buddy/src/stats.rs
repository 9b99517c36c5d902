//! Fragmentation in figures.

use crate::bits::WORD;
use crate::frame::blocks_of;
use crate::{MAX_ORDER, Order};

/// The order of a huge frame: 512 frames, 2 MiB of 4 KiB frames.
pub const HUGE_ORDER: Order = match Order::new(9) {
    Some(order) => order,
    None => Order::ZERO,
};

/// How the free frames are laid out.
///
/// A *free block* here is a maximal aligned one: a run of free frames counts as the fewest blocks
/// that cover it, whatever blocks the allocator keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Managed frames, holes included.
    pub frames: usize,
    /// Free frames.
    pub free_frames: usize,
    /// Free blocks of each order.
    pub free_blocks: [usize; MAX_ORDER as usize + 1],
    /// The longest run of consecutive free frames, aligned or not.
    pub longest_run_frames: usize,
}

impl Stats {
    /// Counts by asking about every frame.
    pub(crate) fn count(frames: usize, is_free: impl Fn(usize) -> bool) -> Self {
        let mut stats = Self { frames, ..Self::default() };
        let mut start = 0;
        while start < frames {
            if is_free(start) {
                let length = (start..frames).take_while(|&frame| is_free(frame)).count();
                stats.add_run(start, length);
                start += length;
            } else {
                start += 1;
            }
        }
        stats
    }

    /// Counts by words of 64 frames; the bit of a free frame is set.
    pub(crate) fn of_words(words: impl Iterator<Item = u64>) -> Self {
        let mut stats = Self::default();
        let (mut start, mut length) = (0, 0);
        for (word, bits) in words.enumerate() {
            let mut bit = 0;
            while bit < WORD {
                let rest = bits >> bit;
                let free = rest.trailing_ones() as usize;
                if free > 0 {
                    start = if length == 0 { word * WORD + bit } else { start };
                    length += free;
                    bit += free;
                } else {
                    stats.add_run(start, length);
                    length = 0;
                    bit += rest.trailing_zeros() as usize;
                }
            }
        }
        stats.add_run(start, length);
        stats
    }

    /// Adds a maximal run of `length` free frames.
    pub(crate) fn add_run(&mut self, start: usize, length: usize) {
        self.free_frames += length;
        self.longest_run_frames = self.longest_run_frames.max(length);
        for (_, order) in blocks_of(start, length) {
            if let Some(count) = self.free_blocks.get_mut(usize::from(order.get())) {
                *count += 1;
            }
        }
    }

    /// Free frames that lie in free blocks of at least `order`.
    #[must_use]
    pub fn usable_frames(&self, order: Order) -> usize {
        Order::all()
            .zip(self.free_blocks)
            .filter(|&(of, _)| of >= order)
            .map(|(of, count)| count * of.frames())
            .sum()
    }

    /// The share of the free memory that cannot serve `order`: 0 if all of it can, 1 if none can
    /// (and 0 if nothing is free). (Gorman and Whitcroft, "Measuring the Impact of the Linux Memory
    /// Manager", 2005.)
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
    pub fn unusable_free_index(&self, order: Order) -> f64 {
        if self.free_frames == 0 {
            return 0.0;
        }
        1.0 - self.usable_frames(order) as f64 / self.free_frames as f64
    }

    /// The share of the free memory that lies in whole huge frames; 1 if nothing is free.
    #[must_use]
    pub fn huge_ratio(&self) -> f64 {
        1.0 - self.unusable_free_index(HUGE_ORDER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(n: u8) -> Order {
        Order::new(n).expect("an order of at most 18")
    }

    #[test]
    fn runs_are_counted_as_the_fewest_blocks() {
        let mut stats = Stats::default();
        // Blocks of order 1, 2 and 1; two huge frames; one frame.
        for (start, length) in [(2, 8), (1024, 1024), (4095, 1)] {
            stats.add_run(start, length);
        }
        assert_eq!((stats.free_frames, stats.longest_run_frames), (1033, 1024));
        let blocks = [0, 1, 2, 3, 10, 18].map(|n: usize| stats.free_blocks[n]);
        assert_eq!(blocks, [1, 2, 1, 0, 1, 0]);
        let usable = [0, 1, 2, 3, 10, 11].map(|n| stats.usable_frames(order(n)));
        assert_eq!(usable, [1033, 1032, 1028, 1024, 1024, 0]);
    }

    #[test]
    fn runs_are_found_within_words_and_across_them() {
        let words = [!0 << 60, !0, 0b1101, 0, 1 << 63, 1, !0];
        let free = |frame: usize| words[frame / WORD] >> (frame % WORD) & 1 != 0;
        let frames = words.len() * WORD;
        let counted = Stats { frames, ..Stats::of_words(words.into_iter()) };
        assert_eq!(counted, Stats::count(frames, free));
        assert_eq!((counted.free_frames, counted.longest_run_frames), (137, 69));
        assert_eq!(Stats::of_words([].into_iter()), Stats::default());
    }

    #[test]
    fn the_ratios_say_how_much_of_the_free_memory_serves() {
        let mut stats = Stats::default();
        assert_eq!((stats.unusable_free_index(order(18)), stats.huge_ratio()), (0.0, 1.0));
        stats.add_run(0, 512);
        stats.add_run(1024, 256);
        stats.add_run(2048, 256);
        assert_eq!((stats.unusable_free_index(order(0)), stats.huge_ratio()), (0.0, 0.5));
        assert_eq!(stats.unusable_free_index(order(9)), 0.5);
        assert_eq!(stats.unusable_free_index(order(10)), 1.0);
    }
}
