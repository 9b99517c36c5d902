//! The C names: ISO C, POSIX, and what glibc adds.
//!
//! A call that returns null for want of memory sets `errno` to `ENOMEM`. Otherwise `errno` is left
//! as it was; `free` never touches it.

use core::ffi::c_int;
use core::ptr::{self, NonNull};

use hectare::MIN_ALIGN;

use crate::{HEAP, errno};

/// Larger requests than this are refused: differences of pointers must fit.
const MAX_BYTES: usize = isize::MAX as usize;

/// Passes an object on, or null with `ENOMEM`.
#[inline(always)]
fn or_enomem(object: *mut u8) -> *mut u8 {
    if object.is_null() { out_of_memory() } else { object }
}

#[cold]
#[inline(never)]
fn out_of_memory() -> *mut u8 {
    errno::set(libc::ENOMEM);
    ptr::null_mut()
}

#[unsafe(no_mangle)]
extern "C" fn malloc(bytes: usize) -> *mut u8 {
    match HEAP.malloc_fast(bytes) {
        Some(object) => object.as_ptr(),
        None => malloc_slow(bytes),
    }
}

#[cold]
#[inline(never)]
pub(crate) extern "C" fn malloc_slow(bytes: usize) -> *mut u8 {
    let object = HEAP.malloc_middle(bytes);
    if object.is_null() { malloc_slower(bytes) } else { object }
}

#[cold]
#[inline(never)]
extern "C" fn malloc_slower(bytes: usize) -> *mut u8 {
    or_enomem(HEAP.malloc_slow(bytes))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn free(object: *mut u8) {
    // SAFETY: the C caller's promise.
    if !unsafe { HEAP.free_fast(object) } {
        // SAFETY: the C caller's promise.
        unsafe { free_slow(object) };
    }
}

/// Cannot unwind, so that it is a tail call and the hit path of `free` needs no frame.
#[cold]
#[inline(never)]
unsafe extern "C" fn free_slow(object: *mut u8) {
    // Many programs free null as often as anything else.
    if object.is_null() {
        return;
    }
    // SAFETY: the C caller's promise.
    if !unsafe { HEAP.free_middle(object) } {
        // SAFETY: the C caller's promise.
        unsafe { HEAP.free_slow(object) };
    }
}

#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, bytes: usize) -> *mut u8 {
    match count.checked_mul(bytes) {
        Some(bytes) if bytes <= MAX_BYTES => or_enomem(HEAP.malloc_zeroed(bytes)),
        _ => out_of_memory(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(object: *mut u8, bytes: usize) -> *mut u8 {
    // SAFETY: the C caller's promise.
    unsafe { resize(object, bytes) }
}

/// Our `realloc`, whatever the name is bound to.
///
/// # Safety
/// As for realloc(3).
#[inline(always)]
unsafe fn resize(object: *mut u8, bytes: usize) -> *mut u8 {
    let Some(start) = NonNull::new(object) else {
        return malloc(bytes);
    };
    if bytes == 0 {
        // As in glibc, the object is freed, and null is no error.
        // SAFETY: the C caller's promise.
        unsafe { free(object) };
        return ptr::null_mut();
    }
    if bytes > MAX_BYTES {
        return out_of_memory();
    }
    // SAFETY: the C caller's promise.
    or_enomem(unsafe { HEAP.realloc(start, bytes) })
}

// Holds what the name `realloc` is bound to. In Rust, the compiler would take that for our own
// function, or for an alias of it; so this is assembly.
core::arch::global_asm!(
    ".pushsection .data.rel.ro.hectare_bound_realloc, \"aw\"",
    ".balign 8",
    ".hidden hectare_bound_realloc",
    ".globl hectare_bound_realloc",
    "hectare_bound_realloc: .quad realloc",
    ".popsection",
);

unsafe extern "C" {
    /// Our `realloc`, or that of a program or library ahead of this one, which may have put a
    /// header before `object`. Of our names, `realloc` is the only one that is not bound to our own
    /// function within the library (`build.rs`).
    #[link_name = "hectare_bound_realloc"]
    static BOUND_REALLOC: unsafe extern "C" fn(*mut u8, usize) -> *mut u8;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn reallocarray(object: *mut u8, count: usize, bytes: usize) -> *mut u8 {
    let Some(bytes) = count.checked_mul(bytes) else { return out_of_memory() };
    // SAFETY: bound when the library was loaded, and never written to.
    let realloc = unsafe { BOUND_REALLOC };
    // SAFETY: the C caller's promise.
    unsafe { realloc(object, bytes) }
}

/// An object aligned to `align`, by the slow path. Null, with errno untouched, if there is no
/// memory or `align` is no power of two.
#[cold]
#[inline(never)]
extern "C" fn aligned_slow(align: usize, bytes: usize) -> *mut u8 {
    if bytes > MAX_BYTES || align > MAX_BYTES / 2 || !align.is_power_of_two() {
        return ptr::null_mut();
    }
    HEAP.malloc_aligned(bytes, align)
}

#[unsafe(no_mangle)]
#[inline(never)] // One copy for all that lead here.
pub(crate) extern "C" fn memalign(align: usize, bytes: usize) -> *mut u8 {
    match HEAP.malloc_aligned_fast(bytes, align) {
        Some(object) => object.as_ptr(),
        None => memalign_slow(align, bytes),
    }
}

#[cold]
#[inline(never)]
extern "C" fn memalign_slow(align: usize, bytes: usize) -> *mut u8 {
    // glibc rounds an odd alignment up to a power of two.
    match align.max(1).checked_next_power_of_two() {
        Some(align) => or_enomem(aligned_slow(align, bytes)),
        None => {
            errno::set(libc::EINVAL);
            ptr::null_mut()
        }
    }
}

/// As [`memalign`]. glibc before 2.38 does the same for an odd alignment, too. Later versions
/// refuse one, but no program depends on that.
#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(align: usize, bytes: usize) -> *mut u8 {
    memalign(align, bytes)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn posix_memalign(place: *mut *mut u8, align: usize, bytes: usize) -> c_int {
    if align.is_multiple_of(size_of::<usize>())
        && let Some(object) = HEAP.malloc_aligned_fast(bytes, align)
    {
        // SAFETY: the C caller gives a valid place.
        unsafe { place.write(object.as_ptr()) };
        return 0;
    }
    // SAFETY: the C caller's promise.
    unsafe { posix_memalign_slow(place, align, bytes) }
}

#[cold]
#[inline(never)]
unsafe extern "C" fn posix_memalign_slow(place: *mut *mut u8, align: usize, bytes: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    let object = aligned_slow(align, bytes);
    if object.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the C caller gives a valid place.
    unsafe { place.write(object) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn valloc(bytes: usize) -> *mut u8 {
    memalign(HEAP.page_bytes(), bytes)
}

#[unsafe(no_mangle)]
extern "C" fn pvalloc(bytes: usize) -> *mut u8 {
    let page = HEAP.page_bytes();
    match bytes.max(1).checked_next_multiple_of(page) {
        Some(bytes) => memalign(page, bytes),
        None => out_of_memory(),
    }
}

/// 27 instructions for a small object.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_usable_size(object: *mut u8) -> usize {
    // SAFETY: the C caller's promise.
    unsafe { HEAP.usable_bytes_fast(object) }.unwrap_or_else(|| usable_size_slow(object))
}

#[cold]
#[inline(never)]
extern "C" fn usable_size_slow(object: *mut u8) -> usize {
    HEAP.usable_bytes(object)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn free_sized(object: *mut u8, bytes: usize) {
    // SAFETY: the C caller's promise.
    if !unsafe { HEAP.free_fast(object) } {
        // SAFETY: the C caller's promise.
        unsafe { free_sized_slow(object, bytes, MIN_ALIGN) };
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn free_aligned_sized(object: *mut u8, align: usize, bytes: usize) {
    // SAFETY: the C caller's promise.
    if !unsafe { HEAP.free_fast(object) } {
        // SAFETY: the C caller's promise.
        unsafe { free_sized_slow(object, bytes, align) };
    }
}

/// As [`free_slow`], for a caller who says what it asked for.
#[cold]
#[inline(never)]
unsafe extern "C" fn free_sized_slow(object: *mut u8, bytes: usize, align: usize) {
    // SAFETY: the C caller's promise.
    if !unsafe { HEAP.free_claimed(object, bytes, align) } {
        // SAFETY: the C caller's promise.
        unsafe { free_slow(object) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cfree(object: *mut u8) {
    // SAFETY: the C caller's promise.
    unsafe { free(object) };
}

/// The names that glibc gives its own functions, for programs that call those.
mod glibc_aliases {
    use core::ffi::c_int;

    #[unsafe(no_mangle)]
    extern "C" fn __libc_malloc(bytes: usize) -> *mut u8 {
        super::malloc(bytes)
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn __libc_free(object: *mut u8) {
        // SAFETY: the C caller's promise.
        unsafe { super::free(object) };
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn __libc_cfree(object: *mut u8) {
        // SAFETY: the C caller's promise.
        unsafe { super::free(object) };
    }

    #[unsafe(no_mangle)]
    extern "C" fn __libc_calloc(count: usize, bytes: usize) -> *mut u8 {
        super::calloc(count, bytes)
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn __libc_realloc(object: *mut u8, bytes: usize) -> *mut u8 {
        // SAFETY: the C caller's promise.
        unsafe { super::resize(object, bytes) }
    }

    #[unsafe(no_mangle)]
    extern "C" fn __libc_memalign(align: usize, bytes: usize) -> *mut u8 {
        super::memalign(align, bytes)
    }

    #[unsafe(no_mangle)]
    extern "C" fn __libc_valloc(bytes: usize) -> *mut u8 {
        super::valloc(bytes)
    }

    #[unsafe(no_mangle)]
    extern "C" fn __libc_pvalloc(bytes: usize) -> *mut u8 {
        super::pvalloc(bytes)
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn __posix_memalign(
        place: *mut *mut u8,
        align: usize,
        bytes: usize,
    ) -> c_int {
        // SAFETY: the C caller's promise.
        unsafe { super::posix_memalign(place, align, bytes) }
    }
}
