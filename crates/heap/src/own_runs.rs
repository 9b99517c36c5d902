//! Own runs: the runs that a thread has freed lately and keeps for itself. The next run of about
//! the same length is then taken without a lock.
//!
//! ```text
//!   thread:  Cache ─▶ OwnRuns ──no room──▶ region's RunCache ──▶ buddy allocators
//!                     ≤ limit                ≤ 4 MiB
//! ```
//! A thread keeps nothing until it asks for what it has just given back. `gone_frames` counts what
//! went to the backend. A request that finds as much gone, in many runs, raises the limit by its
//! length. How far is for the backend to say, for all threads together
//! ([`Backend::lend`](crate::backend::Backend::lend)). If there is no room, runs of other lengths
//! go first, some at a time, so that they share the cost of one lock.
//!
//! Each [`CLOCK_CALLS`]th free (each one, as long as the backend has much to give back) takes the
//! slow path, which reads the clock, for the backend too. Half of what nobody has needed for a
//! half-life goes back, and the limit is lowered by as much.
//!
//! The run table says that such a run is kept. So a second free of it is detected, whatever has
//! been written into it: nothing is noted in the runs themselves, and none is touched. (The page
//! map could say it in a byte. But the bytes of seven short runs share a cache line, and threads
//! that keep such runs would wait for each other.) If two threads free one run in the same few
//! nanoseconds, that is detected as seldom as with small objects.
//!
//! Invariants
//! 1. `frames` of the cache are at most `limit_frames`, which the backend has lent.
//! 2. Only the thread that has the cache reaches it.

use core::ptr::NonNull;

use hectare_pages::System;

use crate::backend::{HALF_LIFE_MS, halved};
use crate::cache::Cache;
use crate::heap::Heap;
use crate::region::FRAME_BYTES;
use crate::run_cache::{LONGEST_CACHED_FRAMES, Near, RunCache};
use crate::seat::Seat;

/// How many runs of one length a thread keeps.
const DEPTH: usize = 15;

/// The most frames that a thread keeps: 2 MiB.
const MAX_FRAMES: usize = 512;

const CLOCK_CALLS: u32 = 64;

/// A thread keeps nothing before this many runs have gone. A thread that frees few runs would keep
/// memory that no other length can use, and save next to no time.
const MIN_GONE_RUNS: u16 = 1000;

/// What a thread keeps. Zeroed, it keeps nothing.
#[derive(Debug)]
pub(crate) struct OwnRuns {
    cached: RunCache<DEPTH>,
    limit_frames: usize,
    /// The fewest frames there were since `halved_ms`.
    idle_frames: usize,
    halved_ms: u64,
    /// Frees until the clock is read again.
    calls_left: u32,
    /// The length from which on runs are given back next.
    next_out: u32,
}

impl OwnRuns {
    /// How many bytes the runs have.
    pub(crate) fn bytes(&self) -> usize {
        self.cached.frames() * FRAME_BYTES
    }

    #[inline(always)]
    fn pop(&mut self, frames: usize, near: Near) -> Option<(usize, usize)> {
        let run = self.cached.pop(frames, near)?;
        self.idle_frames = self.idle_frames.min(self.cached.frames());
        Some(run)
    }

    /// Keeps a run, unless there is no room, or the clock must be read.
    #[inline(always)]
    fn push(&mut self, first: usize, frames: usize) -> bool {
        if self.calls_left == 0
            || self.cached.frames() + frames > self.limit_frames
            || !self.cached.push(first, frames)
        {
            return false;
        }
        self.calls_left -= 1;
        true
    }

    /// Lets runs out until at most `keep_frames` are left.
    fn shrink(&mut self, keep_frames: usize, mut out: impl FnMut(usize)) {
        while self.cached.frames() > keep_frames
            && let Some((first, _)) = self.cached.pop_any(&mut self.next_out)
        {
            out(first);
        }
    }

    /// How many frames may stay if a run of `frames` is to have room: all, if they leave room; else
    /// few enough that the next runs have room, too. `None` if the run is longer than the limit.
    fn keep_beside(&self, frames: usize) -> Option<usize> {
        let most = self.limit_frames.checked_sub(frames)?;
        let held = self.cached.frames();
        Some(if held <= most { held } else { most.min(self.limit_frames / 4 * 3) })
    }

    /// How many frames may stay once the time since the last call is accounted for.
    fn age(&mut self, now_ms: u64) -> usize {
        self.calls_left = CLOCK_CALLS;
        let held = self.cached.frames();
        let half_lives = now_ms.saturating_sub(self.halved_ms) / HALF_LIFE_MS;
        if half_lives == 0 {
            return held;
        }
        let idle = if self.halved_ms > 0 { self.idle_frames.min(held) } else { 0 };
        let keep = held - idle + halved(idle, half_lives);
        (self.idle_frames, self.halved_ms) = (keep, now_ms);
        keep
    }
}

impl<S: System> Heap<S> {
    /// An object for `bytes`, more than the size classes have, from the runs that the thread keeps.
    /// Null if none fits.
    ///
    /// # Safety
    /// `cache` is this thread's, of this heap, or one without runs, such as [`Cache::ABSENT`].
    #[inline(always)]
    pub(crate) unsafe fn take_own_run(&self, cache: NonNull<Cache>, bytes: usize) -> *mut u8 {
        let null = core::ptr::null_mut();
        if bytes > LONGEST_CACHED_FRAMES * FRAME_BYTES {
            return null;
        }
        // SAFETY: the caller's promise: this thread's, or one that is only read.
        let Some(mut runs) = (unsafe { (*cache.as_ptr()).runs }) else { return null };
        // SAFETY: invariant 2.
        let runs = unsafe { runs.as_mut() };
        let view = self.backend.first_view();
        let Some((first, frames)) = runs.pop(bytes.div_ceil(FRAME_BYTES), view.near()) else {
            return null;
        };
        // SAFETY: a run of this region that was this thread's to keep.
        unsafe { view.run_entry(first) }.note(frames);
        view.at(first)
    }

    /// Keeps the run that begins at `object` for this thread. `false`, with nothing changed, if no
    /// run begins there or the slow path is needed.
    ///
    /// # Safety
    /// As [`take_own_run`](Self::take_own_run); and if `object` is an object, it is not used again.
    #[inline(always)]
    pub(crate) unsafe fn keep_own_run(&self, cache: NonNull<Cache>, object: *mut u8) -> bool {
        // SAFETY: the caller's promise: this thread's, or one that is only read.
        let Some(mut runs) = (unsafe { (*cache.as_ptr()).runs }) else { return false };
        let view = self.backend.first_view();
        let Some((first, frames, entry)) = view.run_or_kept_at(object.addr()) else { return false };
        // A run that is kept already seems longer than any that there is room for.
        // SAFETY: invariant 2.
        if !unsafe { runs.as_mut() }.push(first, frames) {
            return false;
        }
        entry.note_kept(frames);
        true
    }

    /// Keeps the run that begins at `start` in the thread's cache, if it has one, or gives the run
    /// back. `None` if no run begins there.
    ///
    /// # Safety
    /// If `start` is an object, it is not used again.
    pub(crate) unsafe fn free_run(
        &self,
        cache: Option<&mut Cache>,
        start: NonNull<u8>,
    ) -> Option<()> {
        let Some(cache) = cache else { return self.backend.put_run(start).map(drop) };
        let has_room = self.make_room(cache, start);
        // SAFETY: this thread's cache; the caller's promise.
        if has_room && unsafe { self.keep_own_run(NonNull::from(&mut *cache), start.as_ptr()) } {
            return Some(());
        }
        let frames = self.backend.put_run(start)?;
        if frames <= LONGEST_CACHED_FRAMES {
            cache.note_gone_run(frames);
        }
        Some(())
    }

    /// Makes room for the run at `start`, if one begins there, among those that the thread keeps.
    /// Returns whether there is room. Before that, accounts for the passing of time if it is due.
    fn make_room(&self, cache: &mut Cache, start: NonNull<u8>) -> bool {
        let Some(runs) = cache.runs() else { return false };
        if runs.calls_left == 0 {
            self.age_runs(runs);
        }
        let view = self.backend.first_view();
        let Some((_, frames)) = view.run_at(start.addr().get()) else { return false };
        let Some(keep) = runs.keep_beside(frames) else { return false };
        let gone = self.put_runs(runs, keep);
        if gone > 0 {
            cache.note_gone_run(gone);
        }
        true
    }

    /// Gives back all runs but `keep` frames. Returns how many frames went.
    fn put_runs(&self, runs: &mut OwnRuns, keep: usize) -> usize {
        if runs.cached.frames() <= keep { 0 } else { self.put_some_runs(runs, keep) }
    }

    #[inline(never)]
    fn put_some_runs(&self, runs: &mut OwnRuns, keep: usize) -> usize {
        self.backend.put_own_runs(|out| runs.shrink(keep, out))
    }

    /// Gives back runs that have lain idle, and what was lent for them. The backend does likewise.
    fn age_runs(&self, runs: &mut OwnRuns) {
        let keep = runs.age(self.source().now_ms());
        let idle = self.put_runs(runs, keep);
        runs.limit_frames -= idle;
        self.backend.take_back(idle);
        // The rest of what is too much goes part by part: the next free comes here again.
        if self.backend.tend() > 0 {
            runs.calls_left = 1;
        }
    }

    /// Lets the thread keep more if it asks for a run of `frames` after it has given back as much.
    pub(crate) fn regret_run(&self, cache: &mut Cache, frames: usize) {
        let Some(gone_frames) = usize::from(cache.gone_frames).checked_sub(frames) else { return };
        if cache.gone_runs < MIN_GONE_RUNS {
            return;
        }
        cache.gone_frames = gone_frames as u16;
        if cache.runs.is_none() {
            cache.runs = self.backend.metadata(size_of::<OwnRuns>()).map(NonNull::cast);
        }
        let Some(runs) = cache.runs() else { return };
        if runs.limit_frames + frames <= MAX_FRAMES && self.backend.lend(frames) {
            runs.limit_frames += frames;
        }
    }

    /// For the child of a fork: what was lent to threads that are not there, and will never give it
    /// back, may be lent again.
    ///
    /// `seat` is that of the child's one thread.
    #[cold]
    #[inline(never)]
    pub fn forget_other_threads(&self, mut seat: Seat<'_>) {
        let runs = seat.cache().and_then(Cache::runs);
        self.backend.lend_only(runs.map_or(0, |runs| runs.limit_frames));
    }

    /// Gives back the runs that the thread keeps. Returns how many bytes went.
    pub(crate) fn release_runs(&self, cache: &mut Cache) -> usize {
        cache.gone_frames = 0;
        let Some(runs) = cache.runs() else { return 0 };
        let gone = self.put_runs(runs, 0);
        self.backend.take_back(core::mem::take(&mut runs.limit_frames));
        gone * FRAME_BYTES
    }
}

impl Cache {
    /// The runs that the thread keeps.
    #[inline(always)]
    fn runs(&mut self) -> Option<&mut OwnRuns> {
        // SAFETY: invariant 2; zeroed when the memory was taken.
        self.runs.map(|mut runs| unsafe { runs.as_mut() })
    }

    /// Notes that `frames` frames of runs have gone to the backend that the thread might have kept.
    fn note_gone_run(&mut self, frames: usize) {
        self.gone_frames = (usize::from(self.gone_frames) + frames).min(MAX_FRAMES) as u16;
        self.gone_runs = self.gone_runs.saturating_add(1);
    }

    /// The bytes of the runs that the thread keeps.
    pub fn run_bytes(&self) -> usize {
        // SAFETY: invariant 2: the caller has the cache.
        self.runs.map_or(0, |runs| unsafe { runs.as_ref() }.bytes())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::boxed::Box;

    use hectare_pages::Os;

    use super::*;

    fn of_limit(limit_frames: usize) -> OwnRuns {
        let cached = RunCache::new();
        OwnRuns { cached, limit_frames, idle_frames: 0, halved_ms: 0, calls_left: 0, next_out: 0 }
    }

    #[test]
    fn half_of_what_nobody_has_needed_for_a_half_life_goes() {
        let mut runs = of_limit(100);
        assert_eq!(runs.age(5000), 0);
        assert!([16, 32, 48].iter().all(|&first| runs.push(first, 16)));
        assert_eq!([5999, 6000].map(|now_ms| runs.age(now_ms)), [48, 48], "it has just come");
        let (first, frames) = runs.pop(16, Near::USUAL).expect("a run");
        assert!(runs.push(first, frames));
        assert_eq!(runs.age(7000), 32, "one of three was needed");
        runs.shrink(32, drop);
        assert_eq!([7500, 8000].map(|now_ms| runs.age(now_ms)), [32, 16]);
    }

    #[test]
    fn the_clock_is_read_now_and_then() {
        let mut runs = of_limit(MAX_FRAMES);
        assert!(!runs.push(0, 1), "at first, too");
        runs.age(5000);
        for _ in 0..CLOCK_CALLS {
            assert!(runs.push(0, 1));
            runs.pop(1, Near::USUAL);
        }
        assert!(!runs.push(0, 1));
    }

    #[test]
    fn where_there_is_no_room_some_is_made_for_the_next_too() {
        let mut runs = of_limit(100);
        runs.age(5000);
        assert!([0, 40].iter().all(|&first| runs.push(first, 40)));
        let keep = [20, 21, 60, 100, 101].map(|frames| runs.keep_beside(frames));
        assert_eq!(keep, [Some(80), Some(75), Some(40), Some(0), None]);
        assert!(!runs.push(80, 24), "beyond the limit");
    }

    #[test]
    fn a_thread_that_frees_few_runs_keeps_none() {
        let heap = Box::new(Heap::new(Os, 64 << 20));
        let mut cache = heap.new_cache().expect("a cache");
        // SAFETY: the test's own cache.
        let cache = unsafe { cache.as_mut() };
        let mut regret = |gone_runs| {
            (cache.gone_frames, cache.gone_runs) = (100, gone_runs);
            heap.regret_run(cache, 60);
            (cache.gone_frames, cache.runs().map(|runs| runs.limit_frames))
        };
        assert_eq!(regret(MIN_GONE_RUNS - 1), (100, None));
        assert_eq!(regret(MIN_GONE_RUNS), (40, Some(60)));
    }
}
