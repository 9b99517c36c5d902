//! The heap: cache → pool → bin → backend.
//!
//! The caller (in a program, `process.rs`) keeps a [`Cache`] for each thread. It calls a fast path
//! first, and the slow path of the same name only if the fast path declines. The fast paths are
//! inlined into the caller. They touch only the cache, the page map and the object.

mod batches;
mod free;
mod interrupted;
mod keys;
mod large;
mod larger;
mod malloc;
mod place;
mod quiet;
mod realloc;
mod relief;
mod slabs;

use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use hectare_base::rolled;
use hectare_base::sync::Lock;
use hectare_pages::System;

use crate::backend::Backend;
use crate::bin::Bin;
use crate::cache::{ALIAS_BYTES, Cache};
use crate::class::{ClassId, STATES};
use crate::cpu_lists::Cpus;
use crate::fill::Extremes;
use crate::left::LeftCaches;
use crate::misuse::Misuse;
use crate::object::Key;
use crate::pace::Pace;
use crate::pool::Pools;
use crate::region::FRAME_BYTES;
use crate::seat::Seat;
use crate::stats::{ClassStats, Stats};

pub(crate) use interrupted::becomes_free;
use keys::Keys;
pub(crate) use place::Place;
pub(crate) use realloc::move_to;
use relief::Look;
pub(crate) use slabs::MAX_SEALED;

/// A general-purpose heap over the memory of `S`. All methods may be called by any thread.
///
/// Invariants
/// 1. Every object of a size class is in exactly one place: with a caller, in one cache, on one
///    list of a CPU, in one pool, free in its slab, or with the hardened front.
/// 2. Locks are taken in this order: the looker's, which is only tried except before a fork; the
///    gate of the CPUs' lists; that of the left caches, alone; a pool's, that of the pools' growth,
///    or a bin's; an opener's or the leaver's; the backend's; the huge table's, alone. Before a
///    fork all are held, those that are otherwise taken alone, too.
/// 3. What each call reads (the keys and the view of the first region) lies at other offsets in its
///    page than the lists of a cache (`heap/keys.rs`). This dictates the order of the fields.
///
/// Orderings: the atomics here, of the backend, of `Extremes` and of `Pace` are counts and hints.
/// They decide when something is done and how much, never whether it may be done. So all are
/// `Relaxed`, and a stale value does no harm. Threads hand memory to each other under locks. For
/// what is read of a region without a lock see `region/view.rs`; for the lists of CPUs see
/// `sequence.rs` and `cpu_lists.rs`.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct Heap<S: System> {
    /// By class. The other states of a page have no bin.
    bins: [Lock<Bin, S::Park>; STATES],
    /// Unused. It moves the fields behind it, which each call reads, to other offsets in their page
    /// than a thread's lists (`heap/keys.rs`).
    gap: [u64; 256],
    keys: Keys,
    /// The last page of each new slab is sealed, for the hardened front.
    seals_slabs: AtomicBool,
    pub(crate) backend: Backend<S>,
    pools: Pools<S::Park>,
    pub(crate) cpus: Cpus<S::Park>,
    left: Lock<LeftCaches, S::Park>,
    /// Bytes of objects that are out of their slabs: with callers, on lists, in pools and stocks.
    out_bytes: AtomicUsize,
    extremes: Extremes,
    pace: Pace,
    /// Held by the thread that looks for freed memory to give back, unless it [trims](Self::trim).
    looker: Lock<Look, S::Park>,
    /// A cache has been handed out.
    has_cache: AtomicBool,
    /// More than one cache has been handed out, or lists of CPUs have: threads on several CPUs may
    /// take from this heap's slabs.
    pub(crate) is_shared: AtomicBool,
    /// A slab was added since classes were last checked for being quiet.
    has_grown: AtomicBool,
    /// How many requests have looked for an object of a larger class, and whether the heap has been
    /// large, which ends such requests (`heap/larger.rs`).
    larger_asked: AtomicUsize,
    was_large: AtomicBool,
    /// How many classes lie before the one to check next for being quiet (`heap/quiet.rs`).
    hand: AtomicUsize,
    /// The last scavenge found much, and nothing has been taken since: the program is freeing all
    /// that it has. The pools keep nothing then, since what they kept would hold pages that nobody
    /// wants.
    draining: AtomicBool,
}

impl<S: System> Heap<S> {
    /// A heap that takes its memory from `source`. Regions have `region_bytes` at first, a multiple
    /// of the page and of 64 KiB, or less if the source has less. 0 means as much as is worth
    /// having for the memory that there can be, 256 GiB at most. No region is longer than 4 TiB.
    /// Nothing is reserved yet. A static heap is all zeros if `source` is.
    pub const fn new(source: S, region_bytes: usize) -> Self {
        const {
            let keys = offset_of!(Self, keys);
            assert!(keys % ALIAS_BYTES >= size_of::<Cache>(), "invariant 3");
            let view = offset_of!(Self, backend) + Backend::<S>::FIRST_VIEW;
            assert!(view % ALIAS_BYTES >= size_of::<Cache>(), "invariant 3");
        };
        Self {
            bins: [const { Lock::new(Bin::new()) }; STATES],
            gap: [0; 256],
            keys: Keys::new(),
            seals_slabs: AtomicBool::new(false),
            backend: Backend::new(source, region_bytes),
            pools: Pools::new(),
            cpus: Cpus::new(),
            left: Lock::new(LeftCaches::new()),
            out_bytes: AtomicUsize::new(0),
            extremes: Extremes::new(),
            pace: Pace::new(),
            looker: Lock::new(Look::new()),
            has_cache: AtomicBool::new(false),
            is_shared: AtomicBool::new(false),
            has_grown: AtomicBool::new(false),
            larger_asked: AtomicUsize::new(0),
            was_large: AtomicBool::new(false),
            hand: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
        }
    }

    /// The source of the heap's memory.
    pub const fn source(&self) -> &S {
        &self.backend.source
    }

    /// Bytes of objects that are out of their slabs and in no stock.
    #[inline]
    pub(crate) fn live_bytes(&self) -> usize {
        self.out_bytes.load(Relaxed).saturating_sub(self.pools.stocked_bytes())
    }

    #[inline(always)]
    pub(crate) fn key(&self) -> Key {
        self.keys.key()
    }

    /// A cache for a thread: one that an ended thread has left, or an empty one. `None` when out of
    /// memory. The caller returns it by [`drop_cache`](Self::drop_cache).
    pub fn new_cache(&self) -> Option<NonNull<Cache>> {
        self.ensure_key();
        if self.has_cache.swap(true, Relaxed) {
            self.is_shared.store(true, Relaxed);
        }
        let left = self.left.lock().pop();
        let mut cache = left.or_else(|| self.backend.get_cache())?;
        // SAFETY: the cache was left, or is new, and is this thread's now.
        unsafe { cache.as_mut() }.change_hands();
        Some(cache)
    }

    /// Takes back a cache and the objects in it.
    ///
    /// # Safety
    /// `cache` came from [`new_cache`](Self::new_cache) of this heap, and nobody uses it.
    pub unsafe fn drop_cache(&self, cache: NonNull<Cache>) {
        // SAFETY: the caller's promise.
        self.release_own(unsafe { Seat::own(cache) });
        let most = if self.draining.load(Relaxed) { 0 } else { self.pools.count() };
        // SAFETY: the caller's promise.
        if unsafe { self.left.lock().push(cache, most) } {
            return;
        }
        // SAFETY: the caller's promise.
        let own = unsafe { &mut *cache.as_ptr() };
        for class in ClassId::all() {
            while let Some(batch) = own.drain(class) {
                self.put_batch(class, batch);
            }
        }
        self.backend.put_cache(cache);
    }

    /// Must be called before the first object is linked.
    pub(crate) fn ensure_key(&self) {
        self.keys.draw(|| self.source().secret());
    }

    /// From now on [`malloc_fast`](Self::malloc_fast) counts what it hands out and declines when
    /// something is due. [`malloc_uncounted`](Self::malloc_uncounted) serves requests as before.
    /// Must be called while there is only one thread.
    pub(crate) fn count_malloc(&self) {
        self.keys.count();
    }

    /// From now on the last page of each new slab is sealed, and no object reaches into it.
    pub(crate) fn seal_slabs(&self) {
        self.seals_slabs.store(self.source().page_bytes() == FRAME_BYTES, Relaxed);
    }

    /// What the heap holds now. Other threads' caches count as in use. O(classes × CPUs).
    pub fn stats(&self) -> Stats {
        let backend = self.backend.stats();
        let mut stats = Stats {
            dirty_bytes: backend.dirty_bytes,
            committed_bytes: backend.committed_bytes,
            metadata_bytes: backend.metadata_bytes,
            regions: backend.regions,
            cpu_lists: self.cpus.count(),
            ..Stats::default()
        };
        // Not the sum over the bins: slabs come and go meanwhile, and would be taken for runs.
        stats.slab_bytes = backend.slab_bytes;
        stats.run_bytes =
            backend.used_bytes.saturating_sub(backend.slab_bytes + backend.huge_bytes);
        for class in ClassId::all() {
            let bin = self.bins[class.index()].lock();
            let (slabs, (objects, free_objects)) = (bin.slabs(), bin.objects());
            drop(bin);
            let pooled_objects = self.pools.objects(class) + self.cpus.objects(class);
            let entry = &mut stats.classes[class.index()];
            *entry = ClassStats {
                object_bytes: class.object_bytes(),
                slabs,
                objects,
                used_objects: objects.saturating_sub(free_objects + pooled_objects),
                pooled_objects,
            };
            stats.small_bytes += entry.used_objects * class.object_bytes();
            stats.pooled_bytes += pooled_objects * class.object_bytes();
        }
        let huge = self.backend.huge.lock();
        stats.huge_bytes = backend.huge_bytes + huge.bytes;
        stats.huge_objects = backend.huge_objects + huge.count();
        stats.dirty_bytes += huge.kept_bytes();
        // The next lock comes before this one, by invariant 2.
        drop(huge);
        self.left.lock().iter().for_each(|cache| stats.count_as_pooled(cache));
        stats
    }

    /// Holds every lock, so that a fork copies a heap at rest.
    pub fn before_fork(&self) {
        self.looker.lock_for_fork();
        self.cpus.before_fork();
        self.left.lock_for_fork();
        self.pools.before_fork();
        rolled(&self.bins).iter().for_each(Lock::lock_for_fork);
        self.backend.before_fork();
    }

    /// Releases every lock, in the parent and in the child.
    ///
    /// # Safety
    /// This thread, or the one that it is the forked copy of, called
    /// [`before_fork`](Self::before_fork).
    pub unsafe fn after_fork(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.backend.after_fork() };
        for bin in rolled(&self.bins) {
            // SAFETY: the caller's promise.
            unsafe { bin.unlock() };
        }
        // SAFETY: the caller's promise.
        unsafe { self.pools.after_fork() };
        // SAFETY: the caller's promise.
        unsafe { self.left.unlock() };
        // SAFETY: the caller's promise.
        unsafe { self.cpus.after_fork() };
        // SAFETY: the caller's promise.
        unsafe { self.looker.unlock() };
    }

    /// Reports a misuse and ends the process. The caller holds no lock except perhaps the looker's,
    /// since a handler of the signal that ends the process may allocate and fork.
    #[cold]
    pub(crate) fn misuse(&self, call: &str, object: *mut u8, cause: Misuse) -> ! {
        // SAFETY: the lock guards nothing. At worst two threads look at once.
        unsafe { self.looker.unlock() };
        cause.abort(self.source(), call, object)
    }

    /// Panics unless the invariants of bins, slabs and regions hold. For tests: no other thread
    /// may use the heap meanwhile.
    #[cfg(any(test, feature = "validate"))]
    pub fn validate(&self) {
        for bin in &self.bins {
            bin.lock().validate();
        }
        self.backend.validate();
    }
}
