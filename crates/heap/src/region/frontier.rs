//! How far a region and its metadata are committed: the frontier.

use hectare_base::align::align_up;
use hectare_buddy::FrameId;
use hectare_pages::{PageSource, SourceError};

use super::{FRAME_BYTES, HUGE_PAGE_BYTES, Region, RunEntry};
use crate::class::SLAB_BYTES;
use crate::slab::{FarWords, SlabEntry};

/// By how much the frontier moves at once.
const MIN_STEP_BYTES: usize = HUGE_PAGE_BYTES;
const MAX_STEP_BYTES: usize = 64 << 20;

/// Once this much of a region is committed, further slab descriptors come in huge pages. One huge
/// page serves 680 MiB, and is less than a hundredth of the whole.
pub(super) const HUGE_TABLE_FROM_BYTES: usize = 256 << 20;

impl Region {
    /// How many frames are committed, from the start.
    pub(super) fn frontier_frames(&self) -> usize {
        self.frontier_bytes / FRAME_BYTES
    }

    /// Ensures that the first `frames` frames may be used, and counts them as touched.
    pub(super) fn touch(
        &mut self,
        frames: usize,
        source: &impl PageSource,
    ) -> Result<(), SourceError> {
        self.reach(frames, source)?;
        self.touched_frames = self.touched_frames.max(frames);
        Ok(())
    }

    /// Moves the frontier so that at least `frames` frames lie below it.
    fn reach(&mut self, frames: usize, source: &impl PageSource) -> Result<(), SourceError> {
        let needed = frames * FRAME_BYTES;
        if needed <= self.frontier_bytes {
            return Ok(());
        }
        // Steps that grow with the heap keep the calls few, and what a system without overcommit
        // charges close to what is used. If a step is refused, the shortest that will do is tried.
        let step = (self.frontier_bytes / 8).clamp(MIN_STEP_BYTES, MAX_STEP_BYTES);
        let step = align_up(step, MIN_STEP_BYTES);
        let generous = needed.next_multiple_of(step).min(self.bytes);
        let exact = align_up(needed, source.page_bytes().max(SLAB_BYTES)).min(self.bytes);
        self.commit(generous, source).or_else(|_| self.commit(exact, source))
    }

    fn commit(&mut self, frontier: usize, source: &impl PageSource) -> Result<(), SourceError> {
        self.commit_tables(frontier, source)?;
        // SAFETY: frontier < bytes.
        let start = unsafe { self.start.add(self.frontier_bytes) };
        let more_bytes = frontier - self.frontier_bytes;
        // SAFETY: the part of the reservation behind the old frontier.
        unsafe { source.commit(start, more_bytes) }?;
        // SAFETY: as above.
        unsafe { source.advise_dump(start, more_bytes, true) };
        let huge = self.frontier_bytes.max(self.huge.start());
        if huge < frontier {
            // SAFETY: huge < frontier ≤ bytes.
            let start = unsafe { self.start.add(huge) };
            // SAFETY: as above.
            unsafe { source.advise_huge(start, frontier - huge, true) };
        }
        self.frontier_bytes = frontier;
        self.has_news = true;
        Ok(())
    }

    /// Commits the metadata of all that lies below `frontier`.
    fn commit_tables(
        &mut self,
        frontier: usize,
        source: &impl PageSource,
    ) -> Result<(), SourceError> {
        let frames = frontier / FRAME_BYTES;
        self.page_map.reach(frames, source)?;
        self.run_table.reach(frames * size_of::<RunEntry>(), source)?;
        let in_huge_pages = self.frontier_bytes >= HUGE_TABLE_FROM_BYTES
            && self.is_huge_from(FrameId(self.touched_frames));
        for (table, entry_bytes) in [
            (&mut self.slabs, size_of::<SlabEntry>()),
            (&mut self.far_words, size_of::<FarWords>()),
        ] {
            let table_bytes = |bytes: usize| bytes.div_ceil(SLAB_BYTES) * entry_bytes;
            let most_bytes = if in_huge_pages { table_bytes(self.bytes) } else { 0 };
            table.reach_in_huge_pages(table_bytes(frontier), most_bytes, source)?;
        }
        Ok(())
    }

    /// Has the next `bytes` of the region come from what was set aside for the process.
    ///
    /// # Safety
    /// No other thread uses the source.
    pub(crate) unsafe fn set_aside(
        &mut self,
        bytes: usize,
        source: &impl PageSource,
    ) -> Result<(), SourceError> {
        let next = align_up(self.frontier_bytes, HUGE_PAGE_BYTES);
        if self.bytes.checked_sub(next).is_none_or(|left| bytes > left) {
            return Err(SourceError::Exhausted);
        }
        // SAFETY: next < bytes of the region.
        let start = unsafe { self.start.add(next) };
        // SAFETY: reserved, and not committed yet; the rest is the caller's promise.
        unsafe { source.set_aside(start, bytes) }?;
        self.set_aside_until_bytes = next + bytes;
        Ok(())
    }
}
