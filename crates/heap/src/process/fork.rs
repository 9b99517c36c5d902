//! A fork copies a heap at rest.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use super::Process;
use super::threads::{cache_word, inside_word, named_cache, set_cache_word};

impl Process {
    /// Holds the heap still; to be called before a fork, by the thread that forks.
    pub fn before_fork(&'static self) {
        let word = cache_word();
        set_cache_word(inside_word());
        if let Some(special) = self.special() {
            self.special_before_fork(special);
        }
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
        // Of the threads that had caches the one that forked is left.
        let word = NonNull::new(self.forking_word.load(Ordering::Relaxed));
        let cache = word.and_then(named_cache);
        self.seats.keep(usize::from(cache.is_some()));
        // SAFETY: the caller's promise.
        unsafe { self.after_fork() };
        // SAFETY: this thread's own cache.
        unsafe { self.heap.forget_other_threads(cache.into()) };
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
        if let Some(special) = self.special() {
            // SAFETY: the caller's promise; a front that is on stays on.
            unsafe { self.special_after_fork(special) };
        }
        if let Some(word) = NonNull::new(word) {
            self.leave(word);
        }
    }
}
