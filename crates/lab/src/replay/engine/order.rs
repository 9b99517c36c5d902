//! When an operation may be executed: not before its object is there, not too far ahead of the
//! other lanes, and in paced mode not before its time. Invariants 2 and 3 of [`super`].

use std::ffi::c_void;
use std::hint::spin_loop;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use super::super::Mode;
use super::super::clock::ticks;
use super::super::plan::{Lane, Slot, WINDOW};
use super::Run;

/// How often a thread looks at a word before it yields.
const SPINS: u32 = 100;

impl Run<'_> {
    /// In paced mode, waits until operation `at` is due and returns that moment, ticks.
    pub(super) fn due(&self, lane: &Lane, at: usize, start: u64) -> Option<u64> {
        if self.options.mode != Mode::Paced {
            return None;
        }
        let start_ns = *lane.start_ns.get(at)?;
        let due = start.saturating_add((start_ns as f64 / self.rate.ns_per_tick) as u64);
        loop {
            let now = ticks();
            if now >= due {
                return Some(due);
            }
            let left_ns = ((due - now) as f64 * self.rate.ns_per_tick) as u64;
            // A sleeping thread wakes some 50 µs late; the rest is spent polling.
            if left_ns > 200_000 {
                std::thread::sleep(std::time::Duration::from_nanos(left_ns - 150_000));
            } else if self.lanes.len() > 1 {
                std::thread::yield_now();
            } else {
                spin_loop();
            }
        }
    }

    /// Waits, by invariant 2, before an operation numbered `last`. Returns the ticks it took.
    #[inline]
    pub(super) fn wait_for_window(&self, nth: usize, last: u64) -> u64 {
        let must = last.saturating_sub(WINDOW);
        if self.others_have_done(nth, must) { 0 } else { self.wait_for_window_slow(nth, must) }
    }

    #[cold]
    fn wait_for_window_slow(&self, nth: usize, must: u64) -> u64 {
        let since = ticks();
        self.wait((), || self.others_have_done(nth, must).then_some(()));
        ticks() - since
    }

    /// Whether every other lane has done all operations below `must`. Lanes are in the order of
    /// their first operations, so lanes that begin later need not be looked at.
    #[inline]
    fn others_have_done(&self, nth: usize, must: u64) -> bool {
        let first = self.done.load(Ordering::Acquire);
        for (lane, progress) in self.progress.iter().enumerate().skip(first) {
            let at = progress.0.load(Ordering::Acquire);
            if lane != nth && at < must {
                return false;
            }
            let begins = self.lanes[lane].batches.first().map_or(u64::MAX, |batch| batch.first);
            if begins >= must {
                break;
            }
            if at == u64::MAX && self.done.load(Ordering::Acquire) == lane {
                self.done.store(lane + 1, Ordering::Release);
            }
        }
        true
    }

    /// The object in a slot, once it is there, and the ticks spent waiting for it.
    #[inline(always)]
    pub(super) fn wait_for_object(&self, slot: Slot) -> (*mut c_void, u64) {
        let object = self.table.slots[slot as usize].load(Ordering::Acquire);
        if object.is_null() { self.wait_for_object_slow(slot) } else { (object, 0) }
    }

    #[cold]
    fn wait_for_object_slow(&self, slot: Slot) -> (*mut c_void, u64) {
        let since = ticks();
        let slot = &self.table.slots[slot as usize];
        let object = self.wait(null_mut(), || {
            let object = slot.load(Ordering::Acquire);
            (!object.is_null()).then_some(object)
        });
        (object, ticks() - since)
    }

    /// Polls until `ready` returns something, and yields the processor after some time. Returns
    /// `instead` when the run has been abandoned.
    fn wait<T>(&self, instead: T, ready: impl Fn() -> Option<T>) -> T {
        let mut looks = 0;
        loop {
            if let Some(value) = ready() {
                return value;
            }
            looks += 1;
            if looks < SPINS {
                spin_loop();
            } else if self.abandoned.load(Ordering::Relaxed) {
                return instead;
            } else {
                std::thread::yield_now();
            }
        }
    }
}
