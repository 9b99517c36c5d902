//! Ranges of any length, split over the levels as a number is over its digits.

use super::{Bitset, LEVELS, TOP};
use crate::bits::{WORD, WORD_SHIFT, span};
use crate::frame::range_end;
use crate::{Error, FrameId, MAX_ORDER, Order, RangeAllocator};

/// How many runs that are too short are passed over to find the lowest place. Without a bound, a
/// thousand requests among a hundred thousand holes would look at each hole a thousand times.
const PASSED: usize = 64;

impl Bitset<'_> {
    /// Whether a frame of `start .. end` is free.
    fn has_free(&self, start: usize, end: usize) -> bool {
        // If all frames are taken, no word is touched to see that.
        self.free_frames > 0
            && (0..LEVELS).any(|level| {
                let shift = WORD_SHIFT as usize * level;
                let last = (end - 1) >> shift;
                self.levels.next_bit(level, start >> shift).is_some_and(|bit| bit <= last)
            })
    }

    /// Calls `each(self, level, word, bits)` for the words that together make up `start .. end`. On
    /// each level these are the bits before the first whole word and after the last. The whole
    /// words between them are bits of the next level.
    fn for_words(&mut self, start: usize, end: usize, each: impl Fn(&mut Self, usize, usize, u64)) {
        let (mut from, mut to) = (start, end);
        for level in 0..=TOP {
            if from >= to {
                return;
            }
            let (first, last) = (from / WORD, to / WORD);
            if first == last {
                return each(self, level, first, span(from % WORD, to % WORD));
            }
            let mut whole = first;
            if from % WORD != 0 {
                each(self, level, first, span(from % WORD, WORD));
                whole += 1;
            }
            if to % WORD != 0 {
                each(self, level, last, span(0, to % WORD));
            }
            if level == TOP {
                for word in whole..last {
                    each(self, level, word, !0);
                }
            }
            (from, to) = (whole, last);
        }
    }

    /// Takes `start .. end`, all of which is free.
    pub(super) fn take(&mut self, start: usize, end: usize) {
        self.for_words(start, end, Self::clear_bits);
        self.free_frames -= end - start;
    }

    /// Takes the lowest consecutive free frames, at most as many as `out` has room for, and writes
    /// them to `out`; returns how many.
    pub(super) fn alloc_run(&mut self, out: &mut [FrameId]) -> usize {
        let Some(start) = self.next_free(self.floor * WORD) else { return 0 };
        let frames = (self.run_end(start) - start).min(out.len());
        self.take(start, start + frames);
        for (frame, slot) in (start..).zip(out.iter_mut().take(frames)) {
            *slot = FrameId(frame);
        }
        self.raise_floor();
        frames
    }

    /// The place for `alloc_range`: the lowest, unless [`PASSED`] runs below it are too short.
    ///
    /// Looks only at runs around a block of order `inner`. n frames from anywhere hold an aligned
    /// block of at least order log2(n + 1) − 1, and n frames from a multiple of their size one of
    /// order log2(n). After [`PASSED`] of these were too short, any block that is certain to have
    /// room will do, and finding one takes one step. Only if there is none does the search go on.
    fn find_range(&mut self, frames: usize, align: usize, limit: usize) -> Option<usize> {
        let whole = frames.ilog2();
        let inner = if align >> whole > 0 { whole } else { (frames + 1).ilog2() - 1 };
        let inner = Order::new(u8::try_from(inner).ok()?.min(MAX_ORDER))?;
        let mut from = 0;
        for passed in 0.. {
            if passed == PASSED
                && let Some(place) = self.find_room(from, frames, align, limit)
            {
                return Some(place);
            }
            let block = self.find(from, inner)?;
            let start = self.run_start(block.frame());
            let place = start.checked_next_multiple_of(align)?;
            let place_end = place.checked_add(frames)?;
            if place_end > limit {
                return None;
            }
            let end = self.run_end(block.frame());
            if place_end <= end {
                return Some(place);
            }
            from = end;
        }
        None
    }

    /// A place in the first run from `from` on with a block so long that it has room wherever it
    /// lies.
    #[cold]
    #[inline(never)]
    fn find_room(
        &mut self,
        from: usize,
        frames: usize,
        align: usize,
        limit: usize,
    ) -> Option<usize> {
        let room = frames.max(align).checked_next_power_of_two()?;
        let block = self.find(from, Order::new(u8::try_from(room.ilog2()).ok()?)?)?;
        let place = self.run_start(block.frame()).checked_next_multiple_of(align)?;
        (place.checked_add(frames)? <= limit).then_some(place)
    }
}

impl RangeAllocator for Bitset<'_> {
    fn alloc_range(&mut self, frames: usize, align: usize, limit: usize) -> Result<FrameId, Error> {
        if frames == 0 || !align.is_power_of_two() {
            return Err(Error::InvalidRequest);
        }
        if frames > self.free_frames {
            return Err(Error::Exhausted);
        }
        let start = self.find_range(frames, align, limit).ok_or(Error::Exhausted)?;
        self.take(start, start + frames);
        Ok(FrameId(start))
    }

    fn reserve(&mut self, start: FrameId, frames: usize) -> Result<(), Error> {
        let end = range_end(start, frames, self.frames)?;
        if self.run_end(start.0) < end {
            return Err(Error::Exhausted);
        }
        self.take(start.0, end);
        Ok(())
    }

    fn free_range(&mut self, start: FrameId, frames: usize) -> Result<(), Error> {
        let end = range_end(start, frames, self.frames)?;
        if self.has_free(start.0, end) {
            return Err(Error::NotAllocated);
        }
        self.for_words(start.0, end, Self::set_bits);
        self.free_frames += frames;
        self.floor = self.floor.min(start.0 / WORD);
        Ok(())
    }
}
