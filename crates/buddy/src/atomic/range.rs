//! Consecutive frames for which no `Local` is needed: whole words, and ranges of any length.

use hectare_base::sync::atomic::Ordering;

use super::Atomic;
use crate::Error;
use crate::bits::{WORD, span};

impl Atomic<'_> {
    /// Takes `count` whole words from `first`, all of them or none.
    pub(super) fn take_words(&self, first: usize, count: usize) -> bool {
        let took = (first..first + count)
            .take_while(|&word| {
                let swapped =
                    self.bits(word).compare_exchange(!0, 0, Ordering::AcqRel, Ordering::Relaxed);
                swapped.is_ok()
            })
            .count();
        if took < count {
            for word in first..first + took {
                // Rule 1: the frames are this thread's, so no other thread has set a bit there.
                self.bits(word).fetch_or(!0, Ordering::AcqRel);
            }
        }
        self.publish_words(first, took);
        took == count
    }

    /// Calls `each` with every word of `start .. end` and its bits in that range, until a call
    /// refuses. Returns the word refused.
    pub(super) fn for_words(
        start: usize,
        end: usize,
        mut each: impl FnMut(usize, u64) -> bool,
    ) -> Option<usize> {
        let mut words = if start < end { start / WORD..end.div_ceil(WORD) } else { 0..0 };
        words.find(|&word| {
            let from = start.max(word * WORD) - word * WORD;
            let to = end.min((word + 1) * WORD) - word * WORD;
            !each(word, span(from, to))
        })
    }

    /// Whether a frame of `start .. end` is free, held or not.
    pub(super) fn has_free(&self, start: usize, end: usize) -> bool {
        let is_clear = |word: usize, mask: u64| {
            (self.bits(word).load(Ordering::Acquire) | self.held_in(word)) & mask == 0
        };
        Self::for_words(start, end, is_clear).is_some()
    }

    /// Gives back all of `start .. end`.
    pub(super) fn give_range(&self, start: usize, end: usize) -> Result<(), Error> {
        if self.has_free(start, end) {
            return Err(Error::NotAllocated);
        }
        match Self::for_words(start, end, |word, mask| self.give_bits(word, mask).is_ok()) {
            None => Ok(()),
            Some(refused) => {
                // Another thread has freed a part of the range: take back what was given.
                Self::for_words(start, refused * WORD, |word, mask| {
                    // False if that has been allocated in the meantime: it was freed twice.
                    self.take_bits(word, mask);
                    true
                });
                Err(Error::NotAllocated)
            }
        }
    }

    /// Takes all of `start .. end`, or nothing.
    pub(super) fn take_range(&self, start: usize, end: usize) -> Result<(), Error> {
        match Self::for_words(start, end, |word, mask| self.take_bits(word, mask)) {
            None => Ok(()),
            Some(refused) => {
                Self::for_words(start, refused * WORD, |word, mask| {
                    self.give_bits(word, mask).is_ok()
                });
                Err(Error::Exhausted)
            }
        }
    }

    /// The first run of free frames from `from` on, as it was when it was read; cut off somewhere
    /// past its first `enough` frames.
    pub(super) fn next_run(&self, from: usize, enough: usize) -> Option<(usize, usize)> {
        let mut word = from / WORD;
        let mut found = self.load(word)? & (!0 << (from % WORD));
        while found == 0 {
            word = self.next_nonempty(word + 1)?;
            found = self.load(word)?;
        }
        let start = word * WORD + found.trailing_zeros() as usize;
        found = !self.load(word)? & (!0 << (start % WORD));
        while found == 0 {
            word += 1;
            if word * WORD - start >= enough {
                return Some((start, word * WORD));
            }
            let Some(bits) = self.load(word) else { return Some((start, self.frames)) };
            found = !bits;
        }
        Some((start, word * WORD + found.trailing_zeros() as usize))
    }

    fn load(&self, word: usize) -> Option<u64> {
        (word < self.words()).then(|| self.bits(word).load(Ordering::Acquire))
    }
}
