//! `tlsf.h`: the names of Matthew Conte's TLSF 3.1 over [`hectare_tlsf::WideTlsf`].

use core::ffi::{c_int, c_void};
use core::ptr::{NonNull, null_mut};
use std::io::{self, Write};

use hectare_tlsf::{Misuse, WideTlsf};

/// The callback that a walk calls for each block.
pub type Walker = unsafe extern "C" fn(*mut c_void, usize, c_int, *mut c_void);

/// `struct tlsf_stat`: see the header.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the header has them")]
pub struct HeapStat {
    pub pools: usize,
    pub used_bytes: usize,
    pub free_bytes: usize,
    pub peak_used_bytes: usize,
    pub largest_allocatable_bytes: usize,
}

/// The heap behind a `tlsf_t`.
///
/// # Safety
/// `tlsf` came from `tlsf_create` and is used by one thread at a time.
unsafe fn heap<'a>(tlsf: *mut c_void) -> &'a mut WideTlsf {
    // SAFETY: the caller's promise.
    unsafe { &mut *tlsf.cast::<WideTlsf>() }
}

#[cold]
fn misused(call: &str, ptr: *mut c_void, misuse: Misuse) -> ! {
    let _ = writeln!(io::stderr(), "hectare-tlsf: {call}({ptr:p}): {misuse}");
    std::process::abort();
}

fn void(ptr: Option<NonNull<u8>>) -> *mut c_void {
    ptr.map_or(null_mut(), |ptr| ptr.as_ptr().cast())
}

/// Makes a heap without memory in `tlsf_size()` bytes at `mem`; null if misaligned.
///
/// # Safety
/// The memory is the heap's until `tlsf_destroy`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlsf_create(mem: *mut c_void) -> *mut c_void {
    if mem.is_null() || !mem.addr().is_multiple_of(tlsf_align_size()) {
        return null_mut();
    }
    // SAFETY: the caller's promise; aligned by the check above.
    unsafe { mem.cast::<WideTlsf>().write(WideTlsf::new()) };
    mem
}

/// Makes a heap at `mem` whose first pool is the rest of `bytes`; null if that is too little.
///
/// # Safety
/// As for [`tlsf_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlsf_create_with_pool(mem: *mut c_void, bytes: usize) -> *mut c_void {
    let Some(pool_bytes) = bytes.checked_sub(tlsf_size()) else { return null_mut() };
    // SAFETY: the caller's promise, passed on.
    let tlsf = unsafe { tlsf_create(mem) };
    if tlsf.is_null() {
        return null_mut();
    }
    // SAFETY: the heap was just made.
    let pool = unsafe { tlsf_get_pool(tlsf) };
    // SAFETY: the caller's promise for the rest of its memory.
    if unsafe { tlsf_add_pool(tlsf, pool, pool_bytes) }.is_null() { null_mut() } else { tlsf }
}

/// Ends a heap; its memory is the caller's again.
///
/// # Safety
/// `tlsf` came from `tlsf_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlsf_destroy(tlsf: *mut c_void) {
    // A heap owns nothing but its own bytes.
    let _ = tlsf;
}

/// The pool that `tlsf_create_with_pool` made.
///
/// # Safety
/// `tlsf` came from there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlsf_get_pool(tlsf: *mut c_void) -> *mut c_void {
    tlsf.wrapping_byte_add(tlsf_size())
}

/// Adds a pool; null if it is misaligned, too small or too large, or overlaps the heap itself or
/// another of its pools.
///
/// # Safety
/// The memory is the heap's until the pool is removed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlsf_add_pool(
    tlsf: *mut c_void,
    mem: *mut c_void,
    bytes: usize,
) -> *mut c_void {
    let Some(start) = NonNull::new(mem.cast::<u8>()) else { return null_mut() };
    if !mem.addr().is_multiple_of(tlsf_align_size()) {
        return null_mut();
    }
    // SAFETY: the caller's promise, passed on.
    let heap = unsafe { heap(tlsf) };
    // SAFETY: as above.
    if unsafe { heap.add_pool(start, bytes) }.is_ok() { mem } else { null_mut() }
}

/// Removes a pool all of whose blocks are free. A pool with used blocks stays.
///
/// # Safety
/// `pool` is one of this heap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlsf_remove_pool(tlsf: *mut c_void, pool: *mut c_void) {
    let Some(start) = NonNull::new(pool.cast::<u8>()) else { return };
    // SAFETY: the caller's promise, passed on.
    let heap = unsafe { heap(tlsf) };
    // SAFETY: as above.
    let pool = unsafe { WideTlsf::pool_at(start) };
    // SAFETY: as above. The only error is that blocks are in use; the pool then stays.
    let _in_use = unsafe { heap.remove_pool(pool) };
}

/// Allocates; null if there is no room, or for zero bytes.
///
/// # Safety
/// `tlsf` came from `tlsf_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlsf_malloc(tlsf: *mut c_void, bytes: usize) -> *mut c_void {
    if bytes == 0 {
        return null_mut();
    }
    // SAFETY: the caller's promise, passed on.
    void(unsafe { heap(tlsf) }.malloc(bytes))
}

/// Allocates at a multiple of `align`, a power of two; null if there is no room, or for zero bytes.
///
/// # Safety
/// `tlsf` came from `tlsf_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlsf_memalign(
    tlsf: *mut c_void,
    align: usize,
    bytes: usize,
) -> *mut c_void {
    if bytes == 0 || !align.is_power_of_two() {
        return null_mut();
    }
    // SAFETY: the caller's promise, passed on.
    void(unsafe { heap(tlsf) }.memalign(align, bytes))
}

/// Resizes; null leaves the block as it was, unless `size` is 0, which frees it.
///
/// A resized block is aligned as `tlsf_malloc` aligns it, which is all that C's `realloc`, and TLSF
/// 3.1, promise. The alignment that `tlsf_memalign` was asked for is not known here. To keep
/// whatever alignment an address shows would refuse blocks that have it by chance.
///
/// # Safety
/// `ptr` is null or a block of this heap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlsf_realloc(
    tlsf: *mut c_void,
    ptr: *mut c_void,
    size: usize,
) -> *mut c_void {
    let Some(block) = NonNull::new(ptr.cast::<u8>()) else {
        // SAFETY: the caller's promise, passed on.
        return unsafe { tlsf_malloc(tlsf, size) };
    };
    if size == 0 {
        // SAFETY: the caller's promise, passed on.
        unsafe { tlsf_free(tlsf, ptr) };
        return null_mut();
    }
    // SAFETY: the caller's promise, passed on.
    let heap = unsafe { heap(tlsf) };
    // SAFETY: as above.
    match unsafe { heap.realloc(block, tlsf_align_size(), size) } {
        Ok(new) => void(new),
        Err(misuse) => misused("tlsf_realloc", ptr, misuse),
    }
}

/// Frees; does nothing for null.
///
/// # Safety
/// `ptr` is null or a block of this heap that nobody uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlsf_free(tlsf: *mut c_void, ptr: *mut c_void) {
    let Some(block) = NonNull::new(ptr.cast::<u8>()) else { return };
    // SAFETY: the caller's promise, passed on.
    let heap = unsafe { heap(tlsf) };
    // SAFETY: as above.
    if let Err(misuse) = unsafe { heap.free(block) } {
        misused("tlsf_free", ptr, misuse);
    }
}

/// How many bytes of a block may be used; 0 for null.
///
/// # Safety
/// `ptr` is null or a block of a heap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlsf_block_size(ptr: *mut c_void) -> usize {
    let Some(block) = NonNull::new(ptr.cast::<u8>()) else { return 0 };
    // SAFETY: the caller's promise, passed on.
    unsafe { WideTlsf::usable_size_of(block) }
}

/// The bytes that `tlsf_create` needs.
#[unsafe(no_mangle)]
pub extern "C" fn tlsf_size() -> usize {
    size_of::<WideTlsf>().next_multiple_of(tlsf_align_size())
}

/// The alignment of all blocks, which heaps and pools must have as well.
#[unsafe(no_mangle)]
pub extern "C" fn tlsf_align_size() -> usize {
    16
}

/// The payload of the smallest block in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn tlsf_block_size_min() -> usize {
    WideTlsf::MIN_BLOCK_BYTES - WideTlsf::HEADER_BYTES
}

/// The payload of the largest block in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn tlsf_block_size_max() -> usize {
    WideTlsf::new().max_block_bytes() - WideTlsf::HEADER_BYTES
}

/// The overhead of a pool besides its blocks, in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn tlsf_pool_overhead() -> usize {
    WideTlsf::POOL_OVERHEAD_BYTES
}

/// The overhead of a block besides its payload, in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn tlsf_alloc_overhead() -> usize {
    WideTlsf::HEADER_BYTES
}

unsafe extern "C" fn print_block(ptr: *mut c_void, size: usize, used: c_int, _user: *mut c_void) {
    let state = if used != 0 { "used" } else { "free" };
    // As C's printf; `println!` would panic if the output cannot be written.
    let _ = writeln!(io::stdout(), "\t{ptr:p} {state} size: {size:x}");
}

/// Calls `walker`, or prints, for each block of a pool.
///
/// # Safety
/// `pool` belongs to a heap, and `walker` does not change it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlsf_walk_pool(
    pool: *mut c_void,
    walker: Option<Walker>,
    user: *mut c_void,
) {
    let Some(start) = NonNull::new(pool.cast::<u8>()) else { return };
    let walker = walker.unwrap_or(print_block);
    // SAFETY: the caller's promise, passed on.
    let pool = unsafe { WideTlsf::pool_at(start) };
    // SAFETY: as above.
    for block in unsafe { WideTlsf::blocks_of(pool) } {
        let payload = block.payload.as_ptr().cast();
        // SAFETY: the caller's walker, called as its type says.
        unsafe { walker(payload, block.payload_bytes, c_int::from(block.used), user) };
    }
}

/// Writes to `stat` what the heap holds.
///
/// # Safety
/// `tlsf` came from `tlsf_create`; `stat` is the caller's to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlsf_stat(tlsf: *mut c_void, stat: *mut HeapStat) {
    // SAFETY: the caller's promise, passed on.
    let stats = unsafe { heap(tlsf) }.stats();
    let told = HeapStat {
        pools: stats.pools,
        used_bytes: stats.used_bytes,
        free_bytes: stats.free_bytes,
        peak_used_bytes: stats.peak_used_bytes,
        largest_allocatable_bytes: stats.largest_allocatable_bytes,
    };
    // SAFETY: the caller's promise.
    unsafe { stat.write(told) };
}

/// 0 if the whole heap is sound, else −1.
///
/// # Safety
/// `tlsf` came from `tlsf_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlsf_check(tlsf: *mut c_void) -> c_int {
    // SAFETY: the caller's promise, passed on.
    if unsafe { heap(tlsf) }.validate().is_ok() { 0 } else { -1 }
}

/// 0 if the blocks of a pool are sound, else −1.
///
/// # Safety
/// `pool` belongs to a heap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tlsf_check_pool(pool: *mut c_void) -> c_int {
    let Some(start) = NonNull::new(pool.cast::<u8>()) else { return -1 };
    // SAFETY: the caller's promise, passed on.
    let pool = unsafe { WideTlsf::pool_at(start) };
    // SAFETY: as above.
    if unsafe { WideTlsf::validate_one(pool) }.is_ok() { 0 } else { -1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_fits_where_it_is_told_to_be() {
        let bytes = size_of::<WideTlsf>();
        assert!((bytes..bytes + 16).contains(&tlsf_size()), "{} of {bytes}", tlsf_size());
        // The heap's first pool begins right behind it.
        assert!(tlsf_size().is_multiple_of(16));
    }
}
