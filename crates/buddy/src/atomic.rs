//! The buddy allocator for many threads: lock-free, one atomic instruction a free, none in most
//! allocations.
//!
//! ```text
//!   tree: 4096 frames, 16 MiB, nine cache lines
//!   ┌──────────────────────────────────────┬─────────────────────────────────┐
//!   │ 64 words: bit set = frame free       │ two sector states │ held block  │
//!   │ (8 words, one cache line = 2 MiB)    │ 32 words each     │ of the owner│
//!   └──────────────────────────────────────┴─────────────────────────────────┘
//!   sector state   low half: words that are not empty   high half: words that are full
//!   top            a bit a sector: has frames outside whole huge frames   (`partial`)
//!                  a bit a sector: has a whole huge frame                 (`whole`)
//!                  a bit a tree: some `Local` has reserved it             (`reserved`)
//!
//!   Local (a thread's or a CPU's)  ──reserves──▶ tree ──takes a word──▶ held: up to 64 frames
//! ```
//!
//! Like LLFree (Wrenger and others, USENIX ATC 2023) it keeps bit fields of 2 MiB, summaries of
//! them, and a subtree reserved for each CPU so that CPUs stay off each other's cache lines. Unlike
//! LLFree it has no counters. A thread that takes frames clears their bits, a whole word at a time;
//! that word then serves 64 allocations with plain loads and stores. A free is one
//! compare-and-swap, or also a plain store if it follows others into the same word. The summaries
//! are written only when a word becomes empty or full, or ceases to be.
//!
//! Rules
//! 1. A frame belongs to the thread that cleared its bit, until the bit is set again. Every other
//!    word in the metadata, except the two of the held block, is only a hint for finding bits.
//! 2. Only the `Local` that has reserved a tree writes the tree's held block. The frames in it are
//!    free, but for that `Local` alone.
//! 3. A thread that changes a word's class (empty, between, full) writes the class into the sector
//!    state *by a read-modify-write* and then looks at the word again, until both agree. If it
//!    thereby changes part of a sector's summary, it does the same with the sector's bit of `top`.
//! 4. So when no call is under way, all summaries are exact: the last write of a hint was followed
//!    by a look that saw the last change below it. (Otherwise that change's own write of the hint,
//!    a read-modify-write, would come later still.) During a call they may lag.
//!
//! Orderings: taking bits is `Acquire`, giving `Release`, so the next owner of a frame sees what
//! the last one did with it. The summaries are `AcqRel` for rule 4. The held block is changed as
//! mask 0, new word, new mask, all `Release`, and read as word, mask, word with `Acquire`. A mask
//! that belongs to another word is noticed because the word's number carries a count.
//!
//! [`Atomic`] lists what is not promised. Between the swap that takes a word and the store of the
//! held block's mask, the word's frames are free nowhere.

mod hints;
mod local;
mod range;
mod state;
#[cfg(test)]
mod tests;

use hectare_base::sync::atomic::{AtomicU64, Ordering};
use hints::Top;
pub use local::Local;
use state::{Class, SECTOR_WORDS};

use crate::bits::{WORD, blocks, span};
use crate::{Error, FrameId, Invalid, Stats};

/// Words of bits in a tree.
const TREE_WORDS: usize = 64;
/// Words of metadata in a tree: the bits, and a cache line for the rest.
const TREE_STRIDE: usize = TREE_WORDS + 8;
/// Where a tree keeps its sector states and its held block.
const STATES: usize = TREE_WORDS;
const HELD_WORD: usize = TREE_WORDS + 2;
const HELD_MASK: usize = TREE_WORDS + 3;
const SECTORS_IN_TREE: usize = TREE_WORDS / SECTOR_WORDS;

/// The metadata of a tree.
type Tree = [AtomicU64; TREE_STRIDE];

/// Frames shared by several threads, each of which works through a [`Local`].
///
/// What it does not promise while other threads are at work:
/// - Frames that another `Local` holds (64 at most), and blocks that are just being taken, are
///   invisible to a search, so [`Error::Exhausted`] can come that much too early. The blocks of a
///   sector (2048 frames) whose summary another thread is just changing can be invisible, too, to a
///   search for more than one frame.
/// - A double free is refused, with two exceptions: another thread is just taking the frame's word,
///   or another thread holds the word and frees the same frame at the same time. Then, as when the
///   frame has been allocated again in between, it has two owners.
#[derive(Debug)]
pub struct Atomic<'m> {
    trees: &'m [Tree],
    top: &'m [AtomicU64],
    frames: usize,
}

impl<'m> Atomic<'m> {
    /// Words of metadata that `frames` frames need; they are best aligned to 64 bytes.
    #[must_use]
    pub const fn metadata_words(frames: usize) -> usize {
        let trees = frames.div_ceil(TREE_WORDS * WORD);
        let sector_bits = (trees * SECTORS_IN_TREE).div_ceil(WORD);
        trees * TREE_STRIDE + 2 * sector_bits + trees.div_ceil(WORD)
    }

    /// Bytes of metadata that `frames` frames need: about 36 KiB a GiB of 4 KiB frames.
    #[must_use]
    pub const fn metadata_bytes(frames: usize) -> usize {
        Self::metadata_words(frames) * size_of::<u64>()
    }

    /// An allocator of `frames` frames, none of them free. Clears the metadata, which must belong
    /// to this allocator alone: two allocators over the same metadata would hand out the same
    /// frames.
    ///
    /// # Errors
    /// [`Error::MetadataTooSmall`].
    pub fn new(frames: usize, metadata: &'m [AtomicU64]) -> Result<Self, Error> {
        for word in metadata {
            word.store(0, Ordering::Relaxed);
        }
        Self::over_zeroed(frames, metadata)
    }

    /// As [`new`](Self::new), over metadata that is already all zeros.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub const fn over_zeroed(frames: usize, metadata: &'m [AtomicU64]) -> Result<Self, Error> {
        if metadata.len() < Self::metadata_words(frames) {
            return Err(Error::MetadataTooSmall);
        }
        let (trees, top) = metadata.split_at(frames.div_ceil(TREE_WORDS * WORD) * TREE_STRIDE);
        Ok(Self { trees: trees.as_chunks().0, top, frames })
    }

    /// A handle for one thread (or CPU).
    #[must_use]
    pub const fn local(&self) -> Local<'_> {
        Local::new(self)
    }

    /// How many frames the allocator manages, free or not.
    #[must_use]
    pub const fn frames(&self) -> usize {
        self.frames
    }

    /// How many frames are free, those held by a [`Local`] included. Linear in the metadata, and a
    /// snapshot if other threads are at work.
    #[must_use]
    pub fn free_frames(&self) -> usize {
        let words = (0..self.words()).map(|word| self.bits(word).load(Ordering::Relaxed));
        let held = (0..self.trees()).map(|tree| self.held_mask(tree).load(Ordering::Relaxed));
        words.chain(held).map(|bits| bits.count_ones() as usize).sum()
    }

    /// Whether `frame` is free, held by a [`Local`] or not.
    #[must_use]
    pub fn is_free(&self, frame: FrameId) -> bool {
        let (word, bit) = (frame.0 / WORD, frame.0 % WORD);
        frame.0 < self.frames
            && (self.bits(word).load(Ordering::Acquire) >> bit & 1 != 0
                || self.held_in(word) >> bit & 1 != 0)
    }

    /// How the free frames are laid out, those held by a [`Local`] included. Linear in the metadata,
    /// and a snapshot if other threads are at work.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let free = |word| self.bits(word).load(Ordering::Acquire) | self.held_in(word);
        Stats { frames: self.frames, ..Stats::of_words((0..self.words()).map(free)) }
    }

    const fn words(&self) -> usize {
        self.frames.div_ceil(WORD)
    }

    const fn trees(&self) -> usize {
        self.trees.len()
    }

    const fn sectors(&self) -> usize {
        self.trees() * SECTORS_IN_TREE
    }

    #[inline]
    const fn bits(&self, word: usize) -> &'m AtomicU64 {
        &self.trees[word / TREE_WORDS][word % TREE_WORDS]
    }

    #[inline]
    const fn held_word(&self, tree: usize) -> &'m AtomicU64 {
        &self.trees[tree][HELD_WORD]
    }

    #[inline]
    const fn held_mask(&self, tree: usize) -> &'m AtomicU64 {
        &self.trees[tree][HELD_MASK]
    }

    /// The free frames of `word` that the owner of its tree holds.
    #[inline]
    fn held_in(&self, word: usize) -> u64 {
        let (tree, within) = (word / TREE_WORDS, word % TREE_WORDS);
        let before = self.held_word(tree).load(Ordering::Acquire);
        if before as usize % TREE_WORDS != within {
            return 0;
        }
        let mask = self.held_mask(tree).load(Ordering::Acquire);
        let after = self.held_word(tree).load(Ordering::Acquire);
        // If the held block changed in between, what is held now was free in `bits` a moment ago.
        if before == after { mask } else { 0 }
    }

    /// Takes all free frames of a word. The swap's `Acquire` makes visible what their last owners
    /// did. That would be visible without it, too, since `note` loads the emptied word again with
    /// `Acquire`, so no model can tell the difference.
    fn take_word(&self, word: usize) -> u64 {
        let old = self.bits(word).swap(0, Ordering::AcqRel);
        self.note(word, old, 0);
        old
    }

    /// Takes the lowest block of 2^order frames in a word; returns its first bit.
    fn take_block(&self, word: usize, order: u32) -> Option<usize> {
        let mut old = self.bits(word).load(Ordering::Relaxed);
        loop {
            let starts = blocks(old, order);
            if starts == 0 {
                return None;
            }
            let bit = starts.trailing_zeros() as usize;
            let new = old & !(span(0, 1 << order) << bit);
            match self.exchange(word, old, new) {
                Ok(()) => return Some(bit),
                Err(seen) => old = seen,
            }
        }
    }

    /// Takes exactly the frames of `mask`, if all of them are free.
    fn take_bits(&self, word: usize, mask: u64) -> bool {
        let mut old = self.bits(word).load(Ordering::Relaxed);
        while old & mask == mask {
            match self.exchange(word, old, old & !mask) {
                Ok(()) => return true,
                Err(seen) => old = seen,
            }
        }
        false
    }

    /// Gives back the frames of `mask`, if none of them is free. Returns which frames of the word
    /// were free before.
    #[inline]
    fn give_bits(&self, word: usize, mask: u64) -> Result<u64, Error> {
        let mut old = self.bits(word).load(Ordering::Relaxed);
        while old & mask == 0 {
            match self.exchange(word, old, old | mask) {
                Ok(()) => return Ok(old),
                Err(seen) => old = seen,
            }
        }
        Err(Error::NotAllocated)
    }

    /// Gives back the frames of `mask`, which were held. A frame that was freed twice at once, by
    /// its holder and by another thread, may be free for all already: that costs no other frame.
    fn give_held(&self, word: usize, mask: u64) {
        let old = self.bits(word).fetch_or(mask, Ordering::AcqRel);
        self.note(word, old, old | mask);
    }

    #[inline]
    fn exchange(&self, word: usize, old: u64, new: u64) -> Result<(), u64> {
        self.bits(word).compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed)?;
        self.note(word, old, new);
        Ok(())
    }

    /// Checks that the summaries are exact, which they are when no call is under way (rule 4).
    ///
    /// # Errors
    /// The first summary that is not exact.
    pub fn validate(&self) -> Result<(), Invalid> {
        for word in 0..self.trees() * TREE_WORDS {
            let bits = self.bits(word).load(Ordering::Acquire);
            let end = self.frames.saturating_sub(word * WORD);
            if end < WORD && bits >> end != 0 {
                return Err(Invalid("a frame past the end is free"));
            }
            if bits & self.held_in(word) != 0 {
                return Err(Invalid("a frame is free for all and held by one (1)"));
            }
            let state = self.sector_state(word / SECTOR_WORDS);
            if state.class(word % SECTOR_WORDS) != Class::of(bits) {
                return Err(Invalid("a sector state disagrees with a word (4)"));
            }
        }
        for sector in 0..self.sectors() {
            let summary = self.sector_state(sector).summary();
            if self.top_bit(Top::Partial, sector) != summary.has_partial
                || self.top_bit(Top::Whole, sector) != summary.has_whole
            {
                return Err(Invalid("a bit of top disagrees with its sector (4)"));
            }
        }
        let unowned = |tree: &usize| !self.top_bit(Top::Reserved, *tree);
        if (0..self.trees())
            .filter(unowned)
            .any(|tree| self.held_mask(tree).load(Ordering::Acquire) != 0)
        {
            return Err(Invalid("a tree that no one has reserved holds frames (2)"));
        }
        Ok(())
    }
}
