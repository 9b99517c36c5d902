//! How dirty frames go back to the system while the backend's lock is free.
//!
//! A call that gives memory back takes long, and interrupts the program's other processors. So what
//! goes is first taken out of what is free, some ranges at a time. While the call runs it is
//! neither dirty nor clean, like a block that is being opened, and the lock is free for other
//! threads.
//!
//! One thread at a time gives back. If another thread comes meanwhile and has made only a little
//! dirty, it leaves that to the first, so nobody waits for what others have freed. A thread that
//! has made more dirty waits; otherwise much could stay when both fall idle. A fork waits, too, and
//! finds nothing on its way. A thread that finds no room elsewhere waits until what is on its way
//! is clean.

use hectare_pages::System;

use super::keeping::{ALL, DECOMMIT_STEP_FRAMES, Vain};
use super::{Backend, Held};
use crate::huge::MIN_HUGE_BYTES;
use crate::leaving::Leaving;
use crate::region::FRAME_BYTES;

/// A call gives back this share of what is too much, and at least this many bytes: for runs of
/// 40 KB that takes 0.2 ms.
const STEP_SHARE: usize = 64;
const MIN_STEP_BYTES: usize = 16 << 20;

impl<S: System> Backend<S> {
    /// Ends a call by which `frames` frames have become dirty, or hollow slabs `are_due`. Releases
    /// the lock.
    #[inline(never)]
    pub(super) fn gave(&self, mut state: Held<'_, S>, frames: usize, are_due: bool) {
        state.used_frames -= frames;
        self.expect_tending();
        // What becomes due now goes at the next call.
        let is_due = state.due_frames > 0 || are_due;
        let is_huge = frames >= MIN_HUGE_BYTES / FRAME_BYTES;
        let keep = self.keep_if_exceeded(&mut state, is_huge);
        drop(state);
        if is_due || keep < ALL {
            self.decommit_excess(keep, frames, is_due);
        }
    }

    /// Ends a call that took `frames` frames without memory. What is dirty beyond the headroom goes
    /// back, so that no more is resident than before. Releases the lock, as [`gave`](Self::gave)
    /// does.
    #[inline(never)]
    pub(super) fn grew(&self, state: Held<'_, S>, frames: usize) {
        let keep = state.headroom_frames(self.held_frames(&state));
        let exceeds = state.exceeds(keep);
        drop(state);
        if exceeds {
            self.decommit_excess(keep, frames, false);
        }
    }

    /// Gives back dirty frames beyond `keep`, or a part of them, after a call has taken or given
    /// `frames`: at least as many. Gives back hollow slabs and due frames, too, if something
    /// `is_due`.
    #[cold]
    #[inline(never)]
    fn decommit_excess(&self, keep: usize, frames: usize, is_due: bool) {
        let waits = || (frames >= DECOMMIT_STEP_FRAMES).then(|| self.leaver.lock());
        let Some(_leaver) = self.leaver.try_lock().or_else(waits) else { return };
        let mut state = self.state.lock();
        self.decommit_due_and_excess(&mut state, keep, frames, is_due);
    }

    /// As [`decommit_excess`](Self::decommit_excess). Returns how many frames went. The caller has
    /// the leaver's lock. The state's lock is free while the system is called.
    #[inline(never)]
    pub(super) fn decommit_due_and_excess(
        &self,
        state: &mut Held<'_, S>,
        keep: usize,
        frames: usize,
        is_due: bool,
    ) -> usize {
        let due = if is_due { self.decommit_due(state) } else { 0 };
        if !state.exceeds(keep) {
            return due;
        }
        let dirty = state.dirty_frames();
        let gone = self.decommit_part(state, keep, frames);
        state.vain = (gone == 0).then_some(Vain { dirty, keep });
        due + gone
    }

    /// Gives back all but `keep_bytes` of the dirty memory. Returns how many bytes went.
    pub(crate) fn trim(&self, keep_bytes: usize) -> usize {
        let _leaver = self.leaver.lock();
        let mut state = self.state.lock();
        self.decommit(&mut state, keep_bytes / FRAME_BYTES) * FRAME_BYTES
    }

    /// Gives back hollow slabs, and a part of what is due, except what the program has needed
    /// meanwhile. Returns how many frames went.
    fn decommit_due(&self, state: &mut Held<'_, S>) -> usize {
        let dirty = state.dirty_frames();
        let due = state.due_frames.min(state.idle_frames).min(dirty);
        let gone = self.decommit_part(state, dirty - due, 0);
        // If none went, the rest may stay: it is pieces of huge pages.
        state.due_frames = if gone > 0 { due.saturating_sub(gone) } else { 0 };
        gone
    }

    /// Gives back what is dirty beyond `keep` frames, all at once. Returns how many frames went.
    /// The caller has the leaver's lock.
    pub(super) fn decommit(&self, state: &mut Held<'_, S>, keep: usize) -> usize {
        self.decommit_part(state, keep, usize::MAX)
    }

    /// Gives back hollow slabs, and a part of what is dirty beyond `keep` frames, for a call that
    /// has taken or given `frames`. (All of gigabytes in short runs would take tens of
    /// milliseconds.) Returns how many frames went. The caller has the leaver's lock. The state's
    /// lock is free while the system is called.
    #[inline(never)]
    fn decommit_part(&self, state: &mut Held<'_, S>, keep: usize, frames: usize) -> usize {
        let mut over = state.dirty_frames().saturating_sub(keep);
        let mut left = (over / STEP_SHARE).max(MIN_STEP_BYTES / FRAME_BYTES).max(frames);
        let mut gone = 0;
        let mut leaving = Leaving::NONE;
        for index in (0..state.regions.len()).rev() {
            while let Some(region) = state.regions.get_mut(index) {
                let keep_here = region.dirty_frames().saturating_sub(over);
                let taken = region.leave(keep_here, left, &mut leaving, &self.source);
                let is_full = leaving.is_full();
                let went = taken.saturating_sub(self.send_off(state, index, &mut leaving));
                gone += went;
                over = over.saturating_sub(went);
                left = left.saturating_sub(went);
                if went < taken || !is_full {
                    break;
                }
            }
        }
        gone
    }

    /// Gives back what is `leaving` from a region, with the state's lock free. Returns how many
    /// frames stayed.
    fn send_off(&self, state: &mut Held<'_, S>, index: usize, leaving: &mut Leaving) -> usize {
        if leaving.is_empty() {
            return 0;
        }
        // SAFETY: nobody uses it, and it is neither dirty nor clean, so nobody takes it.
        let gone = state.unlocked(|| unsafe { leaving.decommit(&self.source) });
        let region = state.regions.get_mut(index);
        region.map_or(0, |region| region.settle(&gone, &self.source))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use core::ptr::NonNull;
    use core::sync::atomic::{AtomicBool, Ordering};
    use std::boxed::Box;
    use std::thread;

    use hectare_base::sync::Lock;
    use hectare_pages::{Os, PageRange, PageSource, SourceError};

    use super::*;
    use crate::class::ClassId;
    use crate::region::Wanted;

    const MIB: usize = 1 << 20;

    /// A system that gives back many ranges only while nobody holds its gate.
    struct Gated {
        gate: Lock<(), <Os as System>::Park>,
        is_asked: AtomicBool,
    }

    // SAFETY: every call is passed on unchanged.
    unsafe impl PageSource for Gated {
        passed_on!(_ => Os; page_bytes reserve commit decommit release);

        unsafe fn decommit_all(&self, ranges: &[PageRange]) -> usize {
            self.is_asked.store(true, Ordering::Release);
            let _gate = self.gate.lock();
            // SAFETY: the caller's promise, passed on.
            unsafe { Os.decommit_all(ranges) }
        }
    }

    impl System for Gated {
        type Park = <Os as System>::Park;

        fn cpu(&self) -> usize {
            Os.cpu()
        }

        fn now_ms(&self) -> u64 {
            Os.now_ms()
        }

        fn now_ns(&self) -> u64 {
            Os.now_ns()
        }

        fn thread_us(&self) -> u64 {
            Os.thread_us()
        }

        fn secret(&self) -> usize {
            Os.secret()
        }

        fn fatal(&self, line: &[u8]) -> ! {
            Os.fatal(line)
        }
    }

    fn run(backend: &Backend<Gated>, bytes: usize) -> NonNull<u8> {
        let wanted = Wanted::Run { frames: bytes / FRAME_BYTES, align: 1, fills: false };
        backend.get_run(wanted, ClassId::RUN).expect("memory").start
    }

    /// Holds a source's gate until it is opened or the test has failed.
    struct Held<'a>(&'a Gated, AtomicBool);

    impl Held<'_> {
        fn open(&self) {
            if !self.1.swap(true, Ordering::Relaxed) {
                // SAFETY: held by whoever made this.
                unsafe { self.0.gate.unlock() };
            }
        }
    }

    impl Drop for Held<'_> {
        fn drop(&mut self) {
            self.open();
        }
    }

    /// Calls `meanwhile` while a run of `bytes` is on its way back, all but its first 8 MiB, which
    /// stay.
    fn while_a_run_goes(
        bytes: usize,
        meanwhile: impl FnOnce(&Backend<Gated>, core::ops::Range<usize>, &Held<'_>),
    ) {
        let source = Gated { gate: Lock::new(()), is_asked: AtomicBool::new(false) };
        let backend = Box::new(Backend::new(source, 64 * MIB));
        let start = run(&backend, bytes).expose_provenance().get();
        backend.source.gate.lock_for_fork();
        thread::scope(|scope| {
            let backend = &backend;
            scope.spawn(move || {
                let going = NonNull::new(core::ptr::with_exposed_provenance_mut(start));
                backend.put_run(going.expect("not at 0"));
            });
            while !backend.source.is_asked.load(Ordering::Acquire) {
                thread::yield_now();
            }
            let gate = Held(&backend.source, AtomicBool::new(false));
            assert!(backend.state.try_lock().is_some(), "the lock is free");
            meanwhile(backend, start + 8 * MIB..start + bytes, &gate);
        });
        backend.validate();
    }

    #[test]
    fn others_take_and_give_while_memory_goes() {
        const SHORT: usize = MIB / 2;
        while_a_run_goes(40 * MIB, |backend, going, gate| {
            let runs = [(); 22].map(|()| run(backend, SHORT));
            assert!(!runs.iter().any(|run| going.contains(&run.addr().get())));
            // In the end too much is dirty. The rest is left to the thread that gives back, or to
            // the next.
            runs.into_iter().for_each(|run| {
                backend.put_run(run);
            });
            let dirty_bytes = || backend.stats().dirty_bytes;
            assert!(dirty_bytes() >= 22 * SHORT, "{}", dirty_bytes());
            gate.open();
            drop(backend.leaver.lock());
            let last = run(backend, SHORT);
            backend.put_run(last);
            assert!(dirty_bytes() <= 10 * MIB, "{}", dirty_bytes());
        });
    }

    #[test]
    fn what_is_on_its_way_back_is_waited_for_before_a_region_is_opened() {
        while_a_run_goes(48 * MIB, |backend, going, gate| {
            thread::scope(|scope| {
                scope.spawn(|| {
                    let again = run(backend, 48 * MIB).addr().get();
                    assert!(going.contains(&(again + 8 * MIB)), "the same place");
                });
                thread::sleep(std::time::Duration::from_millis(20));
                gate.open();
            });
            assert_eq!(backend.stats().regions, 1);
        });
    }

    #[test]
    fn a_fork_finds_nothing_on_its_way() {
        while_a_run_goes(40 * MIB, |backend, _, gate| {
            thread::scope(|scope| {
                scope.spawn(|| {
                    backend.before_fork();
                    // SAFETY: this thread holds the locks.
                    unsafe { backend.after_fork() };
                    assert!(backend.stats().dirty_bytes <= 8 * MIB);
                });
                thread::sleep(std::time::Duration::from_millis(20));
                gate.open();
            });
        });
    }
}
