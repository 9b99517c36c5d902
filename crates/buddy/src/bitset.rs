//! The buddy allocator for a single owner: one bit a frame, 64 buddies to a word.
//!
//! ```text
//!            order 18                                        bit = 2^18 frames   level 3
//!   ┌────────────┴───────────┐
//!   64 × order 12 …                                          bit = 4096 frames   level 2
//!   ┌──────┴──────┐
//!   64 × order 6 …                                           bit = 64 frames     level 1
//!   ┌──┴──┐
//!   64 × order 0  01101111 00000000 …                        bit = 1 frame       level 0
//!
//!   over the words of each level, for each of the six orders inside a word:
//!   summary       "this word has a free block of the order", 64 words to a bit field,
//!                 and tiers of summaries over that until one word holds all
//! ```
//!
//! A free block of order 6·l + j is 2^j set bits, aligned, in a word of level l. Splitting and
//! merging inside a word is arithmetic on the word ([`crate::bits`]). A word whose bits are all set
//! is emptied and becomes one bit of the level above. So a free region of any size takes a few
//! words, and metadata that is never needed is never touched.
//!
//! Allocation is first fit: of all blocks that are large enough, it takes the one with the lowest
//! frame. That keeps the high frames free, and huge frames whole, better than the best fit of the
//! textbook (docs/buddy.md has the measurement).
//!
//! Invariants
//! 1. A frame is free if and only if its bit, or that of an enclosing block on a higher level, is
//!    set; never two of these at once.
//! 2. No word below the top level has all bits set. (So blocks are always fully merged.)
//! 3. Bits past the last frame are never set.
//! 4. A word is in the summary of order 0 if and only if it is not 0.
//! 5. A word that has a block of order j is in the summary of j. It may also be there without one:
//!    a *stale* entry, removed by the search that meets it. A word is entered in all summaries when
//!    it gets its first free frame. So a free makes at most five stale entries, and searches take
//!    amortised constant time.
//! 6. A word in the summary of order j + 1 is in the summary of j.
//! 7. A bit of a higher summary tier is set if and only if the word below it is not 0.
//! 8. No free frame lies below the word `floor` of level 0.
//! 9. `free_frames` counts the free frames.
//!
//! Costs: `alloc` and `free` touch at most four levels of at most five words each, whatever the
//! number of frames. Taking a block of order 3 that splits one of order 17, and freeing it so that
//! they merge again, costs 1440 instructions; 780 if its word stays split. Ranges: 1100. Metadata:
//! 1 bit a frame, plus 12 % of that for summaries and levels.

mod levels;
mod range;
mod walk;

#[cfg(all(test, not(loom)))]
mod tests;

use levels::{Geometry, LEVELS, Levels, MAX_FRAMES, TOP};

use crate::bits::{WORD, WORD_SHIFT, blocks, largest_block, span};
use crate::frame::check_block;
use crate::{Error, FrameAllocator, FrameId, Invalid, Order, RangeAllocator, Stats};

/// A buddy allocator with one owner, over the caller's metadata: one bit a frame, 64 buddies to a
/// word.
///
/// Of all blocks that are large enough it takes the one with the lowest frame, so that high frames
/// stay free and huge frames whole.
#[derive(Debug)]
pub struct Bitset<'m> {
    levels: Levels<'m>,
    frames: usize,
    free_frames: usize,
    /// Invariant 8.
    floor: usize,
}

/// The largest order inside a word, one below that of the word itself.
const LARGEST_INNER: u32 = WORD_SHIFT - 1;

/// A block that a search found: bit `bit` of level `level`, not yet taken.
#[derive(Clone, Copy)]
struct Found {
    level: usize,
    bit: usize,
}

impl Found {
    #[inline]
    const fn frame(self) -> usize {
        self.bit << (WORD_SHIFT as usize * self.level)
    }
}

impl<'m> Bitset<'m> {
    /// An allocator of no frames; a placeholder for a static.
    #[must_use]
    pub const fn empty() -> Self {
        Self { levels: Levels::new(&mut [], Geometry::new(0)), frames: 0, free_frames: 0, floor: 0 }
    }

    /// Words of metadata that `frames` frames need.
    #[must_use]
    pub const fn metadata_words(frames: usize) -> usize {
        Geometry::new(frames).words
    }

    /// Bytes of metadata that `frames` frames need: about 36 KiB a GiB of 4 KiB frames.
    #[must_use]
    pub const fn metadata_bytes(frames: usize) -> usize {
        Self::metadata_words(frames) * size_of::<u64>()
    }

    /// An allocator of `frames` frames, none of them free. Clears the metadata.
    ///
    /// # Errors
    /// [`Error::MetadataTooSmall`]; [`Error::TooManyFrames`] above 2^36 frames.
    pub fn new(frames: usize, metadata: &'m mut [u64]) -> Result<Self, Error> {
        metadata.fill(0);
        Self::over_zeroed(frames, metadata)
    }

    /// As [`new`](Self::new), over metadata that is all zeros already: fresh pages of the operating
    /// system need not be touched. Any bit that is set is taken for a free frame.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub const fn over_zeroed(frames: usize, metadata: &'m mut [u64]) -> Result<Self, Error> {
        if frames > MAX_FRAMES {
            return Err(Error::TooManyFrames);
        }
        let geometry = Geometry::new(frames);
        if metadata.len() < geometry.words {
            return Err(Error::MetadataTooSmall);
        }
        Ok(Self { levels: Levels::new(metadata, geometry), frames, free_frames: 0, floor: 0 })
    }

    /// The lowest block of at least `order` from frame `from` on. Removes the stale entries that
    /// the search meets.
    fn find(&mut self, from: usize, order: Order) -> Option<Found> {
        let (level, inner) = split(order);
        let at = |level: usize| from.div_ceil(1 << (WORD_SHIFT as usize * level));
        let mut best = self.find_on_level(level, at(level), inner);
        for level in level + 1..LEVELS {
            if let Some(bit) = self.levels.next_bit(level, at(level)) {
                let found = Found { level, bit };
                if best.is_none_or(|best: Found| found.frame() < best.frame()) {
                    best = Some(found);
                }
            }
        }
        best
    }

    /// The first block of 2^inner bits from bit `from` of a level on.
    fn find_on_level(&mut self, level: usize, from: usize, inner: u32) -> Option<Found> {
        let mut word = from / WORD;
        let mut past = !0 << (from % WORD);
        while let Some(listed) = self.levels.next_listed(level, word, inner as usize) {
            let starts = blocks(self.levels.word(level, listed), inner);
            if starts == 0 {
                self.levels.unlist(level, listed, inner as usize);
            }
            let starts = if listed == word { starts & past } else { starts };
            if starts != 0 {
                return Some(Found {
                    level,
                    bit: listed * WORD + starts.trailing_zeros() as usize,
                });
            }
            (word, past) = (listed + 1, !0);
        }
        None
    }

    /// `alloc` if the first word cannot serve right away: for larger orders, and for the last frame
    /// of a word.
    #[inline(never)]
    fn alloc_slow(&mut self, order: Order) -> Result<FrameId, Error> {
        if order.frames() > self.free_frames {
            return Err(Error::Exhausted);
        }
        let (level, inner) = split(order);
        if level == 0
            && let Some(frame) = self.alloc_in_word(self.floor, inner)
        {
            return Ok(FrameId(frame));
        }
        let found = self.find(0, order).ok_or(Error::Exhausted)?;
        let frame = found.frame();
        self.take(frame, frame + order.frames());
        self.raise_floor();
        Ok(FrameId(frame))
    }

    /// Moves the floor up to the first word with a free frame, if the floor's word has none.
    fn raise_floor(&mut self) {
        if self.has_free_frame(self.floor) {
            return;
        }
        let next = self.floor + 1;
        let first = || self.next_free(next * WORD).map_or(self.floor, |first| first / WORD);
        self.floor = if self.has_free_frame(next) { next } else { first() };
    }

    /// Whether a frame of `word` of level 0 is free.
    fn has_free_frame(&self, word: usize) -> bool {
        word < self.levels.count(0) && (self.levels.leaf(word) != 0 || self.is_covered(word))
    }

    /// Takes the lowest block of `order`, at most 5, in a word of level 0, if the word has one.
    fn alloc_in_word(&mut self, word: usize, order: u32) -> Option<usize> {
        let own = self.levels.leaf(word);
        let free = if own == 0 && self.is_covered(word) { !0 } else { own };
        let starts = blocks(free, order);
        if starts == 0 {
            return None;
        }
        let bit = starts.trailing_zeros() as usize;
        let mask = span(0, 1 << order) << bit;
        self.clear_bits(0, word, mask);
        self.free_frames -= 1 << order;
        if free == mask {
            self.raise_floor();
        }
        Some(word * WORD + bit)
    }

    /// `free` of a block below order 6 that lies within the managed frames.
    #[inline(never)]
    fn free_in_word(&mut self, frame: usize, order: u32) -> Result<(), Error> {
        let (word, bit) = (frame / WORD, frame % WORD);
        let mask = span(0, 1 << order) << bit;
        let old = self.levels.leaf(word);
        // A word that is not 0 is not part of a larger free block, by invariant 1.
        if old & mask != 0 || (old == 0 && self.is_covered(word)) {
            return Err(Error::NotAllocated);
        }
        let new = old | mask;
        self.floor = self.floor.min(word);
        self.free_frames += 1 << order;
        if new == !0 {
            self.set_bits(0, word, mask);
        } else {
            self.levels.set_word(0, word, new);
            self.note_more(0, word, old, new);
        }
        Ok(())
    }

    /// Whether a block that encloses `word` of level 0 is free.
    #[inline]
    fn is_covered(&self, word: usize) -> bool {
        let mut bit = word;
        for level in 1..LEVELS {
            if self.levels.word(level, bit / WORD) >> (bit % WORD) & 1 != 0 {
                return true;
            }
            bit /= WORD;
        }
        false
    }

    /// Sets bits that are clear, and merges upward.
    fn set_bits(&mut self, level: usize, word: usize, mask: u64) {
        let (mut word, mut mask) = (word, mask);
        for level in level..LEVELS {
            let old = self.levels.word(level, word);
            let new = old | mask;
            if new != !0 || level == TOP {
                self.levels.set_word(level, word, new);
                self.note_more(level, word, old, new);
                return;
            }
            // Invariant 2: a full word becomes a bit of the level above.
            self.levels.set_word(level, word, 0);
            if old != 0 {
                self.levels.unlist(level, word, 0);
            }
            mask = 1 << (word % WORD);
            word /= WORD;
        }
    }

    /// Maintains invariants 4 and 5 after bits of a word were set.
    ///
    /// A word that gets its first bit is likely to get more. So it is put in every summary at once,
    /// as invariant 5 allows, and the bits that follow need not work out which block they complete.
    #[inline]
    fn note_more(&mut self, level: usize, word: usize, old: u64, new: u64) {
        if old == 0 {
            self.levels.list(level, word, LARGEST_INNER);
        } else if !self.levels.is_listed(level, word, LARGEST_INNER as usize) {
            self.levels.list(level, word, largest_block(new));
        }
    }

    /// Clears bits of free frames, splitting enclosing blocks as needed.
    fn clear_bits(&mut self, level: usize, word: usize, mask: u64) {
        let old = self.levels.word(level, word);
        if old & mask == mask {
            self.levels.set_word(level, word, old & !mask);
            if old == mask {
                self.levels.unlist(level, word, 0);
            }
        } else if level < TOP {
            // By invariant 1 the word is empty and an enclosing block is free.
            self.clear_bits(level + 1, word / WORD, 1 << (word % WORD));
            self.levels.set_word(level, word, !mask);
            // Not 0: a whole word below the top would be a bit of the level above.
            self.levels.list(level, word, LARGEST_INNER);
        }
    }
}

/// The level of an order, and the order inside the words of that level.
#[inline]
const fn split(order: Order) -> (usize, u32) {
    let order = order.get() as u32;
    ((order / WORD_SHIFT) as usize, order % WORD_SHIFT)
}

/// How many of `blocks`, in steps of 16, are consecutive frames; 1 if fewer than 16 are.
fn consecutive(blocks: &[FrameId]) -> usize {
    const STEP: usize = 16;
    let Some(&FrameId(first)) = blocks.first() else { return 0 };
    let follows = |(at, chunk): (usize, &[FrameId])| {
        // There is no early exit, so that the compiler vectorises this.
        let differs = chunk.iter().enumerate().fold(0, |differs, (inner, frame)| {
            differs | (frame.0 ^ first.wrapping_add(at * STEP + inner))
        });
        differs == 0
    };
    let steps = blocks.chunks_exact(STEP).enumerate().take_while(|&chunk| follows(chunk)).count();
    (steps * STEP).max(1)
}

impl FrameAllocator for Bitset<'_> {
    // The first path serves 63 of 64 calls in a row. On x86-64 a call takes 42 instructions,
    // including the bench's loop and every 64th call
    // (`cargo bench -p hectare-buddy --bench instructions`).
    #[inline]
    fn alloc(&mut self, order: Order) -> Result<FrameId, Error> {
        // By invariant 8, the lowest bit of the word `floor` is the lowest free frame. Unless it is
        // the word's last bit, no list needs correcting.
        if order == Order::ZERO
            && let Some(word) = self.levels.leaf_mut(self.floor)
            && *word & word.wrapping_sub(1) != 0
        {
            let bit = word.trailing_zeros() as usize;
            *word &= *word - 1;
            self.free_frames -= 1;
            return Ok(FrameId(self.floor * WORD + bit));
        }
        self.alloc_slow(order)
    }

    // 42 instructions in random order and 51 in sequence, where each word is opened and filled
    // along the way. One store besides those of the counters, and no branch that depends on the
    // neighbours.
    #[inline]
    fn free(&mut self, frame: FrameId, order: Order) -> Result<(), Error> {
        let word = frame.0 / WORD;
        // By invariants 4 and 6, a word that is listed for all orders has another free frame. If it
        // does not become full either, nothing else changes.
        if order == Order::ZERO
            && frame.0 < self.frames
            && self.levels.is_listed(0, word, LARGEST_INNER as usize)
            && let Some(bits) = self.levels.leaf_mut(word)
        {
            let new = *bits | 1 << (frame.0 % WORD);
            if new != *bits && new != !0 {
                // Nor does the floor: by invariant 8 that other frame is not below it.
                *bits = new;
                self.free_frames += 1;
                return Ok(());
            }
        }
        check_block(frame, order, self.frames)?;
        let (level, inner) = split(order);
        if level == 0 {
            self.free_in_word(frame.0, inner)
        } else {
            self.free_range(frame, order.frames())
        }
    }

    fn alloc_many(&mut self, order: Order, out: &mut [FrameId]) -> usize {
        let mut taken = 0;
        while let Some(rest) = out.get_mut(taken..)
            && !rest.is_empty()
        {
            if order == Order::ZERO && self.levels.leaf(self.floor) == 0 {
                // At a word boundary: take a run of frames at once.
                taken += self.alloc_run(rest);
                if self.free_frames == 0 {
                    break;
                }
            }
            let Some(slot) = out.get_mut(taken) else { break };
            let Ok(frame) = self.alloc(order) else { break };
            *slot = frame;
            taken += 1;
        }
        taken
    }

    fn free_many(&mut self, order: Order, blocks: &[FrameId]) -> Result<(), (usize, Error)> {
        let mut given = 0;
        while let Some(rest) = blocks.get(given..)
            && let Some(&first) = rest.first()
        {
            let run = if order == Order::ZERO { consecutive(rest) } else { 1 };
            if run > 1 && self.free_range(first, run).is_ok() {
                given += run;
                continue;
            }
            // A single block, or a run up to the block that is refused.
            for &block in rest.iter().take(run) {
                self.free(block, order).map_err(|error| (given, error))?;
                given += 1;
            }
        }
        Ok(())
    }

    fn add_region(&mut self, start: FrameId, frames: usize) -> Result<(), Error> {
        self.free_range(start, frames)
    }

    fn frames(&self) -> usize {
        self.frames
    }

    fn free_frames(&self) -> usize {
        self.free_frames
    }

    fn is_free(&self, frame: FrameId) -> bool {
        frame.0 < self.frames && self.run_end(frame.0) > frame.0
    }

    fn stats(&self) -> Stats {
        self.count_runs()
    }

    fn validate(&self) -> Result<(), Invalid> {
        self.check()
    }
}
