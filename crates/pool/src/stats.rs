//! Everything a pool has taken.

/// A pool's account. It obeys an identity: the pool's source has handed out
/// [`page_bytes`](Self::page_bytes) + [`cell_bytes`](Self::cell_bytes) + the part of
/// [`descriptor_bytes`](Self::descriptor_bytes) that is not the pool's own structure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Live objects.
    pub objects: usize,
    /// The sizes of those objects, as they were asked for.
    pub stored_bytes: usize,
    /// Memory taken from the source for objects and not given back.
    pub page_bytes: usize,
    /// Memory that turns handles into places.
    pub cell_bytes: usize,
    /// Everything else: tables of pages, lists, and the pool's own structure.
    pub descriptor_bytes: usize,
    /// Pages ever taken from the source for objects.
    pub pages_taken: u64,
    /// Pages ever given back to the source.
    pub pages_returned: u64,
    /// Objects that compaction has moved.
    pub objects_moved: u64,
}

impl PoolStats {
    /// Everything that the pool costs, in bytes.
    #[must_use]
    pub const fn footprint_bytes(&self) -> usize {
        self.page_bytes + self.cell_bytes + self.descriptor_bytes
    }
}
