//! Peers from crates.io, built into this program with the same settings as ours.

use std::alloc::Layout;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

use super::{ALIGN, Subject};

#[inline(always)]
fn layout(bytes: usize) -> Layout {
    // SAFETY: the alignment is a power of two, and no size here comes near the limit.
    unsafe { Layout::from_size_align_unchecked(bytes.max(1), ALIGN) }
}

pub(super) struct Rlsf(pub(super) Box<rlsf::Tlsf<'static, u32, u32, 28, 32>>);

impl Subject for Rlsf {
    #[inline]
    fn alloc(&mut self, bytes: usize) -> *mut u8 {
        self.0.allocate(layout(bytes)).map_or(null_mut(), NonNull::as_ptr)
    }

    #[inline]
    unsafe fn free(&mut self, ptr: *mut u8, _bytes: usize) {
        // SAFETY: the caller's promise; `alloc` gave it, so it is not null.
        let block = unsafe { NonNull::new_unchecked(ptr) };
        // SAFETY: as above.
        unsafe { self.0.deallocate(block, ALIGN) };
    }
}

pub(super) struct Talc(pub(super) talc::TalcCell<talc::source::Manual>);

impl Subject for Talc {
    #[inline]
    fn alloc(&mut self, bytes: usize) -> *mut u8 {
        // SAFETY: the layout's size is not zero.
        unsafe { self.0.get_mut().try_allocate(layout(bytes)) }.map_or(null_mut(), NonNull::as_ptr)
    }

    #[inline]
    unsafe fn free(&mut self, ptr: *mut u8, bytes: usize) {
        // SAFETY: the caller's promise, with the layout of `alloc`.
        unsafe { self.0.get_mut().deallocate(ptr, layout(bytes)) };
    }
}

pub(super) struct LinkedList(pub(super) linked_list_allocator::Heap);

impl Subject for LinkedList {
    #[inline]
    fn alloc(&mut self, bytes: usize) -> *mut u8 {
        self.0.allocate_first_fit(layout(bytes)).map_or(null_mut(), NonNull::as_ptr)
    }

    #[inline]
    unsafe fn free(&mut self, ptr: *mut u8, bytes: usize) {
        // SAFETY: the caller's promise; `alloc` gave it, so it is not null.
        let block = unsafe { NonNull::new_unchecked(ptr) };
        // SAFETY: the caller's promise, with the layout of `alloc`.
        unsafe { self.0.deallocate(block, layout(bytes)) };
    }
}

pub(super) struct Buddy(pub(super) buddy_alloc::buddy_alloc::BuddyAlloc);

impl Subject for Buddy {
    #[inline]
    fn alloc(&mut self, bytes: usize) -> *mut u8 {
        self.0.malloc(bytes.max(1))
    }

    #[inline]
    unsafe fn free(&mut self, ptr: *mut u8, _bytes: usize) {
        self.0.free(ptr);
    }
}

/// dlmalloc's system: one arena, given once.
pub(super) struct OneArena {
    start: usize,
    bytes: usize,
    given: AtomicBool,
}

impl OneArena {
    pub(super) fn new(start: NonNull<u8>, bytes: usize) -> Self {
        Self { start: start.as_ptr().expose_provenance(), bytes, given: AtomicBool::new(false) }
    }
}

// SAFETY: the arena is handed out once, and nothing else is ever handed out.
unsafe impl dlmalloc::Allocator for OneArena {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        if size > self.bytes || self.given.swap(true, Ordering::Relaxed) {
            return (null_mut(), 0, 0);
        }
        (std::ptr::with_exposed_provenance_mut(self.start), self.bytes, 0)
    }

    fn remap(&self, _ptr: *mut u8, _old: usize, _new: usize, _can_move: bool) -> *mut u8 {
        null_mut()
    }

    fn free_part(&self, _ptr: *mut u8, _old: usize, _new: usize) -> bool {
        false
    }

    fn free(&self, _ptr: *mut u8, _size: usize) -> bool {
        false
    }

    fn can_release_part(&self, _flags: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        false
    }

    fn page_size(&self) -> usize {
        4096
    }
}

pub(super) struct Dl(pub(super) dlmalloc::Dlmalloc<OneArena>);

impl Subject for Dl {
    #[inline]
    fn alloc(&mut self, bytes: usize) -> *mut u8 {
        // SAFETY: any size will do; the alignment is dlmalloc's own.
        unsafe { self.0.malloc(bytes, ALIGN) }
    }

    #[inline]
    unsafe fn free(&mut self, ptr: *mut u8, bytes: usize) {
        // SAFETY: the caller's promise, with the layout of `alloc`.
        unsafe { self.0.free(ptr, bytes, ALIGN) };
    }
}
