//! The head of a block, and the layout of its parts.
//!
//! ```text
//!   in use, last piece    │ head │ bytes of the object …                      │
//!   in use, more follow   │ head │ place of the next piece │ bytes …          │
//!   free                  │ head │ next │ previous in its bin │ … │ units │
//!   end of the area      │ head, 0 units │
//! ```

/// Head, two links, and the size again at the end, where the next block finds it.
pub(super) const MIN_UNITS: usize = 4;
/// Units before the bytes of the last, or only, piece.
pub(super) const HEAD_UNITS: usize = 1;
/// Units before the bytes of a piece that is followed by another.
pub(super) const LINKED_HEAD_UNITS: usize = 2;

/// The head of a block: its size in units, the head included, and three flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head(pub(super) u32);

impl Head {
    const FREE: u32 = 1;
    const PREV_FREE: u32 = 2;
    const MORE: u32 = 4;
    const SIZE_SHIFT: u32 = 3;
    /// How many bits a block's size in units has.
    pub(super) const SIZE_BITS: u32 = u32::BITS - Self::SIZE_SHIFT;

    #[inline]
    pub(super) const fn free(units: usize) -> Self {
        Self((units as u32) << Self::SIZE_SHIFT | Self::FREE)
    }

    /// A block in use. `more`: another piece of the object follows.
    #[inline]
    pub(super) const fn in_use(units: usize, more: bool) -> Self {
        Self((units as u32) << Self::SIZE_SHIFT | if more { Self::MORE } else { 0 })
    }

    /// The mark at the end of the area.
    #[inline]
    pub(super) const fn end(prev_free: bool) -> Self {
        Self(0).with_prev_free(prev_free)
    }

    #[inline]
    pub(super) const fn units(self) -> usize {
        (self.0 >> Self::SIZE_SHIFT) as usize
    }

    #[inline]
    pub(super) const fn is_free(self) -> bool {
        self.0 & Self::FREE != 0
    }

    #[inline]
    pub(super) const fn is_end(self) -> bool {
        self.units() == 0
    }

    #[inline]
    pub(super) const fn prev_is_free(self) -> bool {
        self.0 & Self::PREV_FREE != 0
    }

    #[inline]
    pub(super) const fn has_more(self) -> bool {
        self.0 & Self::MORE != 0
    }

    #[inline]
    pub(super) const fn with_prev_free(self, free: bool) -> Self {
        Self(if free { self.0 | Self::PREV_FREE } else { self.0 & !Self::PREV_FREE })
    }
}
