//! A forked child gets a heap at rest.
//!
//! `prepare` must run after all other handlers, which may still allocate, so it is registered
//! first. From then on this thread holds the heap's locks while the process is copied, so that no
//! lock of the copy has an owner that is not there.
//!
//! A process of one thread holds nothing, since nobody else can have a lock. The locks of all bins
//! and pools lie on some twenty-five pages, which would be written to in both processes after the
//! copy: most of what a shell's fork faults (docs/malloc-trials.md).
//!
//! The handlers after the copy go by what `prepare` has found, whatever has changed since.

use core::ffi::{CStr, c_void};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};

use hectare_base::sync::{Lock, LockGuard};
use hectare_pages::FutexPark;

use super::threads::{cache_word, inside_word, named_cache, set_cache_word};
use super::{Process, streams};
use crate::cache::Cache;
use crate::seat::Seat;

/// The process that hands out caches, and whose forks this file handles. Null before.
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());

/// Whether the thread that forks holds the heap's locks. This, and what the thread's word said, are
/// written by the only thread, or by one that holds the locks. They are read after the copy by the
/// same thread or its copy. So neither is ever shared.
static IS_HELD: AtomicBool = AtomicBool::new(false);

/// Held by a thread that registers handlers ([`Process::hold_forks`]), or forks.
static REGISTERING: Lock<(), FutexPark> = Lock::new(());

/// What the word of the thread that holds the heap's locks named.
static WORD: AtomicPtr<Cache> = AtomicPtr::new(ptr::null_mut());

/// glibc's word that says whether there is only one thread. Null before glibc 2.32, which has none.
static SINGLE_THREADED: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

const SINGLE_THREADED_NAME: &CStr = c"__libc_single_threaded";

/// While this exists, no thread forks that has to wait for the heap: see [`Process::hold_forks`].
#[derive(Debug)]
pub struct HeldForks {
    _lock: Option<LockGuard<'static, (), FutexPark>>,
}

impl Process {
    /// Has each fork from now on copy this heap at rest. Further calls do nothing. `false` if the C
    /// library has no memory to note this in: the caller has to try again.
    ///
    /// The heap calls this before the first thread has a cache. Handlers of `pthread_atfork` that
    /// others register later may allocate. A library that is loaded before others calls this when
    /// it is loaded.
    pub fn see_to_forks(&'static self) -> bool {
        let process = (&raw const *self).cast_mut();
        let (to, from) = (Ordering::Release, Ordering::Relaxed);
        if PROCESS.compare_exchange(ptr::null_mut(), process, to, from).is_err() {
            return true;
        }
        // Looked up by name: a linked reference would keep a library from being loaded if there is
        // no such symbol. Looked up now, since another thread may hold the linker's lock at a fork.
        SINGLE_THREADED.store(symbol(SINGLE_THREADED_NAME).cast(), Ordering::Relaxed);
        streams::look_up();
        // SAFETY: three functions that stay as long as what they are linked into.
        if unsafe { libc::pthread_atfork(Some(prepare), Some(release), Some(release_in_child)) }
            != 0
        {
            PROCESS.store(ptr::null_mut(), Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Has forks of other threads wait before they take this heap's locks, until the result is
    /// dropped.
    ///
    /// `pthread_atfork` allocates with the C library's lock on its handlers held. Since version
    /// 2.36 glibc takes that lock again behind each handler, ours included. So a thread that forks
    /// would wait for one that registers, which waits for the heap.
    pub fn hold_forks(&'static self) -> HeldForks {
        // In a handler that runs between ours and the copy, this thread holds the lock already.
        HeldForks { _lock: (cache_word() != inside_word()).then(|| REGISTERING.lock()) }
    }

    fn before_fork(&'static self) {
        let word = cache_word();
        set_cache_word(inside_word());
        if let Some(special) = self.special() {
            self.special_before_fork(special);
        }
        self.exit_key_lock.lock_for_fork();
        self.heap.before_fork();
        // Only now: another thread may have been forking until here.
        WORD.store(word.as_ptr(), Ordering::Relaxed);
    }

    /// # Safety
    /// This thread, or the one that it is the forked copy of, called
    /// [`before_fork`](Self::before_fork).
    unsafe fn after_fork(&'static self) {
        let word = WORD.load(Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.heap.after_fork() };
        // SAFETY: the caller's promise.
        unsafe { self.exit_key_lock.unlock() };
        if let Some(special) = self.special() {
            // SAFETY: the caller's promise; a front that is on stays on.
            unsafe { self.special_after_fork(special) };
        }
        if let Some(word) = NonNull::new(word) {
            self.leave(word);
        }
    }

    /// # Safety
    /// As [`after_fork`](Self::after_fork).
    #[cold]
    #[inline(never)]
    unsafe fn after_fork_in_child(&'static self) {
        self.heap.cpus.drop_if_torn();
        // Of the threads that had caches, only the one that forked is left.
        let cache = NonNull::new(WORD.load(Ordering::Relaxed)).and_then(named_cache);
        self.seats.keep(usize::from(cache.is_some()));
        // SAFETY: the caller's promise.
        unsafe { self.after_fork() };
        // SAFETY: this thread's own cache, which it does not use meanwhile.
        self.heap.forget_other_threads(unsafe { Seat::of(cache) });
    }
}

/// What the dynamic linker knows by that name. Null if there is nothing.
pub(super) fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a name that ends in 0.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Whether this thread is the only one. Threads that the C library did not start do not count: its
/// own allocator takes no locks either if this returns `true`.
fn is_alone() -> bool {
    let word = SINGLE_THREADED.load(Ordering::Relaxed);
    // SAFETY: the C library's byte, which only this thread writes while there is no other.
    !word.is_null() && unsafe { AtomicU8::from_ptr(word) }.load(Ordering::Relaxed) != 0
}

/// The process whose locks this thread, or the one it is the copy of, holds. From now on it counts
/// as released.
fn held() -> Option<&'static Process> {
    if !IS_HELD.load(Ordering::Relaxed) {
        return None;
    }
    IS_HELD.store(false, Ordering::Relaxed);
    process()
}

/// The process that has handed out caches, if any has.
pub(super) fn process() -> Option<&'static Process> {
    // SAFETY: null, or a static.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

extern "C" fn prepare() {
    if is_alone() {
        return;
    }
    if let Some(process) = process() {
        streams::lock();
        REGISTERING.lock_for_fork();
        process.before_fork();
        IS_HELD.store(true, Ordering::Relaxed);
    }
}

extern "C" fn release() {
    if let Some(process) = held() {
        // SAFETY: this thread holds the locks since `prepare`.
        unsafe { process.after_fork() };
        // SAFETY: as above.
        unsafe { REGISTERING.unlock() };
        streams::unlock();
    }
}

extern "C" fn release_in_child() {
    if let Some(process) = process()
        && let Some(special) = process.special()
    {
        process.special_in_child(special);
    }
    if let Some(process) = held() {
        // SAFETY: the thread that this one is the copy of holds the locks since `prepare`.
        unsafe { process.after_fork_in_child() };
        // SAFETY: as above.
        unsafe { REGISTERING.unlock() };
        streams::reset();
    }
}
