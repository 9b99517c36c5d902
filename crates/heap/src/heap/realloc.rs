//! Making objects larger or smaller.

use core::ptr::NonNull;

use hectare_pages::System;

use super::large::MOVE_BYTES;
use super::{Heap, Place};
use crate::class::MIN_ALIGN;
use crate::region::FRAME_BYTES;
use crate::seat::Seat;

impl<S: System> Heap<S> {
    /// Makes the object at `object` hold `bytes`, moving it if need be. Returns null, with nothing
    /// changed, when out of memory, unless the object holds as many already.
    ///
    /// # Safety
    /// `object` is not used again unless the result is null.
    pub unsafe fn realloc(&self, mut seat: Seat<'_>, object: NonNull<u8>, bytes: usize) -> *mut u8 {
        let place = match self.place_of(object) {
            Ok(place) => place,
            Err(cause) => self.misuse("realloc", object.as_ptr(), cause),
        };
        if let Some(start) = self.resize(object, place, bytes) {
            return start.as_ptr();
        }
        let old_bytes = place.bytes();
        let with_room = match place {
            Place::Run { .. } => Self::moved_run_bytes(old_bytes, bytes),
            Place::Small { .. } | Place::Huge { .. } => bytes,
        };
        let mut moved = self.malloc_aligned(seat.again(), with_room, MIN_ALIGN);
        if moved.is_null() && with_room > bytes {
            // The request must not fail because there is no memory for the room to grow.
            moved = self.malloc_aligned(seat.again(), bytes, MIN_ALIGN);
        }
        if moved.is_null() && bytes <= old_bytes {
            // The object is long enough as it is: programs do not expect shortening to fail.
            return object.as_ptr();
        }
        // SAFETY: the caller's promise, passed on.
        let free = |object| unsafe { self.free_slow(seat, object) };
        // SAFETY: both have as many bytes; one was just taken.
        unsafe { move_to(moved, object, old_bytes.min(bytes), free) }
    }

    /// Makes the object in `place` hold `bytes` without copying it. Returns where the object is
    /// then. `None`, with nothing changed, if that is not possible or not worth it.
    fn resize(&self, object: NonNull<u8>, place: Place, bytes: usize) -> Option<NonNull<u8>> {
        match place {
            Place::Small { class, .. } => class.keeps(bytes).then_some(object),
            Place::Run { frames } => self.resize_run(object, frames * FRAME_BYTES, bytes),
            Place::Huge { .. } if bytes < MOVE_BYTES => None,
            Place::Huge { .. } => self.backend.huge.lock().resize(object, bytes, self.source()),
        }
    }
}

/// Moves the first `bytes` of an object to one that was just taken, and has `free` free the old
/// one. Does nothing if `taken` is null. Returns `taken`.
///
/// # Safety
/// Both have at least `bytes` bytes, and are different objects.
#[inline(always)]
pub(crate) unsafe fn move_to(
    taken: *mut u8,
    object: NonNull<u8>,
    bytes: usize,
    free: impl FnOnce(*mut u8),
) -> *mut u8 {
    if !taken.is_null() {
        // SAFETY: the caller's promise: different objects are disjoint.
        unsafe { taken.copy_from_nonoverlapping(object.as_ptr(), bytes) };
        free(object.as_ptr());
    }
    taken
}
