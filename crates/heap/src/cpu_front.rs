//! The front of threads that have no cache of their own: lists of the CPU they run on.
//!
//! ```text
//!   thread ──object──▶ this CPU's list ──full list──▶ this CPU's spare ──▶ pools, as any batch
//!          ◀─object───                 ◀────────────                   ◀──
//! ```
//! So what a thousand threads keep is bounded by the CPUs. What one thread frees, the next one on
//! the same CPU takes while it still lies in the processor's cache. An object passes in a
//! restartable sequence of some twenty instructions (`cpu_lists.rs`, `sequence.rs`). A thread's own
//! cache needs six or seven. So the first threads of a process have caches, and those beyond a
//! number that depends on the CPUs do not (`seat.rs`).
//!
//! A list changes by one word alone: a full list is exchanged for a short one, an empty list for a
//! batch. What came out in exchange goes on to the next place. In between it belongs to the thread,
//! whatever CPU that is on by then.

use core::sync::atomic::Ordering::Relaxed;

use hectare_pages::System;

use crate::batch::Batch;
use crate::cache::longer_limit;
use crate::class::ClassId;
use crate::cpu_lists::TRIES;
use crate::heap::Heap;
use crate::misuse::Misuse;
use crate::object::{FreeObject, Key};
use crate::seat::{Seat, Sharing};
use crate::sequence::{Refusal, Word};

impl<S: System> Heap<S> {
    /// How many sequences the slow paths have tried again. For tests.
    #[cfg(any(test, feature = "validate"))]
    pub fn aborted_sequences(&self) -> usize {
        self.cpus.aborts()
    }

    /// Prepares for [`Seat::cpu`]. Returns whether this thread may have it: `false` for threads
    /// that call while the first call is still looking for restartable sequences.
    pub fn begin_cpu_front(&self) -> bool {
        self.ensure_key();
        self.is_shared.store(true, Relaxed);
        self.cpus.begin()
    }

    /// An object of `class` from this CPU's list. Null when the slow path is needed.
    #[inline(always)]
    pub(crate) fn take_by_cpu(&self, sharing: Sharing, class: ClassId) -> *mut u8 {
        let Ok(object) = self.cpus.pop(sharing, class, self.key()) else {
            return core::ptr::null_mut();
        };
        hand_out(object)
    }

    /// Puts an object on this CPU's list. `false`, with nothing changed, when the slow path is
    /// needed.
    #[inline(always)]
    pub(crate) fn give_by_cpu(
        &self,
        sharing: Sharing,
        class: ClassId,
        object: FreeObject,
        key: Key,
    ) -> bool {
        object.mark(key);
        let given = self.cpus.push(sharing, class, object).is_ok();
        if !given {
            object.unmark();
        }
        given
    }

    /// As [`take_by_cpu`](Self::take_by_cpu), by the slow path. Null when out of memory.
    #[cold]
    pub(crate) fn take_by_cpu_slow(&self, sharing: Sharing, class: ClassId) -> *mut u8 {
        for _ in 0..TRIES {
            match self.cpus.pop(sharing, class, self.key()) {
                Ok(object) => return hand_out(object),
                Err(Refusal::Aborted) => self.cpus.note_abort(),
                Err(Refusal::Exhausted) => {
                    if !self.refill(sharing, class) {
                        return core::ptr::null_mut();
                    }
                }
                Err(Refusal::Absent) => {
                    if !self.cpus.open(|bytes| self.backend.metadata(bytes)) {
                        break;
                    }
                }
                Err(Refusal::Corrupt(object)) => {
                    self.misuse("malloc", object, Misuse::FreeListCorrupted);
                }
            }
        }
        self.take_uncached(class)
    }

    /// Makes a batch of `class` this CPU's list, which was empty. `false` when out of memory.
    fn refill(&self, sharing: Sharing, class: ClassId) -> bool {
        let spare = self.cpus.exchange(sharing, Word::Spare, class, None);
        let batch = spare.or_else(|| {
            let count = self.lengthen(class);
            let pooled = self.take_pooled(class, count);
            pooled.or_else(|| self.get_batch(Seat::sharing(sharing), class, count))
        });
        if batch.is_none() {
            return false;
        }
        // A list that another thread has put there meanwhile comes out.
        if let Some(other) = self.cpus.exchange(sharing, Word::List, class, batch) {
            self.put_batch(class, other);
        }
        true
    }

    /// Lengthens the limit of this CPU's list of `class`. Returns the limit as it was.
    fn lengthen(&self, class: ClassId) -> usize {
        let Some(limit) = self.cpus.limit(class) else { return 1 };
        let before = limit.load(Relaxed);
        limit.store(longer_limit(before, class.batch()), Relaxed);
        before.into()
    }

    /// As [`give_by_cpu`](Self::give_by_cpu), by the slow path.
    #[cold]
    pub(crate) fn give_by_cpu_slow(&self, sharing: Sharing, class: ClassId, object: FreeObject) {
        object.mark(self.key());
        for _ in 0..TRIES {
            match self.cpus.push(sharing, class, object) {
                Ok(()) => return,
                Err(Refusal::Exhausted) => return self.overflow(sharing, class, object),
                Err(Refusal::Absent) => {
                    if !self.cpus.open(|bytes| self.backend.metadata(bytes)) {
                        break;
                    }
                }
                Err(_) => self.cpus.note_abort(),
            }
        }
        self.give_to_slabs(class, &[Batch::with(object, None, self.key())]);
    }

    /// Makes a list of `object` alone in place of this CPU's full one.
    fn overflow(&self, sharing: Sharing, class: ClassId, object: FreeObject) {
        let single = Batch::with(object, None, self.key());
        let full = self.cpus.exchange(sharing, Word::List, class, Some(single));
        let surplus = if self.lengthen(class) < class.batch() {
            full
        } else {
            self.cpus.exchange(sharing, Word::Spare, class, full)
        };
        if let Some(batch) = surplus {
            self.put_batch(class, batch);
            self.relieve(Seat::sharing(sharing));
        }
    }
}

/// Clears the mark of an object on its way to a caller.
#[inline(always)]
fn hand_out(object: FreeObject) -> *mut u8 {
    object.unmark();
    object.as_ptr().as_ptr()
}
