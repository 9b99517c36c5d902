//! When the heap looks for memory that can go back to the system, and what such a *look* does.
//!
//! ```text
//!   relieve      a call has exchanged a batch, or freed an object of a slab that is given up
//!     ├─ dirty memory has lain idle for a second ──────────────▶ some of it goes        backend/tending.rs
//!     ├─ the slabs emptied some milliseconds ago, or much has
//!     │  been idle in them for half a second (pace.rs) ────────▶ look
//!     ├─ a look is not through ────────────────────────────────▶ its next step
//!     └─ a slab was needed though much is idle ────────────────▶ quiet classes          heap/quiet.rs
//!   look         in steps of less than a millisecond
//!     1. what lies ready on lists and in pools goes to its slabs                        heap/relief/emptying.rs
//!     2. where much has been idle for long, the emptier slabs are given up
//!     3. frames of slabs that no object in use reaches into go back                     heap/relief/holes.rs
//!   tend         the same for a program that makes no calls, by a thread that looks after the heap
//!   trim         all that can go, at once
//! ```
//! One thread at a time looks, except that `trim` waits for nobody.

mod emptying;
mod holes;

use core::sync::atomic::Ordering::Relaxed;

use hectare_base::sync::LockGuard;
use hectare_pages::System;

use super::Heap;
use crate::fill::Fill;
use crate::seat::Seat;

pub(super) use holes::Look;

/// This much may lie idle in the slabs without a look at the emptier ones: this share of what is
/// live, and at least this many bytes.
const IDLE_SHARE: usize = 64;
const MIN_IDLE_BYTES: usize = 1 << 20;

/// Hardly anything is left in the slabs if this many times the out bytes lie idle.
const LITTLE_SHARE: usize = 16;

/// The most that one step of a look gives back, so that the call takes less than a millisecond.
const STEP_BYTES: usize = 2 << 20;

/// Of calls that find the live bytes unchanged, one in this many reads the clock.
const IDLE_RELIEFS: u8 = 16;

/// Why a look is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The slabs have emptied.
    Emptied,
    /// Much has been idle in them for long: the emptier ones are given up, too.
    Idle,
    /// The last look is not through yet.
    Unfinished,
}

/// Held by the thread that looks.
type Looker<'a, S> = LockGuard<'a, Look, <S as System>::Park>;

impl<S: System> Heap<S> {
    /// Looks for memory to give back if the slabs have become much emptier, or if much has been
    /// idle in them for a while. What this thread's cache and the pools hold would keep slabs in
    /// use, so they are emptied first. Other threads empty their caches when they next come here.
    #[inline]
    pub(crate) fn relieve(&self, mut seat: Seat<'_>) {
        if let Some(cache) = seat.cache() {
            let live_bytes = self.live_bytes();
            // While lists and pools serve all calls, only time can bring anything new.
            let is_new = core::mem::replace(&mut cache.relieved_at_bytes, live_bytes) != live_bytes;
            cache.idle_reliefs = if is_new { 0 } else { (cache.idle_reliefs + 1) % IDLE_RELIEFS };
            if cache.idle_reliefs != 0 && cache.looks == self.pace.looks() {
                return;
            }
        }
        self.relieve_now(seat);
    }

    /// As [`relieve`](Self::relieve), whatever this thread has seen before.
    #[inline(never)]
    fn relieve_now(&self, mut seat: Seat<'_>) {
        self.backend.tend_if_due();
        let fill = self.fill();
        self.note_idle(fill);
        self.note_emptying(fill);
        let look = self.begin_look(fill);
        if let Some(cache) = seat.cache() {
            let looks = self.pace.looks();
            let begins = matches!(look, Some((_, Cause::Emptied | Cause::Idle)));
            if begins || cache.looks != looks {
                // A look that gives slabs up is counted when it begins, below. This thread's cache
                // is emptied for it now.
                let gives_up = matches!(look, Some((_, Cause::Idle)));
                cache.looks = looks + u32::from(gives_up);
                self.empty_cache(cache);
            }
        }
        if let Some((mut looker, cause)) = look {
            self.look_for_holes(&mut looker, cause, STEP_BYTES);
        } else {
            self.empty_quiet_classes(seat, fill);
        }
    }

    /// The looker's lock and the cause, if this thread is to look now.
    #[inline]
    fn begin_look(&self, fill: Fill) -> Option<(Looker<'_, S>, Cause)> {
        self.cause_to_look(fill)?;
        // If many threads free, all see the cause: one of them looks.
        let looker = self.looker.try_lock()?;
        // Another may have looked meanwhile.
        Some((looker, self.cause_to_look(fill)?))
    }

    /// Why a look is to begin or to go on, if one is.
    #[inline(never)]
    fn cause_to_look(&self, fill: Fill) -> Option<Cause> {
        if self.is_look_due(fill) {
            Some(Cause::Idle)
        } else if self.pace.is_unfinished() {
            Some(Cause::Unfinished)
        } else {
            self.has_emptied_for_long(fill).then_some(Cause::Emptied)
        }
    }

    /// What the slabs hold now.
    fn fill(&self) -> Fill {
        let live_bytes = self.live_bytes();
        Fill { live_bytes, idle_bytes: self.backend.idle_bytes(live_bytes) }
    }

    /// Notes whether much is idle in the slabs. How long that has lasted decides when the next look
    /// is due.
    fn note_idle(&self, fill: Fill) {
        self.pace.note_idle(is_much_idle(fill), || self.source().now_ms());
    }

    /// Whether much, relative to what is live, has been idle in the slabs for long enough.
    fn is_look_due(&self, fill: Fill) -> bool {
        is_much_idle(fill) && self.pace.is_due(self.source().now_ms(), fill.idle_bytes)
    }

    /// Notes whether the slabs have emptied since the last scavenge.
    fn note_emptying(&self, fill: Fill) {
        self.extremes.note_idle(fill.idle_bytes);
        self.pace.note_emptied(self.has_emptied(fill), || self.source().now_ms());
    }

    /// Whether much has been freed since the last scavenge, or much has become idle.
    fn has_emptied(&self, fill: Fill) -> bool {
        self.extremes.are_left(fill, self.backend.slack_bytes())
    }

    /// Whether the slabs [had emptied](Self::has_emptied) some milliseconds ago. If hardly anything
    /// is left in them there is no wait, since no later call may come.
    fn has_emptied_for_long(&self, fill: Fill) -> bool {
        self.has_emptied(fill)
            && (self.pace.has_settled(self.source().now_ms()) || self.has_little())
    }

    /// Whether hardly anything is left in the slabs, not even what swings.
    fn has_little(&self) -> bool {
        let out_bytes = self.out_bytes.load(Relaxed);
        self.backend.idle_bytes(out_bytes) / LITTLE_SHARE > out_bytes
    }

    /// Empties lists and pools and gives idle frames back, or goes on with a look under way.
    /// Returns how many bytes went, hardly more than `most_bytes`.
    #[cold]
    #[inline(never)]
    fn look_for_holes(&self, look: &mut Look, cause: Cause, most_bytes: usize) -> usize {
        if cause != Cause::Unfinished {
            self.release_idle();
            self.pace.settle();
        }
        let mut left_bytes = most_bytes;
        if cause == Cause::Idle {
            self.pace.note_look(self.source().now_ms(), self.fill().idle_bytes);
            self.give_up_emptier_slabs(&mut left_bytes);
        }
        self.scavenge(look, left_bytes)
    }

    /// Gives up the emptier slabs. Objects freed in them then go straight back to them, not to a
    /// thread's list and from there to the next request, so that the slabs become empty. Subtracts
    /// from `left_bytes` what the visits cost.
    #[cold]
    fn give_up_emptier_slabs(&self, left_bytes: &mut usize) {
        for bin in &self.bins {
            if let Some(mut bin) = bin.try_lock() {
                bin.give_up_emptier_slabs(left_bytes, self);
            }
        }
    }

    /// Looks for holes if the heap has grown much since the last time. Must be called before the
    /// heap grows, without the lock of a bin.
    #[inline]
    pub(super) fn scavenge_before_growing(&self) {
        if self.backend.should_scavenge() {
            self.scavenge_unless_another_looks();
        }
    }

    /// Of several threads that grow the heap at once, one searches. The others would find nothing
    /// more, and a search that finds nothing lets the heap grow by more until the next.
    #[cold]
    #[inline(never)]
    fn scavenge_unless_another_looks(&self) {
        if let Some(mut looker) = self.looker.try_lock()
            && self.backend.should_scavenge()
        {
            self.scavenge(&mut looker, STEP_BYTES);
        }
    }

    /// Gives what the heap does not need back to the system: the pools' objects, the kept huge
    /// blocks and all dirty memory but `keep_bytes`. Returns how many bytes went.
    pub fn trim(&self, keep_bytes: usize) -> usize {
        self.release_pools();
        // This is a look of its own. It ends one that is under way.
        self.pace.note_unfinished(false);
        let mut look = Look::new();
        self.release_kept() + self.scavenge(&mut look, usize::MAX) + self.backend.trim(keep_bytes)
    }

    /// Gives back what a call at this time would, for programs that make no calls. A thread that
    /// looks after the heap calls it from time to time. Returns how many bytes went.
    pub fn tend(&self) -> usize {
        let mut looker = self.looker.try_lock();
        let fill = self.fill();
        self.note_idle(fill);
        let is_due = self.is_look_due(fill);
        let cause = if is_due { Cause::Idle } else { Cause::Emptied };
        let looks = is_due || self.pace.is_unfinished() || self.extremes.freed_bytes(fill) > 0;
        let mut gone = match &mut looker {
            Some(looker) if looks => self.look_for_holes(looker, cause, usize::MAX),
            _ => 0,
        };
        drop(looker);
        // Part by part, so that other threads can get in between.
        loop {
            let bytes = self.backend.tend();
            gone += bytes;
            if bytes == 0 {
                return gone;
            }
        }
    }
}

fn is_much_idle(fill: Fill) -> bool {
    fill.is_idle(IDLE_SHARE, MIN_IDLE_BYTES)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::time::Duration;
    use std::vec::Vec;

    use hectare_pages::Os;

    use super::*;
    use crate::class::SLAB_BYTES;

    #[test]
    fn a_look_that_is_due_is_not_lost_while_another_thread_looks() {
        let heap = std::boxed::Box::new(Heap::new(Os, 64 << 20));
        let cache = heap.new_cache().expect("a cache");
        let look = || {
            // SAFETY: this thread's own cache.
            heap.relieve_now(unsafe { Seat::own(cache) });
            // SAFETY: as above; nothing borrows it.
            (heap.pace.looks(), unsafe { cache.as_ref() }.looks)
        };
        let objects: Vec<_> = (0..4096).map(|_| heap.malloc_slow(Seat::NONE, 1024)).collect();
        for &object in
            objects.iter().enumerate().filter(|(i, _)| i % 8 > 0).map(|(_, object)| object)
        {
            // SAFETY: an object of this heap, freed once.
            unsafe { heap.free_slow(Seat::NONE, object) };
        }
        look();
        std::thread::sleep(Duration::from_millis(600));
        let (looks, _) = {
            let _another = heap.looker.try_lock().expect("no other thread looks");
            look()
        };
        assert_eq!(look(), (looks + 1, looks + 1), "it is had once nobody else looks");
        assert_eq!(look(), (looks + 1, looks + 1), "and once");
    }

    #[test]
    fn of_threads_that_grow_at_once_one_looks() {
        let heap = std::boxed::Box::new(Heap::new(Os, 64 << 20));
        let take = || heap.malloc_slow(Seat::NONE, 1024);
        while !heap.backend.should_scavenge() {
            take();
        }
        let slabs = heap.backend.slabs();
        let grow = || {
            while heap.backend.slabs() == slabs {
                take();
            }
        };
        let another = heap.looker.try_lock().expect("nobody looks");
        grow();
        assert!(heap.backend.should_scavenge(), "this one grows without a look");
        drop(another);
        heap.scavenge_before_growing();
        assert!(!heap.backend.should_scavenge());
    }

    /// A heap of 4096 objects, of which `gone` in a row go and the next stays.
    fn emptied(gone: usize) -> std::boxed::Box<Heap<Os>> {
        let heap = std::boxed::Box::new(Heap::new(Os, 64 << 20));
        let take = || heap.malloc_slow(Seat::NONE, 1024);
        let objects: Vec<_> = (0..4096).map(|_| take()).collect();
        for object in objects.chunks(gone + 1).flat_map(|row| &row[..gone]) {
            // SAFETY: an object of this heap, freed once.
            unsafe { heap.free_slow(Seat::NONE, *object) };
        }
        heap
    }

    #[test]
    fn a_long_look_goes_on_from_call_to_call() {
        let heap = std::boxed::Box::new(Heap::new(Os, 256 << 20));
        let take = || heap.malloc_slow(Seat::NONE, 1024);
        let objects: Vec<_> = (0..48 << 10).map(|_| take()).collect();
        let another = heap.looker.try_lock().expect("nobody looks");
        for object in objects.chunks(64).flat_map(|row| &row[1..]) {
            // SAFETY: an object of this heap, freed once.
            unsafe { heap.free_slow(Seat::NONE, *object) };
        }
        drop(another);
        std::thread::sleep(Duration::from_millis(10));
        let step = || {
            let idle_bytes = heap.fill().idle_bytes;
            heap.relieve_now(Seat::NONE);
            idle_bytes - heap.fill().idle_bytes
        };
        let mut gone = std::vec![step()];
        assert!(heap.pace.is_unfinished());
        while heap.pace.is_unfinished() {
            gone.push(step());
        }
        assert!(gone.iter().all(|&bytes| bytes <= STEP_BYTES + SLAB_BYTES), "{gone:?}");
        assert!(gone.iter().sum::<usize>() >= 40 << 20, "{gone:?}");
        assert_eq!(step(), 0, "it is through");
    }

    #[test]
    fn tending_gives_back_what_was_freed_unless_another_thread_looks() {
        let heap = emptied(63);
        {
            let _another = heap.looker.try_lock().expect("nobody looks");
            assert_eq!(heap.tend(), 0);
        }
        assert!(heap.tend() >= 3 << 20);
        assert_eq!((heap.tend(), heap.pace.looks()), (0, 0));
    }

    #[test]
    fn tending_looks_where_much_stays_idle() {
        let heap = emptied(1);
        heap.tend();
        assert_eq!(heap.pace.looks(), 0);
        std::thread::sleep(Duration::from_millis(600));
        let looks = [0; 2].map(|_| {
            heap.tend();
            heap.pace.looks()
        });
        assert_eq!(looks, [1, 1], "and waits again");
    }
}
