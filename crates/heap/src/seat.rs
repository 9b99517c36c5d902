//! A thread's seat: which front serves it.
//!
//! ```text
//!   NotYet ──first slow path─┬─ a cache is left ─▶ its own cache ──the key's destructor──▶ Departed
//!                            └─ none is ─────────▶ Sharing: the lists of whatever CPU it is on
//! ```
//! A cache of its own is quickest for a thread, but holds what the thread may never ask for again.
//! So each CPU has a fixed number of caches. A thread beyond these shares its CPU's lists, which it
//! finds by a restartable sequence, and holds nothing itself. A thread keeps its seat as long as it
//! lives. A thread that ends leaves its cache to the next new thread.
//!
//! The word of a thread that shares names a static cache that is always empty and full. So the hit
//! paths decline, as they do for a thread without a seat, and the code behind them looks at the
//! word.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use hectare_pages::rseq;

use crate::cache::Cache;
use crate::class::{ClassId, MAX_SMALL_BYTES};
use crate::process::{Process, cache_word, named_cache, set_cache_word};
use crate::stand_in::StandIn;

/// Where the calling thread keeps free objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seat {
    /// In a cache of its own, from [`Heap::new_cache`](crate::Heap::new_cache).
    Own(NonNull<Cache>),
    /// In the lists of the CPU it runs on: [`Heap::begin_cpu_front`](crate::Heap::begin_cpu_front)
    /// has returned `true`.
    Cpu,
    /// Nowhere: each object goes back to its slab.
    None,
}

impl From<Option<NonNull<Cache>>> for Seat {
    fn from(cache: Option<NonNull<Cache>>) -> Self {
        cache.map_or(Self::None, Self::Own)
    }
}

/// Which threads have caches of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Front {
    /// Each thread.
    Thread,
    /// No thread, if there are restartable sequences.
    Cpu,
    /// The first threads, a fixed number for each CPU, if there are restartable sequences;
    /// otherwise each thread.
    Auto,
}

/// How many threads for each CPU have caches of their own, by default.
const CACHES_PER_CPU: usize = 16;

/// How many threads have caches of their own, and how many may have one.
#[derive(Debug)]
pub(crate) struct Seats {
    /// One more than the number of threads that may have a cache; 0 before the CPUs are counted.
    limit: AtomicUsize,
    taken: AtomicUsize,
}

/// The values of [`Seats::limit`] if each thread has a cache, if none has, and if the CPUs have not
/// been counted yet.
const ALL: usize = usize::MAX;
const NONE: usize = 1;
const UNKNOWN: usize = 0;

impl Seats {
    pub(crate) const fn new() -> Self {
        Self { limit: AtomicUsize::new(UNKNOWN), taken: AtomicUsize::new(0) }
    }

    /// Gives the seats of `front` to threads that come from now on.
    pub(crate) fn choose(&self, front: Front) {
        let limit = match front {
            Front::Thread => ALL,
            Front::Cpu => NONE,
            Front::Auto => UNKNOWN,
        };
        self.limit.store(limit, Relaxed);
    }

    fn limit(&self) -> usize {
        if self.limit.load(Relaxed) == UNKNOWN {
            self.limit.store(CACHES_PER_CPU * rseq::cpus() + 1, Relaxed);
        }
        self.limit.load(Relaxed)
    }

    /// Gives a cache to a thread, if one is left. As many as one CPU has are there before the CPUs
    /// are counted: most programs never need to count them.
    fn enter(&self) -> bool {
        let may_have_one_more = |limit: usize| {
            let one_more = |taken: usize| (taken + 1 < limit).then_some(taken + 1);
            self.taken.fetch_update(Relaxed, Relaxed, one_more).is_ok()
        };
        let is_unknown = self.limit.load(Relaxed) == UNKNOWN;
        is_unknown && may_have_one_more(CACHES_PER_CPU + 1) || may_have_one_more(self.limit())
    }

    /// Counts a thread that gets a cache in any case.
    pub(crate) fn enter_beyond(&self) {
        self.taken.fetch_add(1, Relaxed);
    }

    /// How many threads have a cache.
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    /// Notes that only `threads` of the threads that have a cache are left.
    pub(crate) fn keep(&self, threads: usize) {
        self.taken.store(threads, Relaxed);
    }

    /// Notes that a thread that had a cache has ended.
    pub(crate) fn leave(&self) {
        self.taken.fetch_sub(1, Relaxed);
    }
}

impl Process {
    /// Chooses the front of threads that come from now on, and of the calling one. Must be called
    /// while there is only one thread, before [`specialise`](Self::specialise).
    pub fn choose_front(&'static self, front: Front) {
        self.seats.choose(front);
        if front == Front::Cpu && self.heap.begin_cpu_front() {
            self.forsake_cache();
        }
    }

    /// The front that serves threads: the chosen one, or [`Front::Thread`] if there is no other.
    /// Should be called once before there are many threads: while the first call looks for
    /// sequences, all threads that come get caches.
    pub fn front(&'static self) -> Front {
        match self.seats.limit.load(Relaxed) {
            ALL => Front::Thread,
            _ if !self.heap.cpus.may_begin() => Front::Thread,
            NONE => Front::Cpu,
            _ => Front::Auto,
        }
    }

    /// This thread's seat, if no special front is on. The thread gets one if it has none yet.
    #[inline]
    pub(crate) fn seat(&'static self) -> Seat {
        let word = cache_word();
        if word == StandIn::Sharing.word() {
            return Seat::Cpu;
        }
        if word == StandIn::NotYet.word() {
            return self.first_seat();
        }
        named_cache(word).into()
    }

    #[cold]
    #[inline(never)]
    fn first_seat(&'static self) -> Seat {
        if !self.seats.enter() {
            if self.heap.begin_cpu_front() {
                set_cache_word(StandIn::Sharing.word());
                return Seat::Cpu;
            }
            self.seats.enter_beyond();
        }
        let cache = self.make_cache();
        if cache.is_none() {
            self.seats.leave();
        }
        cache.into()
    }

    /// An object for `bytes` from the list of this CPU. Null when the thread has another seat, or
    /// the slow path is needed.
    #[inline(always)]
    pub(crate) fn malloc_by_cpu(&'static self, bytes: usize) -> *mut u8 {
        if cache_word() != StandIn::Sharing.word() || bytes > MAX_SMALL_BYTES {
            return core::ptr::null_mut();
        }
        // SAFETY: a thread that shares has been allowed to.
        unsafe { self.heap.take_by_cpu(ClassId::for_bytes(bytes)) }
    }

    /// Frees a small object into the list of this CPU. `false`, with nothing changed, when the
    /// thread has another seat, or [`free_slow`](Self::free_slow) is needed.
    ///
    /// # Safety
    /// As [`free`](Self::free).
    #[inline(always)]
    pub(crate) unsafe fn free_by_cpu(&'static self, object: *mut u8) -> bool {
        // SAFETY: the caller's promise. A thread that shares has been allowed to.
        cache_word() == StandIn::Sharing.word() && unsafe { self.heap.free_by_cpu(object) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_counted_once_the_share_of_one_is_taken() {
        let seats = Seats::new();
        assert!((0..CACHES_PER_CPU).all(|_| seats.enter()));
        assert_eq!(seats.limit.load(Relaxed), UNKNOWN);
        let all = CACHES_PER_CPU * rseq::cpus();
        assert!((CACHES_PER_CPU..all).all(|_| seats.enter()));
        assert!(!seats.enter() && seats.taken() == all);
        seats.leave();
        assert!(seats.enter() && !seats.enter());
    }
}
