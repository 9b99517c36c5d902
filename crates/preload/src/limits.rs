//! Programs that limit their own address space.
//!
//! The heap reserves far more address space than there is memory, since unused address space costs
//! nothing. But it counts against a limit (`RLIMIT_AS`): a program that then set one for itself
//! could map nothing any more, neither a stack nor a library. So this library defines the names by
//! which limits are set, and the heap gives up the address space that it does not need. (If a limit
//! was set before the program began, the heap heeds it when it reserves.)

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
    // SAFETY: the caller's promise: a limit, if any.
    if status == 0 && resource == libc::RLIMIT_AS && unsafe { new.as_ref() }.is_some_and(is_own) {
        HEAP.leave_room();
    }
    status as c_int
}

/// Whether `limit` is now this process's own, not only another's. (The process number does not
/// tell: the number of each thread names this process, too.)
fn is_own(limit: &Limit) -> bool {
    let mut own = Limit { rlim_cur: 0, rlim_max: 0 };
    let (process, none, own_at) = (0, ptr::null::<Limit>(), &raw mut own);
    // SAFETY: a valid place for the answer; nothing is set.
    unsafe { libc::syscall(libc::SYS_prlimit64, process, libc::RLIMIT_AS, none, own_at) };
    own.rlim_cur == limit.rlim_cur
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
