//! Left caches: the caches of threads that have ended, with the objects in them, for the next new
//! threads.
//!
//! A short-lived thread would fill its lists from the pools, learn how long they should be, and
//! give all of it back. So left caches stay as they are, one for each CPU in use. A cache that is
//! left when there are as many is emptied. When the pools are emptied, so are the left caches.
//!
//! Invariant: the list holds `count` caches that no thread uses.

use core::ptr::NonNull;

use crate::cache::Cache;

/// Caches that hold objects and that no thread uses. The last one left comes first.
#[derive(Debug)]
pub(crate) struct LeftCaches {
    first: Option<NonNull<Cache>>,
    count: usize,
}

// SAFETY: nobody else reaches the caches on the list.
unsafe impl Send for LeftCaches {}

impl LeftCaches {
    pub(crate) const fn new() -> Self {
        Self { first: None, count: 0 }
    }

    /// Keeps `cache`, unless there are `most` already. Returns whether it did.
    ///
    /// # Safety
    /// A cache in the heap's metadata, which the caller gives up if the result is `true`.
    pub(crate) unsafe fn push(&mut self, mut cache: NonNull<Cache>, most: usize) -> bool {
        if self.count >= most {
            return false;
        }
        // SAFETY: the caller's promise.
        unsafe { cache.as_mut() }.next_unused = self.first;
        self.first = Some(cache);
        self.count += 1;
        true
    }

    /// A left cache, which is the caller's from now on.
    pub(crate) fn pop(&mut self) -> Option<NonNull<Cache>> {
        let mut cache = self.first?;
        // SAFETY: by the invariant nobody else reaches it.
        self.first = unsafe { cache.as_mut() }.next_unused.take();
        self.count -= 1;
        Some(cache)
    }

    /// The left caches.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Cache> {
        let at = |cache: Option<NonNull<Cache>>| {
            // SAFETY: by the invariant nobody else reaches it, while the list is borrowed.
            cache.map(|cache| unsafe { cache.as_ref() })
        };
        core::iter::successors(at(self.first), move |cache| at(cache.next_unused))
    }
}
