//! Compaction: the objects that lie highest move into free blocks that lie lower.
//!
//! ```text
//!  before  │ A │   │ B │ C │     │ D │  │ E │    │ F │ G │     │
//!                                  closed_from ▲
//!  after   │ A │ F │ B │ C │ G   │ D │  │ E │  given back       │
//! ```
//! Everything from `closed_from` on is closed: its free blocks leave the bins, so that nothing is
//! put there any more. One way through the handle cells then moves every object that has a piece
//! in it, a bounded number at a time under the lock, and what has become free there goes back to
//! the source. Since an object may be put together from pieces, nearly every free block below can
//! take part of one: what is copied is what lies above, about once. Cells tell where objects lie, so that
//! an object needs no way back to its cell.

use hectare_base::sync::Park;
use hectare_pages::PageSource;

use super::area::{Place, UNIT};
use super::block::{HEAD_UNITS, LINKED_HEAD_UNITS};
use super::shard::{Locked, Shard};

/// Cells looked at, and bytes moved, before the lock is opened once.
const CELLS_A_STEP: u32 = 4096;
const BYTES_A_STEP: usize = 256 << 10;
/// Each pass closes what lies beyond the used bytes and 1/64, 1/32, 1/16 of them.
const PASS_SLACK_SHIFTS: [u32; 3] = [6, 5, 4];

enum Step {
    More(u32),
    Done,
    NoRoom,
}

impl<P: Park> Shard<P> {
    /// Compacts the shard, unless another thread is at it. Returns the bytes given back.
    pub(super) fn compact(&self, source: &impl PageSource) -> usize {
        let mut given_pages = self.with_lock(source, |mut shard| {
            let busy = core::mem::replace(&mut shard.state.compacting, true);
            (!busy).then(|| shard.trim_end())
        });
        let Some(given) = given_pages.as_mut() else { return 0 };
        for slack_shift in PASS_SLACK_SHIFTS {
            let opened = self.with_lock(source, |mut shard| shard.close_upper_part(slack_shift));
            if !opened {
                break;
            }
            let mut cell = self.cells.first() as u32;
            let done = loop {
                match self.with_lock(source, |mut shard| shard.move_down(cell)) {
                    Step::More(next) => cell = next,
                    Step::Done => break true,
                    Step::NoRoom => break false,
                }
            };
            *given += self.with_lock(source, |mut shard| shard.open_upper_part());
            if done {
                break;
            }
        }
        self.with_lock(source, |shard| shard.state.compacting = false);
        *given * self.page_bytes
    }

    fn with_lock<S: PageSource, R>(&self, source: &S, act: impl FnOnce(Locked<'_, S>) -> R) -> R {
        let mut state = self.state.lock();
        act(self.locked(source, &mut state))
    }
}

impl<S: PageSource> Locked<'_, S> {
    /// Sets `closed_from` and takes what is free above it out of the bins. False if there is too
    /// little free to be worth it: under 1/64 and a page.
    fn close_upper_part(&mut self, slack_shift: u32) -> bool {
        let units = self.state.committed_bytes / UNIT;
        let used_units = units - self.state.free_units;
        let page_units = self.page_bytes / UNIT;
        let keep_units = used_units + (used_units >> slack_shift) + page_units;
        if keep_units + page_units >= units {
            self.give_back_all();
            return false;
        }
        let closed_from = Place(keep_units as u32);
        self.for_each_free(|shard, place, units| {
            if place >= closed_from {
                shard.unlink(place, units);
            }
        });
        self.state.closed_from = closed_from;
        true
    }

    /// Lists what is free above `closed_from` again and gives its pages back. Returns how many.
    fn open_upper_part(&mut self) -> usize {
        let closed_from = core::mem::replace(&mut self.state.closed_from, Place::END);
        self.for_each_free(|shard, place, units| {
            if place >= closed_from {
                shard.link(place, units);
            }
        });
        self.trim_end() + self.give_back_all()
    }

    fn give_back_all(&mut self) -> usize {
        let mut given = 0;
        self.for_each_free(|shard, place, units| {
            if units * UNIT >= shard.page_bytes {
                given += shard.give_back_pages(place);
            }
        });
        given
    }

    /// Calls `visit` with each free block and its units, in the order of places.
    fn for_each_free(&mut self, mut visit: impl FnMut(&mut Self, Place, usize)) {
        if self.state.committed_bytes == 0 {
            return;
        }
        let mut place = Place(0);
        loop {
            let head = self.area.head(place);
            if head.is_end() {
                return;
            }
            if head.is_free() {
                visit(self, place, head.units());
            }
            place = place.forward(head.units());
        }
    }

    /// Moves what the next cells name out of the closed part.
    fn move_down(&mut self, first_cell: u32) -> Step {
        let end = self.state.cells_end.min(first_cell.saturating_add(CELLS_A_STEP));
        let mut moved_bytes = 0;
        for cell in first_cell..end {
            if moved_bytes >= BYTES_A_STEP {
                return Step::More(cell);
            }
            // Who is pinned is being read, and stays; a free cell counts as pinned.
            let Some(place) = self.cell(cell).try_pin() else { continue };
            let place = Place(place);
            let Some(bytes) = self.reaches_closed(place) else {
                self.cell(cell).unpin();
                continue;
            };
            let Some(new) = self.alloc_pieces(bytes) else {
                self.cell(cell).unpin();
                return Step::NoRoom;
            };
            self.copy(place, new, bytes);
            self.cell(cell).move_to(new.0);
            self.free_pieces(place);
            self.state.objects_moved += 1;
            moved_bytes += bytes;
        }
        if end == self.state.cells_end { Step::Done } else { Step::More(end) }
    }

    /// The object's bytes, the last block's slack included, if a piece of it is closed.
    fn reaches_closed(&self, mut place: Place) -> Option<usize> {
        let mut bytes = 0;
        let mut closed = false;
        loop {
            let head = self.area.head(place);
            closed |= place >= self.state.closed_from;
            if !head.has_more() {
                bytes += (head.units() - HEAD_UNITS) * UNIT;
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
