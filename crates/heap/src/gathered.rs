//! Objects on their way from slabs to a list, or to whoever keeps them by other means.

use core::mem::MaybeUninit;
use core::ptr::NonNull;

use hectare_base::prefetch;

use crate::batch::Batch;
use crate::class::BATCH_OBJECTS;
use crate::object::{FreeObject, Key, Link};

/// Objects taken from their slabs, on no list yet. By the time they are [listed](Self::list), which
/// writes to each of them, their lines are being fetched side by side, and the bin's lock is free.
///
/// The first `count` entries are objects.
pub(crate) struct Gathered {
    objects: [MaybeUninit<FreeObject>; BATCH_OBJECTS],
    count: usize,
    bare: [Option<(NonNull<u8>, usize)>; BARE_RANGES],
    /// How many frames of their slabs held no memory before, and how many of these had been given
    /// back.
    pub(crate) revived_frames: usize,
    pub(crate) returned_frames: usize,
}

/// How many ranges without memory are noted. Any more are faulted in by touch.
const BARE_RANGES: usize = 4;

impl Gathered {
    /// A function: a constant would be cleared as a whole, 2 KiB.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self {
            objects: [const { MaybeUninit::uninit() }; BATCH_OBJECTS],
            count: 0,
            bare: [None; BARE_RANGES],
            revived_frames: 0,
            returned_frames: 0,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Adds `count` objects that lie one behind the other, `object_bytes` apart, and are about to
    /// be written. There must be room for them.
    ///
    /// # Safety
    /// Each is aligned to 16, at least 16 bytes of committed memory, and the caller's.
    #[inline(always)]
    pub(crate) unsafe fn push_row(
        &mut self,
        first: NonNull<u8>,
        object_bytes: usize,
        count: usize,
    ) {
        let places = &mut self.objects[self.count..self.count + count];
        let mut object = first;
        for place in places {
            prefetch(object.as_ptr());
            // SAFETY: the caller's promise.
            place.write(unsafe { FreeObject::new(object) });
            // SAFETY: no object lies at address 0; what is behind the last is never followed.
            object = unsafe { NonNull::new_unchecked(object.as_ptr().wrapping_add(object_bytes)) };
        }
        self.count += count;
    }

    /// Notes a range without memory in which these objects and the next ones lie. Returns whether
    /// there was room.
    pub(crate) fn note_bare(&mut self, start: NonNull<u8>, bytes: usize) -> bool {
        let place = self.bare.iter_mut().find(|place| place.is_none());
        place.map(|place| *place = Some((start, bytes))).is_some()
    }

    /// The ranges to populate once the bin's lock is free and before the objects are written:
    /// starts and bytes.
    pub(crate) fn bare(&self) -> impl Iterator<Item = (NonNull<u8>, usize)> {
        self.bare.into_iter().flatten()
    }

    /// The objects, in their order.
    #[inline(always)]
    pub(crate) fn objects(&self) -> &[FreeObject] {
        // SAFETY: the first `count` were written.
        unsafe { self.objects[..self.count].assume_init_ref() }
    }

    /// Lists the objects in their order.
    pub(crate) fn list(&self, key: Key) -> Option<Batch> {
        let (&head, others) = self.objects().split_first()?;
        let mut last = head;
        for &object in others {
            last.link(object, key);
            last = object;
        }
        last.link(Link::END, key);
        Some(Batch { head, count: self.count })
    }
}
