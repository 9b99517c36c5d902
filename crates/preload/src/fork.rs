//! What happens before `main` and around `fork`.
//!
//! The heap's locks are held while the process is copied, so that the child gets a heap at rest.
//! The handlers are entered in the library's constructor: ahead of the program's own, so that
//! `prepare` runs after all others, which may still allocate.

use crate::HEAP;

extern "C" fn prepare() {
    HEAP.before_fork();
}

extern "C" fn release() {
    // SAFETY: the C library calls this after `prepare`, on the same thread or on its copy.
    unsafe { HEAP.after_fork() };
}

extern "C" fn at_load() {
    // SAFETY: three functions that stay as long as this library, which is never unloaded: a heap
    // whose objects are in use cannot be.
    unsafe { libc::pthread_atfork(Some(prepare), Some(release), Some(release)) };
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;
