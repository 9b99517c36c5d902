//! The cells of a shard, which handles name.
//!
//! ```text
//!  area     ┌──────┬────────┬──────┬───┬─ ─ ─ ─ ─ ─ ─ ─ ─ ─┬────────────┬──────┬───────┐
//!           │ obj  │ free   │ obj  │end│ not committed     │ ◀── unused │ cells│ shard │
//!           └──────┴────────┴──────┴───┴─ ─ ─ ─ ─ ─ ─ ─ ─ ─┴────────────┴──────┴───────┘
//!                                                   cells_floor   cells_end   cells_top
//! ```
//!
//! Cells lie under the shard's own structure at the area's upper end and grow down towards the
//! blocks. So a cell is a [`Place`], like a block, and is found with one addition. The first cells
//! lie in what the structure leaves of its page. A cell that names no object is put aside with the
//! place of the next such cell, or of [`NO_CELL`]. No object lies where the links lead.
//!
//! A place has 29 bits. The lowest of the word's other three is the pin. The other two record what
//! the object's last block has to spare, since a move knows the object's size only from its blocks.

use hectare_base::sync::Park;
use hectare_pages::PageSource;

use super::area::{Place, UNIT};
use super::block::MIN_UNITS;
use super::shard::{Locked, Shard};
use crate::PoolError;

#[cfg(not(loom))]
const _: () = assert!(size_of::<crate::pin::PinCell32>() == UNIT);

/// Where an object lies, and how many units its last block has beyond those needed: the rest of a
/// free block that was too small to be a block itself. Both share one word, the form in which a
/// cell keeps them beside its pin: two words would cost an allocation five more instructions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spot(pub(super) u32);

impl Spot {
    pub(super) const PLACE_BITS: u32 = 29;

    #[inline(always)]
    pub(super) const fn new(place: Place, slack_units: usize) -> Self {
        const { assert!(MIN_UNITS <= 1 << (u32::BITS - 1 - Self::PLACE_BITS)) };
        Self(place.0 | (slack_units as u32) << Self::PLACE_BITS)
    }

    #[inline(always)]
    pub(super) const fn place(self) -> Place {
        Place(self.0 & ((1 << Self::PLACE_BITS) - 1))
    }

    #[inline(always)]
    pub(super) const fn slack_units(self) -> usize {
        (self.0 >> Self::PLACE_BITS) as usize
    }
}

/// Ends the list of cells that name no object. It is beyond every cell: either the shard's own
/// structure lies there or the area ends before.
pub(super) const NO_CELL: Place = Place((1 << Spot::PLACE_BITS) - 1);

impl<P: Park> Shard<P> {
    /// Pins the cell of an object and returns where the object lies; none if the cell names none.
    #[inline]
    pub(super) fn pin(&self, cell: Place) -> Option<Spot> {
        // Who holds a pin does not wait for the lock, so waiting for it here ends.
        let is_link = |word| Spot(word).place() >= self.state.lock().cells_end;
        self.area.cell(cell).pin::<P>(is_link).map(Spot)
    }
}

impl<S: PageSource> Locked<'_, S> {
    /// A cell that names no object. It counts as pinned, or was never used.
    #[inline(always)]
    pub(super) fn take_cell(&mut self) -> Result<Place, PoolError> {
        let cell = self.state.free_cell;
        if cell == NO_CELL {
            return self.out_of_line().take_unused_cell();
        }
        self.state.free_cell = Place(self.area.cell(cell).peek());
        Ok(cell)
    }

    #[cold]
    fn take_unused_cell(&mut self) -> Result<Place, PoolError> {
        let cell = self.state.cells_end.backward(1);
        if cell < self.state.cells_floor {
            let floor_bytes = self.state.cells_floor.offset_bytes();
            if self.state.committed_bytes + self.page_bytes() > floor_bytes {
                return Err(PoolError::Full);
            }
            let page = self.area.at(floor_bytes - self.page_bytes());
            // SAFETY: a page of the area between the blocks and the cells.
            unsafe { self.source.commit(page, self.page_bytes()) }
                .map_err(|_| PoolError::OutOfMemory)?;
            self.state.cells_floor = self.state.cells_floor.backward(self.page_bytes() / UNIT);
        }
        self.state.cells_end = cell;
        Ok(cell)
    }

    /// Where the object lies that `cell` names; none if this is no cell, or one put aside. A cell
    /// put aside counts as pinned. The cell of an object is not pinned: nobody reads what is being
    /// freed, and compaction would hold the shard's lock.
    #[inline(always)]
    pub(super) fn spot_of(&self, cell: Place) -> Option<Spot> {
        let is_cell = self.state.cells_end <= cell && cell < self.state.cells_top;
        if is_cell { self.area.cell(cell).peek_unpinned().map(Spot) } else { None }
    }

    /// Puts aside a cell that no longer names an object.
    #[inline(always)]
    pub(super) fn put_cell(&mut self, cell: Place) {
        self.area.cell(cell).put_aside(self.state.free_cell.0);
        self.state.free_cell = cell;
    }
}
