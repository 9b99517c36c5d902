//! Heaps as allocators of Rust collections: `Vec::new_in(&heap)`. The trait is that of the crate
//! `allocator-api2`, which stands in for `core::alloc::Allocator` on stable Rust (feature
//! `allocator-api2`).
//!
//! A layout of zero bytes takes no block: its address is its alignment. Collections make up such
//! addresses themselves and give them back, so the heap could not tell them from blocks of that
//! size.
//!
//! References implement the trait, not the heaps. So a collection cannot outlive the heap, and the
//! contents of a leaked collection are borrowed no longer than the heap is.

use core::alloc::Layout;
use core::ptr::{NonNull, without_provenance_mut};

use allocator_api2::alloc::{AllocError, Allocator};
use hectare_base::sync::Park;
use hectare_pages::PageSource;

use crate::error::Misuse;
use crate::locked::{Heap, Locked, Refused, end};
use crate::sharded::Sharded;

/// A [`Sharded`] heap as the threads of one CPU see it, for collections. They allocate from that
/// CPU's shard, and free to the shard that has the block. [`Sharded::on`] makes it.
#[derive(Debug)]
pub struct OnCpu<'s, H> {
    heaps: &'s H,
    cpu: usize,
}

impl<H> Clone for OnCpu<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H> Copy for OnCpu<'_, H> {}

impl<S: PageSource, const SHARDS: usize, const CHUNKS: usize, P: Park>
    Sharded<'_, S, SHARDS, CHUNKS, P>
{
    /// The heaps for a collection that is used on `cpu` (any number: a hint):
    /// `Vec::new_in(heaps.on(cpu))`.
    pub fn on(&self, cpu: usize) -> OnCpu<'_, Self> {
        OnCpu { heaps: self, cpu }
    }
}

/// The calls that all methods of the trait reduce to.
trait Shared {
    fn memalign(&self, align: usize, size: usize) -> Option<NonNull<u8>>;

    /// # Safety
    /// As for [`Tlsf::free`](crate::Tlsf::free).
    unsafe fn free(&self, ptr: NonNull<u8>) -> Result<(), Misuse>;

    /// # Safety
    /// As for [`Tlsf::realloc`](crate::Tlsf::realloc).
    unsafe fn realloc(
        &self,
        ptr: NonNull<u8>,
        align: usize,
        size: usize,
    ) -> Result<Option<NonNull<u8>>, Misuse>;
}

fn allocate(heap: &impl Shared, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
    let start = match layout.size() {
        0 => NonNull::new(without_provenance_mut(layout.align())),
        size => heap.memalign(layout.align(), size),
    };
    Ok(NonNull::slice_from_raw_parts(start.ok_or(AllocError)?, layout.size()))
}

/// # Safety
/// As for [`Allocator::deallocate`].
unsafe fn deallocate(heap: &impl Shared, ptr: NonNull<u8>, layout: Layout) {
    if layout.size() == 0 {
        return;
    }
    // SAFETY: the caller's promise, passed on; the size is above zero, so this is a block.
    if let Err(misuse) = unsafe { heap.free(ptr) } {
        end(&Refused { call: "deallocate", ptr: ptr.as_ptr(), misuse });
    }
}

/// Grows or shrinks, in place if possible.
///
/// # Safety
/// As for [`Allocator::grow`] or [`Allocator::shrink`].
unsafe fn resize(
    heap: &impl Shared,
    ptr: NonNull<u8>,
    old: Layout,
    new: Layout,
) -> Result<NonNull<[u8]>, AllocError> {
    let is_aligned = ptr.addr().get() & (new.align() - 1) == 0;
    if old.size() == 0 || new.size() == 0 || !is_aligned {
        let moved = allocate(heap, new)?;
        let bytes = old.size().min(new.size());
        // SAFETY: both blocks have at least as many bytes, and one is new.
        unsafe { moved.cast::<u8>().copy_from_nonoverlapping(ptr, bytes) };
        // SAFETY: the caller's promise, passed on.
        unsafe { deallocate(heap, ptr, old) };
        return Ok(moved);
    }
    // SAFETY: the caller's promise, passed on; the size is above zero, so this is a block.
    match unsafe { heap.realloc(ptr, new.align(), new.size()) } {
        Ok(Some(start)) => Ok(NonNull::slice_from_raw_parts(start, new.size())),
        Ok(None) => Err(AllocError),
        Err(misuse) => {
            let call = if new.size() < old.size() { "shrink" } else { "grow" };
            end(&Refused { call, ptr: ptr.as_ptr(), misuse })
        }
    }
}

macro_rules! allocator {
    ($heap:ty: $($generics:tt)*) => {
        // SAFETY: blocks are disjoint, have the size and the alignment asked for, and stay where
        // they are until they are freed: the heap is borrowed, and owns its memory for as long.
        // Copies of the reference name one heap.
        unsafe impl<$($generics)*> Allocator for $heap {
            #[inline]
            fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
                allocate(self, layout)
            }

            #[inline]
            unsafe fn deallocate(&self, ptr: NonNull<u8>, layout: Layout) {
                // SAFETY: the caller's promise, passed on.
                unsafe { deallocate(self, ptr, layout) }
            }

            unsafe fn grow(
                &self,
                ptr: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, AllocError> {
                // SAFETY: the caller's promise, passed on.
                unsafe { resize(self, ptr, old, new) }
            }

            unsafe fn grow_zeroed(
                &self,
                ptr: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, AllocError> {
                // SAFETY: the caller's promise, passed on.
                let grown = unsafe { resize(self, ptr, old, new) }?;
                // SAFETY: the old size is no larger than the new one.
                let added = unsafe { grown.cast::<u8>().add(old.size()) };
                // SAFETY: as above.
                unsafe { added.write_bytes(0, new.size() - old.size()) };
                Ok(grown)
            }

            unsafe fn shrink(
                &self,
                ptr: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, AllocError> {
                // SAFETY: the caller's promise, passed on.
                unsafe { resize(self, ptr, old, new) }
            }
        }
    };
}

allocator!(&Locked<H, P>: H: Heap, P: Park);
allocator!(OnCpu<'_, Sharded<'_, S, SHARDS, CHUNKS, P>>:
    S: PageSource, const SHARDS: usize, const CHUNKS: usize, P: Park);

impl<H: Heap, P: Park> Shared for &Locked<H, P> {
    #[inline]
    fn memalign(&self, align: usize, size: usize) -> Option<NonNull<u8>> {
        Locked::memalign(self, align, size)
    }

    #[inline]
    unsafe fn free(&self, ptr: NonNull<u8>) -> Result<(), Misuse> {
        // SAFETY: the caller's promise, passed on.
        unsafe { Locked::free(self, ptr) }
    }

    unsafe fn realloc(
        &self,
        ptr: NonNull<u8>,
        align: usize,
        size: usize,
    ) -> Result<Option<NonNull<u8>>, Misuse> {
        // SAFETY: the caller's promise, passed on.
        unsafe { Locked::realloc(self, ptr, align, size) }
    }
}

impl<S: PageSource, const SHARDS: usize, const CHUNKS: usize, P: Park> Shared
    for OnCpu<'_, Sharded<'_, S, SHARDS, CHUNKS, P>>
{
    #[inline]
    fn memalign(&self, align: usize, size: usize) -> Option<NonNull<u8>> {
        self.heaps.memalign(self.cpu, align, size)
    }

    #[inline]
    unsafe fn free(&self, ptr: NonNull<u8>) -> Result<(), Misuse> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.heaps.free(ptr) }
    }

    unsafe fn realloc(
        &self,
        ptr: NonNull<u8>,
        align: usize,
        size: usize,
    ) -> Result<Option<NonNull<u8>>, Misuse> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.heaps.realloc(ptr, align, size) }
    }
}
