//! The backend: the process-wide owner of the regions. It hands out runs and slabs, and takes them back.
//!
//! | question | file |
//! |---|---|
//! | how is a run taken, given back, resized? | here |
//! | how does a run come from a block that is opened without the lock? | `backend/blocks.rs` |
//! | how much of the slabs holds memory? | `backend/slabs.rs` |
//! | which freed memory stays, what goes back to the system, and when? | `backend/keeping.rs` |
//! | how does it go while the lock is free? | `backend/giving_back.rs` |
//! | when does idle memory go, and how much at a call? | `backend/tending.rs` |
//! | how much may threads keep of what they free? | `backend/lending.rs` |
//! | by how much may the slabs empty before they are looked through? | `backend/keeping/slack.rs` |
//! | which regions are there, and how much address space do they reserve? | `backend/opened.rs`, `backend/regions.rs` |
//! | where do the heap's own tables lie? | `backend/metadata.rs` |
//! | what happens to sealed memory that the system refuses to open again? | `backend/shut.rs` |
//! | what do statistics tell? | `backend/stats.rs` |

mod blocks;
mod giving_back;
mod keeping;
mod lending;
mod metadata;
mod opened;
mod regions;
mod shut;
mod slabs;
mod stats;
mod tending;

use core::mem::offset_of;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use hectare_base::sync::{Lock, LockGuard};
use hectare_pages::System;

use crate::cache::Cache;
use crate::class::ClassId;
use crate::huge::{Huge, MIN_HUGE_BYTES};
use crate::region::{Blocks, FRAME_BYTES, Probe, Refusal, Region, RegionView, Run, Wanted};

use blocks::OPENERS;
pub(crate) use keeping::{HALF_LIFE_MS, halved};
use keeping::{Swing, Vain};
use metadata::Metadata;
use opened::{REGIONS, Regions};

/// The lock of the state, held.
type Held<'a, S> = LockGuard<'a, State, <S as System>::Park>;

/// The number of a region, and the run that was taken from it.
type Taken = Result<(usize, Run), Refusal>;

/// The regions and what is free of them.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Backend<S: System> {
    /// For reading without the lock. Each free reads the first view, of the region where nearly all
    /// memory lies.
    views: [RegionView; REGIONS],
    pub(crate) source: S,
    /// How many views are in use: as many as regions have been opened.
    count: AtomicUsize,
    /// Frames taken that held no memory, since the last scavenge.
    grown_frames: AtomicUsize,
    /// How many there may be before the next scavenge.
    growth_limit_frames: AtomicUsize,
    /// By how many bytes the slabs may empty before the next scavenge.
    emptying_limit_bytes: AtomicUsize,
    /// Frames in slabs; and how many of these hold no memory, because they were never touched or
    /// have been given back.
    slab_frames: AtomicUsize,
    bare_frames: AtomicUsize,
    /// Whether a region has frames that are shut (`region/shut.rs`).
    has_shut: AtomicBool,
    /// How many frames that had been given back hold objects again since the last scavenge.
    returned_frames: AtomicUsize,
    /// When, in milliseconds, something will have lain idle for too long; 0 if little lies idle.
    tends_at_ms: AtomicU64,
    /// From how many bytes on objects are huge; 0 stands for [`MIN_HUGE_BYTES`].
    min_huge_bytes: AtomicUsize,
    /// A thread that opens a block, for slabs or for a run, holds one of these. It is taken before
    /// the state's lock, which is free meanwhile.
    openers: [Lock<(), S::Park>; OPENERS],
    /// A thread that gives memory back holds this. It is taken before the state's lock, which is
    /// free meanwhile.
    leaver: Lock<(), S::Park>,
    state: Lock<State, S::Park>,
    pub(crate) huge: Lock<Huge, S::Park>,
}

/// The regions come last, since most of their places are never used.
#[derive(Debug)]
#[repr(C)]
struct State {
    /// How much address space the first region takes if it can, and others at least. 0 stands for
    /// some times the memory that there can be (`backend/regions.rs`).
    region_bytes: usize,
    /// Frames of runs and slabs that are not free.
    used_frames: usize,
    /// Of these, the frames of runs as long as huge objects ([`MIN_HUGE_BYTES`] and more), and how
    /// many such runs there are.
    huge_run_frames: usize,
    huge_runs: usize,
    /// One for each frame that went back and was then taken anew.
    regret_frames: usize,
    /// The most that was lately held in use at once.
    peak_held_frames: usize,
    /// The fewest dirty frames there were since `halved_ms`: nobody has needed that many.
    idle_frames: usize,
    /// Of these, how many are yet to go back.
    due_frames: usize,
    /// The last attempt to give dirty frames back, if none went. One like it is not made in this
    /// half-life.
    vain: Option<Vain>,
    swing: Swing,
    /// When half of the past was last forgotten (`backend/keeping.rs`).
    halved_ms: u64,
    /// What threads may keep of freed runs; these frames count as used.
    lent_frames: usize,
    /// Caches that no thread has. Each names the next.
    unused_caches: Option<NonNull<Cache>>,
    metadata: Metadata,
    regions: Regions,
}

// SAFETY: the pointers name metadata of the heap, guarded by the lock around the state.
unsafe impl Send for State {}

impl<S: System> Backend<S> {
    /// Where the view of the first region lies in the backend.
    pub(crate) const FIRST_VIEW: usize = offset_of!(Self, views);

    /// All zeros except for `source` and `region_bytes`.
    pub(crate) const fn new(source: S, region_bytes: usize) -> Self {
        Self {
            source,
            views: [const { RegionView::new() }; REGIONS],
            count: AtomicUsize::new(0),
            grown_frames: AtomicUsize::new(0),
            growth_limit_frames: AtomicUsize::new(0),
            emptying_limit_bytes: AtomicUsize::new(0),
            slab_frames: AtomicUsize::new(0),
            bare_frames: AtomicUsize::new(0),
            has_shut: AtomicBool::new(false),
            returned_frames: AtomicUsize::new(0),
            tends_at_ms: AtomicU64::new(0),
            min_huge_bytes: AtomicUsize::new(0),
            openers: [const { Lock::new(()) }; OPENERS],
            leaver: Lock::new(()),
            state: Lock::new(State {
                regions: Regions::NONE,
                region_bytes,
                used_frames: 0,
                huge_run_frames: 0,
                huge_runs: 0,
                regret_frames: 0,
                vain: None,
                peak_held_frames: 0,
                idle_frames: 0,
                due_frames: 0,
                swing: Swing::NONE,
                halved_ms: 0,
                lent_frames: 0,
                unused_caches: None,
                metadata: Metadata::NONE,
            }),
            huge: Lock::new(Huge::new()),
        }
    }

    /// The region in which nearly all memory lies.
    #[inline(always)]
    pub(crate) fn first_view(&self) -> &RegionView {
        &self.views[0]
    }

    /// The region that `address` lies in.
    pub(crate) fn find(&self, address: usize) -> Option<&RegionView> {
        self.views_in_use().iter().find(|view| view.offset_of(address).is_some())
    }

    /// The number of the region that `address` lies in.
    fn index_of(&self, address: usize) -> Option<usize> {
        self.views_in_use().iter().position(|view| view.offset_of(address).is_some())
    }

    /// How far the regions are committed, in bytes.
    #[inline(never)]
    pub(crate) fn committed_bytes(&self) -> usize {
        self.views_in_use().iter().map(RegionView::committed_bytes).sum()
    }

    /// The views of the opened regions.
    fn views_in_use(&self) -> &[RegionView] {
        // Acquire: whoever sees a region counted sees what was published of it.
        &self.views[..self.count.load(Ordering::Acquire)]
    }

    /// From how many bytes on objects are huge.
    pub(crate) fn min_huge_bytes(&self) -> usize {
        self.min_huge_bytes.load(Ordering::Relaxed).max(MIN_HUGE_BYTES)
    }

    /// Takes what is `wanted`, and marks it as `class`.
    pub(crate) fn get_run(&self, wanted: Wanted, class: ClassId) -> Option<Run> {
        let (mut state, taken) = self.take_opening(wanted);
        let (index, run) = match taken {
            Ok(taken) => taken,
            Err(refusal) => {
                drop(state);
                let taken;
                (state, taken) = self.take_hard(wanted, refusal);
                taken?
            }
        };
        let frames = run.frames;
        self.took(&mut state, &run);
        let region = state.regions.get_mut(index)?;
        region.show(&self.views[index]);
        let marked = if class == ClassId::RUN {
            region.set_run_length(run.start, frames);
            state.note_length(0, frames);
            1
        } else {
            // Under the lock, so that statistics do not take a slab for a run.
            self.slab_frames.fetch_add(frames, Ordering::Relaxed);
            frames
        };
        // SAFETY: the run was just taken from this region.
        unsafe { self.views[index].mark(run.start.addr().get(), marked, class) };
        let due_probe = state.regions.get_mut(index).and_then(Region::due_probe);
        if run.bare_frames > 0 {
            self.grew(state, run.bare_frames);
        } else {
            drop(state);
        }
        if let Some(other) = due_probe {
            self.probe(other, index);
        }
        Some(run)
    }

    /// Probes a run in use of the region numbered `index`, to learn what the next ones are like.
    /// Must be called without the lock.
    #[inline(never)]
    fn probe(&self, run: Probe, index: usize) {
        let Some(filled_pages) = run.in_use(&self.source) else { return };
        if let Some(region) = self.state.lock().regions.get_mut(index) {
            region.note_probe(run, filled_pages);
            region.show(&self.views[index]);
        }
    }

    /// Counts a run that was taken, or what a run grew by.
    #[inline(never)]
    fn took(&self, state: &mut State, run: &Run) {
        state.regret_frames += run.again_frames;
        state.used_frames += run.frames;
        self.note_peak(state);
        state.idle_frames = state.idle_frames.min(state.dirty_frames());
        if run.bare_frames > 0 {
            self.grown_frames.fetch_add(run.bare_frames, Ordering::Relaxed);
        }
    }

    /// Takes a run after no region had one, for the reason of `refusal`.
    #[cold]
    fn take_hard(&self, wanted: Wanted, refusal: Refusal) -> (Held<'_, S>, Option<(usize, Run)>) {
        // Before there is a first region nobody opens a block.
        if self.count.load(Ordering::Relaxed) > 0 {
            self.wait_for_blocks();
        }
        // What other threads were giving back is clean by now.
        let _leaver = self.leaver.lock();
        let mut state = self.state.lock();
        let taken = self.take_at_last(&mut state, wanted, refusal);
        (state, taken)
    }

    /// As [`take_hard`](Self::take_hard), while nothing is on its way back.
    fn take_at_last(
        &self,
        state: &mut Held<'_, S>,
        wanted: Wanted,
        refusal: Refusal,
    ) -> Option<(usize, Run)> {
        if let Ok(taken) = self.take(state, wanted, Blocks::AsTheyAre) {
            return Some(taken);
        }
        // A range that is half dirty and half clean can be a run only once all of it is clean.
        if state.dirty_frames() > 0
            && self.decommit(state, 0) > 0
            && let Ok(taken) = self.take(state, wanted, Blocks::AsTheyAre)
        {
            return Some(taken);
        }
        if refusal == Refusal::NoMemory {
            return None;
        }
        let align = wanted.align_frames() * FRAME_BYTES;
        self.open_region(state, wanted.room_frames() * FRAME_BYTES, align)?;
        self.take(state, wanted, Blocks::AsTheyAre).ok()
    }

    /// Takes a run from the first region that has one. Only the first region has blocks.
    #[inline(never)]
    fn take(&self, state: &mut State, wanted: Wanted, blocks: Blocks) -> Taken {
        let mut refusal = Refusal::NoRange;
        for (index, region) in state.regions.iter_mut().enumerate() {
            let blocks = if index == 0 { blocks } else { Blocks::AsTheyAre };
            match region.take(wanted, blocks, &self.source) {
                Ok(run) => return Ok((index, run)),
                Err(Refusal::Block) => return Err(Refusal::Block),
                Err(Refusal::NoMemory) => refusal = Refusal::NoMemory,
                Err(Refusal::NoRange) => {}
            }
        }
        Err(refusal)
    }

    /// The length in frames of the run that begins at `start`, if one does.
    pub(crate) fn run_length(&self, start: NonNull<u8>) -> Option<usize> {
        let address = start.addr().get();
        self.views_in_use().iter().find_map(|view| view.run_at(address)).map(|(_, frames)| frames)
    }

    /// Takes back the run that begins at `start`, and returns its length. `None` if no run begins
    /// there, because it was given back already or never handed out. Takes the lock only if one
    /// seems to begin there.
    pub(crate) fn put_run(&self, start: NonNull<u8>) -> Option<usize> {
        let address = start.addr().get();
        let index = self.index_of(address)?;
        let view = &self.views[index];
        view.run_at(address)?;
        let mut state = self.state.lock();
        let (_, frames) = view.run_at(address)?;
        self.give_run(&mut state, index, start, frames);
        self.gave(state, frames, false);
        self.tend_if_due();
        Some(frames)
    }

    /// Takes back runs that were a thread's own. `release` calls its argument with the first frame
    /// of each. Returns how many frames they had.
    pub(crate) fn put_own_runs(&self, release: impl FnOnce(&mut dyn FnMut(usize))) -> usize {
        let mut state = self.state.lock();
        let mut gone = 0;
        release(&mut |first| {
            let Some(start) = NonNull::new(self.views[0].at(first)) else { return };
            let Some(region) = state.regions.first() else { return };
            let frames = region.run_length(start);
            self.give_run(&mut state, 0, start, frames);
            gone += frames;
        });
        if gone > 0 {
            self.gave(state, gone, false);
        }
        gone
    }

    /// Takes back a run, except for what [`gave`](Self::gave) does.
    fn give_run(&self, state: &mut State, index: usize, start: NonNull<u8>, frames: usize) {
        let Some(region) = state.regions.get_mut(index) else { return };
        // SAFETY: the run begins in this region, and is being given back.
        unsafe { self.views[index].mark_run(start.addr().get(), ClassId::NONE) };
        // SAFETY: as above.
        unsafe { region.give_run(start, frames, &self.source) };
        region.show(&self.views[index]);
        state.note_length(frames, 0);
    }

    /// Makes the run at `start` `wanted` frames long without moving it. Returns whether that was
    /// possible.
    pub(crate) fn resize_run(&self, start: NonNull<u8>, wanted: usize) -> bool {
        let Some(index) = self.index_of(start.addr().get()) else { return false };
        let mut state = self.state.lock();
        let Some(region) = state.regions.get_mut(index) else { return false };
        let frames = region.run_length(start);
        if wanted > frames {
            let more = region.extend(start, frames, wanted, &self.source);
            let Some(more) = more else { return false };
            region.show(&self.views[index]);
            region.set_run_length(start, wanted);
            state.note_length(frames, wanted);
            self.took(&mut state, &more);
            if more.bare_frames > 0 {
                self.grew(state, more.bare_frames);
            }
        } else if wanted < frames {
            region.set_run_length(start, wanted);
            // SAFETY: wanted < frames: within the run.
            region.give(unsafe { start.add(wanted * FRAME_BYTES) }, frames - wanted);
            state.note_length(frames, wanted);
            self.gave(state, frames - wanted, false);
        }
        true
    }

    /// Whether there is room in dirty frames for a run of `frames` frames at a multiple of `align`.
    #[inline(never)]
    pub(crate) fn has_dirty(&self, frames: usize, align: usize) -> bool {
        self.state.lock().regions.iter().any(|region| region.has_dirty(frames, align))
    }

    /// Holds the backend's locks across a fork.
    pub(crate) fn before_fork(&self) {
        self.huge.lock_for_fork();
        self.openers.iter().for_each(Lock::lock_for_fork);
        self.leaver.lock_for_fork();
        self.state.lock_for_fork();
    }

    /// Releases the backend's locks in the parent and in the child.
    ///
    /// # Safety
    /// This thread, or the one it is the copy of, called [`before_fork`](Self::before_fork).
    pub(crate) unsafe fn after_fork(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.state.unlock() };
        // SAFETY: the caller's promise.
        unsafe { self.leaver.unlock() };
        for opener in &self.openers {
            // SAFETY: the caller's promise.
            unsafe { opener.unlock() };
        }
        // SAFETY: the caller's promise.
        unsafe { self.huge.unlock() };
    }

    /// Panics unless the regions' invariants hold. For tests.
    #[cfg(any(test, feature = "validate"))]
    pub(crate) fn validate(&self) {
        let _leaver = self.leaver.lock();
        let state = self.state.lock();
        for (region, view) in state.regions.iter().zip(&self.views) {
            assert!(region.is_shown_by(view), "what threads see of a region is old");
        }
        let in_use: usize = state.regions.iter().map(Region::validate).sum();
        assert_eq!(in_use, state.used_frames, "frames in use");
        let of_slabs = self.slab_frames.load(Ordering::Relaxed);
        let bare = self.bare_frames.load(Ordering::Relaxed);
        assert!(bare <= of_slabs && of_slabs <= in_use, "{bare} of {of_slabs} of {in_use} frames");
    }
}

impl State {
    /// How many frames are dirty: free, but still holding memory.
    #[inline(never)]
    fn dirty_frames(&self) -> usize {
        self.regions.iter().map(Region::dirty_frames).sum()
    }

    /// Counts a run whose length changes from `before` to `after` frames, if it is as long as huge
    /// objects.
    #[inline(never)]
    fn note_length(&mut self, before: usize, after: usize) {
        const LEAST: usize = MIN_HUGE_BYTES / FRAME_BYTES;
        if before >= LEAST {
            self.huge_run_frames -= before;
            self.huge_runs -= 1;
        }
        if after >= LEAST {
            self.huge_run_frames += after;
            self.huge_runs += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use hectare_pages::Os;

    use super::*;

    /// Frames in a row, partly dirty and partly clean, are a run once all are clean.
    #[test]
    fn no_region_is_opened_for_a_run_that_has_a_place() {
        let backend = std::boxed::Box::new(Backend::new(Os, 4 << 20));
        let get = |frames| {
            let wanted = Wanted::Run { frames, align: 1, fills: false };
            backend.get_run(wanted, ClassId::RUN).expect("memory").start
        };
        backend.put_run(get(300));
        assert_eq!(backend.stats().dirty_bytes, 300 * FRAME_BYTES);
        get(900);
        assert_eq!(backend.stats().regions, 1);
    }

    #[test]
    fn memory_that_one_region_is_refused_another_has() {
        let source = hectare_pages::Failing::new(Os);
        let backend = std::boxed::Box::new(Backend::new(source, 8 << 20));
        let get = |frames| {
            let wanted = Wanted::Run { frames, align: 1, fills: false };
            backend.get_run(wanted, ClassId::RUN).map(|run| run.start)
        };
        get(100).expect("memory");
        let long = get(2040).expect("memory");
        assert_eq!(backend.stats().regions, 2);
        backend.put_run(long);
        backend.source.refuse_all(true);
        assert_eq!(get(1000), Some(long));
    }

    /// Runs as long as huge objects are counted, however they became so.
    #[test]
    fn a_run_that_grows_and_shrinks_is_counted() {
        const LEAST: usize = MIN_HUGE_BYTES / FRAME_BYTES;
        let backend = std::boxed::Box::new(Backend::new(Os, 256 << 20));
        let counted = || {
            let stats = backend.stats();
            (stats.huge_objects, stats.huge_bytes / FRAME_BYTES)
        };
        let wanted = Wanted::Run { frames: LEAST - 1, align: 1, fills: false };
        let run = backend.get_run(wanted, ClassId::RUN).expect("memory");
        for frames in [LEAST, LEAST + 10, LEAST - 1, LEAST + 1] {
            assert!(backend.resize_run(run.start, frames));
            let is_long = frames >= LEAST;
            assert_eq!(counted(), if is_long { (1, frames) } else { (0, 0) }, "{frames} frames");
        }
        assert_eq!(backend.put_run(run.start), Some(LEAST + 1));
        assert_eq!(counted(), (0, 0));
    }
}
