//! Fork handlers that are registered while another thread forks.
//!
//! Each object contains its own `pthread_atfork`, which calls the C library's `__register_atfork`.
//! So this library defines that name, and makes forks wait meanwhile:
//! [`Process::hold_forks`](hectare::Process::hold_forks) tells why.

use core::ffi::{CStr, c_int, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use crate::HEAP;
use crate::line::Line;

type Handler = Option<unsafe extern "C" fn()>;
type Register = unsafe extern "C" fn(Handler, Handler, Handler, *mut c_void) -> c_int;

/// The next function of the name; null before it is found.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// As the C library's.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn __register_atfork(
    prepare: Handler,
    parent: Handler,
    child: Handler,
    object: *mut c_void,
) -> c_int {
    let found = NEXT.load(Relaxed);
    if !found.is_null() {
        // SAFETY: the caller's promise; `found` is the next function of the name.
        return unsafe { register_later(found, prepare, parent, child, object) };
    }
    // The first handlers registered are our own, while this library is loaded.
    // SAFETY: a name that ends in 0.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"__register_atfork".as_ptr()) };
    NEXT.store(found, Relaxed);
    if found.is_null() {
        linked_statically();
    }
    // SAFETY: the next function of the name has this type.
    let next = unsafe { transmute::<*mut c_void, Register>(found) };
    // SAFETY: the caller's promise.
    unsafe { next(prepare, parent, child, object) }
}

/// Ends a program that has no C library behind this one. It would run without one handler, and each
/// of its threads without a cache.
#[cold]
#[inline(never)]
fn linked_statically() -> ! {
    let mut line = Line::new();
    line.push(b"hectare: a program with libhectare.a in it cannot be linked with -static: link the C library as a shared one");
    line.write_to_standard_error();
    // SAFETY: no preconditions.
    unsafe { libc::abort() }
}

/// Registers with `next` while no thread forks, if glibc releases its lock while a handler runs, as
/// it does from 2.36 on. (An older glibc holds its lock during the whole fork. So no thread waits
/// for that lock with the heap's locks held; but this thread would wait for it with ours held, and
/// the fork for ours.)
///
/// # Safety
/// `next` is of the type [`Register`]; else as of the C library's.
#[cold]
#[inline(never)]
unsafe extern "C" fn register_later(
    next: *mut c_void,
    prepare: Handler,
    parent: Handler,
    child: Handler,
    object: *mut c_void,
) -> c_int {
    // SAFETY: no preconditions.
    let version = unsafe { libc::gnu_get_libc_version() };
    // SAFETY: a text that ends in 0, like `2.36`.
    let version = unsafe { CStr::from_ptr(version) };
    let lets_go = version.to_bytes().strip_prefix(b"2.").is_none_or(|minor| {
        let digits = minor.iter().take_while(|byte| byte.is_ascii_digit());
        digits.fold(0, |number, digit| number * 10 + u32::from(digit - b'0')) >= 36
    });
    let _held = lets_go.then(|| HEAP.hold_forks());
    // SAFETY: the caller's promise.
    let next = unsafe { transmute::<*mut c_void, Register>(next) };
    // SAFETY: the caller's promise.
    unsafe { next(prepare, parent, child, object) }
}
