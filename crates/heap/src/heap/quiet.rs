//! Empties the lists and pools of quiet classes, from which nobody allocates any more, for other
//! classes.
//!
//! A program that goes from one size to the next leaves objects of the first on its thread's list
//! and in the pools. They are scattered over the slabs, so forty of them can keep as many slabs
//! from all other classes, and the heap grows although most of it is idle. When a slab is needed
//! although much is idle, the next few classes are looked at, in turn, as the hand of a clock goes
//! round. A class is *quiet* if nothing has been taken from its slabs since the hand last came by,
//! and half of their objects are free. Then what lists and pools hold of it goes to the slabs.
//! Slabs that become empty are dirty memory, of which the next slab is made.

use core::sync::atomic::Ordering::Relaxed;

use hectare_pages::System;

use super::Heap;
use crate::class::{CLASSES, ClassId};
use crate::fill::Fill;
use crate::seat::Seat;

/// How much must be idle in the slabs: this share of what is live, and at least this many bytes.
const IDLE_SHARE: usize = 4;
const MIN_IDLE_BYTES: usize = 512 << 10;

/// How many classes are looked at for each new slab.
const CLASSES_A_SLAB: usize = 16;
const _: () = assert!(CLASSES.is_multiple_of(CLASSES_A_SLAB));

impl<S: System> Heap<S> {
    /// Looks at the next few classes if another slab was needed although much is idle.
    pub(super) fn empty_quiet_classes(&self, mut seat: Seat<'_>, fill: Fill) {
        if !self.has_grown.load(Relaxed) || !fill.is_idle(IDLE_SHARE, MIN_IDLE_BYTES) {
            return;
        }
        self.has_grown.store(false, Relaxed);
        let hand = self.hand.load(Relaxed);
        // Two threads that move the hand at once merely look at the same classes.
        self.hand.store((hand + CLASSES_A_SLAB) % CLASSES, Relaxed);
        for class in ClassId::all().skip(hand).take(CLASSES_A_SLAB) {
            let bin = self.bins[class.index()].try_lock();
            if !bin.is_some_and(|mut bin| bin.is_quiet()) {
                continue;
            }
            if let Some(cache) = seat.cache() {
                self.empty_list(cache, class);
            }
            self.empty_pools(class, |slots, _| slots.drain(), usize::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::boxed::Box;
    use std::vec::Vec;

    use hectare_pages::Os;

    use super::*;

    #[test]
    fn a_class_that_is_taken_from_is_not_quiet() {
        const BYTES: usize = 1024;
        let heap = Box::new(Heap::new(Os, 64 << 20));
        let class = ClassId::for_bytes(BYTES);
        let take = || heap.malloc_slow(Seat::NONE, BYTES);
        let objects: Vec<_> = (0..4 * class.objects()).map(|_| take()).collect();
        for object in objects.iter().skip(1).step_by(4).chain(objects.iter().step_by(2)) {
            // SAFETY: each of them once, and not used again.
            unsafe { heap.free_slow(Seat::NONE, *object) };
        }
        let look = || heap.bins[class.index()].lock().is_quiet();
        assert!(!look() && look(), "half is free, and nothing was taken since");
        take();
        assert!(!look(), "an object was taken since");
        assert!(look());
    }
}
