//! A table that grows by pages and never moves, so that entries are found without a lock.
//!
//! ```text
//!   chunk 0: 1 page, or lent room   chunk 1: 1 page   chunk 2: 2 pages   …   chunk k: 2^(k-1)
//! ```
//! A chunk's address space is reserved when its first page is needed, and each page is committed
//! when it is needed. So the table costs the pages it uses and one pointer a chunk. An owner with
//! bytes to spare lends them as chunk 0. They hold the *last* entries of that page, so that finding
//! an entry needs no special case: the numbers of such a table start at [`Table::first`].
//!
//! Invariants
//! 1. A chunk's pointer is set once, before an entry of the chunk is named to anyone. It points to
//!    where entry 0 would be if the chunk reached down to it, so entry `i` is `i` entries further.
//! 2. Entries `first..end` lie in committed memory, which starts as zero bytes.

use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicUsize};

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
    end: AtomicUsize,
    first: usize,
    /// The end of the entries that lie in lent room; 0 if none do.
    lent_end: usize,
    /// Entries per page, as a shift.
    page_shift: u32,
    entries: PhantomData<T>,
}

impl<T: Entry> Table<T> {
    const ENTRY_IS_POWER_OF_TWO: () = assert!(size_of::<T>().is_power_of_two());

    /// A table that takes all its memory from a source of such pages.
    pub(crate) const fn new(page_bytes: usize) -> Self {
        const { Self::ENTRY_IS_POWER_OF_TWO };
        Self {
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS],
            end: AtomicUsize::new(0),
            first: 0,
            lent_end: 0,
            page_shift: (page_bytes / size_of::<T>()).trailing_zeros(),
            entries: PhantomData,
        }
    }

    /// A table whose first entries, at most a page of them, lie in `room`.
    ///
    /// # Safety
    /// `room` has `count` entries that are zero, and is the table's alone for as long as the table
    /// is used.
    pub(crate) unsafe fn with_room(page_bytes: usize, room: NonNull<T>, count: usize) -> Self {
        let mut table = Self::new(page_bytes);
        if count > 0 {
            table.lent_end = 1 << table.page_shift;
            table.first = table.lent_end - count;
            table.end = AtomicUsize::new(table.lent_end);
            table.chunks[0] = AtomicPtr::new(entry_0::<T>(room.cast(), table.first));
        }
        table
    }

    /// The number of the first entry.
    pub(crate) const fn first(&self) -> usize {
        self.first
    }

    /// One past the number of the last entry.
    #[inline]
    pub(crate) fn end(&self) -> usize {
        self.end.load(Relaxed)
    }

    /// What the table has taken from its source.
    pub(crate) fn bytes(&self) -> usize {
        (self.end() - self.lent_end) * size_of::<T>()
    }

    /// The entry of this number; it lives as long as the table's memory.
    ///
    /// Panics if the table does not have it, as for a bogus handle.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> &T {
        if index < self.first || index >= self.end() {
            no_entry(index);
        }
        let base = self.chunks[self.chunk_of(index)].load(Acquire);
        let entry = base.wrapping_add(index * size_of::<T>()).cast::<T>();
        // SAFETY: by invariants 1 and 2 the entry is there, zeroed or written as a `T`.
        unsafe { &*entry }
    }

    /// The chunk of an entry: the number of binary digits of its page's number.
    #[inline]
    const fn chunk_of(&self, index: usize) -> usize {
        (2 * (index >> self.page_shift) + 1).ilog2() as usize
    }

    /// Pages in the chunk when it is full.
    const fn pages_of(chunk: usize) -> usize {
        if chunk == 0 { 1 } else { 1 << (chunk - 1) }
    }

    /// The number that the chunk's first entry would have if the chunk were complete.
    const fn start_of(&self, chunk: usize) -> usize {
        if chunk == 0 { 0 } else { Self::pages_of(chunk) << self.page_shift }
    }

    /// Adds a page of entries. One thread at a time.
    #[cold]
    pub(crate) fn grow(&self, source: &impl PageSource) -> Result<(), SourceError> {
        let page_bytes = source.page_bytes();
        let end = self.end();
        let chunk = self.chunk_of(end);
        let start = self.start_of(chunk);
        let slot = self.chunks.get(chunk).ok_or(SourceError::Exhausted)?;
        if slot.load(Relaxed).is_null() {
            let base = source.reserve(page_bytes * Self::pages_of(chunk), page_bytes)?;
            slot.store(entry_0::<T>(base.cast(), start), Release);
        }
        let page = slot.load(Relaxed).wrapping_add(end * size_of::<T>());
        let page = NonNull::new(page).ok_or(SourceError::Exhausted)?;
        // SAFETY: the next page of this chunk's reservation.
        unsafe { source.commit(page, page_bytes) }?;
        self.end.store(end + (1 << self.page_shift), Release);
        Ok(())
    }

    /// Gives back all memory that came from the source.
    ///
    /// # Safety
    /// No entry is used any more; `source` is the one that the table grew from.
    pub(crate) unsafe fn release(&self, source: &impl PageSource) {
        let page_bytes = source.page_bytes();
        let first_own = usize::from(self.lent_end > 0);
        self.end.store(self.lent_end, Relaxed);
        for (chunk, slot) in self.chunks.iter().enumerate().skip(first_own) {
            let base = slot.swap(ptr::null_mut(), Relaxed);
            if base.is_null() {
                continue;
            }
            let start = base.wrapping_add(self.start_of(chunk) * size_of::<T>());
            if let Some(start) = NonNull::new(start) {
                // SAFETY: a whole reservation made in `grow`, unused by the caller's promise.
                unsafe { source.release(start, page_bytes * Self::pages_of(chunk)) };
            }
        }
    }
}

/// Where entry 0 would be if entry `first` is at `place`.
const fn entry_0<T>(place: NonNull<u8>, first: usize) -> *mut u8 {
    place.as_ptr().wrapping_sub(first * size_of::<T>())
}

#[cold]
#[inline(never)]
fn no_entry(index: usize) -> ! {
    panic!("entry {index} is not in the pool's table")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use core::sync::atomic::AtomicU64;

    use hectare_pages::{Counted, Os};

    use super::*;

    // SAFETY: an atomic word is valid as zero.
    unsafe impl Entry for AtomicU64 {}

    fn fill_and_check(table: &Table<AtomicU64>, source: &Counted<Os>) {
        let pages = 40;
        for _ in 0..pages {
            table.grow(source).expect("memory");
        }
        let numbers = table.first()..table.end();
        numbers.clone().for_each(|n| table.get(n).store(n as u64 + 1, Relaxed));
        numbers.for_each(|n| assert_eq!(table.get(n).load(Relaxed), n as u64 + 1));
        assert_eq!(table.bytes(), pages * source.page_bytes());
        // SAFETY: the entries are used no more.
        unsafe { table.release(source) };
        assert_eq!(source.counts().reserved_bytes, 0);
    }

    #[test]
    fn entries_stay_where_they_are() {
        let source = Counted::new(Os);
        fill_and_check(&Table::new(source.page_bytes()), &source);
    }

    #[test]
    fn lent_room_comes_first() {
        let source = Counted::new(Os);
        let room = [const { AtomicU64::new(0) }; 37];
        // SAFETY: zeroed, used by nobody else, and outlives the table.
        let table = unsafe {
            Table::with_room(source.page_bytes(), NonNull::from(&room).cast(), room.len())
        };
        assert_eq!((table.end() - table.first(), table.bytes()), (room.len(), 0));
        fill_and_check(&table, &source);
        assert_eq!(room[36].load(Relaxed) as usize, source.page_bytes() / 8);
    }
}
