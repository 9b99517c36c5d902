//! The bin of a size class: its slabs that have room, sorted by how full they are.
//!
//! Invariants
//! 1. A slab of the class is listed exactly while it has both free and used objects, in the group
//!    of its fullness; a full slab is on no list, an empty one goes back to the backend at once.
//! 2. Objects are taken from the fullest group, so that nearly empty slabs become empty.

use core::ptr::NonNull;

use crate::class::ClassId;
use crate::object::{Batch, FreeObject, Key};
use crate::slab::{Returned, Slab, SlabRef};

/// How many lists a bin sorts its slabs into by fullness.
pub(crate) const GROUPS: usize = 8;

/// How many frames are populated in a row at most, the lock being held: more gain little (1.0 µs a
/// page by four, 0.9 by sixteen, 1.4 by faults: `--bench calls` of `hectare-pages`).
const POPULATED_FRAMES: usize = 4;

/// How many descriptors are fetched ahead when a batch comes back.
const PREFETCHED: usize = 16;

/// A size class's slabs. Guarded by a lock of its own, under which the backend's may be taken.
#[derive(Debug)]
pub(crate) struct Bin {
    groups: [Option<SlabRef>; GROUPS],
    slabs: usize,
    free_objects: usize,
}

/// A slab to which objects are coming back, and how many were free before.
struct Refill {
    name: SlabRef,
    before: usize,
}

/// What a bin needs of the backend.
pub(crate) trait SlabSource {
    /// A slab opened for `class`, or `None` when memory is out.
    fn get_slab(&self, class: ClassId) -> Option<SlabRef>;
    /// Takes back the slab at `start`, which is empty.
    fn put_slab(&self, start: NonNull<u8>);
    /// The memory is about to be written.
    fn populate(&self, start: NonNull<u8>, bytes: usize);
    /// Enters the frames of `frames`, a bit each, of the slab at `start` into the page map again.
    fn show(&self, start: NonNull<u8>, frames: u16, class: ClassId);
    /// The slab that an object of a size class lies in.
    fn slab_of(&self, object: FreeObject) -> Option<SlabRef>;
}

impl Bin {
    pub(crate) const fn new() -> Self {
        Self { groups: [None; GROUPS], slabs: 0, free_objects: 0 }
    }

    /// How many slabs it has, and how many of their objects are free.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.slabs, self.free_objects)
    }

    /// A batch of `count` objects; of fewer, if the slabs with room have fewer and memory is out;
    /// `None` if there is none at all.
    pub(crate) fn take(
        &mut self,
        class: ClassId,
        count: usize,
        key: Key,
        source: &impl SlabSource,
    ) -> Option<Batch> {
        let stretch = self.slabs.clamp(1, POPULATED_FRAMES);
        let mut batch: Option<Batch> = None;
        loop {
            let have = batch.map_or(0, |b| b.count);
            if have >= count {
                return batch;
            }
            let Some(name) = self.fullest() else {
                // A new slab only for want of a single object: a batch may be short.
                if have > 0 {
                    return batch;
                }
                let name = source.get_slab(class)?;
                // SAFETY: a slab fresh from the backend is this bin's, and its lock is held.
                let slab = unsafe { name.get() };
                self.slabs += 1;
                self.free_objects += slab.free();
                self.insert(name, slab);
                continue;
            };
            // SAFETY: a listed slab is this bin's, and its lock is held.
            let slab = unsafe { name.get() };
            self.remove(name, slab);
            let populate = |start, bytes| source.populate(start, bytes);
            batch = slab.take(count - have, batch, key, stretch, populate);
            match slab.reappeared() {
                0 => {}
                frames => source.show(slab.start(), frames, class),
            }
            self.free_objects -= batch.map_or(0, |b| b.count) - have;
            if slab.free() > 0 {
                self.insert(name, slab);
            }
        }
    }

    /// Takes back objects of this class. An object that is not out is reported to `corrupt`.
    pub(crate) fn give(
        &mut self,
        batch: Batch,
        source: &impl SlabSource,
        corrupt: impl Fn(FreeObject),
    ) {
        let mut next = Some(batch.head);
        let mut left = batch.count;
        let mut current: Option<Refill> = None;
        while left > 0 {
            // The objects of a batch lie in as many slabs as chance will have it: their
            // descriptors are fetched side by side before the first is needed.
            let mut ahead = [None; PREFETCHED];
            for place in ahead.iter_mut().take(left) {
                let Some(object) = next else { break };
                next = object.next();
                let name = source.slab_of(object);
                if let Some(name) = name {
                    name.prefetch();
                }
                *place = Some((object, name));
            }
            for (object, name) in ahead.into_iter().map_while(|place| place) {
                let Some(name) = name else {
                    corrupt(object);
                    continue;
                };
                // SAFETY: the slab of an object of this class is this bin's, its lock is held, and
                // `current` keeps no reference.
                let slab = unsafe { name.get() };
                // Objects that were taken together often come back together.
                if current.as_ref().is_none_or(|current| current.name != name) {
                    let begun = Refill { name, before: slab.free() };
                    if let Some(done) = current.replace(begun) {
                        self.settle(done, source);
                    }
                }
                if slab.give(object) == Returned::Corrupt {
                    corrupt(object);
                }
            }
            left = left.saturating_sub(PREFETCHED);
        }
        if let Some(done) = current {
            self.settle(done, source);
        }
    }

    /// Puts a slab to which objects have come back where it belongs now.
    fn settle(&mut self, done: Refill, source: &impl SlabSource) {
        // SAFETY: a slab of this bin, whose lock is held; no other reference is alive.
        let slab = unsafe { done.name.get() };
        let was_listed = done.before > 0;
        self.free_objects += slab.free() - done.before;
        if slab.is_empty() {
            if was_listed {
                self.remove(done.name, slab);
            }
            self.slabs -= 1;
            self.free_objects -= slab.free();
            source.put_slab(slab.start());
        } else if !was_listed {
            if slab.free() > 0 {
                self.insert(done.name, slab);
            }
        } else if slab.fullness_group() != slab.group {
            self.remove(done.name, slab);
            self.insert(done.name, slab);
        }
    }

    /// Calls `decommit` for the idle frames of the emptier half of the groups; those of the fuller
    /// half will be used first.
    pub(crate) fn scavenge(&mut self, decommit: &mut impl FnMut(NonNull<u8>, usize)) {
        for first in &self.groups[GROUPS / 2..] {
            let mut next = *first;
            while let Some(name) = next {
                // SAFETY: a listed slab is this bin's, and its lock is held.
                let slab = unsafe { name.get() };
                slab.scavenge(decommit);
                next = slab.next;
            }
        }
    }

    fn fullest(&self) -> Option<SlabRef> {
        self.groups.iter().find_map(|&first| first)
    }

    fn insert(&mut self, name: SlabRef, slab: &mut Slab) {
        slab.group = slab.fullness_group();
        let first = &mut self.groups[usize::from(slab.group) % GROUPS];
        slab.previous = None;
        slab.next = *first;
        if let Some(second) = *first {
            // SAFETY: a listed slab is this bin's, its lock is held; not `slab`, which was not.
            unsafe { second.get() }.previous = Some(name);
        }
        *first = Some(name);
    }

    fn remove(&mut self, name: SlabRef, slab: &mut Slab) {
        match slab.previous {
            // SAFETY: a neighbour on a list of this bin, whose lock is held; not `slab` itself.
            Some(previous) => unsafe { previous.get() }.next = slab.next,
            None => {
                debug_assert_eq!(self.groups[usize::from(slab.group) % GROUPS], Some(name));
                self.groups[usize::from(slab.group) % GROUPS] = slab.next;
            }
        }
        if let Some(next) = slab.next {
            // SAFETY: as above.
            unsafe { next.get() }.previous = slab.previous;
        }
        slab.next = None;
        slab.previous = None;
    }

    /// Panics unless the invariants hold for every listed slab. For tests.
    #[cfg(any(test, feature = "validate"))]
    pub(crate) fn validate(&self) {
        let mut free_objects = 0;
        for (group, &first) in self.groups.iter().enumerate() {
            let mut next = first;
            let mut previous = None;
            while let Some(name) = next {
                // SAFETY: a listed slab is this bin's, and the bin is borrowed: its lock is held.
                let slab = unsafe { name.get() };
                slab.validate();
                assert!(slab.free() > 0 && !slab.is_empty(), "a full or an empty slab is listed");
                assert_eq!(
                    usize::from(slab.fullness_group()),
                    group,
                    "a slab is in the wrong group"
                );
                assert_eq!(slab.previous, previous, "a broken backward link");
                free_objects += slab.free();
                previous = next;
                next = slab.next;
            }
        }
        assert_eq!(free_objects, self.free_objects, "free objects of the listed slabs");
    }
}
