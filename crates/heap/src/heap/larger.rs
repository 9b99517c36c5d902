//! Objects of larger classes, for requests whose own class would need memory that has not come yet.
//!
//! What a program of many sizes has freed lies on lists and in pools, a few objects of each class.
//! In a heap of some mebibytes that is a large part. So a request for which a page would have to be
//! touched takes an object from there, of a class up to half as large again. When it is freed, it
//! goes to its own class, as the page map says. What lies free in slabs is left there: if a program
//! only grows, its own class asks for it next. In a large heap what lies ready is a small part of
//! the whole, and memory comes in huge pages.
//!
//! The list of the request's own class stays empty in this way. A thread that takes and frees one
//! object over and over would come here each time, fifty times as slow as by its list. So there are
//! no more such requests than there are kibibytes live. After that, memory comes for the class, and
//! its objects go round.

use core::sync::atomic::Ordering::Relaxed;

use hectare_pages::System;

use super::Heap;
use crate::cache::Cache;
use crate::class::ClassId;

/// Below this size a page holds so many objects that it is worth more than what larger objects
/// waste.
const LEAST_BYTES: usize = 512;

/// This much must be live for each request that comes here.
const LIVE_BYTES_EACH: usize = 1 << 10;

/// A heap of which this much has been live is large.
const LARGE_BYTES: usize = 16 << 20;

impl<S: System> Heap<S> {
    /// A class larger than `class` of which the cache's list has an object now, at a multiple of
    /// `align`, if memory would have to come for an object of `class`.
    #[cold]
    pub(super) fn larger_at_hand(
        &self,
        cache: &mut Cache,
        class: ClassId,
        align: usize,
    ) -> Option<ClassId> {
        let bytes = class.object_bytes();
        let may_serve = bytes >= LEAST_BYTES && self.may_serve_larger();
        if !may_serve || !self.bins[class.index()].lock().needs_memory() {
            return None;
        }
        self.larger_asked.fetch_add(1, Relaxed);
        let mut larger = class.next()?;
        while larger.object_bytes() <= bytes + bytes / 2 {
            if larger.is_aligned(align) && self.has_at_hand(cache, larger) {
                return Some(larger);
            }
            larger = larger.next()?;
        }
        None
    }

    /// Whether the cache's list has an object of `class`. If need be, this CPU's pool puts a batch
    /// there.
    fn has_at_hand(&self, cache: &mut Cache, class: ClassId) -> bool {
        let bin = &mut cache.bins[class.index()];
        if !bin.is_empty() || bin.use_spare() {
            return true;
        }
        let batch = self.pools.take_own(self.source().cpu(), class);
        batch.is_some_and(|batch| {
            bin.fill(batch);
            true
        })
    }

    /// Whether the heap is small and always was, and few requests have come here.
    fn may_serve_larger(&self) -> bool {
        if self.was_large.load(Relaxed) {
            return false;
        }
        let live_bytes = self.live_bytes();
        if live_bytes >= LARGE_BYTES {
            self.was_large.store(true, Relaxed);
            return false;
        }
        self.larger_asked.load(Relaxed) < live_bytes / LIVE_BYTES_EACH
    }
}
