//! Walking over the free runs, upward and downward, and validation.

use super::levels::ORDERS;
use super::{Bitset, LEVELS, TOP, split};
use crate::bits::{WORD, WORD_SHIFT, blocks};
use crate::{FrameId, Invalid, Order, Stats};

impl Bitset<'_> {
    /// The first run of free frames that ends after `from`: its first frame (or `from`, if that
    /// lies inside the run) and its length. Runs are maximal: the frame after one is not free.
    #[must_use]
    pub fn next_free_run(&self, from: FrameId) -> Option<(FrameId, usize)> {
        let start = self.next_free(from.0)?;
        Some((FrameId(start), self.run_end(start) - start))
    }

    /// As [`next_free_run`](Self::next_free_run), for the runs that have a block of `order` from
    /// `from` on. Shorter runs between them cost nothing: the summaries pass over them, and lose
    /// their stale entries on the way.
    #[must_use]
    pub fn next_free_run_with(&mut self, from: FrameId, order: Order) -> Option<(FrameId, usize)> {
        let end = self.run_end(from.0);
        let last = (end & !(order.frames() - 1)).checked_sub(order.frames());
        if last.is_some_and(|last| last >= from.0) {
            return Some((from, end - from.0));
        }
        let block = self.find(end, order)?.frame();
        let start = self.run_start(block);
        Some((FrameId(start), self.run_end(block) - start))
    }

    /// The last run of free frames that starts before `before`, cut off there: its first frame and
    /// its length. To go down from the top, start with [`frames`](crate::FrameAllocator::frames)
    /// and continue with the first frame of each run.
    #[must_use]
    pub fn previous_free_run(&self, before: FrameId) -> Option<(FrameId, usize)> {
        let last = self.last_free(before.0.min(self.frames).checked_sub(1)?)?;
        let start = self.run_start(last);
        Some((FrameId(start), last + 1 - start))
    }

    /// The run of free frames that `frame` lies in: its first frame and its length.
    #[must_use]
    pub fn free_run_around(&self, frame: FrameId) -> Option<(FrameId, usize)> {
        let end = self.run_end(frame.0);
        let start = (end > frame.0).then(|| self.run_start(frame.0))?;
        Some((FrameId(start), end - start))
    }

    /// The order of the largest free block.
    #[must_use]
    pub fn largest_free_order(&self) -> Option<Order> {
        let is_there = |&order: &Order| {
            let (level, inner) = split(order);
            self.levels.next_block(level, 0, inner as usize).is_some()
        };
        Order::all().rev().find(is_there)
    }

    /// The first free frame from `from` on.
    pub(super) fn next_free(&self, from: usize) -> Option<usize> {
        let mut least = None;
        for level in 0..LEVELS {
            let shift = WORD_SHIFT as usize * level;
            let at = from >> shift;
            let Some(bit) = self.levels.next_bit(level, at) else { continue };
            let frame = (bit << shift).max(from);
            least = Some(least.map_or(frame, |other: usize| other.min(frame)));
            // By invariant 1, the blocks of higher levels begin after a word that is not 0.
            if bit / WORD == at / WORD {
                break;
            }
        }
        least
    }

    /// The last free frame up to `to`.
    fn last_free(&self, to: usize) -> Option<usize> {
        let shift = |level: usize| WORD_SHIFT as usize * level;
        (0..LEVELS)
            .filter_map(|level| {
                let bit = self.levels.previous_bit(level, to >> shift(level))?;
                Some(((bit + 1) << shift(level)) - 1)
            })
            .max()
            .map(|frame| frame.min(to))
    }

    /// The level on which `frame` is free; by invariant 1 there is at most one.
    fn free_level(&self, frame: usize) -> Option<usize> {
        for level in 0..LEVELS {
            let bit = frame >> (WORD_SHIFT as usize * level);
            let word = self.levels.word(level, bit / WORD);
            if word != 0 {
                // No block above encloses a word that is not 0.
                return (word >> (bit % WORD) & 1 != 0).then_some(level);
            }
        }
        None
    }

    /// The end of the run of free frames that `frame` lies in, or `frame` if it is not free.
    #[inline(never)]
    pub(super) fn run_end(&self, frame: usize) -> usize {
        let mut end = frame;
        while end < self.frames
            && let Some(level) = self.free_level(end)
        {
            let shift = WORD_SHIFT as usize * level;
            let bit = end >> shift;
            let ones = (self.levels.word(level, bit / WORD) >> (bit % WORD)).trailing_ones();
            end = (bit + ones as usize) << shift;
        }
        end
    }

    /// The first frame of the run of free frames that `frame`, which is free, lies in.
    pub(super) fn run_start(&self, frame: usize) -> usize {
        let mut start = frame + 1;
        while let Some(before) = start.checked_sub(1)
            && let Some(level) = self.free_level(before)
        {
            let shift = WORD_SHIFT as usize * level;
            let bit = before >> shift;
            let ones =
                (self.levels.word(level, bit / WORD) << (WORD - 1 - bit % WORD)).leading_ones();
            start = (bit + 1 - ones as usize) << shift;
        }
        start
    }

    pub(super) fn count_runs(&self) -> Stats {
        let mut stats = Stats { frames: self.frames, ..Stats::default() };
        let mut from = 0;
        while let Some((FrameId(start), length)) = self.next_free_run(FrameId(from)) {
            stats.add_run(start, length);
            from = start + length;
        }
        stats
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        let mut free = 0;
        for level in 0..LEVELS {
            let shift = WORD_SHIFT as usize * level;
            for word in 0..self.levels.count(level) {
                free += self.check_word(level, word)? << shift;
            }
            if !(0..ORDERS).all(|order| self.levels.summary_agrees(level, order)) {
                return Err(Invalid("a tier of a summary disagrees with the tier below (7)"));
            }
        }
        if free != self.free_frames {
            return Err(Invalid("the count of free frames is wrong (9)"));
        }
        if self.next_free(0).is_some_and(|first| first / WORD < self.floor) {
            return Err(Invalid("a free frame lies below the floor (8)"));
        }
        Ok(())
    }

    /// Checks one word and counts its set bits.
    fn check_word(&self, level: usize, word: usize) -> Result<usize, Invalid> {
        let shift = WORD_SHIFT as usize * level;
        let value = self.levels.word(level, word);
        if value == !0 && level < TOP {
            return Err(Invalid("a full word was not merged into the level above (2)"));
        }
        if let Some(last) = value.checked_ilog2()
            && ((word * WORD + last as usize + 1) << shift) > self.frames
        {
            return Err(Invalid("a frame past the end is free (3)"));
        }
        if value != 0 && (level + 1..LEVELS).any(|above| self.is_bit_over(above, level, word)) {
            return Err(Invalid("a frame is free on two levels (1)"));
        }
        if self.levels.is_listed(level, word, 0) != (value != 0) {
            return Err(Invalid("the summary of order 0 disagrees with the words (4)"));
        }
        for order in 1..ORDERS {
            let listed = self.levels.is_listed(level, word, order);
            if !listed && blocks(value, order as u32) != 0 {
                return Err(Invalid("a word with a block is missing from a summary (5)"));
            }
            if listed && !self.levels.is_listed(level, word, order - 1) {
                return Err(Invalid("the summaries are not nested (6)"));
            }
        }
        Ok(value.count_ones() as usize)
    }

    /// Whether the block of level `above` that encloses `word` of `level` is free.
    fn is_bit_over(&self, above: usize, level: usize, word: usize) -> bool {
        let bit = word >> (WORD_SHIFT as usize * (above - level - 1));
        self.levels.word(above, bit / WORD) >> (bit % WORD) & 1 != 0
    }
}
