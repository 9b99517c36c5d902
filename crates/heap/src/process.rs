//! The heap of a process.
//!
//! There is one [`Process`] in a program, in a static of the crate that gives it its names. So the
//! fast paths are inlined there, and reach its fields without a detour through the global offset
//! table.

mod calls;
mod fork;
mod global;
mod loaded;
mod streams;
mod threads;

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32};

use hectare_base::sync::Lock;
use hectare_pages::{FutexPark, Os, PageSource};

use crate::guard::Guard;
use crate::hardened::Hardened;
use crate::heap::Heap;
use crate::profile::{Profile, Snapshot};
use crate::seat::{Front, Seat, Seats};
use crate::special::Special;
use crate::stats::Stats;

pub use fork::HeldForks;
pub use global::Malloc;
pub(crate) use threads::{cache_word, inside_word, named_cache, set_cache_word};

/// The heap of a process. Only one may be used in a program, since each thread has one word.
///
/// What every process uses lies together, on few pages. This dictates the order of the fields.
#[derive(Debug)]
#[repr(C)]
pub struct Process {
    pub(crate) heap: Heap<Os>,
    /// The thread key whose destructor takes a dying thread's cache back, plus one. 0 before it is
    /// made.
    exit_key: AtomicU32,
    exit_key_lock: Lock<(), FutexPark>,
    pub(crate) seats: Seats,
    /// The special front (`special.rs`). Null in a plain process.
    pub(crate) special: AtomicPtr<Special>,
    pub(crate) notes: AtomicU32,
    pub(crate) profile: Profile<Os>,
    pub(crate) guard: Guard<Os>,
    pub(crate) hardened: Hardened<Os>,
}

/// A copy of a process's heap profile.
pub type ProcessProfile = Snapshot<'static, Os>;

impl Process {
    /// A heap that has nothing yet. All zeros, so a static heap lies in pages that become resident
    /// only when they are written.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            heap: Heap::new(Os, 0),
            exit_key: AtomicU32::new(0),
            exit_key_lock: Lock::new(()),
            seats: Seats::new(),
            special: AtomicPtr::new(core::ptr::null_mut()),
            notes: AtomicU32::new(0),
            profile: Profile::new(),
            guard: Guard::new(),
            hardened: Hardened::new(),
        }
    }

    /// From now on the heap makes only system calls that every sandbox of a program that allocates
    /// must allow: see [`Os::keep_to_plain_calls`]. Threads that come later have caches of their
    /// own, unless some threads share the lists of CPUs already: from now on only those threads can
    /// take anything from these lists.
    pub fn keep_to_plain_calls(&'static self) {
        // While the calls for that may be made: afterwards no call tells what was committed from
        // what is reserved.
        self.inside(|| self.heap.backend.dump_reserved());
        Os.keep_to_plain_calls();
        if !self.heap.cpus.has_begun() {
            self.seats.choose(Front::Thread);
        }
    }

    /// From now on the heap asks for no transparent huge pages: see [`Os::forgo_huge_pages`].
    pub fn forgo_huge_pages(&self) {
        Os.forgo_huge_pages();
    }

    /// Whether the heap was told to [keep to plain calls](Self::keep_to_plain_calls).
    #[must_use]
    pub fn keeps_to_plain_calls(&'static self) -> bool {
        Os.keeps_to_plain_calls()
    }

    /// Gives up address space that the heap has reserved and not used, until half as much as it
    /// keeps is left for others. To be called when the program may have less than before
    /// (`RLIMIT_AS`). Objects stay where they are.
    pub fn leave_room(&'static self) {
        self.inside(|| self.heap.backend.leave_room());
    }

    /// Has the heap reserve `bytes` of address space at a time, not four times the memory that
    /// there is. This is for a program that locks all that is mapped (`mlockall`), where what is
    /// merely reserved counts, too. `bytes` should be more than the program will use: objects in
    /// the second reservation and later ones cost more to free.
    pub fn reserve_at_most(&'static self, bytes: usize) {
        self.inside(|| self.heap.backend.reserve_at_most(bytes));
    }

    /// Has the system populate the whole pages of memory that is about to be read and written: for
    /// tables of functions that the heap [calls](Special). Advice only.
    ///
    /// # Safety
    /// The memory can be written.
    pub unsafe fn bring_pages(&'static self, start: NonNull<u8>, bytes: usize) {
        if (start.addr().get() | bytes).is_multiple_of(Os.page_bytes()) {
            // SAFETY: the caller's promise.
            unsafe { Os.populate(start, bytes) };
        }
    }

    /// The size of a page of the system, in bytes.
    #[must_use]
    pub fn page_bytes(&'static self) -> usize {
        Os.page_bytes()
    }

    /// Gives what is not needed back to the system, except for `keep_bytes`. Returns how many bytes
    /// went.
    pub fn trim(&'static self, keep_bytes: usize) -> usize {
        let cache = named_cache(cache_word());
        self.inside(|| {
            // SAFETY: the thread's own cache, which it does not use meanwhile.
            self.heap.release_seat(unsafe { Seat::of(cache) });
            // What has gone makes room to open shut frames, if room is limited.
            let kept_bytes = self.heap.release_kept();
            self.heap.backend.reopen();
            kept_bytes + self.heap.trim(keep_bytes)
        })
    }

    /// Has the next `bytes`, whole huge pages, come from those that the machine has set aside.
    /// Returns whether there are that many. If not, ordinary pages serve.
    ///
    /// # Safety
    /// The process has one thread.
    pub unsafe fn set_aside(&'static self, bytes: usize) -> bool {
        // SAFETY: the caller's promise, passed on.
        self.inside(|| unsafe { self.heap.backend.set_aside(bytes) })
    }

    /// Gives back what lies idle, little by little. Returns how many bytes went. A thread calls
    /// this some times a second, so that a program that has fallen idle holds little.
    pub fn tend(&'static self) -> usize {
        self.inside(|| self.heap.tend())
    }

    /// Whether [`stats`](Self::stats) and [`profile`](Self::profile) can be called. To be asked
    /// first if a signal's handler may have interrupted this thread in the midst of a call, as a
    /// handler that calls `exit` has. Waits for other threads' calls, as those two do, but no more
    /// than a second for each lock.
    #[cold]
    pub fn can_be_asked(&'static self) -> bool {
        self.inside(|| {
            self.heap.can_be_asked()
                && self.profile.can_be_asked(&Os)
                && self.guard.can_be_asked(&Os)
        })
    }

    /// What the heap holds. What this thread's cache holds counts as pooled. What other threads'
    /// caches hold, into which only they may look, counts as in use.
    pub fn stats(&'static self) -> Stats {
        let cache = named_cache(cache_word());
        let mut stats = self.inside(|| {
            let guarded_bytes = self.guard.live_bytes();
            Stats { guarded_bytes, ..self.heap.stats() }
        });
        stats.caches = self.seats.taken();
        if let Some(cache) = cache {
            // SAFETY: this thread's own cache, which nothing changes meanwhile.
            stats.count_as_pooled(unsafe { cache.as_ref() });
        }
        stats
    }
}

impl Default for Process {
    fn default() -> Self {
        Self::new()
    }
}
