//! Long runs of clean frames, in whole units: dirty memory moves to where it is needed.
//!
//! ```text
//!   dirty, elsewhere:   ░░│▓▓▓▓▓▓│░░      ░│▓▓▓▓▓▓│░░░
//!                            │ pages move       │
//!   clean, taken:          │▓▓▓▓▓▓│▓▓▓▓▓▓│ fresh │     units of a huge page each
//!   the run:               │▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│░░░│     what is left of the last one is dirty
//! ```
//! A request that no dirty run is long enough for would take clean frames, which fault, while dirty
//! frames are over, which go back to the system: memory that is made zero anew, though there is enough
//! of it. To have the system enter a unit's pages at another place costs some 5 µs; to fault it in 360
//! as a huge page and 1,100 page by page (Linux 6.18, a virtual machine; `cargo bench -p hectare-pages
//! --features os --bench calls`).
//!
//! Where huge pages are asked for, a unit that is begun comes as a whole by its first touch. So
//! what of the last one is not of the run counts as what it is, dirty memory.

use hectare_base::align::align_up;
use hectare_buddy::FrameId;
use hectare_pages::{PageSource, SourceError};

use super::{FRAME_BYTES, HUGE_PAGE_BYTES, Region, RegionView, Run, take_range};

/// Frames of a huge page.
pub(crate) const UNIT_FRAMES: usize = HUGE_PAGE_BYTES / FRAME_BYTES;

/// Nothing moves to where the region is longer than this, 8 GiB: a unit that has moved may be a
/// mapping of its own, of which a process has some 65,000.
const MOVES_BELOW_FRAMES: usize = 4096 * UNIT_FRAMES;

impl Region {
    /// Whether the region's units can be huge pages.
    pub(super) fn has_units(&self, source: &impl PageSource) -> bool {
        source.page_bytes() <= FRAME_BYTES
            && self.start.addr().get().is_multiple_of(HUGE_PAGE_BYTES)
    }

    /// Takes a run that its caller will fill, at the start of a unit, for which no dirty run is long
    /// enough; `None` if it is too short for that, or no units are free.
    pub(super) fn take_units(
        &mut self,
        frames: usize,
        source: &impl PageSource,
        view: &RegionView,
    ) -> Option<Run> {
        let is_short = frames < UNIT_FRAMES && !self.is_huge_from(FrameId(self.touched));
        if is_short || !self.has_units(source) {
            return None;
        }
        let whole = align_up(frames, UNIT_FRAMES);
        let first = take_range(&mut self.clean, whole, UNIT_FRAMES).ok()?;
        let refaults = first.0 < self.touched;
        self.touch_clean(first, whole, source, view).ok()?;
        let moved = self.move_dirty(first, whole, source)?;
        let (rest, left) = (FrameId(first.0 + frames), whole - frames);
        let mut bare_frames = whole - moved;
        if left > 0 && (bare_frames == 0 || self.is_huge_from(first)) {
            self.give(self.at(rest), left);
        } else if left > 0 {
            bare_frames -= left;
            self.give_clean(rest, left);
        }
        let start = self.at(first);
        Some(Run { start, frames, clean: moved == 0, bare_frames, refaults, huge: false })
    }

    /// Moves dirty units to the `frames` clean frames from `first` on, whole units just taken. Returns
    /// how many frames came; `None` if the source has lost the place of one: then these frames stay
    /// taken for ever.
    fn move_dirty(
        &mut self,
        first: FrameId,
        frames: usize,
        source: &impl PageSource,
    ) -> Option<usize> {
        let end = (first.0 + frames).min(MOVES_BELOW_FRAMES);
        let mut unit = first;
        while unit.0 < end
            && let Some(from) = self.dirty.take_block(UNIT_FRAMES)
        {
            // SAFETY: below the frontier, and both free until they were just taken.
            match unsafe { source.move_pages(self.at(from), self.at(unit), HUGE_PAGE_BYTES) } {
                Ok(()) => self.give_clean(from, UNIT_FRAMES),
                Err(error) => {
                    self.give(self.at(from), UNIT_FRAMES);
                    if error == SourceError::Exhausted {
                        return None;
                    }
                    break;
                }
            }
            // What was asked for of the pages has moved with them.
            if self.is_huge_from(unit) && !self.is_huge_from(from) {
                // SAFETY: the unit just taken.
                unsafe { source.advise_huge(self.at(unit), HUGE_PAGE_BYTES, true) };
            }
            unit.0 += UNIT_FRAMES;
        }
        Some(unit.0 - first.0)
    }
}
