//! The bin of a size class: its slabs that have room, sorted by home and by how full they are.
//!
//! Invariants
//! 1. A slab of the class is listed exactly while it has both free and used objects, in the group
//!    of its fullness; a full slab is on no list, an empty one goes back to the backend as soon as
//!    the bin's lock is free.
//! 2. Objects are taken from the fullest slab, so that nearly empty slabs become empty. If much is
//!    taken in a short time, they are taken from the fullest slab of the CPU's home; from other
//!    homes' slabs only if much of the class is free, or no new slab can be had.

use core::ptr::NonNull;

use hectare_base::prefetch;

use crate::batch::{Batch, GIVEN_AT_ONCE};
use crate::class::{ClassId, SLAB_BYTES};
use crate::gathered::Gathered;
use crate::homes::{Lists, Which, home_of};
use crate::misuse::{Misuse, Misused};
use crate::object::{FreeObject, Key, Link};
use crate::region::SlabTable;
use crate::slab::emptied::Emptied;
use crate::slab::{Returned, Slab, SlabRef};

/// The first group whose slabs are given up. Of fuller slabs at most an eighth is free.
const FIRST_GIVEN_UP: usize = 1;

/// A bin is quiet if it was half free each of the last this many times that the hand of
/// `heap/quiet.rs` came by.
const QUIET_ROUNDS: u8 = 2;

/// The most frames populated at once. A page takes 1.4 µs by a fault, 0.95 by a call for four, 0.83
/// by a call for sixteen.
const POPULATED_FRAMES: usize = 16;

/// How many descriptors are fetched ahead when a batch comes back.
const PREFETCHED: usize = 16;

/// How much a look gives back before it releases the bin's lock for others: a millisecond's worth.
const LOCKED_BYTES: usize = 8 << 20;

/// A visit to a slab takes as long as giving back this much.
const VISIT_BYTES: usize = 2 << 10;

/// Up to this many slabs are not divided among homes: several homes in use would cost a small heap
/// too much.
const UNDIVIDED_SLABS: u32 = 4;

/// If this much is taken within this time, CPUs get into each other's way. Homes cost memory, so
/// only such bins have them.
const RUSH_MS: u16 = 16;
const RUSH_BYTES: u32 = 4 * SLAB_BYTES as u32;

/// A home takes from other homes' slabs if one in this many of the class's objects is free: opening
/// one more slab would cost too much.
const SHARED_BEYOND: usize = 16;

/// The most batches that a thread takes at once, and how many slabs the class must have for each
/// batch but the first. So objects on lists, even of several threads, are a small part of the
/// class.
const BATCHES_AT_ONCE: usize = 4;
const SLABS_EACH: usize = 64;
const SHARED_SLABS_EACH: usize = 1024;

/// If at least this many objects of a list lie in one slab, they go back as a row.
const LEAST_NEIGHBOURS: usize = 8;

/// A size class's slabs. Guarded by a lock of its own, under which the backend's lock is taken for
/// metadata alone.
#[derive(Debug)]
pub(crate) struct Bin {
    lists: Lists,
    /// The objects of its slabs, without those that a sealed slab withholds.
    objects: usize,
    free_objects: usize,
    slabs: u32,
    /// How often it was found half free since objects were taken from it, up to [`QUIET_ROUNDS`].
    quiet_rounds: u8,
    rush: Rush,
}

/// How much was lately taken.
#[derive(Debug, Clone, Copy)]
struct Rush {
    bytes: u32,
    since_ms: u16,
    is_on: bool,
}

impl Rush {
    const NONE: Self = Self { bytes: 0, since_ms: 0, is_on: false };

    /// Counts what is taken at `now_ms`, which wraps.
    fn note(&mut self, now_ms: u16, bytes: u32) {
        let passed_ms = now_ms.wrapping_sub(self.since_ms);
        if passed_ms >= RUSH_MS {
            let goes_on = self.bytes >= RUSH_BYTES && passed_ms < 2 * RUSH_MS;
            *self = Self { bytes: 0, since_ms: now_ms, is_on: goes_on };
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.is_on |= self.bytes >= RUSH_BYTES;
    }
}

/// What is asked of a bin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Demand {
    pub(crate) class: ClassId,
    /// At most [`BATCH_OBJECTS`](crate::class::BATCH_OBJECTS). The bin gives what goes
    /// [at once](Bin::cut).
    pub(crate) count: usize,
    /// The CPU that they are for, whose home serves them; `None` if any slab will do, as in a
    /// process of one thread.
    pub(crate) cpu: Option<usize>,
}

/// An object on its way to its slab: its number there.
#[derive(Clone, Copy)]
struct Returning {
    slab: SlabRef,
    index: u32,
}

/// Finds the slabs of a class's objects.
struct Finder<'a, S> {
    class: ClassId,
    /// The class's [`ClassId::reciprocal`].
    reciprocal: u32,
    /// The slabs of the first region, where nearly all slabs are.
    slabs: SlabTable,
    /// Where [their words](SlabTable::words_of) are.
    words: *const u8,
    words_bytes: usize,
    key: Key,
    source: &'a S,
}

impl<'a, S: SlabSource> Finder<'a, S> {
    fn new(class: ClassId, source: &'a S) -> Self {
        let (reciprocal, slabs, key) = (class.reciprocal(), source.first_slabs(), source.key());
        let (words, words_bytes) = slabs.words_of(class);
        Self { class, reciprocal, slabs, words, words_bytes, key, source }
    }

    /// As [`place`](Self::place), for a link's object. `None` also if it does not bear its mark.
    #[inline(always)]
    fn find(&self, link: Link) -> Option<Returning> {
        self.place(link.marked(self.key)?)
    }

    /// The slab of `object` and its number there, if an object begins there. Prefetches what taking
    /// it back will read.
    #[inline(always)]
    fn place(&self, object: FreeObject) -> Option<Returning> {
        let address = object.as_ptr().addr().get();
        let (slab, words) = match self.slabs.offset_of(address) {
            Some(offset) => {
                let words = self.words.wrapping_add(offset / SLAB_BYTES * self.words_bytes);
                // SAFETY: as `offset_of` says.
                (unsafe { self.slabs.slab_at(offset) }, words)
            }
            None => (self.source.slab_of(address)?, core::ptr::null()),
        };
        let index = self.index_at(address % SLAB_BYTES)?;
        slab.prefetch();
        prefetch(words.wrapping_add(index as usize / 64 * size_of::<u64>()));
        Some(Returning { slab, index })
    }

    /// The number of the object that begins at this offset of a slab, if one does.
    #[inline(always)]
    fn index_at(&self, offset: usize) -> Option<u32> {
        // The fraction is less than the reciprocal exactly for multiples of the object's size.
        let product = offset as u64 * u64::from(self.reciprocal);
        ((product as u32) < self.reciprocal).then_some((product >> 32) as u32)
    }
}

/// A list that is being walked: where it goes on, and how many objects were counted from there on.
/// The list may be longer or shorter than that: a thread may have been cancelled, or a signal
/// handler have left it by `siglongjmp`, between an object and its count.
#[derive(Clone, Copy)]
struct Walked {
    next: Link,
    left: usize,
}

impl Walked {
    const ENDED: Self = Self { next: Link::END, left: 0 };

    /// The next object, or the end. Its link is not needed any more.
    #[inline(always)]
    fn step(&mut self) -> Link {
        let next = self.next;
        self.next = next.rest();
        next
    }
}

/// Several lists that are walked side by side.
struct Walk([Walked; GIVEN_AT_ONCE]);

impl Walk {
    fn through(batches: &[Batch]) -> Self {
        let mut lists = [Walked::ENDED; GIVEN_AT_ONCE];
        for (list, batch) in lists.iter_mut().zip(batches) {
            *list = Walked { next: batch.head.into(), left: batch.count };
        }
        Self(lists)
    }

    /// Writes the next objects to `links`, and returns how many: none when all lists have ended.
    /// They are of all lists as long as these last by their counts, then of one list after another.
    /// Of a list that is shorter, the end stands among them.
    #[inline(always)]
    fn step(&mut self, links: &mut [Link; PREFETCHED]) -> usize {
        const EACH: usize = PREFETCHED / GIVEN_AT_ONCE;
        if self.0.iter().all(|list| list.left >= EACH) {
            for round in links.as_chunks_mut::<GIVEN_AT_ONCE>().0 {
                for (link, list) in round.iter_mut().zip(&mut self.0) {
                    *link = list.step();
                }
            }
            self.0.iter_mut().for_each(|list| list.left -= EACH);
            return PREFETCHED;
        }
        let goes_on = |list: &&mut Walked| list.next != Link::END;
        let Some(list) = self.0.iter_mut().find(goes_on) else { return 0 };
        let mut count = 0;
        while count < PREFETCHED && list.next != Link::END {
            links[count] = list.step();
            count += 1;
        }
        list.left = list.left.saturating_sub(count);
        count
    }
}

/// Whether the next [`LEAST_NEIGHBOURS`] objects of the list that goes on with `head` lie in one
/// slab.
fn are_neighbours(head: Link) -> bool {
    let slab = |link: Link| link.as_ptr().addr().get() / SLAB_BYTES;
    let mut last = head;
    (1..LEAST_NEIGHBOURS).all(|_| {
        last = last.rest();
        slab(last) == slab(head)
    })
}

/// What a bin needs of the backend.
pub(crate) trait SlabSource {
    /// Enters those frames of the slab at `start` whose bits are set in `frames` into the page map.
    fn show(&self, start: NonNull<u8>, frames: u16, class: ClassId);
    /// Whether to populate more pages of a slab of `class` than the objects taken need.
    fn populates(&self, class: ClassId) -> bool;
    /// Zeroed memory for good, aligned to words.
    fn metadata(&self, bytes: usize) -> Option<NonNull<u8>>;
    fn now_ms(&self) -> u64;
    /// The slabs of the first region, where nearly all slabs are.
    fn first_slabs(&self) -> SlabTable;
    /// The slab in which `address`, in an object of a size class, lies.
    fn slab_of(&self, address: usize) -> Option<SlabRef>;
    /// The key of the free objects' marks.
    fn key(&self) -> Key;
}

impl Bin {
    pub(crate) const fn new() -> Self {
        Self {
            lists: Lists::new(),
            objects: 0,
            free_objects: 0,
            slabs: 0,
            quiet_rounds: 0,
            rush: Rush::NONE,
        }
    }

    pub(crate) fn slabs(&self) -> usize {
        self.slabs as usize
    }

    /// Whether memory would have to come for the next object taken.
    pub(crate) fn needs_memory(&mut self) -> bool {
        // SAFETY: a listed slab is this bin's, and its lock is held.
        self.lists.fullest().is_none_or(|name| unsafe { name.get() }.needs_memory())
    }

    /// How many objects its slabs have, and how many of these are free.
    pub(crate) fn objects(&self) -> (usize, usize) {
        (self.objects, self.free_objects)
    }

    /// Whether nothing was taken since the hand last came by, and both times it found half of the
    /// objects free. A class of a single slab is never quiet.
    pub(crate) fn is_quiet(&mut self) -> bool {
        let is_half_free = self.slabs > 1 && self.has_free(2);
        self.quiet_rounds = if is_half_free { QUIET_ROUNDS.min(self.quiet_rounds + 1) } else { 0 };
        self.quiet_rounds == QUIET_ROUNDS
    }

    /// Whether one in `share` of the objects, or more, is free.
    fn has_free(&self, share: usize) -> bool {
        self.free_objects * share >= self.objects
    }

    /// Cuts `wanted` down to what goes at once: a batch, or several for a class of many slabs.
    #[inline(never)]
    fn cut(&self, wanted: &mut Demand) {
        let slabs_each = if wanted.cpu.is_some() { SHARED_SLABS_EACH } else { SLABS_EACH };
        let batches = 1 + (self.slabs() / slabs_each).min(BATCHES_AT_ONCE - 1);
        wanted.count = wanted.count.min(batches * wanted.class.batch());
    }

    /// Takes what is wanted, or less if the slabs with room have less.
    pub(crate) fn take(
        &mut self,
        mut wanted: Demand,
        gathered: &mut Gathered,
        source: &impl SlabSource,
    ) {
        self.cut(&mut wanted);
        if wanted.cpu.is_some() {
            self.note_rush(wanted, source);
        }
        while gathered.count() < wanted.count
            && let Some(name) = self.slab_for(wanted)
        {
            // SAFETY: a listed slab is this bin's, and its lock is held.
            let slab = unsafe { name.get() };
            self.lists.remove(name, slab);
            self.take_unlisted(name, slab, wanted, gathered, source);
        }
    }

    fn note_rush(&mut self, wanted: Demand, source: &impl SlabSource) {
        if self.slabs <= UNDIVIDED_SLABS {
            self.rush = Rush::NONE;
            return;
        }
        let bytes = wanted.count * wanted.class.object_bytes();
        self.rush.note(source.now_ms() as u16, bytes as u32);
    }

    /// The slab to take from: the fullest, or in a rush the fullest of the CPU's home.
    fn slab_for(&mut self, wanted: Demand) -> Option<SlabRef> {
        let Some(cpu) = wanted.cpu.filter(|_| self.rush.is_on) else { return self.lists.fullest() };
        let own = self.lists.fullest_of(home_of(cpu));
        if own.is_none() && self.has_free(SHARED_BEYOND) { self.lists.fullest() } else { own }
    }

    /// As [`take`](Self::take), from a slab that was just opened for the class, even if others have
    /// room again. The slab is this bin's from now on, and no empty slab is listed.
    pub(crate) fn take_new(
        &mut self,
        name: SlabRef,
        mut wanted: Demand,
        gathered: &mut Gathered,
        source: &impl SlabSource,
    ) {
        self.cut(&mut wanted);
        // SAFETY: nobody else has a slab just opened.
        let slab = unsafe { name.get() };
        self.slabs += 1;
        self.objects += slab.free();
        self.free_objects += slab.free();
        if wanted.cpu.is_some()
            && self.rush.is_on
            && !self.lists.are_divided()
            && let Some(memory) = source.metadata(Lists::MORE_BYTES)
        {
            // SAFETY: zeroed, of that length, aligned, and nobody else's.
            unsafe { self.lists.divide(memory) };
        }
        self.take_unlisted(name, slab, wanted, gathered, source);
    }

    /// Takes objects of a slab that is on no list. If it has more, lists it as its home's.
    fn take_unlisted(
        &mut self,
        name: SlabRef,
        slab: &mut Slab,
        wanted: Demand,
        gathered: &mut Gathered,
        source: &impl SlabSource,
    ) {
        self.quiet_rounds = 0;
        let before = slab.free();
        let ahead = if source.populates(wanted.class) { self.slabs as usize } else { 1 };
        slab.take(wanted.count, gathered, ahead.clamp(1, POPULATED_FRAMES));
        match slab.reappeared() {
            0 => {}
            frames => source.show(slab.start(), frames, wanted.class),
        }
        self.free_objects -= before - slab.free();
        if let Some(cpu) = wanted.cpu.filter(|_| self.lists.are_divided()) {
            slab.move_to(home_of(cpu));
        }
        if slab.free() > 0 {
            self.lists.insert(name, slab);
        }
    }

    /// Takes back the objects of `batches`, all of `class`, [`GIVEN_AT_ONCE`] lists at a time.
    /// Slabs that become empty go to `emptied`. Returns how many objects there were, however many
    /// had been counted.
    ///
    /// # Errors
    /// The first object found that is not out. The objects behind it stay where they are.
    pub(crate) fn give(
        &mut self,
        class: ClassId,
        batches: &[Batch],
        emptied: &mut Emptied,
        source: &impl SlabSource,
    ) -> Result<usize, Misused> {
        let finder = Finder::new(class, source);
        let mut links = [Link::END; PREFETCHED];
        let mut ahead = [Returning { slab: SlabRef::NONE, index: 0 }; PREFETCHED];
        let mut given = 0;
        for lists in batches.chunks(GIVEN_AT_ONCE) {
            let mut walk = Walk::through(lists);
            for list in &mut walk.0 {
                given += self.give_neighbours(list, &finder, emptied)?;
            }
            // Each object of a list may lie in another slab. So the descriptors are fetched side by
            // side before the first is needed. All links are read before an object is given back,
            // since its memory may go with it.
            loop {
                let mut count = walk.step(&mut links);
                if count == 0 {
                    break;
                }
                let mut is_unfound = |(&link, place): (&Link, &mut _)| {
                    finder.find(link).map(|found| *place = found).is_none()
                };
                while let Some(at) = links[..count].iter().zip(&mut ahead).position(&mut is_unfound)
                {
                    if links[at] != Link::END {
                        return Err(Misuse::FreeListCorrupted.at(links[at].as_ptr()));
                    }
                    // A list's end, which takes no place.
                    count -= 1;
                    links[at] = links[count];
                }
                // Counted here at once: to count each object in memory would be the critical path.
                self.free_objects += count;
                given += count;
                for (&place, &link) in ahead[..count].iter().zip(&links) {
                    self.give_one(place, class, emptied).map_err(|what| what.at(link.as_ptr()))?;
                }
            }
        }
        Ok(given)
    }

    /// As [`give`](Self::give), for those of `objects` that are `Some`. They are on no list, and
    /// nothing is read from them. Returns how many they are.
    pub(crate) fn give_unlisted(
        &mut self,
        class: ClassId,
        objects: &[Option<FreeObject>],
        emptied: &mut Emptied,
        source: &impl SlabSource,
    ) -> Result<usize, Misused> {
        let finder = Finder::new(class, source);
        objects.iter().flatten().try_fold(0, |count, &object| {
            self.free_objects += 1;
            finder
                .place(object)
                .ok_or(Misuse::FreeListCorrupted)
                .and_then(|place| self.give_one(place, class, emptied))
                .map_err(|what| what.at(object.as_ptr()))?;
            Ok(count + 1)
        })
    }

    /// Takes back an object, which the caller has counted. Errors as for [`give`](Self::give).
    #[inline(always)]
    fn give_one(
        &mut self,
        Returning { slab: name, index }: Returning,
        class: ClassId,
        emptied: &mut Emptied,
    ) -> Result<(), Misuse> {
        if name.class() != class {
            return Err(Misuse::FreeListCorrupted);
        }
        // SAFETY: a slab of this class is this bin's, whose lock is held.
        let slab = unsafe { name.get() };
        match slab.give(index) {
            Returned::Ok => {}
            Returned::Moves => self.settle(name, slab, 1, emptied),
            Returned::Corrupt => return Err(Misuse::DoubleFree),
        }
        Ok(())
    }

    /// Takes back the objects that a list begins with, as long as enough of them lie in one slab;
    /// those of one slab as one row. Errors as for [`give`](Self::give).
    #[inline(never)]
    fn give_neighbours(
        &mut self,
        list: &mut Walked,
        finder: &Finder<'_, impl SlabSource>,
        emptied: &mut Emptied,
    ) -> Result<usize, Misused> {
        let mut given = 0;
        while list.next != Link::END && are_neighbours(list.next) {
            let head = list.next;
            let found = finder.find(head).filter(|found| found.slab.class() == finder.class);
            let Some(Returning { slab: name, index }) = found else {
                return Err(Misuse::FreeListCorrupted.at(head.as_ptr()));
            };
            // SAFETY: a slab of this class is this bin's, whose lock is held.
            let slab = unsafe { name.get() };
            if index as usize >= slab.objects() {
                return Err(Misuse::FreeListCorrupted.at(head.as_ptr()));
            }
            let start = slab.start().addr().get();
            let end = slab.objects() * finder.class.object_bytes();
            let (mut last, mut rest, mut outcome) = (head, head, Ok(()));
            let (count, is_sound) = slab.give_row(|| {
                // The list's end lies in no slab.
                let offset = rest.as_ptr().addr().get().wrapping_sub(start);
                if offset >= end {
                    return None;
                }
                last = rest;
                let index = finder.index_at(offset).filter(|_| rest.marked(finder.key).is_some());
                if index.is_none() {
                    outcome = Err(Misuse::FreeListCorrupted.at(rest.as_ptr()));
                    return None;
                }
                // All links are read before the last object is given back, since the slab may go
                // with it.
                rest = rest.rest();
                index
            });
            self.free_objects += count;
            given += count;
            if slab.has_to_move() {
                self.settle(name, slab, count, emptied);
            }
            if !is_sound {
                return Err(Misuse::DoubleFree.at(last.as_ptr()));
            }
            outcome?;
            *list = Walked { next: rest, left: list.left.saturating_sub(count) };
        }
        Ok(given)
    }

    /// Puts a slab to which `count` objects have come back on the list where it belongs now, or
    /// among the emptied ones.
    fn settle(&mut self, name: SlabRef, slab: &mut Slab, count: usize, emptied: &mut Emptied) {
        let was_listed = slab.free() > count;
        if was_listed {
            self.lists.remove(name, slab);
        }
        if slab.is_empty() {
            self.slabs -= 1;
            self.objects -= slab.free();
            self.free_objects -= slab.free();
            emptied.push(name, slab);
        } else {
            self.lists.insert(name, slab);
        }
    }

    /// Calls `decommit` for the idle frames of [ripe](Slab::is_ripe) slabs. Subtracts from
    /// `left_bytes` what goes and what the visits cost. Stops when nothing is left of it, or after
    /// [`LOCKED_BYTES`], to within a slab. Returns whether all ripe slabs were visited.
    pub(crate) fn scavenge(
        &mut self,
        left_bytes: &mut usize,
        decommit: &mut impl FnMut(NonNull<u8>, usize),
    ) -> bool {
        let end_bytes = left_bytes.saturating_sub(LOCKED_BYTES);
        self.lists.all_from(FIRST_GIVEN_UP, Which::Ripe, |slab| {
            if *left_bytes <= end_bytes {
                return false;
            }
            *left_bytes = left_bytes.saturating_sub(VISIT_BYTES);
            slab.scavenge(&mut |start, bytes| {
                *left_bytes = left_bytes.saturating_sub(bytes);
                decommit(start, bytes);
            });
            true
        })
    }

    /// Gives up the slabs of the emptier groups, each until objects are taken from it after all.
    /// Subtracts from `left_bytes` what the visits cost.
    pub(crate) fn give_up_emptier_slabs(
        &mut self,
        left_bytes: &mut usize,
        source: &impl SlabSource,
    ) {
        self.lists.all_from(FIRST_GIVEN_UP, Which::All, |slab| {
            *left_bytes = left_bytes.saturating_sub(VISIT_BYTES);
            match slab.give_up() {
                0 => {}
                frames => source.show(slab.start(), frames, ClassId::GIVEN_UP),
            }
            true
        });
    }

    /// Panics unless the invariants hold for every listed slab. For tests.
    #[cfg(any(test, feature = "validate"))]
    pub(crate) fn validate(&mut self) {
        let free_objects = self.lists.validate();
        assert_eq!(free_objects, self.free_objects, "free objects of the listed slabs");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rush_lasts_while_much_is_taken() {
        // The last moments before the clock wraps.
        let mut rush = Rush { since_ms: u16::MAX - 9, ..Rush::NONE };
        let mut note = |passed_ms: u16, bytes| {
            rush.note((u16::MAX - 9).wrapping_add(passed_ms), bytes);
            rush.is_on
        };
        assert!(!note(0, RUSH_BYTES - 1) && note(RUSH_MS - 1, 1), "so much within so long");
        assert!(note(RUSH_MS, 1), "a look later it goes on");
        assert!(
            note(2 * RUSH_MS - 1, RUSH_BYTES - 2) && !note(2 * RUSH_MS, 1),
            "while it is as much"
        );
        assert!(note(2 * RUSH_MS, RUSH_BYTES) && note(4 * RUSH_MS - 1, 1));
        assert!(note(4 * RUSH_MS, RUSH_BYTES) && !note(6 * RUSH_MS, 1), "and no pause comes");
    }
}
