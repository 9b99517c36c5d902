//! Programs that confine themselves.
//!
//! A program that handles input from strangers (OpenSSH's server, browsers) has itself killed for
//! any system call that is not on its list, and the list was made with another allocator in mind.
//! Before that, it must renounce new privileges, unless it is root. Both go through `prctl`, so
//! this library defines that name, and from then on the heap keeps to calls that are on every such
//! list. A program that calls the kernel only by number is not seen; `HECTARE_CONF=sandbox:true` is
//! for such programs.

use core::ffi::{c_int, c_long, c_ulong};

use crate::life::config;
use crate::{HEAP, mode};

/// As the C library's, which also passes four words behind the option to the kernel, whether or not
/// the caller gave as many.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    if matches!(option, libc::PR_SET_NO_NEW_PRIVS | libc::PR_SET_SECCOMP) {
        confine();
    }
    let option = c_long::from(option);
    // SAFETY: the caller's promise.
    (unsafe { libc::syscall(libc::SYS_prctl, option, second, third, fourth, fifth) }) as c_int
}

#[cold]
fn confine() {
    if !HEAP.keeps_to_plain_calls() {
        HEAP.keep_to_plain_calls();
        mode::note_confined(config());
    }
}
