//! The summaries: which words of a sector are empty or full, and which sectors have free frames.
//! Implements rules 3 and 4 of the parent module; nothing here owns a frame.

use hectare_base::sync::atomic::{AtomicU64, Ordering};

use super::state::{self, Class, SECTOR_WORDS, SectorState, Summary};
use super::{Atomic, SECTORS_IN_TREE, STATES};
use crate::bits::{WORD, span};

/// A bit field of `top`.
#[derive(Clone, Copy)]
pub(super) enum Top {
    Partial,
    Whole,
    Reserved,
}

impl<'m> Atomic<'m> {
    #[inline]
    pub(super) const fn sector(&self, sector: usize) -> &'m AtomicU64 {
        &self.trees[sector / SECTORS_IN_TREE][STATES + sector % SECTORS_IN_TREE]
    }

    pub(super) fn sector_state(&self, sector: usize) -> SectorState {
        SectorState::new(self.sector(sector).load(Ordering::Acquire))
    }

    pub(super) fn top(&self, field: Top, at: usize) -> &AtomicU64 {
        let sector_bits = self.sectors().div_ceil(WORD);
        let start = match field {
            Top::Partial => 0,
            Top::Whole => sector_bits,
            Top::Reserved => 2 * sector_bits,
        };
        &self.top[start + at / WORD]
    }

    pub(super) fn top_bit(&self, field: Top, at: usize) -> bool {
        self.top(field, at).load(Ordering::Acquire) >> (at % WORD) & 1 != 0
    }

    /// Sets or clears a bit of `top`; returns its old value.
    pub(super) fn set_top(&self, field: Top, at: usize, value: bool) -> bool {
        let bit = 1 << (at % WORD);
        let word = self.top(field, at);
        let old = if value {
            word.fetch_or(bit, Ordering::AcqRel)
        } else {
            word.fetch_and(!bit, Ordering::AcqRel)
        };
        old & bit != 0
    }

    /// The first sector from `from` on that `field` names.
    pub(super) fn next_sector(&self, field: Top, from: usize) -> Option<usize> {
        let mut at = from;
        while at < self.sectors() {
            let named = self.top(field, at).load(Ordering::Acquire) & (!0 << (at % WORD));
            if named != 0 {
                return Some(at / WORD * WORD + named.trailing_zeros() as usize);
            }
            at = (at / WORD + 1) * WORD;
        }
        None
    }

    /// Rule 3, after this thread has changed a word from `old` to `new`.
    #[inline]
    pub(super) fn note(&self, word: usize, old: u64, new: u64) {
        // The class is unchanged if the word was and is neither 0 nor full.
        if [old, new].iter().any(|bits| bits.wrapping_add(1) <= 1) {
            self.publish_word(word);
        }
    }

    /// Writes the class of a word into the state of its sector.
    #[inline(never)]
    pub(super) fn publish_word(&self, word: usize) {
        let (bits, at) = (self.bits(word), word % SECTOR_WORDS);
        self.publish(word / SECTOR_WORDS, 1 << at, || {
            SectorState::default().with(at, Class::of(bits.load(Ordering::Acquire)))
        });
    }

    /// Rule 3 for the words in `which` of a sector; `classes` reads their classes.
    #[inline]
    pub(super) fn publish(&self, sector: usize, which: u32, classes: impl Fn() -> SectorState) {
        let mut seen = classes();
        loop {
            let mut state = self.sector(sector).load(Ordering::Relaxed);
            let (old, new) = loop {
                let new = SectorState::new(state).replace(which, seen);
                let done = self.sector(sector).compare_exchange_weak(
                    state,
                    new.get(),
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
                match done {
                    Ok(_) => break (SectorState::new(state), new),
                    Err(other) => state = other,
                }
            };
            if old.summary_differs(new) {
                self.publish_summary(sector, old.summary());
            }
            let now = classes();
            if now == seen {
                return;
            }
            seen = now;
        }
    }

    /// Rule 3 for the bits of `top` that are affected by this thread's change of a sector's summary
    /// from `old` on. All threads share `top`, and each needless write bounces a cache line.
    #[cold]
    pub(super) fn publish_summary(&self, sector: usize, mut old: Summary) {
        let mut seen = self.sector_state(sector).summary();
        while seen != old {
            if seen.has_partial != old.has_partial {
                self.set_top(Top::Partial, sector, seen.has_partial);
            }
            if seen.has_whole != old.has_whole {
                self.set_top(Top::Whole, sector, seen.has_whole);
            }
            old = seen;
            seen = self.sector_state(sector).summary();
        }
    }

    /// Rule 3 for `count` words from `first` whose class this thread has changed.
    pub(super) fn publish_words(&self, first: usize, count: usize) {
        let end = first + count;
        let mut word = first;
        while word < end {
            let sector = word / SECTOR_WORDS;
            let to = end.min((sector + 1) * SECTOR_WORDS);
            let which = span(word % SECTOR_WORDS, to - sector * SECTOR_WORDS) as u32;
            self.publish(sector, which, || {
                state::each(which).fold(SectorState::default(), |state, at| {
                    let bits = self.bits(sector * SECTOR_WORDS + at).load(Ordering::Acquire);
                    state.with(at, Class::of(bits))
                })
            });
            word = to;
        }
    }

    /// The first word from `word` on that the summaries say has a free frame.
    pub(super) fn next_nonempty(&self, word: usize) -> Option<usize> {
        let mut sector = word / SECTOR_WORDS;
        let mut past = u32::MAX << (word % SECTOR_WORDS);
        while sector < self.sectors() {
            let words = self.sector_state(sector).nonempty() & past;
            if words != 0 {
                return Some(sector * SECTOR_WORDS + words.trailing_zeros() as usize);
            }
            let partial = self.next_sector(Top::Partial, sector + 1);
            let whole = self.next_sector(Top::Whole, sector + 1);
            sector = partial.into_iter().chain(whole).min()?;
            past = u32::MAX;
        }
        None
    }
}
