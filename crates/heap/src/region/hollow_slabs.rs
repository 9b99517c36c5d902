//! Hollow slabs: empty slabs of which half or more had gone. What is left of them goes back to the
//! system.
//!
//! If such a slab became dirty memory, the next slab there would come page by page. As clean memory
//! it will one day be part of a block. But each call that gives memory back interrupts the
//! program's other processors, and a slab may be wanted again soon. So hollow slabs wait until
//! there are as many as the region's length allows, and then go by one call. Meanwhile a request
//! for a slab that would come page by page anyway gets one of them.

use hectare_buddy::FrameId;
use hectare_pages::PageSource;

use super::taking::Run;
use super::{Region, SLAB_FRAMES};
use crate::leaving::Leaving;

/// The most that wait: 2 MiB, half of which may be resident.
const MOST: usize = 32;
const _: () = assert!(MOST <= Leaving::MOST, "all go by one call");

/// One waits for each this many frames that were touched, 8 MiB. So what is left in them is a 256th
/// of these at most.
const TOUCHED_FRAMES_EACH: usize = 2048;

/// The first frames of the slabs that wait.
#[derive(Debug)]
pub(super) struct HollowSlabs {
    firsts: [u32; MOST],
    len: usize,
}

impl HollowSlabs {
    pub(super) const NONE: Self = Self { firsts: [0; MOST], len: 0 };

    pub(super) fn frames(&self) -> usize {
        self.len * SLAB_FRAMES
    }

    /// Adds a slab. Returns whether there was room.
    fn push(&mut self, first: FrameId) -> bool {
        let Some(place) = self.firsts.get_mut(self.len) else { return false };
        *place = first.0 as u32;
        self.len += 1;
        true
    }

    /// Takes the slab that was added last.
    fn pop(&mut self) -> Option<FrameId> {
        self.len = self.len.checked_sub(1)?;
        Some(FrameId(self.firsts[self.len] as usize))
    }
}

impl Region {
    /// Takes back a hollow slab that begins with the frame `first`. Returns whether there was room.
    #[inline(never)]
    pub(super) fn give_hollow_slab(&mut self, first: FrameId) -> bool {
        self.hollow_slabs.push(first)
    }

    /// Whether as many wait as may.
    pub(crate) fn hollow_slabs_are_due(&self) -> bool {
        self.hollow_slabs.len >= (self.touched_frames / TOUCHED_FRAMES_EACH).clamp(1, MOST)
    }

    /// Takes a hollow slab, for a slab that comes page by page.
    #[inline(never)]
    pub(super) fn take_hollow_slab(&mut self) -> Option<Run> {
        let first = self.hollow_slabs.pop()?;
        let (bare_frames, again_frames) = (SLAB_FRAMES, SLAB_FRAMES);
        Some(Run { bare_frames, again_frames, ..Run::holding(self.at(first), SLAB_FRAMES) })
    }

    /// Has all hollow slabs go with what is `leaving`. Nothing goes yet.
    pub(super) fn hollow_slabs_leave(&mut self, leaving: &mut Leaving, source: &impl PageSource) {
        while let Some(first) = self.hollow_slabs.pop() {
            self.add_leaving(leaving, first, SLAB_FRAMES, source);
        }
    }

    /// Gives all hollow slabs back at once, with the lock held.
    #[inline(never)]
    pub(super) fn decommit_hollow_slabs(&mut self, source: &impl PageSource) {
        let mut leaving = Leaving::NONE;
        self.hollow_slabs_leave(&mut leaving, source);
        // SAFETY: in use by nobody, and below the frontier by invariant 2.
        let gone = unsafe { leaving.decommit(source) };
        self.settle(&gone, source);
    }
}
