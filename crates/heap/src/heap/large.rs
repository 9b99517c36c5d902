//! Objects above the size classes: runs of frames, and huge blocks.

use core::ptr::NonNull;

use hectare_base::align::align_up;
use hectare_pages::System;

use super::Heap;
use crate::class::{ClassId, MAX_SMALL_BYTES};
use crate::huge::{Contents, MIN_HUGE_BYTES};
use crate::region::{FRAME_BYTES, RegionView, Wanted};
use crate::run_cache::{LONGEST_CACHED_FRAMES, serves, stepped};
use crate::seat::Seat;

/// From this size on, a growing run moves its pages to a huge block instead of being copied, and a
/// shrinking huge block stays one. A shorter run serves the region again when it is freed, while a
/// huge block goes back and faults anew. Copying a mebibyte takes no longer than clearing one.
pub(super) const MOVE_BYTES: usize = 8 << 20;

/// A run above [`LONGEST_CACHED_FRAMES`], whose length is exact to the page, grows by at least this
/// share of its length when it must move, so that a run that grows in small steps is rarely copied.
/// A run that is too long by no more than this share stays as it is.
const ROOM_SHARE: usize = 8;

/// Whether a run of `run_bytes` that is to hold `bytes` stays as it is.
fn run_keeps(run_bytes: usize, bytes: usize) -> bool {
    bytes > MAX_SMALL_BYTES && (run_bytes - run_bytes / ROOM_SHARE..=run_bytes).contains(&bytes)
}

impl<S: System> Heap<S> {
    /// A large object of at least `bytes` aligned to `align`, and whether it reads as zero. (If it
    /// does not, a caller that wants zeros writes them.) Null when out of memory.
    pub(crate) fn get_large(
        &self,
        mut seat: Seat<'_>,
        bytes: usize,
        align: usize,
        contents: Contents,
    ) -> (*mut u8, bool) {
        self.ensure_key();
        let null = (core::ptr::null_mut(), false);
        // Zeros may stay mostly untouched: in a mapping of their own they hold only what is
        // touched.
        let least = match contents {
            Contents::Any => self.backend.min_huge_bytes(),
            Contents::Zeros => MIN_HUGE_BYTES,
        };
        if bytes >= least || align >= MIN_HUGE_BYTES {
            let taken = self.backend.huge.lock().get(bytes, align, contents, self.source());
            if let Some((start, is_zero)) = taken {
                return (start.as_ptr(), is_zero);
            }
            if align >= MIN_HUGE_BYTES || !self.backend.may_have_room(bytes) {
                return null;
            }
        }
        let frames = self.frames_for(bytes);
        let page_frames = self.source().page_bytes().div_ceil(FRAME_BYTES);
        let align = align.div_ceil(FRAME_BYTES).max(page_frames);
        if frames <= LONGEST_CACHED_FRAMES
            && align == page_frames
            && let Some(cache) = seat.cache()
        {
            // SAFETY: this thread's cache.
            let own =
                unsafe { self.take_own_run(NonNull::from(&mut *cache), frames * FRAME_BYTES) };
            if !own.is_null() {
                return (own, false);
            }
            self.regret_run(cache, frames);
        }
        if self.pools.stocked_bytes() > 0 {
            self.empty_stocks(frames, align);
        }
        self.scavenge_before_growing();
        let wanted = Wanted::Run { frames, align, fills: contents == Contents::Any };
        let run = || self.backend.get_run(wanted, ClassId::RUN);
        let release = || self.release_all(seat, frames);
        let Some(run) = run().or_else(|| (release() > 0).then(run)?) else { return null };
        (run.start.as_ptr(), run.clean)
    }

    /// How many frames a run for `bytes` has: whole pages of the system. Up to 1 MiB it is one of
    /// eight lengths per doubling, so that a freed run fits the next request.
    fn frames_for(&self, bytes: usize) -> usize {
        let page = self.source().page_bytes().max(FRAME_BYTES);
        let frames = align_up(bytes.max(1), page) / FRAME_BYTES;
        align_up(stepped(frames).unwrap_or(frames), page / FRAME_BYTES)
    }

    /// Whether the run at `start`, of `frames` frames and never resized, may have been taken for `bytes`
    /// aligned to `align`.
    pub(crate) fn may_be_run_for(
        &self,
        start: NonNull<u8>,
        frames: usize,
        bytes: usize,
        align: usize,
    ) -> bool {
        let least = self.frames_for(bytes);
        // A run aligned beyond its page never came from a cache.
        let may_be_cached = align <= self.source().page_bytes().max(FRAME_BYTES);
        let near = self.backend.find(start.addr().get()).map(RegionView::widest_near);
        frames == least || may_be_cached && near.is_some_and(|near| serves(least, frames, near))
    }

    /// How many bytes to take when a run of `old_bytes` must move to hold `bytes`.
    pub(crate) fn moved_run_bytes(old_bytes: usize, bytes: usize) -> usize {
        let is_growing = bytes > old_bytes && old_bytes > LONGEST_CACHED_FRAMES * FRAME_BYTES;
        if is_growing { bytes.max(old_bytes + old_bytes / ROOM_SHARE) } else { bytes }
    }

    /// Whether a run begins at `object` that stays as it is when it is to hold `bytes`.
    #[inline]
    pub(crate) fn keeps_run(&self, object: NonNull<u8>, bytes: usize) -> bool {
        let frames = self.backend.run_length(object);
        frames.is_some_and(|frames| run_keeps(frames * FRAME_BYTES, bytes))
    }

    /// Resizes a run without copying, if possible.
    pub(super) fn resize_run(
        &self,
        run: NonNull<u8>,
        old_bytes: usize,
        bytes: usize,
    ) -> Option<NonNull<u8>> {
        // A run as long as a huge block is here for want of address space, and stays.
        let most_bytes = self.backend.min_huge_bytes();
        if bytes > MAX_SMALL_BYTES && (bytes < most_bytes || old_bytes >= most_bytes) {
            let fits = run_keeps(old_bytes, bytes);
            if fits || self.backend.resize_run(run, self.frames_for(bytes)) {
                return Some(run);
            }
        }
        if bytes > old_bytes && old_bytes >= MOVE_BYTES {
            let mut huge = self.backend.huge.lock();
            // SAFETY: the run's own pages, whose owner waits for this call.
            let moved = unsafe { huge.adopt(run, old_bytes, bytes, self.source()) }?;
            drop(huge);
            self.backend.put_run(run);
            return Some(moved);
        }
        None
    }
}
