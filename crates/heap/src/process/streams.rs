//! The C library's list of streams, held across a fork as the heap's own locks are, and before them.
//!
//! `fflush(NULL)` and `exit` hold the list while they write streams out, which may allocate (`open_memstream`, `fopencookie`).
//! glibc's own `fork` takes the list first and its own allocator's locks afterwards. Our handlers run before either: so a
//! thread that forks would wait for the list with the heap's locks held, and one that flushes for the heap with the list
//! held. The list's lock counts how often its owner has taken it, so `fork` can take it once more.

use core::ffi::{CStr, c_void};
use core::mem::transmute;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use super::fork::symbol;

/// glibc's calls by their names; null where there are none.
static LOCK: Call = Call::named(c"_IO_list_lock");
static UNLOCK: Call = Call::named(c"_IO_list_unlock");
static RESET: Call = Call::named(c"_IO_list_resetlock");

struct Call {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Call {
    const fn named(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(core::ptr::null_mut()) }
    }

    fn make(&self) {
        let found = self.found.load(Relaxed);
        if !found.is_null() {
            // SAFETY: the C library's function of that name, which takes and returns nothing.
            let call = unsafe { transmute::<*mut c_void, unsafe extern "C" fn()>(found) };
            // SAFETY: locks, unlocks or resets a lock, in the order that the callers of this file keep.
            unsafe { call() };
        }
    }
}

/// Looks the calls up: before any fork, since another thread may hold the linker's lock then.
pub(super) fn look_up() {
    let calls = [&LOCK, &UNLOCK, &RESET];
    let found = calls.map(|call| symbol(call.name));
    // One without the others would be of no use.
    if found.iter().all(|found| !found.is_null()) {
        for (call, found) in calls.into_iter().zip(found) {
            call.found.store(found, Relaxed);
        }
    }
}

/// Waits for whoever holds the list.
pub(super) fn lock() {
    LOCK.make();
}

/// In the process that has forked.
pub(super) fn unlock() {
    UNLOCK.make();
}

/// In the copy, where glibc may have made the lock anew already.
pub(super) fn reset() {
    RESET.make();
}
