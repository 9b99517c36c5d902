//! `hectare_store.h`: a compressed page store for C programs: LZ4 over a
//! [`Dense`] pool.

use core::ffi::{c_int, c_void};

use hectare_pages::{FutexPark, Os};
use hectare_pool::Dense;
use hectare_store::{Config, Store, StoreError};

use crate::pool;

/// `hectare_store`.
#[derive(Debug)]
pub struct PageStore {
    store: Store<Dense<Os, FutexPark>>,
    page_bytes: usize,
}

/// `struct hectare_store_stat`: see the header.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the header has them")]
pub struct PageStoreStat {
    pub pages: usize,
    pub original_bytes: usize,
    pub compressed_bytes: usize,
    pub pool_bytes: usize,
    pub table_bytes: usize,
    pub limit_bytes: usize,
    pub same_filled_pages: usize,
    pub raw_pages: usize,
}

/// The negated number from `errno.h`.
const fn status(error: StoreError) -> c_int {
    match error {
        StoreError::Pool(error) => pool::status(error),
        StoreError::Limit { .. } => -libc::ENOSPC,
        StoreError::Damaged { .. } => -libc::EBADMSG,
        _ => -libc::EINVAL,
    }
}

fn found(is_found: Result<bool, StoreError>) -> c_int {
    match is_found {
        Ok(true) => 0,
        Ok(false) => -libc::ENOENT,
        Err(error) => status(error),
    }
}

/// Makes a store; null if `page_bytes` is not a valid page size, or there is no memory for that
/// many keys.
#[unsafe(no_mangle)]
pub extern "C" fn hectare_store_create(
    pages: usize,
    page_bytes: usize,
    limit_bytes: usize,
) -> *mut PageStore {
    let config = Config { limit_bytes, ..Config::new(pages).of_page_bytes(page_bytes) };
    match Store::new(Dense::new(Os), config) {
        Ok(store) => Box::into_raw(Box::new(PageStore { store, page_bytes })),
        Err(_) => core::ptr::null_mut(),
    }
}

/// Ends a store.
///
/// # Safety
/// `store` is null, or came from [`hectare_store_create`] and is no longer used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hectare_store_destroy(store: *mut PageStore) {
    if !store.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(store) });
    }
}

/// Stores a page.
///
/// # Safety
/// `store` came from [`hectare_store_create`]; `page` has as many bytes as a page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hectare_store_put(
    store: *const PageStore,
    key: usize,
    page: *const c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let store = unsafe { &*store };
    // SAFETY: as above.
    let page = unsafe { core::slice::from_raw_parts(page.cast(), store.page_bytes) };
    store.store.put(key, page).map_or_else(status, |()| 0)
}

/// Copies a page out.
///
/// # Safety
/// As for [`hectare_store_put`]; nobody else uses the bytes at `page`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hectare_store_get(
    store: *const PageStore,
    key: usize,
    page: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    let store = unsafe { &*store };
    // SAFETY: as above. A store writes the whole page and reads none of it.
    let page = unsafe { core::slice::from_raw_parts_mut(page.cast(), store.page_bytes) };
    found(store.store.get(key, page))
}

/// Forgets a page.
///
/// # Safety
/// `store` came from [`hectare_store_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hectare_store_remove(store: *const PageStore, key: usize) -> c_int {
    // SAFETY: the caller's promise.
    found(unsafe { &*store }.store.remove(key))
}

/// Compacts the pool. Returns the bytes given back.
///
/// # Safety
/// `store` came from [`hectare_store_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hectare_store_compact(store: *const PageStore) -> usize {
    // SAFETY: the caller's promise.
    unsafe { &*store }.store.compact()
}

/// Writes what the store holds to `stat`.
///
/// # Safety
/// `store` came from [`hectare_store_create`]; `stat` is the caller's to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hectare_store_stat(store: *const PageStore, stat: *mut PageStoreStat) {
    // SAFETY: the caller's promise.
    let stats = unsafe { &*store }.store.stats();
    let told = PageStoreStat {
        pages: stats.pages,
        original_bytes: stats.original_bytes,
        compressed_bytes: stats.compressed_bytes,
        pool_bytes: stats.pool_bytes,
        table_bytes: stats.table_bytes,
        limit_bytes: stats.limit_bytes,
        same_filled_pages: stats.same_filled_pages,
        raw_pages: stats.raw_pages,
    };
    // SAFETY: the caller's promise.
    unsafe { stat.write(told) };
}

#[cfg(test)]
mod tests {
    use hectare_pool::PoolError;

    use super::*;

    #[test]
    fn a_pool_that_is_full_is_no_wrong_key() {
        assert_eq!(status(StoreError::Pool(PoolError::Full)), -libc::ENOSPC);
        assert_eq!(status(StoreError::Key { key: 2, pages: 1 }), -libc::EINVAL);
    }

    #[test]
    fn a_damaged_page_is_no_wrong_key() {
        assert_eq!(status(StoreError::Damaged { key: 0 }), -libc::EBADMSG);
    }
}
