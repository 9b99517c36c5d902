//! Slabs on their way between the backend and the bins.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;

use hectare_pages::System;

use super::Heap;
use crate::bin::SlabSource;
use crate::class::{ClassId, SLAB_BYTES};
use crate::object::Key;
use crate::region::{FRAME_BYTES, SLAB_FRAMES, SlabTable};
use crate::slab::emptied::Emptied;
use crate::slab::{FreshSlab, SlabRef};

/// The most slabs with a sealed page, and the most large objects with one. Each takes two more
/// mappings, of which Linux allows a process 65,530, threads' stacks and libraries included. Beyond
/// this number, new ones have no sealed page.
pub(crate) const MAX_SEALED: usize = 8192;

impl<S: System> Heap<S> {
    /// Memory for a slab of `class`, which has `siblings` slabs now. `None` when out of memory.
    /// Must be called without the lock of the class's bin.
    pub(super) fn get_slab(&self, class: ClassId, siblings: usize) -> Option<FreshSlab> {
        self.scavenge_before_growing();
        self.has_grown.store(true, Relaxed);
        self.backend.get_slab(class, siblings)
    }

    /// Makes `fresh` a slab of `class`, whose bin's lock the caller holds.
    pub(super) fn open_slab(&self, class: ClassId, fresh: FreshSlab) -> SlabRef {
        let is_bare = fresh.bare;
        let name = fresh.open(class);
        if self.seals_slabs.load(Relaxed) {
            self.seal_slab(name, is_bare);
        }
        name
    }

    /// Seals the last page of a slab just opened, whose bin's lock the caller holds.
    #[cold]
    #[inline(never)]
    fn seal_slab(&self, name: SlabRef, is_bare: bool) {
        // SAFETY: a slab just opened is the caller's, who holds the bin's lock.
        let slab = unsafe { name.get() };
        let last = slab.withhold_last_frame();
        self.backend.become_bare(usize::from(!is_bare));
        if self.backend.slabs() <= MAX_SEALED {
            // A page that the system will not seal merely stays open.
            // SAFETY: a frame of the slab that no object reaches into.
            let _ = unsafe { self.source().seal(last, FRAME_BYTES) };
        }
        if let Some(view) = self.backend.find(last.addr().get()) {
            // SAFETY: as above: nothing is allocated there.
            unsafe { view.mark(last.addr().get(), 1, ClassId::NONE) };
        }
    }

    /// Gives back slabs that have become empty. Must be called without the lock of their bin.
    pub(super) fn put_slabs(&self, mut emptied: Emptied) {
        while let Some(name) = emptied.pop() {
            // SAFETY: an emptied slab is its holder's alone.
            let slab = unsafe { name.get() };
            slab.unmark_frames();
            let (start, bare_frames) = (slab.start(), slab.bare_frames());
            if self.seals_slabs.load(Relaxed) && !self.unseal_slab(start) {
                // A slab with a page that nobody may touch is of no use to others.
                self.backend.shut_slab(start, bare_frames);
            } else {
                self.backend.put_slab(start, bare_frames);
            }
        }
    }

    /// Opens the last page of an empty slab. Returns whether the system allowed it.
    #[cold]
    #[inline(never)]
    fn unseal_slab(&self, start: NonNull<u8>) -> bool {
        // SAFETY: the slab's last frame.
        let last = unsafe { start.add(SLAB_BYTES - FRAME_BYTES) };
        // SAFETY: as above; the slab was committed as a whole.
        unsafe { self.source().commit(last, FRAME_BYTES) }.is_ok()
    }
}

impl<S: System> SlabSource for Heap<S> {
    fn show(&self, start: NonNull<u8>, frames: u16, class: ClassId) {
        let Some(view) = self.backend.find(start.addr().get()) else { return };
        for frame in (0..SLAB_FRAMES).filter(|frame| frames >> frame & 1 == 1) {
            let address = start.addr().get() + frame * FRAME_BYTES;
            // SAFETY: a frame of a slab whose bin's lock the caller holds.
            unsafe { view.mark(address, 1, class) };
        }
    }

    #[inline(always)]
    fn populates(&self, class: ClassId) -> bool {
        !(class.is_of_pages() && self.backend.first_view().leaves_pages_bare())
    }

    fn metadata(&self, bytes: usize) -> Option<NonNull<u8>> {
        self.backend.metadata(bytes)
    }

    fn now_ms(&self) -> u64 {
        self.source().now_ms()
    }

    #[inline(always)]
    fn first_slabs(&self) -> SlabTable {
        self.backend.first_view().slab_table()
    }

    #[cold]
    #[inline(never)]
    fn slab_of(&self, address: usize) -> Option<SlabRef> {
        self.backend.find(address)?.slab_table().slab_of(address)
    }

    #[inline(always)]
    fn key(&self) -> Key {
        self.keys.key()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::time::{Duration, Instant};

    use hectare_pages::Os;

    use super::*;
    use crate::seat::Seat;

    #[test]
    fn nobody_waits_for_a_class_while_its_slabs_wait_to_go_back() {
        const BYTES: usize = 1024;
        let heap = std::boxed::Box::new(Heap::new(Os, 64 << 20));
        let bin = &heap.bins[ClassId::for_bytes(BYTES).index()];
        let object = heap.malloc_slow(Seat::NONE, BYTES);
        let slabs = || Some(bin.try_lock()?.slabs());
        assert_eq!(slabs(), Some(1));
        heap.backend.before_fork();
        let address = object.expose_provenance();
        let seen = std::thread::scope(|scope| {
            let heap = &heap;
            // SAFETY: an object of this heap, freed once.
            scope.spawn(move || unsafe {
                heap.free_slow(Seat::NONE, core::ptr::with_exposed_provenance_mut(address));
            });
            let begin = Instant::now();
            let mut seen = slabs();
            while seen != Some(0) && begin.elapsed() < Duration::from_secs(10) {
                std::thread::yield_now();
                seen = slabs();
            }
            // SAFETY: this thread holds the locks.
            unsafe { heap.backend.after_fork() };
            seen
        });
        assert_eq!((seen, heap.backend.slabs()), (Some(0), 0));
    }
}
