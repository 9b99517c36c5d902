//! The allocator under test.

use std::ptr::NonNull;

/// One thread's access to an allocator. Null means that memory has run out and nothing has changed.
pub trait Subject {
    /// An object of at least `bytes`, aligned for any type.
    fn malloc(&mut self, bytes: usize) -> *mut u8;

    /// An object of `bytes` zeros.
    fn calloc(&mut self, bytes: usize) -> *mut u8;

    /// An object of at least `bytes` aligned to `align`, a power of two.
    fn aligned(&mut self, bytes: usize, align: usize) -> *mut u8;

    /// Resizes an object to `bytes`.
    ///
    /// # Safety
    /// `object` is live, and dead afterwards unless the answer is null.
    unsafe fn realloc(&mut self, object: NonNull<u8>, bytes: usize) -> *mut u8;

    /// Frees an object.
    ///
    /// # Safety
    /// `object` is live, and dead afterwards.
    unsafe fn free(&mut self, object: NonNull<u8>);

    /// How many bytes of an object may be used.
    fn usable_bytes(&self, object: NonNull<u8>) -> usize;

    /// Gives back memory that is not needed.
    fn trim(&mut self) {}

    /// The alignment that every object has at least.
    fn min_align(&self) -> usize {
        16
    }
}
