//! What begins at an address.

use core::ptr::NonNull;

use hectare_pages::System;

use super::Heap;
use crate::class::{ClassId, MIN_ALIGN, SLAB_BYTES};
use crate::misuse::Misuse;
use crate::object::FreeObject;
use crate::region::FRAME_BYTES;
use crate::slab::SlabRef;

/// What begins at an address that is to be freed, resized or measured.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    /// An object of a size class, and whether its slab is given up.
    Small {
        class: ClassId,
        is_given_up: bool,
    },
    Run {
        frames: usize,
    },
    Huge {
        bytes: usize,
    },
}

impl Place {
    /// How many bytes the object has: at least what was asked for.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Small { class, .. } => class.object_bytes(),
            Self::Run { frames } => frames * FRAME_BYTES,
            Self::Huge { bytes } => bytes,
        }
    }
}

impl<S: System> Heap<S> {
    /// What begins at `start`.
    pub(crate) fn place_of(&self, start: NonNull<u8>) -> Result<Place, Misuse> {
        if let Some(class) = self.class_of_fast(start) {
            return Ok(Place::Small { class, is_given_up: false });
        }
        let address = start.addr().get();
        if !address.is_multiple_of(MIN_ALIGN) {
            return Err(Misuse::Misaligned);
        }
        let Some(view) = self.backend.find(address) else { return self.place_outside(start) };
        // SAFETY: `find` says that the address lies in the region.
        let listed = unsafe { view.class_of(address) };
        let is_given_up = listed == ClassId::GIVEN_UP;
        let class = if is_given_up {
            view.slab_table().slab_of(address).map_or(ClassId::NONE, SlabRef::class)
        } else {
            listed
        };
        if class.is_small() {
            self.check_small(start, class)?;
            return Ok(Place::Small { class, is_given_up });
        }
        if let Some((_, frames)) = view.run_at(address) {
            return Ok(Place::Run { frames });
        }
        // A run's first frame, but no run in use: a thread keeps it.
        if class == ClassId::RUN && address.is_multiple_of(FRAME_BYTES) {
            return Err(Misuse::DoubleFree);
        }
        Err(if class == ClassId::RUN || self.lies_in_run(address) {
            Misuse::Interior
        } else {
            Misuse::NotAllocated
        })
    }

    /// What begins at `start`, which lies in no region.
    fn place_outside(&self, start: NonNull<u8>) -> Result<Place, Misuse> {
        let address = start.addr().get();
        let huge = self.backend.huge.lock();
        match huge.usable_bytes(start) {
            Some(bytes) => Ok(Place::Huge { bytes }),
            None if huge.contains(address) => Err(Misuse::Interior),
            None if huge.was_freed(address) => Err(Misuse::DoubleFree),
            None => Err(Misuse::Foreign),
        }
    }

    /// What is wrong with `start`, which lies in a slab of `class`, unless an object that is not
    /// free begins there.
    fn check_small(&self, start: NonNull<u8>, class: ClassId) -> Result<(), Misuse> {
        let within = start.addr().get() % SLAB_BYTES % class.object_bytes();
        // SAFETY: in the object's slab.
        let begin = unsafe { start.sub(within) };
        // SAFETY: the start of an object of a size class, which is only read.
        let is_free = unsafe { FreeObject::new(begin) }.is_marked(self.key());
        match (within, is_free) {
            (0, false) => Ok(()),
            (0, true) => Err(Misuse::DoubleFree),
            (_, false) => Err(Misuse::Interior),
            (_, true) => Err(Misuse::NotAllocated),
        }
    }

    /// Whether a run that begins before `address` reaches beyond it. Slow: for error messages.
    #[cold]
    fn lies_in_run(&self, address: usize) -> bool {
        let first = address - address % FRAME_BYTES;
        for back in 1..=self.backend.min_huge_bytes() / FRAME_BYTES {
            let start = first.wrapping_sub(back * FRAME_BYTES);
            let Some(view) = self.backend.find(start) else { return false };
            // SAFETY: `find` says that the address lies in the region.
            if unsafe { view.class_of(start) } == ClassId::NONE {
                continue;
            }
            let run = NonNull::new(core::ptr::with_exposed_provenance_mut(start));
            return run.and_then(|run| self.backend.run_length(run)).is_some_and(|n| n > back);
        }
        false
    }

    /// How many bytes the object at `object` has: at least what was asked for.
    ///
    /// # Errors
    /// What is wrong with the pointer.
    pub fn usable_bytes(&self, object: NonNull<u8>) -> Result<usize, Misuse> {
        self.place_of(object).map(Place::bytes)
    }
}
