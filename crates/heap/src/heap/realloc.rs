//! Making objects larger or smaller.

use core::ptr::NonNull;

use hectare_pages::System;

use super::large::MOVE_BYTES;
use super::{Heap, Place};
use crate::class::MIN_ALIGN;
use crate::object::move_to;
use crate::region::FRAME_BYTES;
use crate::seat::Seat;

impl<S: System> Heap<S> {
    /// Makes the object at `object` hold `bytes`, moving it if need be; null, and nothing has
    /// changed, when out of memory, unless it holds as many already.
    ///
    /// # Safety
    /// `seat` as in [`malloc_slow`](Self::malloc_slow); `object` is not used again unless the
    /// answer is null.
    pub unsafe fn realloc(&self, seat: Seat, object: NonNull<u8>, bytes: usize) -> *mut u8 {
        let place = match self.place_of(object) {
            Ok(place) => place,
            Err(cause) => self.misuse("realloc", object.as_ptr(), cause),
        };
        let mut taken_bytes = bytes;
        let old_bytes = match place {
            Place::Small { class, .. } => {
                if class.keeps(bytes) {
                    return object.as_ptr();
                }
                class.object_bytes()
            }
            Place::Run { frames } => {
                let old_bytes = frames * FRAME_BYTES;
                if let Some(kept) = self.resize_run(object, old_bytes, bytes) {
                    return kept.as_ptr();
                }
                taken_bytes = Self::moved_run_bytes(old_bytes, bytes);
                old_bytes
            }
            Place::Huge { bytes: old_bytes } => {
                if bytes >= MOVE_BYTES {
                    let resized = self.backend.huge.lock().resize(object, bytes, self.source());
                    if let Some(start) = resized {
                        return start.as_ptr();
                    }
                }
                old_bytes
            }
        };
        // SAFETY: the caller's promise, passed on.
        let mut moved = unsafe { self.malloc_aligned(seat, taken_bytes, MIN_ALIGN) };
        if moved.is_null() && taken_bytes > bytes {
            // It must not fail for want of room to grow.
            // SAFETY: as above.
            moved = unsafe { self.malloc_aligned(seat, bytes, MIN_ALIGN) };
        }
        if moved.is_null() && bytes <= old_bytes {
            // It is long enough as it is: programs do not expect that what becomes shorter fails.
            return object.as_ptr();
        }
        // SAFETY: the caller's promise, passed on.
        let free = |object| unsafe { self.free_slow(seat, object) };
        // SAFETY: both have as many bytes; one was just taken.
        unsafe { move_to(moved, object, old_bytes.min(bytes), free) }
    }
}
