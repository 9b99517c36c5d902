//! The pages of a shard: taken when the free blocks are not enough, given back from inside free
//! blocks and from the end.

use core::ops::Range;

use hectare_pages::PageSource;

use super::area::{Place, UNIT};
use super::block::{Head, MIN_UNITS};
use super::shard::Locked;
use crate::PoolError;

/// The most pages that one step of compaction, or one free, looks at and gives back.
pub(super) const PAGES_A_STEP: usize = 256;

impl<S: PageSource> Locked<'_, S> {
    /// Commits more pages: enough for a block of `units` together with what is free at the end, and
    /// some more in a large shard, where calls to the source cost more than pages.
    #[cold]
    pub(super) fn grow(&mut self, units: usize) -> Result<(), PoolError> {
        let room_bytes = self.state.cells_floor.offset_bytes() - self.state.committed_bytes;
        if room_bytes == 0 {
            return Err(PoolError::Full);
        }
        let free_units = self.last_free().map_or(0, |(_, units)| units);
        // The first page holds the end mark as well.
        let least_bytes = (units.saturating_sub(free_units) + 1) * UNIT;
        let least_bytes = least_bytes.next_multiple_of(self.page_bytes()).min(room_bytes);
        let more_bytes =
            (self.state.pages / 256 * self.page_bytes()).clamp(least_bytes, room_bytes);
        self.commit(more_bytes).or_else(|_| self.commit(least_bytes))
    }

    fn commit(&mut self, bytes: usize) -> Result<(), PoolError> {
        let end_page = (self.state.committed_bytes + bytes) / self.page_bytes();
        // Where the area is all that the source has, there is no page for the table: then those
        // pages that it has no bit for are not given back.
        while self.given_back.pages() < end_page && self.given_back.grow(self.source).is_ok() {}
        let from = self.area.at(self.state.committed_bytes);
        // SAFETY: the next pages of the area, which the caller keeps below the cells.
        unsafe { self.source.commit(from, bytes) }.map_err(|_| PoolError::OutOfMemory)?;
        self.add_committed(bytes);
        self.look_again(0);
        Ok(())
    }

    /// Turns `bytes` just committed into a free block before a new end mark.
    fn add_committed(&mut self, bytes: usize) {
        self.open_end();
        let pages = bytes / self.page_bytes();
        self.state.pages += pages;
        self.state.pages_taken += pages as u64;
        // The old end mark becomes the first unit of the new block.
        let (block, prev_free) = match self.state.committed_bytes {
            0 => (Place(0), false),
            _ => (self.end_mark(), self.area.head(self.end_mark()).prev_is_free()),
        };
        self.state.committed_bytes += bytes;
        let end_mark = self.end_mark();
        self.area.set_head(end_mark, Head::end(false));
        let units = (end_mark.0 - block.0) as usize;
        self.area.set_head(block, Head::in_use(units, false).with_prev_free(prev_free));
        self.free_block(block);
    }

    /// The last committed unit; something must be committed.
    pub(super) fn end_mark(&self) -> Place {
        Place((self.state.committed_bytes / UNIT) as u32).backward(1)
    }

    /// The free block before the end mark, if there is one.
    pub(super) fn last_free(&self) -> Option<(Place, usize)> {
        if self.state.committed_bytes == 0 || !self.area.head(self.end_mark()).prev_is_free() {
            return None;
        }
        let units = self.area.read(self.end_mark().backward(1)) as usize;
        Some((self.end_mark().backward(units), units))
    }

    /// Whether free memory is worth a call to the source: more than an eighth of the shard and 16 pages.
    pub(super) fn has_too_much_free(&self) -> bool {
        let held_units = self.state.pages * self.page_bytes() / UNIT;
        self.state.free_units > held_units / 8 + 16 * self.page_bytes() / UNIT
    }

    /// The pages that lie within the free block, clear of its bookkeeping.
    fn inner_pages(&self, place: Place, units: usize) -> Range<usize> {
        let offset = place.offset_bytes();
        let first = (offset + 3 * UNIT).div_ceil(self.page_bytes());
        let end = (offset + (units - 1) * UNIT) / self.page_bytes();
        first..end.max(first)
    }

    /// Gives back pages within the free block at `place` around what was just freed: the others had
    /// their turn when they were freed.
    #[cold]
    pub(super) fn give_back_around(&mut self, place: Place, freed: Place) {
        let pages = self.inner_pages(place, self.area.head(place).units());
        let around = freed.offset_bytes() / self.page_bytes();
        let first = pages.start.max(around.saturating_sub(PAGES_A_STEP / 2));
        self.give_back(first..pages.end.min(around + PAGES_A_STEP / 2));
    }

    /// Gives back those of the next `most_pages` pages from `from_page` on that lie within the free
    /// block at `place`. Returns how many, and the page to go on from if there is more of the block.
    #[cold]
    pub(super) fn give_back_some(
        &mut self,
        place: Place,
        from_page: usize,
        most_pages: usize,
    ) -> (usize, Option<usize>) {
        let pages = self.inner_pages(place, self.area.head(place).units());
        let first = pages.start.max(from_page);
        let end = pages.end.min(first + most_pages);
        (self.give_back(first..end), (end < pages.end).then_some(end))
    }

    /// Gives back those of the pages that have a bit and have not been yet. Returns how many.
    fn give_back(&mut self, pages: Range<usize>) -> usize {
        let end = pages.end.min(self.given_back.pages());
        let mut given = 0;
        let mut page = pages.start;
        while page < end {
            let first = page;
            while page < end && !self.given_back.is_given_back(page) {
                page += 1;
            }
            if page > first && self.decommit(first..page).is_ok() {
                given += page - first;
            }
            page += 1;
        }
        given
    }

    fn decommit(&mut self, pages: Range<usize>) -> Result<(), hectare_pages::SourceError> {
        let start = self.area.at(pages.start * self.page_bytes());
        // SAFETY: committed, and by invariant 4 within a free block: nobody uses them.
        unsafe { self.source.decommit(start, pages.len() * self.page_bytes()) }?;
        self.state.pages -= pages.len();
        self.state.pages_returned += pages.len() as u64;
        pages.for_each(|page| self.given_back.set_given_back(page, true));
        Ok(())
    }

    /// Counts those pages of a free block as taken again that its first `used_units`, or the head
    /// and closing size of the rest, will touch.
    #[cold]
    pub(super) fn take_back_pages(&mut self, place: Place, used_units: usize, has_units: usize) {
        let pages = self.inner_pages(place, has_units);
        let kept = if used_units == has_units {
            pages.end..pages.end
        } else {
            self.inner_pages(place.forward(used_units), has_units - used_units)
        };
        self.take_back(pages.start..kept.start.clamp(pages.start, pages.end));
        self.take_back(kept.end.clamp(pages.start, pages.end)..pages.end);
    }

    /// Counts as taken again those of the pages that were given back.
    fn take_back(&mut self, pages: Range<usize>) {
        for page in pages {
            if self.given_back.is_given_back(page) {
                self.given_back.set_given_back(page, false);
                self.state.pages += 1;
                self.state.pages_taken += 1;
            }
        }
    }

    /// Moves the end mark down over the free block before it, by at most `most_pages`, and gives
    /// back what is then beyond it. Returns how many pages that was; `None` if the mark stays.
    pub(super) fn trim_end(&mut self, most_pages: usize) -> Option<usize> {
        let (place, units) = self.last_free()?;
        let old_bytes = self.state.committed_bytes;
        let least_bytes = match place {
            Place(0) => 0,
            _ => place.forward(MIN_UNITS + 1).offset_bytes().next_multiple_of(self.page_bytes()),
        };
        let wanted_bytes =
            least_bytes.max(old_bytes.saturating_sub(most_pages * self.page_bytes()));
        if wanted_bytes >= old_bytes {
            return None;
        }
        let mut new_bytes = old_bytes;
        let mut beyond = wanted_bytes / self.page_bytes()..old_bytes / self.page_bytes();
        self.unlink(place, units);
        self.state.free_units -= units;
        let given = self.give_back(beyond.clone());
        // The mark stays after a page that the source would not take back, which is still held.
        while let Some(last) =
            beyond.next_back().filter(|&page| self.given_back.is_given_back(page))
        {
            self.given_back.set_given_back(last, false);
            new_bytes -= self.page_bytes();
        }
        self.state.committed_bytes = new_bytes;
        if new_bytes > 0 {
            let units_left = (self.end_mark().0 - place.0) as usize;
            let inner = self.inner_pages(place, units_left);
            self.take_back(inner.end..new_bytes / self.page_bytes());
            self.area.set_head(self.end_mark(), Head::end(true));
            self.set_free(place, units_left);
            self.state.free_units += units_left;
        }
        (given > 0 || new_bytes < old_bytes).then_some(given)
    }
}
