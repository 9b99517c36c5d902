//! The fronts that see every call, and what signal handlers need of the heap.
//!
//! ```text
//!   fast path says no ─▶ slow path ─┬─ plain: the heap
//!                                   └─ special ─┬─ hardened ─▶ `hardened.rs`
//!                                               └─ watched ──▶ countdown ─┬─ nothing due ─▶ the heap
//!                                                                         ├─ guarded object
//!                                                                         └─ sampled object
//! ```
//! A program that asks for none of this pays nothing for it on the hit paths: they are made to
//! say no by what they test anyway. For a watched front the heap shows `malloc` a key that fits no
//! object ([`Heap::divert_malloc`](crate::Heap::divert_malloc)), and `free` goes its usual way: a
//! sampled object lies on pages of its own, where the fast path of `free` leaves it alone. For the
//! hardened front no thread has a cache.
//!
//! Invariants
//! 1. A sampled object is recorded before its caller has it, and forgotten before the heap takes
//!    it back: so two threads never mean different objects by one address.
//! 2. Where a special front is on, a thread in a slow path is *inside*, and its word says so; it
//!    takes locks of the heap nowhere else. A handler that interrupts it there would wait for ever
//!    for a lock of its own thread, so it leaves a note. What the thread allocates while it is
//!    inside (the C library, the unwinder) is served without its cache, and not sampled.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use hectare_pages::{Os, PageSource};

use crate::cache::Cache;
use crate::class::{MAX_SMALL_BYTES, MIN_ALIGN};
use crate::guard::Finding;
use crate::object::move_to;
use crate::process::{
    Process, ProcessProfile, cache_word, inside_word, named_cache, set_cache_word,
};
use crate::profile::MAX_FRAMES;
use crate::sample::{Due, Rates, counted};
use crate::seat::Seat;

/// What a process asks for beyond the plain front.
#[derive(Debug)]
pub struct Special {
    /// One allocated byte in so many is a sampling point of the heap profile, at most
    /// [`MAX_SAMPLE_MEAN`](crate::MAX_SAMPLE_MEAN); 0: no profile.
    pub profile_mean_bytes: usize,
    /// One allocation in so many is a guarded object, as many at most; 0: none.
    pub guard_one_in: usize,
    /// Whether the front is the hardened one; the profile and guarded objects are then not to be
    /// had.
    pub hardened: bool,
    /// Writes the return addresses of the calls that led here, from outside the allocator, the
    /// innermost first, and returns how many. It may allocate, but not for ever.
    pub capture: fn(&mut [usize; MAX_FRAMES]) -> usize,
    /// Tells of a misuse of a guarded object, and ends the process.
    pub report: fn(&Finding) -> !,
    /// Acts on what [`Process::interrupted`] noted, when the thread is outside again.
    pub act: fn(u32),
}

/// What a request asks for besides its size.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Plain,
    Zeroed,
    Aligned(usize),
}

/// Keeps the thread inside while it lives.
struct Inside {
    process: &'static Process,
    /// What the thread's word said before, and will say again.
    word: NonNull<Cache>,
}

impl Inside {
    /// The thread's cache; `None` for one that has none, or is inside already.
    #[inline(always)]
    fn cache(&mut self) -> Option<NonNull<Cache>> {
        named_cache(self.word).or_else(|| {
            let cache = self.process.cache_inside(self.word)?;
            self.word = cache;
            Some(cache)
        })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.process.leave(self.word);
    }
}

impl Process {
    /// Turns a special front on, for good. To be called once, while the process has one thread;
    /// what was allocated before stays as it is. `false` when there was no memory for guarded
    /// objects, which then do without.
    #[must_use]
    pub fn specialise(&'static self, special: &'static Special) -> bool {
        if special.hardened {
            self.forsake_cache();
            self.hardened.begin(&self.heap);
            self.special.store((&raw const *special).cast_mut(), Release);
            return true;
        }
        let opened = special.guard_one_in == 0 || self.guard.open(&Os).is_some();
        self.profile.begin(special.profile_mean_bytes);
        if special.profile_mean_bytes > 0 || special.guard_one_in > 0 {
            self.heap.count_malloc();
        }
        self.special.store((&raw const *special).cast_mut(), Release);
        opened
    }

    /// The special front, if one is on.
    #[inline(always)]
    pub(crate) fn special(&self) -> Option<&'static Special> {
        // SAFETY: null, or what `specialise` was given, which lives as long as the process.
        unsafe { self.special.load(Acquire).as_ref() }
    }

    /// For a signal handler, once a special front is on: whether it may use the heap's [`stats`](Self::stats) and
    /// [`profile`](Self::profile) now. If not, `note` is kept, and `act` gets it as soon as the
    /// thread is outside of the heap.
    pub fn interrupted(&self, note: u32) -> bool {
        if cache_word() != inside_word() {
            return true;
        }
        self.notes.fetch_or(note, Relaxed);
        false
    }

    /// Lets the thread's word say `word` again, and acts on notes if that is outside.
    pub(crate) fn leave(&self, word: NonNull<Cache>) {
        set_cache_word(word);
        if word != inside_word() && self.notes.load(Relaxed) != 0 {
            let notes = self.notes.swap(0, Relaxed);
            if let Some(special) = self.special() {
                (special.act)(notes);
            }
        }
    }

    fn enter(&'static self) -> Inside {
        let word = cache_word();
        set_cache_word(inside_word());
        Inside { process: self, word }
    }

    /// Runs `action`, which takes locks of the heap, inside: if it matters here. Part of its callers, since
    /// they are called in plain programs, too, and this module's own functions are not.
    #[inline(always)]
    pub(crate) fn inside<R>(&'static self, action: impl FnOnce() -> R) -> R {
        let _inside = self.special().map(|_| self.enter());
        action()
    }

    /// The heap profile now; `None` when there is none, or memory for its copy is out.
    pub fn profile(&'static self) -> Option<ProcessProfile> {
        self.special().filter(|special| special.profile_mean_bytes > 0)?;
        let _inside = self.enter();
        self.profile.snapshot(&Os)
    }

    /// What an access that faulted at `address` did wrong to a guarded object, if to any.
    pub fn explain_fault(&'static self, address: usize) -> Option<Finding> {
        self.special()?;
        let _inside = self.enter();
        self.guard.explain(address)
    }

    /// An object for `bytes` from the list of this CPU, where the thread shares that, or a run that
    /// the thread keeps; null when [`malloc_slow`](Self::malloc_slow) must be asked. For the front of
    /// a slow path.
    #[inline(always)]
    pub fn malloc_middle(&'static self, bytes: usize) -> *mut u8 {
        if bytes <= MAX_SMALL_BYTES {
            return self.malloc_by_cpu(bytes);
        }
        if !self.special.load(Relaxed).is_null() {
            return core::ptr::null_mut();
        }
        // SAFETY: the word names this thread's cache, or a static that has no runs.
        unsafe { self.heap.take_own_run(cache_word(), bytes) }
    }

    /// Frees an object into the list of this CPU, where the thread shares that, or keeps a run for
    /// the thread; `false`, and nothing has changed, when [`free_slow`](Self::free_slow) must be
    /// asked. For the front of a slow path.
    ///
    /// # Safety
    /// As [`free`](Self::free).
    #[inline(always)]
    pub unsafe fn free_middle(&'static self, object: *mut u8) -> bool {
        // SAFETY: the caller's promise, passed on.
        if unsafe { self.free_by_cpu(object) } {
            return true;
        }
        // SAFETY: the word names this thread's cache, or a static that has no runs; the caller's
        // promise.
        self.special.load(Relaxed).is_null()
            && unsafe { self.heap.keep_own_run(cache_word(), object) }
    }

    /// An object for `bytes`; null when memory is out.
    #[cold]
    pub(crate) fn special_malloc(
        &'static self,
        special: &'static Special,
        bytes: usize,
        kind: Kind,
    ) -> *mut u8 {
        if special.hardened {
            return self.hardened_malloc(bytes, kind);
        }
        let mut inside = self.enter();
        let cache = inside.cache();
        let due = due(special, cache, bytes);
        if due != Due::NOTHING
            && let Some(object) = self.sampled(special, due, bytes, kind)
        {
            return object.as_ptr();
        }
        self.plain_malloc(cache, bytes, kind)
    }

    fn plain_malloc(&self, cache: Option<NonNull<Cache>>, bytes: usize, kind: Kind) -> *mut u8 {
        let seat = Seat::from(cache);
        match kind {
            // SAFETY: `cache` gives this thread's cache or none.
            Kind::Plain => unsafe { self.heap.malloc_uncounted(seat, bytes) },
            // SAFETY: as above.
            Kind::Zeroed => unsafe { self.heap.malloc_zeroed(seat, bytes) },
            // SAFETY: as above.
            Kind::Aligned(align) => unsafe { self.heap.malloc_aligned(seat, bytes, align) },
        }
    }

    /// A guarded object or one that the profile knows, as is due; `None` when there is no memory
    /// for such a one.
    #[cold]
    fn sampled(
        &'static self,
        special: &'static Special,
        due: Due,
        bytes: usize,
        kind: Kind,
    ) -> Option<NonNull<u8>> {
        let mut frames = [0; MAX_FRAMES];
        let frames = captured(special, &mut frames);
        let align = if let Kind::Aligned(align) = kind { align } else { MIN_ALIGN };
        let guarded = if due.guard { self.guard.get(bytes, align, frames, &Os) } else { None };
        if guarded.is_none() && !due.profile {
            return None;
        }
        let object = guarded.or_else(|| {
            let zeroed = matches!(kind, Kind::Zeroed);
            // As long as its like that nobody draws: so both stay in place by the same reallocs.
            let bytes = match counted(bytes) {
                (class, _) if class.is_small() => class.object_bytes(),
                _ => bytes,
            };
            // SAFETY: no seat is anybody's.
            let (object, is_zero) =
                unsafe { self.heap.get_large(Seat::None, bytes, align, zeroed) };
            let object = NonNull::new(object)?;
            if zeroed && !is_zero {
                // SAFETY: an object just taken, of at least `bytes`.
                unsafe { object.write_bytes(0, bytes) };
            }
            Some(object)
        })?;
        if due.profile {
            self.profile.record(object.addr().get(), bytes, frames, &Os);
        }
        Some(object)
    }

    /// Frees an object that the fast path has left alone.
    ///
    /// # Safety
    /// As [`free`](Process::free).
    #[cold]
    pub(crate) unsafe fn special_free(&'static self, special: &'static Special, object: *mut u8) {
        if object.is_null() {
            return;
        }
        if special.hardened {
            return self.hardened_free(object, None);
        }
        let mut inside = self.enter();
        let cache = inside.cache();
        // SAFETY: the caller's promise, passed on.
        unsafe { self.free_inside(special, cache, object) };
    }

    unsafe fn free_inside(
        &'static self,
        special: &'static Special,
        cache: Option<NonNull<Cache>>,
        object: *mut u8,
    ) {
        let address = object.addr();
        let guarded = self.guard.contains(address);
        if guarded || may_be_sampled(special, address) {
            self.profile.forget(address);
        }
        if !guarded {
            // SAFETY: the caller's promise, passed on.
            return unsafe { self.heap.free_slow(cache.into(), object) };
        }
        let mut frames = [0; MAX_FRAMES];
        let frames = captured(special, &mut frames);
        if let Some(finding) = self.guard.put(address, frames, &Os) {
            (special.report)(&finding);
        }
    }

    /// Makes an object hold `bytes`. To the profile the object is a new one of its new size,
    /// allocated by this call, unless it is a small one that stays where it is.
    ///
    /// # Safety
    /// As [`realloc`](Process::realloc).
    #[cold]
    pub(crate) unsafe fn special_realloc(
        &'static self,
        special: &'static Special,
        object: NonNull<u8>,
        bytes: usize,
    ) -> *mut u8 {
        if special.hardened {
            // SAFETY: the caller's promise, passed on.
            return unsafe { self.hardened_realloc(object, bytes) };
        }
        let address = object.addr().get();
        let mut inside = self.enter();
        let cache = inside.cache();
        if may_be_sampled(special, address) && self.profile.keeps(address, bytes) {
            return object.as_ptr();
        }
        let due = due(special, cache, bytes);
        if self.guard.contains(address) || due.guard || due.profile && bytes <= MAX_SMALL_BYTES {
            let old_bytes = self.special_usable_bytes(special, object, "realloc");
            let moved = if due == Due::NOTHING {
                None
            } else {
                self.sampled(special, due, bytes, Kind::Plain)
            };
            let moved =
                moved.map_or_else(|| self.plain_malloc(cache, bytes, Kind::Plain), NonNull::as_ptr);
            // SAFETY: the caller's promise, passed on.
            let free = |object| unsafe { self.free_inside(special, cache, object) };
            // SAFETY: both have as many bytes; one was just taken.
            return unsafe { move_to(moved, object, old_bytes.min(bytes), free) };
        }
        if may_be_sampled(special, address) {
            self.profile.forget(address);
        }
        // SAFETY: `cache` gives this thread's cache or none; the caller's promise.
        let resized = unsafe { self.heap.realloc(cache.into(), object, bytes) };
        if due.profile && !resized.is_null() {
            let mut frames = [0; MAX_FRAMES];
            let frames = captured(special, &mut frames);
            self.profile.record(resized.addr(), bytes, frames, &Os);
        }
        resized
    }

    fn hardened_malloc(&'static self, bytes: usize, kind: Kind) -> *mut u8 {
        let _inside = self.enter();
        let align = if let Kind::Aligned(align) = kind { align } else { MIN_ALIGN };
        let object = self.hardened.malloc(&self.heap, bytes, align);
        if matches!(kind, Kind::Zeroed) && !object.is_null() {
            // SAFETY: an object just taken, of at least `bytes`.
            unsafe { object.write_bytes(0, bytes) };
        }
        object
    }

    pub(crate) fn hardened_free(&'static self, object: *mut u8, claim: Option<(usize, usize)>) {
        let _inside = self.enter();
        self.hardened.free(&self.heap, object, claim);
    }

    /// A new object, always: what the old one held is gone with it.
    unsafe fn hardened_realloc(&'static self, object: NonNull<u8>, bytes: usize) -> *mut u8 {
        let _inside = self.enter();
        let old_bytes = match self.hardened.usable_bytes(&self.heap, object) {
            Ok(bytes) => bytes,
            Err(cause) => cause.abort(&Os, "realloc", object.as_ptr()),
        };
        let moved = self.hardened.malloc(&self.heap, bytes, MIN_ALIGN);
        let free = |object| self.hardened.free(&self.heap, object, None);
        // SAFETY: both have as many bytes; one was just taken.
        unsafe { move_to(moved, object, old_bytes.min(bytes), free) }
    }

    /// How many bytes an object has; a pointer that is none ends the process.
    pub(crate) fn special_usable_bytes(
        &'static self,
        special: &'static Special,
        object: NonNull<u8>,
        call: &str,
    ) -> usize {
        let _inside = self.enter();
        if self.guard.contains(object.addr().get()) {
            let (bytes, wrong) = self.guard.bytes_of(object.addr().get());
            if let Some(finding) = wrong {
                (special.report)(&finding);
            }
            return bytes;
        }
        let bytes = if special.hardened {
            self.hardened.usable_bytes(&self.heap, object)
        } else {
            self.heap.usable_bytes(object)
        };
        match bytes {
            Ok(bytes) => bytes,
            Err(cause) => cause.abort(&Os, call, object.as_ptr()),
        }
    }
}

/// What is due at an allocation of `bytes`. A thread that has no cache takes no samples.
#[inline(always)]
fn due(special: &Special, cache: Option<NonNull<Cache>>, bytes: usize) -> Due {
    let Some(mut cache) = cache else { return Due::NOTHING };
    let seed = cache.addr().get() as u64;
    // SAFETY: this thread's own cache, of which nothing else is borrowed.
    unsafe { cache.as_mut() }.due(bytes, || {
        let Special { profile_mean_bytes: mean_bytes, guard_one_in, .. } = *special;
        let seed = seed ^ hectare_pages::System::secret(&Os) as u64;
        (Rates { mean_bytes, guard_one_in }, seed)
    })
}

/// The callers of this allocation.
fn captured<'a>(special: &Special, frames: &'a mut [usize; MAX_FRAMES]) -> &'a [usize] {
    let count = (special.capture)(frames);
    &frames[..count.min(MAX_FRAMES)]
}

/// Sampled objects, the small ones too, begin where a page does.
fn may_be_sampled(special: &Special, address: usize) -> bool {
    special.profile_mean_bytes > 0 && address.is_multiple_of(Os.page_bytes())
}
