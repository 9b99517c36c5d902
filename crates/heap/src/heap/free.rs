//! Freeing objects: to the thread's list, or by the slow path.

use core::ptr::NonNull;

use hectare_pages::System;

use super::{Heap, Place};
use crate::batch::Batch;
use crate::cache::Cache;
use crate::class::{ClassId, RECIPROCALS, SLAB_BYTES};
use crate::departing::Departing;
use crate::misuse::Misuse;
use crate::object::{FreeObject, Key};
use crate::seat::{At, Seat, Sharing};

impl<S: System> Heap<S> {
    /// Puts an object on the thread's list. Returns `false`, with nothing changed, when the slow
    /// path is needed: the list is full, or the pointer is null, or leads to no object in use of
    /// the first region. This path of `free` takes 31 instructions.
    ///
    /// # Safety
    /// As [`malloc_fast`](Self::malloc_fast); and if `object` is an object, it is not used again.
    #[inline(always)]
    pub unsafe fn free_fast(&self, cache: NonNull<Cache>, object: *mut u8) -> bool {
        let key = self.key();
        // SAFETY: the caller's promise, passed on.
        let Some((class, object)) = (unsafe { self.own_start(cache, object, key) }) else {
            return false;
        };
        // SAFETY: the caller's promise. The cache is this thread's, since the absent cache finds no
        // start.
        unsafe { &mut (*cache.as_ptr()).bins[class.index()] }.push(object, key)
    }

    /// As [`free_start`](Self::free_start), with the reciprocal that the cache has at hand. The
    /// absent cache finds no start.
    ///
    /// # Safety
    /// `cache` is this thread's, or [`Cache::ABSENT`].
    #[inline(always)]
    unsafe fn own_start(
        &self,
        cache: NonNull<Cache>,
        object: *mut u8,
        key: Key,
    ) -> Option<(ClassId, FreeObject)> {
        // SAFETY: the caller's promise. The cache is this thread's, or one that is only read.
        let reciprocal =
            |class: ClassId| unsafe { (*cache.as_ptr()).bins[class.index()].reciprocal };
        self.free_start(object, key, reciprocal)
    }

    /// The class of `object`, if the fast path of `free` can tell it with this thread's cache.
    ///
    /// # Safety
    /// As [`malloc_fast`](Self::malloc_fast).
    #[inline(always)]
    pub(crate) unsafe fn class_of_own(
        &self,
        cache: NonNull<Cache>,
        object: *mut u8,
    ) -> Option<ClassId> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.own_start(cache, object, self.key()) }.map(|(class, _)| class)
    }

    /// As [`free_fast`](Self::free_fast), onto the list of this CPU.
    ///
    /// # Safety
    /// If `object` is an object, it is not used again.
    #[inline(always)]
    pub(crate) unsafe fn free_by_cpu(&self, sharing: Sharing, object: *mut u8) -> bool {
        let reciprocal = |class: ClassId| RECIPROCALS[class.index()];
        let key = self.key();
        let Some((class, object)) = self.free_start(object, key, reciprocal) else { return false };
        self.give_by_cpu(sharing, class, object, key)
    }

    /// The class of `object`, if it is an object of a size class in the first region and not marked
    /// as free. `reciprocal` gives [`ClassId::reciprocal`] from where the caller has it at hand.
    #[inline(always)]
    fn free_start(
        &self,
        object: *mut u8,
        key: Key,
        reciprocal: impl FnOnce(ClassId) -> u32,
    ) -> Option<(ClassId, FreeObject)> {
        let view = self.backend.first_view();
        let address = object.addr();
        view.offset_of(address)?;
        // SAFETY: the address lies in the region.
        let class = unsafe { view.class_of(address) };
        let reciprocal = reciprocal(class);
        // Slabs are aligned to their size, so the low bits are the offset in the slab. The product
        // is below the reciprocal exactly if the offset is a multiple of the object's size. It
        // never is if the page holds no small objects.
        if ((address % SLAB_BYTES) as u32).wrapping_mul(reciprocal) >= reciprocal {
            return None;
        }
        // SAFETY: no region lies at address 0.
        let object = unsafe { NonNull::new_unchecked(object) };
        // SAFETY: the start of an object of a size class, by the test above.
        let object = unsafe { FreeObject::new(object) };
        (!object.is_marked(key)).then_some((class, object))
    }

    /// As [`free_start`](Self::free_start), without a cache.
    #[inline(always)]
    fn plain_start(&self, object: *mut u8) -> Option<(ClassId, FreeObject)> {
        let reciprocal = |class: ClassId| RECIPROCALS[class.index()];
        self.free_start(object, self.key(), reciprocal)
    }

    /// The class of `object`, if the fast path of `free` can tell it.
    #[inline(always)]
    pub(crate) fn class_of_fast(&self, object: NonNull<u8>) -> Option<ClassId> {
        self.plain_start(object.as_ptr()).map(|(class, _)| class)
    }

    /// Frees an object that the fast path has declined.
    ///
    /// # Safety
    /// If `object` is an object, it is not used again.
    #[cold]
    #[inline(never)]
    pub unsafe fn free_slow(&self, mut seat: Seat<'_>, object: *mut u8) {
        let Some(start) = NonNull::new(object) else { return };
        if let Some((class, object)) = self.plain_start(object) {
            return self.give(seat, class, object);
        }
        // SAFETY: the caller's promise, passed on.
        if unsafe { self.free_run(seat.cache(), start) }.is_some() {
            return;
        }
        match self.place_of(start) {
            Ok(Place::Small { class, is_given_up }) => {
                // SAFETY: `place_of` says that this is an object of a size class.
                let object = unsafe { FreeObject::new(start) };
                if is_given_up {
                    self.send_to_slab(seat, class, object);
                } else {
                    self.give(seat, class, object);
                }
            }
            // Freed by another thread in between.
            Ok(Place::Run { .. }) => self.misuse("free", object, Misuse::NotAllocated),
            Ok(Place::Huge { .. }) => {
                if self.backend.huge.lock().put(start, self.source()).is_none() {
                    self.misuse("free", object, Misuse::NotAllocated);
                }
                self.backend.expect_tending();
            }
            Err(cause) => self.misuse("free", object, cause),
        }
    }

    /// Sends an object to its slab, which is given up.
    #[cold]
    #[inline(never)]
    fn send_to_slab(&self, mut seat: Seat<'_>, class: ClassId, object: FreeObject) {
        match seat.cache().and_then(|cache| self.departing_of(cache)) {
            Some(departing) => {
                let Some((class, batch)) = departing.add(class, object, self.key()) else { return };
                self.give_to_slabs(class, &[batch]);
            }
            None => self.give(Seat::NONE, class, object),
        }
        // Now, since the next call may come only after a long time.
        self.relieve(seat);
    }

    /// The objects that a cache has on their way to given-up slabs. `None` without memory for them.
    fn departing_of<'a>(&self, cache: &'a mut Cache) -> Option<&'a mut Departing> {
        if cache.departing.is_none() {
            cache.departing = self.backend.metadata(size_of::<Departing>()).map(NonNull::cast);
        }
        cache.departing()
    }

    /// Puts an object where the thread at `seat` keeps free ones. If that sends a batch away,
    /// relieves the heap.
    fn give(&self, seat: Seat<'_>, class: ClassId, object: FreeObject) {
        let key = self.key();
        let cache = match seat.at() {
            At::Own(cache) => cache,
            At::Cpu(sharing) => return self.give_by_cpu_slow(sharing, class, object),
            At::Nowhere => {
                self.give_to_slabs(class, &[Batch::with(object, None, key)]);
                return;
            }
        };
        if let Some(batch) = cache.bins[class.index()].give(object, class.batch(), key) {
            self.put_batch(class, batch);
            self.relieve(Seat::with(cache));
        }
    }
}
