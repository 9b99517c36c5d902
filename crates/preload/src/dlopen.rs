//! `dlopen` without `RTLD_DEEPBIND`.
//!
//! A library opened with that flag looks for symbols in itself and in what it needs, including the
//! C library, before it looks in the program. So its `free` is glibc's, and crashes on the first
//! object of ours that the program hands it. (PHP opens its extensions this way.) Therefore this
//! library defines `dlopen` and clears the flag. It leaves all else to the next function of that
//! name, which is glibc's.
//!
//! glibc identifies the caller by the return address: it decides whose RUNPATH counts, and which
//! namespace. So our `dlopen` is a jump, which leaves nothing on the stack.

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// The flags that are passed on.
const KEPT: c_int = !libc::RTLD_DEEPBIND;

/// Where the jump goes: to the next `dlopen`, once it has been found.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(not_yet_found as *mut c_void);

/// As the C library's, except for the flag.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn dlopen(_path: *const c_char, _flags: c_int) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        "and esi, {kept}",
        "jmp qword ptr [rip + {next}]",
        kept = const KEPT,
        next = sym NEXT,
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        "and w1, w1, #{kept}",
        "adrp x16, {next}",
        "ldr x16, [x16, :lo12:{next}]",
        "br x16",
        kept = const KEPT,
        next = sym NEXT,
    );
}

/// To be called while the library is loaded: a later look-up could find the linker's lock held.
pub(crate) fn find_next() {
    // SAFETY: a name that ends in 0.
    let next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlopen".as_ptr()) };
    if !next.is_null() {
        NEXT.store(next, Relaxed);
    }
}

/// For a call ahead of all constructors, from a program's `.preinit_array`.
unsafe extern "C" fn not_yet_found(path: *const c_char, flags: c_int) -> *mut c_void {
    find_next();
    let next = NEXT.load(Relaxed);
    if next == not_yet_found as *mut c_void {
        return core::ptr::null_mut();
    }
    // SAFETY: the next function of the name, which has this type.
    let next = unsafe { core::mem::transmute::<*mut c_void, Dlopen>(next) };
    // SAFETY: the caller's promise.
    unsafe { next(path, flags) }
}
