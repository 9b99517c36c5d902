//! The pages of a shard: taken when what is free is not enough, given back from inside free blocks.

use core::ptr::NonNull;

use hectare_pages::PageSource;

use super::block::Head;
use super::place::{PLACE_BITS, Place, UNIT};
use super::shard::Locked;
use crate::PoolError;

impl<S: PageSource> Locked<'_, S> {
    /// Commits more pages: enough for a block of `units` together with what is free at the end,
    /// and some more in a large shard, where calls cost more than pages.
    #[cold]
    pub(super) fn grow(&mut self, units: usize) -> Result<(), PoolError> {
        let segment_bytes = self.segments.segment_bytes();
        if self.state.segment_end == self.state.first_segment
            || self.state.committed_bytes == segment_bytes
        {
            self.add_segment()?;
        }
        let page_bytes = self.segments.page_bytes;
        let start = self.segments.start_of(self.state.segment_end - 1);
        let free_units = self.free_units_before_end(start);
        // A new segment needs a unit for its end mark as well.
        let least_bytes = (units.saturating_sub(free_units) + 1) * UNIT;
        let least_bytes = least_bytes.next_multiple_of(page_bytes);
        let step_bytes = (self.state.pages / 256 * page_bytes).max(least_bytes);
        let room_bytes = segment_bytes - self.state.committed_bytes;
        let base = self.segments.segment(self.state.segment_end - 1).base();
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
        let words = self.segments.words(end_mark);
        if !words.head(end_mark).prev_is_free() {
            return 0;
        }
        words.read(end_mark.backward(1)) as usize
    }

    /// Makes `bytes` that were just committed a free block before a new end mark.
    fn add_committed(&mut self, start: Place, bytes: usize) {
        let pages = bytes / self.segments.page_bytes;
        self.state.pages += pages;
        self.state.pages_taken += pages as u64;
        let old_bytes = self.state.committed_bytes;
        self.state.committed_bytes += bytes;
        let words = self.segments.words(start);
        let end_mark = start.forward(self.state.committed_bytes / UNIT).backward(1);
        words.set_head(end_mark, Head::end(false));
        let block = start.forward(old_bytes / UNIT);
        // The old end mark becomes the first unit of the new block.
        let (block, prev_free) = match old_bytes {
            0 => (block, false),
            _ => (block.backward(1), words.head(block.backward(1)).prev_is_free()),
        };
        let units = (end_mark.0 - block.0) as usize;
        words.set_head(block, Head::in_use(units, false).with_prev_free(prev_free));
        self.free_block(words, block);
    }

    #[cold]
    fn add_segment(&mut self) -> Result<(), PoolError> {
        let number = self.state.segment_end;
        let segment_bytes = self.segments.segment_bytes();
        if (number + 1) * (segment_bytes / UNIT) >= 1 << PLACE_BITS {
            return Err(PoolError::Full);
        }
        if number == self.segments.table.end() {
            self.segments.table.grow(self.source).map_err(|_| PoolError::OutOfMemory)?;
        }
        let base = self.source.reserve(segment_bytes, self.segments.page_bytes);
        let base = base.map_err(|_| PoolError::OutOfMemory)?;
        self.segments.segment(number).set_base(Some(base));
        self.state.segment_end += 1;
        self.state.committed_bytes = 0;
        Ok(())
    }

    /// Whether free memory is worth a call to the source: more than an eighth of the shard.
    pub(super) fn has_too_much_free(&self) -> bool {
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
        let (number, pages) =
            self.inner_pages(place, self.segments.words(place).head(place).units());
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
    pub(super) fn take_back_pages(&mut self, place: Place, used_units: usize, has_units: usize) {
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
        while self.state.segment_end > self.state.first_segment {
            let number = self.state.segment_end - 1;
            let start = self.segments.start_of(number);
            let bytes = self.state.committed_bytes;
            if bytes > 0 {
                let words = self.segments.words(start);
                let head = words.head(start);
                if !head.is_free() || (head.units() + 1) * UNIT != bytes {
                    break;
                }
                self.unlink(words, start, head.units());
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
            self.state.segment_end = number;
            let is_last = number == self.state.first_segment;
            self.state.committed_bytes = if is_last { 0 } else { segment_bytes };
        }
        before - self.state.pages
    }

    /// The numbers of the segments in use.
    pub(super) fn segment_numbers(&self) -> core::ops::Range<usize> {
        self.state.first_segment..self.state.segment_end
    }

    /// The place where the first segment starts.
    pub(super) fn start(&self) -> Place {
        self.segments.start_of(self.state.first_segment)
    }

    /// The bytes of a segment that are committed.
    pub(super) fn committed_of(&self, number: usize) -> usize {
        if number + 1 == self.state.segment_end {
            self.state.committed_bytes
        } else {
            self.segments.segment_bytes()
        }
    }
}
