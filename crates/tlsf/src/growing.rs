//! Growth on demand: regions from a page source, given back as soon as they are wholly free.
//!
//! ```text
//!   malloc ─▶ heap ─ no block ─▶ get_mem: one region more ─▶ heap
//!   free ──▶ heap ─ the region is one free block ─▶ put_mem, if enough stays free elsewhere
//! ```

use core::ptr::NonNull;

use hectare_base::align::{align_down, align_up, checked_align_up};
use hectare_pages::PageSource;

use crate::block::Block;
use crate::error::{Failure, Misuse};
use crate::heap::Tlsf;
use crate::pool::Pool;
use crate::table::{Row, Rows, Shape};
use crate::word::Word;

/// How a [`Growing`] heap takes and gives back memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrowthPolicy {
    /// The size of a region in bytes, rounded up to whole pages. A request too large for it gets a
    /// region of its own size plus what rounding to a class may add (a 32nd by the default table).
    /// No region is longer than the largest pool, in whole pages.
    pub region_bytes: usize,
    /// A free region is given back only if at least this many bytes stay free without it; with
    /// zero, every free region goes back at once.
    pub keep_free_bytes: usize,
}

impl GrowthPolicy {
    /// Regions of 64 KiB. One of them may stay free.
    // A free region is shorter by the head of its pool, of a granule (4 KiB at most) or more.
    pub const DEFAULT: Self = Self { region_bytes: 64 << 10, keep_free_bytes: 60 << 10 };
}

/// What a [`Growing`] heap has taken from its source and given back.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct GrowthCounts {
    /// Regions taken from the source.
    pub get_mem_calls: u64,
    /// Regions given back to it.
    pub put_mem_calls: u64,
    /// Bytes of the regions held now.
    pub region_bytes: usize,
    /// The most bytes ever held at once.
    pub peak_region_bytes: usize,
}

/// A [`Tlsf`] heap that takes regions from a page source as it needs them.
///
/// The heap uses pools that the caller adds to the inner heap like regions, but never gives them to
/// the source.
#[derive(Debug)]
pub struct Growing<S: PageSource, R: Rows = [Row<u32, 32>; 26]> {
    heap: Tlsf<R>,
    source: S,
    policy: GrowthPolicy,
    counts: GrowthCounts,
}

impl<S: PageSource, T: Shape, const FIRST: usize> Growing<S, [T; FIRST]>
where
    [T; FIRST]: Rows<Row = T>,
{
    /// A heap that holds nothing yet.
    pub const fn new(source: S, policy: GrowthPolicy) -> Self {
        let counts = GrowthCounts {
            get_mem_calls: 0,
            put_mem_calls: 0,
            region_bytes: 0,
            peak_region_bytes: 0,
        };
        Self { heap: Tlsf::<[T; FIRST]>::new(), source, policy, counts }
    }
}

impl<S: PageSource, R: Rows> Growing<S, R> {
    /// As [`Tlsf::malloc`]; takes a region if no block is large enough.
    #[inline]
    pub fn malloc(&mut self, size: usize) -> Option<NonNull<u8>> {
        match self.heap.malloc(size) {
            Some(ptr) => Some(ptr),
            None => self.grow(size, 1).and_then(|()| self.heap.malloc(size)),
        }
    }

    /// As [`Tlsf::memalign`]; takes a region if no block is large enough.
    #[inline]
    pub fn memalign(&mut self, align: usize, size: usize) -> Option<NonNull<u8>> {
        match self.heap.memalign(align, size) {
            Some(ptr) => Some(ptr),
            None => self.grow(size, align).and_then(|()| self.heap.memalign(align, size)),
        }
    }

    /// As [`Tlsf::free`]; gives the block's region back if it is free now.
    ///
    /// # Errors
    /// [`Misuse`], if the header shows it.
    ///
    /// # Safety
    /// As for [`Tlsf::free`].
    #[inline]
    pub unsafe fn free(&mut self, ptr: NonNull<u8>) -> Result<(), Misuse> {
        // SAFETY: the caller's promise, passed on.
        let free_pool = unsafe { self.heap.release(ptr) }?;
        if let Some(block) = free_pool {
            self.shrink(block, self.policy.keep_free_bytes);
        }
        Ok(())
    }

    /// As [`Tlsf::realloc`]; takes a region if no block is large enough, and gives back the region
    /// that the block has left if it is free now.
    ///
    /// # Errors
    /// [`Misuse`], if the header shows it.
    ///
    /// # Safety
    /// As for [`Tlsf::realloc`].
    pub unsafe fn realloc(
        &mut self,
        ptr: NonNull<u8>,
        align: usize,
        size: usize,
    ) -> Result<Option<NonNull<u8>>, Misuse> {
        // SAFETY: the caller's promise, passed on.
        let (mut new, mut free_pool) = unsafe { self.heap.resize(ptr, align, size) }?;
        if new.is_none() && self.grow(size, align).is_some() {
            // SAFETY: as above; the refused call left the block as it was.
            (new, free_pool) = unsafe { self.heap.resize(ptr, align, size) }?;
        }
        if let Some(block) = free_pool {
            self.shrink(block, self.policy.keep_free_bytes);
        }
        Ok(new)
    }

    /// As [`Tlsf::resize_in_place`].
    ///
    /// # Errors
    /// [`Misuse`], if the header shows it.
    ///
    /// # Safety
    /// As for [`Tlsf::resize_in_place`].
    pub unsafe fn resize_in_place(
        &mut self,
        ptr: NonNull<u8>,
        size: usize,
    ) -> Result<bool, Misuse> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.heap.resize_in_place(ptr, size) }
    }

    /// As [`Tlsf::usable_size`].
    ///
    /// # Errors
    /// [`Misuse`], if the header shows it.
    ///
    /// # Safety
    /// As for [`Tlsf::usable_size`].
    pub unsafe fn usable_size(&self, ptr: NonNull<u8>) -> Result<usize, Misuse> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.heap.usable_size(ptr) }
    }

    /// Gives back every region that is wholly free. O(regions).
    pub fn trim(&mut self) {
        let mut index = self.heap.newest_pool.get();
        // Bounded by the count, so that a broken chain does not loop for ever.
        for _ in 0..self.heap.pool_count.get() {
            let block = self.heap.block(index);
            index = block.older_pool();
            let header = block.header();
            if header.is_free() && header.granules() == block.footer_before().granules() {
                self.shrink(block, 0);
            }
        }
    }

    /// What this heap has taken from its source and given back.
    pub fn counts(&self) -> GrowthCounts {
        self.counts
    }

    /// The heap inside: its figures, pools and blocks. Read-only, so that it cannot be parted from
    /// its regions. Its last failure may be of a request that a new region then served.
    ///
    /// ```compile_fail,E0308
    /// # use hectare_pages::Os;
    /// # use hectare_tlsf::{Growing, GrowthPolicy};
    /// let mut heap: Growing<Os> = Growing::new(Os, GrowthPolicy::DEFAULT);
    /// let _ = core::mem::take(heap.heap());
    /// ```
    pub fn heap(&self) -> &Tlsf<R> {
        &self.heap
    }

    /// The heap inside, for adding pools of the caller's and taking them back.
    ///
    /// # Safety
    /// The heap stays where it is: moved elsewhere, or swapped with another, it would outlive its
    /// regions. The caller removes no region from it.
    pub unsafe fn heap_mut(&mut self) -> &mut Tlsf<R> {
        &mut self.heap
    }

    /// The page source.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Takes a region that has room for `size` bytes at `align`.
    #[cold]
    fn grow(&mut self, size: usize, align: usize) -> Option<()> {
        if self.heap.last_failure == Some(Failure::TooLarge) {
            return None;
        }
        let unit_bytes = self.unit_bytes();
        // The smallest block may be larger than the size requires.
        let size = size.max(Block::<R::Row>::payload_bytes(Block::<R::Row>::MIN_GRANULES));
        // Rounding to a class adds up to half of the size (with the fewest lists a row).
        let class_bytes = size / (1 << R::Row::SECOND_LOG2) + (1 << R::Row::GRANULE_LOG2);
        let needed = size
            .checked_add(class_bytes)?
            .checked_add(align)?
            .checked_add(2 * Tlsf::<R>::POOL_OVERHEAD_BYTES)?;
        // If the sum exceeds the largest pool, only what rounding and aligning may add at most does
        // not fit. One block takes all of such a pool and is the largest, so it serves every
        // request that is not `TooLarge`.
        let largest_bytes = self.heap.max_block_bytes() + Tlsf::<R>::POOL_OVERHEAD_BYTES;
        let pool_bytes = needed.max(self.policy.region_bytes).min(largest_bytes);
        let bytes = checked_align_up(pool_bytes, unit_bytes)?;
        let Ok(start) = self.source.get(bytes, unit_bytes) else {
            self.heap.last_failure = Some(Failure::Source);
            return None;
        };
        // SAFETY: the region is fresh from the source, and nobody else uses it until it is given
        // back.
        if unsafe { self.heap.add(start, bytes.min(largest_bytes), true) }.is_err() {
            // SAFETY: a whole reservation, which the heap refused to use.
            unsafe { self.source.release(start, bytes) };
            self.heap.last_failure = Some(Failure::Source);
            return None;
        }
        self.counts.get_mem_calls += 1;
        self.counts.region_bytes += bytes;
        self.counts.peak_region_bytes = self.counts.peak_region_bytes.max(self.counts.region_bytes);
        Some(())
    }

    /// Gives the region that begins with `block`, all of it free, back to the source, if it came
    /// from the source and `keep_free_bytes` stay free.
    #[cold]
    fn shrink(&mut self, block: Block<R::Row>, keep_free_bytes: usize) {
        let granules = block.header().granules();
        let free_granules = self.heap.free_granules();
        let left_bytes = (free_granules - granules) << R::Row::GRANULE_LOG2;
        if !block.footer_before().is_owned() || left_bytes < keep_free_bytes {
            return;
        }
        let (start, bytes) = self.region(block);
        // SAFETY: the pool is one of the heap, and wholly free.
        if unsafe { self.heap.remove_pool(Pool { first_payload: block.payload() }) }.is_err() {
            return;
        }
        self.counts.put_mem_calls += 1;
        self.counts.region_bytes -= bytes;
        // SAFETY: exactly what `grow` took, and no longer a pool.
        unsafe { self.source.release(start, bytes) };
    }

    /// The unit of regions' sizes and addresses. A pool's head is no longer than this, so the
    /// address of a region's first block determines where the region starts.
    fn unit_bytes(&self) -> usize {
        self.source.page_bytes().max(Tlsf::<R>::POOL_OVERHEAD_BYTES)
    }

    /// The region that begins with `block`, the first block of an owned pool.
    fn region(&self, block: Block<R::Row>) -> (NonNull<u8>, usize) {
        let unit_bytes = self.unit_bytes();
        let end = block.after(block.footer_before().granules()).payload();
        // The largest pool need not end at a page boundary.
        let end = align_up(end, unit_bytes);
        let start = align_down(block.payload() - 1, unit_bytes);
        let ptr = core::ptr::with_exposed_provenance_mut(start);
        (NonNull::new(ptr).expect("a region of the page source"), end - start)
    }
}

impl<S: PageSource, R: Rows> Drop for Growing<S, R> {
    /// Gives all regions back, whatever they hold.
    fn drop(&mut self) {
        let mut index = self.heap.newest_pool.get();
        for _ in 0..self.heap.pool_count.get() {
            let block = self.heap.block(index);
            index = block.older_pool();
            if block.footer_before().is_owned() {
                let (start, bytes) = self.region(block);
                // SAFETY: exactly what `grow` took; the heap dies, and its blocks with it.
                unsafe { self.source.release(start, bytes) };
            }
        }
    }
}
