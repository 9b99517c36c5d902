//! A table that grows by pages and never moves: entries are found without a lock.
//!
//! ```text
//!   chunk 0: 1 page   chunk 1: 2 pages   chunk 2: 4 pages   …   chunk k: 2^k pages
//! ```
//! A chunk's address space is reserved when its first page is needed, each page is committed when
//! it is needed: the table costs the pages that it uses and one pointer a chunk.
//!
//! Invariants
//! 1. A chunk's pointer is set once, before the entry that needs it is named to anyone.
//! 2. The first `pages` pages are committed; entries in them start as zero bytes.

use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use core::sync::atomic::Ordering::Release;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Acquire, Ordering::Relaxed};

use hectare_pages::{PageSource, SourceError};

const CHUNKS: usize = 24;

/// Entries that may start as zero bytes.
///
/// # Safety
/// All bytes zero is a valid value, the size is a power of two, and dropping does nothing.
pub(crate) unsafe trait Entry: Sync {}

#[derive(Debug)]
pub(crate) struct Table<T> {
    chunks: [AtomicPtr<u8>; CHUNKS],
    pages: AtomicUsize,
    entries: PhantomData<T>,
}

impl<T: Entry> Table<T> {
    const ENTRY_IS_POWER_OF_TWO: () = assert!(size_of::<T>().is_power_of_two());

    pub(crate) const fn new() -> Self {
        const { Self::ENTRY_IS_POWER_OF_TWO };
        Self {
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS],
            pages: AtomicUsize::new(0),
            entries: PhantomData,
        }
    }

    pub(crate) fn bytes(&self, page_bytes: usize) -> usize {
        self.pages.load(Relaxed) * page_bytes
    }

    /// How many entries the committed pages have.
    #[inline]
    pub(crate) fn capacity(&self, page_bytes: usize) -> usize {
        self.bytes(page_bytes) / size_of::<T>()
    }

    /// The entry of this number; it lives as long as the table's memory.
    ///
    /// Panics when the table does not have it, as with a handle that is no handle.
    #[inline]
    pub(crate) fn get(&self, index: usize, page_bytes: usize) -> &T {
        let byte = index * size_of::<T>();
        let page_shift = page_bytes.trailing_zeros();
        let page = byte >> page_shift;
        let chunk = (page + 1).ilog2() as usize;
        assert!(page < self.pages.load(Relaxed), "entry {index} is beyond the pool's table");
        let base = self.chunks[chunk].load(Acquire);
        let first_byte = ((1usize << chunk) - 1) << page_shift;
        // SAFETY: by invariant 2 the page is committed; `byte` lies in this chunk by its number.
        let place = unsafe { base.add(byte - first_byte) };
        // SAFETY: zeroed or written as `T`s; entries do not straddle pages, being powers of two.
        unsafe { &*place.cast::<T>() }
    }

    /// Adds a page of entries. One thread at a time.
    #[cold]
    pub(crate) fn grow(&self, source: &impl PageSource) -> Result<(), SourceError> {
        let page_bytes = source.page_bytes();
        let page = self.pages.load(Relaxed);
        let chunk = (page + 1).ilog2() as usize;
        let slot = self.chunks.get(chunk).ok_or(SourceError::Exhausted)?;
        if slot.load(Relaxed).is_null() {
            let start = source.reserve(page_bytes << chunk, page_bytes)?;
            slot.store(start.as_ptr(), Release);
        }
        let into_chunk = (page + 1 - (1 << chunk)) * page_bytes;
        // SAFETY: a page of this chunk's reservation.
        let place = unsafe { slot.load(Relaxed).add(into_chunk) };
        let place = NonNull::new(place).ok_or(SourceError::Exhausted)?;
        // SAFETY: as above.
        unsafe { source.commit(place, page_bytes) }?;
        self.pages.store(page + 1, Release);
        Ok(())
    }

    /// Gives all memory back.
    ///
    /// # Safety
    /// No entry is used any more; `source` is the one that the table grew from.
    pub(crate) unsafe fn release(&self, source: &impl PageSource) {
        let page_bytes = source.page_bytes();
        self.pages.store(0, Relaxed);
        for (chunk, slot) in self.chunks.iter().enumerate() {
            if let Some(start) = NonNull::new(slot.swap(ptr::null_mut(), Relaxed)) {
                // SAFETY: the whole of a reservation made in `grow`, unused by the caller's word.
                unsafe { source.release(start, page_bytes << chunk) };
            }
        }
    }
}
