//! The blocks of a shard: found, cut, freed and joined with their neighbours.
//!
//! All of this is inlined into the pool's `alloc` and `free`, which take a fifth longer with calls.

use hectare_pages::PageSource;

use super::area::{Place, UNIT};
use super::bins::bin_of;
use super::block::{Head, MIN_UNITS};
use super::shard::Locked;

/// How many blocks of the best bin are examined before the next bin.
const BIN_TRIES: usize = 2;

/// A free block.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) place: Place,
    pub(super) units: usize,
}

impl<S: PageSource> Locked<'_, S> {
    #[inline]
    fn found(&self, place: Place) -> Found {
        Found { place, units: self.area.head(place).units() }
    }

    /// A free block of at least `units`, from the bin that fits best.
    #[inline(always)]
    pub(super) fn find(&self, units: usize) -> Option<Found> {
        let bin = bin_of(units);
        let mut at = self.state.bins.head(bin);
        for _ in 0..BIN_TRIES {
            let Some(place) = at else { break };
            let found = self.found(place);
            if found.units >= units {
                return Some(found);
            }
            at = self.next_in_bin(place);
        }
        let place = self.state.bins.head(self.state.bins.first_from(bin + 1)?)?;
        Some(self.found(place))
    }

    /// A free block of the last non-empty bin.
    pub(super) fn largest(&self) -> Option<Found> {
        Some(self.found(self.state.bins.head(self.state.bins.last()?)?))
    }

    /// Puts the first `units` of a free block to use. The rest stays free if it is large enough to
    /// be a block; otherwise it is used as well. Returns how many units the used block has beyond
    /// `units`.
    #[inline(always)]
    pub(super) fn carve(&mut self, found: Found, units: usize, more: bool) -> usize {
        let Found { place, units: has_units } = found;
        self.unlink(place, has_units);
        let rest_units = has_units - units;
        let used_units = if rest_units < MIN_UNITS { has_units } else { units };
        if has_units * UNIT >= self.page_bytes() {
            self.out_of_line().take_back_pages(place, used_units, has_units);
        }
        self.state.free_units -= used_units;
        // The block before is in use, since no two neighbours were free.
        self.area.set_head(place, Head::in_use(used_units, more));
        let after = place.forward(used_units);
        if used_units == has_units {
            self.area.set_head(after, self.area.head(after).with_prev_free(false));
            rest_units
        } else {
            self.set_free(after, rest_units);
            0
        }
    }

    /// Frees a block in use and joins it with its neighbours.
    #[inline(always)]
    pub(super) fn free_block(&mut self, mut place: Place) {
        let freed = place;
        let head = self.area.head(place);
        let mut units = head.units();
        self.state.free_units += units;
        let after = place.forward(units);
        let after_head = self.area.head(after);
        if after_head.is_free() {
            self.unlink(after, after_head.units());
            units += after_head.units();
        } else {
            self.area.set_head(after, after_head.with_prev_free(true));
        }
        if head.prev_is_free() {
            let prev_units = self.area.read(place.backward(1)) as usize;
            place = place.backward(prev_units);
            self.unlink(place, prev_units);
            units += prev_units;
        }
        self.state.compaction.joined(place, units);
        self.set_free(place, units);
        if units * UNIT >= 4 * self.page_bytes() && self.has_too_much_free() {
            self.out_of_line().give_back_around(place, freed);
        }
    }

    /// Makes a free block and lists it.
    #[inline(always)]
    pub(super) fn set_free(&mut self, place: Place, units: usize) {
        self.area.set_head(place, Head::free(units));
        self.area.write(place.forward(units - 1), units as u32);
        self.link(place, units);
    }

    #[inline]
    fn next_in_bin(&self, place: Place) -> Option<Place> {
        let next = self.area.link(place.forward(1));
        (next != Place::END).then_some(next)
    }

    #[inline(always)]
    pub(super) fn link(&mut self, place: Place, units: usize) {
        if self.state.compaction.is_closed(place) {
            return self.state.compaction.left_out(place);
        }
        let head = self.state.bins.push(bin_of(units), place);
        self.area.write(place.forward(1), head.0);
        self.area.write(place.forward(2), Place::END.0);
        if head != Place::END {
            self.area.write(head.forward(2), place.0);
        }
    }

    #[inline(always)]
    pub(super) fn unlink(&mut self, place: Place, units: usize) {
        if self.state.compaction.is_closed(place) {
            return;
        }
        let next = self.area.link(place.forward(1));
        let prev = self.area.link(place.forward(2));
        if next != Place::END {
            self.area.write(next.forward(2), prev.0);
        }
        if prev == Place::END {
            self.state.bins.set_head(bin_of(units), next);
        } else {
            self.area.write(prev.forward(1), next.0);
        }
    }

    /// Calls `visit` with each bin and each block in it.
    #[cfg(all(test, not(loom)))]
    pub(super) fn for_each_listed(&self, mut visit: impl FnMut(usize, Place)) {
        for bin in 0..super::bins::BINS {
            let mut at = self.state.bins.head(bin);
            while let Some(place) = at {
                visit(bin, place);
                at = self.next_in_bin(place);
            }
        }
    }
}
