//! A shard: blocks of any size in a contiguous area, and objects in one or more of them.
//!
//! ```text
//!  area     ┌──────┬────────┬──────┬──────────┬─────┬───┬─ ─ ─ ─ ─ ─ ─ ─ ─┬───────┬───────┐
//!           │ obj  │ free   │ obj  │ obj      │ free│end│ not committed    │ cells │ shard │
//!           └──────┴────────┴──────┴──────────┴─────┴───┴─ ─ ─ ─ ─ ─ ─ ─ ─┴───────┴───────┘
//! ```
//!
//! Blocks grow up, [cells](super::cells) down, and when they meet the shard is full.
//!
//! Invariants
//! 1. The blocks follow each other without gaps from the area's start to the end mark, which is the
//!    last unit committed for blocks.
//! 2. A head's `PREV_FREE` is set exactly when the block before it is free, and then the unit
//!    before the head holds that block's size. No two neighbours are free.
//! 3. A free block is in the bin of its size exactly when compaction has not closed its start.
//! 4. A page whose given-back bit is set lies within one free block, clear of that block's head,
//!    links and closing size.
//! 5. `free_units` is the sum of all free blocks; `pages` counts the pages committed for blocks,
//!    less those given back.
//! 6. The area is committed from `cells_floor` on, and no block lies there. Every cell ever used
//!    lies in `cells_end..cells_top`.

use core::ptr::NonNull;

use hectare_base::sync::{Lock, Park};
use hectare_pages::{PageSource, SourceError};

use super::Limits;
use super::area::{Area, GivenBack, Place, UNIT};
use super::bins::Bins;
use super::block::{HEAD_UNITS, LINKED_HEAD_UNITS, MIN_UNITS};
use super::cells::{NO_CELL, Spot};
use super::compact::{Compaction, STEPS_AN_ALLOC};
use crate::PoolError;
use crate::table::Table;

/// Words of page bits that lie in the shard's own pages: enough for 1024 pages.
const LENT_WORDS: usize = 16;
/// A free block of fewer units than this (128 bytes) is not used for a piece of a scattered object:
/// the piece's head and link would cost more than 6 % of it.
const MIN_PIECE_UNITS: usize = 32;
/// An object smaller than three such pieces stays whole: cutting it takes a third longer and saves
/// little (a pool of 128 … 192, 192 … 256, 256 … 384 bytes alone: +10.1, +8.4, +6.6 % of overhead
/// whole, +10.7, +7.7, +5.8 % in pieces).
const MIN_SCATTERED_BYTES: usize = 3 * MIN_PIECE_UNITS * UNIT;
/// The most pieces that [`Limits::max_pieces`] can allow.
pub(super) const MAX_PIECES: usize = 16;

/// The parts that are accessed without the lock, and the lock itself.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Shard<P> {
    pub(super) area: Area,
    pub(super) given_back: Table<GivenBack>,
    pub(super) state: Lock<State, P>,
}

/// What the lock guards.
#[derive(Debug)]
pub(super) struct State {
    pub(super) free_units: usize,
    /// The first cell put aside; `NO_CELL` if there is none.
    pub(super) free_cell: Place,
    pub(super) page_bytes: u32,
    pub(super) objects: usize,
    pub(super) stored_bytes: usize,
    pub(super) compaction: Compaction,
    pub(super) bins: Bins,
    pub(super) limits: Limits,
    /// How much of the area is committed, from its start.
    pub(super) committed_bytes: usize,
    /// Cells extend from here down …
    pub(super) cells_top: Place,
    /// … to here; cells below were never used.
    pub(super) cells_end: Place,
    /// The area is committed from here, the start of a page, to its end.
    pub(super) cells_floor: Place,
    pub(super) pages: usize,
    pub(super) pages_taken: u64,
    pub(super) pages_returned: u64,
    pub(super) objects_moved: u64,
}

impl State {
    /// How much of the source's memory the cells take, beyond what a new shard takes.
    pub(super) fn cell_bytes<P>(&self, area: Area) -> usize {
        let top_bytes = area.bytes() - self.cells_floor.offset_bytes();
        top_bytes - Shard::<P>::bytes(self.page_bytes as usize)
    }
}

/// The units of a block for the last piece of an object, which has `size_bytes`.
#[inline]
pub(super) const fn block_units(size_bytes: usize) -> usize {
    let units = HEAD_UNITS + size_bytes.div_ceil(UNIT);
    if units < MIN_UNITS { MIN_UNITS } else { units }
}

impl<P: Park> Shard<P> {
    /// Makes a shard at the end of an area of at most `limits.area_bytes`.
    pub(super) fn make(
        source: &impl PageSource,
        limits: Limits,
    ) -> Result<NonNull<Self>, SourceError> {
        let page_bytes = source.page_bytes();
        let least_bytes = Self::bytes(page_bytes) + 2 * page_bytes;
        let area = Area::reserve(source, limits.area_bytes, least_bytes.next_power_of_two())?;
        let floor_bytes = area.bytes() - Self::bytes(page_bytes);
        // SAFETY: the last pages of the reservation.
        if let Err(error) = unsafe { source.commit(area.at(floor_bytes), Self::bytes(page_bytes)) }
        {
            // SAFETY: reserved just now, used by nobody.
            unsafe { area.release(source) };
            return Err(error);
        }
        let own_bytes = area.bytes() - size_of::<Self>();
        let words_bytes = own_bytes - LENT_WORDS * size_of::<GivenBack>();
        // SAFETY: that many words lie under the shard, zeroed and aligned, and nothing else uses
        // them.
        let given_back =
            unsafe { Table::with_room(page_bytes, area.at(words_bytes).cast(), LENT_WORDS) };
        let cells_top = Place((words_bytes / UNIT) as u32);
        let state = State {
            free_units: 0,
            free_cell: NO_CELL,
            page_bytes: page_bytes as u32,
            objects: 0,
            stored_bytes: 0,
            compaction: Compaction::new(),
            bins: Bins::new(),
            limits,
            committed_bytes: 0,
            cells_top,
            cells_end: cells_top,
            cells_floor: Place((floor_bytes / UNIT) as u32),
            pages: 0,
            pages_taken: 0,
            pages_returned: 0,
            objects_moved: 0,
        };
        let place = area.at(own_bytes).cast::<Self>();
        // SAFETY: room for a shard; aligned, as the area's end and a shard's size are.
        unsafe { place.write(Self { area, given_back, state: Lock::new(state) }) };
        Ok(place)
    }

    /// The shard as seen by the holder of its lock.
    #[inline]
    pub(super) const fn locked<'a, S>(
        &'a self,
        source: &'a S,
        state: &'a mut State,
    ) -> Locked<'a, S> {
        Locked { area: self.area, given_back: &self.given_back, source, state }
    }
}

impl<P> Shard<P> {
    /// What a new shard takes from the source: itself, words of page bits, and its first cells.
    pub(super) const fn bytes(page_bytes: usize) -> usize {
        let bytes = size_of::<Self>() + LENT_WORDS * size_of::<GivenBack>() + UNIT;
        bytes.next_multiple_of(page_bytes)
    }

    /// Gives back all memory of the shard, itself included.
    ///
    /// # Safety
    /// Neither the shard nor any object or handle of it is used any more.
    pub(super) unsafe fn release(shard: NonNull<Self>, source: &impl PageSource) {
        // SAFETY: by the caller's promise it still exists.
        let Self { area, given_back, .. } = unsafe { shard.as_ref() };
        // SAFETY: the caller's promise.
        unsafe { given_back.release(source) };
        // SAFETY: as above.
        unsafe { area.release(source) };
    }
}

/// The locked state together with what gives its places their meaning.
pub(super) struct Locked<'a, S> {
    pub(super) area: Area,
    pub(super) given_back: &'a Table<GivenBack>,
    pub(super) source: &'a S,
    pub(super) state: &'a mut State,
}

impl<S: PageSource> Locked<'_, S> {
    #[inline(always)]
    pub(super) fn page_bytes(&self) -> usize {
        self.state.page_bytes as usize
    }

    /// A copy of this, for a call out of line. A call that took the address of this would have the
    /// caller keep it in memory, and read the area's base from there with every access.
    #[inline(always)]
    pub(super) const fn out_of_line(&mut self) -> Locked<'_, S> {
        Locked {
            area: self.area,
            given_back: self.given_back,
            source: self.source,
            state: &mut *self.state,
        }
    }

    /// Room for an object, and the cell that names it.
    #[inline(always)]
    pub(super) fn alloc(&mut self, size_bytes: usize) -> Result<Place, PoolError> {
        let cell = self.take_cell()?;
        let spot = match self.alloc_whole(size_bytes) {
            Some(spot) => spot,
            None => match self.out_of_line().alloc_otherwise(size_bytes) {
                Ok(spot) => spot,
                Err(error) => {
                    self.put_cell(cell);
                    return Err(error);
                }
            },
        };
        self.area.cell(cell).move_to(spot.0);
        self.state.objects += 1;
        self.state.stored_bytes += size_bytes;
        Ok(cell)
    }

    /// Ends an object of `size_bytes`. False, with nothing changed, if the cell names none.
    #[inline(always)]
    pub(super) fn free(&mut self, cell: Place, size_bytes: usize) -> bool {
        let Some(spot) = self.spot_of(cell) else { return false };
        let place = spot.place();
        self.put_cell(cell);
        self.state.objects -= 1;
        self.state.stored_bytes -= size_bytes;
        self.free_pieces(place);
        if self.state.free_units >= self.state.compaction.attention_units {
            self.out_of_line().attend();
        }
        true
    }

    /// Room for `size_bytes` in committed memory: in one piece if some free block is large enough,
    /// otherwise in several.
    pub(super) fn alloc_pieces(&mut self, size_bytes: usize) -> Option<Spot> {
        self.alloc_whole(size_bytes).or_else(|| self.scatter(size_bytes))
    }

    /// Room for `size_bytes` in one free block.
    #[inline(always)]
    fn alloc_whole(&mut self, size_bytes: usize) -> Option<Spot> {
        let units = block_units(size_bytes);
        let found = self.find(units)?;
        let slack_units = self.carve(found, units, false);
        Some(Spot::new(found.place, slack_units))
    }

    /// No free block is large enough: allocates in pieces, or with more pages.
    #[inline(never)]
    fn alloc_otherwise(&mut self, size_bytes: usize) -> Result<Spot, PoolError> {
        match self.scatter(size_bytes) {
            Some(spot) => Ok(spot),
            None => self.alloc_growing(size_bytes),
        }
    }

    #[inline(always)]
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

    /// No listed block has room: opens some of what compaction has closed, then takes pages.
    #[cold]
    fn alloc_growing(&mut self, size_bytes: usize) -> Result<Spot, PoolError> {
        let mut steps = 0;
        loop {
            let is_opened = steps < STEPS_AN_ALLOC && self.open_for_alloc();
            if !is_opened
                && let Err(error) = self.grow(block_units(size_bytes))
                && !self.open_for_alloc()
            {
                return Err(error);
            }
            if let Some(spot) = self.alloc_pieces(size_bytes) {
                return Ok(spot);
            }
            steps += 1;
        }
    }

    /// Spreads an object over the largest free blocks there are.
    ///
    /// Largest first makes the fewest pieces, and leaves the small blocks to small objects.
    fn scatter(&mut self, size_bytes: usize) -> Option<Spot> {
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
                let slack_units = self.carve(last, last_units, false);
                let mut next = last.place;
                for &piece in pieces[..count].iter().rev() {
                    self.area.write(piece.forward(1), next.0);
                    next = piece;
                }
                return Some(Spot::new(next, slack_units));
            }
        }
        for &piece in &pieces[..count] {
            self.free_block(piece);
        }
        None
    }
}
