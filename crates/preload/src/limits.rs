//! Programs that limit their own address space.
//!
//! The heap reserves far more address space than there is memory, since what is not used costs nothing. But it counts
//! against a limit (`RLIMIT_AS`): a program that sets one for itself could map nothing any more, no stack and no library.
//! So this library defines the names by which limits are set, and the heap gives up what it does not need. (A limit that
//! was set before the program began is heeded when the heap reserves.)

use core::ffi::{c_int, c_uint};
use core::ptr;

use crate::HEAP;

type Limit = libc::rlimit64;

/// As the C library's.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn prlimit64(
    process: libc::pid_t,
    resource: c_uint,
    new: *const Limit,
    old: *mut Limit,
) -> c_int {
    // SAFETY: the caller's promise.
    let status = unsafe { libc::syscall(libc::SYS_prlimit64, process, resource, new, old) };
    if status == 0 && resource == libc::RLIMIT_AS && !new.is_null() {
        HEAP.leave_room();
    }
    status as c_int
}

/// As the C library's, whose `rlimit` is the same where a word has 64 bits.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn prlimit(
    process: libc::pid_t,
    resource: c_uint,
    new: *const Limit,
    old: *mut Limit,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { prlimit64(process, resource, new, old) }
}

/// As the C library's.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit64(resource: c_uint, new: *const Limit) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { prlimit64(0, resource, new, ptr::null_mut()) }
}

/// As the C library's.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit(resource: c_uint, new: *const Limit) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { prlimit64(0, resource, new, ptr::null_mut()) }
}
