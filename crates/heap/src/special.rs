//! The fronts that see every call, and what signal handlers need to know of the heap.
//!
//! ```text
//!   hit path: the last test fails ─┬─ the list is sound, nothing is due: counted, and the object
//!                                  └─ else, as where it finds nothing
//!   slow path ─┬─ plain: the heap
//!              └─ special ─┬─ hardened ─▶ `hardened.rs`
//!                          └─ watched ──▶ what is due? ─┬─ nothing ─▶ the heap
//!                                                       ├─ guarded object
//!                                                       └─ sampled object
//! ```
//! A program that asks for none of this pays nothing for it on the hit paths: a test that they make
//! anyway is made to fail. For a watched front the heap shows `malloc` a key that fits no object,
//! and behind that test it counts what it hands out
//! ([`Heap::count_malloc`](crate::Heap::count_malloc)). `free` goes its usual way: a small sampled
//! object lies where the page map says that no object begins, so the fast path of `free` leaves it
//! alone. For the hardened front no thread has a cache.
//!
//! Invariants
//! 1. A sampled object is recorded before its caller has it, and forgotten before the heap takes it
//!    back. So two threads never mean different objects by one address.
//! 2. If a special front is on, a thread in a slow path is *inside*, and its word says so
//!    (`special/inside.rs`). It takes locks of the heap nowhere else. What it allocates while it is
//!    inside (for the C library, or the unwinder) is served without its cache, and not sampled.

mod hardened;
mod inside;
mod watched;

use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Acquire, Release};

use hectare_pages::Os;

use crate::class::MIN_ALIGN;
use crate::guard::Finding;
use crate::misuse::Misuse;
use crate::process::{Process, ProcessProfile, cache_word, inside_word};
use crate::profile::{Known, MAX_FRAMES};
use watched::Watched;

/// What a process asks for beyond the plain front.
#[derive(Debug)]
pub struct Special {
    /// One allocated byte in this many is a sampling point of the heap profile, at most
    /// [`MAX_SAMPLE_MEAN`](crate::MAX_SAMPLE_MEAN). 0: no profile.
    pub profile_mean_bytes: usize,
    /// One allocation in this many is a guarded object, with the same bound. 0: none.
    pub guard_one_in: usize,
    /// Whether the front is the hardened one. The profile and guarded objects are then not
    /// available.
    pub hardened: bool,
    /// Writes the return addresses of the calls that led here, from outside the allocator, the
    /// innermost first, and returns how many there are. It may allocate, but not endlessly.
    pub capture: fn(&mut [usize; MAX_FRAMES]) -> usize,
    /// Reports a misuse of a guarded object, and ends the process.
    pub report: fn(&Finding) -> !,
    /// Acts on what [`Process::interrupted`] noted, once the thread is outside again.
    pub act: fn(u32),
}

/// What a request asks for besides its size.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Plain,
    Zeroed,
    Aligned(usize),
}

impl Kind {
    /// The alignment that the request asks for.
    fn align(self) -> usize {
        if let Self::Aligned(align) = self { align } else { MIN_ALIGN }
    }
}

impl Process {
    /// Turns a special front on, for good. Must be called once, while the process has only one
    /// thread. What was allocated before stays as it is. `false` if there was no memory for guarded
    /// objects: the front then does without.
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

    /// The heap profile now. `None` if there is none, or no memory for its copy.
    pub fn profile(&'static self) -> Option<ProcessProfile> {
        self.special().filter(|special| special.profile_mean_bytes > 0)?;
        let _inside = self.enter();
        self.profile.snapshot(&Os)
    }

    /// What an access that faulted at `address` did wrong to a guarded object. `None` if it was to
    /// none; or if it cannot be known, because a handler that has interrupted the thread in the
    /// midst of a call made the access, or the call itself did, on an object that the program has
    /// sealed.
    pub fn explain_fault(&'static self, address: usize) -> Option<Finding> {
        self.special()?;
        let may_hold = cache_word() == inside_word();
        let _inside = self.enter();
        self.guard.explain(address, may_hold)
    }

    /// Whether the profile may know of `object`: sampled objects lie where the page map says that
    /// no object begins.
    fn may_be_sampled(&self, special: &Special, object: NonNull<u8>) -> bool {
        special.profile_mean_bytes > 0 && self.heap.class_of_fast(object).is_none()
    }

    /// What the profile knows of `object`.
    fn known(&self, special: &Special, object: NonNull<u8>) -> Known {
        if self.may_be_sampled(special, object) {
            self.profile.know(object.addr().get())
        } else {
            Known::Nothing
        }
    }

    /// An object for `bytes`. Null when out of memory.
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
        Watched::begin(self, special).malloc(bytes, kind)
    }

    /// Must be called in a forked child, before anything is allocated there.
    #[cold]
    #[inline(never)]
    pub(crate) fn special_in_child(&'static self, special: &'static Special) {
        if special.hardened {
            self.hardened.draw_apart(&self.heap);
        }
    }

    /// Holds the locks of this front across a fork. Nobody ever takes those of the other fronts.
    #[cold]
    #[inline(never)]
    pub(crate) fn special_before_fork(&'static self, special: &'static Special) {
        if special.hardened {
            return self.hardened.before_fork();
        }
        self.profile.before_fork();
        self.guard.before_fork();
    }

    /// Releases these locks in the parent and in the child.
    ///
    /// # Safety
    /// This thread, or the one it is the copy of, called
    /// [`special_before_fork`](Self::special_before_fork) with the same front.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn special_after_fork(&'static self, special: &'static Special) {
        if special.hardened {
            // SAFETY: the caller's promise.
            return unsafe { self.hardened.after_fork() };
        }
        // SAFETY: the caller's promise.
        unsafe { self.guard.after_fork() };
        // SAFETY: the caller's promise.
        unsafe { self.profile.after_fork() };
    }

    /// Frees an object that the fast path has declined.
    ///
    /// # Safety
    /// As [`free`](Process::free).
    #[cold]
    pub(crate) unsafe fn special_free(&'static self, special: &'static Special, object: *mut u8) {
        let Some(start) = NonNull::new(object) else { return };
        if special.hardened {
            return self.hardened_free(object, None);
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { Watched::begin(self, special).free(start) };
    }

    /// Makes an object hold `bytes`. Returns null, with nothing changed, when out of memory.
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
        // SAFETY: the caller's promise, passed on.
        unsafe { Watched::begin(self, special).realloc(object, bytes) }
    }

    /// How many bytes an object has. A pointer to no object ends the process.
    pub(crate) fn special_usable_bytes(
        &'static self,
        special: &'static Special,
        object: NonNull<u8>,
        call: &str,
    ) -> usize {
        let _inside = self.enter();
        let bytes = if self.guard.contains(object.addr().get()) {
            match self.guard.bytes_of(object.addr().get()) {
                Ok(bytes) => Ok(bytes),
                Err(Some(finding)) => (special.report)(&finding),
                Err(None) => Err(Misuse::NotAllocated),
            }
        } else if special.hardened {
            self.hardened.usable_bytes(&self.heap, object)
        } else {
            match self.known(special, object) {
                Known::Packed(sample) => Ok(sample.class().object_bytes()),
                Known::Gone => Err(Misuse::NotAllocated),
                Known::Nothing | Known::Alone(_) => self.heap.usable_bytes(object),
            }
        };
        match bytes {
            Ok(bytes) => bytes,
            Err(cause) => cause.abort(&Os, call, object.as_ptr()),
        }
    }
}
