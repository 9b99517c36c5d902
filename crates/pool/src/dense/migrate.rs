//! Moving objects out of the closed part of a shard, see [`compact`](super::compact).

use hectare_pages::PageSource;

use super::area::{Place, UNIT};
use super::block::{HEAD_UNITS, LINKED_HEAD_UNITS};
use super::cells::Spot;
use super::pages::PAGES_A_STEP;
use super::shard::Locked;

/// Objects looked at, and bytes moved, in one step. The last object may exceed the bytes.
pub(super) const OBJECTS_A_STEP: usize = 64;
const BYTES_A_STEP: usize = 16 << 10;
/// Cells looked at in one step, those that name no object included. There are as many cells as
/// there ever were objects at once. A free cell is one of many words in a row, while the head of an
/// object lies elsewhere. If both counted the same, passes over a shard that was once large would
/// stay long.
const CELLS_A_STEP: usize = 4096;

/// How far a step got.
pub(super) enum Moved {
    /// Down to this cell.
    DownTo(Place),
    /// Through all cells.
    All,
    /// Until no room was left below.
    NoRoom,
}

impl<S: PageSource> Locked<'_, S> {
    /// Moves the objects that the next cells below `above` name out of the closed part.
    pub(super) fn move_down(&mut self, above: Place) -> Moved {
        let area = self.area;
        let cells = CELLS_A_STEP.min((above.0 - self.state.cells_end.0) as usize);
        let end = above.backward(cells);
        let returned_before = self.state.pages_returned;
        let (mut objects, mut moved_bytes) = (0, 0);
        for cell in (end.0..above.0).rev().map(Place) {
            let given_pages = (self.state.pages_returned - returned_before) as usize;
            if objects == OBJECTS_A_STEP
                || moved_bytes >= BYTES_A_STEP
                || given_pages >= PAGES_A_STEP
            {
                return Moved::DownTo(cell.forward(1));
            }
            let pin = area.cell(cell);
            // A pinned object is being read, and stays; a free cell counts as pinned.
            let Some(spot) = pin.try_pin().map(Spot) else { continue };
            objects += 1;
            let Some(bytes) = self.reaches_closed(spot) else {
                pin.unpin();
                continue;
            };
            let Some(new) = self.alloc_pieces(bytes) else {
                pin.unpin();
                return Moved::NoRoom;
            };
            self.copy(spot.place(), new.place(), bytes);
            pin.move_to(new.0);
            self.free_pieces(spot.place());
            self.state.objects_moved += 1;
            moved_bytes += bytes;
        }
        if end == self.state.cells_end { Moved::All } else { Moved::DownTo(end) }
    }

    /// The object's bytes, rounded up to units, if a piece of it is closed.
    fn reaches_closed(&self, spot: Spot) -> Option<usize> {
        let mut place = spot.place();
        let mut bytes = 0;
        let mut closed = false;
        loop {
            let head = self.area.head(place);
            closed |= self.state.compaction.is_closed(place);
            if !head.has_more() {
                bytes += (head.units() - HEAD_UNITS - spot.slack_units()) * UNIT;
                return closed.then_some(bytes);
            }
            bytes += (head.units() - LINKED_HEAD_UNITS) * UNIT;
            place = self.area.link(place.forward(1));
        }
    }

    fn copy(&self, from: Place, to: Place, bytes: usize) {
        let (mut from, mut to) = (Cursor::new(self, from), Cursor::new(self, to));
        let span = self.area.span();
        let mut left_units = bytes / UNIT;
        while left_units > 0 {
            let units = left_units.min(from.left_units).min(to.left_units);
            let (from_offset, to_offset) = (from.place.offset_bytes(), to.place.offset_bytes());
            span.copy_from(to_offset, span, from_offset, units * UNIT);
            from.advance(self, units);
            to.advance(self, units);
            left_units -= units;
        }
    }
}

/// Walks the units of an object's bytes.
struct Cursor {
    place: Place,
    left_units: usize,
    next: Option<Place>,
}

impl Cursor {
    fn new<S: PageSource>(shard: &Locked<'_, S>, place: Place) -> Self {
        let head = shard.area.head(place);
        let (skip_units, next) = if head.has_more() {
            (LINKED_HEAD_UNITS, Some(shard.area.link(place.forward(1))))
        } else {
            (HEAD_UNITS, None)
        };
        Self { place: place.forward(skip_units), left_units: head.units() - skip_units, next }
    }

    fn advance<S: PageSource>(&mut self, shard: &Locked<'_, S>, units: usize) {
        self.place = self.place.forward(units);
        self.left_units -= units;
        if self.left_units == 0
            && let Some(next) = self.next
        {
            *self = Self::new(shard, next);
        }
    }
}
