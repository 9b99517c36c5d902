//! `hectare_pool.h`: a pool of compressed objects for C programs, which is a [`Dense`] one.

use core::cell::RefCell;
use core::ffi::{c_int, c_void};

use hectare_pages::{FutexPark, Os};
use hectare_pool::{Dense, Handle, Pool, PoolError};

/// `hectare_pool`.
#[derive(Debug)]
pub struct ObjectPool {
    pool: Dense<Os, FutexPark>,
}

/// `struct hectare_pool_stat`: see the header.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the header has them")]
pub struct ObjectPoolStat {
    pub objects: usize,
    pub stored_bytes: usize,
    pub footprint_bytes: usize,
}

/// The negated number from `errno.h`.
pub(crate) const fn status(error: PoolError) -> c_int {
    -match error {
        PoolError::Size { .. } => libc::EINVAL,
        PoolError::OutOfMemory => libc::ENOMEM,
        PoolError::Full => libc::ENOSPC,
    }
}

/// The handle that a program keeps as a number; none for 0.
fn named(handle: u64) -> Option<Handle> {
    core::num::NonZeroU64::new(handle).map(Handle::from_raw)
}

/// Makes a pool.
#[unsafe(no_mangle)]
pub extern "C" fn hectare_pool_create() -> *mut ObjectPool {
    Box::into_raw(Box::new(ObjectPool { pool: Dense::new(Os) }))
}

/// Ends a pool.
///
/// # Safety
/// `pool` is null, or came from [`hectare_pool_create`] and is no longer used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hectare_pool_destroy(pool: *mut ObjectPool) {
    if !pool.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(pool) });
    }
}

/// How long an object may be.
///
/// # Safety
/// `pool` came from [`hectare_pool_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hectare_pool_max_bytes(pool: *const ObjectPool) -> usize {
    // SAFETY: the caller's promise.
    unsafe { &*pool }.pool.max_size_bytes()
}

/// Stores an object.
///
/// # Safety
/// `pool` came from [`hectare_pool_create`]; `data` has `bytes` bytes; `handle` is the caller's to
/// write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hectare_pool_put(
    pool: *const ObjectPool,
    data: *const c_void,
    bytes: usize,
    handle: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let pool = &unsafe { &*pool }.pool;
    match pool.alloc(bytes) {
        Ok(object) => {
            // SAFETY: as above.
            let data = unsafe { core::slice::from_raw_parts(data.cast(), bytes) };
            // SAFETY: the object was just taken and has as many bytes; nobody else knows it.
            unsafe { pool.write(object, data) };
            // SAFETY: the caller's promise.
            unsafe { handle.write(object.to_raw().get()) };
            0
        }
        Err(error) => status(error),
    }
}

/// How long an object is; 0 for no handle.
///
/// # Safety
/// `pool` came from [`hectare_pool_create`]; `handle` is 0 or names an object of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hectare_pool_size(pool: *const ObjectPool, handle: u64) -> usize {
    let Some(handle) = named(handle) else { return 0 };
    // SAFETY: the caller's promise.
    let pool = &unsafe { &*pool }.pool;
    // SAFETY: as above.
    unsafe { pool.size_bytes(handle) }
}

/// Copies an object out.
///
/// # Safety
/// `pool` came from [`hectare_pool_create`]; `handle` is 0 or came from this pool. `data` has
/// `bytes` bytes, which nobody else uses, and nobody removes the object during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hectare_pool_get(
    pool: *const ObjectPool,
    handle: u64,
    data: *mut c_void,
    bytes: usize,
) -> c_int {
    let Some(handle) = named(handle) else { return -libc::ENOENT };
    // SAFETY: the caller's promise.
    let pool = &unsafe { &*pool }.pool;
    // SAFETY: as above.
    if bytes < unsafe { pool.size_bytes(handle) } {
        return -libc::EMSGSIZE;
    }
    // SAFETY: as above; the object has no more bytes than there is room for.
    let mut copy = |object: &[u8]| unsafe {
        data.cast::<u8>().copy_from_nonoverlapping(object.as_ptr(), object.len());
    };
    let mut get = |bounce: &mut Vec<u8>| {
        let more_bytes = pool.max_size_bytes().saturating_sub(bounce.len());
        if bounce.try_reserve_exact(more_bytes).is_err() {
            return -libc::ENOMEM;
        }
        bounce.resize(bounce.len() + more_bytes, 0);
        // SAFETY: as above; the copy uses nothing of the pool.
        let read = unsafe { pool.try_read(handle, bounce, &mut copy) };
        read.map_or(-libc::ENOENT, |()| 0)
    };
    // A thread that ends may have dropped its buffer already.
    BOUNCE.try_with(|bounce| get(&mut bounce.borrow_mut())).unwrap_or_else(|_| get(&mut Vec::new()))
}

thread_local! {
    /// Where a thread gathers the pieces of an object.
    static BOUNCE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Forgets an object; `-ENOENT` if the handle names none.
///
/// # Safety
/// `pool` came from [`hectare_pool_create`]; `handle` is 0 or came from this pool; no other thread
/// uses the object any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hectare_pool_remove(pool: *const ObjectPool, handle: u64) -> c_int {
    let Some(handle) = named(handle) else { return -libc::ENOENT };
    // SAFETY: the caller's promise.
    let pool = &unsafe { &*pool }.pool;
    // SAFETY: as above.
    unsafe { pool.try_free(handle) }.map_or(-libc::ENOENT, |()| 0)
}

/// Moves objects together. Returns the bytes given back.
///
/// # Safety
/// `pool` came from [`hectare_pool_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hectare_pool_compact(pool: *const ObjectPool) -> usize {
    // SAFETY: the caller's promise.
    unsafe { &*pool }.pool.compact()
}

/// Writes what the pool holds to `stat`.
///
/// # Safety
/// `pool` came from [`hectare_pool_create`]; `stat` is the caller's to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hectare_pool_stat(pool: *const ObjectPool, stat: *mut ObjectPoolStat) {
    // SAFETY: the caller's promise.
    let stats = unsafe { &*pool }.pool.stats();
    let told = ObjectPoolStat {
        objects: stats.objects,
        stored_bytes: stats.stored_bytes,
        footprint_bytes: stats.footprint_bytes(),
    };
    // SAFETY: as above.
    unsafe { stat.write(told) };
}
