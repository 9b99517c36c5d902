//! The background thread (`background:true`): gives back what a program that has fallen idle holds.
//!
//! The heap gives memory back in the calls that free it, so a program that frees much and then
//! sleeps keeps what was left at the end. This thread gives that back. It exists only if asked for:
//! a process with one thread may do what a process with two may not (`unshare`).
//!
//! A process ends when its last thread does, and the C library counts this thread, too. So once a
//! second it checks whether it is alone. If so, it ends like any thread, and the C library then
//! calls `exit`. It can be alone only if the process's first thread has ended, which stays as a
//! zombie. (So while the process runs, it has two threads, and the heap never forks as if it had
//! one.) Two system calls tell. They take paths, not descriptors, since a program may close
//! descriptors that it does not know.

use core::ffi::c_void;
use core::ptr;

use crate::line::Line;
use crate::{HEAP, errno};

/// How long the thread sleeps.
const PERIOD_NS: i64 = 100_000_000;

/// How many times it sleeps between two checks whether it is alone.
const PERIODS_BETWEEN_LOOKS: u32 = 10;

/// All that the thread calls is shallow, except for what the program has registered for its end, if
/// that runs here. Untouched stack costs nothing.
const STACK_BYTES: usize = 1 << 20;

/// Starts the thread, and starts it again in each forked child, which has only the thread that
/// forked. There it starts after the heap's own handler has run, which was registered before.
pub(crate) fn begin() {
    start();
    // SAFETY: a function that stays as long as this library, which is never unloaded.
    unsafe { libc::pthread_atfork(None, None, Some(start)) };
}

/// If the thread is refused, one line reports that, and the program runs without it.
extern "C" fn start() {
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
    // Signals are for the program: the thread begins with all of them blocked.
    // SAFETY: a valid place.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: two valid sets.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    // The signals that were blocked, as the kernel's one word of bits: no thread need free a word.
    // SAFETY: the set's first word.
    let blocked = unsafe { (&raw const before).cast::<usize>().read() };
    let argument = ptr::without_provenance_mut(blocked);
    // SAFETY: valid places; `look_after` takes its argument for a number and may run at any time.
    let status = unsafe {
        libc::pthread_create(&raw mut thread, &raw const attributes, look_after, argument)
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

extern "C" fn look_after(blocked: *mut c_void) -> *mut c_void {
    // SAFETY: names this thread, by a text that ends in 0.
    unsafe { libc::prctl(libc::PR_SET_NAME, c"hectare".as_ptr()) };
    let period = libc::timespec { tv_sec: 0, tv_nsec: PERIOD_NS };
    let mut periods_left = PERIODS_BETWEEN_LOOKS;
    loop {
        // SAFETY: a valid period; what is left of it is not asked for.
        unsafe { libc::nanosleep(&raw const period, ptr::null_mut()) };
        HEAP.tend();
        periods_left -= 1;
        if periods_left == 0 {
            periods_left = PERIODS_BETWEEN_LOOKS;
            if is_left_alone() {
                break;
            }
        }
    }
    // What runs at the end of the program has the signals blocked that were blocked when this
    // thread was started.
    // SAFETY: zeroed, a set without signals.
    let mut mask = unsafe { core::mem::zeroed::<libc::sigset_t>() };
    // SAFETY: the set's first word.
    unsafe { (&raw mut mask).cast::<usize>().write(blocked.addr()) };
    // SAFETY: a valid set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, ptr::null_mut()) };
    ptr::null_mut()
}

/// Whether nothing is left of the process but this thread and its first one, which has ended.
/// `false` also if `/proc` does not tell, or if a filter may kill the process for asking.
fn is_left_alone() -> bool {
    !HEAP.keeps_to_plain_calls() && threads() == Some(2) && has_first_thread_ended()
}

/// How many threads the process has, including an ended first one. The directory has two links, and
/// one more for each thread.
fn threads() -> Option<usize> {
    // SAFETY: zeroed, it is a value of its type.
    let mut stat = unsafe { core::mem::zeroed::<libc::stat>() };
    let (path, place) = (c"/proc/self/task".as_ptr(), &raw mut stat);
    // Called by number: the C library has this name only since 2.33.
    // SAFETY: a text that ends in 0, and a place for the answer.
    let status = unsafe { libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, path, place, 0) };
    let links = usize::try_from(stat.st_nlink).ok().filter(|_| status == 0)?;
    links.checked_sub(2)
}

/// Whether the process's first thread has ended: then it has no program.
fn has_first_thread_ended() -> bool {
    let mut path = [0_u8; 8];
    // SAFETY: a text that ends in 0, and a place for as much of the answer as it has room for.
    let bytes =
        unsafe { libc::readlink(c"/proc/self/exe".as_ptr(), path.as_mut_ptr().cast(), path.len()) };
    bytes < 0 && errno::get() == libc::ENOENT
}
