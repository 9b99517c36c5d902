//! Pools: memory that the caller lends to a heap, as many and as far apart as the index width
//! allows, added and taken back while the others are in use.
//!
//! ```text
//!   start                        first payload                          end
//!     │ (pad) │newer│older│size│header│ … blocks … │(footer)│end's header│ (pad)
//!              chain of   └ of the pool, in place           size 0
//!              the pools    of a footer
//! ```

use core::marker::PhantomData;
use core::ptr::NonNull;

use crate::block::{Block, Header};
use crate::error::PoolError;
use crate::heap::Tlsf;
use crate::table::{Rows, Shape, WordOf};
use crate::word::Word;

/// A pool of a heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pool {
    pub(crate) first_payload: usize,
}

impl<R: ?Sized + Rows> Tlsf<R> {
    /// How many bytes of a pool do not become blocks, if the pool is aligned to the granule.
    pub const POOL_OVERHEAD_BYTES: usize = {
        let words = 4 * Self::HEADER_BYTES;
        let granule = 1 << R::Row::GRANULE_LOG2;
        words.div_ceil(granule) * granule
    };

    /// Adds `bytes` of memory from `start` on; neither needs to be aligned. O(pools), since the
    /// memory is compared with each.
    ///
    /// # Errors
    /// [`PoolError`]; the memory is then untouched.
    ///
    /// # Safety
    /// The memory is valid for reads and writes. It belongs to the heap until the pool is removed,
    /// or until neither the heap nor any of its blocks is used any more. (Behind a
    /// [`Locked`](crate::Locked), safe code can use them for as long as it can borrow that.)
    pub unsafe fn add_pool(&mut self, start: NonNull<u8>, bytes: usize) -> Result<Pool, PoolError> {
        let start_address = start.addr().get();
        let end_address = start_address.saturating_add(bytes);
        let is_around = |start: usize, end: usize| start_address < end && start < end_address;
        let own = (&raw const *self).cast::<u8>().addr();
        let overlaps = |pool: Pool| {
            // SAFETY: a pool of this heap begins with a block.
            let first = unsafe { Block::<R::Row>::at(pool.first_payload) };
            let end = first.after(first.footer_before().granules()).payload();
            is_around(pool.first_payload - 4 * Self::HEADER_BYTES, end)
        };
        if is_around(own, own + size_of_val(self)) || self.pools().any(overlaps) {
            return Err(PoolError::Overlap);
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { self.add(start, bytes, false) }
    }

    /// Adds a pool, marked as `owned` or not. Constant time.
    ///
    /// # Safety
    /// As for [`add_pool`](Self::add_pool).
    pub(crate) unsafe fn add(
        &mut self,
        start: NonNull<u8>,
        bytes: usize,
        owned: bool,
    ) -> Result<Pool, PoolError> {
        let granule = 1usize << R::Row::GRANULE_LOG2;
        let address = start.as_ptr().expose_provenance();
        let first = (address.checked_add(4 * Self::HEADER_BYTES))
            .and_then(|after_head| after_head.checked_next_multiple_of(granule))
            .ok_or(PoolError::TooSmall)?;
        let end = address.saturating_add(bytes) & !(granule - 1);
        let granules = end.saturating_sub(first) >> R::Row::GRANULE_LOG2;
        if granules < Block::<R::Row>::MIN_GRANULES {
            return Err(PoolError::TooSmall);
        }
        if granules > self.table.max_granules() {
            return Err(PoolError::TooLarge);
        }
        self.reach(first, end)?;
        // SAFETY: the caller gives the memory to the heap, and it is exposed. By the arithmetic
        // above, the words around `first` lie in it.
        let block = unsafe { Block::<R::Row>::at(first) };
        block.set_footer_before(Header::pool(granules, owned));
        block.set_header(Header::free(granules).with_prev_free());
        block.after(granules).set_header(Header::END.with_prev_free());
        block.after(granules).set_footer_before(Header::free(granules));
        block.set_newer_pool(0);
        let (index, older) = (self.index(block), self.newest_pool.get());
        block.set_older_pool(older);
        if older != 0 {
            self.block(older).set_newer_pool(index);
        }
        self.newest_pool = WordOf::<R>::truncate(index);
        self.pool_count = WordOf::<R>::truncate(self.pool_count.get() + 1);
        self.managed_granules = WordOf::<R>::truncate(self.managed_granules.get() + granules);
        self.link(block, granules);
        Ok(Pool { first_payload: first })
    }

    /// The pool that was added at `start`.
    ///
    /// # Safety
    /// A pool was added at `start` to a heap with these parameters, and has not been removed.
    pub unsafe fn pool_at(start: NonNull<u8>) -> Pool {
        let after_head = start.as_ptr().expose_provenance() + 4 * Self::HEADER_BYTES;
        Pool { first_payload: after_head.next_multiple_of(1 << R::Row::GRANULE_LOG2) }
    }

    /// Takes back a pool, all of whose blocks must be free.
    ///
    /// # Errors
    /// [`PoolError::InUse`].
    ///
    /// # Safety
    /// The pool is one of this heap and was not removed before.
    pub unsafe fn remove_pool(&mut self, pool: Pool) -> Result<(), PoolError> {
        // SAFETY: a pool of this heap begins with a block.
        let block = unsafe { Block::<R::Row>::at(pool.first_payload) };
        let header = block.header();
        let granules = header.granules();
        if !header.is_free() || block.footer_before().granules() != granules {
            return Err(PoolError::InUse);
        }
        self.unlink(block, granules);
        let (older, newer) = (block.older_pool(), block.newer_pool());
        if older != 0 {
            self.block(older).set_newer_pool(newer);
        }
        if newer != 0 {
            self.block(newer).set_older_pool(older);
        } else {
            self.newest_pool = WordOf::<R>::truncate(older);
        }
        self.pool_count = self.pool_count.minus(1).0;
        self.managed_granules = self.managed_granules.minus(granules).0;
        if self.pool_count == WordOf::<R>::ZERO {
            (self.base, self.low, self.end) = (0, WordOf::<R>::ZERO, WordOf::<R>::ZERO);
        }
        Ok(())
    }

    /// The pools, newest first. The heap must not change during the iteration.
    pub fn pools(&self) -> Pools<'_, R> {
        Pools { heap: self, index: self.newest_pool.get(), left: self.pool_count.get() }
    }

    /// Whether a block with links can lie at `payload`: whether one of the smallest fits between it
    /// and the end of a pool. O(pools).
    pub(crate) fn in_pool(&self, payload: usize) -> bool {
        self.pools().any(|pool| {
            // SAFETY: a pool of this heap begins with a block.
            let first = unsafe { Block::<R::Row>::at(pool.first_payload) };
            let bytes = first.footer_before().granules() << R::Row::GRANULE_LOG2;
            payload.wrapping_sub(pool.first_payload) <= bytes.saturating_sub(Self::MIN_BLOCK_BYTES)
        })
    }

    /// Extends the span of indices to cover the blocks from `first` to `end`, if the index width
    /// reaches them.
    fn reach(&mut self, first: usize, end: usize) -> Result<(), PoolError> {
        let is_first_pool = self.pool_count == WordOf::<R>::ZERO;
        let base = if is_first_pool { Self::base_for(first, end) } else { self.base };
        let index = |payload: usize| payload.wrapping_sub(base) >> R::Row::GRANULE_LOG2;
        let (mut low, mut end) = (index(first), index(end));
        let reach = 1..=WordOf::<R>::MAX;
        if !reach.contains(&low) || !reach.contains(&end) {
            return Err(PoolError::OutOfReach);
        }
        if !is_first_pool {
            (low, end) = (low.min(self.low.get()), end.max(self.end.get()));
        }
        self.base = base;
        (self.low, self.end) = (WordOf::<R>::truncate(low), WordOf::<R>::truncate(end));
        Ok(())
    }

    /// The address of index zero that puts the first pool in the middle of the reachable range.
    fn base_for(first: usize, end: usize) -> usize {
        if WordOf::<R>::BITS == usize::BITS {
            return 0;
        }
        let reach_bytes = WordOf::<R>::MAX << R::Row::GRANULE_LOG2;
        let room = reach_bytes.saturating_sub(end - first) >> (R::Row::GRANULE_LOG2 + 1);
        first.wrapping_sub(room.max(1) << R::Row::GRANULE_LOG2)
    }
}

/// An iterator over the pools of a heap.
#[derive(Debug)]
pub struct Pools<'a, R: ?Sized + Rows> {
    heap: &'a Tlsf<R>,
    index: usize,
    left: usize,
}

impl<R: ?Sized + Rows> Iterator for Pools<'_, R> {
    type Item = Pool;

    fn next(&mut self) -> Option<Pool> {
        // A broken chain must neither loop for ever nor lead out of the heap's memory.
        let blocks = self.heap.low.get()..self.heap.end.get();
        if self.index == 0 || self.left == 0 || !blocks.contains(&self.index) {
            return None;
        }
        let block = self.heap.block(self.index);
        self.index = block.older_pool();
        self.left -= 1;
        Some(Pool { first_payload: block.payload() })
    }
}

/// A block as a walk over a pool sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockInfo {
    /// Where its payload begins.
    pub payload: NonNull<u8>,
    /// How many bytes its payload has.
    pub payload_bytes: usize,
    /// Whether it is allocated.
    pub used: bool,
}

/// An iterator over the blocks of a pool, in the order of their addresses.
#[derive(Debug)]
pub struct Blocks<'a, R: ?Sized + Rows> {
    block: Block<R::Row>,
    heap: PhantomData<&'a Tlsf<R>>,
}

impl<R: ?Sized + Rows> Tlsf<R> {
    /// The blocks of a pool. Each step takes constant time.
    ///
    /// # Safety
    /// The pool is one of this heap and was not removed; no header was overwritten
    /// ([`validate`](Self::validate) checks that).
    pub unsafe fn blocks(&self, pool: Pool) -> Blocks<'_, R> {
        // SAFETY: the caller's promise, passed on.
        unsafe { Self::blocks_of(pool) }
    }

    /// The blocks of a pool of any heap with these parameters. The pool must not change during the
    /// iteration.
    ///
    /// # Safety
    /// As for [`blocks`](Self::blocks).
    pub unsafe fn blocks_of<'a>(pool: Pool) -> Blocks<'a, R> {
        // SAFETY: a pool of a heap begins with a block.
        Blocks { block: unsafe { Block::at(pool.first_payload) }, heap: PhantomData }
    }
}

impl<R: ?Sized + Rows> Iterator for Blocks<'_, R> {
    type Item = BlockInfo;

    fn next(&mut self) -> Option<BlockInfo> {
        let block = self.block;
        let header = block.header();
        if header.is_end() {
            return None;
        }
        self.block = block.after(header.granules());
        Some(BlockInfo {
            payload: NonNull::new(block.as_ptr())?,
            payload_bytes: Block::<R::Row>::payload_bytes(header.granules()),
            used: !header.is_free(),
        })
    }
}
