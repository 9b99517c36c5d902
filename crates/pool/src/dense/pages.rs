//! The pages of a shard. They are taken when the free blocks are not enough, and given back from
//! inside free blocks and from the end.

use core::ops::Range;

use hectare_pages::PageSource;

use super::area::{PAGES_A_WORD, Place, UNIT};
use super::block::{Head, MIN_UNITS};
use super::shard::Locked;
use crate::PoolError;

/// The most pages that one step of compaction, or one free, gives back. Each may be a call to the
/// source.
pub(super) const PAGES_A_STEP: usize = 256;
/// The most pages of one block that such a step looks at: [`PAGES_A_STEP`] words of bits.
const LOOKS_A_STEP: usize = PAGES_A_STEP * PAGES_A_WORD;

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
        // If the area is all that the source has, there is no page for the table. Then pages
        // without a bit are not given back.
        while self.given_back.pages() < end_page && self.given_back.grow(self.source).is_ok() {}
        let from = self.area.at(self.state.committed_bytes);
        // SAFETY: the next pages of the area, which the caller keeps below the cells.
        unsafe { self.source.commit(from, bytes) }.map_err(|_| PoolError::OutOfMemory)?;
        self.add_committed(bytes);
        self.look_again();
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

    /// The free block before the end mark, if any.
    pub(super) fn last_free(&self) -> Option<(Place, usize)> {
        if self.state.committed_bytes == 0 || !self.area.head(self.end_mark()).prev_is_free() {
            return None;
        }
        let units = self.area.read(self.end_mark().backward(1)) as usize;
        Some((self.end_mark().backward(units), units))
    }

    /// Whether free memory is worth a call to the source: more than an eighth of the shard and 16
    /// pages.
    pub(super) fn has_too_much_free(&self) -> bool {
        let held_units = self.state.pages * self.page_bytes() / UNIT;
        self.state.free_units > held_units / 8 + 16 * self.page_bytes() / UNIT
    }

    /// The pages that lie within the free block, clear of its bookkeeping.
    pub(super) fn inner_pages(&self, place: Place, units: usize) -> Range<usize> {
        let offset = place.offset_bytes();
        let first = (offset + 3 * UNIT).div_ceil(self.page_bytes());
        let end = (offset + (units - 1) * UNIT) / self.page_bytes();
        first..end.max(first)
    }

    /// Gives back pages of the free block at `place` around what was just freed. Its other pages
    /// had their turn when they were freed.
    #[cold]
    pub(super) fn give_back_around(&mut self, place: Place, freed: Place) {
        let pages = self.inner_pages(place, self.area.head(place).units());
        let around = freed.offset_bytes() / self.page_bytes();
        let first = pages.start.max(around.saturating_sub(PAGES_A_STEP / 2));
        self.give_back(first..pages.end.min(around + PAGES_A_STEP / 2), PAGES_A_STEP);
    }

    /// Gives back the next pages from `from_page` on that lie within the free block at `place`, at
    /// most `most_pages`. Returns how many, and the page to go on from if the block has more.
    #[cold]
    pub(super) fn give_back_some(
        &mut self,
        place: Place,
        from_page: usize,
        most_pages: usize,
    ) -> (usize, Option<usize>) {
        let pages = self.inner_pages(place, self.area.head(place).units());
        let first = pages.start.max(from_page);
        let end = pages.end.min(first + LOOKS_A_STEP);
        let (given, reached) = self.give_back(first..end, most_pages);
        (given, (reached < pages.end).then_some(reached))
    }

    /// Gives back the pages that have a bit and were not given back yet, or the first `most_pages`
    /// of these. Returns how many, and how far it came.
    fn give_back(&mut self, pages: Range<usize>, most_pages: usize) -> (usize, usize) {
        let end = pages.end.min(self.given_back.pages());
        let (mut given, mut left) = (0, most_pages);
        let mut page = pages.start;
        while left > 0 {
            let Some(first) = self.given_back.first_page(page..end, false) else {
                return (given, pages.end);
            };
            let most_end = end.min(first + left);
            page = self.given_back.first_page(first..most_end, true).unwrap_or(most_end);
            left -= page - first;
            if self.decommit(first..page).is_ok() {
                given += page - first;
            }
        }
        (given, page)
    }

    fn decommit(&mut self, pages: Range<usize>) -> Result<(), hectare_pages::SourceError> {
        let start = self.area.at(pages.start * self.page_bytes());
        // SAFETY: committed, and by invariant 4 within a free block: nobody uses the pages.
        unsafe { self.source.decommit(start, pages.len() * self.page_bytes()) }?;
        self.state.pages -= pages.len();
        self.state.pages_returned += pages.len() as u64;
        self.given_back.set_given_back(pages, true);
        Ok(())
    }

    /// Counts as taken again those pages of a free block that its first `used_units` will touch, or
    /// the head and closing size of the rest.
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
        let before = self.state.pages;
        for page in pages {
            if self.given_back.is_given_back(page) {
                self.given_back.set_given_back(page..page + 1, false);
                self.state.pages += 1;
                self.state.pages_taken += 1;
            }
        }
        if self.state.pages > before {
            self.look_again();
        }
    }

    /// Moves the end mark down over the free block before it: over pages already given back, and
    /// over at most [`PAGES_A_STEP`] that it gives back. False if the mark stays where it is.
    pub(super) fn trim_end(&mut self) -> bool {
        let Some((place, units)) = self.last_free() else { return false };
        let old_page = self.state.committed_bytes / self.page_bytes();
        let least_page = match place {
            Place(0) => 0,
            _ => place.forward(MIN_UNITS + 1).offset_bytes().div_ceil(self.page_bytes()),
        };
        let lowest_page = least_page.max(old_page.saturating_sub(LOOKS_A_STEP));
        if lowest_page >= old_page {
            return false;
        }
        self.unlink(place, units);
        self.state.free_units -= units;
        let held_end = self.given_back.held_end(lowest_page..old_page);
        let from_page = lowest_page.max(held_end.saturating_sub(PAGES_A_STEP));
        self.give_back(from_page..held_end, PAGES_A_STEP);
        // The mark stays after a page that the source would not take back: that page is still held.
        let new_page = self.given_back.held_end(lowest_page..held_end);
        self.given_back.set_given_back(new_page..old_page, false);
        self.state.committed_bytes = new_page * self.page_bytes();
        if new_page > 0 {
            let units_left = (self.end_mark().0 - place.0) as usize;
            self.state.free_units += units_left;
            let inner = self.inner_pages(place, units_left);
            // If all pages were to go, the shard's first page went, but a page above it has stayed.
            self.take_back(lowest_page..inner.start);
            self.take_back(inner.end..new_page);
            self.area.set_head(self.end_mark(), Head::end(true));
            self.set_free(place, units_left);
        }
        new_page < old_page
    }

    /// Free units on pages that are held.
    pub(super) fn unused_units(&self) -> usize {
        self.state.free_units - self.given_back_units()
    }

    /// Units on pages given back before the end mark; all of them are free.
    pub(super) fn given_back_units(&self) -> usize {
        (self.state.committed_bytes - self.state.pages * self.page_bytes()) / UNIT
    }
}
