//! Which freed memory stays, and what goes back to the system.
//!
//! A freed frame is *dirty*: it still holds memory. Dirty frames are reused before clean ones, so
//! what is kept costs resident memory only as far as it is not needed.
//!
//! When memory is freed, this many frames may stay dirty. Any more go back on the spot:
//! ```text
//!   allowance   max(least, min(headroom, busy + regret))
//!
//!   least       max(8 MiB, held / 8) − what threads may keep of freed runs
//!   headroom    peak + peak / 8 + 4 MiB − held      (2 × peak + 4 MiB − held, where most of what runs hold was never touched)
//!   busy        held; but 0 when a run of 32 MiB or more is freed, of which few come again
//!
//!   held        frames in use that hold memory      (not those of slabs that never came, or have gone back)
//!   peak        the most that was lately held at once
//!   regret      one for each frame that went back and was then taken anew
//! ```
//! `least` is for a program that falls idle, which then holds little. A program in the midst of its
//! work would fault for nothing if all that it frees beyond `least` went. So as much as it uses may
//! stay, and the more has gone in vain, the more may stay, as long as no more is resident than an
//! eighth above the peak.
//!
//! The past is forgotten by halves. Each [`HALF_LIFE_MS`] regret halves, and so does the difference
//! between the peak and what is held. Half of the dirty frames that nobody has needed meanwhile
//! become *due*: they go back at the next calls, a part at each, or more after a pause.
//!
//! Sometimes clean frames must be taken although there are dirty ones (too few in a row, or in the
//! wrong place). Whole dirty units move to where they are needed (`region/moving.rs`). Of the other
//! dirty frames, what exceeds the headroom goes back. So a heap does not grow far because of its
//! holes.
//!
//! `backend/keeping/slack.rs` says when idle memory inside slabs is looked for.

mod slack;

use hectare_pages::System;

use super::{Backend, State};
use crate::region::{FRAME_BYTES, Region};

pub(super) use slack::Swing;

/// What may always stay dirty, together with what threads may keep.
const MIN_ALLOWANCE_BYTES: usize = 8 << 20;

/// How long it takes to forget half of the past.
pub(crate) const HALF_LIFE_MS: u64 = 1000;

/// What may always stay dirty while clean frames are taken.
const MIN_HEADROOM_BYTES: usize = 4 << 20;

/// The least that is given back at once, so that the calls are few.
pub(super) const DECOMMIT_STEP_FRAMES: usize = (1 << 20) / FRAME_BYTES;

/// As many frames may stay as there are.
pub(super) const ALL: usize = usize::MAX;

/// An attempt to give dirty frames back by which none went, because they are pieces of huge pages
/// or the system refuses them: how many frames were dirty, and how many of them were to stay.
#[derive(Debug, Clone, Copy)]
pub(super) struct Vain {
    pub(super) dirty: usize,
    pub(super) keep: usize,
}

impl Vain {
    /// Whether none is likely to go now that `keep` of `dirty` frames are to stay: hardly more are
    /// dirty, and not an eighth fewer are to stay. So a heap that grows makes few attempts.
    pub(super) fn is_as_vain(self, dirty: usize, keep: usize) -> bool {
        let least_keep = self.keep.saturating_sub((self.keep / 8).max(DECOMMIT_STEP_FRAMES));
        dirty <= self.dirty + DECOMMIT_STEP_FRAMES && keep >= least_keep
    }
}

impl<S: System> Backend<S> {
    /// Notes how much is held, which has grown.
    pub(super) fn note_peak(&self, state: &mut State) {
        state.peak_held_frames = state.peak_held_frames.max(self.held_frames(state));
    }

    /// How many dirty frames may stay after memory was freed, by a huge run or not. [`ALL`], unless
    /// there are more than may stay and some of these may go.
    #[inline(never)]
    pub(super) fn keep_if_exceeded(&self, state: &mut State, is_huge: bool) -> usize {
        // The usual case, before the clock is read.
        let (dirty, held) = (state.dirty_frames(), self.held_frames(state));
        if dirty <= state.least_allowance_frames(held) {
            return ALL;
        }
        let allowance = self.allowance(state, if is_huge { 0 } else { held });
        let stays = dirty <= allowance + DECOMMIT_STEP_FRAMES || !state.exceeds(allowance);
        if stays { ALL } else { allowance }
    }

    /// How many dirty frames may stay after memory was freed.
    fn allowance(&self, state: &mut State, busy_frames: usize) -> usize {
        self.age(state);
        let held = self.held_frames(state);
        state
            .least_allowance_frames(held)
            .max(state.headroom_frames(held).min(busy_frames + state.regret_frames))
    }

    /// For each half-life that has passed, halves regret and peak. Half of what lay idle through it
    /// becomes due.
    #[inline(never)]
    pub(super) fn age(&self, state: &mut State) {
        let now = self.source.now_ms();
        let half_lives = now.saturating_sub(state.halved_ms) / HALF_LIFE_MS;
        if half_lives == 0 {
            return;
        }
        let dirty = state.dirty_frames();
        if state.halved_ms > 0 {
            let halve = |frames| halved(frames, half_lives);
            state.regret_frames = halve(state.regret_frames);
            state.swing.frames = halve(state.swing.frames);
            let held = self.held_frames(state);
            state.peak_held_frames = held + halve(state.peak_held_frames.saturating_sub(held));
            let idle = state.idle_frames.min(dirty);
            state.due_frames = idle - halve(idle);
        }
        state.idle_frames = dirty;
        state.vain = None;
        state.halved_ms = now;
    }
}

/// What is left of `amount` after `half_lives`.
pub(crate) fn halved(amount: usize, half_lives: u64) -> usize {
    u32::try_from(half_lives).ok().and_then(|times| amount.checked_shr(times)).unwrap_or(0)
}

impl State {
    /// Whether more than `keep` frames are dirty, and no attempt like this was in vain.
    #[inline(never)]
    pub(super) fn exceeds(&self, keep: usize) -> bool {
        let dirty = self.dirty_frames();
        dirty > keep && !self.vain.is_some_and(|vain| vain.is_as_vain(dirty, keep))
    }

    /// Whether most of what runs hold was never touched.
    pub(super) fn is_sparse(&self) -> bool {
        self.regions.first().is_some_and(Region::is_sparse)
    }

    /// How many frames may always be dirty. What threads may keep is subtracted.
    fn least_allowance_frames(&self, held_frames: usize) -> usize {
        let most = (held_frames / 8).max(MIN_ALLOWANCE_BYTES / FRAME_BYTES);
        most.saturating_sub(self.lent_frames)
    }

    /// How many frames may be dirty so that no more is resident than an eighth above the most that
    /// was lately held at once; or than twice that most, if most of what runs hold was never
    /// touched.
    #[inline(never)]
    pub(super) fn headroom_frames(&self, held_frames: usize) -> usize {
        let peak = self.peak_held_frames.max(held_frames);
        let least = MIN_HEADROOM_BYTES / FRAME_BYTES;
        let headroom = if self.is_sparse() { peak } else { peak / 8 };
        peak + headroom + least - held_frames
    }
}

#[cfg(test)]
pub(super) mod tests {
    extern crate std;
    use core::ptr::NonNull;
    use std::boxed::Box;

    use hectare_pages::{Failing, Os};

    use super::*;
    use crate::class::ClassId;
    use crate::region::Wanted;

    pub(in super::super) const MIB: usize = 1 << 20;

    pub(in super::super) fn grow<S: System>(backend: &Backend<S>, bytes: usize) -> NonNull<u8> {
        let wanted = Wanted::Run { frames: bytes / FRAME_BYTES, align: 1, fills: false };
        backend.get_run(wanted, ClassId::RUN).expect("memory").start
    }

    #[test]
    fn a_little_too_much_stays() {
        for (mib, left_frames) in [(8.5, 2176), (9.5, 2048)] {
            let backend = Box::new(Backend::new(Os, 256 * MIB));
            let run = grow(&backend, (mib * MIB as f64) as usize);
            backend.put_run(run);
            assert_eq!(backend.state.lock().dirty_frames(), left_frames, "of {mib} MiB");
        }
    }

    #[test]
    fn what_is_due_goes_when_something_is_freed() {
        let backend = Box::new(Backend::new(Failing::new(Os), 256 * MIB));
        let small = [(); 3].map(|()| grow(&backend, FRAME_BYTES));
        let run = grow(&backend, 4 * MIB);
        backend.put_run(run);
        let put = |run, due_frames, idle_frames| {
            let mut state = backend.state.lock();
            (state.due_frames, state.idle_frames) = (due_frames, idle_frames);
            drop(state);
            backend.put_run(run);
            let state = backend.state.lock();
            (state.dirty_frames(), state.due_frames)
        };
        assert_eq!(put(small[0], 600, 1000), (1024 + 1 - 600, 0));
        backend.source.refuse_all(true);
        assert_eq!(put(small[1], 100, 400), (1024 + 2 - 600, 0), "what is refused may stay");
        backend.source.refuse_all(false);
        assert_eq!(put(small[2], 100, 50), (1024 + 3 - 600 - 50, 0), "the others were needed");
    }

    #[test]
    fn the_past_is_forgotten() {
        let backend = Box::new(Backend::new(Os, 256 * MIB));
        let run = grow(&backend, 4 * MIB);
        backend.put_run(run);
        for age in [
            |backend: &Backend<Os>| backend.age(&mut backend.state.lock()),
            |backend: &Backend<Os>| {
                backend.note_scavenge(0, 0, false, false);
            },
        ] {
            let mut state = backend.state.lock();
            (state.regret_frames, state.swing.frames, state.peak_held_frames) = (100, 100, 5000);
            state.idle_frames = 1024;
            state.vain = Some(Vain { dirty: 1, keep: 1 });
            // Many half-lives ago.
            state.halved_ms = 1;
            drop(state);
            age(&backend);
            let state = backend.state.lock();
            assert_eq!(
                (state.regret_frames, state.swing.frames, state.peak_held_frames),
                (0, 0, 0)
            );
            assert!(state.vain.is_none() && state.halved_ms > 1);
            assert_eq!((state.due_frames, state.idle_frames), (1024, 1024));
        }
    }

    #[test]
    fn more_may_stay_and_be_lent_where_most_is_never_touched() {
        let backend = Box::new(Backend::new(Os, 256 * MIB));
        let headroom = || backend.state.lock().headroom_frames(1000);
        backend.state.lock().peak_held_frames = 1000;
        assert!(backend.lend(512) && !backend.lend(1), "2 MiB");
        assert_eq!(headroom(), 1000 / 8 + 1024);
        let wanted = Wanted::Run { frames: 16, align: 1, fills: true };
        let runs = [(); 8].map(|()| backend.get_run(wanted, ClassId::RUN).expect("memory"));
        runs.into_iter().for_each(|run| {
            backend.put_run(run.start);
        });
        assert!(backend.lend(3 * 512) && !backend.lend(1), "8 MiB");
        assert_eq!(headroom(), 1000 + 1024);
        backend.take_back(48);
        assert!(backend.lend(48));
        backend.lend_only(48);
        assert!(backend.lend(4 * 512 - 48) && !backend.lend(1));
    }
}
