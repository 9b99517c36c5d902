//! The calls of a program: fast path, special front, slow path, in this order.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;

use hectare_pages::Os;

use super::Process;
use super::threads::cache_word;
use crate::class::{ClassId, MAX_SMALL_BYTES, MIN_ALIGN};
use crate::heap::move_to;
use crate::special::Kind;

impl Process {
    /// An object for `bytes` from the thread's cache. If there is none,
    /// [`malloc_middle`](Self::malloc_middle) must be called, then
    /// [`malloc_slow`](Self::malloc_slow).
    #[inline(always)]
    pub fn malloc_fast(&'static self, bytes: usize) -> Option<NonNull<u8>> {
        // SAFETY: the word names this thread's cache, or an absent one.
        unsafe { self.heap.malloc_fast(cache_word(), bytes) }
    }

    /// An object for `bytes` from the list of this CPU, if the thread shares that, or a run that
    /// the thread keeps. Null when [`malloc_slow`](Self::malloc_slow) must be called. For the front
    /// of a slow path.
    #[inline(always)]
    pub fn malloc_middle(&'static self, bytes: usize) -> *mut u8 {
        if bytes <= MAX_SMALL_BYTES {
            return self.malloc_by_cpu(bytes);
        }
        if !self.special.load(Relaxed).is_null() {
            return core::ptr::null_mut();
        }
        // SAFETY: the word names this thread's cache, or a static that has no runs.
        unsafe { self.heap.take_own_run(cache_word(), bytes) }
    }

    /// An object for `bytes` by the slow path. Null when out of memory.
    #[cold]
    #[inline(never)]
    pub fn malloc_slow(&'static self, bytes: usize) -> *mut u8 {
        if let Some(special) = self.special() {
            return self.special_malloc(special, bytes, Kind::Plain);
        }
        // SAFETY: the heap does not call back.
        self.heap.malloc_slow(unsafe { self.seat() }, bytes)
    }

    /// Frees an object. Does nothing for null.
    ///
    /// # Safety
    /// `object` is null or an object of this heap that is not used again. Any other pointer that is
    /// recognized as such ends the process with a line that says so.
    #[inline(always)]
    pub unsafe fn free(&'static self, object: *mut u8) {
        // SAFETY: the caller's promise, passed on.
        if !unsafe { self.free_fast(object) } {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.free_slow(object) };
        }
    }

    /// Frees an object into the thread's cache. `false`, with nothing changed, when
    /// [`free_slow`](Self::free_slow) must be called.
    ///
    /// # Safety
    /// As [`free`](Self::free).
    #[inline(always)]
    pub unsafe fn free_fast(&'static self, object: *mut u8) -> bool {
        // SAFETY: the word names this thread's cache, or an absent one; the caller's promise.
        unsafe { self.heap.free_fast(cache_word(), object) }
    }

    /// Frees an object into the list of this CPU, if the thread shares that, or keeps a run for the
    /// thread. `false`, with nothing changed, when [`free_slow`](Self::free_slow) must be called.
    /// For the front of a slow path.
    ///
    /// # Safety
    /// As [`free`](Self::free).
    #[inline(always)]
    pub unsafe fn free_middle(&'static self, object: *mut u8) -> bool {
        // SAFETY: the caller's promise, passed on.
        if unsafe { self.free_by_cpu(object) } {
            return true;
        }
        // SAFETY: the word names this thread's cache, or a static that has no runs; the caller's
        // promise.
        self.special.load(Relaxed).is_null()
            && unsafe { self.heap.keep_own_run(cache_word(), object) }
    }

    /// Frees an object by the slow path.
    ///
    /// # Safety
    /// As [`free`](Self::free).
    #[cold]
    #[inline(never)]
    pub unsafe fn free_slow(&'static self, object: *mut u8) {
        if let Some(special) = self.special() {
            // SAFETY: the caller's promise, passed on.
            return unsafe { self.special_free(special, object) };
        }
        // SAFETY: the heap does not call back.
        let seat = unsafe { self.seat() };
        // SAFETY: the caller's promise, passed on.
        unsafe { self.heap.free_slow(seat, object) };
    }

    /// Frees an object for which the caller claims to have asked for `bytes` aligned to `align`, if
    /// a hardened front checks that. `false`, with nothing changed, if none does.
    ///
    /// # Safety
    /// As [`free`](Self::free).
    #[inline(always)]
    pub unsafe fn free_claimed(&'static self, object: *mut u8, bytes: usize, align: usize) -> bool {
        let is_hardened = self.special().is_some_and(|special| special.hardened);
        if is_hardened {
            self.hardened_free(object, Some((bytes, align)));
        }
        is_hardened
    }

    /// An object of `bytes` zeros. Null when out of memory.
    #[inline(always)]
    pub fn malloc_zeroed(&'static self, bytes: usize) -> *mut u8 {
        let Some(object) = self.malloc_fast(bytes) else {
            return self.malloc_zeroed_slow(bytes);
        };
        // SAFETY: an object just taken, of at least `bytes`.
        unsafe { object.write_bytes(0, bytes) };
        object.as_ptr()
    }

    #[cold]
    #[inline(never)]
    fn malloc_zeroed_slow(&'static self, bytes: usize) -> *mut u8 {
        if let Some(special) = self.special() {
            return self.special_malloc(special, bytes, Kind::Zeroed);
        }
        // SAFETY: the heap does not call back.
        self.heap.malloc_zeroed(unsafe { self.seat() }, bytes, MIN_ALIGN)
    }

    /// An object of `bytes` zeros aligned to `align`, a power of two. Null when out of memory. For
    /// a program that never has a special front.
    pub(super) fn malloc_zeroed_aligned(&'static self, bytes: usize, align: usize) -> *mut u8 {
        // SAFETY: the heap does not call back.
        self.heap.malloc_zeroed(unsafe { self.seat() }, bytes, align)
    }

    /// An object for `bytes` aligned to `align` from the thread's cache. `None`, also if `align` is
    /// no power of two, when [`malloc_aligned`](Self::malloc_aligned) must be called.
    #[inline(always)]
    pub fn malloc_aligned_fast(&'static self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        // SAFETY: the word names this thread's cache, or an absent one.
        unsafe { self.heap.malloc_aligned_fast(cache_word(), bytes, align) }
    }

    /// An object for `bytes` aligned to `align`, a power of two, by the slow path. Null when out of
    /// memory.
    #[cold]
    #[inline(never)]
    pub fn malloc_aligned(&'static self, bytes: usize, align: usize) -> *mut u8 {
        let align = align.max(MIN_ALIGN);
        if let Some(special) = self.special() {
            return self.special_malloc(special, bytes, Kind::Aligned(align));
        }
        // SAFETY: the heap does not call back.
        self.heap.malloc_aligned(unsafe { self.seat() }, bytes, align)
    }

    /// Makes an object hold `bytes`. Returns null, with nothing changed, when out of memory. If the
    /// object can stay as it is, the C function takes 41 instructions for a small one and 83 for a
    /// run (`instructions::of_an_object_that_stays`).
    ///
    /// # Safety
    /// `object` is an object of this heap. It is not used again unless the result is null.
    #[inline]
    pub unsafe fn realloc(&'static self, object: NonNull<u8>, bytes: usize) -> *mut u8 {
        let Some(class) = self.class_of_plain(object) else {
            // SAFETY: the caller's promise, passed on.
            return unsafe { self.realloc_slow(object, bytes) };
        };
        if class.keeps(bytes) {
            return object.as_ptr();
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { self.move_small(object, class, bytes) }
    }

    /// Whether a small object stays where it is if it is to hold `bytes`.
    #[inline]
    pub(super) fn stays(&'static self, object: NonNull<u8>, bytes: usize) -> bool {
        self.class_of_plain(object).is_some_and(|class| class.keeps(bytes))
    }

    /// Moves an object of `class` to one that holds `bytes`, as [`realloc`](Self::realloc) says. A
    /// function of its own, so that what stays in place pays for no more than it needs.
    ///
    /// # Safety
    /// As [`realloc`](Self::realloc).
    #[inline(never)]
    unsafe fn move_small(
        &'static self,
        object: NonNull<u8>,
        class: ClassId,
        bytes: usize,
    ) -> *mut u8 {
        let Some(moved) = self.malloc_fast(bytes) else {
            // SAFETY: the caller's promise, passed on.
            return unsafe { self.realloc_by_heap(object, bytes) };
        };
        // SAFETY: the caller's promise, passed on.
        let free = |object| unsafe { self.free(object) };
        // SAFETY: both have as many bytes; one was just taken.
        unsafe { move_to(moved.as_ptr(), object, class.object_bytes().min(bytes), free) }
    }

    /// As [`realloc`](Self::realloc), by the slow path.
    ///
    /// # Safety
    /// As [`realloc`](Self::realloc).
    #[cold]
    #[inline(never)]
    unsafe fn realloc_slow(&'static self, object: NonNull<u8>, bytes: usize) -> *mut u8 {
        if self.special().is_none() && self.heap.keeps_run(object, bytes) {
            return object.as_ptr();
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { self.realloc_by_heap(object, bytes) }
    }

    /// As [`realloc`](Self::realloc), whatever the object is.
    ///
    /// # Safety
    /// As [`realloc`](Self::realloc).
    #[cold]
    #[inline(never)]
    unsafe fn realloc_by_heap(&'static self, object: NonNull<u8>, bytes: usize) -> *mut u8 {
        if let Some(special) = self.special() {
            // SAFETY: the caller's promise, passed on.
            return unsafe { self.special_realloc(special, object, bytes) };
        }
        // SAFETY: the heap does not call back.
        let seat = unsafe { self.seat() };
        // SAFETY: the caller's promise, passed on.
        unsafe { self.heap.realloc(seat, object, bytes) }
    }

    /// How many bytes a small object has. `None` when [`usable_bytes`](Self::usable_bytes) must be
    /// called.
    ///
    /// # Safety
    /// `object` is null or an object of this heap. Any other pointer that is recognised as such
    /// gets `None`.
    #[inline(always)]
    pub unsafe fn usable_bytes_fast(&'static self, object: *mut u8) -> Option<usize> {
        // SAFETY: the word names this thread's cache, or an absent one, which it does if the front
        // is hardened.
        unsafe { self.heap.class_of_own(cache_word(), object) }.map(ClassId::object_bytes)
    }

    /// How many bytes the object at `object` has; 0 if it is null. A pointer to no object ends the
    /// process.
    #[cold]
    #[inline(never)]
    pub fn usable_bytes(&'static self, object: *mut u8) -> usize {
        let Some(object) = NonNull::new(object) else { return 0 };
        if let Some(special) = self.special() {
            return self.special_usable_bytes(special, object, "malloc_usable_size");
        }
        match self.heap.usable_bytes(object) {
            Ok(bytes) => bytes,
            Err(cause) => cause.abort(&Os, "malloc_usable_size", object.as_ptr()),
        }
    }

    /// The class of a small object that no special front has to be asked about, if the fast path
    /// can tell it. (Sampled and guarded objects lie where the page map says that no object
    /// begins.)
    #[inline(always)]
    fn class_of_plain(&'static self, object: NonNull<u8>) -> Option<ClassId> {
        if self.special().is_some_and(|special| special.hardened) {
            return None;
        }
        self.heap.class_of_fast(object)
    }
}
