//! The memory of the heap's own tables: taken in chunks, never given back.

use core::ptr::NonNull;

use hectare_base::align::align_up;
use hectare_pages::System;

use super::{Backend, State};
use crate::cache::Cache;

const METADATA_CHUNK_BYTES: usize = 64 << 10;

/// What the processor fetches together: two cache lines.
const METADATA_ALIGN: usize = 128;

impl<S: System> Backend<S> {
    /// A cache that nobody uses, opened.
    pub(crate) fn get_cache(&self) -> Option<NonNull<Cache>> {
        let mut state = self.state.lock();
        let cache = match state.unused_caches {
            Some(cache) => {
                // SAFETY: an unused cache is the backend's, and the lock is held.
                state.unused_caches = unsafe { cache.as_ref() }.next_unused;
                cache
            }
            None => self.get_metadata(&mut state, size_of::<Cache>())?.cast(),
        };
        // SAFETY: zeroed or once opened metadata of a cache's size, and now the caller's.
        unsafe { &mut *cache.as_ptr() }.open();
        Some(cache)
    }

    /// Takes back a cache, which must be empty.
    pub(crate) fn put_cache(&self, mut cache: NonNull<Cache>) {
        let mut state = self.state.lock();
        // SAFETY: the caller gives up the cache.
        unsafe { cache.as_mut() }.next_unused = state.unused_caches;
        state.unused_caches = Some(cache);
    }

    /// Zeroed memory, aligned to [`METADATA_ALIGN`], that is never given back.
    ///
    /// Its lock is taken under that of the pools' growth.
    pub(crate) fn metadata(&self, bytes: usize) -> Option<NonNull<u8>> {
        self.get_metadata(&mut self.state.lock(), bytes)
    }

    pub(super) fn get_metadata(&self, state: &mut State, bytes: usize) -> Option<NonNull<u8>> {
        let bytes = align_up(bytes, METADATA_ALIGN);
        let fresh = state.metadata.is_none() || state.metadata_left_bytes < bytes;
        if fresh {
            let chunk = align_up(METADATA_CHUNK_BYTES.max(bytes), self.source.page_bytes());
            state.metadata = Some(self.source.get(chunk, self.source.page_bytes()).ok()?);
            state.metadata_left_bytes = chunk;
            state.metadata_bytes += chunk;
        }
        let start = state.metadata?;
        state.metadata_left_bytes -= bytes;
        // SAFETY: the chunk has as many bytes left.
        state.metadata = Some(unsafe { start.add(bytes) });
        Some(start)
    }
}
