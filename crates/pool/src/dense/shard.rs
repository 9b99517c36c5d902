//! A shard: blocks of any size in a contiguous area, and objects in one or more of them.
//!
//! ```text
//!  area     ┌──────┬────────┬──────┬──────────┬───────────────┬───┬─ ─ ─ ─ ─ ─ ─ ─
//!           │ obj  │ free   │ obj  │ obj      │ free          │end│ not committed
//!           └──────┴────────┴──────┴──────────┴───────────────┴───┴─ ─ ─ ─ ─ ─ ─ ─
//! ```
//!
//! Invariants
//! 1. The blocks follow each other without gaps from the area's start to the end mark, which is the
//!    last unit of what is committed.
//! 2. A head's `PREV_FREE` is set exactly when the block before it is free, and then the unit
//!    before the head holds that block's size. No two neighbours are free.
//! 3. A free block is in the bin of its size exactly if compaction has not closed its start.
//! 4. A page whose given-back bit is set lies within one free block, clear of that block's head,
//!    links and closing size.
//! 5. `free_units` is the sum of all free blocks; `pages` the committed pages less those given
//!    back.

use core::ptr::NonNull;

use hectare_base::sync::{Lock, Park};
use hectare_pages::{PageSource, SourceError};

use super::Limits;
use super::area::{Area, GivenBack, PLACE_BITS, Place, UNIT};
use super::bins::Bins;
use super::block::{HEAD_UNITS, LINKED_HEAD_UNITS, MIN_UNITS};
use super::compact::{Compaction, STEPS_AN_ALLOC};
use crate::PoolError;
use crate::pin::PinCell32;
use crate::table::{Entry, Table};

// SAFETY: an atomic word is valid as zero.
unsafe impl Entry for PinCell32 {}

/// Words of page bits that lie in the shard's own pages: enough for 1024 pages.
const LENT_WORDS: usize = 16;
const WORD_BYTES: usize = size_of::<GivenBack>();
const CELL_BYTES: usize = size_of::<PinCell32>();
/// A free block below this many units (128 bytes) is no piece of a scattered object: the piece's
/// head and link would cost more than 6 % of it.
const MIN_PIECE_UNITS: usize = 32;
/// An object smaller than three such pieces stays whole: cutting it takes a third longer and saves
/// little (a pool of 128 … 192, 192 … 256, 256 … 384 bytes alone: +10.1, +8.4, +6.6 % of overhead
/// whole, +10.7, +7.7, +5.8 % in pieces).
const MIN_SCATTERED_BYTES: usize = 3 * MIN_PIECE_UNITS * UNIT;
/// A free cell keeps the number of the next one, plus one, as if it were a place.
const MAX_CELLS: u32 = (1 << PLACE_BITS) - 2;
/// The most pieces that [`Limits::max_pieces`] can allow.
pub(super) const MAX_PIECES: usize = 16;

/// What is reached without the lock, and the lock.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Shard<P> {
    pub(super) area: Area,
    pub(super) cells: Table<PinCell32>,
    pub(super) given_back: Table<GivenBack>,
    pub(super) page_bytes: usize,
    pub(super) state: Lock<State, P>,
}

/// What the lock guards.
#[derive(Debug)]
pub(super) struct State {
    pub(super) bins: Bins,
    pub(super) limits: Limits,
    /// How much of the area is committed, from its start.
    pub(super) committed_bytes: usize,
    pub(super) free_units: usize,
    pub(super) compaction: Compaction,
    /// The first cell put aside, plus one; 0 if there is none.
    free_cell: u32,
    /// Cells from here on were never used.
    pub(super) cells_end: u32,
    pub(super) objects: usize,
    pub(super) stored_bytes: usize,
    pub(super) pages: usize,
    pub(super) pages_taken: u64,
    pub(super) pages_returned: u64,
    pub(super) objects_moved: u64,
}

impl State {
    const fn new(limits: Limits, first_cell: usize) -> Self {
        Self {
            bins: Bins::new(),
            limits,
            committed_bytes: 0,
            free_units: 0,
            compaction: Compaction::new(),
            free_cell: 0,
            cells_end: first_cell as u32,
            objects: 0,
            stored_bytes: 0,
            pages: 0,
            pages_taken: 0,
            pages_returned: 0,
            objects_moved: 0,
        }
    }
}

/// The units of a block for a piece of `size_bytes`, its last.
#[inline]
const fn block_units(size_bytes: usize) -> usize {
    let units = HEAD_UNITS + size_bytes.div_ceil(UNIT);
    if units < MIN_UNITS { MIN_UNITS } else { units }
}

impl<P: Park> Shard<P> {
    /// Makes a shard over an area of at most `limits.area_bytes`, and lends what the shard's own
    /// pages have to spare to its tables.
    pub(super) fn make(
        source: &impl PageSource,
        limits: Limits,
    ) -> Result<NonNull<Self>, SourceError> {
        let page_bytes = source.page_bytes();
        let area = Area::reserve(source, limits.area_bytes)?;
        let room = match source.get(Self::bytes(page_bytes), page_bytes) {
            Ok(room) => room,
            Err(error) => {
                // SAFETY: reserved just now, used by nobody.
                unsafe { area.release(source) };
                return Err(error);
            }
        };
        let spare_bytes = Self::bytes(page_bytes) - size_of::<Self>();
        let words = spare_bytes.min(LENT_WORDS * WORD_BYTES) / WORD_BYTES;
        let cells = (spare_bytes - words * WORD_BYTES) / CELL_BYTES;
        let cells = cells.min(page_bytes / CELL_BYTES);
        // SAFETY: the shard ends where its spare room starts.
        let spare = unsafe { room.add(size_of::<Self>()) };
        // SAFETY: that many words fit, zeroed and aligned: a shard's size is a multiple of theirs.
        let given_back = unsafe { Table::with_room(page_bytes, spare.cast(), words) };
        // SAFETY: the words end there.
        let spare = unsafe { spare.add(words * WORD_BYTES) };
        // SAFETY: that many cells fit in what is left, zeroed and aligned.
        let cells = unsafe { Table::with_room(page_bytes, spare.cast(), cells) };
        let state = Lock::new(State::new(limits, cells.first()));
        let place = room.cast::<Self>();
        // SAFETY: room for a shard, aligned to a page, hence to a shard.
        unsafe { place.write(Self { area, cells, given_back, page_bytes, state }) };
        Ok(place)
    }

    #[inline]
    pub(super) fn cell(&self, cell: u32) -> &PinCell32 {
        self.cells.get(cell as usize)
    }

    /// The shard as the holder of its lock sees it.
    #[inline]
    pub(super) fn locked<'a, S>(&'a self, source: &'a S, state: &'a mut State) -> Locked<'a, S> {
        let Self { area, ref cells, ref given_back, page_bytes, .. } = *self;
        Locked { area, page_bytes, given_back, cells, source, state }
    }
}

impl<P> Shard<P> {
    /// The bytes of the source that a shard takes, itself and what it lends to its tables.
    pub(super) const fn bytes(page_bytes: usize) -> usize {
        size_of::<Self>().next_multiple_of(page_bytes)
    }

    /// Gives back all memory of the shard but its own structure.
    ///
    /// # Safety
    /// No object of the shard, and no handle, is used any more.
    pub(super) unsafe fn release(&self, source: &impl PageSource) {
        // SAFETY: the caller's promise.
        unsafe { self.cells.release(source) };
        // SAFETY: as above.
        unsafe { self.given_back.release(source) };
        // SAFETY: as above.
        unsafe { self.area.release(source) };
    }
}

/// The state under its lock together with what its places mean.
pub(super) struct Locked<'a, S> {
    pub(super) area: Area,
    pub(super) page_bytes: usize,
    pub(super) given_back: &'a Table<GivenBack>,
    pub(super) cells: &'a Table<PinCell32>,
    pub(super) source: &'a S,
    pub(super) state: &'a mut State,
}

impl<'a, S: PageSource> Locked<'a, S> {
    // ── objects ──────────────────────────────────────────────────────────────────────────────

    /// Room for an object, and the cell that names it.
    #[inline]
    pub(super) fn alloc(&mut self, size_bytes: usize) -> Result<u32, PoolError> {
        let (cell, pin) = self.take_cell()?;
        let place = match self.alloc_pieces(size_bytes) {
            Some(place) => place,
            None => match self.alloc_growing(size_bytes) {
                Ok(place) => place,
                Err(error) => {
                    self.put_cell(cell, pin);
                    return Err(error);
                }
            },
        };
        pin.move_to(place.0);
        self.state.objects += 1;
        self.state.stored_bytes += size_bytes;
        Ok(cell)
    }

    /// Ends an object of `size_bytes`.
    #[inline]
    pub(super) fn free(&mut self, cell: u32, size_bytes: usize) {
        let pin = self.cell(cell);
        let place = Place(pin.peek());
        self.put_cell(cell, pin);
        self.state.objects -= 1;
        self.state.stored_bytes -= size_bytes;
        self.free_pieces(place);
        if self.state.free_units >= self.state.compaction.attention_units {
            self.attend();
        }
    }

    /// Room for `size_bytes` in what is committed: in one piece if some free block is large
    /// enough, else in several.
    #[inline]
    pub(super) fn alloc_pieces(&mut self, size_bytes: usize) -> Option<Place> {
        let units = block_units(size_bytes);
        if let Some(found) = self.find(units) {
            self.carve(found, units, false);
            return Some(found.place);
        }
        self.scatter(size_bytes)
    }

    #[inline]
    pub(super) fn free_pieces(&mut self, mut place: Place) {
        loop {
            let more = self.area.head(place).has_more();
            let next = self.area.link(place.forward(1));
            self.free_block(place);
            if !more {
                return;
            }
            place = next;
        }
    }

    /// Nothing that is listed has room: opens some of what compaction has closed, then takes pages.
    #[cold]
    fn alloc_growing(&mut self, size_bytes: usize) -> Result<Place, PoolError> {
        let mut steps = 0;
        loop {
            let is_opened = steps < STEPS_AN_ALLOC && self.open_for_alloc();
            if !is_opened
                && let Err(error) = self.grow(block_units(size_bytes))
                && !self.open_for_alloc()
            {
                return Err(error);
            }
            if let Some(place) = self.alloc_pieces(size_bytes) {
                return Ok(place);
            }
            steps += 1;
        }
    }

    /// Strings an object over the largest free blocks there are.
    ///
    /// Largest first makes the fewest pieces, and leaves the small ones to small objects.
    fn scatter(&mut self, size_bytes: usize) -> Option<Place> {
        let max_pieces = self.state.limits.max_pieces;
        let is_small = size_bytes < MIN_SCATTERED_BYTES;
        if max_pieces < 2 || is_small || self.state.free_units * UNIT < size_bytes {
            return None;
        }
        let mut pieces = [Place(0); MAX_PIECES];
        let mut count = 0;
        let mut left_bytes = size_bytes;
        while count + 1 < max_pieces {
            let Some(found) = self.largest() else { break };
            let fewest_more = left_bytes.div_ceil(UNIT) / found.units.max(1);
            if found.units < MIN_PIECE_UNITS || count + fewest_more >= max_pieces {
                break;
            }
            self.carve(found, found.units, true);
            pieces[count] = found.place;
            count += 1;
            left_bytes -= (found.units - LINKED_HEAD_UNITS) * UNIT;
            let last_units = block_units(left_bytes);
            if let Some(last) = self.find(last_units) {
                self.carve(last, last_units, false);
                let mut next = last.place;
                for &piece in pieces[..count].iter().rev() {
                    self.area.write(piece.forward(1), next.0);
                    next = piece;
                }
                return Some(next);
            }
        }
        for &piece in &pieces[..count] {
            self.free_block(piece);
        }
        None
    }

    // ── cells ────────────────────────────────────────────────────────────────────────────────

    #[inline]
    pub(super) fn cell(&self, cell: u32) -> &'a PinCell32 {
        self.cells.get(cell as usize)
    }

    #[inline]
    fn take_cell(&mut self) -> Result<(u32, &'a PinCell32), PoolError> {
        if let Some(cell) = self.state.free_cell.checked_sub(1) {
            let pin = self.cell(cell);
            self.state.free_cell = pin.peek();
            return Ok((cell, pin));
        }
        self.take_unused_cell()
    }

    #[cold]
    fn take_unused_cell(&mut self) -> Result<(u32, &'a PinCell32), PoolError> {
        let cell = self.state.cells_end;
        if cell as usize == self.cells.end() {
            if cell >= MAX_CELLS {
                return Err(PoolError::Full);
            }
            self.cells.grow(self.source).map_err(|_| PoolError::OutOfMemory)?;
        }
        self.state.cells_end += 1;
        Ok((cell, self.cell(cell)))
    }

    #[inline]
    fn put_cell(&mut self, cell: u32, pin: &PinCell32) {
        pin.put_aside(self.state.free_cell);
        self.state.free_cell = cell + 1;
    }
}
