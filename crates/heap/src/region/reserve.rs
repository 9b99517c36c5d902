//! What a region gives up of its address space.
//!
//! A region reserves far more than it will use, which costs nothing but addresses. If these are
//! limited (by `RLIMIT_AS`, or because all that is mapped is to be locked), the program needs some
//! for its stacks, libraries and mappings.

use core::ptr::NonNull;

use hectare_base::align::align_up;
use hectare_buddy::{FrameId, RangeAllocator};
use hectare_pages::PageSource;

use super::table::Table;
use super::{FRAME_BYTES, Region};
use crate::class::SLAB_BYTES;

impl Region {
    /// Shortens the region until half as much address space as it has is left for others. It keeps
    /// at least `least_bytes` and what is committed.
    pub(crate) fn leave_room(&mut self, least_bytes: usize, source: &impl PageSource) {
        while !has_room(self.bytes / 2, source) && self.shorten(least_bytes, source) {}
    }

    /// Gives up the last quarter of the address space, or as much of it as lies behind
    /// `least_bytes` and the frontier. Returns whether anything was given up.
    pub(crate) fn shorten(&mut self, least_bytes: usize, source: &impl PageSource) -> bool {
        let page = source.page_bytes();
        let kept_bytes = (self.bytes / 4 * 3).max(least_bytes).max(self.frontier_bytes);
        let kept_bytes = align_up(kept_bytes.max(self.set_aside_until_bytes), page.max(SLAB_BYTES));
        let (first, end) = (FrameId(kept_bytes / FRAME_BYTES), self.bytes / FRAME_BYTES);
        if first.0 >= end || self.clean.reserve(first, end - first.0).is_err() {
            return false;
        }
        // SAFETY: within the region.
        let behind = unsafe { self.start.add(kept_bytes) };
        // SAFETY: a part of the reservation that was never committed.
        unsafe { source.release(behind, self.bytes - kept_bytes) };
        let sizes = Self::tables(self.bytes, page).into_iter().zip(Self::tables(kept_bytes, page));
        let tables: [&mut Table; 4] =
            [&mut self.page_map, &mut self.run_table, &mut self.slabs, &mut self.far_words];
        for (table, (bytes, kept_bytes)) in tables.into_iter().zip(sizes) {
            table.end_at(kept_bytes, bytes, source);
        }
        self.bytes = kept_bytes;
        true
    }

    /// How many bytes of address space the region has.
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.bytes
    }
}

/// Whether `bytes` more bytes of address space could be reserved.
pub(crate) fn has_room(bytes: usize, source: &impl PageSource) -> bool {
    let bytes = align_up(bytes, source.page_bytes());
    let room: Option<NonNull<u8>> = source.reserve(bytes, source.page_bytes()).ok();
    // SAFETY: reserved just now, and known to nobody.
    room.map(|start| unsafe { source.release(start, bytes) }).is_some()
}
