//! The heap: allocator → pool → bin → backend.
//!
//! Its callers are fronts: whoever has a [`Cache`] for each thread. A front calls a fast path
//! first; only when that says no, the slow path of the same name. The fast paths are inlined into
//! the front and touch the cache, the page map and the object, nothing else.

mod large;
mod place;
mod relief;
mod slabs;

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use hectare_base::sync::Lock;
use hectare_pages::System;

use crate::backend::Backend;
use crate::bin::{Bin, GIVEN_AT_ONCE, SlabSource};
use crate::cache::Cache;
use crate::class::{ClassId, MAX_SMALL_BYTES, MIN_ALIGN, RECIPROCALS, SLAB_BYTES, STATES};
use crate::cpu_lists::Cpus;
use crate::huge::MIN_HUGE_BYTES;
use crate::misuse::Misuse;
use crate::object::{Batch, FreeObject, Gathered, Key};
use crate::pace::Pace;
use crate::pool::Pools;
use crate::region::FRAME_BYTES;
use crate::seat::Seat;
use crate::stats::{ClassStats, Stats};

pub(crate) use place::Place;

/// A general-purpose heap over the memory of `S`. All methods may be called by any thread.
///
/// Invariants
/// 1. Every object of a size class is in exactly one place: with a caller, in one cache, on one
///    list of a CPU, in one pool, or free in its slab.
/// 2. Locks are taken in this order: the gate of the CPUs' lists; a pool's, alone; that of the
///    pools' growth, or a bin's, then the backend's; the huge table's, alone, or tried under the
///    backend's.
#[derive(Debug)]
pub struct Heap<S: System> {
    key: AtomicUsize,
    /// By what [`malloc_fast`](Self::malloc_fast) knows a sound list: `key`; or where a front
    /// wants to see every request, a key that no mark is made with, so that it always says no.
    fast_key: AtomicUsize,
    diverted: AtomicBool,
    seals_slabs: AtomicBool,
    pub(crate) backend: Backend<S>,
    bins: [Lock<Bin, S::Park>; STATES],
    pools: Pools<S::Park>,
    pub(crate) cpus: Cpus<S::Park>,
    /// Bytes of objects that are out of their slabs, and the most there were since the last scavenge.
    live_bytes: AtomicUsize,
    most_live_bytes: AtomicUsize,
    /// The least that the slabs held beyond those since then.
    least_idle_bytes: AtomicUsize,
    pace: Pace,
    /// The last scavenge found much and nothing has been taken since: a program that frees all it
    /// has. What the pools would keep of that holds pages that nobody wants, so they keep nothing.
    draining: AtomicBool,
}

impl<S: System> Heap<S> {
    /// A heap that takes its memory from `source`, in regions of `region_bytes` at first (fewer,
    /// if the source has not so much), a multiple of the page and of 64 KiB; 0 for as much as is
    /// worth having, 256 GiB. Takes nothing yet; a static of it is all zeros, if `source` is.
    pub const fn new(source: S, region_bytes: usize) -> Self {
        Self {
            key: AtomicUsize::new(0),
            fast_key: AtomicUsize::new(0),
            diverted: AtomicBool::new(false),
            seals_slabs: AtomicBool::new(false),
            backend: Backend::new(source, region_bytes),
            bins: [const { Lock::new(Bin::new()) }; STATES],
            pools: Pools::new(),
            cpus: Cpus::new(),
            live_bytes: AtomicUsize::new(0),
            most_live_bytes: AtomicUsize::new(0),
            least_idle_bytes: AtomicUsize::new(0),
            pace: Pace::new(),
            draining: AtomicBool::new(false),
        }
    }

    /// The source of its memory.
    pub const fn source(&self) -> &S {
        &self.backend.source
    }

    #[inline(always)]
    pub(crate) fn key(&self) -> Key {
        Key(self.key.load(Relaxed))
    }

    /// A cache for a thread; `None` when memory is out. It goes back by
    /// [`drop_cache`](Self::drop_cache).
    pub fn new_cache(&self) -> Option<NonNull<Cache>> {
        self.ensure_key();
        self.backend.get_cache()
    }

    /// Takes back a cache and what is in it.
    ///
    /// # Safety
    /// `cache` came from [`new_cache`](Self::new_cache) of this heap, and nobody uses it.
    pub unsafe fn drop_cache(&self, cache: NonNull<Cache>) {
        // SAFETY: the caller's promise.
        let bins = unsafe { &mut (*cache.as_ptr()).bins };
        for class in ClassId::all() {
            while let Some(batch) = bins[class.index()].drain() {
                self.put_batch(class, batch);
            }
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { self.release_runs(Seat::Own(cache)) };
        self.backend.put_cache(cache);
    }

    /// The key is drawn before the first object is linked; a second thread draws the same.
    pub(crate) fn ensure_key(&self) {
        if self.key.load(Relaxed) == 0 {
            let key = self.source().secret() | 1;
            self.key.store(key, Relaxed);
            self.fast_key.store(if self.diverted.load(Relaxed) { !key } else { key }, Relaxed);
        }
    }

    /// From now on every [`malloc_fast`](Self::malloc_fast) says no, so that a front sees all
    /// requests; [`malloc_undiverted`](Self::malloc_undiverted) serves them as before. To be
    /// called while there is one thread.
    pub(crate) fn divert_malloc(&self) {
        self.diverted.store(true, Relaxed);
        self.fast_key.store(!self.key.load(Relaxed), Relaxed);
    }

    // ---- malloc ----

    /// An object for `bytes` from the thread's cache; null when the slow path must be asked.
    ///
    /// # Safety
    /// `cache` is this thread's, of this heap, or [`Cache::ABSENT`].
    #[inline(always)]
    pub unsafe fn malloc_fast(&self, cache: NonNull<Cache>, bytes: usize) -> *mut u8 {
        if bytes > MAX_SMALL_BYTES {
            return core::ptr::null_mut();
        }
        let key = Key(self.fast_key.load(Relaxed));
        // SAFETY: the caller's promise, passed on.
        unsafe { self.take_fast(cache, ClassId::for_bytes(bytes), key) }
    }

    /// An object of `class` from the thread's cache, or null: also if its mark is not of `key`.
    ///
    /// # Safety
    /// As [`malloc_fast`](Self::malloc_fast).
    #[inline(always)]
    unsafe fn take_fast(&self, cache: NonNull<Cache>, class: ClassId, key: Key) -> *mut u8 {
        // SAFETY: the caller's promise: this thread's, or one that is only read.
        let bin = unsafe { &raw mut (*cache.as_ptr()).bins[class.index()] };
        // SAFETY: as above.
        let Some(object) = (unsafe { (*bin).head }) else {
            return core::ptr::null_mut();
        };
        if !object.is_marked(key) {
            return core::ptr::null_mut();
        }
        // SAFETY: the list is not empty, so the cache is not the absent one.
        let bin = unsafe { &mut *bin };
        bin.head = object.next();
        bin.room += 1;
        object.unmark();
        object.as_ptr().as_ptr()
    }

    /// An object for `bytes`; null when memory is out.
    ///
    /// # Safety
    /// `seat` is this thread's, of this heap.
    #[cold]
    #[inline(never)]
    pub unsafe fn malloc_slow(&self, seat: Seat, bytes: usize) -> *mut u8 {
        if bytes <= MAX_SMALL_BYTES {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.take_slow(seat, ClassId::for_bytes(bytes)) }
        } else {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.get_large(seat, bytes, 1, false) }.0
        }
    }

    /// An object for `bytes` from the thread's cache, whether or not requests are diverted; null
    /// when it has none.
    ///
    /// # Safety
    /// As [`malloc_fast`](Self::malloc_fast).
    #[inline(always)]
    pub(crate) unsafe fn malloc_from(&self, cache: NonNull<Cache>, bytes: usize) -> *mut u8 {
        if bytes > MAX_SMALL_BYTES {
            return core::ptr::null_mut();
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { self.take_fast(cache, ClassId::for_bytes(bytes), self.key()) }
    }

    /// An object for `bytes`, whether or not requests are diverted; null when memory is out.
    ///
    /// # Safety
    /// As [`malloc_slow`](Self::malloc_slow).
    pub(crate) unsafe fn malloc_undiverted(&self, seat: Seat, bytes: usize) -> *mut u8 {
        if let Seat::Own(cache) = seat {
            // SAFETY: the caller's promise, passed on.
            let object = unsafe { self.malloc_from(cache, bytes) };
            if !object.is_null() {
                return object;
            }
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { self.malloc_slow(seat, bytes) }
    }

    /// As [`malloc_slow`](Self::malloc_slow), for an object of `class`.
    unsafe fn take_slow(&self, seat: Seat, class: ClassId) -> *mut u8 {
        let cache = match seat {
            Seat::Own(cache) => cache,
            // SAFETY: the caller's promise.
            Seat::Cpu => return unsafe { self.take_by_cpu_slow(class) },
            Seat::None => return self.take_uncached(class),
        };
        // SAFETY: the caller's promise: this thread's alone.
        let bin = unsafe { &mut (*cache.as_ptr()).bins[class.index()] };
        if let Some(damaged) = bin.head {
            self.misuse("malloc", damaged.as_ptr().as_ptr(), Misuse::FreeListCorrupted);
        }
        if !bin.use_spare() {
            let ask = bin.ask(class.batch());
            // SAFETY: the caller's promise, passed on.
            unsafe { self.relieve(seat) };
            let batch = self.get_batch(class, ask).or_else(|| {
                // SAFETY: the caller's promise, passed on.
                let gone = unsafe { self.release_runs(seat) };
                (gone > 0).then(|| self.get_batch(class, ask))?
            });
            let Some(batch) = batch else {
                return core::ptr::null_mut();
            };
            // SAFETY: as above; looking for memory leaves this list as empty as it was.
            unsafe { &mut (*cache.as_ptr()).bins[class.index()] }.fill(batch);
        }
        // SAFETY: the caller's promise, and the list has an object now.
        unsafe { self.take_fast(cache, class, self.key()) }
    }

    #[cold]
    pub(crate) fn take_uncached(&self, class: ClassId) -> *mut u8 {
        self.ensure_key();
        let Some(batch) = self.take_from_bin(class, 1) else {
            return core::ptr::null_mut();
        };
        batch.head.unmark();
        batch.head.as_ptr().as_ptr()
    }

    /// `count` objects of `class`, or some fewer: from the pools, else from the bin.
    pub(crate) fn get_batch(&self, class: ClassId, count: usize) -> Option<Batch> {
        if self.draining.load(Relaxed) {
            self.draining.store(false, Relaxed);
        }
        if let Some(mut batch) = self.pools.take(self.source().cpu(), class) {
            if let Some(rest) = batch.split_off(count, self.key()) {
                self.put_batch(class, rest);
            }
            return Some(batch);
        }
        self.take_from_bin(class, count).or_else(|| {
            // Memory is out: what lies unused in the pools may make slabs empty.
            self.release_pools();
            self.release_kept();
            self.take_from_bin(class, count)
        })
    }

    pub(crate) fn take_from_bin(&self, class: ClassId, count: usize) -> Option<Batch> {
        let mut gathered = Gathered::NONE;
        self.bins[class.index()].lock().take(class, count.min(class.batch()), &mut gathered, self);
        let bytes = gathered.count() * class.object_bytes();
        let live_bytes = self.live_bytes.fetch_add(bytes, Relaxed) + bytes;
        if live_bytes > self.most_live_bytes.load(Relaxed) {
            self.most_live_bytes.store(live_bytes, Relaxed);
        }
        gathered.list(self.key())
    }

    /// Gives a batch to this CPU's pool; if that has too much, it goes to the bin, and some of the
    /// pool's with it.
    pub(crate) fn put_batch(&self, class: ClassId, batch: Batch) {
        if self.draining.load(Relaxed) {
            return self.give_to_slabs(class, &[batch]);
        }
        let cpu = self.source().cpu();
        let memory = |bytes| self.backend.metadata(bytes);
        let Some(overflow) = self.pools.put(cpu, class, batch, memory) else { return };
        let mut batches = [overflow; GIVEN_AT_ONCE];
        let mut count = 1;
        while count < GIVEN_AT_ONCE
            && let Some(batch) = self.pools.take_own(cpu, class)
        {
            batches[count] = batch;
            count += 1;
        }
        self.give_to_slabs(class, &batches[..count]);
    }

    pub(crate) fn give_to_slabs(&self, class: ClassId, batches: &[Batch]) {
        let corrupt = |object| self.misuse("free", object, Misuse::DoubleFree);
        self.bins[class.index()].lock().give(class, batches, self, corrupt);
        let objects: usize = batches.iter().map(|batch| batch.count).sum();
        self.live_bytes.fetch_sub(objects * class.object_bytes(), Relaxed);
    }

    /// Whether the slab of an object of `class` says that it is taken: in use, or on a list.
    pub(crate) fn is_taken(&self, class: ClassId, object: FreeObject) -> bool {
        let _bin = self.bins[class.index()].lock();
        // SAFETY: the slab of an object of this class is this bin's, and its lock is held.
        self.slab_of(object).is_some_and(|slab| unsafe { slab.get() }.is_taken(object))
    }

    /// From now on the last page of each new slab is sealed, and no object reaches into it.
    pub(crate) fn seal_slabs(&self) {
        self.seals_slabs.store(self.source().page_bytes() == FRAME_BYTES, Relaxed);
    }

    /// An object for `bytes` aligned to `align`, a power of two; null when memory is out.
    ///
    /// # Safety
    /// As [`malloc_slow`](Self::malloc_slow).
    pub unsafe fn malloc_aligned(&self, seat: Seat, bytes: usize, align: usize) -> *mut u8 {
        match ClassId::for_aligned(bytes, align) {
            Some(class) => {
                if let Seat::Own(cache) = seat {
                    // SAFETY: the caller's promise, passed on.
                    let object = unsafe { self.take_fast(cache, class, self.key()) };
                    if !object.is_null() {
                        return object;
                    }
                }
                // SAFETY: the caller's promise, passed on.
                unsafe { self.take_slow(seat, class) }
            }
            // SAFETY: the caller's promise, passed on.
            None => unsafe { self.get_large(seat, bytes, align, false) }.0,
        }
    }

    /// An object of `bytes` zeros; null when memory is out.
    ///
    /// # Safety
    /// As [`malloc_slow`](Self::malloc_slow).
    pub unsafe fn malloc_zeroed(&self, seat: Seat, bytes: usize) -> *mut u8 {
        let (object, zeroed) = if bytes > MAX_SMALL_BYTES {
            // SAFETY: the caller's promise, passed on.
            unsafe { self.get_large(seat, bytes, 1, true) }
        } else {
            // SAFETY: the caller's promise, passed on.
            (unsafe { self.malloc_aligned(seat, bytes, MIN_ALIGN) }, false)
        };
        if !object.is_null() && !zeroed {
            // SAFETY: an object just taken, of at least `bytes`.
            unsafe { object.write_bytes(0, bytes) };
        }
        object
    }

    // ---- free ----

    /// Puts an object on the thread's list. `false`, and nothing has changed, when the slow path
    /// must be asked: the list is full, or the pointer leads elsewhere, or nowhere.
    ///
    /// # Safety
    /// As [`malloc_fast`](Self::malloc_fast); and if `object` is an object, it is not used again.
    #[inline(always)]
    pub unsafe fn free_fast(&self, cache: NonNull<Cache>, object: *mut u8) -> bool {
        // SAFETY: the caller's promise: this thread's, or one that is only read.
        let bin = |class: ClassId| unsafe { &raw mut (*cache.as_ptr()).bins[class.index()] };
        // SAFETY: as above. Never is anything a start to the absent cache.
        let reciprocal = |class| unsafe { (*bin(class)).reciprocal };
        let key = self.key();
        let Some((class, object)) = self.free_start(object, key, reciprocal) else { return false };
        // SAFETY: as for the reciprocal.
        if unsafe { (*bin(class)).room } == 0 {
            return false;
        }
        // SAFETY: there is room, so the cache is not the absent one.
        unsafe { &mut *bin(class) }.push(object, key);
        true
    }

    /// As [`free_fast`](Self::free_fast), on the list of this CPU.
    ///
    /// # Safety
    /// [`begin_cpu_front`](Self::begin_cpu_front) has said yes; if `object` is an object, it is not
    /// used again.
    #[inline(always)]
    pub(crate) unsafe fn free_by_cpu(&self, object: *mut u8) -> bool {
        let reciprocal = |class: ClassId| RECIPROCALS[class.index()];
        let key = self.key();
        let Some((class, object)) = self.free_start(object, key, reciprocal) else { return false };
        // SAFETY: the caller's promise, passed on.
        unsafe { self.give_by_cpu(class, object, key) }
    }

    /// The class of `object`, if it is an object of a size class in the first region and not marked
    /// as free. `reciprocal` is [`ClassId::reciprocal`], from where the caller has it at hand.
    #[inline(always)]
    fn free_start(
        &self,
        object: *mut u8,
        key: Key,
        reciprocal: impl FnOnce(ClassId) -> u32,
    ) -> Option<(ClassId, FreeObject)> {
        let view = self.backend.first_view();
        let address = object.addr();
        view.offset_of(address)?;
        // SAFETY: the address lies in the region.
        let class = unsafe { view.class_of(address) };
        let reciprocal = reciprocal(class);
        // Slabs are aligned to their size, so these are the bits behind the slab's start. The
        // product is below the reciprocal exactly for the multiples of the object's size; never,
        // if the page holds no small objects.
        if ((address % SLAB_BYTES) as u32).wrapping_mul(reciprocal) >= reciprocal {
            return None;
        }
        // SAFETY: no region lies at address 0.
        let object = unsafe { NonNull::new_unchecked(object) };
        // SAFETY: the start of an object of a size class, by the test above.
        let object = unsafe { FreeObject::new(object) };
        (!object.is_marked(key)).then_some((class, object))
    }

    /// The class of `object`, if it is plain to see: what a free that goes by the fast path would say.
    #[inline(always)]
    pub(crate) fn class_of_fast(&self, object: NonNull<u8>) -> Option<ClassId> {
        let reciprocal = |class: ClassId| RECIPROCALS[class.index()];
        self.free_start(object.as_ptr(), self.key(), reciprocal).map(|(class, _)| class)
    }

    /// Frees an object that the fast path has left alone.
    ///
    /// # Safety
    /// `seat` as in [`malloc_slow`](Self::malloc_slow); `object` is not used again.
    #[cold]
    #[inline(never)]
    pub unsafe fn free_slow(&self, seat: Seat, object: *mut u8) {
        let Some(start) = NonNull::new(object) else { return };
        // SAFETY: the caller's promise, passed on.
        if unsafe { self.free_run(seat, start) }.is_some() {
            return;
        }
        match self.place_of(start) {
            Ok(Place::Small(class)) => {
                // SAFETY: `place_of` says that it is an object of a size class.
                let object = unsafe { FreeObject::new(start) };
                let seat = if self.backend.is_leaving(start) { Seat::None } else { seat };
                // SAFETY: the caller's promise, passed on.
                unsafe { self.give(seat, class, object) };
            }
            // Freed by another thread in between.
            Ok(Place::Run { .. }) => self.misuse("free", object, Misuse::NotAllocated),
            Ok(Place::Huge { .. }) => {
                if self.backend.huge.lock().put(start, self.source()).is_none() {
                    self.misuse("free", object, Misuse::NotAllocated);
                }
            }
            Err(cause) => self.misuse("free", object, cause),
        }
    }

    unsafe fn give(&self, seat: Seat, class: ClassId, object: FreeObject) {
        let key = self.key();
        let cache = match seat {
            Seat::Own(cache) => cache,
            // SAFETY: the caller's promise.
            Seat::Cpu => return unsafe { self.give_by_cpu_slow(class, object) },
            Seat::None => {
                object.link(None, key);
                return self.give_to_slabs(class, &[Batch { head: object, count: 1 }]);
            }
        };
        // SAFETY: the caller's promise: this thread's alone.
        let bin = unsafe { &mut (*cache.as_ptr()).bins[class.index()] };
        let full = bin.make_room(class.batch());
        bin.push(object, key);
        if let Some(batch) = full {
            self.put_batch(class, batch);
            // SAFETY: the caller's promise, passed on.
            unsafe { self.relieve(seat) };
        }
    }

    // ---- the rest ----

    /// Makes the object at `object` hold `bytes`, moving it if need be; null, and nothing has
    /// changed, when memory is out.
    ///
    /// # Safety
    /// `seat` as in [`malloc_slow`](Self::malloc_slow); `object` is not used again unless the
    /// answer is null.
    pub unsafe fn realloc(&self, seat: Seat, object: NonNull<u8>, bytes: usize) -> *mut u8 {
        let place = match self.place_of(object) {
            Ok(place) => place,
            Err(cause) => {
                self.misuse("realloc", object.as_ptr(), cause);
                return core::ptr::null_mut();
            }
        };
        let old_bytes = match place {
            Place::Small(class) => {
                if class.keeps(bytes) {
                    return object.as_ptr();
                }
                class.object_bytes()
            }
            Place::Run { frames } => {
                let old_bytes = frames * FRAME_BYTES;
                if let Some(kept) = self.resize_run(object, old_bytes, bytes) {
                    return kept.as_ptr();
                }
                old_bytes
            }
            Place::Huge { bytes: old_bytes } => {
                if bytes >= MIN_HUGE_BYTES / 2 {
                    let resized = self.backend.huge.lock().resize(object, bytes, self.source());
                    if let Some(start) = resized {
                        return start.as_ptr();
                    }
                }
                old_bytes
            }
        };
        // SAFETY: the caller's promise, passed on.
        let moved = unsafe { self.malloc_aligned(seat, bytes, MIN_ALIGN) };
        if let Some(moved) = NonNull::new(moved) {
            // SAFETY: both objects have as many bytes; one was just taken, so they are disjoint.
            unsafe { object.copy_to_nonoverlapping(moved, old_bytes.min(bytes)) };
            // SAFETY: the caller's promise, passed on.
            unsafe { self.free_slow(seat, object.as_ptr()) };
        }
        moved
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
        let mut slab_bytes = 0;
        for class in ClassId::all() {
            let (slabs, free_objects) = self.bins[class.index()].lock().counts();
            let pooled_objects = self.pools.objects(class) + self.cpus.objects(class);
            let entry = &mut stats.classes[class.index()];
            *entry = ClassStats {
                object_bytes: class.object_bytes(),
                slabs,
                used_objects: (slabs * class.objects())
                    .saturating_sub(free_objects + pooled_objects),
                pooled_objects,
            };
            slab_bytes += slabs * SLAB_BYTES;
            stats.small_bytes += entry.used_objects * class.object_bytes();
            stats.pooled_bytes += pooled_objects * class.object_bytes();
        }
        stats.slab_bytes = slab_bytes;
        stats.run_bytes = backend.used_bytes.saturating_sub(slab_bytes);
        let huge = self.backend.huge.lock();
        stats.huge_bytes = huge.bytes;
        stats.huge_objects = huge.count();
        stats.dirty_bytes += huge.kept_bytes();
        stats
    }

    /// Holds every lock, so that a fork copies a heap at rest.
    pub fn before_fork(&self) {
        self.cpus.before_fork();
        self.pools.before_fork();
        for bin in &self.bins {
            bin.lock_for_fork();
        }
        self.backend.before_fork();
    }

    /// Frees every lock, in the parent and in the child.
    ///
    /// # Safety
    /// This thread, or the one that it is the forked copy of, called
    /// [`before_fork`](Self::before_fork).
    pub unsafe fn after_fork(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.backend.after_fork() };
        for bin in &self.bins {
            // SAFETY: the caller's promise.
            unsafe { bin.unlock() };
        }
        // SAFETY: the caller's promise.
        unsafe { self.pools.after_fork() };
        // SAFETY: the caller's promise.
        unsafe { self.cpus.after_fork() };
    }

    /// Tells of a misuse and ends the process.
    #[cold]
    pub(crate) fn misuse(&self, call: &str, object: *mut u8, cause: Misuse) {
        cause.abort(self.source(), call, object);
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
