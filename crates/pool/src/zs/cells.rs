//! The handle cells of a zs pool: a table of all cells, and a stack of the free ones.

use hectare_base::sync::{Lock, Park};
use hectare_pages::PageSource;

use super::stack::{self, FreeCells};
use crate::PoolError;
use crate::pin::PinCell64;
use crate::table::{Entry, Table};

// SAFETY: an atomic word is valid as zero.
unsafe impl Entry for PinCell64 {}

#[derive(Debug)]
pub(super) struct Cells<P> {
    pub(super) table: Table<PinCell64>,
    free: FreeCells,
    /// How many cells were ever used; the lock is held while the table grows.
    used: Lock<u32, P>,
}

impl<P: Park> Cells<P> {
    pub(super) fn new(page_bytes: usize) -> Self {
        Self { table: Table::new(page_bytes), free: FreeCells::new(), used: Lock::new(0) }
    }

    #[inline]
    pub(super) fn cell(&self, cell: u32) -> &PinCell64 {
        self.table.get(cell as usize)
    }

    /// Pins the cell of an object and returns its place; none if the cell is free.
    #[inline]
    pub(super) fn pin(&self, cell: u32) -> Option<u64> {
        self.cell(cell).pin::<P>(stack::is_free)
    }

    /// Takes a free cell, which is the caller's from now on.
    #[inline]
    pub(super) fn take(&self, source: &impl PageSource) -> Result<u32, PoolError> {
        match self.free.pop(|cell| self.cell(cell)) {
            Some(cell) => Ok(cell),
            None => self.take_unused(source),
        }
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
        self.free.push(cell, self.cell(cell));
    }
}
