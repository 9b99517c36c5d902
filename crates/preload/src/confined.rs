//! Programs that confine themselves.
//!
//! A program that handles what strangers send it (OpenSSH's server, browsers) has itself killed for system calls that
//! are not on its list, which was made with another allocator in mind. Before it may do so it must renounce new
//! privileges, unless it is root. Both go through `prctl`, so this library defines that name, and from then on the heap
//! keeps to calls that every such list has. A program that calls the kernel by number alone is not seen: for that there is
//! `HECTARE_CONF=sandbox:true`.

use core::ffi::{c_int, c_long, c_ulong};

use crate::life::config;
use crate::{HEAP, mode};

/// As the C library's, which also passes four words behind the option to the kernel, whether or not there were as many.
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
