//! How a run is lengthened in place.

use core::ptr::NonNull;

use hectare_base::align::align_up;
use hectare_buddy::{FrameId, RangeAllocator};
use hectare_pages::PageSource;

use super::units::UNIT_FRAMES;
use super::{FRAME_BYTES, Region, Run};

/// From this length on, 8 MiB, a run grows by whatever is free behind it. For a shorter run, while
/// there is dirty memory elsewhere, copying costs less than faulting in the pages that it would
/// grow by.
const MIXED_FRAMES: usize = 2048;

impl Region {
    /// Lengthens a run in place, if the frames behind it are free. Returns the frames it got.
    pub(crate) fn extend(
        &mut self,
        run: NonNull<u8>,
        frames: usize,
        wanted: usize,
        source: &impl PageSource,
    ) -> Option<Run> {
        let behind = FrameId(self.frame_of(run) + frames);
        let more = wanted - frames;
        if behind.0 + more > self.bytes / FRAME_BYTES {
            return None;
        }
        let run = Run::holding(self.at(behind), more);
        if self.dirty.take_at(behind, more) {
            self.pass_fresh(&run);
            return Some(run);
        }
        let again_frames = self.touched_of(behind, more);
        let bare_frames = if frames < MIXED_FRAMES {
            self.take_behind(behind, more, source)?;
            more
        } else {
            self.uncache();
            self.take_mixed(behind, more, source)?
        };
        self.pass_fresh(&run);
        let again_frames = again_frames.min(bare_frames);
        Some(Run { bare_frames, again_frames, ..run })
    }

    /// Takes the `frames` frames from `first` on, dirty and clean ones, for a run that grows. Dirty
    /// units move to clean ones. Returns how many frames hold no memory. `None`, with nothing
    /// changed, if a frame is in use. `None`, too, if the source has lost a place: the frames
    /// before it are then dirty.
    #[inline(never)]
    fn take_mixed(
        &mut self,
        first: FrameId,
        frames: usize,
        source: &impl PageSource,
    ) -> Option<usize> {
        let end = first.0 + frames;
        if !self.are_free(first, end) {
            return None;
        }
        self.touch(end, source).ok()?;
        let mut bare_frames = 0;
        let mut at = first;
        while at.0 < end {
            let run = self.dirty.run_around(at);
            let (start, length) = run.or_else(|| self.clean.free_run_around(at))?;
            let frames = (start.0 + length).min(end) - at.0;
            if run.is_some() {
                self.dirty.take_at(at, frames);
            } else {
                self.clean.reserve(at, frames).ok()?;
                let Some(came) = self.bring_units(at, frames, source) else {
                    if at.0 > first.0 {
                        self.give(self.at(first), at.0 - first.0);
                    }
                    return None;
                };
                bare_frames += frames - came;
            }
            at.0 += frames;
        }
        Some(bare_frames)
    }

    /// Whether the frames from `first` up to `end` are free, dirty or clean.
    fn are_free(&self, first: FrameId, end: usize) -> bool {
        let mut at = first;
        while at.0 < end {
            let run = self.dirty.run_around(at).or_else(|| self.clean.free_run_around(at));
            let Some((start, length)) = run else { return false };
            at = FrameId(start.0 + length);
        }
        true
    }

    /// Brings the whole units among `frames` clean frames just taken from `first` on: dirty units
    /// move there as far as there are any, and huge pages are asked for in the rest. Returns how
    /// many frames moved; `None` as for [`move_dirty`](Self::move_dirty).
    fn bring_units(
        &mut self,
        first: FrameId,
        frames: usize,
        source: &impl PageSource,
    ) -> Option<usize> {
        let has_units = self.has_units(source);
        let moved = if has_units { self.move_dirty(first, frames, source)? } else { 0 };
        let rest = FrameId(align_up(first.0, UNIT_FRAMES) + moved);
        self.ask_for_units(rest, (first.0 + frames).saturating_sub(rest.0), source);
        Some(moved)
    }
}
