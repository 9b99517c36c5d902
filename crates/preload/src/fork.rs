//! A forked child gets a heap at rest.
//!
//! `prepare` runs after all other handlers, which may still allocate. From then on this thread holds
//! the heap's locks while the process is copied, so that no lock of the copy has an owner who is
//! not there.
//!
//! A process of one thread holds nothing: nobody else can have a lock. The locks of all bins and
//! pools lie on some twenty-five pages, which would be written to in both processes after the copy:
//! most of what a shell's fork faults (docs/malloc-trials.md).
//!
//! What `prepare` found, the handlers behind the copy go by, whatever has changed since.

use core::ffi::CStr;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering::Relaxed};

use crate::life::config;
use crate::{HEAP, background};

/// Whether the thread that forks holds the heap's locks. Written by the only thread, or by one that
/// holds them, and read behind the copy by the same thread or its own copy: so it is never shared.
static IS_HELD: AtomicBool = AtomicBool::new(false);

/// glibc's word that says whether there is one thread; null before glibc 2.32, which has none.
static SINGLE_THREADED: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

const SINGLE_THREADED_NAME: &CStr = c"__libc_single_threaded";

/// To be called while the library is loaded, ahead of what others enter.
pub(crate) fn enter_handlers() {
    // Looked up by name: a reference of the linker's would keep the library from being loaded where
    // there is none. And looked up now, since the linker's lock may be held by another at a fork.
    // SAFETY: a name that ends in 0.
    let word = unsafe { libc::dlsym(libc::RTLD_DEFAULT, SINGLE_THREADED_NAME.as_ptr()) };
    SINGLE_THREADED.store(word.cast(), Relaxed);
    // SAFETY: three functions that stay as long as this library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(release), Some(release_in_child)) };
}

/// Whether this thread is the only one. Threads that the C library did not begin do not count: its
/// own allocator takes no locks either where this says so.
fn is_alone() -> bool {
    let word = SINGLE_THREADED.load(Relaxed);
    // SAFETY: the C library's byte, which only this thread writes while there is no other.
    !word.is_null() && unsafe { AtomicU8::from_ptr(word) }.load(Relaxed) != 0
}

extern "C" fn prepare() {
    if is_alone() {
        return;
    }
    HEAP.before_fork();
    IS_HELD.store(true, Relaxed);
}

extern "C" fn release() {
    if IS_HELD.load(Relaxed) {
        IS_HELD.store(false, Relaxed);
        // SAFETY: this thread holds the locks since `prepare`.
        unsafe { HEAP.after_fork() };
    }
}

extern "C" fn release_in_child() {
    if IS_HELD.load(Relaxed) {
        IS_HELD.store(false, Relaxed);
        // SAFETY: the thread that this one is the copy of holds the locks since `prepare`.
        unsafe { HEAP.after_fork_in_child() };
    }
    if config().background {
        background::start();
    }
}
