//! One thread's way to the shared frames: its reserved tree and its held block.

use hectare_base::sync::atomic::{AtomicU64, Ordering};

use super::hints::Top;
use super::state::{self, SECTOR_WORDS};
use super::{Atomic, SECTORS_IN_TREE, TREE_WORDS};
use crate::bits::{WORD, WORD_SHIFT, blocks, span};
use crate::frame::{check_block, range_end};
use crate::{Error, FrameAllocator, FrameId, Invalid, Order, RangeAllocator, Stats};

/// A handle to an [`Atomic`] for one thread or CPU. Dropping it gives back what it holds.
#[derive(Debug)]
pub struct Local<'a> {
    shared: &'a Atomic<'a>,
    reserved: Option<Reserved<'a>>,
    /// The last empty word that got a frame from this handle.
    last_opened: usize,
}

/// The reserved tree, and where the held block is in it.
#[derive(Debug, Clone, Copy)]
struct Reserved<'a> {
    tree: usize,
    /// The word of the held block.
    word: usize,
    /// The word's bits that are free for all.
    bits: &'a AtomicU64,
    /// The word's bits that are held. Rule 2: only the handle with the reservation writes this.
    mask: &'a AtomicU64,
}

/// Which words of a tree serve a small allocation.
#[derive(Clone, Copy)]
enum From {
    /// Words outside whole huge frames.
    Partial,
    /// Words of whole huge frames.
    Whole,
}

impl<'a> Local<'a> {
    pub(super) const fn new(shared: &'a Atomic<'a>) -> Self {
        Self { shared, reserved: None, last_opened: usize::MAX }
    }

    /// Gives the held frames back, so that other threads see them and blocks merge; keeps the tree.
    /// Returns whether there were any.
    pub fn drain(&mut self) -> bool {
        let Some(own) = self.reserved else { return false };
        let mask = own.mask.load(Ordering::Relaxed);
        own.mask.store(0, Ordering::Release);
        if mask != 0 {
            self.shared.give_held(own.word, mask);
        }
        mask != 0
    }

    fn release_tree(&mut self) {
        self.drain();
        if let Some(own) = self.reserved.take() {
            self.shared.set_top(Top::Reserved, own.tree, false);
        }
    }

    /// Reserves a tree in place of the present one, unless another handle has it.
    fn reserve_tree(&mut self, tree: usize) -> bool {
        if self.shared.top_bit(Top::Reserved, tree)
            || self.shared.set_top(Top::Reserved, tree, true)
        {
            return false;
        }
        self.release_tree();
        let within = self.shared.held_word(tree).load(Ordering::Relaxed) as usize % TREE_WORDS;
        self.refer_to(tree, tree * TREE_WORDS + within);
        true
    }

    fn refer_to(&mut self, tree: usize, word: usize) {
        let (bits, mask) = (self.shared.bits(word), self.shared.held_mask(tree));
        self.reserved = Some(Reserved { tree, word, bits, mask });
    }

    /// Makes `mask` of `word`, which this thread has taken, the held block.
    fn hold(&mut self, tree: usize, word: usize, mask: u64) {
        let count = self.shared.held_word(tree).load(Ordering::Relaxed) / TREE_WORDS as u64;
        let next = count.wrapping_add(1) * TREE_WORDS as u64 + (word % TREE_WORDS) as u64;
        // The mask is 0 already: every caller has drained the tree's block or found it empty. But
        // `held_in` relies on the mask being 0 before the word changes, so it is written here.
        self.shared.held_mask(tree).store(0, Ordering::Release);
        self.shared.held_word(tree).store(next, Ordering::Release);
        self.shared.held_mask(tree).store(mask, Ordering::Release);
        self.refer_to(tree, word);
    }

    /// `alloc` below order 6, if the held block cannot serve right away.
    #[inline(never)]
    fn alloc_slow(&mut self, order: u32) -> Option<usize> {
        if let Some(frame) = self.alloc_held(order).or_else(|| self.alloc_own(order, From::Partial))
        {
            return Some(frame);
        }
        // Use pieces from anywhere before breaking a huge frame. Break huge frames of our own tree
        // before those of another.
        for (top, from) in [(Top::Partial, From::Partial), (Top::Whole, From::Whole)] {
            if let From::Whole = from
                && let Some(frame) = self.alloc_own(order, from)
            {
                return Some(frame);
            }
            let mut next = 0;
            while let Some(sector) = self.shared.next_sector(top, next) {
                let tree = sector / SECTORS_IN_TREE;
                if self.reserve_tree(tree)
                    && let Some(frame) = self.alloc_own(order, from)
                {
                    return Some(frame);
                }
                next = (tree + 1) * SECTORS_IN_TREE;
            }
        }
        if let Some(frame) = self.alloc_anywhere(order) {
            return Some(frame);
        }
        if order == 0 {
            return self.alloc_unseen();
        }
        // The held frames may complete a block.
        if self.drain() { self.alloc_anywhere(order) } else { None }
    }

    /// Takes a frame from any word, whatever the summaries say. While another thread is between its
    /// write of a summary and its look (rule 3), the summaries may hide a sector with many frames,
    /// for as long as that thread does not run.
    #[cold]
    fn alloc_unseen(&self) -> Option<usize> {
        (0..self.shared.words())
            .find_map(|word| self.shared.take_block(word, 0).map(|bit| word * WORD + bit))
    }

    /// Takes a block out of the held block.
    fn alloc_held(&mut self, order: u32) -> Option<usize> {
        let own = self.reserved?;
        let mask = own.mask.load(Ordering::Relaxed);
        let starts = blocks(mask, order);
        if starts == 0 {
            return None;
        }
        let bit = starts.trailing_zeros() as usize;
        own.mask.store(mask & !(span(0, 1 << order) << bit), Ordering::Release);
        Some(own.word * WORD + bit)
    }

    /// Takes a block from the reserved tree; if nothing is held, by holding a whole word.
    fn alloc_own(&mut self, order: u32, from: From) -> Option<usize> {
        let tree = self.reserved?.tree;
        for sector in tree * SECTORS_IN_TREE..(tree + 1) * SECTORS_IN_TREE {
            let state = self.shared.sector_state(sector);
            let choices = match from {
                From::Partial => state.pieces(),
                From::Whole => [state.whole(), 0],
            };
            for word in choices.into_iter().flat_map(state::each) {
                let word = sector * SECTOR_WORDS + word;
                if let Some(frame) = self.alloc_word(tree, word, order) {
                    return Some(frame);
                }
            }
        }
        None
    }

    fn alloc_word(&mut self, tree: usize, word: usize, order: u32) -> Option<usize> {
        if self.shared.held_mask(tree).load(Ordering::Relaxed) != 0 {
            return self.shared.take_block(word, order).map(|bit| word * WORD + bit);
        }
        if blocks(self.shared.bits(word).load(Ordering::Relaxed), order) == 0 {
            return None;
        }
        let mask = self.shared.take_word(word);
        if mask == 0 {
            return None;
        }
        self.hold(tree, word, mask);
        self.alloc_held(order)
    }

    /// Takes a block from any tree, whichever handle has reserved it.
    fn alloc_anywhere(&self, order: u32) -> Option<usize> {
        for top in [Top::Partial, Top::Whole] {
            let mut next = 0;
            while let Some(sector) = self.shared.next_sector(top, next) {
                let state = self.shared.sector_state(sector);
                let [between, full] = state.partial();
                for word in [between, full, state.whole()].into_iter().flat_map(state::each) {
                    let word = sector * SECTOR_WORDS + word;
                    if let Some(bit) = self.shared.take_block(word, order) {
                        return Some(word * WORD + bit);
                    }
                }
                next = sector + 1;
            }
        }
        None
    }

    /// `alloc` from order 6 on: whole words.
    fn alloc_large(&mut self, order: u32) -> Option<usize> {
        let word_order = order - WORD_SHIFT;
        let in_sector = SECTOR_WORDS.ilog2();
        let take = || {
            if word_order <= in_sector {
                self.take_in_sector(word_order)
            } else {
                self.take_sectors(1 << (word_order - in_sector))
            }
        };
        take().or_else(|| if self.drain() { self.alloc_large(order) } else { None })
    }

    /// Takes 2^order full words of one sector, pieces before huge frames.
    fn take_in_sector(&self, order: u32) -> Option<usize> {
        for (choice, top) in [Top::Partial, Top::Whole].into_iter().enumerate() {
            let mut next = 0;
            while let Some(sector) = self.shared.next_sector(top, next) {
                let runs = self.shared.sector_state(sector).runs(order)[choice];
                for word in state::each(runs) {
                    let word = sector * SECTOR_WORDS + word;
                    if self.shared.take_words(word, 1 << order) {
                        return Some(word * WORD);
                    }
                }
                next = sector + 1;
            }
        }
        None
    }

    /// Takes `count` sectors, aligned to their number.
    fn take_sectors(&self, count: usize) -> Option<usize> {
        (0..self.shared.sectors()).step_by(count).find_map(|first| {
            let mut sectors = first..(first + count).min(self.shared.sectors());
            let are_full = sectors.len() == count
                && sectors.all(|sector| self.shared.sector_state(sector).is_full());
            let word = first * SECTOR_WORDS;
            (are_full && self.shared.take_words(word, count * SECTOR_WORDS)).then_some(word * WORD)
        })
    }

    /// Gives back the frames of `mask` in a word whose first bit is managed.
    #[inline]
    fn free_bits(&mut self, word: usize, mask: u64) -> Result<(), Error> {
        if let Some(own) = self.reserved
            && own.word == word
        {
            // No other thread needs to see these frames.
            let held = own.mask.load(Ordering::Relaxed);
            if (held | own.bits.load(Ordering::Relaxed)) & mask != 0 {
                return Err(Error::NotAllocated);
            }
            own.mask.store(held | mask, Ordering::Release);
            return Ok(());
        }
        if self.shared.held_in(word) & mask != 0 {
            return Err(Error::NotAllocated);
        }
        // In most calls nothing from here on writes to this handle's memory: the next atomic
        // instruction would have to wait for the store.
        if self.shared.give_bits(word, mask)? == 0 {
            self.last_opened = word;
        } else if word == self.last_opened {
            self.follow(word);
        }
        Ok(())
    }

    /// Holds a word into which this thread keeps freeing, so that the rest of its frees are plain
    /// stores. Reserves the word's tree for that, unless another handle has it.
    #[cold]
    fn follow(&mut self, word: usize) {
        let tree = word / TREE_WORDS;
        if self.reserved.is_some_and(|own| own.tree == tree) {
            self.drain();
        } else if !self.reserve_tree(tree) {
            return;
        }
        let mask = self.shared.take_word(word);
        self.hold(tree, word, mask);
    }

    /// `free` of any block.
    #[inline(never)]
    fn free_block(&mut self, frame: FrameId, order: Order) -> Result<(), Error> {
        check_block(frame, order, self.shared.frames)?;
        if u32::from(order.get()) < WORD_SHIFT {
            let mask = span(0, order.frames()) << (frame.0 % WORD);
            self.free_bits(frame.0 / WORD, mask)
        } else {
            self.shared.give_range(frame.0, frame.0 + order.frames())
        }
    }
}

impl Drop for Local<'_> {
    fn drop(&mut self) {
        self.release_tree();
    }
}

impl FrameAllocator for Local<'_> {
    // 30 instructions on x86-64, including the bench's loop and every 64th call, which holds
    // another word (`cargo bench -p hectare-buddy --bench instructions`).
    #[inline]
    fn alloc(&mut self, order: Order) -> Result<FrameId, Error> {
        if order == Order::ZERO
            && let Some(own) = self.reserved
        {
            let mask = own.mask.load(Ordering::Relaxed);
            if mask != 0 {
                own.mask.store(mask & (mask - 1), Ordering::Release);
                return Ok(FrameId(own.word * WORD + mask.trailing_zeros() as usize));
            }
        }
        let inner = u32::from(order.get());
        let frame =
            if inner < WORD_SHIFT { self.alloc_slow(inner) } else { self.alloc_large(inner) };
        frame.map(FrameId).ok_or(Error::Exhausted)
    }

    // 75 instructions in random order, most of whose time the compare-and-swap takes; 55 in
    // sequence, where 62 of 64 frees go to the held block by plain stores.
    #[inline]
    fn free(&mut self, frame: FrameId, order: Order) -> Result<(), Error> {
        if order == Order::ZERO && frame.0 < self.shared.frames {
            return self.free_bits(frame.0 / WORD, 1 << (frame.0 % WORD));
        }
        self.free_block(frame, order)
    }

    fn add_region(&mut self, start: FrameId, frames: usize) -> Result<(), Error> {
        self.free_range(start, frames)
    }

    fn frames(&self) -> usize {
        self.shared.frames
    }

    fn free_frames(&self) -> usize {
        self.shared.free_frames()
    }

    fn is_free(&self, frame: FrameId) -> bool {
        self.shared.is_free(frame)
    }

    fn stats(&self) -> Stats {
        self.shared.stats()
    }

    fn validate(&self) -> Result<(), Invalid> {
        self.shared.validate()
    }
}

impl RangeAllocator for Local<'_> {
    fn alloc_range(&mut self, frames: usize, align: usize, limit: usize) -> Result<FrameId, Error> {
        if frames == 0 || !align.is_power_of_two() {
            return Err(Error::InvalidRequest);
        }
        self.drain();
        let enough = frames.checked_add(align).ok_or(Error::Exhausted)?;
        let mut from = 0;
        while let Some((start, end)) = self.shared.next_run(from, enough) {
            let place = start.checked_next_multiple_of(align).ok_or(Error::Exhausted)?;
            let place_end = place.checked_add(frames).ok_or(Error::Exhausted)?;
            if place_end > limit {
                break;
            }
            if place_end <= end && self.shared.take_range(place, place_end).is_ok() {
                return Ok(FrameId(place));
            }
            from = end;
        }
        Err(Error::Exhausted)
    }

    fn reserve(&mut self, start: FrameId, frames: usize) -> Result<(), Error> {
        let end = range_end(start, frames, self.shared.frames)?;
        self.drain();
        self.shared.take_range(start.0, end)
    }

    fn free_range(&mut self, start: FrameId, frames: usize) -> Result<(), Error> {
        let end = range_end(start, frames, self.shared.frames)?;
        self.shared.give_range(start.0, end)
    }
}
