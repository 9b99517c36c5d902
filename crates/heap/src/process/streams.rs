//! The C library's list of streams. It is held across a fork as the heap's own locks are, and taken
//! before them.
//!
//! `fflush(NULL)` and `exit` hold the list while they write streams out, which may allocate
//! (`open_memstream`, `fopencookie`). glibc's own `fork` takes the list first and its own
//! allocator's locks afterwards. Our handlers run before either. So a thread that forks would wait
//! for the list with the heap's locks held, and a thread that flushes would wait for the heap with
//! the list held. The list's lock counts how often its owner has taken it, so `fork` can take it
//! once more.

use core::ffi::c_void;
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use super::fork::symbol;

/// glibc's calls. Null if there are none.
static LOCK: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static UNLOCK: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static RESET: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Looks these calls up, before any fork, since another thread may hold the linker's lock at a
/// fork.
pub(super) fn look_up() {
    let lock = symbol(c"_IO_list_lock");
    let unlock = symbol(c"_IO_list_unlock");
    let reset = symbol(c"_IO_list_resetlock");
    // One without the others would be of no use.
    if lock.is_null() || unlock.is_null() || reset.is_null() {
        return;
    }
    LOCK.store(lock, Relaxed);
    UNLOCK.store(unlock, Relaxed);
    RESET.store(reset, Relaxed);
}

#[inline(never)]
fn make(call: &AtomicPtr<c_void>) {
    let found = call.load(Relaxed);
    if !found.is_null() {
        // SAFETY: the C library's function, which takes and returns nothing.
        let call = unsafe { transmute::<*mut c_void, unsafe extern "C" fn()>(found) };
        // SAFETY: locks, unlocks or resets a lock, in the order that the callers of this file keep.
        unsafe { call() };
    }
}

/// Takes the list. Waits for whoever holds it.
pub(super) fn lock() {
    make(&LOCK);
}

/// Releases the list in the process that has forked.
pub(super) fn unlock() {
    make(&UNLOCK);
}

/// Releases the list in the copy, where glibc may have made the lock anew already.
pub(super) fn reset() {
    make(&RESET);
}
