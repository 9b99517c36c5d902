//! What goes back to the system, and when it is looked for.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;

use hectare_base::sync::Lock;
use hectare_pages::{PageRange, System};

use super::Heap;
use crate::bin::Bin;
use crate::cache::Cache;
use crate::class::{ClassId, SLAB_BYTES};
use crate::region::FRAME_BYTES;
use crate::seat::Seat;

impl<S: System> Heap<S> {
    /// When the slabs have become much emptier, or much has been free in them for a while, looks
    /// for memory to give back. What this thread's cache and the pools hold would keep slabs in
    /// use, so they are emptied first.
    ///
    /// # Safety
    /// As for [`free_slow`](Self::free_slow).
    pub(crate) unsafe fn relieve(&self, seat: Seat) {
        let least = self.least_free_bytes.load(Relaxed);
        let free = self.free_bytes.load(Relaxed);
        let has_risen = free.saturating_sub(least) > self.backend.slack_bytes();
        let is_due = self.is_look_due(free);
        if !has_risen && !is_due {
            return;
        }
        if let Seat::Own(cache) = seat {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.empty_cache(cache) };
        }
        self.look_for_holes(is_due, free);
    }

    /// Empties lists and pools and gives idle frames back; where a look `is_due`, for so much has
    /// been free, gives up the emptier slabs. Returns how many bytes went.
    fn look_for_holes(&self, is_due: bool, free_bytes: usize) -> usize {
        self.release_pools();
        let gone = self.scavenge();
        if is_due {
            self.pace.note_look(gone + self.evacuate(), free_bytes);
        }
        gone
    }

    /// Whether much has been free in the slabs for long enough, where `free_bytes` are free now.
    fn is_look_due(&self, free_bytes: usize) -> bool {
        if free_bytes <= self.backend.slack_bytes() {
            self.pace.rest();
            return false;
        }
        self.pace.is_due(self.source().now_ms())
    }

    /// Gives up the emptier slabs: so that they become empty, what is freed in them goes there at
    /// once, not to a thread's list and from there to the next request. Returns how many bytes of
    /// slabs were not given up before.
    #[cold]
    fn evacuate(&self) -> usize {
        let slabs = |bin: &Lock<Bin, S::Park>| Some(bin.try_lock()?.evacuate(self));
        self.bins.iter().filter_map(slabs).sum::<usize>() * SLAB_BYTES
    }

    /// Gives all that a cache holds to the slabs.
    ///
    /// # Safety
    /// The caller alone uses the cache.
    unsafe fn empty_cache(&self, cache: NonNull<Cache>) {
        // SAFETY: the caller's promise.
        let bins = unsafe { &mut (*cache.as_ptr()).bins };
        for class in ClassId::all() {
            while let Some(batch) = bins[class.index()].drain() {
                self.give_to_slabs(class, &[batch]);
            }
        }
    }

    /// Gives idle frames inside the slabs back to the system: before the heap grows, and when much
    /// has become free in slabs that a few objects, used or cached, keep from being empty.
    /// Passes by the bins whose lock is held: the caller may hold one itself. Returns how many
    /// bytes went.
    #[cold]
    pub(super) fn scavenge(&self) -> usize {
        let free_bytes = self.free_bytes.load(Relaxed);
        let freed_bytes =
            free_bytes.saturating_sub(self.least_free_bytes.swap(free_bytes, Relaxed));
        if self.source().page_bytes() > FRAME_BYTES {
            return 0;
        }
        let mut gone = 0;
        for bin in &self.bins {
            let Some(mut bin) = bin.try_lock() else { continue };
            let mut idle = IdleFrames::new(self);
            bin.scavenge(&mut |start, bytes| idle.add(start, bytes));
            gone += idle.finish();
        }
        let found_much = freed_bytes > 0 && gone > 2 * freed_bytes;
        self.backend.note_scavenge(free_bytes, gone, found_much);
        self.draining.store(found_much, Relaxed);
        gone
    }

    /// Empties the CPUs' lists and the pools into the slabs.
    pub fn release_pools(&self) {
        self.cpus.drain(|class, batch| self.give_to_slabs(class, &[batch]));
        for class in ClassId::all() {
            while let Some(batch) = self.pools.drain(class) {
                self.give_to_slabs(class, &[batch]);
            }
        }
    }

    /// Gives back the freed huge blocks that lie ready. Returns how many bytes went.
    #[cold]
    pub(super) fn release_kept(&self) -> usize {
        self.backend.huge.lock().release_kept(self.source())
    }

    /// Gives what the heap does not need back to the system: the pools' objects and all dirty
    /// memory but `keep_bytes`. Returns how many bytes went.
    pub fn trim(&self, keep_bytes: usize) -> usize {
        self.release_pools();
        self.release_kept() + self.scavenge() + self.backend.trim(keep_bytes)
    }

    /// What a call would give back that comes now, for a program that makes none: for a thread that
    /// looks after the heap from time to time. Returns how many bytes went.
    pub fn tend(&self) -> usize {
        let free = self.free_bytes.load(Relaxed);
        let is_due = self.is_look_due(free);
        let has_risen = free > self.least_free_bytes.load(Relaxed);
        let slabs = if is_due || has_risen { self.look_for_holes(is_due, free) } else { 0 };
        slabs + self.backend.tend()
    }
}

/// Idle frames of one bin's slabs on their way back to the system, many in a call.
struct IdleFrames<'a, S: System> {
    heap: &'a Heap<S>,
    ranges: [PageRange; IDLE_RANGES],
    len: usize,
    gone_bytes: usize,
}

/// How many ranges go back in a call: what the stack holds easily.
const IDLE_RANGES: usize = 64;

impl<'a, S: System> IdleFrames<'a, S> {
    fn new(heap: &'a Heap<S>) -> Self {
        let none = PageRange { start: NonNull::dangling(), bytes: 0 };
        Self { heap, ranges: [none; IDLE_RANGES], len: 0, gone_bytes: 0 }
    }

    /// Takes frames of a slab that hold no object in use, and whose bin's lock is held until
    /// [`finish`](Self::finish).
    fn add(&mut self, start: NonNull<u8>, bytes: usize) {
        if let Some((view, _)) = self.heap.backend.find(start.addr().get()) {
            // SAFETY: frames of a slab whose bin's lock is held.
            unsafe { view.mark(start.addr().get(), bytes / FRAME_BYTES, ClassId::NONE) };
        }
        self.ranges[self.len % IDLE_RANGES] = PageRange { start, bytes };
        self.len += 1;
        if self.len == IDLE_RANGES {
            self.decommit();
        }
    }

    fn decommit(&mut self) {
        // SAFETY: by `add`, nothing in them is in use.
        self.gone_bytes += unsafe { self.heap.source().decommit_all(&self.ranges[..self.len]) };
        self.len = 0;
    }

    /// Gives back the last of them. Returns how many bytes went in all.
    fn finish(mut self) -> usize {
        self.decommit();
        self.gone_bytes
    }
}
