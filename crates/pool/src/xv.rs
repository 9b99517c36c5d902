//! Segregated fit within single pages: xvMalloc, the allocator of compcache (Gupta, 2008).
//!
//! Blocks never straddle pages, so the pool needs pages and nothing else: no contiguous address
//! space, no page descriptors. A handle is the place itself, page and offset.
//!
//! ```text
//!  page   ┌────┬───────────┬────┬─────────┬────┬────────────────────┐
//!         │head│ object    │head│ free    │head│ object             │
//!         └────┴───────────┴────┴─────────┴────┴────────────────────┘
//!  head   size: u16   exact bytes of the object, or of the free room
//!         prev: u16   offset of the block before; bit 0 FREE, bit 1 PREV_FREE
//!  free   next, prev: pointers   the neighbours in its list
//!
//!  lists  one for every 32 bytes up to the page, behind a two-level bitmap; of the first
//!         eight blocks of a list the one that fits best is taken
//! ```
//!
//! Invariants
//! 1. The blocks of a page follow each other without gaps, each as long as its head plus its size
//!    rounded up to a multiple of 4 (for an object, to at least 32); the last ends at the page's
//!    end.
//! 2. `prev` of a block is the offset of the block before it (0 for the first), and `PREV_FREE` is
//!    set exactly when that block is `FREE`. No two neighbours are free.
//! 3. A free block of at least 32 bytes is in the list of its size; smaller ones are in no list and
//!    wait for a neighbour to be freed.
//! 4. No page is wholly free: it goes back to the source at once.
//!
//! `alloc` and `free` take constant time, except for the source's part. The pool keeps no table of
//! its pages, so when it is dropped, the pages of objects not yet freed are not given back.

use core::num::NonZeroU64;
use core::ptr::NonNull;

use hectare_base::sync::{Lock, Park, SpinPark};
use hectare_pages::PageSource;

use crate::setting::check_pages;
use crate::span::Span;
use crate::{Handle, NoObject, Pool, PoolError, PoolStats};

mod lists;
#[cfg(all(test, not(loom)))]
mod tests;

use lists::{Lists, MIN_LISTED};

/// Size and back offset.
const HEAD: usize = 4;
const ALIGN: usize = 4;
const FREE: u16 = 1;
const PREV_FREE: u16 = 2;
const FLAGS: u16 = FREE | PREV_FREE;

/// An xvMalloc pool over `S`; threads wait for its one lock as `P` says (see the [crate](crate)).
#[derive(Debug)]
pub struct Xv<S: PageSource, P = SpinPark> {
    source: S,
    page_bytes: usize,
    inner: Lock<Inner, P>,
}

#[derive(Debug)]
struct Inner {
    lists: Lists,
    objects: usize,
    stored_bytes: usize,
    pages: usize,
    pages_taken: u64,
    pages_returned: u64,
    page_bytes: usize,
}

/// A block: its page, and the offset of its head in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    page: Span,
    offset: usize,
}

impl Block {
    /// The block whose object starts at `payload`.
    ///
    /// # Safety
    /// `payload` is the start of an object, past or present, or of free room, in a page of the
    /// pool.
    #[inline]
    unsafe fn at_payload(payload: NonNull<u8>, page_bytes: usize) -> Self {
        let into_page = payload.addr().get() & (page_bytes - 1);
        // SAFETY: the page starts `into_page` before the object, in the same allocation.
        let base = unsafe { payload.sub(into_page) };
        // SAFETY: a page of the pool is committed until it is released.
        let page = unsafe { Span::new(base, page_bytes) };
        Self { page, offset: into_page - HEAD }
    }

    #[inline]
    fn size(self) -> usize {
        self.page.read_u16(self.offset) as usize
    }

    #[inline]
    fn set_size(self, size_bytes: usize) {
        self.page.write_u16(self.offset, size_bytes as u16);
    }

    #[inline]
    fn back(self) -> u16 {
        self.page.read_u16(self.offset + 2)
    }

    #[inline]
    fn set_back(self, prev_offset: usize, flags: u16) {
        self.page.write_u16(self.offset + 2, prev_offset as u16 | flags);
    }

    #[inline]
    fn is_free(self) -> bool {
        self.back() & FREE != 0
    }

    #[inline]
    fn prev_offset(self) -> usize {
        (self.back() & !FLAGS) as usize
    }

    #[inline]
    fn mark_prev_free(self, free: bool) {
        let back = self.back() & !PREV_FREE;
        self.page.write_u16(self.offset + 2, if free { back | PREV_FREE } else { back });
    }

    /// The offset at which the next block starts, by invariant 1.
    #[inline]
    fn end(self) -> usize {
        let room = if self.is_free() { self.size() } else { object_room(self.size()) };
        self.offset + HEAD + room
    }

    #[inline]
    fn next(self) -> Option<Self> {
        let end = self.end();
        (end < self.page.len()).then_some(Self { page: self.page, offset: end })
    }

    /// Whether an object lies here, as far as its head shows: it is not free, and the block before
    /// it ends here. Where no block begins any more, what came later may lie over the head: bytes
    /// of an object, or links of a free block. They pass only by chance (and links that lead
    /// nowhere, which are zeros, never: the page's first block does not end here).
    #[inline]
    fn is_object(self) -> bool {
        let (back, prev) = (self.back(), Self { page: self.page, offset: self.prev_offset() });
        let prev_end = |size: usize| {
            let room = if back & PREV_FREE != 0 { size } else { object_room(size) };
            prev.offset + HEAD + room
        };
        back & FREE == 0
            && (self.offset == 0
                || prev.offset < self.offset && prev_end(prev.size()) == self.offset)
    }

    #[inline]
    fn prev_if_free(self) -> Option<Self> {
        (self.back() & PREV_FREE != 0).then(|| Self { page: self.page, offset: self.prev_offset() })
    }

    /// The name of the block's object.
    #[inline]
    fn handle(self) -> Result<Handle, PoolError> {
        let address = NonZeroU64::try_from(self.payload().addr());
        Ok(Handle::new(address.map_err(|_| PoolError::Full)?))
    }

    #[inline]
    fn payload(self) -> NonNull<u8> {
        // SAFETY: a block lies within its page, its head included.
        unsafe { self.page.base().add(self.offset + HEAD) }
    }
}

/// The bytes that an object takes in its page, without its head: enough for the block to be listed
/// once freed.
#[inline]
const fn object_room(size_bytes: usize) -> usize {
    let room = size_bytes.next_multiple_of(ALIGN);
    if room < MIN_LISTED { MIN_LISTED } else { room }
}

impl<S: PageSource, P: Park> Xv<S, P> {
    /// An empty pool; it takes its first page with its first object.
    ///
    /// # Panics
    /// If the source's pages are under 64 bytes, or above 64 KiB, which 16-bit offsets cannot
    /// cover.
    pub fn new(source: S) -> Self {
        let page_bytes = source.page_bytes();
        check_pages("xv", page_bytes, 64);
        let inner = Inner {
            lists: Lists::new(page_bytes),
            objects: 0,
            stored_bytes: 0,
            pages: 0,
            pages_taken: 0,
            pages_returned: 0,
            page_bytes,
        };
        Self { source, page_bytes, inner: Lock::new(inner) }
    }

    /// The source that the pages come from.
    pub const fn source(&self) -> &S {
        &self.source
    }

    /// Where the object is. It stays there for life, so no call ends this.
    ///
    /// # Safety
    /// `handle` names a live object of this pool.
    #[inline]
    pub unsafe fn map(&self, handle: Handle) -> NonNull<[u8]> {
        // SAFETY: the caller's promise.
        let block = unsafe { self.block(handle) };
        NonNull::slice_from_raw_parts(block.payload(), block.size())
    }

    /// # Safety
    /// `handle` names an object of this pool whose page has not been given back.
    #[inline]
    unsafe fn block(&self, handle: Handle) -> Block {
        let address = core::ptr::with_exposed_provenance_mut(handle.to_raw().get() as usize);
        // SAFETY: the handle is an address of a live object, hence not null.
        let payload = unsafe { NonNull::new_unchecked(address) };
        // SAFETY: the caller's promise.
        unsafe { Block::at_payload(payload, self.page_bytes) }
    }

    /// Takes a page, and `size_bytes` from it, even if another thread has made room in the
    /// meantime, since nobody else would give back a page that was never used. Called without the
    /// lock, since asking the system for memory is slow.
    #[cold]
    fn grow(&self, size_bytes: usize) -> Result<Handle, PoolError> {
        let page = self.source.get(self.page_bytes, self.page_bytes);
        let base = page.map_err(|_| PoolError::OutOfMemory)?;
        base.as_ptr().expose_provenance();
        // SAFETY: a page of the source, committed until `give_back`.
        let page = unsafe { Span::new(base, self.page_bytes) };
        let block = Block { page, offset: 0 };
        block.set_size(self.page_bytes - HEAD);
        block.set_back(0, FREE);
        let mut inner = self.inner.lock();
        inner.pages += 1;
        inner.pages_taken += 1;
        inner.cut(block, size_bytes).handle()
    }

    #[cold]
    fn give_back(&self, page: Span) {
        // SAFETY: the page's only block is free and in no list, so nothing in it is in use.
        unsafe { self.source.release(page.base(), self.page_bytes) };
    }
}

impl Inner {
    /// Cuts `size_bytes` off the free block that fits best, if any fits.
    #[inline]
    fn take(&mut self, size_bytes: usize) -> Option<Block> {
        let free = self.lists.find(object_room(size_bytes), self.page_bytes)?;
        self.lists.remove(free);
        Some(self.cut(free, size_bytes))
    }

    /// Makes an object of a free block that is in no list and has room for it.
    ///
    /// Inlined wherever it is used: with a call an allocation takes 10 to 20 instructions more.
    #[inline(always)]
    fn cut(&mut self, free: Block, size_bytes: usize) -> Block {
        let room = object_room(size_bytes);
        let object = if free.size() == room {
            if let Some(after) = free.next() {
                after.mark_prev_free(false);
            }
            // The block before is in use: no two neighbours were free.
            free.set_back(free.prev_offset(), 0);
            free
        } else {
            self.split(free, room)
        };
        object.set_size(size_bytes);
        self.objects += 1;
        self.stored_bytes += size_bytes;
        object
    }

    /// Cuts `room` plus a head off one end of a free block that is in no list, and lists the rest.
    ///
    /// The object goes next to the smaller neighbour, a page's edge counting as size 0. Then the
    /// rest is next to the larger neighbour and joins it when that is freed. So the first two
    /// objects of a page lie at its ends, and all free room between them, whichever is freed.
    /// (Always cutting at the front costs 1.2 points of overhead on sizes that favour 1024 … 2600.)
    #[inline]
    fn split(&mut self, free: Block, room: usize) -> Block {
        let end = free.end();
        let after = free.next();
        let before_bytes = free.offset - free.prev_offset();
        let after_bytes = after.map_or(0, |after| after.end() - end);
        let (object, rest);
        if after_bytes < before_bytes {
            rest = free;
            object = Block { page: free.page, offset: end - HEAD - room };
            object.set_back(rest.offset, PREV_FREE);
            if let Some(after) = after {
                after.set_back(object.offset, 0);
            }
            rest.set_size(object.offset - HEAD - rest.offset);
        } else {
            object = free;
            rest = Block { page: free.page, offset: free.offset + HEAD + room };
            rest.set_back(object.offset, FREE);
            object.set_back(object.prev_offset(), 0);
            if let Some(after) = after {
                after.set_back(rest.offset, PREV_FREE);
            }
            rest.set_size(end - HEAD - rest.offset);
        }
        self.lists.insert(rest);
        object
    }

    /// Frees a block and joins it with its free neighbours. Returns its page if that is now empty.
    #[inline]
    fn put(&mut self, mut block: Block) -> Option<Span> {
        self.objects -= 1;
        self.stored_bytes -= block.size();
        let mut end = block.end();
        if let Some(next) = block.next()
            && next.is_free()
        {
            self.lists.remove(next);
            end = next.end();
        }
        if let Some(prev) = block.prev_if_free() {
            self.lists.remove(prev);
            // No block starts here any more. The mark shows a second free of the object.
            block.set_back(prev.offset, FREE);
            block = prev;
        }
        if block.offset == 0 && end == block.page.len() {
            self.pages -= 1;
            self.pages_returned += 1;
            return Some(block.page);
        }
        block.set_size(end - block.offset - HEAD);
        // Neighbours are never both free, so the block before a joined one is in use.
        block.set_back(block.prev_offset(), FREE);
        if let Some(after) = block.next() {
            after.set_back(block.offset, after.back() & FREE | PREV_FREE);
        }
        self.lists.insert(block);
        None
    }
}

// Average instructions with ten thousand objects (`hectare bench pools -- --callgrind --range R`):
// alloc 255, free 179 for 512..576; 369 and 171 for 3072..3136, where each alloc takes a page and
// each free gives one back. The system's part is not counted.
impl<S: PageSource + Sync, P: Park> Pool for Xv<S, P> {
    fn name(&self) -> &'static str {
        "xv"
    }

    fn max_size_bytes(&self) -> usize {
        self.page_bytes - HEAD
    }

    fn alloc(&self, size_bytes: usize) -> Result<Handle, PoolError> {
        let most_bytes = self.max_size_bytes();
        if size_bytes == 0 || size_bytes > most_bytes {
            return Err(PoolError::Size { bytes: size_bytes, most_bytes });
        }
        let taken = self.inner.lock().take(size_bytes);
        match taken {
            Some(block) => block.handle(),
            None => self.grow(size_bytes),
        }
    }

    unsafe fn try_free(&self, handle: Handle) -> Result<(), NoObject> {
        // SAFETY: the caller's promise.
        let block = unsafe { self.block(handle) };
        let mut inner = self.inner.lock();
        if !block.is_object() {
            return Err(NoObject { handle });
        }
        let emptied = inner.put(block);
        drop(inner);
        if let Some(page) = emptied {
            self.give_back(page);
        }
        Ok(())
    }

    unsafe fn size_bytes(&self, handle: Handle) -> usize {
        // SAFETY: the caller's promise.
        unsafe { self.block(handle) }.size()
    }

    unsafe fn write(&self, handle: Handle, data: &[u8]) {
        // SAFETY: the caller's promise.
        let block = unsafe { self.block(handle) };
        debug_assert!(data.len() <= block.size());
        block.page.copy_in(block.offset + HEAD, data);
    }

    unsafe fn try_read(
        &self,
        handle: Handle,
        _bounce: &mut [u8],
        reader: &mut dyn FnMut(&[u8]),
    ) -> Result<(), NoObject> {
        // SAFETY: the caller's promise.
        let block = unsafe { self.block(handle) };
        // SAFETY: a live object; by the caller's promise it was written and is not being written.
        reader(unsafe { block.page.bytes(block.offset + HEAD, block.size()) });
        Ok(())
    }

    /// Does nothing: a page holds objects of every size, and a handle is a place.
    fn compact(&self) -> usize {
        0
    }

    fn stats(&self) -> PoolStats {
        let inner = self.inner.lock();
        PoolStats {
            objects: inner.objects,
            stored_bytes: inner.stored_bytes,
            page_bytes: inner.pages * self.page_bytes,
            cell_bytes: 0,
            descriptor_bytes: size_of::<Self>(),
            pages_taken: inner.pages_taken,
            pages_returned: inner.pages_returned,
            objects_moved: 0,
        }
    }
}
