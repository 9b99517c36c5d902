//! The regions that have been opened, in a row.

use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};
use core::ptr;

use crate::region::Region;

/// How many regions a heap can have.
pub(super) const REGIONS: usize = 32;

/// The regions that have been opened; to its users, a slice of them. A place without a region is
/// never touched. Most places lie on pages of their own, so these pages never become resident.
///
/// Invariant: the first `len` places hold a region each. None is ever taken out.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Regions {
    len: usize,
    places: [MaybeUninit<Region>; REGIONS],
}

impl Regions {
    /// No region yet: all zeros.
    pub(super) const NONE: Self =
        Self { len: 0, places: [const { MaybeUninit::zeroed() }; REGIONS] };

    /// How many more regions there are places for.
    pub(super) fn places_left(&self) -> usize {
        REGIONS - self.len
    }

    /// Adds a region, if there is a place for it.
    pub(super) fn push(&mut self, region: Region) {
        if let Some(place) = self.places.get_mut(self.len) {
            place.write(region);
            self.len += 1;
        }
    }
}

impl Deref for Regions {
    type Target = [Region];

    fn deref(&self) -> &[Region] {
        // SAFETY: by the invariant there is a region in each of these places.
        unsafe { &*ptr::slice_from_raw_parts(self.places.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Regions {
    fn deref_mut(&mut self) -> &mut [Region] {
        // SAFETY: as above.
        unsafe { &mut *ptr::slice_from_raw_parts_mut(self.places.as_mut_ptr().cast(), self.len) }
    }
}
