//! A thread's cache: for each size class a list of free objects that the thread takes from and
//! gives to without any atomic operation.
//!
//! ```text
//!   list:  head ─▶ object ─▶ object ─▶ …   at most `capacity` (room = capacity − length)
//!          spare ─▶ a full list, or what was laid aside, or none
//! ```
//! Objects have no owner: a free puts the object on the list of the thread that frees it. A full
//! list goes to the pool of the CPU as it is, in O(1): none is walked but one that came of a large
//! class as several batches (`bin.rs`), which pools get one by one. Its limit begins
//! small and grows by a quarter each time it proves too short, so that a thread that does little
//! holds little. Once it has reached the class's batch, a full list first becomes the spare, and the
//! previous spare goes: from then on at worst every batch-th call leaves the cache, however the
//! number of live objects goes up and down. (Bonwick and Adams, "Magazines and Vmem", 2001.) Large
//! objects have no spare: their batches are long already, and a second would be much memory. (The
//! largest, whose batch is a single object, do have one.)
//!
//! Small objects lie several to a line. Where one thread makes some and hands one to each of several
//! others, which free them, each would get its object back from its list, and all would write to one
//! line for ever. (Passive false sharing: Berger et al., "Hoard", 2000.) So the lists of such classes
//! begin *shut*: they have room for what was taken from them, no more. What is freed beyond that is laid
//! aside, as the spare; the first `malloc` that finds no list takes a batch of objects in a row from the
//! bin, and what was laid aside is used after these. A thread that only frees hands on what it has laid
//! aside each time it reaches the limit, as it would a list; once the limit has reached the batch, the
//! list opens. What an ended thread has left is shut to the next, too.
//!
//! Invariants
//! 1. `head` lists `capacity − room` objects, `spare` lists `spare_count`; all bear their mark.
//! 2. A cache is used by one thread at a time.
//! 3. In [`Cache::ABSENT`] every list is empty and every reciprocal 0, so that the fast paths of
//!    a thread without a cache fail their ordinary tests and never write to it.
//! 4. A list is shut exactly if `capacity < limit`. A spare of fewer than `limit` objects is what was laid
//!    aside, any other a full list.

use core::ptr::NonNull;

use crate::batch::Batch;
use crate::class::{BATCH_OBJECTS, ClassId, LEAST_OBJECTS, LINE_ROW, STATES};
use crate::departing::Departing;
use crate::object::{FreeObject, Key, Link};
use crate::own_runs::OwnRuns;
use crate::sample::{Draws, Due, Rates};

/// A processor takes a load for one of what is still being stored to another address if the two differ by a multiple of
/// this. So each cache begins at such a multiple, and what every call reads lies beyond its lists (`heap/keys.rs`).
pub(crate) const ALIAS_BYTES: usize = 4096;

/// What a thread keeps of one size class. 32 bytes: two share a line.
#[derive(Debug)]
#[repr(C, align(32))]
pub(crate) struct CacheBin {
    pub(crate) head: Link,
    pub(crate) room: u32,
    /// The class's reciprocal, here because a free needs it beside `head`.
    pub(crate) reciprocal: u32,
    pub(crate) spare: Option<FreeObject>,
    spare_count: u8,
    /// How long the list may become before `room` is used up; as long as it was, if it is shut.
    capacity: u8,
    /// How long it may become when it begins empty.
    limit: u8,
    next_ask: u8,
    /// Where objects are sampled for the profile or a guard: how many of the class pass by until the
    /// next sample; for runs, how many frames.
    until_due: u32,
}

/// A thread's cache.
#[derive(Debug)]
#[repr(C)]
pub struct Cache {
    pub(crate) bins: [CacheBin; STATES],
    /// The next in the heap's list of unused caches, while this one is there.
    pub(crate) next_unused: Option<NonNull<Cache>>,
    /// What says when this thread's next samples are due, where samples are taken.
    pub(crate) draws: Draws,
    /// What goes to slabs that are given up, once any does.
    pub(crate) departing: Option<NonNull<Departing>>,
    /// The runs that the thread keeps, once it needs any.
    pub(crate) runs: Option<NonNull<OwnRuns>>,
    /// What went to the backend that it might have kept, in frames.
    pub(crate) gone_frames: u16,
    /// How many runs have gone, before it keeps any.
    pub(crate) gone_runs: u16,
    /// How many bytes were live when this thread last saw to what goes back.
    pub(crate) relieved_at_bytes: usize,
    /// How many times there was nothing new to see.
    pub(crate) idle_reliefs: u8,
    /// At how many looks for holes it has been emptied, or was there to be.
    pub(crate) looks: u32,
    /// Whether it is a thread's own: none of the statics that stand for something else.
    pub(crate) is_open: bool,
}

// SAFETY: an absent cache is never written to, and one in use is reached by one thread.
unsafe impl Sync for Cache {}

impl Cache {
    /// What a thread has before it has a cache.
    pub const ABSENT: Self = Self {
        bins: [CacheBin::ABSENT; STATES],
        next_unused: None,
        draws: Draws::NEW,
        departing: None,
        relieved_at_bytes: 0,
        idle_reliefs: 0,
        looks: 0,
        runs: None,
        gone_frames: 0,
        gone_runs: 0,
        is_open: false,
    };

    /// Makes this an empty cache that may be used.
    pub(crate) fn open(&mut self) {
        for class in ClassId::all() {
            let bin = &mut self.bins[class.index()];
            let limit = first_limit(class) as u8;
            *bin = CacheBin {
                room: u32::from(limit),
                reciprocal: class.reciprocal(),
                capacity: limit,
                limit,
                next_ask: limit,
                until_due: bin.until_due,
                ..CacheBin::ABSENT
            };
        }
        self.next_unused = None;
        self.is_open = true;
    }

    /// Shuts the lists of the classes whose objects share lines, as another thread begins to use it.
    pub(crate) fn change_hands(&mut self) {
        for class in ClassId::SHARING_LINES {
            self.bins[class.index()].shut(class.batch());
        }
    }

    /// Counts a request of so many `units` of `class`, and says what is due at it. `rates` gives the rates, and a seed
    /// for a thread that has drawn nothing yet.
    #[inline(always)]
    pub(crate) fn due(
        &mut self,
        class: ClassId,
        units: usize,
        rates: impl FnOnce() -> (Rates, u64),
    ) -> Due {
        if self.bins[class.index()].passes(units) {
            return Due::NOTHING;
        }
        let (rates, seed) = rates();
        self.gap_ended(class, units, rates, seed)
    }

    /// A gap has ended, or none was drawn yet.
    #[cold]
    fn gap_ended(&mut self, class: ClassId, units: usize, rates: Rates, seed: u64) -> Due {
        if self.draws.are_new() {
            self.draws.begin(seed);
            for class in ClassId::all().chain([ClassId::RUN]) {
                self.bins[class.index()].until_due = self.draws.gap(class, rates);
            }
            if self.bins[class.index()].passes(units) {
                return Due::NOTHING;
            }
        }
        self.bins[class.index()].until_due = self.draws.gap(class, rates);
        self.draws.due(class, rates)
    }

    /// How many objects it holds of `class`.
    pub fn objects(&self, class: ClassId) -> usize {
        let bin = &self.bins[class.index()];
        // SAFETY: the cache's own, for good.
        let departing = self.departing.map_or(0, |own| unsafe { own.as_ref() }.objects(class));
        bin.count() + usize::from(bin.spare_count) + departing
    }

    /// What it holds of `class`, list by list.
    #[inline(never)]
    pub(crate) fn drain(&mut self, class: ClassId) -> Option<Batch> {
        self.bins[class.index()].drain().or_else(|| {
            // SAFETY: the cache's own, for good.
            unsafe { self.departing?.as_mut() }.take(class)
        })
    }
}

/// How many bytes a new cache keeps of a class, and how many objects at the most.
const FIRST_LIMIT_BYTES: usize = 256;
const FIRST_LIMIT: usize = 8;

/// A batch of so few objects, 512 bytes each or more, is asked for step by step.
const FEW_OBJECTS: usize = 16;

/// How long a list of `class` may become at first: whole lines where objects share them, so that two
/// threads do not get parts of one line of a new slab.
pub(crate) fn first_limit(class: ClassId) -> u16 {
    let limit = (FIRST_LIMIT_BYTES / class.object_bytes()).clamp(1, FIRST_LIMIT);
    let is_odd = class.shares_lines() && !limit.is_multiple_of(LINE_ROW);
    (if is_odd { LINE_ROW } else { limit }) as u16
}

/// How long it may become when `limit` has proved too short: `most` in the end.
pub(crate) fn longer_limit(limit: u16, most: usize) -> u16 {
    (limit + 1 + limit / 4).min(most as u16)
}

/// Whether lists of a class whose batch is of `most` objects have a full one as their spare: of large objects it would be
/// much memory, and of the largest a batch is but one.
const fn has_spare(most: usize) -> bool {
    most > LEAST_OBJECTS || most < 2
}

// A list has as many objects as the longest batch, at most.
const _: () = assert!(BATCH_OBJECTS <= u8::MAX as usize);

impl CacheBin {
    /// That of an absent cache.
    const ABSENT: Self = Self {
        head: Link::END,
        room: 0,
        reciprocal: 0,
        spare: None,
        spare_count: 0,
        capacity: 0,
        limit: 0,
        next_ask: 0,
        until_due: 0,
    };

    /// As [`passes`](Self::passes), for one unit, by two instructions.
    #[inline(always)]
    pub(crate) fn passes_one(&mut self) -> bool {
        let (left, is_due) = self.until_due.overflowing_sub(1);
        self.until_due = left;
        if is_due {
            self.until_due = 0;
        }
        !is_due
    }

    /// Whether nothing is due at the next `units` of its class, which are then counted.
    #[inline(always)]
    fn passes(&mut self, units: usize) -> bool {
        let left = (self.until_due as usize).checked_sub(units);
        if let Some(left) = left {
            self.until_due = left as u32;
        }
        left.is_some()
    }

    /// How long the list is. (One more, for a signal's handler that interrupts [`push`](Self::push) where a full list's `room`
    /// has been counted down.)
    fn count(&self) -> usize {
        u32::from(self.capacity).wrapping_sub(self.room) as usize
    }

    fn set_list(&mut self, list: Option<Batch>) {
        let count = list.map_or(0, |list| list.count as u8);
        self.head = list.map(|list| list.head).into();
        self.capacity = self.limit.max(count);
        self.room = u32::from(self.capacity - count);
    }

    fn take_list(&mut self) -> Option<Batch> {
        let count = self.count();
        let head = core::mem::replace(&mut self.head, Link::END).object()?;
        Some(Batch { head, count })
    }

    fn take_spare(&mut self) -> Option<Batch> {
        let head = self.spare.take()?;
        Some(Batch { head, count: core::mem::take(&mut self.spare_count).into() })
    }

    /// Whether the list is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.head == Link::END
    }

    /// Whether the list is shut.
    pub(crate) fn is_shut(&self) -> bool {
        self.capacity < self.limit
    }

    /// Whether the spare is what was laid aside.
    pub(crate) fn has_laid_aside(&self) -> bool {
        self.spare.is_some() && self.spare_count < self.limit
    }

    /// Shuts the list; one of `most` objects, a whole batch, stays open.
    #[inline(never)]
    fn shut(&mut self, most: usize) {
        if self.is_empty() && !self.has_laid_aside() {
            self.use_spare();
        }
        let count = self.count();
        if count < most {
            self.capacity = count as u8;
            self.limit = self.limit.max(self.capacity + 1);
            self.room = 0;
        }
    }

    /// Makes the spare the list, if there is one. The list must be empty.
    pub(crate) fn use_spare(&mut self) -> bool {
        debug_assert!(self.is_empty());
        let Some(spare) = self.take_spare() else { return false };
        self.set_list(Some(spare));
        true
    }

    /// How many objects to ask for when all are gone: twice as many as the last time; only one more for large ones, of
    /// which a `batch` is few, since the last ones asked for may never be needed. More than a batch only a large class
    /// gives (`bin.rs`).
    pub(crate) fn ask(&mut self, batch: usize) -> usize {
        let ask = usize::from(self.next_ask);
        let next = if batch <= FEW_OBJECTS { ask + 1 } else { ask * 2 };
        self.next_ask = next.min(BATCH_OBJECTS) as u8;
        ask
    }

    /// Makes `batch` the list, which must be empty.
    pub(crate) fn fill(&mut self, batch: Batch) {
        debug_assert!(self.is_empty());
        self.set_list(Some(batch));
    }

    /// Takes an object that was freed. The batch that comes back must go to a pool. No list becomes longer
    /// than `most`, or than it was when it was filled.
    pub(crate) fn give(&mut self, object: FreeObject, most: usize, key: Key) -> Option<Batch> {
        if self.room == 0 && self.is_shut() {
            return self.lay_aside(object, most, key);
        }
        let full = self.make_room(most);
        let has_room = self.push(object, key);
        debug_assert!(has_room);
        full
    }

    /// Puts an object on the spare of a shut list. Once that has reached the limit it comes back, and the
    /// next may be longer; after one of `most` objects the list opens. A spare from before the list was shut
    /// comes back as it is.
    fn lay_aside(&mut self, object: FreeObject, most: usize, key: Key) -> Option<Batch> {
        let full = if self.has_laid_aside() { None } else { self.take_spare() };
        object.link(self.spare, key);
        self.spare = Some(object);
        self.spare_count += 1;
        if full.is_some() || self.has_laid_aside() {
            return full;
        }
        if usize::from(self.limit) < most {
            self.limit = longer_limit(self.limit.into(), most) as u8;
        } else {
            let list = self.take_list();
            self.set_list(list);
        }
        self.take_spare()
    }

    /// Makes room for one more at least.
    fn make_room(&mut self, most: usize) -> Option<Batch> {
        if self.room > 0 {
            return None;
        }
        let list = self.take_list();
        let is_short = usize::from(self.limit) < most;
        if is_short {
            self.limit = longer_limit(self.limit.into(), most) as u8;
        }
        if is_short || !has_spare(most) {
            self.set_list(None);
            return list;
        }
        let full = self.take_spare();
        self.spare = list.map(|list| list.head);
        self.spare_count = self.capacity;
        self.set_list(None);
        full
    }

    /// Puts an object on the list if that has room. Returns whether it had.
    #[inline(always)]
    pub(crate) fn push(&mut self, object: FreeObject, key: Key) -> bool {
        // Counted down before the test: one instruction less than testing first.
        let (left, is_full) = self.room.overflowing_sub(1);
        self.room = left;
        if is_full {
            self.room = 0;
            return false;
        }
        object.link(self.head, key);
        self.head = object.into();
        true
    }

    /// Takes `object`, the first, off the list. What is first then begins to come from memory, so that the next call does not
    /// wait for it.
    #[inline(always)]
    pub(crate) fn pop(&mut self, object: FreeObject) -> NonNull<u8> {
        self.head = object.rest();
        self.head.prefetch();
        self.room += 1;
        object.unmark();
        object.as_ptr()
    }

    /// Takes all objects out, a batch at a time.
    pub(crate) fn drain(&mut self) -> Option<Batch> {
        let Some(list) = self.take_list() else { return self.take_spare() };
        self.set_list(None);
        Some(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_objects_are_asked_for_step_by_step() {
        for (bytes, asks) in
            [(256, [1, 2, 4, 8, 16, 32]), (512, [1, 2, 3, 4, 5, 6]), (8192, [1, 2, 3, 4, 5, 6])]
        {
            let mut cache = Cache::ABSENT;
            cache.open();
            let class = ClassId::for_bytes(bytes);
            let bin = &mut cache.bins[class.index()];
            assert_eq!(asks.map(|_| bin.ask(class.batch())), asks, "objects of {bytes} bytes");
        }
    }

    #[test]
    fn no_list_becomes_longer_than_a_batch() {
        let class = ClassId::for_bytes(16);
        let (most, key) = (class.batch(), Key(12_345));
        let mut memory = [0_u128; 3 * BATCH_OBJECTS];
        let mut objects = memory.iter_mut().map(|place| {
            // SAFETY: room for an object of the class, which nobody else uses.
            unsafe { FreeObject::new(NonNull::from(place).cast()) }
        });
        let mut cache = Cache::ABSENT;
        cache.open();
        let bin = class.index();
        cache.bins[bin].limit = most as u8;
        cache.bins[bin].set_list(None);
        let mut give =
            |cache: &mut Cache| cache.bins[bin].give(objects.next().expect("an object"), most, key);
        // A thread that ends leaves some objects, and a whole list beside them.
        for _ in 0..=most {
            assert!(give(&mut cache).is_none());
        }
        cache.change_hands();
        assert_eq!(cache.objects(class), most + 1);
        assert_eq!(give(&mut cache).map(|batch| batch.count), Some(most));
        assert!(cache.bins[bin].is_shut() && cache.bins[bin].has_laid_aside());
        assert_eq!(cache.objects(class), 2);
        for laid_aside in 2..most {
            assert!(give(&mut cache).is_none(), "{laid_aside}");
        }
        assert_eq!(give(&mut cache).map(|batch| batch.count), Some(most));
    }
}
