//! The C names: the malloc family, `fork`, and the marker.
//!
//! The order (invariant 3 of the crate): allocate, then record; record, then free. C++'s `new` and
//! `delete` reach these names through libstdc++.

use core::ptr::null_mut;

use hectare_trace::{AllocKind, Event};

use crate::next;
use crate::process;
use crate::shadow;
use crate::tape;

/// See malloc(3).
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut u8 {
    // SAFETY: any size may be asked for.
    let address = unsafe { next::malloc(size) };
    tape::allocated(AllocKind::Malloc, address, size);
    address
}

/// See malloc(3).
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut u8 {
    // SAFETY: any count and size may be asked for.
    let address = unsafe { next::calloc(count, size) };
    tape::allocated(AllocKind::Calloc, address, count.saturating_mul(size));
    address
}

/// See malloc(3).
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(old: *mut u8, size: usize) -> *mut u8 {
    if size == 0 && !old.is_null() && tape::freeing(old, false) {
        // glibc frees here; an allocator that returns a block instead gives the same trace.
        // SAFETY: the caller's promise.
        let address = unsafe { next::realloc(old, 0) };
        if !address.is_null() {
            tape::allocated(AllocKind::Malloc, address, 0);
        }
        return address;
    }
    // The entry is removed before the call: once the block has moved, its address may belong to
    // another object.
    let object = if old.is_null() { None } else { shadow::take(old) };
    if !old.is_null() && object.is_none() {
        // SAFETY: the caller's promise.
        return unsafe { realloc_unknown(old, size) };
    }
    // SAFETY: the caller's promise.
    let address = unsafe { next::realloc(old, size) };
    if address.is_null()
        && let Some(object) = object
    {
        shadow::set(old, object, size);
    }
    tape::reallocated(object, address, size);
    address
}

/// Resizes a block whose allocation was not seen into one that is recorded.
#[cold]
unsafe fn realloc_unknown(old: *mut u8, size: usize) -> *mut u8 {
    if let Some(old_size) = next::early_size(old) {
        process::unknown_free();
        // SAFETY: a new block of at least that size.
        let address = unsafe { malloc(size) };
        if !address.is_null() {
            // SAFETY: both blocks have that many bytes and are different ones.
            unsafe { address.copy_from_nonoverlapping(old, old_size.min(size)) };
        }
        return address;
    }
    // SAFETY: the caller's promise.
    let address = unsafe { next::realloc(old, size) };
    let failed = address.is_null() && size > 0;
    if !failed {
        process::unknown_free();
    }
    if failed || !address.is_null() {
        tape::allocated(AllocKind::Malloc, address, size);
    }
    address
}

/// See reallocarray(3).
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(old: *mut u8, count: usize, size: usize) -> *mut u8 {
    let Some(bytes) = count.checked_mul(size) else {
        tape::reallocated(shadow::get(old), null_mut(), usize::MAX);
        set_errno(libc::ENOMEM);
        return null_mut();
    };
    // SAFETY: the caller's promise.
    unsafe { realloc(old, bytes) }
}

/// See malloc(3).
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(address: *mut u8) {
    if !tape::freeing(address, false) && free_unknown(address) {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { next::free(address) }
}

/// See free_sized in C23. The call is passed on as `free`, which every allocator has.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_sized(address: *mut u8, _size: usize) {
    if !tape::freeing(address, true) && free_unknown(address) {
        return;
    }
    // SAFETY: the caller's promise; C23 allows `free` in its place.
    unsafe { next::free(address) }
}

/// See free_aligned_sized in C23.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free_aligned_sized(address: *mut u8, _align: usize, size: usize) {
    // SAFETY: the caller's promise.
    unsafe { free_sized(address, size) }
}

/// See cfree(3).
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(address: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { free(address) }
}

/// Counts the free of a pointer that was never seen. True if it is the recorder's own early memory,
/// which must not be passed to the next allocator.
#[cold]
fn free_unknown(address: *mut u8) -> bool {
    let early = next::early_size(address).is_some();
    if !early {
        process::unknown_free();
    }
    early
}

/// See aligned_alloc(3).
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    let address = unsafe { next::aligned_alloc(align, size) };
    tape::aligned(address, size, align);
    address
}

/// See memalign(3).
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(align: usize, size: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    let address = unsafe { next::memalign(align, size) };
    tape::aligned(address, size, align);
    address
}

/// See posix_memalign(3).
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut u8, align: usize, size: usize) -> i32 {
    // SAFETY: the caller's promise.
    let error = unsafe { next::posix_memalign(out, align, size) };
    let address = if error == 0 {
        // SAFETY: on success the pointer was written.
        unsafe { out.read() }
    } else {
        null_mut()
    };
    tape::aligned(address, size, align);
    error
}

/// See valloc(3).
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(size: usize) -> *mut u8 {
    // SAFETY: the page size is a power of two.
    unsafe { memalign(page_bytes(), size) }
}

/// See pvalloc(3).
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(size: usize) -> *mut u8 {
    let page = page_bytes();
    let Some(bytes) = size.max(1).checked_next_multiple_of(page) else {
        tape::aligned(null_mut(), size, page);
        set_errno(libc::ENOMEM);
        return null_mut();
    };
    // SAFETY: the page size is a power of two.
    unsafe { memalign(page, bytes) }
}

/// See malloc_usable_size(3).
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(address: *mut u8) -> usize {
    if !address.is_null() {
        if let Some(object) = shadow::get(address) {
            tape::other(&Event::UsableSize { object });
        } else if let Some(size) = next::early_size(address) {
            return size;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { next::usable_size(address) }
}

/// See fork(2). The child's first event opens a file of its own.
///
/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> i32 {
    // SAFETY: has no precondition.
    let child = unsafe { next::fork() };
    if child > 0 {
        tape::other(&Event::Fork { child_pid: child as u32 });
    }
    child
}

/// Puts a number into the trace, for programs that want to mark a place.
#[unsafe(no_mangle)]
pub extern "C" fn hectare_trace_marker(value: u64) {
    tape::other(&Event::Marker { value });
}

fn page_bytes() -> usize {
    // SAFETY: reads a constant of the system.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

fn set_errno(errno: i32) {
    // SAFETY: gives a valid pointer to this thread's errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { place.write(errno) };
}
