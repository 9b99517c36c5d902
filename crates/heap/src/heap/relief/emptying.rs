//! Moves what lies ready for later requests, on lists, in pools and in kept blocks, to the slabs,
//! the backend and the system.
//!
//! ```text
//!   release_all      no memory is left, or it is asked back: everything that this thread can reach
//!   release_seat     what the thread keeps: runs, objects for given-up slabs, its lists
//!   release_own      of that, all but its lists
//!   release_kept     freed huge blocks
//!   release_pools    what is common: CPUs' lists, caches left by ended threads, pools
//!   release_idle     the same before a look, but for what swings
//!   empty_stocks     as much of the pools' stocks as makes room for what would else need new memory
//! ```
//! To its slab, an object that waits on a list counts as in use. It may be the only one that keeps
//! the slab from being empty.

use hectare_pages::System;

use crate::batch::Batch;
use crate::cache::Cache;
use crate::class::{ClassId, SLAB_BYTES};
use crate::heap::Heap;
use crate::region::FRAME_BYTES;
use crate::seat::Seat;
use crate::slots::Slots;

/// At most this many times what a request needs leaves the pools' stocks for it. If the objects are
/// scattered they may empty no slab, and each one that goes is a cache miss.
const STOCK_SHARE: usize = 32;

impl<S: System> Heap<S> {
    /// Gives what lies ready for later requests, the thread's at `seat` and all that is common, to
    /// the slabs and the backend. Called when there is no memory for a run of `frames`, or when
    /// memory is asked back: each object on a list may be what keeps a slab from being empty. If
    /// the run is longer than all that is committed, only kept huge blocks go. Returns how many
    /// bytes went.
    #[cold]
    pub(crate) fn release_all(&self, seat: Seat<'_>, frames: usize) -> usize {
        let gone_bytes = self.release_kept();
        if frames * FRAME_BYTES > self.backend.committed_bytes() {
            return gone_bytes;
        }
        gone_bytes + self.release_seat(seat) + self.release_pools()
    }

    /// Gives all that the thread at `seat` keeps to the slabs and the backend. Returns how many bytes went.
    #[cold]
    pub(crate) fn release_seat(&self, mut seat: Seat<'_>) -> usize {
        let gone_bytes = self.release_own(seat.again());
        gone_bytes + seat.cache().map_or(0, |cache| self.empty_cache(cache))
    }

    /// Gives back what the thread at `seat` keeps beside its lists: runs and departing objects.
    /// Returns how many bytes went.
    pub fn release_own(&self, mut seat: Seat<'_>) -> usize {
        let Some(cache) = seat.cache() else { return 0 };
        let mut gone_bytes = self.release_runs(cache);
        if let Some(departing) = cache.departing() {
            while let Some((class, batch)) = departing.take_any() {
                gone_bytes += self.give_to_slabs(class, &[batch]);
            }
        }
        gone_bytes
    }

    /// Gives all that a cache holds to the slabs. Returns how many bytes went.
    #[inline(never)]
    pub(super) fn empty_cache(&self, cache: &mut Cache) -> usize {
        let mut gone_bytes = 0;
        for class in ClassId::all() {
            gone_bytes += self.empty_list(cache, class);
        }
        gone_bytes
    }

    /// Gives what a cache holds of `class` to the slabs. Returns how many bytes went.
    pub(crate) fn empty_list(&self, cache: &mut Cache, class: ClassId) -> usize {
        let mut gone_bytes = 0;
        while let Some(batch) = cache.drain(class) {
            gone_bytes += self.give_to_slabs(class, &[batch]);
        }
        gone_bytes
    }

    /// Moves the pools' stocks to the slabs for as long as the heap would have to grow to serve
    /// `frames` frames at a multiple of `align`, up to [`STOCK_SHARE`] times as much.
    #[cold]
    pub(crate) fn empty_stocks(&self, frames: usize, align: usize) {
        if self.backend.has_dirty(frames, align) {
            return;
        }
        let most_bytes = STOCK_SHARE * frames * FRAME_BYTES;
        let mut gone_bytes = 0;
        for class in ClassId::all() {
            loop {
                let bytes = self.empty_pools(class, Slots::drain_stock, SLAB_BYTES);
                if bytes == 0 {
                    break;
                }
                gone_bytes += bytes;
                if gone_bytes >= most_bytes || self.backend.has_dirty(frames, align) {
                    return;
                }
            }
        }
    }

    /// Empties the CPUs' lists, the pools and the left caches into the slabs. Returns how many
    /// bytes went.
    pub fn release_pools(&self) -> usize {
        self.release_lists() + self.empty_all_pools(|slots, _| slots.drain())
    }

    /// As [`release_pools`](Self::release_pools), except for what swings.
    pub(super) fn release_idle(&self) {
        self.release_lists();
        self.empty_all_pools(Slots::drain_idle);
    }

    /// Empties the CPUs' lists and the left caches into the slabs. Returns how many bytes went.
    fn release_lists(&self) -> usize {
        let mut gone_bytes = 0;
        loop {
            let Some(mut cache) = self.left.lock().pop() else { break };
            // SAFETY: it was left, and is this thread's now.
            gone_bytes += self.empty_cache(unsafe { cache.as_mut() });
            self.backend.put_cache(cache);
        }
        self.cpus.drain(|class, batch| {
            gone_bytes += self.give_to_slabs(class, &[batch]);
        });
        gone_bytes
    }

    /// Gives back the kept huge blocks. Returns how many bytes went.
    #[cold]
    pub(crate) fn release_kept(&self) -> usize {
        self.backend.huge.lock().release_kept(self.source())
    }

    fn empty_all_pools(&self, drain: fn(&mut Slots, ClassId) -> Option<Batch>) -> usize {
        let mut gone_bytes = 0;
        for class in ClassId::all() {
            gone_bytes += self.empty_pools(class, drain, usize::MAX);
        }
        gone_bytes
    }

    /// Gives what `drain` takes from the pools' slots of `class` to the slabs, until `most_bytes` have gone. Returns how
    /// many bytes went.
    #[inline(never)]
    pub(crate) fn empty_pools(
        &self,
        class: ClassId,
        drain: fn(&mut Slots, ClassId) -> Option<Batch>,
        most_bytes: usize,
    ) -> usize {
        let mut gone_bytes = 0;
        self.pools.drain(class, drain, |batches| {
            gone_bytes += self.give_to_slabs(class, batches);
            gone_bytes >= most_bytes
        });
        gone_bytes
    }
}
