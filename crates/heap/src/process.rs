//! The heap of the process, and each thread's way to its cache.
//!
//! A thread's cache is found through one word of initial-exec thread-local storage, which begins
//! as the address of [`Cache::ABSENT`]: so the fast paths need no test whether the thread is
//! known. Of the C library's static TLS this takes 8 bytes.
//!
//! A thread's life, as its word tells it:
//! ```text
//!   ABSENT ──first slow path──▶ its cache ──the key's destructor──▶ DEPARTED
//! ```
//! A departed thread still allocates and frees (other destructors run after ours): object by
//! object, through the bins.

use core::alloc::{GlobalAlloc, Layout};
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};

use hectare_base::sync::Lock;
use hectare_pages::{FutexPark, Os};

use crate::cache::Cache;
use crate::class::MIN_ALIGN;
use crate::heap::Heap;
use crate::misuse::Misuse;
use crate::stats::Stats;
use crate::tls;

/// How much address space the first region takes: far more than memory, since only what is used
/// of it costs anything. Halved until the system agrees.
const REGION_BYTES: usize = 256 << 30;

static HEAP: Heap<Os> = Heap::new(Os, REGION_BYTES);

/// What a thread's word names when its cache is gone again.
static DEPARTED: Cache = Cache::ABSENT;

/// The thread key whose destructor takes a dying thread's cache back, plus one; 0 before.
static EXIT_KEY: AtomicU32 = AtomicU32::new(0);
static EXIT_KEY_LOCK: Lock<(), FutexPark> = Lock::new(());

#[inline(always)]
fn cache_word() -> NonNull<Cache> {
    // SAFETY: the word begins as an address, and is only ever set to another.
    unsafe { NonNull::new_unchecked(tls::get().cast()) }
}

/// This thread's cache, made if it has none yet; `None` for a departed thread, or when memory is
/// out.
#[cold]
fn cache() -> Option<NonNull<Cache>> {
    let word = cache_word();
    if word == NonNull::from(&DEPARTED) {
        return None;
    }
    if word != NonNull::from(&tls::ABSENT) {
        return Some(word);
    }
    let cache = HEAP.new_cache()?;
    // From here on this thread has a cache: what follows may allocate.
    tls::set(cache.as_ptr().cast());
    let key = exit_key()?;
    // SAFETY: a key made by `exit_key`.
    unsafe { libc::pthread_setspecific(key, cache.as_ptr().cast()) };
    Some(cache)
}

fn exit_key() -> Option<libc::pthread_key_t> {
    if EXIT_KEY.load(Ordering::Acquire) == 0 {
        let _guard = EXIT_KEY_LOCK.lock();
        if EXIT_KEY.load(Ordering::Relaxed) == 0 {
            let mut key = 0;
            // SAFETY: `key` is a valid place; the destructor may be called on any thread.
            if unsafe { libc::pthread_key_create(&raw mut key, Some(thread_exits)) } != 0 {
                return None;
            }
            EXIT_KEY.store(key + 1, Ordering::Release);
        }
    }
    Some(EXIT_KEY.load(Ordering::Acquire) - 1)
}

unsafe extern "C" fn thread_exits(cache: *mut c_void) {
    tls::set((&raw const DEPARTED).cast_mut().cast());
    if let Some(cache) = NonNull::new(cache.cast()) {
        // SAFETY: the key's value is the cache this thread had, and no longer uses.
        unsafe { HEAP.drop_cache(cache) };
    }
}

/// An object for `bytes`; null when memory is out.
#[inline(always)]
pub fn malloc(bytes: usize) -> *mut u8 {
    malloc_or(bytes, malloc_slow)
}

/// As [`malloc`], with what to do when the thread's cache has none: [`malloc_slow`], and what the
/// caller's contract asks for besides. A function that cannot unwind, so that it is a tail call
/// and the hit path needs no frame.
#[inline(always)]
pub fn malloc_or(bytes: usize, slow: extern "C" fn(usize) -> *mut u8) -> *mut u8 {
    // SAFETY: the word names this thread's cache, or an absent one.
    let object = unsafe { HEAP.malloc_fast(cache_word(), bytes) };
    if object.is_null() { slow(bytes) } else { object }
}

/// As [`malloc_or`], for callers that may throw.
#[inline(always)]
pub fn malloc_or_unwind(bytes: usize, slow: extern "C-unwind" fn(usize) -> *mut u8) -> *mut u8 {
    // SAFETY: the word names this thread's cache, or an absent one.
    let object = unsafe { HEAP.malloc_fast(cache_word(), bytes) };
    if object.is_null() { slow(bytes) } else { object }
}

/// An object for `bytes` by the slow path; null when memory is out.
#[cold]
#[inline(never)]
pub extern "C" fn malloc_slow(bytes: usize) -> *mut u8 {
    // SAFETY: `cache` gives this thread's cache or none.
    unsafe { HEAP.malloc_slow(cache(), bytes) }
}

/// Frees an object; null is none.
///
/// # Safety
/// `object` is null or an object of this heap that is not used again. What can be seen of other
/// pointers ends the process with a line that says so.
#[inline(always)]
pub unsafe fn free(object: *mut u8) {
    // SAFETY: the word names this thread's cache, or an absent one; the caller's promise.
    if !unsafe { HEAP.free_fast(cache_word(), object) } {
        // SAFETY: the caller's promise, passed on.
        unsafe { free_slow(object) };
    }
}

#[cold]
#[inline(never)]
unsafe extern "C" fn free_slow(object: *mut u8) {
    // SAFETY: `cache` gives this thread's cache or none; the caller's promise.
    unsafe { HEAP.free_slow(cache(), object) };
}

/// An object of `bytes` zeros; null when memory is out.
pub fn malloc_zeroed(bytes: usize) -> *mut u8 {
    // SAFETY: `cache` gives this thread's cache or none.
    unsafe { HEAP.malloc_zeroed(cache(), bytes) }
}

/// An object for `bytes` aligned to `align`, a power of two; null when memory is out.
pub fn malloc_aligned(bytes: usize, align: usize) -> *mut u8 {
    // SAFETY: `cache` gives this thread's cache or none.
    unsafe { HEAP.malloc_aligned(cache(), bytes, align.max(MIN_ALIGN)) }
}

/// Makes an object hold `bytes`; null, and nothing has changed, when memory is out.
///
/// # Safety
/// `object` is an object of this heap, not used again unless the answer is null.
pub unsafe fn realloc(object: NonNull<u8>, bytes: usize) -> *mut u8 {
    // SAFETY: `cache` gives this thread's cache or none; the caller's promise.
    unsafe { HEAP.realloc(cache(), object, bytes) }
}

/// How many bytes the object at `object` has. A pointer that is none ends the process.
pub fn usable_bytes(object: NonNull<u8>) -> usize {
    match HEAP.usable_bytes(object) {
        Ok(bytes) => bytes,
        Err(cause) => misuse("malloc_usable_size", object.as_ptr(), cause),
    }
}

/// Ends the process with a line about `cause`.
pub fn misuse(call: &str, object: *mut u8, cause: Misuse) -> ! {
    cause.abort(&Os, call, object)
}

/// Gives what is not needed back to the system, but for `keep_bytes`; returns how many bytes went.
pub fn trim(keep_bytes: usize) -> usize {
    HEAP.trim(keep_bytes)
}

/// What the heap holds.
pub fn stats() -> Stats {
    HEAP.stats()
}

/// Holds the heap still; to be called before a fork, by the thread that forks.
pub fn before_fork() {
    EXIT_KEY_LOCK.lock_for_fork();
    HEAP.before_fork();
}

/// Lets the heap go on; to be called after a fork, in the parent and in the child.
///
/// # Safety
/// This thread, or the one that it is the forked copy of, called [`before_fork`].
pub unsafe fn after_fork() {
    // SAFETY: the caller's promise.
    unsafe { HEAP.after_fork() };
    // SAFETY: the caller's promise.
    unsafe { EXIT_KEY_LOCK.unlock() };
}

/// The heap as a Rust program's global allocator.
///
/// ```
/// #[global_allocator]
/// static GLOBAL: hectare::Malloc = hectare::Malloc;
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Malloc;

// SAFETY: objects are disjoint, of at least the size and the alignment asked for, and stay where
// they are until they are freed; no method unwinds.
unsafe impl GlobalAlloc for Malloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= MIN_ALIGN {
            malloc(layout.size())
        } else {
            malloc_aligned(layout.size(), layout.align())
        }
    }

    #[inline]
    unsafe fn dealloc(&self, object: *mut u8, _layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { free(object) };
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= MIN_ALIGN {
            return malloc_zeroed(layout.size());
        }
        let object = malloc_aligned(layout.size(), layout.align());
        if !object.is_null() {
            // SAFETY: an object just taken, of at least as many bytes.
            unsafe { object.write_bytes(0, layout.size()) };
        }
        object
    }

    unsafe fn realloc(&self, object: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if layout.align() <= MIN_ALIGN
            && let Some(object) = NonNull::new(object)
        {
            // SAFETY: the caller's promise, passed on.
            return unsafe { realloc(object, bytes) };
        }
        let moved = malloc_aligned(bytes, layout.align());
        if !moved.is_null() {
            // SAFETY: both have as many bytes; one was just taken, so they are disjoint.
            unsafe { moved.copy_from_nonoverlapping(object, layout.size().min(bytes)) };
            // SAFETY: the caller's promise, passed on.
            unsafe { free(object) };
        }
        moved
    }
}
