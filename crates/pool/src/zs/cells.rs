//! The handle cells of a zs pool: a table, and a lock-free stack of those that are free.
//!
//! ```text
//!   head: │ tag, 32 bits │ cell + 1, 32 bits │ ──▶ cell ──▶ cell ──▶ 0
//! ```
//! Invariants
//! 1. A cell on the stack is put aside (see [`pin`](crate::pin)), its link the next one plus 1.
//! 2. Every change of the head changes its tag: a thread that read a link of a cell which others
//!    took and put back meanwhile fails to swing the head. (Treiber, 1986; the tag as in IBM
//!    System/370's.)
//!
//! Orderings: pushing is `Release`, popping `Acquire`: who pops a cell sees its link. The cell's
//! content is then handed on by the pin.

use hectare_base::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire};
use hectare_base::sync::{Lock, Park};
use hectare_pages::PageSource;

use crate::PoolError;
use crate::pin::PinCell64;
use crate::table::{Entry, Table};

// SAFETY: an atomic word is valid as zero.
unsafe impl Entry for PinCell64 {}

const INDEX_BITS: u32 = 32;

#[derive(Debug)]
pub(super) struct Cells<P> {
    pub(super) table: Table<PinCell64>,
    head: AtomicU64,
    /// How many cells were ever used; held while the table grows.
    used: Lock<u32, P>,
}

impl<P: Park> Cells<P> {
    pub(super) fn new(page_bytes: usize) -> Self {
        Self { table: Table::new(page_bytes), head: AtomicU64::new(0), used: Lock::new(0) }
    }

    #[inline]
    pub(super) fn cell(&self, cell: u32) -> &PinCell64 {
        self.table.get(cell as usize)
    }

    /// A free cell, from now on the caller's.
    #[inline]
    pub(super) fn take(&self, source: &impl PageSource) -> Result<u32, PoolError> {
        let mut head = self.head.load(Acquire);
        while let Some(cell) = (head as u32).checked_sub(1) {
            let link = self.cell(cell).peek();
            let next = next_tag(head) | u64::from(link as u32);
            match self.head.compare_exchange_weak(head, next, AcqRel, Acquire) {
                Ok(_) => return Ok(cell),
                Err(now) => head = now,
            }
        }
        self.take_unused(source)
    }

    #[cold]
    fn take_unused(&self, source: &impl PageSource) -> Result<u32, PoolError> {
        let mut used = self.used.lock();
        if *used as usize == self.table.end() {
            self.table.grow(source).map_err(|_| PoolError::OutOfMemory)?;
        }
        let cell = *used;
        *used = cell.checked_add(1).filter(|&used| used < u32::MAX).ok_or(PoolError::Full)?;
        Ok(cell)
    }

    /// Puts a cell back that the caller has pinned or taken.
    #[inline]
    pub(super) fn put(&self, cell: u32) {
        let place = self.cell(cell);
        let mut head = self.head.load(Acquire);
        loop {
            place.put_aside(head & u64::from(u32::MAX));
            let next = next_tag(head) | u64::from(cell + 1);
            match self.head.compare_exchange_weak(head, next, AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

/// The head's tag, one further, over an empty index.
#[inline]
const fn next_tag(head: u64) -> u64 {
    ((head >> INDEX_BITS) + 1) << INDEX_BITS
}
