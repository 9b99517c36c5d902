//! Checks the whole heap against its invariants.

use crate::bin::Bin;
use crate::block::{Block, Header};
use crate::error::Corruption;
use crate::heap::Tlsf;
use crate::pool::Pool;
use crate::table::{Rows, Shape};
use crate::word::Word;

/// What a walk over the pools counts.
#[derive(Default)]
struct Totals {
    managed: usize,
    used: usize,
    free_blocks: usize,
}

impl<R: ?Sized + Rows> Tlsf<R> {
    /// Checks every block, list, bitmap and counter. O(blocks × pools).
    ///
    /// # Errors
    /// The first [`Corruption`] found.
    pub fn validate(&self) -> Result<(), Corruption> {
        let mut totals = Totals::default();
        let mut pools = 0;
        let (mut newer_pool, mut older_pool) = (0, 0);
        for pool in self.pools() {
            // SAFETY: a pool of this heap begins with a block.
            let first = unsafe { Block::<R::Row>::at(pool.first_payload) };
            let pool = first.footer_before();
            if pool.granules() > self.end.get() - self.index(first) || pool.is_free() {
                return Err(Corruption::Size(first.payload()));
            }
            if first.newer_pool() != newer_pool {
                return Err(Corruption::Pools);
            }
            (newer_pool, older_pool) = (self.index(first), first.older_pool());
            Self::validate_pool(first, &mut totals)?;
            pools += 1;
        }
        if pools != self.pool_count.get() || older_pool != 0 {
            return Err(Corruption::Pools);
        }
        if totals.managed != self.managed_granules.get()
            || self.headroom_bits >> Header::FLAG_BITS > self.peak_used_granules.get()
            || totals.used != self.used_granules()
        {
            return Err(Corruption::Count);
        }
        if !self.table.bitmaps_agree() {
            return Err(Corruption::Bitmap);
        }
        let victims = self.validate_victim()?;
        let to_list = totals.free_blocks.checked_sub(victims).ok_or(Corruption::Unlisted)?;
        self.validate_lists(to_list)
    }

    /// Checks that the victim, if there is one, is a free block; returns the number of victims.
    fn validate_victim(&self) -> Result<usize, Corruption> {
        let (index, granules) = (self.victim.get(), self.victim_granules.get());
        if index == 0 && granules == 0 {
            return Ok(0);
        }
        let block = self.block(index);
        let at = block.payload();
        if !self.in_pool(at) || !block.header().is_free() || block.header().granules() != granules {
            return Err(Corruption::List(at));
        }
        Ok(1)
    }

    /// Checks the blocks of one pool of any heap with these parameters. O(blocks).
    ///
    /// # Errors
    /// The first [`Corruption`] found.
    ///
    /// # Safety
    /// The pool belongs to such a heap and was not removed.
    pub unsafe fn validate_one(pool: Pool) -> Result<(), Corruption> {
        // SAFETY: a pool begins with a block.
        let first = unsafe { Block::<R::Row>::at(pool.first_payload) };
        // Nothing limits here how large a pool may be, and the end of too large a pool is no
        // address.
        let most_granules = (usize::MAX - first.payload()) >> R::Row::GRANULE_LOG2;
        let pool = first.footer_before();
        if pool.granules() > most_granules || pool.is_free() {
            return Err(Corruption::Size(first.payload()));
        }
        Self::validate_pool(first, &mut Totals::default())
    }

    fn validate_pool(first: Block<R::Row>, totals: &mut Totals) -> Result<(), Corruption> {
        let mut block = first;
        let mut prev_free = true;
        let mut footer = first.footer_before();
        let end = first.after(footer.granules()).payload();
        loop {
            let header = block.header();
            let at = block.payload();
            if header.is_prev_free() != prev_free
                || (block != first && prev_free && block.footer_before() != footer)
            {
                return Err(Corruption::PrevFree(at));
            }
            let granules = header.granules();
            if at == end && granules == 0 && !header.is_free() {
                return Ok(());
            }
            if granules > (end - at) >> R::Row::GRANULE_LOG2
                || granules < Block::<R::Row>::MIN_GRANULES
            {
                return Err(Corruption::Size(at));
            }
            if header.is_free() && prev_free && block != first {
                return Err(Corruption::Unmerged(at));
            }
            totals.managed += granules;
            totals.used += if header.is_free() { 0 } else { granules };
            totals.free_blocks += usize::from(header.is_free());
            prev_free = header.is_free();
            footer = Header::free(granules);
            block = block.after(granules);
        }
    }

    /// Checks that the lists hold `free_blocks` blocks. Each block must have its list's size and a
    /// `prev` that names the block before it, so that none is listed twice and none is the victim.
    fn validate_lists(&self, free_blocks: usize) -> Result<(), Corruption> {
        let mut listed = 0;
        for bin in self.table.bins() {
            let mut prev = 0;
            let mut index = self.table.head(bin);
            while index != 0 {
                let block = self.block(index);
                let at = block.payload();
                listed += 1;
                if listed > free_blocks || index == self.victim.get() || !self.in_pool(at) {
                    return Err(Corruption::List(at));
                }
                let header = block.header();
                if !header.is_free()
                    || Bin::of::<R::Row>(header.granules()) != bin
                    || (prev != 0 && block.prev() != prev)
                {
                    return Err(Corruption::List(at));
                }
                prev = index;
                index = block.next();
            }
        }
        if listed == free_blocks { Ok(()) } else { Err(Corruption::Unlisted) }
    }
}
