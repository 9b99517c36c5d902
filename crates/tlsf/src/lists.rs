//! Free blocks: into the lists, out of them, and the one block that is in no list.
//!
//! That block is the **victim** (dlmalloc's word), what the last split left. Often the next block
//! is cut off it, or the block right before it is freed next; then no list is touched.
//!
//! Invariants
//! 1. The victim is in no list; every other free block is in the list of its size.
//! 2. `victim` and `victim_granules` are both zero, or the index and the size of a free block.

use core::hint::select_unpredictable;

use crate::bin::Bin;
use crate::block::{Block, Header};
use crate::heap::Tlsf;
use crate::table::{Rows, WordOf};
use crate::word::Word;

/// How many blocks of a list are examined if the list may, but need not, hold one that is large
/// enough, and all lists after it are empty.
pub(crate) const PROBES: usize = 4;

/// Blocks of fewer granules than this are cut off the victim without a search past the next list...
const SMALL_GRANULES: usize = 8;
/// ... while the victim has fewer than this: small blocks should not be strewn over a wilderness.
const WILDERNESS_GRANULES: usize = 4096;

impl<R: ?Sized + Rows> Tlsf<R> {
    /// Takes a free block of at least `granules` out of its list, or takes the victim. All blocks
    /// in `bin` and the lists after it are large enough.
    #[inline(always)]
    pub(crate) fn take(&mut self, granules: usize, bin: Bin) -> Option<Block<R::Row>> {
        let victim_granules = self.victim_granules.get();
        let victim_fits = victim_granules >= granules;
        if victim_fits && granules < SMALL_GRANULES && victim_granules < WILDERNESS_GRANULES {
            return Some(self.take_victim());
        }
        match self.table.find(bin) {
            Some(bin) if !victim_fits || bin < Bin::of::<R::Row>(victim_granules) => {
                let block = self.block(self.table.head(bin));
                self.table.pop(bin, block.next());
                Some(block)
            }
            _ => victim_fits.then(|| self.take_victim()),
        }
    }

    /// Takes the victim; there is none afterwards.
    #[inline(always)]
    fn take_victim(&mut self) -> Block<R::Row> {
        let block = self.block(self.victim.get());
        self.set_victim(0, 0);
        block
    }

    #[inline(always)]
    fn set_victim(&mut self, index: usize, granules: usize) {
        self.victim = WordOf::<R>::truncate(index);
        self.victim_granules = WordOf::<R>::truncate(granules);
    }

    /// The victim or one of the first blocks in the list of `granules`, if it is large enough.
    pub(crate) fn probe(&self, granules: usize) -> Option<Block<R::Row>> {
        if self.victim_granules.get() >= granules {
            return Some(self.block(self.victim.get()));
        }
        let mut index = self.table.head(Bin::of::<R::Row>(granules));
        for _ in 0..PROBES {
            if index == 0 {
                break;
            }
            let block = self.block(index);
            if block.header().granules() >= granules {
                return Some(block);
            }
            index = block.next();
        }
        None
    }

    /// Makes the `granules` from `block` on a free block and the new victim; the old victim goes to
    /// its list. The block before is used, and the block after already has `PREV_FREE` set.
    #[inline(always)]
    pub(crate) fn split_off(&mut self, block: Block<R::Row>, granules: usize) {
        block.set_header(Header::free(granules));
        block.after(granules).set_footer_before(Header::free(granules));
        let (old, old_granules) = (self.victim.get(), self.victim_granules.get());
        self.set_victim(self.index(block), granules);
        if old != 0 {
            self.push(self.block(old), Bin::of::<R::Row>(old_granules));
        }
    }

    /// Puts a free block at the head of its list, or makes it the victim if there is none.
    #[inline(always)]
    pub(crate) fn link(&mut self, block: Block<R::Row>, granules: usize) {
        if self.victim == WordOf::<R>::ZERO {
            self.set_victim(self.index(block), granules);
        } else {
            self.push(block, Bin::of::<R::Row>(granules));
        }
    }

    /// Puts a free block at the head of `bin`.
    #[inline(always)]
    fn push(&mut self, block: Block<R::Row>, bin: Bin) {
        self.push_index(block, self.index(block), bin);
    }

    /// As [`push`](Self::push), for a block whose index is known.
    #[inline(always)]
    pub(crate) fn push_index(&mut self, block: Block<R::Row>, index: usize, bin: Bin) {
        let old = self.table.push(bin, index);
        block.set_next(old);
        // Whether the list had a block is unpredictable, so this selects the address to write to
        // instead of branching: the `prev` of the first block is meaningless anyway.
        select_unpredictable(old != 0, self.block(old), block).set_prev(index);
    }

    /// Takes a free block of `granules` out of its list; if it was the victim, there is none
    /// afterwards.
    #[inline(always)]
    pub(crate) fn unlink(&mut self, block: Block<R::Row>, granules: usize) {
        let index = self.index(block);
        if index == self.victim.get() {
            return self.set_victim(0, 0);
        }
        let next = block.next();
        let bin = Bin::of::<R::Row>(granules);
        if self.table.head(bin) == index {
            self.table.pop(bin, next);
        } else {
            let prev = block.prev();
            self.block(prev).set_next(next);
            select_unpredictable(next != 0, self.block(next), block).set_prev(prev);
        }
    }
}
