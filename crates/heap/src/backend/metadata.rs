//! The memory of the heap's own tables: taken in chunks, never given back.

use core::ptr::NonNull;

use hectare_base::align::align_up;
use hectare_pages::{PageSource, System};

use super::Backend;
use crate::cache::{ALIAS_BYTES, Cache};

const METADATA_CHUNK_BYTES: usize = 64 << 10;

/// What the processor prefetches together: two cache lines.
const METADATA_ALIGN: usize = 128;

/// The memory taken for tables.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Metadata {
    /// The rest of the last chunk, if there is one.
    rest: Option<NonNull<u8>>,
    left_bytes: usize,
    /// The bytes of all chunks.
    pub(super) bytes: usize,
}

impl Metadata {
    pub(super) const NONE: Self = Self { rest: None, left_bytes: 0, bytes: 0 };

    /// Takes `bytes`, zeroed, at a multiple of `align`, which is a multiple of [`METADATA_ALIGN`]
    /// up to a page.
    fn take(
        &mut self,
        source: &impl PageSource,
        bytes: usize,
        align: usize,
    ) -> Option<NonNull<u8>> {
        let bytes = align_up(bytes, METADATA_ALIGN);
        // Chunks end at a multiple of each alignment.
        let skipped = self.left_bytes % align;
        let fresh = self.rest.is_none() || self.left_bytes < skipped + bytes;
        if fresh {
            let chunk = align_up(METADATA_CHUNK_BYTES.max(bytes), source.page_bytes());
            self.rest = Some(source.get(chunk, source.page_bytes()).ok()?);
            self.left_bytes = chunk;
            self.bytes += chunk;
        }
        let skipped = self.left_bytes % align;
        // SAFETY: the chunk has as many bytes left.
        let start = unsafe { self.rest?.add(skipped) };
        self.left_bytes -= skipped + bytes;
        // SAFETY: as above.
        self.rest = Some(unsafe { start.add(bytes) });
        Some(start)
    }
}

impl<S: System> Backend<S> {
    /// An opened cache that nobody uses.
    pub(crate) fn get_cache(&self) -> Option<NonNull<Cache>> {
        let mut state = self.state.lock();
        let cache = match state.unused_caches {
            Some(cache) => {
                // SAFETY: an unused cache is the backend's, and the lock is held.
                state.unused_caches = unsafe { cache.as_ref() }.next_unused;
                cache
            }
            None => {
                let bytes = size_of::<Cache>();
                state.metadata.take(&self.source, bytes, ALIAS_BYTES)?.cast()
            }
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
    /// Takes the backend's lock, under the lock of whoever needs the memory.
    #[inline(never)]
    pub(crate) fn metadata(&self, bytes: usize) -> Option<NonNull<u8>> {
        self.state.lock().metadata.take(&self.source, bytes, METADATA_ALIGN)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::boxed::Box;

    use hectare_pages::{Failing, Os};

    use super::*;

    /// What is left of a chunk is handed out, and nothing behind it.
    #[test]
    fn a_chunk_that_is_refused_takes_nothing_from_the_last_one() {
        let backend = Box::new(Backend::new(Failing::new(Os), 64 << 20));
        let first = backend.metadata(METADATA_ALIGN).expect("metadata").addr().get();
        backend.source.refuse_all(true);
        assert!(backend.metadata(METADATA_CHUNK_BYTES).is_none());
        let rest = core::iter::from_fn(|| backend.metadata(METADATA_ALIGN));
        let last = rest.map(|start| start.addr().get()).last();
        assert_eq!(last, Some(first + METADATA_CHUNK_BYTES - METADATA_ALIGN));
        backend.source.refuse_all(false);
        assert!(backend.metadata(METADATA_CHUNK_BYTES).is_some());
        assert_eq!(backend.state.lock().metadata.bytes, 2 * METADATA_CHUNK_BYTES);
    }

    #[test]
    fn caches_begin_where_no_list_aliases_what_calls_read_and_waste_nothing_else() {
        let backend = Box::new(Backend::new(Os, 64 << 20));
        let mut end = 0;
        for count in 1..=40 {
            let cache = backend.get_cache().expect("a cache").addr().get();
            assert_eq!(cache % ALIAS_BYTES, 0, "cache {count}");
            assert!(cache >= end || cache < end - ALIAS_BYTES, "cache {count} is free memory");
            // What follows takes the rest of a cache's page, before the next cache.
            let rest = backend.metadata(1000).expect("metadata").addr().get();
            assert_eq!(rest, align_up(cache + size_of::<Cache>(), METADATA_ALIGN));
            end = rest + 1000;
        }
        let chunks = 40_usize.div_ceil(METADATA_CHUNK_BYTES / ALIAS_BYTES);
        assert_eq!(backend.state.lock().metadata.bytes, chunks * METADATA_CHUNK_BYTES);
    }
}
