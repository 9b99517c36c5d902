//! When memory that has lain idle for too long goes, and how much of it at a call.

use core::sync::atomic::Ordering;

use hectare_pages::System;

use super::Backend;
use super::keeping::{ALL, HALF_LIFE_MS};
use crate::region::FRAME_BYTES;

/// What is due goes in parts, one at each call. After a pause, parts go until this share of the
/// pause has passed, or this many nanoseconds. Otherwise what a program has left would stay for as
/// long as it makes few calls.
const TENDING_SHARE: u64 = 16;
const MAX_TENDING_NS: u64 = 2_000_000;

impl<S: System> Backend<S> {
    /// Has what lies idle now looked at again in a half-life, by the next call after that.
    #[inline(never)]
    pub(crate) fn expect_tending(&self) {
        if self.tends_at_ms.load(Ordering::Relaxed) == 0 {
            let at_ms = self.source.now_ms() + HALF_LIFE_MS;
            self.tends_at_ms.store(at_ms, Ordering::Relaxed);
        }
    }

    /// As [`tend`](Self::tend), if it is time. Called when a run is freed, and when batches change
    /// hands, since a program whose lists and pools serve all calls gives nothing back itself.
    /// After a pause more goes back than one part.
    #[inline(never)]
    pub(crate) fn tend_if_due(&self) {
        let at_ms = self.tends_at_ms.load(Ordering::Relaxed);
        if at_ms == 0 {
            return;
        }
        let Some(pause_ms) = self.source.now_ms().checked_sub(at_ms) else { return };
        let most_ns = (pause_ms * 1_000_000 / TENDING_SHARE).min(MAX_TENDING_NS);
        let began_ns = self.source.now_ns();
        while self.tend() > 0 && self.source.now_ns().saturating_sub(began_ns) < most_ns {}
    }

    /// Gives back huge blocks that have lain ready for too long. Returns how many bytes went, and
    /// how many still lie ready.
    pub(super) fn tend_huge(&self) -> (usize, usize) {
        let mut huge = self.huge.lock();
        if huge.kept_bytes() == 0 {
            return (0, 0);
        }
        (huge.age(&self.source), huge.kept_bytes())
    }

    /// Gives back a part of what has lain idle for too long. Returns how many bytes went: none once
    /// all has gone, or if another thread is doing this.
    pub(crate) fn tend(&self) -> usize {
        // One thread is enough. Whatever is left idle from now on calls for another look.
        self.tends_at_ms.store(0, Ordering::Relaxed);
        let (huge_bytes, kept_bytes) = self.tend_huge();
        let Some(_leaver) = self.leaver.try_lock() else {
            self.expect_tending();
            return huge_bytes;
        };
        let mut state = self.state.lock();
        self.age(&mut state);
        let is_due = state.due_frames > 0;
        let keep = self.keep_if_exceeded(&mut state, false);
        let is_any = is_due || keep < ALL;
        let gone =
            if is_any { self.decommit_due_and_excess(&mut state, keep, 0, is_due) } else { 0 };
        if gone > 0 {
            // The rest goes at the next call.
            self.tends_at_ms.store(self.source.now_ms(), Ordering::Relaxed);
        } else if kept_bytes > 0 || state.dirty_frames() > 0 {
            self.expect_tending();
        }
        huge_bytes + gone * FRAME_BYTES
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::boxed::Box;

    use hectare_pages::Os;

    use super::super::keeping::tests::{MIB, grow};
    use super::*;

    #[test]
    fn idle_memory_is_looked_at_when_it_is_time() {
        let backend = Box::new(Backend::new(Os, 256 * MIB));
        let run = grow(&backend, 4 * MIB);
        backend.put_run(run);
        let after = |at_ms, call: fn(&Backend<Os>)| {
            backend.tends_at_ms.store(at_ms, Ordering::Relaxed);
            call(&backend);
            backend.tends_at_ms.load(Ordering::Relaxed)
        };
        assert_eq!(after(5, Backend::expect_tending), 5, "no later than was expected");
        assert!(after(0, Backend::expect_tending) > 0);
        assert_eq!(after(0, Backend::tend_if_due), 0, "nothing is expected");
        assert_eq!(after(u64::MAX, Backend::tend_if_due), u64::MAX, "it is too early");
        assert!(after(5, Backend::tend_if_due) > 5, "some stays, to be looked at later");
        backend.trim(0);
        assert_eq!(after(5, Backend::tend_if_due), 0, "nothing lies idle");
    }

    /// A backend with three runs of `mib` that were freed and are due, and how many frames these
    /// have.
    fn with_due(mib: usize) -> (Box<Backend<Os>>, usize) {
        let backend = Box::new(Backend::new(Os, 256 * MIB));
        grow(&backend, 128 * MIB);
        let runs = [(); 3].map(|()| grow(&backend, mib * MIB));
        runs.into_iter().for_each(|run| {
            backend.put_run(run);
        });
        let mut state = backend.state.lock();
        let dirty_frames = state.dirty_frames();
        assert_eq!(dirty_frames, 3 * mib * MIB / FRAME_BYTES);
        (state.due_frames, state.idle_frames) = (dirty_frames, dirty_frames);
        drop(state);
        (backend, dirty_frames)
    }

    #[test]
    fn a_quiet_program_gives_back_more_at_once() {
        let goes_after = |pause_ms| {
            let (backend, dirty_frames) = with_due(14);
            backend.tends_at_ms.store(Os.now_ms() - pause_ms, Ordering::Relaxed);
            backend.tend_if_due();
            (dirty_frames - backend.state.lock().dirty_frames()) * FRAME_BYTES
        };
        // The clock may move on, or another thread may have the processor, meanwhile.
        let is_seen = |pause_ms, bytes| (0..100).any(|_| goes_after(pause_ms) == bytes);
        assert!(is_seen(0, 16 * MIB), "a part at a time");
        assert!(is_seen(50, 42 * MIB), "all");
    }

    #[test]
    fn what_is_much_goes_part_by_part() {
        let (backend, _) = with_due(12);
        assert_eq!(backend.tend(), 16 * MIB);
        let at_ms = backend.tends_at_ms.load(Ordering::Relaxed);
        assert!((1..=Os.now_ms()).contains(&at_ms), "the rest goes at the next call");
    }
}
