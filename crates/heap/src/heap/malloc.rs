//! Taking objects: from the thread's list, or by the slow path.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;

use hectare_pages::System;

use super::Heap;
use crate::cache::Cache;
use crate::class::{ClassId, MAX_SMALL_BYTES, MIN_ALIGN};
use crate::misuse::Misuse;
use crate::object::Key;
use crate::seat::Seat;

impl<S: System> Heap<S> {
    /// An object for `bytes` from the thread's cache; null when the slow path must be asked.
    ///
    /// # Safety
    /// `cache` is this thread's, of this heap, or [`Cache::ABSENT`].
    #[inline(always)]
    pub unsafe fn malloc_fast(&self, cache: NonNull<Cache>, bytes: usize) -> *mut u8 {
        if bytes > MAX_SMALL_BYTES {
            return core::ptr::null_mut();
        }
        let key = Key(self.fast_key.load(Relaxed));
        // SAFETY: the caller's promise, passed on.
        unsafe { self.take_fast(cache, ClassId::for_bytes(bytes), key) }
    }

    /// An object of `class` from the thread's cache, or null: also if its mark is not of `key`.
    ///
    /// # Safety
    /// As [`malloc_fast`](Self::malloc_fast).
    #[inline(always)]
    unsafe fn take_fast(&self, cache: NonNull<Cache>, class: ClassId, key: Key) -> *mut u8 {
        // SAFETY: the caller's promise: this thread's, or one that is only read.
        let bin = unsafe { &raw mut (*cache.as_ptr()).bins[class.index()] };
        // SAFETY: as above.
        let Some(object) = (unsafe { (*bin).head }) else {
            return core::ptr::null_mut();
        };
        if !object.is_marked(key) {
            return core::ptr::null_mut();
        }
        // SAFETY: the list is not empty, so the cache is not the absent one.
        let bin = unsafe { &mut *bin };
        bin.head = object.next();
        bin.room += 1;
        object.unmark();
        object.as_ptr().as_ptr()
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

    /// An object for `bytes` from the thread's cache, whether or not requests are diverted; null
    /// when it has none.
    ///
    /// # Safety
    /// As [`malloc_fast`](Self::malloc_fast).
    #[inline(always)]
    pub(crate) unsafe fn malloc_from(&self, cache: NonNull<Cache>, bytes: usize) -> *mut u8 {
        if bytes > MAX_SMALL_BYTES {
            return core::ptr::null_mut();
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { self.take_fast(cache, ClassId::for_bytes(bytes), self.key()) }
    }

    /// An object for `bytes`, whether or not requests are diverted; null when memory is out.
    ///
    /// # Safety
    /// As [`malloc_slow`](Self::malloc_slow).
    pub(crate) unsafe fn malloc_undiverted(&self, seat: Seat, bytes: usize) -> *mut u8 {
        if let Seat::Own(cache) = seat {
            // SAFETY: the caller's promise, passed on.
            let object = unsafe { self.malloc_from(cache, bytes) };
            if !object.is_null() {
                return object;
            }
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
        if let Some(damaged) = bin.head {
            self.misuse("malloc", damaged.as_ptr().as_ptr(), Misuse::FreeListCorrupted);
        }
        if !bin.use_spare() {
            let ask = bin.ask(class.batch());
            // SAFETY: the caller's promise, passed on.
            unsafe { self.relieve(seat) };
            let batch = self.get_batch(class, ask).or_else(|| {
                // SAFETY: the caller's promise, passed on.
                let gone = unsafe { self.release_runs(seat) };
                (gone > 0).then(|| self.get_batch(class, ask))?
            });
            let Some(batch) = batch else {
                return core::ptr::null_mut();
            };
            // SAFETY: as above; looking for memory leaves this list as empty as it was.
            unsafe { &mut (*cache.as_ptr()).bins[class.index()] }.fill(batch);
        }
        // SAFETY: the caller's promise, and the list has an object now.
        unsafe { self.take_fast(cache, class, self.key()) }
    }

    #[cold]
    pub(crate) fn take_uncached(&self, class: ClassId) -> *mut u8 {
        self.ensure_key();
        let Some(batch) = self.take_from_bin(class, 1) else {
            return core::ptr::null_mut();
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
                if let Seat::Own(cache) = seat {
                    // SAFETY: the caller's promise, passed on.
                    let object = unsafe { self.take_fast(cache, class, self.key()) };
                    if !object.is_null() {
                        return object;
                    }
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
