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
use super::bins::{Bins, bin_of};
use super::block::{HEAD_UNITS, Head, LINKED_HEAD_UNITS, MIN_UNITS};
use super::place::{PLACE_BITS, Place, Segments, UNIT};
use crate::PoolError;
use crate::pin::PinCell32;
use crate::table::{Entry, Table};

// SAFETY: an atomic word is valid as zero.
unsafe impl Entry for PinCell32 {}

/// How many blocks of the best bin are looked at before the next bin is taken.
const BIN_TRIES: usize = 4;
/// A free block below this many units (128 bytes) is no piece of a scattered object: the piece's
/// head and link would cost more than 6 % of it.
const MIN_PIECE_UNITS: usize = 32;
/// The most pieces that [`Limits::max_pieces`] can allow.
pub(super) const MAX_PIECES: usize = 16;

/// What is reached without the lock, and the lock.
#[derive(Debug)]
pub(super) struct Shard<P> {
    pub(super) segments: Segments,
    pub(super) cells: Table<PinCell32>,
    pub(super) state: Lock<State, P>,
}

/// What the lock guards.
#[derive(Debug)]
pub(super) struct State {
    bins: Bins,
    pub(super) limits: Limits,
    /// Segments in use; the last one is committed up to `committed_bytes`.
    pub(super) segment_count: usize,
    committed_bytes: usize,
    pub(super) free_units: usize,
    pub(super) closed_from: Place,
    /// The first cell put aside, plus one; 0 if there is none.
    free_cell: u32,
    /// Cells that were ever used; those beyond have no object.
    pub(super) cells_used: u32,
    pub(super) compacting: bool,
    pub(super) objects: usize,
    pub(super) stored_bytes: usize,
    pub(super) pages: usize,
    pub(super) pages_taken: u64,
    pub(super) pages_returned: u64,
    pub(super) objects_moved: u64,
}

/// The units of a block for a piece of `size_bytes`, its last.
#[inline]
const fn block_units(size_bytes: usize) -> usize {
    let units = HEAD_UNITS + size_bytes.div_ceil(UNIT);
    if units < MIN_UNITS { MIN_UNITS } else { units }
}

impl<P: Park> Shard<P> {
    pub(super) fn new(page_bytes: usize, limits: Limits) -> Self {
        let state = State {
            bins: Bins::new(),
            limits,
            segment_count: 0,
            committed_bytes: 0,
            free_units: 0,
            closed_from: Place::END,
            free_cell: 0,
            cells_used: 0,
            compacting: false,
            objects: 0,
            stored_bytes: 0,
            pages: 0,
            pages_taken: 0,
            pages_returned: 0,
            objects_moved: 0,
        };
        Self {
            segments: Segments::new(page_bytes, limits.segment_bytes),
            cells: Table::new(),
            state: Lock::new(state),
        }
    }

    #[inline]
    pub(super) fn cell(&self, cell: u32) -> &PinCell32 {
        self.cells.get(cell as usize, self.segments.page_bytes)
    }
}

impl<P> Shard<P> {
    /// Gives back all memory of the shard but its own structure.
    pub(super) fn release(&self, source: &impl PageSource) {
        for number in 0..self.segments.table.capacity(self.segments.page_bytes) {
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
    #[inline]
    pub(super) fn head(&self, place: Place) -> Head {
        Head(self.segments.read(place))
    }

    #[inline]
    fn set_head(&self, place: Place, head: Head) {
        self.segments.write(place, head.0);
    }

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
        if let Some(place) = self.find(units) {
            self.carve(place, units, false);
            return Some(place);
        }
        self.scatter(size_bytes)
    }

    #[inline]
    pub(super) fn free_pieces(&mut self, mut place: Place) {
        loop {
            let head = self.head(place);
            let next =
                Place(if head.has_more() { self.segments.read(place.forward(1)) } else { 0 });
            self.free_block(place);
            if !head.has_more() {
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
    #[cold]
    fn scatter(&mut self, size_bytes: usize) -> Option<Place> {
        let max_pieces = self.state.limits.max_pieces;
        if max_pieces < 2 || self.state.free_units * UNIT < size_bytes {
            return None;
        }
        let mut pieces = [Place(0); MAX_PIECES];
        let mut count = 0;
        let mut left_bytes = size_bytes;
        while count + 1 < max_pieces {
            let units = self.largest().map_or(0, |place| self.head(place).units());
            let fewest_more = left_bytes.div_ceil(UNIT) / units.max(1);
            if units < MIN_PIECE_UNITS || count + fewest_more >= max_pieces {
                break;
            }
            let place = self.largest()?;
            self.carve(place, units, true);
            pieces[count] = place;
            count += 1;
            left_bytes -= (units - LINKED_HEAD_UNITS) * UNIT;
            let last_units = block_units(left_bytes);
            if let Some(last) = self.find(last_units) {
                self.carve(last, last_units, false);
                let mut next = last;
                for &piece in pieces[..count].iter().rev() {
                    self.segments.write(piece.forward(1), next.0);
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

    // ── blocks ───────────────────────────────────────────────────────────────────────────────

    /// A free block of at least `units` from a bin that fits best.
    #[inline]
    fn find(&self, units: usize) -> Option<Place> {
        let bin = bin_of(units);
        let mut at = self.state.bins.head(bin);
        for _ in 0..BIN_TRIES {
            let Some(place) = at else { break };
            if self.head(place).units() >= units {
                return Some(place);
            }
            at = self.next_in_bin(place);
        }
        self.state.bins.head(self.state.bins.first_from(bin + 1)?)
    }

    /// A free block of the last bin that is not empty.
    fn largest(&self) -> Option<Place> {
        self.state.bins.head(self.state.bins.last()?)
    }

    /// Puts the first `units` of a free block to use; what is left stays free, if it is large
    /// enough to be a block.
    #[inline]
    fn carve(&mut self, place: Place, units: usize, more: bool) {
        let has_units = self.head(place).units();
        self.unlink(place, has_units);
        let rest_units = has_units - units;
        let used_units = if rest_units < MIN_UNITS { has_units } else { units };
        if used_units * UNIT + 2 * MIN_UNITS * UNIT >= self.segments.page_bytes
            || has_units * UNIT >= self.segments.page_bytes
        {
            self.take_back_pages(place, used_units, has_units);
        }
        self.state.free_units -= used_units;
        // The block before is in use: no two neighbours were free.
        self.set_head(place, Head::in_use(used_units, more));
        let after = place.forward(used_units);
        if used_units == has_units {
            self.set_head(after, self.head(after).with_prev_free(false));
        } else {
            self.set_free(after, rest_units);
            self.link(after, rest_units);
        }
    }

    /// Frees a block in use and joins it with its neighbours.
    #[inline]
    pub(super) fn free_block(&mut self, mut place: Place) {
        let head = self.head(place);
        let mut units = head.units();
        self.state.free_units += units;
        let after = place.forward(units);
        let after_head = self.head(after);
        if after_head.is_free() {
            self.unlink(after, after_head.units());
            units += after_head.units();
        } else {
            self.set_head(after, after_head.with_prev_free(true));
        }
        if head.prev_is_free() {
            let prev_units = self.segments.read(place.backward(1)) as usize;
            place = place.backward(prev_units);
            self.unlink(place, prev_units);
            units += prev_units;
        }
        self.set_free(place, units);
        self.link(place, units);
        if units * UNIT >= 4 * self.segments.page_bytes && self.has_too_much_free() {
            self.give_back_pages(place);
        }
    }

    #[inline]
    fn set_free(&self, place: Place, units: usize) {
        self.set_head(place, Head::free(units));
        self.segments.write(place.forward(units - 1), units as u32);
    }

    // ── bins ─────────────────────────────────────────────────────────────────────────────────

    #[inline]
    fn next_in_bin(&self, place: Place) -> Option<Place> {
        let next = Place(self.segments.read(place.forward(1)));
        (next != Place::END).then_some(next)
    }

    #[inline]
    pub(super) fn link(&mut self, place: Place, units: usize) {
        if place >= self.state.closed_from {
            return;
        }
        let bin = bin_of(units);
        let head = self.state.bins.head(bin);
        self.segments.write(place.forward(1), head.unwrap_or(Place::END).0);
        self.segments.write(place.forward(2), Place::END.0);
        if let Some(head) = head {
            self.segments.write(head.forward(2), place.0);
        }
        self.state.bins.set_head(bin, Some(place));
    }

    #[inline]
    pub(super) fn unlink(&mut self, place: Place, units: usize) {
        if place >= self.state.closed_from {
            return;
        }
        let next = self.next_in_bin(place);
        let prev = Place(self.segments.read(place.forward(2)));
        if let Some(next) = next {
            self.segments.write(next.forward(2), prev.0);
        }
        if prev == Place::END {
            self.state.bins.set_head(bin_of(units), next);
        } else {
            self.segments.write(prev.forward(1), next.unwrap_or(Place::END).0);
        }
    }

    /// Calls `visit` with each bin and each block in it.
    #[cfg(test)]
    pub(super) fn for_each_listed(&self, mut visit: impl FnMut(usize, Place)) {
        for bin in 0..super::bins::BINS {
            let mut at = self.state.bins.head(bin);
            while let Some(place) = at {
                visit(bin, place);
                at = self.next_in_bin(place);
            }
        }
    }

    // ── cells ────────────────────────────────────────────────────────────────────────────────

    #[inline]
    pub(super) fn cell(&self, cell: u32) -> &PinCell32 {
        self.cells.get(cell as usize, self.segments.page_bytes)
    }

    #[inline]
    fn take_cell(&mut self) -> Result<u32, PoolError> {
        if let Some(cell) = self.state.free_cell.checked_sub(1) {
            self.state.free_cell = self.cell(cell).peek();
            return Ok(cell);
        }
        let cell = self.state.cells_used;
        if cell as usize == self.cells.capacity(self.segments.page_bytes) {
            if cell >= (1 << PLACE_BITS) - 2 {
                return Err(PoolError::Full);
            }
            self.cells.grow(self.source).map_err(|_| PoolError::OutOfMemory)?;
        }
        self.state.cells_used += 1;
        Ok(cell)
    }

    #[inline]
    fn put_cell(&mut self, cell: u32) {
        self.cell(cell).put_aside(self.state.free_cell);
        self.state.free_cell = cell + 1;
    }

    // ── pages ────────────────────────────────────────────────────────────────────────────────

    /// Commits more pages: enough for a block of `units` together with what is free at the end,
    /// and some more in a large shard, where calls cost more than pages.
    #[cold]
    fn grow(&mut self, units: usize) -> Result<(), PoolError> {
        let segment_bytes = self.segments.segment_bytes();
        if self.state.segment_count == 0 || self.state.committed_bytes == segment_bytes {
            self.add_segment()?;
        }
        let page_bytes = self.segments.page_bytes;
        let start = self.segments.start_of(self.state.segment_count - 1);
        let free_units = self.free_units_before_end(start);
        // A new segment needs a unit for its end mark as well.
        let least_bytes = (units.saturating_sub(free_units) + 1) * UNIT;
        let least_bytes = least_bytes.next_multiple_of(page_bytes);
        let step_bytes = (self.state.pages / 256 * page_bytes).max(least_bytes);
        let room_bytes = segment_bytes - self.state.committed_bytes;
        let base = self.segments.segment(self.state.segment_count - 1).base();
        let base = base.ok_or(PoolError::OutOfMemory)?;
        // SAFETY: committed ≤ segment, so this is within the reservation or at its end.
        let from = unsafe { base.add(self.state.committed_bytes) };
        let mut bytes = step_bytes.min(room_bytes);
        // SAFETY: the next pages of the segment.
        if unsafe { self.source.commit(from, bytes) }.is_err() {
            bytes = least_bytes.min(room_bytes);
            // SAFETY: as above.
            unsafe { self.source.commit(from, bytes) }.map_err(|_| PoolError::OutOfMemory)?;
        }
        self.add_committed(start, bytes);
        Ok(())
    }

    /// The units of the free block before the end mark of the segment at `start`, if there is one.
    fn free_units_before_end(&self, start: Place) -> usize {
        if self.state.committed_bytes == 0 {
            return 0;
        }
        let end_mark = start.forward(self.state.committed_bytes / UNIT).backward(1);
        if !self.head(end_mark).prev_is_free() {
            return 0;
        }
        self.segments.read(end_mark.backward(1)) as usize
    }

    /// Makes `bytes` that were just committed a free block before a new end mark.
    fn add_committed(&mut self, start: Place, bytes: usize) {
        let pages = bytes / self.segments.page_bytes;
        self.state.pages += pages;
        self.state.pages_taken += pages as u64;
        let old_bytes = self.state.committed_bytes;
        self.state.committed_bytes += bytes;
        let end_mark = start.forward(self.state.committed_bytes / UNIT).backward(1);
        self.set_head(end_mark, Head::end(false));
        let block = start.forward(old_bytes / UNIT);
        // The old end mark becomes the first unit of the new block.
        let (block, prev_free) = match old_bytes {
            0 => (block, false),
            _ => (block.backward(1), self.head(block.backward(1)).prev_is_free()),
        };
        let units = (end_mark.0 - block.0) as usize;
        self.set_head(block, Head::in_use(units, false).with_prev_free(prev_free));
        self.free_block(block);
    }

    #[cold]
    fn add_segment(&mut self) -> Result<(), PoolError> {
        let number = self.state.segment_count;
        let segment_bytes = self.segments.segment_bytes();
        if (number + 1) * (segment_bytes / UNIT) >= 1 << PLACE_BITS {
            return Err(PoolError::Full);
        }
        if number == self.segments.table.capacity(self.segments.page_bytes) {
            self.segments.table.grow(self.source).map_err(|_| PoolError::OutOfMemory)?;
        }
        let base = self.source.reserve(segment_bytes, self.segments.page_bytes);
        let base = base.map_err(|_| PoolError::OutOfMemory)?;
        self.segments.segment(number).set_base(Some(base));
        self.state.segment_count += 1;
        self.state.committed_bytes = 0;
        Ok(())
    }

    /// Whether free memory is worth a call to the source: more than an eighth of the shard.
    fn has_too_much_free(&self) -> bool {
        let held_units = self.state.pages * self.segments.page_bytes / UNIT;
        self.state.free_units > held_units / 8 + 16 * self.segments.page_bytes / UNIT
    }

    /// The pages that lie within the free block, clear of its bookkeeping: their segment, and
    /// their numbers in it.
    fn inner_pages(&self, place: Place, units: usize) -> (usize, core::ops::Range<usize>) {
        let number = self.segments.number_of(place);
        let offset = (place.0 - self.segments.start_of(number).0) as usize * UNIT;
        let first = (offset + 3 * UNIT).div_ceil(self.segments.page_bytes);
        let end = (offset + (units - 1) * UNIT) / self.segments.page_bytes;
        (number, first..end.max(first))
    }

    /// Gives back the pages within a free block. Returns how many.
    pub(super) fn give_back_pages(&mut self, place: Place) -> usize {
        let (number, pages) = self.inner_pages(place, self.head(place).units());
        let segment = self.segments.segment(number);
        let Some(base) = segment.base() else { return 0 };
        let page_bytes = self.segments.page_bytes;
        let mut given = 0;
        let mut page = pages.start;
        while page < pages.end {
            let first = page;
            while page < pages.end && !segment.is_given_back(page) {
                page += 1;
            }
            if page > first {
                given += self.decommit(base, first, page - first);
                if given == 0 {
                    return 0;
                }
                (first..page).for_each(|page| segment.set_given_back(page, true));
            }
            page += 1;
        }
        debug_assert!(given * page_bytes <= self.segments.segment_bytes());
        given
    }

    fn decommit(&mut self, base: NonNull<u8>, first_page: usize, pages: usize) -> usize {
        let page_bytes = self.segments.page_bytes;
        // SAFETY: the pages lie within the segment.
        let start = unsafe { base.add(first_page * page_bytes) };
        // SAFETY: committed, and by invariant 4 within a free block: nobody uses them.
        if unsafe { self.source.decommit(start, pages * page_bytes) }.is_err() {
            return 0;
        }
        self.state.pages -= pages;
        self.state.pages_returned += pages as u64;
        pages
    }

    /// Counts as taken again the pages of a free block that its first `used_units`, or the head
    /// and the closing size of what is left, will touch.
    #[cold]
    fn take_back_pages(&mut self, place: Place, used_units: usize, has_units: usize) {
        let (number, pages) = self.inner_pages(place, has_units);
        let kept = if used_units == has_units {
            0..0
        } else {
            self.inner_pages(place.forward(used_units), has_units - used_units).1
        };
        let segment = self.segments.segment(number);
        for page in pages {
            if !kept.contains(&page) && segment.is_given_back(page) {
                segment.set_given_back(page, false);
                self.state.pages += 1;
                self.state.pages_taken += 1;
            }
        }
    }

    /// Releases the last segments for as long as they hold no object. Returns how many pages that
    /// gave back.
    pub(super) fn drop_last_segments(&mut self) -> usize {
        let before = self.state.pages;
        let segment_bytes = self.segments.segment_bytes();
        while let Some(number) = self.state.segment_count.checked_sub(1) {
            let start = self.segments.start_of(number);
            let bytes = self.state.committed_bytes;
            if bytes > 0 {
                let head = self.head(start);
                if !head.is_free() || (head.units() + 1) * UNIT != bytes {
                    break;
                }
                self.unlink(start, head.units());
                self.state.free_units -= head.units();
            }
            let segment = self.segments.segment(number);
            let pages = bytes / self.segments.page_bytes;
            let held = (0..pages).filter(|&page| !segment.is_given_back(page)).count();
            self.state.pages -= held;
            self.state.pages_returned += held as u64;
            if let Some(base) = segment.base() {
                // SAFETY: a reservation made in `add_segment`; its one block is free.
                unsafe { self.source.release(base, segment_bytes) };
            }
            segment.set_base(None);
            self.state.segment_count = number;
            self.state.committed_bytes = if number == 0 { 0 } else { segment_bytes };
        }
        before - self.state.pages
    }

    /// The bytes of a segment that are committed.
    pub(super) fn committed_of(&self, number: usize) -> usize {
        if number + 1 == self.state.segment_count {
            self.state.committed_bytes
        } else {
            self.segments.segment_bytes()
        }
    }
}
