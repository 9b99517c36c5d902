//! A thread's cache: for each size class a list of free objects that the thread takes from and
//! gives to without any atomic operation.
//!
//! ```text
//!   list:  head ─▶ object ─▶ object ─▶ …   at most `capacity` (room = capacity − length)
//!          spare ─▶ a full list, or what was laid aside, or none
//! ```
//! Objects have no owner: a free puts the object on the list of the thread that frees it. A full
//! list goes to the pool of the CPU as it is, in O(1). (Only a list that came from a class of many
//! slabs as several batches, `bin.rs`, is walked, since pools get these one by one.)
//!
//! A list's limit begins small and grows by a quarter each time it proves too short, so a thread
//! that does little holds little. Once the limit has reached the class's batch, a full list first
//! becomes the spare, and the previous spare goes. From then on at worst every batch-th call leaves
//! the cache, however the number of live objects goes up and down. (Bonwick and Adams, "Magazines
//! and Vmem", 2001.) Large objects have no spare: their batches are long already, and a second one
//! would be much memory. (The largest, whose batch is a single object, do have a spare.)
//!
//! Small objects lie several to a line. Suppose one thread makes some and hands one to each of
//! several others, which free them. Each would get its object back from its list, and all would
//! write to one line for ever. (Passive false sharing: Berger et al., "Hoard", 2000.) So the lists
//! of such classes begin *shut*: they have room for as many objects as were taken from them, no
//! more. Objects freed beyond that are *laid aside*, as the spare. The first `malloc` that finds no
//! list takes a batch of objects in a row from the bin; objects laid aside are used after these. A
//! thread that only frees hands on what it has laid aside each time this reaches the limit, as it
//! would a list. Once the limit has reached the batch, the list opens. Lists that an ended thread
//! has left are shut for the next thread, too.
//!
//! Invariants
//! 1. `head` lists `capacity − room` objects, `spare` lists `spare_count`; all bear their mark.
//! 2. A cache is used by one thread at a time.
//! 3. In [`Cache::ABSENT`] every list is empty and every reciprocal 0, so that the fast paths of
//!    a thread without a cache fail their ordinary tests and never write to it.
//! 4. A list is shut exactly if `capacity < limit`. A spare of fewer than `limit` objects was laid
//!    aside; any other spare is a full list.

use core::ptr::NonNull;

use crate::batch::Batch;
use crate::class::{BATCH_OBJECTS, ClassId, LEAST_OBJECTS, LINE_ROW, STATES};
use crate::departing::Departing;
use crate::object::{FreeObject, Key, Link};
use crate::own_runs::OwnRuns;
use crate::sample::{Draws, Due, Rates};

/// A processor takes a load for one of what is still being stored to another address if the two
/// addresses differ by a multiple of this. So each cache begins at such a multiple, and what every
/// call reads lies beyond its lists (`heap/keys.rs`).
pub(crate) const ALIAS_BYTES: usize = 4096;

/// What a thread keeps of one size class. 32 bytes: two bins share a line.
#[derive(Debug)]
#[repr(C, align(32))]
pub(crate) struct CacheBin {
    pub(crate) head: Link,
    pub(crate) room: u32,
    /// The class's reciprocal, here because a free needs it beside `head`.
    pub(crate) reciprocal: u32,
    pub(crate) spare: Option<FreeObject>,
    spare_count: u8,
    /// The length of the list at which `room` is used up. Of a shut list: its length when it was
    /// shut.
    capacity: u8,
    /// How long a list that begins empty may become.
    limit: u8,
    next_ask: u8,
    /// For the profile and guarded objects: how many objects of the class pass until the next
    /// sample; for runs, how many frames.
    until_due: u32,
}

/// A thread's cache.
#[derive(Debug)]
#[repr(C)]
pub struct Cache {
    pub(crate) bins: [CacheBin; STATES],
    /// The next cache in the heap's list of unused caches, while this one is in that list.
    pub(crate) next_unused: Option<NonNull<Cache>>,
    /// Draws when this thread's next samples are due, if samples are taken.
    pub(crate) draws: Draws,
    /// Objects on their way to given-up slabs, once there are any.
    pub(crate) departing: Option<NonNull<Departing>>,
    /// The runs that the thread keeps, once it needs any.
    pub(crate) runs: Option<NonNull<OwnRuns>>,
    /// Frames of runs that went to the backend although the thread might have kept them.
    pub(crate) gone_frames: u16,
    /// How many runs have gone to the backend, before the thread keeps any.
    pub(crate) gone_runs: u16,
    /// The live bytes when this thread last relieved the heap.
    pub(crate) relieved_at_bytes: usize,
    /// How many reliefs in a row have found the live bytes unchanged (`heap/relief.rs`).
    pub(crate) idle_reliefs: u8,
    /// How many looks for holes had been made when this cache was last emptied for one.
    pub(crate) looks: u32,
    /// Whether this is a thread's own cache, not one of the statics that stand for something else.
    pub(crate) is_open: bool,
}

// SAFETY: an absent cache is never written to, and one in use is reached by one thread.
unsafe impl Sync for Cache {}

impl Cache {
    /// Stands for the cache of a thread that has none.
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

    /// The objects on their way to given-up slabs.
    #[inline(always)]
    pub(crate) fn departing(&mut self) -> Option<&mut Departing> {
        // SAFETY: metadata of that size, zeroed when it was taken, which only this cache names.
        self.departing.map(|mut departing| unsafe { departing.as_mut() })
    }

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

    /// Shuts the lists of the classes whose objects share lines, since another thread begins to use
    /// the cache.
    pub(crate) fn change_hands(&mut self) {
        for class in ClassId::SHARING_LINES {
            self.bins[class.index()].shut(class.batch());
        }
    }

    /// Counts a request for `units` of `class`, and returns what is due at it. `rates` gives the
    /// rates, and a seed for a thread that has drawn nothing yet.
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

    /// How many objects of `class` the cache holds.
    pub fn objects(&self, class: ClassId) -> usize {
        let bin = &self.bins[class.index()];
        // SAFETY: the cache's own, for good.
        let departing = self.departing.map_or(0, |own| unsafe { own.as_ref() }.objects(class));
        bin.count() + usize::from(bin.spare_count) + departing
    }

    /// Takes out what the cache holds of `class`, a list at a time.
    #[inline(never)]
    pub(crate) fn drain(&mut self, class: ClassId) -> Option<Batch> {
        self.bins[class.index()].drain().or_else(|| {
            // SAFETY: the cache's own, for good.
            unsafe { self.departing?.as_mut() }.take(class)
        })
    }
}

/// How many bytes of a class a new cache keeps, and how many objects at most.
const FIRST_LIMIT_BYTES: usize = 256;
const FIRST_LIMIT: usize = 8;

/// A batch of at most this many objects (of 512 bytes or more each) is asked for step by step.
const FEW_OBJECTS: usize = 16;

/// How long a list of `class` may become at first. If objects share lines, these are whole lines,
/// so that two threads do not get parts of one line of a new slab.
pub(crate) fn first_limit(class: ClassId) -> u16 {
    let limit = (FIRST_LIMIT_BYTES / class.object_bytes()).clamp(1, FIRST_LIMIT);
    let is_odd = class.shares_lines() && !limit.is_multiple_of(LINE_ROW);
    (if is_odd { LINE_ROW } else { limit }) as u16
}

/// How long a list may become when `limit` has proved too short, `most` in the end.
pub(crate) fn longer_limit(limit: u16, most: usize) -> u16 {
    (limit + 1 + limit / 4).min(most as u16)
}

/// Whether a class whose batch has `most` objects has spares. For large objects a spare would be
/// much memory. The batch of the largest is a single object, so they have one.
const fn has_spare(most: usize) -> bool {
    most > LEAST_OBJECTS || most < 2
}

// A list has at most as many objects as the longest batch.
const _: () = assert!(BATCH_OBJECTS <= u8::MAX as usize);

impl CacheBin {
    /// The bin of an absent cache.
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

    /// As [`passes`](Self::passes), for one unit, in two instructions.
    #[inline(always)]
    pub(crate) fn passes_one(&mut self) -> bool {
        let (left, is_due) = self.until_due.overflowing_sub(1);
        self.until_due = left;
        if is_due {
            self.until_due = 0;
        }
        !is_due
    }

    /// Whether nothing is due at the next `units` of the class. If so, counts them.
    #[inline(always)]
    fn passes(&mut self, units: usize) -> bool {
        let left = (self.until_due as usize).checked_sub(units);
        if let Some(left) = left {
            self.until_due = left as u32;
        }
        left.is_some()
    }

    /// The length of the list. (One too many in a signal handler that interrupts
    /// [`push`](Self::push) just after the `room` of a full list was counted down.)
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

    /// Whether the spare was laid aside.
    pub(crate) fn has_laid_aside(&self) -> bool {
        self.spare.is_some() && self.spare_count < self.limit
    }

    /// Shuts the list. A list of `most` objects, a whole batch, stays open.
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

    /// How many objects to ask for when the cache has none left: twice as many as the last time.
    /// For large objects, whose `batch` is short, it is only one more, since the last ones asked
    /// for may never be needed. Only a class of many slabs gives more than a batch (`bin.rs`).
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

    /// Takes an object that was freed. A batch that is returned must go to a pool. No list becomes
    /// longer than `most`, or than it was when it was filled.
    pub(crate) fn give(&mut self, object: FreeObject, most: usize, key: Key) -> Option<Batch> {
        if self.room == 0 && self.is_shut() {
            return self.lay_aside(object, most, key);
        }
        let full = self.make_room(most);
        let has_room = self.push(object, key);
        debug_assert!(has_room);
        full
    }

    /// Puts an object on the spare of a shut list. Once the spare has reached the limit it is
    /// returned, and the next one may be longer. After a spare of `most` objects the list opens. A
    /// spare from before the list was shut is returned as it is.
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

    /// Makes room for at least one more object.
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

    /// Puts an object on the list if there is room. Returns whether there was.
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

    /// Takes `object`, the first, off the list. Prefetches the object that is then first, so that
    /// the next call does not wait for it.
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
