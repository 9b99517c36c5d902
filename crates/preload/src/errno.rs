//! This thread's error number.

use core::ffi::c_int;

#[inline]
pub(crate) fn get() -> c_int {
    // SAFETY: no preconditions.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the C library's pointer to this thread's errno is valid while the thread lives.
    unsafe { *errno }
}

#[inline]
pub(crate) fn set(value: c_int) {
    // SAFETY: no preconditions.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as in `get`.
    unsafe { *errno = value };
}
