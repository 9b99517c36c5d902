//! Slabs on their way from their bin to the backend.

use super::{Slab, SlabRef};

/// Slabs that have become empty. They are on no list of their bin, and whoever has this has them alone: so the bin's lock is free
/// for others while he waits for the backend's.
///
/// (A fork that finds a thread at it loses them in the child, as the objects on that thread's lists.)
#[derive(Debug)]
pub(crate) struct Emptied(Option<SlabRef>);

impl Emptied {
    pub(crate) const NONE: Self = Self(None);

    /// Adds one, which is on no list.
    pub(crate) fn push(&mut self, name: SlabRef, slab: &mut Slab) {
        slab.next = self.0.replace(name);
    }

    /// Takes the one that came last.
    pub(crate) fn pop(&mut self) -> Option<SlabRef> {
        let name = self.0?;
        // SAFETY: an emptied slab is its holder's alone.
        self.0 = unsafe { name.get() }.next;
        Some(name)
    }
}
