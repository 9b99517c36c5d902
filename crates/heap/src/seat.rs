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

/// The calling thread's right to use what holds its free objects. Whoever has a seat may take
/// objects from the heap and give them back; the promises about the place are made once, where the
/// seat is made.
#[derive(Debug)]
pub struct Seat<'a>(At<'a>);

/// Where a thread keeps free objects.
#[derive(Debug)]
pub(crate) enum At<'a> {
    /// In a cache of its own.
    Own(&'a mut Cache),
    /// In the lists of the CPU it runs on.
    Cpu(Sharing),
    /// Nowhere: each object goes back to its slab.
    Nowhere,
}

/// The right to use the lists of the CPUs: they have begun.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sharing(());

impl Sharing {
    /// # Safety
    /// [`Heap::begin_cpu_front`](crate::Heap::begin_cpu_front) of the heap for which this is used
    /// has returned `true`.
    #[inline(always)]
    pub(crate) const unsafe fn new() -> Self {
        Self(())
    }
}

impl<'a> Seat<'a> {
    /// The seat of a thread that keeps nothing: each object goes back to its slab.
    pub const NONE: Self = Self(At::Nowhere);

    /// The seat of a thread with a cache of its own.
    ///
    /// # Safety
    /// `cache` came from [`Heap::new_cache`](crate::Heap::new_cache) of the heap for which the seat
    /// is used. As long as the seat lives, nothing else uses the cache.
    #[inline]
    pub const unsafe fn own(mut cache: NonNull<Cache>) -> Self {
        // SAFETY: the caller's promise.
        Self::with(unsafe { cache.as_mut() })
    }

    /// The seat of a thread that shares the lists of the CPU it runs on.
    ///
    /// # Safety
    /// [`Heap::begin_cpu_front`](crate::Heap::begin_cpu_front) of the heap for which the seat is
    /// used has returned `true`.
    #[inline]
    pub const unsafe fn cpu() -> Self {
        // SAFETY: the caller's promise.
        Self::sharing(unsafe { Sharing::new() })
    }

    #[inline]
    pub(crate) const fn sharing(sharing: Sharing) -> Self {
        Self(At::Cpu(sharing))
    }

    /// The seat of a thread with `cache`, if it has one.
    ///
    /// # Safety
    /// As [`own`](Self::own).
    #[inline]
    pub(crate) unsafe fn of(cache: Option<NonNull<Cache>>) -> Self {
        // SAFETY: the caller's promise, passed on.
        cache.map_or(Self::NONE, |cache| unsafe { Self::own(cache) })
    }

    /// The same seat, for a call in between.
    #[inline(always)]
    pub(crate) const fn again(&mut self) -> Seat<'_> {
        match &mut self.0 {
            At::Own(cache) => Seat(At::Own(cache)),
            At::Cpu(sharing) => Seat(At::Cpu(*sharing)),
            At::Nowhere => Seat::NONE,
        }
    }

    /// The seat of the thread that has `cache`.
    #[inline(always)]
    pub(crate) const fn with(cache: &'a mut Cache) -> Self {
        Self(At::Own(cache))
    }

    #[inline(always)]
    pub(crate) fn at(self) -> At<'a> {
        self.0
    }

    /// The thread's own cache, if it has one.
    #[inline(always)]
    pub(crate) const fn cache(&mut self) -> Option<&mut Cache> {
        match &mut self.0 {
            At::Own(cache) => Some(cache),
            At::Cpu(_) | At::Nowhere => None,
        }
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
    ///
    /// # Safety
    /// As long as the seat lives, the thread asks for no other, and does not use the cache that its
    /// word names.
    #[inline]
    pub(crate) unsafe fn seat(&'static self) -> Seat<'static> {
        let word = cache_word();
        if word == StandIn::Sharing.word() {
            // SAFETY: a thread that shares has been allowed to.
            return unsafe { Seat::cpu() };
        }
        if word == StandIn::NotYet.word() {
            // SAFETY: the caller's promise, passed on.
            return unsafe { self.first_seat() };
        }
        // SAFETY: this thread's cache; the caller's promise.
        unsafe { Seat::of(named_cache(word)) }
    }

    /// # Safety
    /// As [`seat`](Self::seat).
    #[cold]
    #[inline(never)]
    unsafe fn first_seat(&'static self) -> Seat<'static> {
        if !self.seats.enter() {
            if self.heap.begin_cpu_front() {
                set_cache_word(StandIn::Sharing.word());
                // SAFETY: it has begun.
                return unsafe { Seat::cpu() };
            }
            self.seats.enter_beyond();
        }
        let cache = self.make_cache();
        if cache.is_none() {
            self.seats.leave();
        }
        // SAFETY: this thread's cache; the caller's promise.
        unsafe { Seat::of(cache) }
    }

    /// An object for `bytes` from the list of this CPU. Null when the thread has another seat, or
    /// the slow path is needed.
    #[inline(always)]
    pub(crate) fn malloc_by_cpu(&'static self, bytes: usize) -> *mut u8 {
        if cache_word() != StandIn::Sharing.word() || bytes > MAX_SMALL_BYTES {
            return core::ptr::null_mut();
        }
        // SAFETY: a thread that shares has been allowed to.
        let sharing = unsafe { Sharing::new() };
        self.heap.take_by_cpu(sharing, ClassId::for_bytes(bytes))
    }

    /// Frees a small object into the list of this CPU. `false`, with nothing changed, when the
    /// thread has another seat, or [`free_slow`](Self::free_slow) is needed.
    ///
    /// # Safety
    /// As [`free`](Self::free).
    #[inline(always)]
    pub(crate) unsafe fn free_by_cpu(&'static self, object: *mut u8) -> bool {
        if cache_word() != StandIn::Sharing.word() {
            return false;
        }
        // SAFETY: a thread that shares has been allowed to.
        let sharing = unsafe { Sharing::new() };
        // SAFETY: the caller's promise, passed on.
        unsafe { self.heap.free_by_cpu(sharing, object) }
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
