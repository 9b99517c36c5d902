//! One of a region's tables: a part of its metadata.

use core::ops::Range;
use core::ptr::NonNull;

use hectare_base::align::{align_down, align_up};
use hectare_pages::{PageSource, SourceError};

use super::HUGE_PAGE_BYTES;

/// An array in reserved address space whose front is committed.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) start: NonNull<u8>,
    pub(super) committed_bytes: usize,
}

impl Table {
    /// Commits the first `bytes`.
    #[inline(never)]
    pub(super) fn reach(
        &mut self,
        bytes: usize,
        source: &impl PageSource,
    ) -> Result<(), SourceError> {
        let wanted = align_up(bytes, source.page_bytes());
        if wanted > self.committed_bytes {
            // SAFETY: the caller keeps `bytes` within the table's part of the reservation.
            let start = unsafe { self.start.add(self.committed_bytes) };
            let more_bytes = wanted - self.committed_bytes;
            // SAFETY: as above.
            unsafe { source.commit(start, more_bytes) }?;
            // SAFETY: as above.
            unsafe { source.advise_dump(start, more_bytes, true) };
            self.committed_bytes = wanted;
        }
        Ok(())
    }

    /// As [`reach`](Self::reach), by whole huge pages, which are asked for. What would end beyond
    /// `most_bytes`, where the table or the part of it that may be huge ends, is committed page by
    /// page. So is a huge page that is refused.
    #[inline(never)]
    pub(super) fn reach_in_huge_pages(
        &mut self,
        bytes: usize,
        most_bytes: usize,
        source: &impl PageSource,
    ) -> Result<(), SourceError> {
        let before = self.committed_bytes;
        let wanted = align_up(bytes, HUGE_PAGE_BYTES);
        if bytes <= before || wanted > most_bytes || self.reach(wanted, source).is_err() {
            return self.reach(bytes, source);
        }
        // SAFETY: the new part of the table.
        let start = unsafe { self.start.add(before) };
        // SAFETY: as above, committed just now.
        unsafe { source.advise_huge(start, self.committed_bytes - before, true) };
        Ok(())
    }

    /// Gives up the reservation from the first `bytes` to `reserved_bytes`, except what was
    /// committed.
    pub(super) fn end_at(&self, bytes: usize, reserved_bytes: usize, source: &impl PageSource) {
        let kept_bytes = bytes.max(self.committed_bytes);
        if kept_bytes < reserved_bytes {
            // SAFETY: within the table's part of the reservation.
            let behind = unsafe { self.start.add(kept_bytes) };
            // SAFETY: as above, and nobody uses it.
            unsafe { source.release(behind, reserved_bytes - kept_bytes) };
        }
    }

    /// Gives back the pages that lie within `unused` and partly in `changed`. (The others went
    /// before.) The table reads as zero there, unless the system refuses.
    #[inline(never)]
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
            // A refusal leaves contents that nobody reads.
            // SAFETY: committed, and the caller says that it is unused.
            let _ = unsafe { source.decommit(start, to - from) };
        }
    }
}

#[cfg(test)]
mod tests {
    use hectare_pages::{Failing, Os};

    use super::*;

    #[test]
    fn huge_pages_of_a_table_end_with_it() {
        let bytes = 2 * HUGE_PAGE_BYTES + HUGE_PAGE_BYTES / 2;
        let start = Os.reserve(bytes, HUGE_PAGE_BYTES).expect("address space");
        let mut table = Table { start, committed_bytes: 0 };
        for (reached, committed) in [
            (1, HUGE_PAGE_BYTES),
            (HUGE_PAGE_BYTES, HUGE_PAGE_BYTES),
            (HUGE_PAGE_BYTES + 1, 2 * HUGE_PAGE_BYTES),
            (2 * HUGE_PAGE_BYTES + 1, 2 * HUGE_PAGE_BYTES + Os.page_bytes()),
            (bytes, bytes),
        ] {
            table.reach_in_huge_pages(reached, bytes, &Os).expect("memory");
            assert_eq!(table.committed_bytes, committed, "{reached} bytes");
        }
        // SAFETY: the reservation made above.
        unsafe { Os.release(start, bytes) };
    }

    /// If only a few pages of memory are left, a table takes just what it needs.
    #[test]
    fn a_huge_page_that_is_refused_is_not_needed() {
        let bytes = 2 * HUGE_PAGE_BYTES;
        let start = Os.reserve(bytes, HUGE_PAGE_BYTES).expect("address space");
        let mut table = Table { start, committed_bytes: 0 };
        let source = Failing::new(Os);
        source.refuse(0..1);
        table.reach_in_huge_pages(1, bytes, &source).expect("a page");
        assert_eq!(table.committed_bytes, Os.page_bytes());
        table.reach_in_huge_pages(HUGE_PAGE_BYTES, bytes, &source).expect("a huge page");
        assert_eq!(table.committed_bytes, HUGE_PAGE_BYTES);
        // SAFETY: the reservation made above.
        unsafe { Os.release(start, bytes) };
    }
}
