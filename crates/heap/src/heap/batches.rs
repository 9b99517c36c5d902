//! Batches of objects on their way between lists, pools and bins.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;

use hectare_pages::System;

use super::Heap;
use crate::batch::{Batch, Batches};
use crate::bin::{Demand, SlabSource};
use crate::class::ClassId;
use crate::gathered::Gathered;
use crate::misuse::Misused;
use crate::object::FreeObject;
use crate::region::{FRAME_BYTES, SLAB_FRAMES};
use crate::seat::Seat;
use crate::slab::emptied::Emptied;

impl<S: System> Heap<S> {
    /// `count` objects of `class`, or fewer, from the pools.
    #[inline(never)]
    pub(crate) fn take_pooled(&self, class: ClassId, count: usize) -> Option<Batch> {
        self.end_drain();
        let mut batch = self.pools.take(self.source().cpu(), class)?;
        if let Some(rest) = self.split_off(&mut batch, count) {
            self.put_batch(class, rest);
        }
        Some(batch)
    }

    /// `count` objects of `class`, or fewer, from the bin. There they lie in rows; in the pools
    /// they lie in the order in which they were freed.
    pub(crate) fn get_batch(&self, seat: Seat<'_>, class: ClassId, count: usize) -> Option<Batch> {
        self.take_from_bin(class, count).or_else(|| {
            self.release_all(seat, SLAB_FRAMES);
            self.take_from_bin(class, count)
        })
    }

    /// `count` objects of `class`, or fewer, from its slabs: as many as slabs with room have, or
    /// else from a new slab.
    #[inline(never)]
    fn take_from_bin(&self, class: ClassId, count: usize) -> Option<Batch> {
        let mut gathered = Gathered::new();
        self.gather_from_bin(class, count, &mut gathered);
        gathered.list(self.key())
    }

    /// As [`take_from_bin`](Self::take_from_bin), into `gathered`, which is empty. Nothing is
    /// written into the objects.
    pub(crate) fn gather_from_bin(&self, class: ClassId, count: usize, gathered: &mut Gathered) {
        self.end_drain();
        let cpu = self.is_shared.load(Relaxed).then(|| self.source().cpu());
        let wanted = Demand { class, count, cpu };
        let mut siblings = self.take_of_slabs(wanted, gathered);
        if gathered.count() == 0 && self.pools.stocked_bytes() > 0 {
            self.empty_stocks(SLAB_FRAMES, SLAB_FRAMES);
            siblings = self.take_of_slabs(wanted, gathered);
        }
        // A new slab only if there is not a single object: a batch may be short.
        if gathered.count() == 0 {
            // Getting a slab may take long, so it happens without the lock. Threads that come here
            // at once may each get one.
            if let Some(fresh) = self.get_slab(class, siblings) {
                let mut bin = self.bins[class.index()].lock();
                let name = self.open_slab(class, fresh);
                bin.take_new(name, wanted, gathered, self);
            } else {
                // Slabs of other CPUs' homes will do; little is taken from them.
                let count = count.min(class.batch());
                self.take_of_slabs(Demand { class, count, cpu: None }, gathered);
            }
        }
        self.bring_memory(class, gathered);
        let bytes = gathered.count() * class.object_bytes();
        self.out_bytes.fetch_add(bytes, Relaxed);
        self.extremes.note_live(self.live_bytes());
    }

    /// Takes what is wanted from the slabs with room. Returns how many slabs the class has.
    #[inline(never)]
    fn take_of_slabs(&self, wanted: Demand, gathered: &mut Gathered) -> usize {
        let mut bin = self.bins[wanted.class.index()].lock();
        bin.take(wanted, gathered, self);
        bin.slabs()
    }

    /// Notes that something is taken: the program is not freeing all that it has.
    fn end_drain(&self) {
        if self.draining.load(Relaxed) {
            self.draining.store(false, Relaxed);
        }
    }

    /// Counts the frames that hold memory again for the objects just taken, and has the system populate some at once.
    fn bring_memory(&self, class: ClassId, gathered: &Gathered) {
        if gathered.revived_frames > 0 {
            self.backend.come_back(gathered.revived_frames, gathered.returned_frames);
        }
        if self.source().page_bytes() <= FRAME_BYTES {
            for (start, bytes) in gathered.bare() {
                // SAFETY: frames of a slab of which objects were just taken: committed, and they stay so.
                unsafe { self.source().populate(start, bytes) };
                self.note_come(class, start);
            }
        }
    }

    /// Notes that the memory of a range that begins at `start` has come, in the slab of `class`
    /// around it.
    #[inline(never)]
    fn note_come(&self, class: ClassId, start: NonNull<u8>) {
        let _bin = self.bins[class.index()].lock();
        if let Some(slab) = self.slab_of(start.addr().get()) {
            // SAFETY: objects just taken, which nobody has yet, keep the slab this bin's, whose lock is held.
            unsafe { slab.get() }.has_come();
        }
    }

    /// Gives a batch to this CPU's pool. If the pool refuses it, it goes to the bin, together with
    /// some of the pool's own.
    pub(crate) fn put_batch(&self, class: ClassId, mut batch: Batch) {
        // What was taken from a class of many slabs may be several batches.
        if let Some(rest) = self.split_off(&mut batch, class.batch()) {
            self.put_batch(class, rest);
        }
        if self.draining.load(Relaxed) {
            self.give_to_slabs(class, &[batch]);
            return;
        }
        let cpu = self.source().cpu();
        let memory = |bytes| self.backend.metadata(bytes);
        let Some(overflow) = self.pools.put(cpu, class, batch, memory) else { return };
        let batches = Batches::gather(overflow, || self.pools.take_own(cpu, class));
        self.give_to_slabs(class, batches.as_slice());
    }

    /// Cuts off what `batch` has beyond `count` objects.
    #[inline(never)]
    fn split_off(&self, batch: &mut Batch, count: usize) -> Option<Batch> {
        batch
            .split_off(count, self.key())
            .unwrap_or_else(|Misused { what, object }| self.misuse("malloc", object, what))
    }

    /// Gives the objects of `batches` to their slabs. Returns how many bytes they have.
    pub(crate) fn give_to_slabs(&self, class: ClassId, batches: &[Batch]) -> usize {
        let mut emptied = Emptied::NONE;
        let given = self.bins[class.index()].lock().give(class, batches, &mut emptied, self);
        self.put_slabs(emptied);
        let objects =
            given.unwrap_or_else(|Misused { what, object }| self.misuse("free", object, what));
        let bytes = objects * class.object_bytes();
        self.out_bytes.fetch_sub(bytes, Relaxed);
        bytes
    }

    /// As [`give_to_slabs`](Self::give_to_slabs), for `objects` that are on no list: nothing is
    /// read from them. The caller reports what was wrong.
    #[cold]
    pub(crate) fn give_unlisted_to_slabs(
        &self,
        class: ClassId,
        objects: &[Option<FreeObject>],
    ) -> Result<(), Misused> {
        let mut emptied = Emptied::NONE;
        let given =
            self.bins[class.index()].lock().give_unlisted(class, objects, &mut emptied, self);
        self.put_slabs(emptied);
        self.out_bytes.fetch_sub(given? * class.object_bytes(), Relaxed);
        Ok(())
    }

    /// Whether the slab of an object of `class` says that it is taken: in use, or on a list.
    pub(crate) fn is_taken(&self, class: ClassId, object: FreeObject) -> bool {
        let _bin = self.bins[class.index()].lock();
        let slab = self.slab_of(object.as_ptr().addr().get());
        // SAFETY: the slab of an object of this class is this bin's, and its lock is held.
        slab.is_some_and(|slab| unsafe { slab.get() }.is_taken(object))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::boxed::Box;
    use std::vec::Vec;

    use hectare_pages::Os;

    use super::*;

    /// A signal handler that does not return, or a thread cancelled at any point, can leave a list
    /// with one object more or fewer than was counted.
    #[test]
    fn lists_go_back_as_far_as_they_reach_whatever_was_counted() {
        const LENGTHS: [usize; 7] = [40, 41, 1, 20, 60, 17, 16];
        let heap = Box::new(Heap::new(Os, 64 << 20));
        for (bytes, miscounted) in [16, 100, 1024, 32768]
            .into_iter()
            .flat_map(|bytes| [-100, -17, -1, 0, 1, 17, 100].map(|counted| (bytes, counted)))
        {
            let class = ClassId::for_bytes(bytes);
            let total = LENGTHS.iter().sum::<usize>();
            let objects: Vec<_> = (0..total).map(|_| heap.malloc_slow(Seat::NONE, bytes)).collect();
            // Neighbours in the first list alone: the others hold objects of many places.
            let (first, others) = (LENGTHS[0], total - LENGTHS[0]);
            let place = |at| if at < first { at } else { first + (at * 83) % others };
            let mut scattered = (0..total).map(|at| {
                let object = NonNull::new(objects[place(at)]).expect("memory");
                // SAFETY: an object of this heap, which nobody uses.
                unsafe { FreeObject::new(object) }
            });
            let batches = LENGTHS.map(|length| {
                let list = scattered.by_ref().take(length);
                let with = |list, object| Some(Batch::with(object, list, heap.key()));
                let batch = list.fold(None, with).expect("an object");
                Batch { count: batch.count.saturating_add_signed(miscounted).max(1), ..batch }
            });
            let bin = &heap.bins[class.index()];
            assert!(bin.lock().slabs() > 0);
            let given = heap.give_to_slabs(class, &batches) / class.object_bytes();
            let slabs = bin.lock().slabs();
            assert_eq!((given, slabs), (total, 0), "{bytes} bytes, miscounted by {miscounted}");
        }
    }
}
