//! A shard: blocks of any size in contiguous segments, and objects in one or more of them.
//!
//! ```text
//!  segment  ┌──────┬────────┬──────┬──────────┬───────────────┬───┬─ ─ ─ ─ ─ ─ ─ ─
//!           │ obj  │ free   │ obj  │ obj      │ free          │end│ not committed
//!           └──────┴────────┴──────┴──────────┴───────────────┴───┴─ ─ ─ ─ ─ ─ ─ ─
//! ```
//!
//! Invariants
//! 1. The blocks of a segment follow each other without gaps from its start to the end mark, which
//!    is the last unit of what is committed. Only the last segment is not committed in whole.
//! 2. A head's `PREV_FREE` is set exactly when the block before it is free, and then the unit
//!    before the head holds that block's size. No two neighbours are free.
//! 3. A free block is in the bin of its size exactly if it starts below `closed_from`.
//! 4. A page whose given-back bit is set lies within one free block, clear of that block's head,
//!    links and closing size.
//! 5. `free_units` is the sum of all free blocks; `pages` the committed pages less those given
//!    back.

use core::ptr::NonNull;

use hectare_base::sync::{Lock, Park};
use hectare_pages::PageSource;

use super::Limits;
use super::bins::Bins;
use super::block::{HEAD_UNITS, LINKED_HEAD_UNITS, MIN_UNITS};
use super::place::{PLACE_BITS, Place, Segment, Segments, UNIT};
use crate::PoolError;
use crate::pin::PinCell32;
use crate::table::{Entry, Table};

// SAFETY: an atomic word is valid as zero.
unsafe impl Entry for PinCell32 {}

/// Segments whose descriptors lie in the shard's own pages.
const LENT_SEGMENTS: usize = 4;
/// A free block below this many units (128 bytes) is no piece of a scattered object: the piece's
/// head and link would cost more than 6 % of it.
const MIN_PIECE_UNITS: usize = 32;
/// The most pieces that [`Limits::max_pieces`] can allow.
pub(super) const MAX_PIECES: usize = 16;

/// What is reached without the lock, and the lock.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Shard<P> {
    pub(super) segments: Segments,
    pub(super) cells: Table<PinCell32>,
    pub(super) state: Lock<State, P>,
}

/// What the lock guards.
#[derive(Debug)]
pub(super) struct State {
    pub(super) bins: Bins,
    pub(super) limits: Limits,
    /// Segments in use are `first_segment..segment_end`; the last one is committed up to
    /// `committed_bytes`.
    pub(super) first_segment: usize,
    pub(super) segment_end: usize,
    pub(super) committed_bytes: usize,
    pub(super) free_units: usize,
    pub(super) closed_from: Place,
    /// The first cell put aside, plus one; 0 if there is none.
    free_cell: u32,
    /// Cells from here on were never used.
    pub(super) cells_end: u32,
    pub(super) compacting: bool,
    pub(super) objects: usize,
    pub(super) stored_bytes: usize,
    pub(super) pages: usize,
    pub(super) pages_taken: u64,
    pub(super) pages_returned: u64,
    pub(super) objects_moved: u64,
}

impl State {
    const fn new(limits: Limits, first_segment: usize, first_cell: usize) -> Self {
        Self {
            bins: Bins::new(),
            limits,
            first_segment,
            segment_end: first_segment,
            committed_bytes: 0,
            free_units: 0,
            closed_from: Place::END,
            free_cell: 0,
            cells_end: first_cell as u32,
            compacting: false,
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
    /// Makes a shard at the start of `room`, and lends what that leaves of it to its tables.
    ///
    /// # Safety
    /// `room` has [`bytes`](Self::bytes) of zeroed memory aligned to a page, which nobody else uses
    /// until [`release`](Self::release).
    pub(super) unsafe fn make(
        room: NonNull<u8>,
        page_bytes: usize,
        limits: Limits,
    ) -> NonNull<Self> {
        let spare_bytes = Self::bytes(page_bytes) - size_of::<Self>();
        let page_entries = |entry_bytes: usize| page_bytes / entry_bytes;
        let segment_count = LENT_SEGMENTS.min(page_entries(size_of::<Segment>()));
        let segment_count = segment_count.min(spare_bytes / size_of::<Segment>());
        let cell_room_bytes = spare_bytes - segment_count * size_of::<Segment>();
        let cell_count = cell_room_bytes / size_of::<PinCell32>();
        let cell_count = cell_count.min(page_entries(size_of::<PinCell32>()));
        // SAFETY: the shard ends where its spare room starts.
        let spare = unsafe { room.add(size_of::<Self>()) };
        // SAFETY: `segment_count` entries fit, zeroed; a shard's size is a multiple of theirs.
        let segments = unsafe { Table::with_room(page_bytes, spare.cast(), segment_count) };
        // SAFETY: the segments end there.
        let spare = unsafe { spare.add(segment_count * size_of::<Segment>()) };
        // SAFETY: `cell_count` cells fit in what is left, zeroed and aligned.
        let cells = unsafe { Table::with_room(page_bytes, spare.cast(), cell_count) };
        let state = State::new(limits, segments.first(), cells.first());
        let shard = Self {
            segments: Segments::new(segments, page_bytes, limits.segment_bytes),
            cells,
            state: Lock::new(state),
        };
        let place = room.cast::<Self>();
        // SAFETY: room for a shard, aligned to a page, hence to a shard.
        unsafe { place.write(shard) };
        place
    }

    #[inline]
    pub(super) fn cell(&self, cell: u32) -> &PinCell32 {
        self.cells.get(cell as usize)
    }
}

impl<P> Shard<P> {
    /// The bytes of the source that a shard takes, itself and what it lends to its tables.
    pub(super) const fn bytes(page_bytes: usize) -> usize {
        size_of::<Self>().next_multiple_of(page_bytes)
    }

    /// Gives back all memory of the shard but its own structure.
    pub(super) fn release(&self, source: &impl PageSource) {
        for number in self.segments.table.first()..self.segments.table.end() {
            if let Some(base) = self.segments.segment(number).base() {
                // SAFETY: a reservation made in `add_segment`; the pool is being dropped.
                unsafe { source.release(base, self.segments.segment_bytes()) };
            }
        }
        // SAFETY: as above; no handle may be used any more.
        unsafe { self.cells.release(source) };
        // SAFETY: as above.
        unsafe { self.segments.table.release(source) };
    }
}

/// The state under its lock together with what its places mean.
pub(super) struct Locked<'a, S> {
    pub(super) segments: &'a Segments,
    pub(super) cells: &'a Table<PinCell32>,
    pub(super) source: &'a S,
    pub(super) state: &'a mut State,
}

impl<S: PageSource> Locked<'_, S> {
    // ── objects ──────────────────────────────────────────────────────────────────────────────

    /// Room for an object, and the cell that names it.
    #[inline]
    pub(super) fn alloc(&mut self, size_bytes: usize) -> Result<u32, PoolError> {
        let cell = self.take_cell()?;
        let place = match self.alloc_pieces(size_bytes) {
            Some(place) => place,
            None => match self.alloc_growing(size_bytes) {
                Ok(place) => place,
                Err(error) => {
                    self.put_cell(cell);
                    return Err(error);
                }
            },
        };
        self.cell(cell).move_to(place.0);
        self.state.objects += 1;
        self.state.stored_bytes += size_bytes;
        Ok(cell)
    }

    /// Ends an object of `size_bytes`.
    #[inline]
    pub(super) fn free(&mut self, cell: u32, size_bytes: usize) {
        let place = Place(self.cell(cell).peek());
        self.put_cell(cell);
        self.state.objects -= 1;
        self.state.stored_bytes -= size_bytes;
        self.free_pieces(place);
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
            let words = self.segments.words(place);
            let more = words.head(place).has_more();
            let next = Place(words.read(place.forward(1)));
            self.free_block(words, place);
            if !more {
                return;
            }
            place = next;
        }
    }

    #[cold]
    fn alloc_growing(&mut self, size_bytes: usize) -> Result<Place, PoolError> {
        loop {
            self.grow(block_units(size_bytes))?;
            if let Some(place) = self.alloc_pieces(size_bytes) {
                return Ok(place);
            }
        }
    }

    /// Strings an object over the largest free blocks there are.
    ///
    /// Largest first makes the fewest pieces, and leaves the small ones to small objects.
    fn scatter(&mut self, size_bytes: usize) -> Option<Place> {
        let max_pieces = self.state.limits.max_pieces;
        if max_pieces < 2 || self.state.free_units * UNIT < size_bytes {
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
                    self.segments.words(piece).write(piece.forward(1), next.0);
                    next = piece;
                }
                return Some(next);
            }
        }
        for &piece in &pieces[..count] {
            self.free_block(self.segments.words(piece), piece);
        }
        None
    }

    // ── cells ────────────────────────────────────────────────────────────────────────────────

    #[inline]
    pub(super) fn cell(&self, cell: u32) -> &PinCell32 {
        self.cells.get(cell as usize)
    }

    #[inline]
    fn take_cell(&mut self) -> Result<u32, PoolError> {
        if let Some(cell) = self.state.free_cell.checked_sub(1) {
            self.state.free_cell = self.cell(cell).peek();
            return Ok(cell);
        }
        let cell = self.state.cells_end;
        if cell as usize == self.cells.end() {
            if cell >= (1 << PLACE_BITS) - 2 {
                return Err(PoolError::Full);
            }
            self.cells.grow(self.source).map_err(|_| PoolError::OutOfMemory)?;
        }
        self.state.cells_end += 1;
        Ok(cell)
    }

    #[inline]
    fn put_cell(&mut self, cell: u32) {
        self.cell(cell).put_aside(self.state.free_cell);
        self.state.free_cell = cell + 1;
    }
}
