//! A front over a heap, like that of `process.rs`: a cache for each thread, the fast path first.

use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use hectare::{Cache, ClassId, Heap, MIN_ALIGN, Seat, Stats};
use hectare_check::{Object, Subject};
use hectare_pages::System;

/// A thread's way to `heap`. Its cache, if it has one, goes back when the front is dropped.
pub struct Front<'a, S: System> {
    pub heap: &'a Heap<S>,
    keeps: Keeps,
}

/// Where a front keeps free objects.
#[derive(Clone, Copy)]
enum Keeps {
    /// Nowhere yet: the first slow path makes a cache.
    Nothing,
    /// In a cache of its own.
    Own(NonNull<Cache>),
    /// In the lists of whatever CPU it is used on.
    Cpu,
}

// SAFETY: a cache is used by whoever has the front.
unsafe impl<S: System> Send for Front<'_, S> where Heap<S>: Sync {}

static ABSENT: Cache = Cache::ABSENT;

impl<'a, S: System> Front<'a, S> {
    /// A front without a cache yet; the first slow path makes one.
    pub fn new(heap: &'a Heap<S>) -> Self {
        Self { heap, keeps: Keeps::Nothing }
    }

    /// A front over the lists of whatever CPU it is used on. `None` if there are no restartable
    /// sequences.
    pub fn by_cpu(heap: &'a Heap<S>) -> Option<Self> {
        // While the first thread that asks makes a heap look for sequences, another that asks is
        // told that there are none.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _asking = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        heap.begin_cpu_front().then_some(Self { heap, keeps: Keeps::Cpu })
    }

    /// The seat of whoever has the front.
    pub fn seat(&mut self) -> Seat<'_> {
        match self.keeps {
            Keeps::Nothing => Seat::NONE,
            // SAFETY: this front's own cache, which is borrowed with it.
            Keeps::Own(cache) => unsafe { Seat::own(cache) },
            // SAFETY: made by `by_cpu` alone.
            Keeps::Cpu => unsafe { Seat::cpu() },
        }
    }

    fn cache(&self) -> Option<NonNull<Cache>> {
        if let Keeps::Own(cache) = self.keeps { Some(cache) } else { None }
    }

    fn fast(&self) -> NonNull<Cache> {
        self.cache().unwrap_or(NonNull::from(&ABSENT))
    }

    /// The heap, and the seat for a slow path.
    fn slow(&mut self) -> (&'a Heap<S>, Seat<'_>) {
        if let Keeps::Nothing = self.keeps {
            self.keeps = self.heap.new_cache().map_or(Keeps::Nothing, Keeps::Own);
        }
        (self.heap, self.seat())
    }

    /// The bytes of the runs that its cache holds.
    pub fn cached_run_bytes(&self) -> usize {
        // SAFETY: this front's own cache.
        self.cache().map_or(0, |cache| unsafe { cache.as_ref() }.run_bytes())
    }

    /// How many objects of `class` its cache holds.
    pub fn cached_objects(&self, class: ClassId) -> usize {
        // SAFETY: this front's own cache.
        self.cache().map_or(0, |cache| unsafe { cache.as_ref() }.objects(class))
    }
}

impl<S: System> Subject for Front<'_, S> {
    fn malloc(&mut self, bytes: usize) -> *mut u8 {
        // SAFETY: this front's cache, or the absent one.
        if let Some(object) = unsafe { self.heap.malloc_fast(self.fast(), bytes) } {
            return object.as_ptr();
        }
        let (heap, seat) = self.slow();
        heap.malloc_slow(seat, bytes)
    }

    fn calloc(&mut self, bytes: usize) -> *mut u8 {
        let (heap, seat) = self.slow();
        heap.malloc_zeroed(seat, bytes, MIN_ALIGN)
    }

    fn aligned(&mut self, bytes: usize, align: usize) -> *mut u8 {
        let (heap, seat) = self.slow();
        heap.malloc_aligned(seat, bytes, align.max(MIN_ALIGN))
    }

    unsafe fn realloc(&mut self, object: NonNull<u8>, bytes: usize) -> *mut u8 {
        let (heap, seat) = self.slow();
        // SAFETY: the caller's promise, passed on.
        unsafe { heap.realloc(seat, object, bytes) }
    }

    unsafe fn free(&mut self, object: NonNull<u8>) {
        // SAFETY: this front's cache, or the absent one; the caller's promise.
        if unsafe { self.heap.free_fast(self.fast(), object.as_ptr()) } {
            return;
        }
        let (heap, seat) = self.slow();
        // SAFETY: the caller's promise, passed on.
        unsafe { heap.free_slow(seat, object.as_ptr()) };
    }

    fn usable_bytes(&self, object: NonNull<u8>) -> usize {
        self.heap.usable_bytes(object).unwrap_or_else(|cause| panic!("{object:p}: {cause}"))
    }

    fn trim(&mut self) {
        self.heap.trim(0);
    }

    fn min_align(&self) -> usize {
        MIN_ALIGN
    }
}

impl<S: System> Drop for Front<'_, S> {
    fn drop(&mut self) {
        if let Some(cache) = self.cache() {
            // SAFETY: this front's own cache, which nobody uses from here on.
            unsafe { self.heap.drop_cache(cache) };
        }
    }
}

/// Panics unless the heap's own invariants hold, and it counts as used exactly what `objects` and
/// the caches of `fronts` have, class by class. Nobody else may use the heap meanwhile.
pub fn check_heap<'a, 'h: 'a, S: System + 'h>(
    heap: &'h Heap<S>,
    objects: impl IntoIterator<Item = &'a Object>,
    fronts: &[&Front<'h, S>],
) -> Stats {
    heap.validate();
    let stats = heap.stats();
    let mut used_objects = [0; hectare::STATES];
    let mut large_bytes = 0;
    for object in objects {
        let usable_bytes = heap.usable_bytes(object.start).expect("a live object");
        assert_eq!(usable_bytes, object.usable_bytes, "{:p}", object.start);
        // No size class has a greater alignment: such objects get whole pages, however small they
        // are.
        if usable_bytes > hectare::MAX_SMALL_BYTES || object.align > hectare::MAX_SMALL_BYTES {
            large_bytes += usable_bytes;
        } else {
            used_objects[ClassId::for_bytes(usable_bytes).index()] += 1;
        }
    }
    for class in ClassId::all() {
        let cached: usize = fronts.iter().map(|front| front.cached_objects(class)).sum();
        let entry = stats.classes[class.index()];
        assert_eq!(entry.object_bytes, class.object_bytes());
        assert_eq!(
            entry.used_objects,
            used_objects[class.index()] + cached,
            "used objects of {} bytes; {cached} of them in caches",
            entry.object_bytes
        );
    }
    let cached: usize = fronts.iter().map(|front| front.cached_run_bytes()).sum();
    assert_eq!(stats.run_bytes + stats.huge_bytes, large_bytes + cached, "large objects");
    stats
}

/// Panics unless a heap without live objects and without caches gives everything back.
pub fn check_released<S: System>(heap: &Heap<S>) {
    heap.release_pools();
    heap.validate();
    let stats = heap.stats();
    assert_eq!(stats.used_bytes(), 0, "used after everything was freed");
    assert_eq!(stats.slab_bytes, 0, "slabs after everything was freed");
    assert_eq!(stats.pooled_bytes, 0, "pooled after everything was released");
    let dirty_bytes = stats.dirty_bytes;
    assert_eq!(heap.trim(0), dirty_bytes, "trim gave back something else than what was dirty");
    assert_eq!(heap.stats().dirty_bytes, 0, "dirty after a trim");
    heap.validate();
}
