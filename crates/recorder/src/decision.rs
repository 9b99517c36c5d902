//! Whether this process records at all.
//!
//! ```text
//!  MODE   undecided ──environment there──▶ deciding ──▶ on ──no room on the disk──▶ off
//!                                              └─────▶ off (HECTARE_TRACE not set)
//! ```
//!
//! The environment decides, at the first call that finds it known.

use core::ffi::CStr;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering};

use crate::{process, sys};

const UNDECIDED: u8 = 0;
const DECIDING: u8 = 1;
const ON: u8 = 2;
const OFF: u8 = 3;

static MODE: AtomicU8 = AtomicU8::new(UNDECIDED);

/// Whether events are recorded, as far as that has been decided.
pub(crate) fn is_on() -> bool {
    MODE.load(Ordering::Acquire) == ON
}

/// Ends recording; returns whether it had not ended before.
pub(crate) fn stop() -> bool {
    MODE.swap(OFF, Ordering::AcqRel) != OFF
}

/// Whether events are recorded; decided by the first call that can decide.
pub(crate) fn recording() -> bool {
    match MODE.load(Ordering::Acquire) {
        ON => true,
        UNDECIDED => decide(),
        _ => false,
    }
}

/// The dynamic linker allocates before the environment is known. Such calls are passed on, and
/// frees of their blocks are counted as unknown.
fn decide() -> bool {
    // SAFETY: the C library's variable; written at start-up only.
    let environment = unsafe { libc_environ() };
    if environment.is_null() {
        return false;
    }
    if MODE.compare_exchange(UNDECIDED, DECIDING, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return false;
    }
    let on = match variable(environment, b"HECTARE_TRACE=") {
        None => false,
        Some(base) => {
            sys::note_error_output();
            let on = process::prepare(base);
            if !on {
                sys::say(&[
                    b"hectare recorder: the name in HECTARE_TRACE is too long, or no address space \
                      or key is left: not recording\n",
                ]);
            }
            on
        }
    };
    MODE.store(if on { ON } else { OFF }, Ordering::Release);
    on
}

/// The C library's `environ`.
unsafe fn libc_environ() -> *const *mut libc::c_char {
    unsafe extern "C" {
        static environ: *const *mut libc::c_char;
    }
    // SAFETY: the C library defines it.
    unsafe { environ }
}

/// The value of the variable whose name and equals sign are `prefix`.
fn variable(environment: *const *mut libc::c_char, prefix: &[u8]) -> Option<&'static CStr> {
    let mut entry = environment;
    loop {
        // SAFETY: the environment is an array that ends with null.
        let text = NonNull::new(unsafe { entry.read() })?;
        // SAFETY: its entries are null-terminated strings.
        let entry_text = unsafe { CStr::from_ptr(text.as_ptr()) };
        if let Some(value) = entry_text.to_bytes_with_nul().strip_prefix(prefix) {
            return CStr::from_bytes_with_nul(value).ok();
        }
        // SAFETY: this entry was not the last.
        entry = unsafe { entry.add(1) };
    }
}
