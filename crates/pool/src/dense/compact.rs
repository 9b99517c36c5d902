//! Compaction: the highest objects move into lower free blocks.
//!
//! ```text
//!  before  │ A │   │ B │ C │     │ D │  │ E │    │ F │ G │     │
//!                                      ▲ target
//!  after   │ A │ F │ B │ C │ G   │ D │ E │       given back    │
//! ```
//! A pass goes through its phases in bounded steps under the shard's lock, which is released
//! between steps:
//!
//! | Phase | A step | Closed |
//! |---|---|---|
//! | `Close` | goes through blocks; from the target on, takes free ones out of their bins | target … cursor |
//! | `Move` | goes through handle cells; objects with a piece in the closed part move below | target … |
//! | `Open` | goes through the closed blocks; lists free ones again, gives their pages back | cursor … |
//! | `Trim` | moves the end mark down over the free block before it | |
//!
//! A block whose start is closed is in no bin, so nothing is put there.
//!
//! An object may consist of pieces, so nearly every free block below can take part of one, and what
//! lies above is copied about once. Objects are found through the cells, so an object needs no way
//! back to its cell.
//!
//! Who compacts: [`compact`](crate::Pool::compact) runs whole passes,
//! [`compact_some`](crate::Pool::compact_some) one step of a pass. A shard starts a pass by itself
//! once more than `Limits::compact_percent` of the memory it holds is unused, and more than the
//! last pass had to leave. Then every free in that shard does a step until the pass is over. A pass
//! over `n` objects takes `n / 20` to `n / 28` steps of some microseconds each, and leaves 1/16
//! unused: the next pass is `n / 5` frees away or more.
//!
//! A shard that has shrunk keeps its cells and page bits for the most objects it ever had. They
//! must not make a pass slower, or the pass would never catch up with the frees. So a step passes
//! over 4096 cells that name no object, and over pages given back by words of 64 bits; and unused
//! memory counts only if it is held.
//!
//! An allocation that finds no room below ends the pass early: it opens some of what is closed, and
//! takes pages if that is not enough. Pages taken this way are never closed. So an allocation, too,
//! does a bounded number of steps, unless the source has no more pages.
//!
//! Invariants (besides the shard's)
//! 1. The cursor and the first closed block are starts of blocks, or the end mark: when a block
//!    swallows one of these, the mark moves to the start of that block. No closed block that is
//!    free lies before the first one, nor, in `Open`, before the cursor.
//! 2. Nothing is closed in the phases `Idle` and `Trim`, and only in these does the end mark move
//!    down. It moves up only if nothing at the end is closed.

use hectare_base::sync::Park;
use hectare_pages::PageSource;

use super::area::{Place, UNIT};
use super::migrate::Moved;
use super::pages::PAGES_A_STEP;
use super::shard::{Locked, Shard};

#[cfg(all(test, not(loom)))]
mod tests;

/// Blocks visited in one step.
const BLOCKS_A_STEP: usize = 64;
/// Steps of opening that an allocation does before it takes pages.
pub(super) const STEPS_AN_ALLOC: usize = 4;
/// Each pass of `compact` closes what lies beyond the used bytes plus this fraction of them (as a
/// shift), until a pass has moved everything. The last fractions are for objects of few lengths,
/// whose holes fit no longer object: keeping up to twice what they need is better than keeping all
/// they ever had.
const SLACK_SHIFTS: [u32; 5] = [6, 5, 4, 2, 0];
/// A pass that a shard starts by itself leaves 1/16.
const AUTOMATIC_SLACK_SHIFT: u32 = 4;
/// A pass that a caller does step by step leaves 1/64.
const ASKED_SLACK_SHIFT: u32 = 6;
/// A shard of fewer pages does not start a pass by itself: that is not worth it.
const LEAST_PAGES: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Close,
    /// The cells below this one are still to be looked at.
    Move {
        above: Place,
    },
    Open,
    Trim,
}

/// How far a shard's compaction has come.
#[derive(Debug)]
pub(super) struct Compaction {
    phase: Phase,
    target: Place,
    /// The block that the next step goes on with; [`Place::END`] in phases without one.
    cursor: Place,
    /// In `Open`, the page up to which the free block at the cursor was given back.
    given_to_page: usize,
    /// While `Close` runs, the first block from the target on, as far as is known. Afterwards it
    /// may be one before that.
    first_closed: Place,
    /// The blocks that start from here on …
    closed_from: Place,
    /// … and before this are closed; 0 in phases in which nothing is, so that one comparison can
    /// tell.
    closed_end: Place,
    /// Whether the last pass emptied what it closed.
    moved_all: bool,
    /// The least that was unused since the last pass, which could not do better.
    settled_units: usize,
    /// From this many free units on, the next free checks whether there is work.
    pub(super) attention_units: usize,
}

impl Compaction {
    pub(super) const fn new() -> Self {
        Self {
            phase: Phase::Idle,
            target: Place::END,
            cursor: Place::END,
            given_to_page: 0,
            first_closed: Place::END,
            closed_from: Place::END,
            closed_end: Place(0),
            moved_all: false,
            settled_units: 0,
            attention_units: usize::MAX,
        }
    }

    /// Whether a block that starts at `place` is in no bin, if it is free.
    #[inline]
    pub(super) fn is_closed(&self, place: Place) -> bool {
        place < self.closed_end && self.closed_from <= place
    }

    /// Whether no pass is under way.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// The places that must be starts of blocks by invariant 1.
    #[cfg(all(test, not(loom)))]
    pub(super) fn marks(&self) -> impl Iterator<Item = Place> {
        [self.cursor, self.first_closed].into_iter().filter(|&mark| mark != Place::END)
    }

    fn enter(&mut self, phase: Phase, cursor: Place) {
        self.phase = phase;
        match phase {
            Phase::Close => self.first_closed = cursor,
            Phase::Move { .. } => self.closed_end = Place::END,
            Phase::Idle | Phase::Open | Phase::Trim => self.first_closed = Place::END,
        }
        self.set_cursor(cursor);
    }

    fn set_cursor(&mut self, cursor: Place) {
        self.cursor = cursor;
        self.given_to_page = 0;
        match self.phase {
            Phase::Close => {
                (self.closed_from, self.closed_end) = (self.target, cursor.max(self.target));
            }
            Phase::Move { .. } => {}
            Phase::Open => self.closed_from = cursor.max(self.target),
            Phase::Idle | Phase::Trim => self.closed_end = Place(0),
        }
    }

    /// Keeps invariant 1 when a free block has been joined into one of `units` at `place`.
    #[inline]
    pub(super) fn joined(&mut self, place: Place, units: usize) {
        if !self.is_idle() {
            self.take_along(place, units);
        }
    }

    /// A free block that is closed has not been listed, so `Open` must come to it. It may be the
    /// rest of one that began below the target.
    #[cold]
    pub(super) fn left_out(&mut self, place: Place) {
        if self.phase != Phase::Open {
            self.first_closed = self.first_closed.min(place);
        }
    }

    #[cold]
    fn take_along(&mut self, place: Place, units: usize) {
        let end = place.forward(units);
        let swallows = |mark: Place| place < mark && mark < end;
        if swallows(self.first_closed) {
            self.first_closed = place;
        }
        if swallows(self.cursor) {
            self.set_cursor(place);
        }
    }
}

impl<P: Park> Shard<P> {
    /// Compacts the shard as far as it can. Returns the bytes given back.
    pub(super) fn compact(&self, source: &impl PageSource) -> usize {
        let mut given_pages = self.finish_pass(source);
        for slack_shift in SLACK_SHIFTS {
            let starts = self.with_lock(source, |mut shard| shard.start_pass(slack_shift));
            if !starts {
                break;
            }
            given_pages += self.finish_pass(source);
            if self.with_lock(source, |shard| shard.state.compaction.moved_all) {
                break;
            }
        }
        self.with_lock(source, |mut shard| shard.start_sweep());
        given_pages += self.finish_pass(source);
        given_pages * source.page_bytes()
    }

    /// Does a step of the current pass, or of a new one if that is worth it. Returns the bytes
    /// given back.
    pub(super) fn compact_some(&self, source: &impl PageSource) -> Option<usize> {
        self.with_lock(source, |mut shard| {
            if shard.unused_units() > shard.some_units() && !shard.start_pass(ASKED_SLACK_SHIFT) {
                shard.settle();
            }
            Some(shard.step()? * shard.page_bytes())
        })
    }

    fn finish_pass(&self, source: &impl PageSource) -> usize {
        let mut given_pages = 0;
        while let Some(pages) = self.with_lock(source, |mut shard| shard.step()) {
            given_pages += pages;
        }
        given_pages
    }

    fn with_lock<S: PageSource, R>(&self, source: &S, act: impl FnOnce(Locked<'_, S>) -> R) -> R {
        let mut state = self.state.lock();
        act(self.locked(source, &mut state))
    }
}

impl<S: PageSource> Locked<'_, S> {
    /// Called when much is free: does a step of the current pass, or starts a pass if it is time.
    #[cold]
    pub(super) fn attend(&mut self) {
        if self.step().is_some() {
            return;
        }
        if self.unused_units() > self.much_units() && !self.start_pass(AUTOMATIC_SLACK_SHIFT) {
            self.settle();
        } else {
            self.look_again();
        }
    }

    /// A shard starts a pass if more than this is unused: the limit's share of what is held, and
    /// 1/16 of that beyond what the last pass had to leave.
    fn much_units(&self) -> usize {
        let page_units = self.page_bytes() / UNIT;
        let held_units = self.state.pages * page_units;
        let percent_units = held_units / 100 * self.state.limits.compact_percent;
        let more_units = self.state.compaction.settled_units + held_units / 16;
        percent_units.max(more_units).max(LEAST_PAGES * page_units)
    }

    /// A pass on request is worth it if more than this is unused: what a pass leaves, beyond what
    /// the last pass had to leave.
    fn some_units(&self) -> usize {
        let page_units = self.page_bytes() / UNIT;
        let held_units = self.state.pages * page_units;
        self.state.compaction.settled_units + (held_units >> ASKED_SLACK_SHIFT)
    }

    /// Notes that what is unused now has to stay.
    fn settle(&mut self) {
        self.state.compaction.settled_units = usize::MAX;
        self.look_again();
    }

    /// Sets from how many free units on a free looks for work: once enough is unused, and always
    /// while a pass is under way. Called when pages were taken, which can only lower that number.
    /// When pages are given back it rises, and a free that looks too early sets it anew.
    #[cold]
    pub(super) fn look_again(&mut self) {
        let settled_units = self.state.compaction.settled_units.min(self.unused_units());
        self.state.compaction.settled_units = settled_units;
        self.state.compaction.attention_units = match self.state.limits.compact_percent {
            0 => usize::MAX,
            _ if !self.state.compaction.is_idle() => 0,
            _ => self.given_back_units() + self.much_units() + 1,
        };
    }

    /// Starts a pass, unless one is under way. False if no more is free than two pages and the
    /// slack, which is not worth it.
    fn start_pass(&mut self, slack_shift: u32) -> bool {
        if !self.state.compaction.is_idle() {
            return true;
        }
        let units = self.state.committed_bytes / UNIT;
        let used_units = units - self.state.free_units;
        let page_units = self.page_bytes() / UNIT;
        let keep_units = used_units + (used_units >> slack_shift) + page_units;
        if keep_units + page_units >= units {
            return false;
        }
        self.state.compaction.target = Place(keep_units as u32);
        self.state.compaction.enter(Phase::Close, Place(0));
        self.look_again();
        true
    }

    /// Starts a sweep over all blocks that only gives pages back, unless a pass is under way.
    fn start_sweep(&mut self) {
        if self.state.compaction.is_idle() && self.state.committed_bytes > 0 {
            self.state.compaction.target = Place::END;
            self.state.compaction.enter(Phase::Open, Place(0));
            self.state.compaction.closed_end = Place::END;
        }
    }

    /// Does a step of the current pass. Returns the pages that any part of it gave back; `None` if
    /// there is no pass.
    fn step(&mut self) -> Option<usize> {
        let returned_before = self.state.pages_returned;
        match self.state.compaction.phase {
            Phase::Idle => return None,
            Phase::Close => self.close_some(),
            Phase::Move { above } => match self.move_down(above) {
                Moved::DownTo(above) => self.state.compaction.phase = Phase::Move { above },
                Moved::All => self.start_opening(true),
                Moved::NoRoom => self.start_opening(false),
            },
            Phase::Open => self.open_some(true),
            Phase::Trim => {
                if !self.trim_end() {
                    self.state.compaction.enter(Phase::Idle, Place::END);
                    self.settle();
                }
            }
        }
        Some((self.state.pages_returned - returned_before) as usize)
    }

    fn close_some(&mut self) {
        for _ in 0..BLOCKS_A_STEP {
            let place = self.state.compaction.cursor;
            let head = self.area.head(place);
            if head.is_end() {
                let above = self.state.cells_top;
                self.state.compaction.enter(Phase::Move { above }, Place::END);
                return;
            }
            let next = place.forward(head.units());
            if place < self.state.compaction.target {
                self.state.compaction.first_closed = next;
            } else if head.is_free() {
                self.unlink(place, head.units());
            }
            self.state.compaction.set_cursor(next);
        }
    }

    fn start_opening(&mut self, moved_all: bool) {
        self.state.compaction.moved_all = moved_all;
        let first = self.state.compaction.first_closed;
        self.state.compaction.enter(Phase::Open, first);
    }

    /// For an allocation that found no room: does a step towards opening what is closed. False if
    /// nothing is closed.
    pub(super) fn open_for_alloc(&mut self) -> bool {
        match self.state.compaction.phase {
            Phase::Idle | Phase::Trim => return false,
            Phase::Close | Phase::Move { .. } => self.start_opening(false),
            Phase::Open => {}
        }
        self.open_some(false);
        true
    }

    /// Opens the next blocks and gives back their pages, [`PAGES_A_STEP`] at most. If a block has
    /// more, the next step gives back the rest if the caller `is_patient`; otherwise the block is
    /// opened as it is.
    fn open_some(&mut self, is_patient: bool) {
        let mut given_pages = 0;
        for _ in 0..BLOCKS_A_STEP {
            let place = self.state.compaction.cursor;
            let head = self.area.head(place);
            let closed_end = self.state.compaction.closed_end;
            if head.is_end() || place >= closed_end {
                self.state.compaction.enter(Phase::Trim, Place::END);
                break;
            }
            let next = place.forward(head.units());
            let is_large = head.is_free() && head.units() * UNIT >= self.page_bytes();
            // `Trim` handles a free block before the end mark.
            if is_large && given_pages < PAGES_A_STEP && !self.area.head(next).is_end() {
                let from_page = self.state.compaction.given_to_page;
                let (given, more) =
                    self.give_back_some(place, from_page, PAGES_A_STEP - given_pages);
                given_pages += given;
                if let Some(page) = more.filter(|_| is_patient) {
                    self.state.compaction.given_to_page = page;
                    break;
                }
            }
            self.state.compaction.set_cursor(next);
            if head.is_free() && place >= self.state.compaction.target {
                self.link(place, head.units());
            }
            if is_patient && given_pages >= PAGES_A_STEP {
                break;
            }
        }
    }

    /// Lists the free block before the end mark if it is closed. What is added after it will not be
    /// closed.
    pub(super) fn open_end(&mut self) {
        if self.state.committed_bytes == 0 {
            return;
        }
        let last = self.last_free();
        let start = last.map_or(self.end_mark(), |(place, _)| place);
        let is_closed = self.state.compaction.is_closed(start);
        let compaction = &mut self.state.compaction;
        compaction.closed_end = compaction.closed_end.min(start);
        if let Some((place, units)) = last
            && is_closed
        {
            self.link(place, units);
        }
    }
}
