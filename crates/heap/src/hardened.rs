//! The hardened front: for programs that would rather end than be taken over.
//!
//! ```text
//!   malloc ◀─ one of up to 32, drawn ◀─ fresh ◀──lowest free slots── slab │ … │ last page sealed │
//!   free ──zeroed, marked──▶ quarantine, first in first out ──still zero?──▶ slab
//!
//!   large:   │ pages of the object │ a sealed page │      freed: all sealed, until later
//! ```
//! | against | there is |
//! |---|---|
//! | overwritten links | no links: arrays and bits outside of the objects say what is free |
//! | prediction of the next address | a draw among up to 32 slots |
//! | overflow | a sealed page at the end of each slab and behind each large object |
//! | use after free | a quarantine: small objects zeroed, large ones sealed |
//! | writing after free | a check that an object is still zero when it leaves the quarantine |
//! | reading what was freed | zeros on free |
//! | double and wild frees | a look at the slab's bit of the slot at every free |
//! | a wrong size or alignment in a sized free | a comparison with the object's class, or its length and address |
//!
//! No thread has a cache: the fast paths find nothing, and every call comes here. Each class has a
//! lock, under which the bin's may be taken.
//!
//! Invariants
//! 1. A fresh object, and one in quarantine, is taken from its slab, bears its mark, and has zero
//!    as its first word. One in quarantine is also zero behind the mark, and still is when it
//!    leaves the quarantine.
//! 2. The last page of a large object in use is sealed, as far as the system allows.

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use hectare_base::rolled;
use hectare_base::sync::Lock;
use hectare_pages::System;

use crate::class::{ClassId, MIN_ALIGN, STATES};
use crate::gathered::Gathered;
use crate::heap::{Heap, MAX_SEALED, Place};
use crate::huge::Contents;
use crate::misuse::{Misuse, Misused};
use crate::object::FreeObject;
use crate::random::{Random, spread};
use crate::region::FRAME_BYTES;
use crate::run_cache::LONGEST_CACHED_FRAMES;
use crate::seat::Seat;

/// Larger requests take pages of their own.
const MAX_SLOT_BYTES: usize = 8 * 1024;

/// How many slots the next object is drawn from.
const FRESH: usize = 32;

/// When a quarantine is full, the oldest objects, one in this many, are let out at once: giving one
/// back by itself costs two locks.
const LET_OUT: usize = 8;

/// The most objects of a class that are in quarantine, and the most bytes of them.
const QUARANTINE: usize = 128;
const QUARANTINE_BYTES: usize = 256 * 1024;

/// How many counts of kept objects there are: eight for each object in quarantine. So some seven in
/// eight of the objects that are not kept need not be searched for.
const COUNTS: usize = 8 * QUARANTINE;

/// The same for large objects. Their memory is given back at once, so the bytes are address space.
const LARGE_QUARANTINE: usize = 32;
const LARGE_QUARANTINE_BYTES: usize = 256 << 20;

/// What is kept of one class: nothing, if all zeros.
#[derive(Debug)]
struct ClassState {
    fresh: [Option<FreeObject>; FRESH],
    fresh_len: usize,
    quarantine: [Option<FreeObject>; QUARANTINE],
    /// How many objects were ever put into the quarantine.
    freed: usize,
    random: Random,
    /// The front's salt when this class was last drawn from.
    salt: u64,
    /// How many objects are fresh or in quarantine, by a hash of their addresses. Searching for one
    /// takes long.
    kept: [u8; COUNTS],
}

/// No count can overflow.
const _: () = assert!(FRESH + QUARANTINE <= u8::MAX as usize);

/// A large object that was freed. No object if it has no bytes.
#[derive(Debug, Clone, Copy)]
struct Sealed {
    start: usize,
    bytes: usize,
}

#[derive(Debug)]
struct LargeQuarantine {
    quarantine: [Sealed; LARGE_QUARANTINE],
    next: usize,
    bytes: usize,
}

/// The state of the front. All methods may be called by any thread.
#[derive(Debug)]
pub(crate) struct Hardened<S: System> {
    classes: [Lock<ClassState, S::Park>; STATES],
    large: Lock<LargeQuarantine, S::Park>,
    /// Whether large objects have a sealed page behind them, unless there are too many of them.
    seals_large: AtomicBool,
    /// How many large objects are in use.
    large_objects: AtomicUsize,
    /// Whether an object was ever to become shorter when there was no memory to move it to. Nothing
    /// tells it from the others.
    keeps_longer: AtomicBool,
    /// Whether a large object was ever given room to grow. Nothing tells it from the others.
    gives_room: AtomicBool,
    /// When this process was forked; 0 if it was not. Otherwise its parent and siblings would draw
    /// by the same numbers.
    salt: AtomicU64,
}

impl ClassState {
    const EMPTY: Self = Self {
        fresh: [None; FRESH],
        fresh_len: 0,
        quarantine: [None; QUARANTINE],
        freed: 0,
        random: Random::NEW,
        salt: 0,
        kept: [0; COUNTS],
    };

    /// The count for `object`: how many objects with its hash are kept.
    fn kept(&mut self, object: FreeObject) -> &mut u8 {
        &mut self.kept[hash(object)]
    }

    /// Whether an object is kept, whatever was written to it.
    fn holds(&mut self, object: FreeObject) -> bool {
        *self.kept(object) > 0
            && (is_among(&self.quarantine, object) || is_among(&self.fresh, object))
    }

    /// Takes one of the fresh objects, all equally likely (to within 2⁻⁵⁹).
    fn draw(&mut self) -> Option<FreeObject> {
        let drawn = self.random.next();
        let last = self.fresh_len.checked_sub(1)?;
        let at = ((u128::from(drawn) * self.fresh_len as u128) >> 64) as usize;
        self.fresh.swap(at, last);
        self.fresh_len = last;
        let object = self.fresh[last].take()?;
        *self.kept(object) -= 1;
        Some(object)
    }

    /// Gives the fresh objects back to their slabs.
    #[cold]
    fn give_back_fresh<S: System>(
        &mut self,
        heap: &Heap<S>,
        class: ClassId,
    ) -> Result<(), Misused> {
        let given = heap.give_unlisted_to_slabs(class, &self.fresh);
        while self.draw().is_some() {}
        given
    }

    /// Lets the objects at `places` out of the quarantine, into their slabs.
    ///
    /// # Errors
    /// The first object that was written to.
    fn let_out<S: System>(
        &mut self,
        heap: &Heap<S>,
        class: ClassId,
        places: Range<usize>,
    ) -> Result<(), Misused> {
        let Self { quarantine, kept, .. } = self;
        let Some(places) = quarantine.get_mut(places) else { return Ok(()) };
        for place in &mut *places {
            let Some(object) = *place else { continue };
            if !object.is_marked(heap.key()) || !object.is_zero_but_for_mark(class.object_bytes()) {
                *place = None;
                kept[hash(object)] -= 1;
                return Err(Misuse::FreeListCorrupted.at(object.as_ptr()));
            }
        }
        heap.give_unlisted_to_slabs(class, places)?;
        for object in places.iter_mut().filter_map(Option::take) {
            kept[hash(object)] -= 1;
        }
        Ok(())
    }
}

/// Which of the counts is the one for `object`.
fn hash(object: FreeObject) -> usize {
    let slot = object.as_ptr().addr().get() / MIN_ALIGN;
    (spread(slot) >> (usize::BITS - COUNTS.ilog2())) % COUNTS
}

/// Whether an object is at one of `places`. (A slice, whose length the compiler does not know:
/// otherwise it would unroll the loop.)
#[cold]
#[inline(never)]
fn is_among(places: &[Option<FreeObject>], object: FreeObject) -> bool {
    places.contains(&Some(object))
}

impl<S: System> Hardened<S> {
    pub(crate) const fn new() -> Self {
        const NOTHING: Sealed = Sealed { start: 0, bytes: 0 };
        Self {
            classes: [const { Lock::new(ClassState::EMPTY) }; STATES],
            large: Lock::new(LargeQuarantine {
                quarantine: [NOTHING; LARGE_QUARANTINE],
                next: 0,
                bytes: 0,
            }),
            seals_large: AtomicBool::new(false),
            large_objects: AtomicUsize::new(0),
            keeps_longer: AtomicBool::new(false),
            gives_room: AtomicBool::new(false),
            salt: AtomicU64::new(0),
        }
    }

    /// Must be called before the front is used, while the process has only one thread.
    pub(crate) fn begin(&self, heap: &Heap<S>) {
        heap.ensure_key();
        heap.seal_slabs();
        // A large object from before has no sealed page, and nothing tells it from the others.
        let stats = heap.stats();
        self.seals_large.store(stats.run_bytes + stats.huge_bytes == 0, Relaxed);
    }

    /// How many bytes behind each large object are sealed.
    fn sealed_bytes(&self, heap: &Heap<S>) -> usize {
        if self.seals_large.load(Relaxed) { heap.source().page_bytes() } else { 0 }
    }

    /// An object for `bytes` aligned to `align`, and whether it is known to be zero. Null when out
    /// of memory.
    pub(crate) fn malloc(&self, heap: &Heap<S>, bytes: usize, align: usize) -> (*mut u8, bool) {
        let (object, is_zero) = self.try_malloc(heap, bytes, align);
        if !object.is_null() {
            return (object, is_zero);
        }
        // Out of memory: what is in quarantine is the last that can be had.
        self.release(heap, bytes);
        self.try_malloc(heap, bytes, align)
    }

    fn try_malloc(&self, heap: &Heap<S>, bytes: usize, align: usize) -> (*mut u8, bool) {
        let Some(class) = slot_class(bytes, align) else {
            return self.get_large(heap, bytes, align);
        };
        let object = self.take(heap, class).map_or(core::ptr::null_mut(), |object| {
            object.unmark();
            object.as_ptr().as_ptr()
        });
        (object, false)
    }

    fn take(&self, heap: &Heap<S>, class: ClassId) -> Option<FreeObject> {
        let mut slots = self.classes[class.index()].lock();
        if slots.fresh_len == 0 {
            self.refill(heap, class, &mut slots);
        }
        let salt = self.salt.load(Relaxed);
        if slots.salt != salt {
            slots.salt = salt;
            slots.random.stir(salt);
        }
        slots.draw()
    }

    #[cold]
    fn refill(&self, heap: &Heap<S>, class: ClassId, slots: &mut ClassState) {
        // Drawn for each refill: children made without our handlers begin with the same state, and
        // in this way soon draw apart.
        let seed = heap.source().secret() as u64 ^ heap.source().now_ns();
        slots.random.stir(seed.wrapping_mul(2 * class.index() as u64 + 1));
        heap.backend.reopen();
        let mut gathered = Gathered::new();
        heap.gather_from_bin(class, FRESH, &mut gathered);
        for (&object, place) in gathered.objects().iter().zip(&mut slots.fresh) {
            object.mark_alone(heap.key());
            *place = Some(object);
        }
        slots.fresh_len = gathered.count().min(FRESH);
        for &object in gathered.objects() {
            *slots.kept(object) += 1;
        }
    }

    /// Frees the object at `object`. `claim`, if any, is the size that the caller says it asked
    /// for, and the alignment.
    pub(crate) fn free(&self, heap: &Heap<S>, object: *mut u8, claim: Option<(usize, usize)>) {
        let Some(start) = NonNull::new(object) else { return };
        let place = heap.place_of(start).unwrap_or_else(|cause| heap.misuse("free", object, cause));
        if let Some((bytes, align)) = claim
            && !self.fits(heap, start, place, bytes, align)
        {
            heap.misuse("free", object, Misuse::WrongSize);
        }
        let given = match place {
            Place::Small { class, .. } => {
                // SAFETY: `place_of` says that it is an object of a size class.
                self.give(heap, class, unsafe { FreeObject::new(start) })
            }
            Place::Run { .. } | Place::Huge { .. } => self.give_large(heap, start).map(|()| false),
        };
        // No lock is held from here on.
        match given {
            Ok(false) => {}
            // Each object in quarantine keeps a slab: other pages of it may be idle.
            Ok(true) => heap.relieve(Seat::NONE),
            Err(Misused { what, object }) => heap.misuse("free", object, what),
        }
    }

    /// Puts an object into the quarantine of its class. Returns whether that was full.
    fn give(&self, heap: &Heap<S>, class: ClassId, object: FreeObject) -> Result<bool, Misused> {
        let mut slots = self.classes[class.index()].lock();
        // Under the class's lock: a second thread that frees the same object comes later.
        if object.is_marked(heap.key()) {
            return Err(Misuse::DoubleFree.at(object.as_ptr()));
        }
        if !heap.is_taken(class, object) {
            return Err(Misuse::NotAllocated.at(object.as_ptr()));
        }
        // SAFETY: the object is taken from its slab. It was the caller's and is now this front's,
        // or was this front's already.
        unsafe { object.as_ptr().write_bytes(0, class.object_bytes()) };
        object.mark_alone(heap.key());
        if slots.holds(object) {
            return Err(Misuse::DoubleFree.at(object.as_ptr()));
        }
        let length = (QUARANTINE_BYTES / class.object_bytes()).clamp(1, QUARANTINE);
        let place = slots.freed % length;
        slots.freed = slots.freed.wrapping_add(1);
        let is_full = slots.quarantine[place].is_some();
        if is_full {
            let end = length.min(place + length.div_ceil(LET_OUT));
            slots.let_out(heap, class, place..end)?;
        }
        slots.quarantine[place] = Some(object);
        *slots.kept(object) += 1;
        Ok(is_full)
    }

    /// A large object with a sealed page behind it, and whether it is known to be zero.
    fn get_large(&self, heap: &Heap<S>, bytes: usize, align: usize) -> (*mut u8, bool) {
        let page = self.sealed_bytes(heap);
        let Some(with_page) = bytes.checked_add(page) else {
            return (core::ptr::null_mut(), false);
        };
        heap.backend.reopen();
        // As if zeros were asked for: what comes out of the quarantine reads as zero, which says
        // nothing of what the program fills; and pages that are sealed and opened in turn are no
        // huge pages.
        let contents = Contents::Zeros;
        let (object, is_zero) = heap.get_large(Seat::NONE, with_page, align, contents);
        if let Some(start) = NonNull::new(object).filter(|_| page > 0)
            && self.large_objects.fetch_add(1, Relaxed) < MAX_SEALED
            && let Ok(usable) = heap.usable_bytes(start)
        {
            // SAFETY: usable ≥ bytes + page.
            let last = unsafe { start.add(usable - page) };
            // A page that the system will not seal stays open: an overflow is merely not detected.
            // SAFETY: the object's last page, behind what the caller is told of.
            let _ = unsafe { heap.source().seal(last, page) };
        }
        (object, is_zero)
    }

    /// Whether an object at `start`, in `place`, can have been asked for as `bytes` aligned to
    /// `align`.
    fn fits(
        &self,
        heap: &Heap<S>,
        start: NonNull<u8>,
        place: Place,
        bytes: usize,
        align: usize,
    ) -> bool {
        // Of a large object only the alignment that it happens to have is known: at least what was
        // asked for.
        if !start.addr().get().is_multiple_of(align) {
            return false;
        }
        if self.keeps_longer.load(Relaxed) {
            return heap.usable_bytes(start).is_ok_and(|usable| bytes <= usable);
        }
        self.is_as_long(heap, start, place, bytes, align)
    }

    /// Whether a new object for `bytes`, aligned to `align`, might be as long as that at `start`, in
    /// `place`.
    #[inline(never)]
    fn is_as_long(
        &self,
        heap: &Heap<S>,
        start: NonNull<u8>,
        place: Place,
        bytes: usize,
        align: usize,
    ) -> bool {
        // No object is that long, and rounded up the size might overflow.
        if bytes > isize::MAX as usize {
            return false;
        }
        let with_page = bytes + self.sealed_bytes(heap);
        let least = with_page.next_multiple_of(heap.source().page_bytes());
        match (place, slot_class(bytes, align)) {
            (Place::Small { class, .. }, Some(claimed)) => class == claimed,
            (Place::Run { frames }, None) => {
                heap.may_be_run_for(start, frames, with_page, align)
                    || self.may_be_longer(least, frames * FRAME_BYTES)
            }
            (Place::Huge { bytes }, None) => bytes == least || self.may_be_longer(least, bytes),
            _ => false,
        }
    }

    /// Whether a large object of `bytes` may be longer than `least`, which was asked for. It may be,
    /// by at most an eighth, if it has room to grow or is from before this front.
    fn may_be_longer(&self, least: usize, bytes: usize) -> bool {
        let may_have_room =
            bytes > LONGEST_CACHED_FRAMES * FRAME_BYTES && self.gives_room.load(Relaxed);
        let may_be = may_have_room || !self.seals_large.load(Relaxed);
        may_be && (least..=least + least / 7).contains(&bytes)
    }

    /// Whether the object at `object` stays where it is if it is to hold `bytes`.
    pub(crate) fn stays(&self, heap: &Heap<S>, object: NonNull<u8>, bytes: usize) -> bool {
        heap.place_of(object)
            .is_ok_and(|place| self.is_as_long(heap, object, place, bytes, MIN_ALIGN))
    }

    /// How many bytes to take when an object of `old_bytes` must move to hold `bytes`. A large one
    /// that grows gets room, so that a block which grows page by page is not copied each time.
    pub(crate) fn moved_bytes(&self, old_bytes: usize, bytes: usize) -> usize {
        let with_room = Heap::<S>::moved_run_bytes(old_bytes, bytes);
        if with_room > bytes {
            self.gives_room.store(true, Relaxed);
        }
        with_room
    }

    /// Notes that an object stays longer than its owner has asked for. From now on the owner of any
    /// object may claim any size up to the usable one.
    #[cold]
    pub(crate) fn keep_longer(&self) {
        self.keeps_longer.store(true, Relaxed);
    }

    /// Seals a large object, and lets the oldest out of the quarantine if there is no room.
    fn give_large(&self, heap: &Heap<S>, start: NonNull<u8>) -> Result<(), Misused> {
        let mut large = self.large.lock();
        let address = start.addr().get();
        if large.has(address) {
            return Err(Misuse::DoubleFree.at(start));
        }
        // Another thread may have freed it in the meantime.
        let bytes = heap.usable_bytes(start).map_err(|cause| cause.at(start))?;
        if self.seals_large.load(Relaxed) {
            self.large_objects.fetch_sub(1, Relaxed);
        }
        // SAFETY: a large object's own pages, which its owner has given up.
        let sealed = unsafe { heap.source().seal(start, bytes) }.is_ok();
        if !sealed || bytes > LARGE_QUARANTINE_BYTES / 2 {
            put_large(heap, address, bytes);
            return Ok(());
        }
        while large.bytes + bytes > LARGE_QUARANTINE_BYTES
            || large.quarantine[large.next % LARGE_QUARANTINE].bytes > 0
        {
            large.let_oldest_out(heap);
        }
        let place = large.next % LARGE_QUARANTINE;
        large.quarantine[place] = Sealed { start: address, bytes };
        large.next = place + 1;
        large.bytes += bytes;
        Ok(())
    }

    /// Gives back what is fresh or in quarantine when there is no memory for `bytes`: each object
    /// may be what keeps a slab from being empty. Only large objects go if `bytes` is more than all
    /// that is committed, so that a request that can never be served lets no small freed object out
    /// early.
    #[cold]
    pub(crate) fn release(&self, heap: &Heap<S>, bytes: usize) {
        if bytes <= heap.backend.committed_bytes() {
            self.release_small(heap);
        }
        let mut large = self.large.lock();
        while large.bytes > 0 {
            large.let_oldest_out(heap);
        }
        drop(large);
        heap.backend.reopen();
    }

    fn release_small(&self, heap: &Heap<S>) {
        for class in ClassId::all() {
            let mut slots = self.classes[class.index()].lock();
            let gone = slots
                .give_back_fresh(heap, class)
                .and_then(|()| slots.let_out(heap, class, 0..QUARANTINE));
            drop(slots);
            if let Err(Misused { what, object }) = gone {
                heap.misuse("free", object, what);
            }
        }
    }

    /// How many bytes the object at `object` has.
    pub(crate) fn usable_bytes(
        &self,
        heap: &Heap<S>,
        object: NonNull<u8>,
    ) -> Result<usize, Misuse> {
        let place = heap.place_of(object)?;
        if let Place::Small { class, .. } = place {
            // SAFETY: `place_of` says that it is an object of a size class.
            let is_taken = heap.is_taken(class, unsafe { FreeObject::new(object) });
            return if is_taken { Ok(class.object_bytes()) } else { Err(Misuse::NotAllocated) };
        }
        if self.large.lock().has(object.addr().get()) {
            return Err(Misuse::DoubleFree);
        }
        Ok(heap.usable_bytes(object)? - self.sealed_bytes(heap))
    }

    /// Has a forked child draw otherwise than its parent and its siblings. (It does so by one
    /// number for all classes, which each class looks at when it is drawn from: to stir them all
    /// would copy all their pages.)
    pub(crate) fn draw_apart(&self, heap: &Heap<S>) {
        self.salt.store(heap.source().now_ns(), Relaxed);
    }

    /// Holds the locks across a fork.
    pub(crate) fn before_fork(&self) {
        rolled(&self.classes).iter().for_each(Lock::lock_for_fork);
        self.large.lock_for_fork();
    }

    /// Releases the locks in the parent and in the child.
    ///
    /// # Safety
    /// This thread, or the one it is the copy of, called [`before_fork`](Self::before_fork).
    pub(crate) unsafe fn after_fork(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.large.unlock() };
        for class in rolled(&self.classes) {
            // SAFETY: the caller's promise.
            unsafe { class.unlock() };
        }
    }
}

/// The class whose slots serve a request. `None` if it takes pages of its own.
fn slot_class(bytes: usize, align: usize) -> Option<ClassId> {
    ClassId::for_aligned(bytes, align.max(MIN_ALIGN))
        .filter(|class| class.object_bytes() <= MAX_SLOT_BYTES)
}

/// Gives a sealed large object to the heap.
#[inline(never)]
fn put_large<S: System>(heap: &Heap<S>, start: usize, bytes: usize) {
    let Some(start) = NonNull::new(core::ptr::with_exposed_provenance_mut(start)) else { return };
    let is_run = heap.backend.run_length(start).is_some();
    // What goes back to the system need not be opened.
    if !is_run && heap.backend.huge.lock().put_sealed(start, heap.source()).is_some() {
        return;
    }
    // SAFETY: the pages of a large object that was sealed as a whole, or was to be.
    if unsafe { heap.source().commit(start, bytes) }.is_err() {
        return heap.backend.shut_run(start);
    }
    // SAFETY: its owner has given the object up.
    unsafe { heap.free_slow(Seat::NONE, start.as_ptr()) };
}

impl LargeQuarantine {
    /// Whether the object at `address` is in quarantine.
    fn has(&self, address: usize) -> bool {
        rolled(&self.quarantine).iter().any(|sealed| sealed.bytes > 0 && sealed.start == address)
    }

    fn let_oldest_out<S: System>(&mut self, heap: &Heap<S>) {
        for step in 0..rolled(&self.quarantine).len() {
            let place = (self.next + step) % LARGE_QUARANTINE;
            let Sealed { start, bytes } = self.quarantine[place];
            if bytes > 0 {
                self.quarantine[place].bytes = 0;
                self.bytes -= bytes;
                return put_large(heap, start, bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::boxed::Box;
    use std::vec::Vec;

    use hectare_pages::{Failing, Os};

    use super::*;

    const REGION_BYTES: usize = 64 << 20;

    #[test]
    fn what_is_kept_is_counted() {
        let heap = Box::new(Heap::new(Os, REGION_BYTES));
        let front = Box::new(Hardened::new());
        front.begin(&heap);
        let mut random = 1_u64;
        let mut live = Vec::new();
        for step in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let draw = (random >> 33) as usize;
            if live.len() < 300 || draw.is_multiple_of(2) {
                live.push(front.malloc(&heap, 1 + draw % 300, MIN_ALIGN).0);
            } else {
                front.free(&heap, live.swap_remove(draw % live.len()), None);
            }
            if step % 1000 == 0 {
                front.release(&heap, 0);
            }
        }
        let kept = |slots: &ClassState| {
            let all = slots.quarantine.iter().chain(&slots.fresh);
            all.filter(|place| place.is_some()).count()
        };
        for class in &front.classes {
            let mut slots = class.lock();
            let counted: usize = slots.kept.iter().map(|&count| usize::from(count)).sum();
            assert_eq!(counted, kept(&slots));
            let all: Vec<_> =
                slots.quarantine.iter().chain(&slots.fresh).flatten().copied().collect();
            assert!(all.iter().all(|&object| slots.holds(object)));
        }
        assert!(front.classes.iter().any(|class| kept(&class.lock()) > QUARANTINE / 2));
    }

    #[test]
    fn what_can_never_be_served_lets_nothing_out() {
        let heap = Box::new(Heap::new(Os, REGION_BYTES));
        let front = Box::new(Hardened::new());
        front.begin(&heap);
        let object = NonNull::new(front.malloc(&heap, 100, MIN_ALIGN).0).expect("memory");
        front.free(&heap, object.as_ptr(), None);
        assert!(front.malloc(&heap, 1 << 60, MIN_ALIGN).0.is_null());
        let class = slot_class(100, MIN_ALIGN).expect("a class");
        // SAFETY: the start of an object of a size class.
        let object = unsafe { FreeObject::new(object) };
        assert!(front.classes[class.index()].lock().quarantine.contains(&Some(object)));
    }

    #[test]
    fn no_claim_is_too_long_to_be_refused() {
        let heap = Box::new(Heap::new(Os, REGION_BYTES));
        let front = Box::new(Hardened::new());
        front.begin(&heap);
        for bytes in [100, 40_000, 40 << 20] {
            let start = NonNull::new(front.malloc(&heap, bytes, MIN_ALIGN).0).expect("memory");
            let place = heap.place_of(start).expect("an object");
            assert!(front.fits(&heap, start, place, bytes, MIN_ALIGN));
            for less in [0, 1, FRAME_BYTES - 1, FRAME_BYTES, 3 * FRAME_BYTES] {
                let claim = usize::MAX - less;
                assert!(!front.fits(&heap, start, place, claim, MIN_ALIGN), "{bytes}: {claim}");
            }
        }
    }

    /// An object of no bytes that is widely aligned has only its sealed page, and another object
    /// may begin right behind that.
    #[test]
    fn a_single_page_that_cannot_be_opened_harms_no_other() {
        let heap = Box::new(Heap::new(Failing::new(Os), REGION_BYTES));
        let front = Box::new(Hardened::new());
        front.begin(&heap);
        let pairs: Vec<_> = (0..10)
            .map(|_| {
                [(0, 16 << 10), (9000, MIN_ALIGN)].map(|(n, align)| front.malloc(&heap, n, align).0)
            })
            .collect();
        assert!(pairs.iter().any(|&[single, other]| other == single.wrapping_add(FRAME_BYTES)));
        let others = || pairs.iter().filter_map(|&[_, other]| NonNull::new(other));
        let bytes = || others().map(|other| heap.usable_bytes(other)).collect::<Vec<_>>();
        let before = bytes();
        heap.source().refuse_all(true);
        pairs.iter().for_each(|&[single, _]| front.free(&heap, single, None));
        front.release(&heap, 0);
        assert!(heap.backend.has_shut());
        heap.validate();
        assert_eq!(bytes(), before);
        heap.source().refuse_all(false);
        heap.backend.reopen();
        assert!(!heap.backend.has_shut());
        heap.validate();
        assert_eq!(bytes(), before);
        others().for_each(|other| front.free(&heap, other.as_ptr(), None));
        front.release(&heap, 0);
        heap.validate();
        assert_eq!(heap.stats().run_bytes, 0);
    }

    /// What cannot be sealed is not kept. One page of a slab is sealed, so the slab is shut if that
    /// page cannot be opened.
    #[test]
    fn what_the_system_refuses_is_not_handed_out() {
        let heap = Box::new(Heap::new(Failing::new(Os), REGION_BYTES));
        let front = Box::new(Hardened::new());
        front.begin(&heap);
        for (bytes, count) in [(100, 4000), (40_000, 5)] {
            let objects: Vec<_> =
                (0..count).map(|_| front.malloc(&heap, bytes, MIN_ALIGN).0).collect();
            heap.source().refuse_all(true);
            objects.into_iter().for_each(|object| front.free(&heap, object, None));
            assert_eq!(heap.stats().run_bytes, 0, "{bytes} bytes");
            front.release(&heap, 0);
            assert!(heap.backend.has_shut(), "{bytes} bytes");
            heap.source().refuse_all(false);
            heap.backend.reopen();
            assert!(!heap.backend.has_shut(), "{bytes} bytes");
            heap.validate();
        }
    }

    #[test]
    fn what_cannot_be_opened_serves_later() {
        let heap = Box::new(Heap::new(Failing::new(Os), REGION_BYTES));
        let front = Box::new(Hardened::new());
        front.begin(&heap);
        let took = |refuse: bool| {
            let objects: Vec<_> = [100, 1000, 5000, 9000, 40_000, 200_000, 3 << 20, 40 << 20]
                .into_iter()
                .flat_map(|bytes| core::iter::repeat_n(bytes, if bytes < 10_000 { 200 } else { 5 }))
                .map(|bytes| front.malloc(&heap, bytes, MIN_ALIGN).0)
                .collect();
            assert!(objects.iter().all(|object| !object.is_null()));
            heap.source().refuse_all(refuse);
            objects.into_iter().for_each(|object| front.free(&heap, object, None));
            front.release(&heap, 0);
            heap.validate();
            let stats = heap.stats();
            assert_eq!((stats.small_bytes, stats.run_bytes, stats.huge_bytes), (0, 0, 0));
            assert_eq!(heap.live_bytes(), 0);
            heap.source().refuse_all(false);
            stats.committed_bytes
        };
        let once = took(true);
        assert!(heap.backend.has_shut());
        assert_eq!((took(false), took(true), took(false)), (once, once, once), "nothing is lost");
        assert!(!heap.backend.has_shut());
    }
}
