//! What the backend counts for the heap's statistics.

use core::sync::atomic::Ordering::Relaxed;

use hectare_pages::System;

use super::Backend;
use crate::heap::becomes_free;
use crate::region::FRAME_BYTES;

/// The backend's share of the heap's statistics.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BackendStats {
    pub(crate) used_bytes: usize,
    /// Of the used bytes, those of slabs.
    pub(crate) slab_bytes: usize,
    /// Of the used bytes, those of huge objects, and how many there are.
    pub(crate) huge_bytes: usize,
    pub(crate) huge_objects: usize,
    pub(crate) dirty_bytes: usize,
    pub(crate) committed_bytes: usize,
    pub(crate) metadata_bytes: usize,
    pub(crate) regions: usize,
}

impl<S: System> Backend<S> {
    /// Whether the lock that [`stats`](Self::stats) takes is free, or soon becomes free.
    #[cold]
    pub(crate) fn can_be_asked(&self) -> bool {
        becomes_free(&self.state, &self.source)
    }

    pub(crate) fn stats(&self) -> BackendStats {
        let state = self.state.lock();
        BackendStats {
            used_bytes: state.used_frames * FRAME_BYTES,
            slab_bytes: self.slab_frames.load(Relaxed) * FRAME_BYTES,
            huge_bytes: state.huge_run_frames * FRAME_BYTES,
            huge_objects: state.huge_runs,
            dirty_bytes: state.dirty_frames() * FRAME_BYTES,
            committed_bytes: self.committed_bytes(),
            metadata_bytes: state.metadata.bytes,
            regions: state.regions.len(),
        }
    }
}
