//! The *slack*: by how much the heap may grow, or its slabs empty, before the slabs are looked
//! through (`heap/relief.rs`).
//!
//! A look that finds little came too early; one that finds much came late. So each look sets the
//! slack for the next:
//! ```text
//!   growth     usual                                  usual = max(used / 8, 4 MiB)
//!              half of the last, at least 256 KiB     if far more went than had been freed: the last objects of many
//!                                                     pages are going, and each of them counts
//!              twice the last, from usual to used / 2 if next to nothing went, less than an eighth of the last
//!
//!   emptying   as growth
//!              live / 4, at least 256 KiB             if little is left in much: more than twice as much is idle as live
//!              twice the last, or the last and what   at least, if live memory swings: where what goes at one look is
//!              went, up to 64 MiB and the peak        soon taken anew, looks cost more than they give
//! ```
//! *Used* is all that the heap holds except what is idle in slabs; *live* is what is out of the
//! slabs.

use core::sync::atomic::Ordering;

use hectare_pages::System;

use super::MIN_ALLOWANCE_BYTES;
use crate::backend::{Backend, State};
use crate::region::FRAME_BYTES;

/// The least that the slack usually is, and the least that it is after a look that finds much.
const SLACK_BYTES: usize = 4 << 20;
const MIN_SLACK_BYTES: usize = 256 << 10;

/// Live memory swings if half of what went at a look that found the slabs emptied has been taken
/// anew by the next such look, and this comes within this time. And by how much the slabs may then
/// empty at most.
const SWING_MS: u64 = 100;
const MAX_SWING_BYTES: usize = 64 << 20;

/// Whether live memory swings.
#[derive(Debug)]
#[repr(C)]
pub(in super::super) struct Swing {
    /// When a look that found the slabs emptied last gave frames back, and how many.
    looked_ms: u64,
    gone_frames: usize,
    /// How many frames without memory were taken since, new ones or ones that had gone back.
    taken_anew_frames: usize,
    /// By how many frames the slabs may empty because live memory swings.
    pub(super) frames: usize,
}

impl Swing {
    pub(in super::super) const NONE: Self =
        Self { looked_ms: 0, gone_frames: 0, taken_anew_frames: 0, frames: 0 };

    /// Notes that `gone_frames` went at a look at `now_ms`. The slabs may empty by `frames` if half
    /// of what went at the last look was soon taken anew.
    fn note_gone(&mut self, gone_frames: usize, frames: usize, now_ms: u64) {
        let is_soon = self.looked_ms > 0 && now_ms < self.looked_ms + SWING_MS;
        let swings = is_soon && 2 * self.taken_anew_frames > self.gone_frames;
        *self = Self {
            looked_ms: now_ms,
            gone_frames,
            taken_anew_frames: 0,
            frames: if swings { frames } else { 0 },
        };
    }
}

impl<S: System> Backend<S> {
    /// Sets the slack of a new heap.
    pub(in super::super) fn begin_slack(&self) {
        self.growth_limit_frames.store(SLACK_BYTES / FRAME_BYTES, Ordering::Relaxed);
        self.emptying_limit_bytes.store(SLACK_BYTES, Ordering::Relaxed);
    }

    /// Whether the heap has grown so much that it should look for idle memory in the slabs first.
    #[inline]
    pub(crate) fn should_scavenge(&self) -> bool {
        self.grown_frames.load(Ordering::Relaxed) > self.growth_limit_frames.load(Ordering::Relaxed)
    }

    /// By how many bytes the slabs may empty before the next scavenge.
    #[inline]
    pub(crate) fn slack_bytes(&self) -> usize {
        self.emptying_limit_bytes.load(Ordering::Relaxed)
    }

    /// Begins to count anew after a scavenge that gave back `gone_bytes`: far more than had been
    /// freed if it `found_much`. `live_bytes` are out of the slabs. `has_emptied` says that the
    /// scavenge came because the slabs had emptied, not because the heap grew.
    pub(crate) fn note_scavenge(
        &self,
        live_bytes: usize,
        gone_bytes: usize,
        has_emptied: bool,
        found_much: bool,
    ) {
        let gone_frames = gone_bytes / FRAME_BYTES;
        let mut state = self.state.lock();
        self.age(&mut state);
        self.note_gone(&mut state, if has_emptied { gone_frames } else { 0 });
        let swing_frames = state.swing.frames;
        let idle_frames = self.idle_bytes(live_bytes) / FRAME_BYTES;
        let used_frames = self.held_frames(&state).saturating_sub(idle_frames);
        self.choose_pages(&mut state, used_frames);
        drop(state);
        let live_frames = live_bytes / FRAME_BYTES;
        let found = Found { live_frames, idle_frames, used_frames, gone_frames, found_much };
        let last_frames = self.growth_limit_frames.load(Ordering::Relaxed);
        let growth_frames = found.growth_frames(last_frames);
        self.growth_limit_frames.store(growth_frames, Ordering::Relaxed);
        let emptying_frames = found.emptying_frames(growth_frames).max(swing_frames);
        self.emptying_limit_bytes.store(emptying_frames * FRAME_BYTES, Ordering::Relaxed);
    }

    /// Notes what went in a scavenge of slabs that had emptied, and whether half of what went in
    /// the previous such scavenge was soon taken anew.
    fn note_gone(&self, state: &mut State, gone_frames: usize) {
        state.swing.taken_anew_frames += self.returned_frames.swap(0, Ordering::Relaxed)
            + self.grown_frames.swap(0, Ordering::Relaxed);
        if gone_frames > 0 {
            let last_frames = self.emptying_limit_bytes.load(Ordering::Relaxed) / FRAME_BYTES;
            let swing_frames = last_frames + last_frames.max(gone_frames);
            let most_frames = state.peak_held_frames.min(MAX_SWING_BYTES / FRAME_BYTES);
            let frames = swing_frames.min(most_frames);
            state.swing.note_gone(gone_frames, frames, self.source.now_ms());
        }
    }

    /// Decides whether the first region asks for huge pages, now that `used_frames` frames are of
    /// use.
    fn choose_pages(&self, state: &mut State, used_frames: usize) {
        let resident_frames = used_frames + state.dirty_frames();
        let of_slabs = 2 * self.slab_frames.load(Ordering::Relaxed) >= state.used_frames;
        if let Some(region) = state.regions.first_mut() {
            region.choose_pages(resident_frames, of_slabs, &self.source);
        }
    }
}

/// What a scavenge has found.
struct Found {
    /// The frames out of the slabs.
    live_frames: usize,
    /// The frames in slabs that are not out of them.
    idle_frames: usize,
    /// The frames of the whole heap, without what is idle.
    used_frames: usize,
    gone_frames: usize,
    /// Far more went than had been freed.
    found_much: bool,
}

impl Found {
    /// By how much the heap may usually grow, or its slabs empty.
    fn usual_frames(&self) -> usize {
        (self.used_frames / 8).max(SLACK_BYTES / FRAME_BYTES)
    }

    /// By how many frames the heap may grow before the next scavenge. Before this one it was
    /// `last`.
    fn growth_frames(&self, last: usize) -> usize {
        let usual = self.usual_frames();
        if self.found_much {
            (last / 2).max(MIN_SLACK_BYTES / FRAME_BYTES)
        } else if self.gone_frames < last / 8 {
            (last * 2).clamp(usual, usual.max(self.used_frames / 2))
        } else {
            usual
        }
    }

    /// By how many frames the slabs may empty before the next scavenge, unless memory swings. The
    /// heap may grow by `growth`.
    fn emptying_frames(&self, growth: usize) -> usize {
        if self.is_sparse() {
            (self.live_frames / 4).max(MIN_SLACK_BYTES / FRAME_BYTES)
        } else {
            growth
        }
    }

    /// Whether little is left in much, so that each object that goes may be the last of its page.
    fn is_sparse(&self) -> bool {
        self.idle_frames > (2 * self.live_frames).max(MIN_ALLOWANCE_BYTES / FRAME_BYTES)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::boxed::Box;

    use hectare_pages::Os;

    use super::super::tests::{MIB, grow};
    use super::*;

    #[test]
    fn a_look_comes_sooner_where_much_was_found_and_later_where_nothing_was() {
        let found = |used_frames, gone_frames, found_much| Found {
            live_frames: 0,
            idle_frames: 0,
            used_frames,
            gone_frames,
            found_much,
        };
        let much = found(1 << 16, 0, true);
        assert_eq!([1000, 100].map(|last| much.growth_frames(last)), [500, 64]);
        assert_eq!(
            found(1 << 16, 1000, false).growth_frames(8000),
            8192,
            "an eighth of what is used"
        );
        assert_eq!(found(100, 1000, false).growth_frames(8000), 1024, "4 MiB at least");
        let little = found(1 << 16, 999, false);
        assert_eq!(little.growth_frames(8000), 16_000, "less than an eighth of that has gone");
        assert_eq!(little.growth_frames(30_000), 32_768, "half of what is used at most");
        assert_eq!(found(1 << 16, 0, false).growth_frames(1000), 8192);
    }

    #[test]
    fn fewer_may_empty_where_little_is_left_in_much() {
        let emptying = |live_frames, idle_frames| {
            let nothing = Found {
                live_frames,
                idle_frames,
                used_frames: 0,
                gone_frames: 0,
                found_much: false,
            };
            nothing.emptying_frames(777)
        };
        assert_eq!((emptying(1000, 2048), emptying(1000, 2049)), (777, 250), "8 MiB at least");
        assert_eq!((emptying(2000, 4000), emptying(2000, 4001)), (777, 500), "twice what is live");
        assert_eq!(emptying(100, 4000), 64);
    }

    #[test]
    fn what_a_look_finds_decides_how_far_the_heap_grows_until_the_next() {
        let backend = Box::new(Backend::new(Os, 256 * MIB));
        let grows_to = |bytes| {
            grow(&backend, bytes);
            assert!(!backend.should_scavenge(), "{bytes} bytes are not enough");
            grow(&backend, FRAME_BYTES);
            backend.should_scavenge()
        };
        assert!(grows_to(4 * MIB));
        backend.note_scavenge(0, 0, false, true);
        assert!(grows_to(2 * MIB));
        backend.note_scavenge(0, 0, false, true);
        assert!(grows_to(MIB));
        backend.note_scavenge(0, MIB, false, false);
        assert!(grows_to(4 * MIB));
    }

    #[test]
    fn twice_as_much_may_be_idle_where_half_of_what_went_soon_came_back() {
        let backend = Box::new(Backend::new(Os, 256 * MIB));
        grow(&backend, 80 * MIB);
        // Any time is soon after a look in the future, and no time is soon after one when the
        // machine was started.
        let look = |was_soon: bool, has_emptied| {
            backend.state.lock().swing.looked_ms = if was_soon { u64::MAX / 2 } else { 0 };
            let before = backend.slack_bytes();
            backend.note_scavenge(0, 16 * MIB, has_emptied, false);
            backend.slack_bytes() >= before + 16 * MIB
        };
        assert!(!look(false, true));
        grow(&backend, 8 * MIB);
        assert!(!look(true, true), "no more than half");
        grow(&backend, 5 * MIB);
        // A look that came because the heap grew tells nothing of that.
        assert!(!look(true, false));
        grow(&backend, 5 * MIB);
        assert!(!look(false, true), "long after");
        grow(&backend, 5 * MIB);
        look(true, false);
        grow(&backend, 5 * MIB);
        assert!(look(true, true));
        assert!(!look(true, true), "nothing has come since");
    }
}
