//! The heap of a process, and each thread's way to its cache.
//!
//! A thread's cache is found through one word of initial-exec thread-local storage, which begins
//! as the address of [`Cache::ABSENT`]: so the fast paths need no test whether the thread is
//! known. Of the C library's static TLS this takes 8 bytes. What else the word can say, and which
//! threads get no cache, is in `seat.rs`.
//! There is one [`Process`] in a program, in a static of whichever crate gives it its names: so the
//! fast paths are inlined there and reach its fields without a detour through the global offset
//! table.
//!
//! A departed thread still allocates and frees (other destructors run after ours): object by
//! object, through the bins.

use core::alloc::{GlobalAlloc, Layout};
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use hectare_base::sync::Lock;
use hectare_pages::{FutexPark, Os};

use crate::cache::Cache;
use crate::class::{ClassId, MIN_ALIGN};
use crate::guard::Guard;
use crate::hardened::Hardened;
use crate::heap::Heap;
use crate::profile::{Profile, Snapshot};
use crate::seat::{Seat, Seats};
use crate::special::{Kind, Special};
use crate::stats::Stats;
use crate::tls;

/// What a thread's word names when its cache is gone again.
static DEPARTED: Cache = Cache::ABSENT;

/// What a thread's word names while the thread is inside the heap, where `special.rs` keeps count
/// of that.
static INSIDE: Cache = Cache::ABSENT;

/// The heap of a process. Only one may be used in a program, since each thread has one word.
#[derive(Debug)]
pub struct Process {
    pub(crate) heap: Heap<Os>,
    /// The thread key whose destructor takes a dying thread's cache back, plus one; 0 before.
    exit_key: AtomicU32,
    exit_key_lock: Lock<(), FutexPark>,
    pub(crate) seats: Seats,
    /// What `special.rs` is about; null in a plain process.
    pub(crate) special: AtomicPtr<Special>,
    pub(crate) notes: AtomicU32,
    /// What the word of the thread said that holds the heap still for a fork.
    pub(crate) forking_word: AtomicPtr<Cache>,
    pub(crate) profile: Profile<Os>,
    pub(crate) guard: Guard<Os>,
    pub(crate) hardened: Hardened<Os>,
}

/// A copy of a process's heap profile.
pub type ProcessProfile = Snapshot<'static, Os>;

/// The [`Process`] that has handed out a cache, for the destructor of dying threads.
static IN_USE: AtomicPtr<Process> = AtomicPtr::new(core::ptr::null_mut());

#[inline(always)]
pub(crate) fn cache_word() -> NonNull<Cache> {
    // SAFETY: the word begins as an address, and is only ever set to another.
    unsafe { NonNull::new_unchecked(tls::get().cast()) }
}

pub(crate) fn set_cache_word(word: NonNull<Cache>) {
    tls::set(word.as_ptr().cast());
}

/// What the word says while the thread is inside the heap.
pub(crate) fn inside_word() -> NonNull<Cache> {
    NonNull::from(&INSIDE)
}

unsafe extern "C" fn thread_exits(cache: *mut c_void) {
    set_cache_word(inside_word());
    // SAFETY: set before the first cache was made, to a static.
    let process = unsafe { IN_USE.load(Ordering::Acquire).as_ref() };
    if let (Some(process), Some(cache)) = (process, NonNull::new(cache.cast())) {
        // SAFETY: the key's value is the cache this thread had, and no longer uses.
        unsafe { process.heap.drop_cache(cache) };
        process.seats.leave();
    }
    set_cache_word(NonNull::from(&DEPARTED));
}

/// The cache that a thread's word names, if it is one that can be used.
#[inline(always)]
pub(crate) fn named_cache(word: NonNull<Cache>) -> Option<NonNull<Cache>> {
    // SAFETY: the word names this thread's cache, or a static.
    unsafe { word.as_ref() }.is_open.then_some(word)
}

impl Process {
    /// A heap that has nothing yet. All zeros: so a static of it lies in pages that are only there
    /// once they are written, and those of what is never used never are.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            heap: Heap::new(Os, 0),
            exit_key: AtomicU32::new(0),
            exit_key_lock: Lock::new(()),
            seats: Seats::new(),
            special: AtomicPtr::new(core::ptr::null_mut()),
            notes: AtomicU32::new(0),
            forking_word: AtomicPtr::new(core::ptr::null_mut()),
            profile: Profile::new(),
            guard: Guard::new(),
            hardened: Hardened::new(),
        }
    }

    /// A cache for this thread, which has none yet; `None` when memory is out.
    pub(crate) fn make_cache(&'static self) -> Option<NonNull<Cache>> {
        let key = self.exit_key()?;
        let cache = self.heap.new_cache()?;
        // From here on this thread has a cache: what follows may allocate.
        set_cache_word(cache);
        // SAFETY: a key made by `exit_key`.
        unsafe { libc::pthread_setspecific(key, cache.as_ptr().cast()) };
        Some(cache)
    }

    /// A new cache for a thread that is inside, and whose word said `word` before; `None` unless
    /// it never had one.
    #[cold]
    pub(crate) fn cache_inside(&'static self, word: NonNull<Cache>) -> Option<NonNull<Cache>> {
        if word != NonNull::from(&tls::ABSENT) {
            return None;
        }
        let key = self.exit_key()?;
        let cache = self.heap.new_cache()?;
        self.seats.enter_beyond();
        // SAFETY: a key made by `exit_key`. What this allocates is served without a cache.
        unsafe { libc::pthread_setspecific(key, cache.as_ptr().cast()) };
        Some(cache)
    }

    /// Takes this thread's cache away, for good: a hardened front has none.
    pub(crate) fn forsake_cache(&'static self) {
        let Some(cache) = named_cache(cache_word()) else { return };
        set_cache_word(NonNull::from(&tls::ABSENT));
        if let Some(key) = self.exit_key() {
            // SAFETY: a key made by `exit_key`; its destructor must not see the cache again.
            unsafe { libc::pthread_setspecific(key, core::ptr::null()) };
        }
        // SAFETY: the cache this thread had, which its word no longer names.
        unsafe { self.heap.drop_cache(cache) };
        self.seats.leave();
        self.heap.release_pools();
    }

    fn exit_key(&'static self) -> Option<libc::pthread_key_t> {
        if self.exit_key.load(Ordering::Acquire) == 0 {
            let _guard = self.exit_key_lock.lock();
            if self.exit_key.load(Ordering::Relaxed) == 0 {
                let mut key = 0;
                // SAFETY: `key` is a valid place; the destructor may be called on any thread.
                if unsafe { libc::pthread_key_create(&raw mut key, Some(thread_exits)) } != 0 {
                    return None;
                }
                IN_USE.store((&raw const *self).cast_mut(), Ordering::Release);
                self.exit_key.store(key + 1, Ordering::Release);
            }
        }
        Some(self.exit_key.load(Ordering::Acquire) - 1)
    }

    /// An object for `bytes`; null when memory is out.
    #[inline(always)]
    pub fn malloc(&'static self, bytes: usize) -> *mut u8 {
        let object = self.malloc_fast(bytes);
        if object.is_null() { self.malloc_slow(bytes) } else { object }
    }

    /// An object for `bytes` from the thread's cache; null when [`malloc_slow`](Self::malloc_slow)
    /// must be asked. For a caller whose slow path does more, and is a tail call.
    #[inline(always)]
    pub fn malloc_fast(&'static self, bytes: usize) -> *mut u8 {
        // SAFETY: the word names this thread's cache, or an absent one.
        unsafe { self.heap.malloc_fast(cache_word(), bytes) }
    }

    /// An object for `bytes` by the slow path; null when memory is out.
    #[cold]
    #[inline(never)]
    pub fn malloc_slow(&'static self, bytes: usize) -> *mut u8 {
        if let Some(special) = self.special() {
            return self.special_malloc(special, bytes, Kind::Plain);
        }
        // SAFETY: the thread's own seat.
        unsafe { self.heap.malloc_slow(self.seat(), bytes) }
    }

    /// Frees an object; null is none.
    ///
    /// # Safety
    /// `object` is null or an object of this heap that is not used again. What can be seen of
    /// other pointers ends the process with a line that says so.
    #[inline(always)]
    pub unsafe fn free(&'static self, object: *mut u8) {
        // SAFETY: the caller's promise, passed on.
        if !unsafe { self.free_fast(object) } {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.free_slow(object) };
        }
    }

    /// Frees an object into the thread's cache; `false`, and nothing has changed, when
    /// [`free_slow`](Self::free_slow) must be asked.
    ///
    /// # Safety
    /// As [`free`](Self::free).
    #[inline(always)]
    pub unsafe fn free_fast(&'static self, object: *mut u8) -> bool {
        // SAFETY: the word names this thread's cache, or an absent one; the caller's promise.
        unsafe { self.heap.free_fast(cache_word(), object) }
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
        // SAFETY: the thread's own seat; the caller's promise.
        unsafe { self.heap.free_slow(self.seat(), object) };
    }

    /// Frees an object by the slow path, of which the caller says that it asked for `bytes`
    /// aligned to `align`: a hardened front looks whether that is so.
    ///
    /// # Safety
    /// As [`free`](Self::free).
    #[cold]
    #[inline(never)]
    pub unsafe fn free_sized_slow(&'static self, object: *mut u8, bytes: usize, align: usize) {
        match self.special() {
            Some(special) if special.hardened => {
                self.hardened_free(object, Some((bytes, align)));
            }
            // SAFETY: the caller's promise, passed on.
            _ => unsafe { self.free_slow(object) },
        }
    }

    /// An object of `bytes` zeros; null when memory is out.
    #[inline(always)]
    pub fn malloc_zeroed(&'static self, bytes: usize) -> *mut u8 {
        let object = self.malloc_fast(bytes);
        if object.is_null() {
            return self.malloc_zeroed_slow(bytes);
        }
        // SAFETY: an object just taken, of at least `bytes`.
        unsafe { object.write_bytes(0, bytes) };
        object
    }

    #[cold]
    #[inline(never)]
    fn malloc_zeroed_slow(&'static self, bytes: usize) -> *mut u8 {
        if let Some(special) = self.special() {
            return self.special_malloc(special, bytes, Kind::Zeroed);
        }
        // SAFETY: the thread's own seat.
        unsafe { self.heap.malloc_zeroed(self.seat(), bytes) }
    }

    /// An object for `bytes` aligned to `align`, a power of two; null when memory is out.
    pub fn malloc_aligned(&'static self, bytes: usize, align: usize) -> *mut u8 {
        if let Some(special) = self.special() {
            return self.special_malloc(special, bytes, Kind::Aligned(align.max(MIN_ALIGN)));
        }
        // SAFETY: the thread's own seat.
        unsafe { self.heap.malloc_aligned(self.seat(), bytes, align.max(MIN_ALIGN)) }
    }

    /// Makes an object hold `bytes`; null, and nothing has changed, when memory is out.
    ///
    /// # Safety
    /// `object` is an object of this heap, not used again unless the answer is null.
    #[inline]
    pub unsafe fn realloc(&'static self, object: NonNull<u8>, bytes: usize) -> *mut u8 {
        let Some(class) = self.class_of_plain(object) else {
            // SAFETY: the caller's promise, passed on.
            return unsafe { self.realloc_slow(object, bytes) };
        };
        if class.keeps(bytes) {
            return object.as_ptr();
        }
        let Some(moved) = NonNull::new(self.malloc_fast(bytes)) else {
            // SAFETY: the caller's promise, passed on.
            return unsafe { self.realloc_slow(object, bytes) };
        };
        // SAFETY: both objects have as many bytes; one was just taken, so they are disjoint.
        unsafe { object.copy_to_nonoverlapping(moved, class.object_bytes().min(bytes)) };
        // SAFETY: the caller's promise, passed on.
        unsafe { self.free(object.as_ptr()) };
        moved.as_ptr()
    }

    #[cold]
    #[inline(never)]
    unsafe fn realloc_slow(&'static self, object: NonNull<u8>, bytes: usize) -> *mut u8 {
        if let Some(special) = self.special() {
            // SAFETY: the caller's promise, passed on.
            return unsafe { self.special_realloc(special, object, bytes) };
        }
        // SAFETY: the thread's own seat; the caller's promise.
        unsafe { self.heap.realloc(self.seat(), object, bytes) }
    }

    /// How many bytes the object at `object` has. A pointer that is none ends the process.
    #[inline]
    pub fn usable_bytes(&'static self, object: NonNull<u8>) -> usize {
        match self.class_of_plain(object) {
            Some(class) => class.object_bytes(),
            None => self.usable_bytes_slow(object),
        }
    }

    #[cold]
    #[inline(never)]
    fn usable_bytes_slow(&'static self, object: NonNull<u8>) -> usize {
        if let Some(special) = self.special() {
            return self.special_usable_bytes(special, object, "malloc_usable_size");
        }
        match self.heap.usable_bytes(object) {
            Ok(bytes) => bytes,
            Err(cause) => cause.abort(&Os, "malloc_usable_size", object.as_ptr()),
        }
    }

    /// The class of a small object, where no special front is on and it is plain to see.
    #[inline(always)]
    fn class_of_plain(&'static self, object: NonNull<u8>) -> Option<ClassId> {
        if self.special().is_some() {
            return None;
        }
        self.heap.class_of_fast(object)
    }

    /// From now on the heap makes no system calls but those that every sandbox of a program that
    /// allocates must allow: see [`Os::keep_to_plain_calls`]. To be called while there is one thread,
    /// and with [`Front::Thread`](crate::Front::Thread): the other front has calls of its own.
    pub fn keep_to_plain_calls(&'static self) {
        Os.keep_to_plain_calls();
    }

    /// Gives what is not needed back to the system, but for `keep_bytes`; returns how many bytes
    /// went.
    pub fn trim(&'static self, keep_bytes: usize) -> usize {
        let seat = Seat::from(named_cache(cache_word()));
        self.inside(|| {
            // SAFETY: the thread's own cache.
            unsafe { self.heap.release_runs(seat) };
            self.heap.trim(keep_bytes)
        })
    }

    /// Has the next `bytes`, whole huge pages, come from those that the machine has set aside.
    /// Whether so many are to be had; if not, ordinary pages serve.
    ///
    /// # Safety
    /// The process has one thread.
    pub unsafe fn set_aside(&'static self, bytes: usize) -> bool {
        // SAFETY: the caller's promise, passed on.
        self.inside(|| unsafe { self.heap.backend.set_aside(bytes) })
    }

    /// Gives back what lies idle, little by little; returns how many bytes went. For a thread that
    /// calls it some times a second, so that a program which has fallen idle holds little.
    pub fn tend(&'static self) -> usize {
        self.inside(|| self.heap.tend())
    }

    /// What the heap holds. What this thread's cache does counts as pooled; what those of other
    /// threads do, which only they may look into, as in use.
    pub fn stats(&'static self) -> Stats {
        let cache = named_cache(cache_word());
        let mut stats = self.inside(|| self.heap.stats());
        stats.caches = self.seats.taken();
        if let Some(cache) = cache {
            // SAFETY: this thread's own cache, which nothing changes meanwhile.
            stats.count_as_pooled(unsafe { cache.as_ref() });
        }
        stats
    }

    /// Holds the heap still; to be called before a fork, by the thread that forks.
    pub fn before_fork(&'static self) {
        let word = cache_word();
        set_cache_word(inside_word());
        self.profile.before_fork();
        self.guard.before_fork();
        self.hardened.before_fork();
        self.exit_key_lock.lock_for_fork();
        self.heap.before_fork();
        self.forking_word.store(word.as_ptr(), Ordering::Relaxed);
    }

    /// As [`after_fork`](Self::after_fork), for the child.
    ///
    /// # Safety
    /// As [`after_fork`](Self::after_fork).
    pub unsafe fn after_fork_in_child(&'static self) {
        self.heap.cpus.drop_if_torn();
        // SAFETY: the caller's promise.
        unsafe { self.after_fork() };
    }

    /// Lets the heap go on; to be called after a fork, in the parent.
    ///
    /// # Safety
    /// This thread, or the one that it is the forked copy of, called
    /// [`before_fork`](Self::before_fork).
    pub unsafe fn after_fork(&'static self) {
        let word = self.forking_word.load(Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.heap.after_fork() };
        // SAFETY: the caller's promise.
        unsafe { self.exit_key_lock.unlock() };
        // SAFETY: the caller's promise.
        unsafe { self.hardened.after_fork() };
        // SAFETY: the caller's promise.
        unsafe { self.guard.after_fork() };
        // SAFETY: the caller's promise.
        unsafe { self.profile.after_fork() };
        if let Some(word) = NonNull::new(word) {
            self.leave(word);
        }
    }
}

impl Default for Process {
    fn default() -> Self {
        Self::new()
    }
}

/// The heap as a Rust program's global allocator.
///
/// ```
/// #[global_allocator]
/// static GLOBAL: hectare::Malloc = hectare::Malloc;
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Malloc;

static PROCESS: Process = Process::new();

// SAFETY: objects are disjoint, of at least the size and the alignment asked for, and stay where
// they are until they are freed; no method unwinds.
unsafe impl GlobalAlloc for Malloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= MIN_ALIGN {
            PROCESS.malloc(layout.size())
        } else {
            PROCESS.malloc_aligned(layout.size(), layout.align())
        }
    }

    #[inline]
    unsafe fn dealloc(&self, object: *mut u8, _layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { PROCESS.free(object) };
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= MIN_ALIGN {
            return PROCESS.malloc_zeroed(layout.size());
        }
        let object = PROCESS.malloc_aligned(layout.size(), layout.align());
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
            return unsafe { PROCESS.realloc(object, bytes) };
        }
        let moved = PROCESS.malloc_aligned(bytes, layout.align());
        if !moved.is_null() {
            // SAFETY: both have as many bytes; one was just taken, so they are disjoint.
            unsafe { moved.copy_from_nonoverlapping(object, layout.size().min(bytes)) };
            // SAFETY: the caller's promise, passed on.
            unsafe { PROCESS.free(object) };
        }
        moved
    }
}
