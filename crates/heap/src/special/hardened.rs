//! The hardened front's calls: one lock a call, in place of a thread's list (`crate::hardened`).

use core::ptr::NonNull;

use hectare_pages::Os;

use super::Kind;
use crate::class::MIN_ALIGN;
use crate::heap::move_to;
use crate::process::Process;

impl Process {
    /// An object for `bytes`. Null when out of memory.
    pub(super) fn hardened_malloc(&'static self, bytes: usize, kind: Kind) -> *mut u8 {
        let _inside = self.enter();
        let (object, is_zero) = self.hardened.malloc(&self.heap, bytes, kind.align());
        if matches!(kind, Kind::Zeroed) && !is_zero && !object.is_null() {
            // SAFETY: an object just taken, of at least `bytes`.
            unsafe { object.write_bytes(0, bytes) };
        }
        object
    }

    /// Frees an object. The caller may claim its bytes and alignment.
    pub(crate) fn hardened_free(&'static self, object: *mut u8, claim: Option<(usize, usize)>) {
        let _inside = self.enter();
        self.hardened.free(&self.heap, object, claim);
    }

    /// Moves the object to a new one, so that what the old one held goes with it, unless a new one
    /// would be as long, or there is no memory for a shorter one.
    ///
    /// # Safety
    /// As [`realloc`](Process::realloc).
    pub(super) unsafe fn hardened_realloc(
        &'static self,
        object: NonNull<u8>,
        bytes: usize,
    ) -> *mut u8 {
        let _inside = self.enter();
        let old_bytes = match self.hardened.usable_bytes(&self.heap, object) {
            Ok(bytes) => bytes,
            Err(cause) => cause.abort(&Os, "realloc", object.as_ptr()),
        };
        if self.hardened.stays(&self.heap, object, bytes) {
            return object.as_ptr();
        }
        let malloc = |bytes| self.hardened.malloc(&self.heap, bytes, MIN_ALIGN).0;
        let with_room = self.hardened.moved_bytes(old_bytes, bytes);
        let mut moved = malloc(with_room);
        if moved.is_null() && with_room > bytes {
            moved = malloc(bytes);
        }
        if moved.is_null() && bytes <= old_bytes {
            self.hardened.keep_longer();
            return object.as_ptr();
        }
        let free = |object| self.hardened.free(&self.heap, object, None);
        // SAFETY: both have as many bytes; one was just taken.
        unsafe { move_to(moved, object, old_bytes.min(bytes), free) }
    }
}
