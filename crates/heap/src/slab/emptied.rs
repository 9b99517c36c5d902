//! Slabs on their way from their bin to the backend.

use super::{Slab, SlabRef};

/// Slabs that have become empty. They are on no list of their bin, and belong to whoever holds this
/// value. So the bin's lock is free for others while the holder waits for the backend's.
///
/// (If a fork interrupts the holder, the child loses these slabs, as it loses the objects on that
/// thread's lists.)
#[derive(Debug)]
pub(crate) struct Emptied(Option<SlabRef>);

impl Emptied {
    pub(crate) const NONE: Self = Self(None);

    /// Adds a slab that is on no list.
    pub(crate) fn push(&mut self, name: SlabRef, slab: &mut Slab) {
        slab.next = self.0.replace(name);
    }

    /// Takes the slab that was added last.
    pub(crate) fn pop(&mut self) -> Option<SlabRef> {
        let name = self.0?;
        // SAFETY: an emptied slab is its holder's alone.
        self.0 = unsafe { name.get() }.next;
        Some(name)
    }
}
