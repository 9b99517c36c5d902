//! A part of a region's metadata.

use core::ops::Range;
use core::ptr::NonNull;

use hectare_base::align::{align_down, align_up};
use hectare_pages::{PageSource, SourceError};

/// An array in reserved address space of which the front is committed.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) start: NonNull<u8>,
    pub(super) committed_bytes: usize,
}

impl Table {
    /// Commits the first `bytes`.
    pub(super) fn reach(
        &mut self,
        bytes: usize,
        source: &impl PageSource,
    ) -> Result<(), SourceError> {
        let wanted = align_up(bytes, source.page_bytes());
        if wanted > self.committed_bytes {
            // SAFETY: the caller keeps `bytes` within the table's part of the reservation.
            let start = unsafe { self.start.add(self.committed_bytes) };
            // SAFETY: as above.
            unsafe { source.commit(start, wanted - self.committed_bytes) }?;
            self.committed_bytes = wanted;
        }
        Ok(())
    }

    /// Gives back the pages that lie within `unused` and of which a part lies in `changed`: the
    /// others went before. The table reads as zero there.
    pub(super) fn forget(
        &self,
        unused: Range<usize>,
        changed: Range<usize>,
        source: &impl PageSource,
    ) {
        let page = source.page_bytes();
        let from = align_up(unused.start, page).max(align_down(changed.start, page));
        let to = align_down(unused.end, page).min(align_up(changed.end, page));
        let to = to.min(self.committed_bytes);
        if from < to {
            // SAFETY: from < committed bytes.
            let start = unsafe { self.start.add(from) };
            // A refusal leaves what nobody reads.
            // SAFETY: committed, and the caller says that it is unused.
            let _ = unsafe { source.decommit(start, to - from) };
        }
    }
}
