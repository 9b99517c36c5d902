//! Taking objects: from the thread's list, or by the slow path.

use core::hint::cold_path;
use core::ptr::{self, NonNull};
use core::sync::atomic::Ordering::Release;
use core::sync::atomic::compiler_fence;

use hectare_pages::System;

use super::Heap;
use crate::cache::{Cache, CacheBin};
use crate::class::{ClassId, MAX_SMALL_BYTES, MIN_ALIGN};
use crate::huge::Contents;
use crate::misuse::Misuse;
use crate::seat::{At, Seat};

/// A thread's list of `class`.
///
/// # Safety
/// `cache` is this thread's, or [`Cache::ABSENT`], whose lists are empty and never written to.
#[inline(always)]
unsafe fn list(cache: NonNull<Cache>, class: ClassId) -> *mut CacheBin {
    // SAFETY: within the cache.
    unsafe { &raw mut (*cache.as_ptr()).bins[class.index()] }
}

impl<S: System> Heap<S> {
    /// An object for `bytes` from the thread's cache. `None` when the slow path is needed: the list
    /// is empty, its first object was written to, or something is due. This path of `malloc` takes
    /// 22 instructions, or 27 in a heap that counts.
    ///
    /// # Safety
    /// `cache` is this thread's, of this heap, or [`Cache::ABSENT`].
    #[inline(always)]
    pub unsafe fn malloc_fast(&self, cache: NonNull<Cache>, bytes: usize) -> Option<NonNull<u8>> {
        if bytes > MAX_SMALL_BYTES {
            return None;
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { self.take_fast(cache, ClassId::for_bytes(bytes)) }
    }

    /// As [`malloc_fast`](Self::malloc_fast), at a multiple of `align`. Also `None` if `align` is
    /// no power of two, or if the class is not found at once. This path of `memalign` takes
    /// 30 instructions.
    ///
    /// # Safety
    /// As [`malloc_fast`](Self::malloc_fast).
    #[inline(always)]
    pub(crate) unsafe fn malloc_aligned_fast(
        &self,
        cache: NonNull<Cache>,
        bytes: usize,
        align: usize,
    ) -> Option<NonNull<u8>> {
        let class = ClassId::for_aligned_at_once(bytes, align)?;
        // SAFETY: the caller's promise, passed on.
        unsafe { self.take_fast(cache, class) }
    }

    /// As [`malloc_fast`](Self::malloc_fast), of `class`.
    ///
    /// # Safety
    /// As [`malloc_fast`](Self::malloc_fast).
    #[inline(always)]
    unsafe fn take_fast(&self, cache: NonNull<Cache>, class: ClassId) -> Option<NonNull<u8>> {
        let key = self.keys.fast_key();
        // SAFETY: the caller's promise, passed on.
        let bin = unsafe { list(cache, class) };
        // SAFETY: as above.
        let first = unsafe { (*bin).head };
        if let Some(object) = first.marked(key) {
            // SAFETY: the list is not empty, so it does not belong to the absent cache.
            return Some(unsafe { &mut *bin }.pop(object));
        }
        cold_path();
        let object = first.marked_in_reverse(key)?;
        // SAFETY: as above.
        let bin = unsafe { &mut *bin };
        if !bin.passes_one() {
            return None;
        }
        let object = bin.pop(object);
        // Keeps the compiler from merging both tails into one, to which the hit path would jump.
        compiler_fence(Release);
        Some(object)
    }

    /// An object of `class` from the thread's cache, if it has one, without counting it.
    #[inline(always)]
    fn take_uncounted(&self, seat: &mut Seat<'_>, class: ClassId) -> Option<NonNull<u8>> {
        let bin = &mut seat.cache()?.bins[class.index()];
        let object = bin.head.marked(self.key())?;
        Some(bin.pop(object))
    }

    /// An object for `bytes`. Null when out of memory.
    #[cold]
    #[inline(never)]
    pub fn malloc_slow(&self, seat: Seat<'_>, bytes: usize) -> *mut u8 {
        if bytes <= MAX_SMALL_BYTES {
            self.take_slow(seat, ClassId::for_bytes(bytes), MIN_ALIGN)
        } else {
            self.get_large(seat, bytes, 1, Contents::Any).0
        }
    }

    /// An object for `bytes` that is not counted. Null when out of memory.
    pub(crate) fn malloc_uncounted(&self, mut seat: Seat<'_>, bytes: usize) -> *mut u8 {
        if bytes <= MAX_SMALL_BYTES
            && let Some(object) = self.take_uncounted(&mut seat, ClassId::for_bytes(bytes))
        {
            return object.as_ptr();
        }
        self.malloc_slow(seat, bytes)
    }

    /// As [`malloc_slow`](Self::malloc_slow), for an object of `class` or of a larger class, at a
    /// multiple of `align`.
    fn take_slow(&self, seat: Seat<'_>, class: ClassId, align: usize) -> *mut u8 {
        let cache = match seat.at() {
            At::Own(cache) => cache,
            At::Cpu(sharing) => return self.take_by_cpu_slow(sharing, class),
            At::Nowhere => return self.take_uncached(class),
        };
        let bin = &mut cache.bins[class.index()];
        let is_shut = bin.is_shut();
        // The list need not be empty: a thread that was just given a cache may find objects in it.
        if bin.is_empty() && (is_shut && bin.has_laid_aside() || !bin.use_spare()) {
            let ask = bin.ask(class.batch());
            self.relieve(Seat::with(cache));
            // A thread's first objects come straight from the bin, where they share no lines with
            // other threads' objects.
            let pooled = if is_shut { None } else { self.take_pooled(class, ask) };
            if pooled.is_none()
                && let Some(larger) = self.larger_at_hand(cache, class, align)
            {
                return self.take_listed(cache, larger);
            }
            let batch = pooled.or_else(|| self.get_batch(Seat::with(cache), class, ask));
            // The search for memory leaves this list empty.
            let bin = &mut cache.bins[class.index()];
            match batch {
                Some(batch) => bin.fill(batch),
                None if bin.use_spare() => {}
                None => return ptr::null_mut(),
            }
        }
        self.take_listed(cache, class)
    }

    /// An object of the cache's list of `class`. Null if the list is empty.
    fn take_listed(&self, cache: &mut Cache, class: ClassId) -> *mut u8 {
        let bin = &mut cache.bins[class.index()];
        let Some(object) = bin.head.object() else { return ptr::null_mut() };
        if !object.is_marked(self.key()) {
            self.misuse("malloc", object.as_ptr().as_ptr(), Misuse::FreeListCorrupted);
        }
        bin.pop(object).as_ptr()
    }

    #[cold]
    pub(crate) fn take_uncached(&self, class: ClassId) -> *mut u8 {
        self.ensure_key();
        let Some(batch) = self.get_batch(Seat::NONE, class, 1) else { return ptr::null_mut() };
        batch.head.unmark();
        batch.head.as_ptr().as_ptr()
    }

    /// An object for `bytes` aligned to `align`, a power of two. Null when out of memory.
    pub fn malloc_aligned(&self, mut seat: Seat<'_>, bytes: usize, align: usize) -> *mut u8 {
        let Some(class) = ClassId::for_aligned(bytes, align) else {
            return self.get_large(seat, bytes, align, Contents::Any).0;
        };
        match self.take_uncounted(&mut seat, class) {
            Some(object) => object.as_ptr(),
            None => self.take_slow(seat, class, align),
        }
    }

    /// An object of `bytes` zeros aligned to `align`, a power of two. Null when out of memory.
    pub fn malloc_zeroed(&self, seat: Seat<'_>, bytes: usize, align: usize) -> *mut u8 {
        let (object, is_zero) = if bytes > MAX_SMALL_BYTES {
            self.get_large(seat, bytes, align, Contents::Zeros)
        } else {
            (self.malloc_aligned(seat, bytes, align), false)
        };
        if !object.is_null() && !is_zero {
            // SAFETY: an object just taken, of at least `bytes`.
            unsafe { object.write_bytes(0, bytes) };
        }
        object
    }
}
