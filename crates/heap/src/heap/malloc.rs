//! Taking objects: from the thread's list, or by the slow path.

use core::ptr::{self, NonNull};
use core::sync::atomic::Ordering::Relaxed;

use hectare_pages::System;

use super::Heap;
use crate::cache::{Cache, CacheBin};
use crate::class::{ClassId, MAX_SMALL_BYTES, MIN_ALIGN};
use crate::misuse::Misuse;
use crate::object::{FreeObject, Key};
use crate::seat::Seat;

/// What the hit path of `malloc` finds.
pub enum Fast {
    /// An object, which is the caller's.
    Object(NonNull<u8>),
    /// A list whose first object does not bear the mark that the hit path looks for: it was written
    /// to, or a front wants to see every request.
    Diverted(Diverted),
    /// Nothing.
    Missing,
}

/// A thread's list that is not empty, and its first object: for one more look with the true key.
#[repr(C)]
pub struct Diverted {
    bin: NonNull<CacheBin>,
    object: FreeObject,
}

impl Diverted {
    /// Takes the object, if it bears the mark of `key`.
    ///
    /// # Safety
    /// The list is as it was found, by this thread.
    #[inline(always)]
    unsafe fn take(self, key: Key) -> Fast {
        let Self { mut bin, object } = self;
        if !object.is_marked(key) {
            return Fast::Diverted(self);
        }
        // SAFETY: the caller's promise: the thread's own list, of which nothing else is borrowed.
        let bin = unsafe { bin.as_mut() };
        bin.head = object.next();
        bin.room += 1;
        object.unmark();
        Fast::Object(object.as_ptr())
    }
}

impl<S: System> Heap<S> {
    /// An object for `bytes` from the thread's cache; if there is none, the slow path must be asked.
    ///
    /// # Safety
    /// `cache` is this thread's, of this heap, or [`Cache::ABSENT`].
    #[inline(always)]
    pub unsafe fn malloc_fast(&self, cache: NonNull<Cache>, bytes: usize) -> Fast {
        if bytes > MAX_SMALL_BYTES {
            return Fast::Missing;
        }
        let key = Key(self.fast_key.load(Relaxed));
        // SAFETY: the caller's promise, passed on.
        unsafe { self.take_fast(cache, ClassId::for_bytes(bytes), key) }
    }

    /// An object of `class` from the thread's cache, if its mark is of `key`.
    ///
    /// # Safety
    /// As [`malloc_fast`](Self::malloc_fast).
    #[inline(always)]
    unsafe fn take_fast(&self, cache: NonNull<Cache>, class: ClassId, key: Key) -> Fast {
        // SAFETY: the caller's promise: this thread's, or one that is only read.
        let bin = unsafe { &raw mut (*cache.as_ptr()).bins[class.index()] };
        // SAFETY: within the cache.
        let bin = unsafe { NonNull::new_unchecked(bin) };
        // SAFETY: as above.
        let Some(object) = (unsafe { (*bin.as_ptr()).head }) else {
            return Fast::Missing;
        };
        // SAFETY: just found; it is not empty, so the cache is not the absent one.
        unsafe { Diverted { bin, object }.take(key) }
    }

    /// An object of `class` from the thread's cache, whether or not requests are diverted.
    ///
    /// # Safety
    /// As [`malloc_fast`](Self::malloc_fast).
    #[inline(always)]
    unsafe fn take_undiverted(&self, cache: NonNull<Cache>, class: ClassId) -> Option<NonNull<u8>> {
        // SAFETY: the caller's promise, passed on.
        match unsafe { self.take_fast(cache, class, self.key()) } {
            Fast::Object(object) => Some(object),
            Fast::Diverted(_) | Fast::Missing => None,
        }
    }

    /// The object that [`malloc_fast`](Self::malloc_fast) was diverted from, if its list is sound
    /// and nothing is due at it.
    ///
    /// # Safety
    /// `found` is what it found last, on this thread, which has not used its cache since.
    #[inline(always)]
    pub(crate) unsafe fn take_diverted(&self, found: Diverted) -> Option<NonNull<u8>> {
        let mut bin = found.bin;
        // SAFETY: the caller's promise: the thread's own list, of which nothing else is borrowed.
        if !unsafe { bin.as_mut() }.passes(1) {
            return None;
        }
        // SAFETY: the caller's promise.
        match unsafe { found.take(self.key()) } {
            Fast::Object(object) => Some(object),
            Fast::Diverted(_) | Fast::Missing => None,
        }
    }

    /// An object for `bytes`; null when memory is out.
    ///
    /// # Safety
    /// `seat` is this thread's, of this heap.
    #[cold]
    #[inline(never)]
    pub unsafe fn malloc_slow(&self, seat: Seat, bytes: usize) -> *mut u8 {
        if bytes <= MAX_SMALL_BYTES {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.take_slow(seat, ClassId::for_bytes(bytes)) }
        } else {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.get_large(seat, bytes, 1, false) }.0
        }
    }

    /// An object for `bytes`, whether or not requests are diverted; null when memory is out.
    ///
    /// # Safety
    /// As [`malloc_slow`](Self::malloc_slow).
    pub(crate) unsafe fn malloc_undiverted(&self, seat: Seat, bytes: usize) -> *mut u8 {
        if let Seat::Own(cache) = seat
            && bytes <= MAX_SMALL_BYTES
            // SAFETY: the caller's promise, passed on.
            && let Some(object) = unsafe { self.take_undiverted(cache, ClassId::for_bytes(bytes)) }
        {
            return object.as_ptr();
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { self.malloc_slow(seat, bytes) }
    }

    /// As [`malloc_slow`](Self::malloc_slow), for an object of `class`.
    unsafe fn take_slow(&self, seat: Seat, class: ClassId) -> *mut u8 {
        let cache = match seat {
            Seat::Own(cache) => cache,
            // SAFETY: the caller's promise.
            Seat::Cpu => return unsafe { self.take_by_cpu_slow(class) },
            Seat::None => return self.take_uncached(class),
        };
        // SAFETY: the caller's promise: this thread's alone.
        let bin = unsafe { &mut (*cache.as_ptr()).bins[class.index()] };
        // A thread that has just come into a cache finds objects in it.
        if bin.head.is_none() && !bin.use_spare() {
            let ask = bin.ask(class.batch());
            // SAFETY: the caller's promise, passed on.
            unsafe { self.relieve(seat) };
            let batch = self.get_batch(class, ask).or_else(|| {
                // SAFETY: the caller's promise, passed on.
                let gone = unsafe { self.release_runs(seat) };
                (gone > 0).then(|| self.get_batch(class, ask))?
            });
            let Some(batch) = batch else {
                return ptr::null_mut();
            };
            // SAFETY: as above; looking for memory leaves this list as empty as it was.
            unsafe { &mut (*cache.as_ptr()).bins[class.index()] }.fill(batch);
        }
        // SAFETY: the caller's promise.
        match unsafe { self.take_fast(cache, class, self.key()) } {
            Fast::Object(object) => object.as_ptr(),
            Fast::Diverted(damaged) => {
                self.misuse("malloc", damaged.object.as_ptr().as_ptr(), Misuse::FreeListCorrupted)
            }
            Fast::Missing => ptr::null_mut(),
        }
    }

    #[cold]
    pub(crate) fn take_uncached(&self, class: ClassId) -> *mut u8 {
        self.ensure_key();
        let Some(batch) = self.take_from_bin(class, 1) else {
            return ptr::null_mut();
        };
        batch.head.unmark();
        batch.head.as_ptr().as_ptr()
    }

    /// An object for `bytes` aligned to `align`, a power of two; null when memory is out.
    ///
    /// # Safety
    /// As [`malloc_slow`](Self::malloc_slow).
    pub unsafe fn malloc_aligned(&self, seat: Seat, bytes: usize, align: usize) -> *mut u8 {
        match ClassId::for_aligned(bytes, align) {
            Some(class) => {
                if let Seat::Own(cache) = seat
                    // SAFETY: the caller's promise, passed on.
                    && let Some(object) = unsafe { self.take_undiverted(cache, class) }
                {
                    return object.as_ptr();
                }
                // SAFETY: the caller's promise, passed on.
                unsafe { self.take_slow(seat, class) }
            }
            // SAFETY: the caller's promise, passed on.
            None => unsafe { self.get_large(seat, bytes, align, false) }.0,
        }
    }

    /// An object of `bytes` zeros; null when memory is out.
    ///
    /// # Safety
    /// As [`malloc_slow`](Self::malloc_slow).
    pub unsafe fn malloc_zeroed(&self, seat: Seat, bytes: usize) -> *mut u8 {
        let (object, zeroed) = if bytes > MAX_SMALL_BYTES {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.get_large(seat, bytes, 1, true) }
        } else {
            // SAFETY: the caller's promise, passed on.
            (unsafe { self.malloc_aligned(seat, bytes, MIN_ALIGN) }, false)
        };
        if !object.is_null() && !zeroed {
            // SAFETY: an object just taken, of at least `bytes`.
            unsafe { object.write_bytes(0, bytes) };
        }
        object
    }
}
