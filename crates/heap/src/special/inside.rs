//! Which threads are inside the heap, for the sake of signal handlers.
//!
//! A handler that interrupts a thread holding a lock of the heap would wait for ever if it took
//! that lock. So if a special front is on, the word of a thread in a slow path says that it is
//! *inside*. A handler that finds this leaves a note, on which the thread acts as soon as it is
//! outside again.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;

use crate::cache::Cache;
use crate::process::{Process, cache_word, inside_word, named_cache, set_cache_word};

/// Keeps the thread inside while it lives.
pub(super) struct Inside {
    process: &'static Process,
    /// What the thread's word named before, and will name again.
    word: NonNull<Cache>,
}

impl Inside {
    /// The thread's cache. `None` if it has none, or was inside already.
    #[inline(always)]
    pub(super) fn cache(&mut self) -> Option<NonNull<Cache>> {
        named_cache(self.word).or_else(|| {
            let cache = self.process.cache_inside(self.word)?;
            self.word = cache;
            Some(cache)
        })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.process.leave(self.word);
    }
}

impl Process {
    /// For a signal handler, once a special front is on: whether it may use the heap's
    /// [`stats`](Self::stats) and [`profile`](Self::profile) now. If not, `note` is kept, and `act`
    /// gets it as soon as the thread is outside of the heap.
    pub fn interrupted(&self, note: u32) -> bool {
        if cache_word() != inside_word() {
            return true;
        }
        self.notes.fetch_or(note, Relaxed);
        false
    }

    /// Lets the thread's word name `word` again, and acts on notes if the thread is then outside.
    pub(crate) fn leave(&self, word: NonNull<Cache>) {
        set_cache_word(word);
        if word != inside_word() && self.notes.load(Relaxed) != 0 {
            self.act_on_notes();
        }
    }

    #[cold]
    #[inline(never)] // One copy for the many places that leave.
    fn act_on_notes(&self) {
        let notes = self.notes.swap(0, Relaxed);
        if let Some(special) = self.special() {
            (special.act)(notes);
        }
    }

    /// Puts the thread inside, until what this returns is dropped.
    pub(super) fn enter(&'static self) -> Inside {
        let word = cache_word();
        set_cache_word(inside_word());
        Inside { process: self, word }
    }

    /// Runs `action`, which takes locks of the heap, inside, if a special front is on. Inlined into
    /// its callers, since plain programs call these, too, but not this module's own functions.
    #[inline(always)]
    pub(crate) fn inside<R>(&'static self, action: impl FnOnce() -> R) -> R {
        let _inside = self.special().map(|_| self.enter());
        action()
    }
}
