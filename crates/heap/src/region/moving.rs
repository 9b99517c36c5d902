//! Dirty units move to clean ones: the system moves their pages.

use hectare_base::align::align_up;
use hectare_buddy::FrameId;
use hectare_pages::{PageSource, SourceError};

use super::units::{Rest, UNIT_FRAMES};
use super::{HUGE_PAGE_BYTES, Region};

/// Nothing moves to places beyond this, 8 GiB from the region's start: a unit that has moved may be
/// a mapping of its own, of which a process has some 65,000.
const MOVES_BELOW_FRAMES: usize = 4096 * UNIT_FRAMES;

impl Region {
    /// Moves dirty units to the whole units among the `frames` clean frames from `first` on, which
    /// were just taken. Returns how many frames came. `None` if the source has lost the place of a
    /// unit: that unit stays taken for ever, and the others are free again.
    #[inline(never)]
    pub(super) fn move_dirty(
        &mut self,
        first: FrameId,
        frames: usize,
        source: &impl PageSource,
    ) -> Option<usize> {
        let end = first.0 + frames;
        let mut unit = FrameId(align_up(first.0, UNIT_FRAMES));
        let mut moved = 0;
        while unit.0 + UNIT_FRAMES <= end.min(MOVES_BELOW_FRAMES)
            && !self.refuses_moves
            && let Some(from) = self.dirty.take_block(UNIT_FRAMES)
        {
            // SAFETY: both lie below the frontier, and were free until they were just taken.
            match unsafe { source.move_pages(self.at(from), self.at(unit), HUGE_PAGE_BYTES) } {
                Ok(()) => self.give_clean(from, UNIT_FRAMES),
                Err(error) => {
                    self.give(self.at(from), UNIT_FRAMES);
                    // The same unit would be tried again next. And before Linux 6.17 each refusal
                    // costs the other unit its mapping for a moment, if not for ever.
                    self.refuses_moves = true;
                    if error == SourceError::Exhausted {
                        let behind = FrameId(unit.0 + UNIT_FRAMES);
                        self.give_rest(first, unit.0 - first.0, Rest::Dirty);
                        self.give_rest(behind, end - behind.0, Rest::Clean);
                        return None;
                    }
                    break;
                }
            }
            // The advice for the pages has moved with them.
            if self.is_huge_from(unit) && !self.is_huge_from(from) {
                // SAFETY: the unit just taken.
                unsafe { source.advise_huge(self.at(unit), HUGE_PAGE_BYTES, true) };
            }
            unit.0 += UNIT_FRAMES;
            moved += UNIT_FRAMES;
        }
        Some(moved)
    }
}
