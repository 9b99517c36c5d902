//! Other people's allocators, and the touched memory in which some keep their lists.

use std::alloc::Layout;
use std::ptr::NonNull;

use hectare_buddy::Order;

use super::{FRAME_BYTES, Subject};

/// `buddy_system_allocator`'s frame allocator.
pub(super) struct SystemFrames(pub(super) buddy_system_allocator::FrameAllocator<33>);

impl Subject for SystemFrames {
    #[inline]
    fn alloc(&mut self, order: Order) -> Option<usize> {
        self.0.alloc(order.frames())
    }

    #[inline]
    fn free(&mut self, frame: usize, order: Order) {
        self.0.dealloc(frame, order.frames());
    }
}

/// Touched memory for the allocators that keep their lists in the frames.
pub(super) struct Memory {
    pub(super) bytes: NonNull<u8>,
    pub(super) frames: usize,
}

impl Memory {
    fn layout(frames: usize) -> Layout {
        // Aligned to the largest block, so that a frame number means the same to all subjects.
        Layout::from_size_align(frames * FRAME_BYTES, 1 << 30).expect("a size below 5 GiB")
    }

    pub(super) fn new(frames: usize) -> Self {
        let layout = Self::layout(frames);
        // SAFETY: the size is not 0: there is at least one block.
        let Some(bytes) = NonNull::new(unsafe { std::alloc::alloc(layout) }) else {
            std::alloc::handle_alloc_error(layout)
        };
        // SAFETY: all of the memory just allocated. Page faults are not what is measured.
        unsafe { bytes.write_bytes(0, layout.size()) };
        Self { bytes, frames }
    }

    pub(super) fn base(&self) -> usize {
        self.bytes.as_ptr().expose_provenance()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`.
        unsafe { std::alloc::dealloc(self.bytes.as_ptr(), Self::layout(self.frames)) };
    }
}

/// `buddy_system_allocator`'s heap.
pub(super) struct SystemHeap {
    pub(super) heap: buddy_system_allocator::Heap<48>,
    pub(super) base: usize,
}

/// The layout of a block.
#[inline]
fn layout(order: Order) -> Layout {
    let bytes = order.frames() * FRAME_BYTES;
    Layout::from_size_align(bytes, bytes).expect("a power of two")
}

impl Subject for SystemHeap {
    #[inline]
    fn alloc(&mut self, order: Order) -> Option<usize> {
        let block = self.heap.alloc(layout(order)).ok()?;
        Some((block.as_ptr().expose_provenance() - self.base) / FRAME_BYTES)
    }

    #[inline]
    fn free(&mut self, frame: usize, order: Order) {
        let address = self.base + frame * FRAME_BYTES;
        let block = NonNull::new(std::ptr::with_exposed_provenance_mut(address));
        // SAFETY: the block was allocated from this heap with this layout.
        unsafe { self.heap.dealloc(block.expect("not null"), layout(order)) };
    }
}

/// `buddy-alloc`.
pub(super) struct OfBuddyAlloc {
    pub(super) allocator: buddy_alloc::buddy_alloc::BuddyAlloc,
    pub(super) base: usize,
}

impl Subject for OfBuddyAlloc {
    #[inline]
    fn alloc(&mut self, order: Order) -> Option<usize> {
        let block = self.allocator.malloc(order.frames() * FRAME_BYTES);
        (!block.is_null()).then(|| (block.expose_provenance() - self.base) / FRAME_BYTES)
    }

    #[inline]
    fn free(&mut self, frame: usize, _order: Order) {
        let address = self.base + frame * FRAME_BYTES;
        self.allocator.free(std::ptr::with_exposed_provenance_mut(address));
    }
}
