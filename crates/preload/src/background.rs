//! The background thread (`background:true`): gives back what a program that has fallen idle holds.
//!
//! The heap gives memory back in the calls that free it, so a program that frees much and then
//! sleeps keeps what was left in the end. This thread looks after that. It is never there unless
//! it was asked for: a process with one thread may do what one with two may not (`unshare`).

use core::ffi::c_void;
use core::ptr;

use crate::HEAP;
use crate::line::Line;

/// How long it sleeps.
const PERIOD_NS: i64 = 100_000_000;

/// All that it calls is shallow.
const STACK_BYTES: usize = 128 << 10;

/// Starts it; in a forked child, which has no thread but its own, once more. A refusal is told in
/// one line, and the program runs without.
pub(crate) fn start() {
    // SAFETY: zeroed, all three are values of their types, to be filled below.
    let (mut attributes, mut all, mut before) =
        unsafe { core::mem::zeroed::<(libc::pthread_attr_t, libc::sigset_t, libc::sigset_t)>() };
    let mut thread = 0;
    // SAFETY: a valid place.
    unsafe { libc::pthread_attr_init(&raw mut attributes) };
    // SAFETY: attributes just initialised. If it is refused, the usual stack will do.
    unsafe { libc::pthread_attr_setstacksize(&raw mut attributes, STACK_BYTES) };
    let detached = libc::PTHREAD_CREATE_DETACHED;
    // SAFETY: as above; nobody joins the thread.
    unsafe { libc::pthread_attr_setdetachstate(&raw mut attributes, detached) };
    // A signal is the program's: the thread begins with all of them blocked.
    // SAFETY: a valid place.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: two valid sets.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    // SAFETY: valid places; `look_after` needs no argument and may run at any time.
    let status = unsafe {
        libc::pthread_create(&raw mut thread, &raw const attributes, look_after, ptr::null_mut())
    };
    // SAFETY: the set that was there before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    // SAFETY: attributes initialised above.
    unsafe { libc::pthread_attr_destroy(&raw mut attributes) };
    if status != 0 {
        let mut line = Line::new();
        line.push(b"hectare: no background thread: the system refused it");
        line.write_to_standard_error();
    }
}

extern "C" fn look_after(_: *mut c_void) -> *mut c_void {
    // SAFETY: names this thread, by a text that ends in 0.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"hectare".as_ptr()) };
    let period = libc::timespec { tv_sec: 0, tv_nsec: PERIOD_NS };
    loop {
        // SAFETY: a valid period; what is left of it is not asked for.
        unsafe { libc::nanosleep(&raw const period, ptr::null_mut()) };
        HEAP.tend();
    }
}
