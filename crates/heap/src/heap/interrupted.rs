//! Threads that a signal has interrupted in the midst of a call of the heap, and that never go back
//! to it because their handler has called `exit`. What they hold stays locked. Statistics due at
//! the program's end would wait for it for ever.

use hectare_base::sync::{Lock, Park};
use hectare_pages::System;

use super::Heap;

/// How long to wait for a lock that may be this thread's own; and how often to try it, if no clock
/// can be read.
const PATIENCE_MS: u64 = 1000;
const LOOKS: usize = 1 << 22;

impl<S: System> Heap<S> {
    /// Whether each lock that [`stats`](Self::stats) takes is free, or soon becomes free, as those
    /// of other threads do.
    #[cold]
    pub(crate) fn can_be_asked(&self) -> bool {
        let source = self.source();
        self.backend.can_be_asked()
            && becomes_free(&self.backend.huge, source)
            && becomes_free(&self.left, source)
            && self.bins.iter().all(|bin| becomes_free(bin, source))
            && self.pools.all_slots(|slots| becomes_free(slots, source))
    }
}

/// Whether `lock` is free, or soon becomes free. A lock that this thread holds does not.
#[cold]
#[inline(never)]
pub(crate) fn becomes_free<T, S: System>(lock: &Lock<T, S::Park>, source: &S) -> bool {
    let since_ms = source.now_ms();
    for _ in 0..LOOKS {
        if lock.try_lock().is_some() {
            return true;
        }
        if source.now_ms().saturating_sub(since_ms) > PATIENCE_MS {
            break;
        }
        S::Park::give_way();
    }
    false
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::boxed::Box;
    use std::thread;
    use std::time::Duration;

    use hectare_pages::Os;

    use super::*;
    use crate::class::ClassId;
    use crate::seat::Seat;

    #[test]
    fn what_this_thread_holds_is_not_waited_for() {
        let heap = Box::new(Heap::new(Os, 64 << 20));
        let class = ClassId::for_bytes(100);
        // With a pool in use.
        let object = heap.malloc_slow(Seat::NONE, 100);
        let batch = heap.take_pooled(class, 1).or_else(|| heap.get_batch(Seat::NONE, class, 1));
        heap.put_batch(class, batch.expect("memory"));
        assert!(heap.can_be_asked());
        let bin = heap.bins[class.index()].lock();
        assert!(!heap.can_be_asked(), "a class's slabs");
        drop(bin);
        let has_none = heap.pools.all_slots(|slots| {
            let _slots = slots.lock();
            assert!(!heap.can_be_asked(), "a pool");
            false
        });
        assert!(!has_none, "there is a pool");
        let left = heap.left.lock();
        assert!(!heap.can_be_asked(), "caches that were left");
        drop(left);
        let huge = heap.backend.huge.lock();
        assert!(!heap.can_be_asked(), "huge objects");
        drop(huge);
        heap.backend.before_fork();
        assert!(!heap.can_be_asked(), "the backend");
        // SAFETY: held by this thread, just above.
        unsafe { heap.backend.after_fork() };
        assert!(heap.can_be_asked());
        // SAFETY: an object of this heap, freed once.
        unsafe { heap.free_slow(Seat::NONE, object) };
    }

    #[test]
    fn what_another_thread_holds_is_waited_for() {
        let heap = Box::new(Heap::new(Os, 64 << 20));
        thread::scope(|scope| {
            let left = heap.left.lock();
            let asked = scope.spawn(|| heap.can_be_asked());
            thread::sleep(Duration::from_millis(20));
            drop(left);
            assert!(asked.join().expect("it does not panic"));
        });
    }
}
