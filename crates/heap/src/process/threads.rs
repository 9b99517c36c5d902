//! How each thread finds its cache, and what happens at the end of a thread.
//!
//! A thread's cache is found through one word of initial-exec thread-local storage. It begins as
//! [`StandIn::NotYet`], so the fast paths need not test whether the thread is known. The word takes
//! 8 bytes of the C library's static TLS. `seat.rs` says what else the word can name, and which
//! threads get no cache.
//!
//! A departed thread still allocates and frees (other destructors run after ours): object by
//! object, through the bins. So does a thread whose end would not be seen, until it would be.

use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use super::{Process, fork};
use crate::cache::Cache;
use crate::stand_in::StandIn;
use crate::tls;

#[inline(always)]
pub(crate) fn cache_word() -> NonNull<Cache> {
    // SAFETY: the word begins as an address, and is only ever set to another address.
    unsafe { NonNull::new_unchecked(tls::get().cast()) }
}

pub(crate) fn set_cache_word(word: NonNull<Cache>) {
    tls::set(word.as_ptr().cast());
}

/// What the word names while the thread is inside the heap.
pub(crate) fn inside_word() -> NonNull<Cache> {
    StandIn::Inside.word()
}

/// Goes by the thread's word, not by the key's value: see [`LEAST_KEY`].
unsafe extern "C" fn thread_exits(_value: *mut c_void) {
    let cache = named_cache(cache_word());
    set_cache_word(inside_word());
    let departed = StandIn::Departed.word();
    if let (Some(process), Some(cache)) = (fork::process(), cache) {
        // SAFETY: the word named the cache this thread had, and no longer uses.
        unsafe { process.heap.drop_cache(cache) };
        process.seats.leave();
        if process.special().is_some() {
            // This thread has to act on what a signal has noted meanwhile: no other thread may
            // come.
            return process.leave(departed);
        }
    }
    set_cache_word(departed);
}

/// The least key that is wanted. A library in a namespace of its own (`dlmopen`, `LD_AUDIT`) has a
/// C library of its own, which also numbers keys from 0 on, but keeps the values of a thread in the
/// same places. With one of the first keys, such a library would take our value for its own, and
/// crash as soon as it uses it. This is glibc's last key whose values need no memory.
const LEAST_KEY: libc::pthread_key_t = 31;

/// A key from [`LEAST_KEY`] on; any, if there is none. The first keys are held until one is found.
fn new_key() -> Option<libc::pthread_key_t> {
    let mut key = 0;
    // SAFETY: `key` is a valid place; the destructor may be called on any thread.
    if unsafe { libc::pthread_key_create(&raw mut key, Some(thread_exits)) } != 0 {
        return None;
    }
    if key < LEAST_KEY
        && let Some(next) = new_key()
    {
        // SAFETY: made above, and known to nobody else.
        unsafe { libc::pthread_key_delete(key) };
        return Some(next);
    }
    Some(key)
}

/// The cache that a thread's word names, if it is one that can be used.
#[inline(always)]
pub(crate) fn named_cache(word: NonNull<Cache>) -> Option<NonNull<Cache>> {
    // SAFETY: the word names this thread's cache, or a static.
    unsafe { word.as_ref() }.is_open.then_some(word)
}

impl Process {
    /// A cache for this thread, which has none yet. `None` when out of memory.
    pub(crate) fn make_cache(&'static self) -> Option<NonNull<Cache>> {
        // What follows may allocate, and is then served without a cache.
        set_cache_word(inside_word());
        let cache = self.seen_cache();
        set_cache_word(cache.unwrap_or(StandIn::NotYet.word()));
        cache
    }

    /// A new cache for a thread that is inside, and whose word named `word` before. `None` unless
    /// the thread never had one.
    #[cold]
    pub(crate) fn cache_inside(&'static self, word: NonNull<Cache>) -> Option<NonNull<Cache>> {
        if word != StandIn::NotYet.word() {
            return None;
        }
        let cache = self.seen_cache()?;
        self.seats.enter_beyond();
        Some(cache)
    }

    /// A cache for a thread that is inside, and whose end will be seen. `None` when out of memory,
    /// or when the C library has no memory to note the cache in: what it held would be lost with
    /// the thread. The thread may ask again.
    fn seen_cache(&'static self) -> Option<NonNull<Cache>> {
        let key = self.exit_key()?;
        let cache = self.heap.new_cache()?;
        let value = cache.as_ptr().cast();
        // SAFETY: gives a valid pointer to this thread's errno.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        let saved = unsafe { *errno };
        // SAFETY: a key made by `exit_key`.
        if unsafe { libc::pthread_setspecific(key, value) } == 0 {
            return Some(cache);
        }
        // SAFETY: as above.
        unsafe { *errno = saved };
        // SAFETY: just taken, and nobody uses it.
        unsafe { self.heap.drop_cache(cache) };
        None
    }

    /// Takes this thread's cache away, for good: with a hardened front no thread has one.
    pub(crate) fn forsake_cache(&'static self) {
        let Some(cache) = named_cache(cache_word()) else { return };
        set_cache_word(StandIn::NotYet.word());
        if let Some(key) = self.exit_key() {
            // SAFETY: a key made by `exit_key`; its destructor must not see the cache again.
            unsafe { libc::pthread_setspecific(key, core::ptr::null()) };
        }
        // SAFETY: the cache that this thread had, which its word no longer names.
        unsafe { self.heap.drop_cache(cache) };
        self.seats.leave();
        self.heap.release_pools();
    }

    fn exit_key(&'static self) -> Option<libc::pthread_key_t> {
        // Without our lock, since another thread may hold the C library's while it waits for ours.
        if !self.see_to_forks() {
            return None;
        }
        if self.exit_key.load(Ordering::Acquire) == 0 {
            let _guard = self.exit_key_lock.lock();
            if self.exit_key.load(Ordering::Relaxed) == 0 {
                self.exit_key.store(new_key()? + 1, Ordering::Release);
            }
        }
        Some(self.exit_key.load(Ordering::Acquire) - 1)
    }
}
