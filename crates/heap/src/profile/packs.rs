//! Packs: objects of the heap that several small sampled objects share.
//!
//! ```text
//!   pack: │ – │ object │ object │ freed │ object │ room … │     the open one
//!          └ never the start: there the page map sees an object of its own
//! ```
//! Objects are cut from the open pack one behind the other. Freed ones leave holes, and a pack goes
//! back to the heap as a whole. So packs hold no more memory than objects on pages of their own
//! would, and if most objects are short-lived, one pack serves them all. A longer object has a pack
//! to itself, as long as it needs.
//!
//! Invariant: a pack's count is the number of its objects, and one more while the pack is open. So
//! the open pack stays, and any other goes with its last object.

use core::ptr::NonNull;

use hectare_base::align::{align_down, align_up};
use hectare_pages::PageSource;

use super::table::{Entry, Table};
use crate::class::MIN_ALIGN;

/// The alignment of a pack, and the length of one that objects share, which is a size class.
pub(crate) const PACK_BYTES: usize = 4096;

/// The largest object that shares a pack. Of larger ones too few would fit into what is left at the
/// end.
pub(crate) const MAX_PACKED_BYTES: usize = PACK_BYTES / 4;

/// The open pack, and where its room begins.
#[derive(Debug, Clone, Copy)]
struct Open {
    pack: usize,
    used: usize,
}

#[derive(Debug)]
pub(super) struct Packs {
    /// The first word of a value is the pack's count.
    table: Table,
    open: Option<Open>,
}

impl Packs {
    pub(super) const fn new() -> Self {
        Self { table: Table::new(), open: None }
    }

    /// Whether `address` lies in a pack, where an object may begin.
    pub(super) fn has(&self, address: usize) -> bool {
        let pack = pack_of(address);
        let may_begin = pack != address && address.is_multiple_of(MIN_ALIGN);
        may_begin && self.table.find(pack).is_some()
    }

    /// Takes room for an object of `bytes` aligned to `align`, neither above [`MAX_PACKED_BYTES`], in the open pack.
    #[inline(never)]
    pub(super) fn take(&mut self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let open = self.open.as_mut()?;
        let [count, _] = &mut self.table.find_mut(open.pack)?.value;
        if *count == 1 {
            // All objects that were there have gone.
            open.used = 0;
        }
        let start = align_up(open.used.max(MIN_ALIGN), align);
        if start + bytes > PACK_BYTES {
            return None;
        }
        open.used = start + bytes;
        *count += 1;
        NonNull::new(core::ptr::with_exposed_provenance_mut(open.pack + start))
    }

    /// Removes the object at `address` from its pack. Returns the pack if it goes back to the heap.
    pub(super) fn leave(&mut self, address: usize) -> Option<NonNull<u8>> {
        let pack = pack_of(address);
        let [count, _] = &mut self.table.find_mut(pack)?.value;
        *count -= 1;
        if *count > 0 {
            return None;
        }
        self.table.remove(pack);
        NonNull::new(core::ptr::with_exposed_provenance_mut(pack))
    }

    /// Makes `pack` the open one. Returns the pack that goes back to the heap, if there is one: the
    /// pack that was open before, or this one when out of memory.
    pub(super) fn open(
        &mut self,
        pack: NonNull<u8>,
        source: &impl PageSource,
    ) -> Option<NonNull<u8>> {
        if self.enter(pack, source).is_none() {
            return Some(pack);
        }
        let pack = pack.addr().get();
        let before = self.open.replace(Open { pack, used: 0 })?;
        self.leave(before.pack)
    }

    /// Enters a pack that is open, or that has one object. `None` when out of memory.
    pub(super) fn enter(&mut self, pack: NonNull<u8>, source: &impl PageSource) -> Option<()> {
        self.table.make_room(source)?;
        self.table.insert(Entry { address: pack.expose_provenance().get(), value: [1, 0] });
        Some(())
    }
}

/// The pack in which `address` would lie.
fn pack_of(address: usize) -> usize {
    align_down(address, PACK_BYTES)
}
