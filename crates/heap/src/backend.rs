//! The backend: the process-wide owner of the regions. It hands out runs and decides what goes
//! back to the system.
//!
//! Dirty frames are reused before clean ones, so what is kept costs resident memory only as far
//! as it is not needed. How much may stay, when memory is freed: an eighth of what is in use (frames
//! of slabs that were given back hold nothing, and count as no use) and at least
//! [`MIN_ALLOWANCE_BYTES`]; what is above goes back on the spot, so that a program that then falls
//! idle holds little. A program in the midst of its work would fault for nothing: so half of
//! what is in use may stay, and more by each frame that faults anew (*regret*), as long as no more
//! is resident than an eighth above what was lately in use at once. That peak and regret halve
//! each [`HALF_LIFE_MS`], and of the dirty frames that nobody has needed meanwhile half go back.
//! When clean frames must be taken although dirty ones are there (too small, or in the wrong
//! place), dirty ones go back by the same bound: a heap does not grow far by its holes.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};

use hectare_base::align::{align_down, align_up};
use hectare_base::sync::Lock;
use hectare_pages::System;

use crate::cache::Cache;
use crate::class::{ClassId, SLAB_BYTES};
use crate::huge::Huge;
use crate::region::{FRAME_BYTES, Refusal, Region, RegionView, Run, SLAB_FRAMES, Wanted};
use crate::slab::SlabRef;

/// How many regions a heap can have.
pub(crate) const REGIONS: usize = 32;

const MIN_ALLOWANCE_BYTES: usize = 8 << 20;
/// How long it takes to forget half of what was.
pub(crate) const HALF_LIFE_MS: u64 = 1000;
const CLOCK_CALLS: usize = 64;

/// What may stay dirty at least while clean frames are taken.
const MIN_HEADROOM_BYTES: usize = 4 << 20;

/// What threads may always keep of freed runs.
const MIN_LENT_BYTES: usize = 2 << 20;

/// By how much the heap may grow, or its slabs empty, before they are looked through: an eighth of
/// what is in use, and at least so much; the smaller value where that finds much.
const SLACK_BYTES: usize = 4 << 20;
const MIN_SLACK_BYTES: usize = 256 << 10;

/// How much is given back at once at least, to keep the calls few.
const DECOMMIT_STEP_BYTES: usize = 1 << 20;

/// How much address space a region takes where nothing else is asked for: far more than memory,
/// since only what is used of it costs anything. Halved until the system agrees.
const REGION_BYTES: usize = 256 << 30;

/// The smallest region worth having.
const MIN_REGION_BYTES: usize = 1 << 20;

/// The regions and what is free of them.
#[derive(Debug)]
pub(crate) struct Backend<S: System> {
    pub(crate) source: S,
    /// For reading without the lock; the first is where nearly all memory lies.
    views: [RegionView; REGIONS],
    /// How many views are in use.
    count: AtomicUsize,
    /// 0 stands for [`REGION_BYTES`].
    region_bytes: usize,
    /// Frames taken that held no memory, since the last scavenge.
    grown_frames: AtomicUsize,
    /// How many there may be before the next.
    growth_limit_frames: AtomicUsize,
    /// By how many bytes the slabs may empty before the next.
    emptying_limit_bytes: AtomicUsize,
    /// Frames in slabs; and of these, those that were given back and hold no memory.
    slab_frames: AtomicUsize,
    bare_frames: AtomicUsize,
    state: Lock<State, S::Park>,
    pub(crate) huge: Lock<Huge, S::Park>,
}

#[derive(Debug)]
struct State {
    regions: [Option<Region>; REGIONS],
    used_frames: usize,
    regret_frames: usize,
    /// The most that was lately held in use at once.
    peak_held_frames: usize,
    /// The fewest dirty frames there were since `halved_ms`: nobody has needed these.
    idle_frames: usize,
    /// When regret, peak and idle frames were last halved.
    halved_ms: u64,
    /// How often memory was given back: the clock is asked at each [`CLOCK_CALLS`]th time.
    calls: usize,
    /// What threads may keep of freed runs; these frames count as used.
    lent_frames: usize,
    unused_caches: Option<NonNull<Cache>>,
    metadata: Option<NonNull<u8>>,
    metadata_left_bytes: usize,
    metadata_bytes: usize,
}

// SAFETY: the pointers name metadata of the heap, guarded by the lock around the state.
unsafe impl Send for State {}

/// The backend's share of the heap's statistics.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BackendStats {
    pub(crate) used_bytes: usize,
    pub(crate) dirty_bytes: usize,
    pub(crate) committed_bytes: usize,
    pub(crate) metadata_bytes: usize,
    pub(crate) regions: usize,
}

impl<S: System> Backend<S> {
    /// All zeros, but for `source` and `region_bytes`.
    pub(crate) const fn new(source: S, region_bytes: usize) -> Self {
        Self {
            source,
            views: [const { RegionView::new() }; REGIONS],
            count: AtomicUsize::new(0),
            region_bytes,
            grown_frames: AtomicUsize::new(0),
            growth_limit_frames: AtomicUsize::new(0),
            emptying_limit_bytes: AtomicUsize::new(0),
            slab_frames: AtomicUsize::new(0),
            bare_frames: AtomicUsize::new(0),
            state: Lock::new(State {
                regions: [const { None }; REGIONS],
                used_frames: 0,
                regret_frames: 0,
                peak_held_frames: 0,
                idle_frames: 0,
                halved_ms: 0,
                calls: 0,
                lent_frames: 0,
                unused_caches: None,
                metadata: None,
                metadata_left_bytes: 0,
                metadata_bytes: 0,
            }),
            huge: Lock::new(Huge::new()),
        }
    }

    /// The region in which nearly all memory lies.
    #[inline(always)]
    pub(crate) fn first_view(&self) -> &RegionView {
        &self.views[0]
    }

    /// The region that `address` lies in, and how far behind its start.
    pub(crate) fn find(&self, address: usize) -> Option<(&RegionView, usize)> {
        let count = self.count.load(Ordering::Acquire);
        self.views[..count].iter().find_map(|view| Some((view, view.offset_of(address)?)))
    }

    fn index_of(&self, address: usize) -> Option<usize> {
        let count = self.count.load(Ordering::Acquire);
        self.views[..count].iter().position(|view| view.offset_of(address).is_some())
    }

    /// Whether `address` lies in a slab that is given up.
    pub(crate) fn is_leaving(&self, address: NonNull<u8>) -> bool {
        self.find(address.addr().get()).is_some_and(|(view, _)| {
            // SAFETY: `find` says that the address lies in the region.
            unsafe { view.class_of(address.addr().get()) == ClassId::LEAVING }
        })
    }

    /// Takes what is `wanted`, marked as `class`.
    pub(crate) fn get_run(&self, wanted: Wanted, class: ClassId) -> Option<Run> {
        let mut state = self.state.lock();
        let (index, run) = match self.take(&mut state, wanted) {
            Ok(taken) => taken,
            Err(refusal) => self.take_hard(&mut state, wanted, refusal)?,
        };
        let frames = run.frames;
        if run.refaults {
            state.regret_frames += frames;
        }
        state.used_frames += frames;
        self.note_peak(&mut state);
        state.idle_frames = state.idle_frames.min(state.dirty_frames());
        if run.clean {
            self.grown_frames.fetch_add(frames, Ordering::Relaxed);
            let keep = state.headroom_frames(self.held_frames(&state));
            self.decommit(&mut state, keep);
        }
        let region = state.regions[index].as_mut()?;
        if class == ClassId::RUN {
            region.set_run_length(run.start, frames);
        }
        let marked = if class == ClassId::RUN { 1 } else { frames };
        // SAFETY: the run was just taken from this region.
        unsafe { self.views[index].mark(run.start.addr().get(), marked, class) };
        Some(run)
    }

    /// Takes a run when no region had one for the reason of `refusal`.
    #[cold]
    fn take_hard(
        &self,
        state: &mut State,
        wanted: Wanted,
        refusal: Refusal,
    ) -> Option<(usize, Run)> {
        // A range that is half dirty and half clean is a run only once both are one kind.
        if self.decommit(state, 0) > 0
            && let Ok(taken) = self.take(state, wanted)
        {
            return Some(taken);
        }
        if refusal == Refusal::NoMemory {
            return None;
        }
        self.open_region(state, wanted.room_frames() * FRAME_BYTES)?;
        self.take(state, wanted).ok()
    }

    /// Takes a run from the first region that has one.
    fn take(&self, state: &mut State, wanted: Wanted) -> Result<(usize, Run), Refusal> {
        let mut refusal = Refusal::NoRange;
        for (index, (region, view)) in state.regions.iter_mut().zip(&self.views).enumerate() {
            let Some(region) = region else { break };
            match region.take(wanted, &self.source, view) {
                Ok(run) => return Ok((index, run)),
                Err(Refusal::NoMemory) => refusal = Refusal::NoMemory,
                Err(Refusal::NoRange) => {}
            }
        }
        Err(refusal)
    }

    /// The length in frames of the run that begins at `start`, if one does.
    pub(crate) fn run_length(&self, start: NonNull<u8>) -> Option<usize> {
        let (view, _) = self.find(start.addr().get())?;
        view.run_at(start.addr().get()).map(|(_, frames)| frames)
    }

    /// Takes back the run that begins at `start`, and returns its length. `None` if no run begins
    /// there: it was given back already, or never handed out. Takes the lock only if one seems to.
    pub(crate) fn put_run(&self, start: NonNull<u8>) -> Option<usize> {
        let address = start.addr().get();
        let index = self.index_of(address)?;
        let view = &self.views[index];
        view.run_at(address)?;
        let mut state = self.state.lock();
        let (_, frames) = view.run_at(address)?;
        self.give_run(&mut state, index, start, frames);
        Some(frames)
    }

    /// Takes back runs that a thread has kept, all that `release` calls its argument with, each by
    /// its first frame. Returns how many frames they had.
    pub(crate) fn put_kept(&self, release: impl FnOnce(&mut dyn FnMut(usize))) -> usize {
        let mut state = self.state.lock();
        let mut gone = 0;
        release(&mut |first| {
            let Some(start) = NonNull::new(self.views[0].at(first)) else { return };
            let Some(region) = &state.regions[0] else { return };
            let frames = region.run_length(start);
            self.give_run(&mut state, 0, start, frames);
            gone += frames;
        });
        gone
    }

    fn give_run(&self, state: &mut State, index: usize, start: NonNull<u8>, frames: usize) {
        let Some(region) = state.regions[index].as_mut() else { return };
        // SAFETY: the run begins in this region, and is being given back.
        unsafe { self.views[index].mark_run(start.addr().get(), ClassId::NONE) };
        region.give_run(start, frames);
        self.gave(state, frames);
    }

    /// Whether a thread may keep `frames` frames more of what it frees: all together an eighth of
    /// what is in use, and at least [`MIN_LENT_BYTES`].
    pub(crate) fn lend(&self, frames: usize) -> bool {
        let mut state = self.state.lock();
        let most = (state.used_frames / 8).max(MIN_LENT_BYTES / FRAME_BYTES);
        let may = state.lent_frames + frames <= most;
        state.lent_frames += if may { frames } else { 0 };
        may
    }

    /// A thread keeps `frames` frames less.
    pub(crate) fn take_back(&self, frames: usize) {
        if frames > 0 {
            self.state.lock().lent_frames -= frames;
        }
    }

    /// Makes the run at `start` `wanted` frames long without moving it. Whether it could.
    pub(crate) fn resize_run(&self, start: NonNull<u8>, wanted: usize) -> bool {
        let Some(index) = self.index_of(start.addr().get()) else { return false };
        let mut state = self.state.lock();
        let Some(region) = state.regions[index].as_mut() else { return false };
        let frames = region.run_length(start);
        if wanted > frames {
            if !region.extend(start, frames, wanted, &self.source, &self.views[index]) {
                return false;
            }
            region.set_run_length(start, wanted);
            state.used_frames += wanted - frames;
            self.note_peak(&mut state);
        } else if wanted < frames {
            region.set_run_length(start, wanted);
            // SAFETY: wanted < frames: within the run.
            region.give(unsafe { start.add(wanted * FRAME_BYTES) }, frames - wanted);
            self.gave(&mut state, frames - wanted);
        }
        true
    }

    /// Takes a slab opened for `class`, which has `siblings` slabs now.
    pub(crate) fn get_slab(&self, class: ClassId, siblings: usize) -> Option<SlabRef> {
        let run = self.get_run(Wanted::Slab { siblings }, class)?;
        let (view, offset) = self.find(run.start.addr().get())?;
        let name = view.slab_at(offset)?;
        self.slab_frames.fetch_add(SLAB_FRAMES, Ordering::Relaxed);
        // SAFETY: the run was free until now, so nobody else reaches its descriptor.
        unsafe { name.get() }.open(run.start, class, run.clean && !run.huge);
        Some(name)
    }

    /// Takes back a slab that is empty.
    pub(crate) fn put_slab(&self, start: NonNull<u8>) {
        let Some(index) = self.index_of(start.addr().get()) else { return };
        let mut state = self.state.lock();
        let Some(region) = state.regions[index].as_mut() else { return };
        let address = start.addr().get();
        // SAFETY: the slab lies in this region, and is being given back.
        let bare_frames = unsafe { self.views[index].unmarked(address, SLAB_FRAMES) };
        self.come_back(bare_frames);
        self.slab_frames.fetch_sub(SLAB_FRAMES, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { self.views[index].mark(address, SLAB_FRAMES, ClassId::NONE) };
        region.give(start, SLAB_FRAMES);
        self.gave(&mut state, SLAB_FRAMES);
    }

    /// The memory of so many frames of slabs has gone, and the page map says nothing of them any
    /// more. Called under the lock of their bin, as is [`come_back`](Self::come_back).
    pub(crate) fn become_bare(&self, frames: usize) {
        self.bare_frames.fetch_add(frames, Ordering::Relaxed);
    }

    /// So many of them have objects in use again.
    pub(crate) fn come_back(&self, frames: usize) {
        self.bare_frames.fetch_sub(frames, Ordering::Relaxed);
    }

    /// How much memory the slabs hold beyond the `live_bytes` of their objects.
    pub(crate) fn idle_bytes(&self, live_bytes: usize) -> usize {
        let bare_frames = self.bare_frames.load(Ordering::Relaxed);
        let held_frames = self.slab_frames.load(Ordering::Relaxed).saturating_sub(bare_frames);
        (held_frames * FRAME_BYTES).saturating_sub(live_bytes)
    }

    /// How many frames are in use and hold memory.
    fn held_frames(&self, state: &State) -> usize {
        state.used_frames.saturating_sub(self.bare_frames.load(Ordering::Relaxed))
    }

    fn note_peak(&self, state: &mut State) {
        state.peak_held_frames = state.peak_held_frames.max(self.held_frames(state));
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

    /// Begins to count anew after a scavenge; `live_bytes` are out of the slabs. If it found far
    /// more than had been freed, the last objects of many pages are going, and each of them
    /// counts: then the next comes sooner.
    pub(crate) fn note_scavenge(&self, live_bytes: usize, gone_bytes: usize, found_much: bool) {
        let mut state = self.state.lock();
        let idle_frames = self.idle_bytes(live_bytes) / FRAME_BYTES;
        let used = self.held_frames(&state).saturating_sub(idle_frames);
        let resident = used + state.dirty_frames();
        let of_slabs = 2 * self.slab_frames.load(Ordering::Relaxed) >= state.used_frames;
        if let Some(region) = &mut state.regions[0] {
            region.choose_pages(resident, of_slabs, &self.source);
        }
        drop(state);
        let last = self.growth_limit_frames.load(Ordering::Relaxed);
        let usual = (used / 8).max(SLACK_BYTES / FRAME_BYTES);
        let limit = if found_much {
            (last / 2).max(MIN_SLACK_BYTES / FRAME_BYTES)
        } else if gone_bytes / FRAME_BYTES < last / 8 {
            (last * 2).clamp(usual, usual.max(used / 2))
        } else {
            usual
        };
        self.growth_limit_frames.store(limit, Ordering::Relaxed);
        self.grown_frames.store(0, Ordering::Relaxed);
        // Where little is left in much, each object that goes may be the last of its page.
        let live_frames = live_bytes / FRAME_BYTES;
        let is_sparse = idle_frames > (2 * live_frames).max(MIN_ALLOWANCE_BYTES / FRAME_BYTES);
        let sparse = (live_frames / 4).max(MIN_SLACK_BYTES / FRAME_BYTES);
        let emptying = if is_sparse { sparse } else { limit };
        self.emptying_limit_bytes.store(emptying * FRAME_BYTES, Ordering::Relaxed);
    }

    /// What follows when `frames` frames have become dirty.
    fn gave(&self, state: &mut State, frames: usize) {
        state.used_frames -= frames;
        state.calls = state.calls.wrapping_add(1);
        if state.calls.is_multiple_of(CLOCK_CALLS) {
            self.age(state);
            // Only tried, since the huge table's lock is otherwise taken alone.
            if let Some(mut huge) = self.huge.try_lock() {
                huge.age(&self.source);
            }
        }
        self.give_back_excess(state);
    }

    /// Gives back what is dirty beyond the allowance. Returns how many frames went.
    fn give_back_excess(&self, state: &mut State) -> usize {
        // The usual case, before the clock is asked.
        let dirty = state.dirty_frames();
        if dirty <= state.least_allowance_frames(self.held_frames(state)) {
            return 0;
        }
        let allowance = self.allowance(state);
        let is_over = dirty > allowance + DECOMMIT_STEP_BYTES / FRAME_BYTES;
        if is_over { self.decommit(state, allowance) } else { 0 }
    }

    /// How many dirty frames may stay when memory was freed.
    fn allowance(&self, state: &mut State) -> usize {
        self.age(state);
        let held = self.held_frames(state);
        state
            .least_allowance_frames(held)
            .max(state.headroom_frames(held).min(held / 2 + state.regret_frames))
    }

    /// For each half-life that has passed, halves regret and peak, and gives back half of what lay
    /// idle through it. Returns how many frames went.
    fn age(&self, state: &mut State) -> usize {
        let now = self.source.now_ms();
        let half_lives = now.saturating_sub(state.halved_ms) / HALF_LIFE_MS;
        if half_lives == 0 {
            return 0;
        }
        let mut gone = 0;
        if state.halved_ms > 0 {
            let halve = |frames| halved(frames, half_lives);
            state.regret_frames = halve(state.regret_frames);
            let held = self.held_frames(state);
            state.peak_held_frames = held + halve(state.peak_held_frames.saturating_sub(held));
            let dirty = state.dirty_frames();
            let idle = state.idle_frames.min(dirty);
            gone = self.decommit(state, dirty - idle + halve(idle));
        }
        state.idle_frames = state.dirty_frames();
        state.halved_ms = now;
        gone
    }

    /// What a call would do that comes now, for a program that makes none. Returns how many bytes
    /// went back to the system.
    pub(crate) fn tend(&self) -> usize {
        let huge = self.huge.lock().age(&self.source);
        let mut state = self.state.lock();
        let idle = self.age(&mut state);
        huge + (idle + self.give_back_excess(&mut state)) * FRAME_BYTES
    }

    fn decommit(&self, state: &mut State, keep: usize) -> usize {
        let mut over = state.dirty_frames().saturating_sub(keep);
        if over == 0 {
            return 0;
        }
        let mut given_back = 0;
        for region in state.regions.iter_mut().rev().flatten() {
            let keep_here = region.dirty_frames().saturating_sub(over);
            let gone = region.decommit(keep_here, &self.source);
            given_back += gone;
            over = over.saturating_sub(gone);
        }
        given_back
    }

    /// Gives back all but `keep_bytes` of the dirty memory. Returns how many bytes went.
    pub(crate) fn trim(&self, keep_bytes: usize) -> usize {
        let mut state = self.state.lock();
        self.decommit(&mut state, keep_bytes / FRAME_BYTES) * FRAME_BYTES
    }

    /// Has the next `bytes` come from what was set aside for the process. Whether they will.
    ///
    /// # Safety
    /// The process has one thread.
    pub(crate) unsafe fn set_aside(&self, bytes: usize) -> bool {
        let mut state = self.state.lock();
        if state.regions[0].is_none() && self.open_region(&mut state, bytes).is_none() {
            return false;
        }
        let region = state.regions[0].as_mut();
        // SAFETY: the caller's promise, passed on.
        region.is_some_and(|region| unsafe { region.set_aside(bytes, &self.source) }.is_ok())
    }

    /// Reserves one more region, of at least `least_bytes`.
    #[cold]
    fn open_region(&self, state: &mut State, least_bytes: usize) -> Option<()> {
        let index = state.regions.iter().position(Option::is_none)?;
        let unit = SLAB_BYTES.max(self.source.page_bytes());
        let least = align_up(least_bytes, unit).max(MIN_REGION_BYTES);
        let wanted = if self.region_bytes == 0 { REGION_BYTES } else { self.region_bytes };
        let mut bytes = wanted.max(least);
        loop {
            match Region::open(align_down(bytes, unit), &self.source, &self.views[index]) {
                Ok(region) => {
                    if index == 0 {
                        let limit = SLACK_BYTES / FRAME_BYTES;
                        self.growth_limit_frames.store(limit, Ordering::Relaxed);
                        self.emptying_limit_bytes.store(SLACK_BYTES, Ordering::Relaxed);
                    }
                    state.regions[index] = Some(region);
                    self.count.store(index + 1, Ordering::Release);
                    return Some(());
                }
                Err(_) if bytes / 2 >= least => bytes /= 2,
                Err(_) => return None,
            }
        }
    }

    /// A cache that nobody uses, opened.
    pub(crate) fn get_cache(&self) -> Option<NonNull<Cache>> {
        let mut state = self.state.lock();
        let cache = match state.unused_caches {
            Some(cache) => {
                // SAFETY: an unused cache is the backend's, and the lock is held.
                state.unused_caches = unsafe { cache.as_ref() }.next_unused;
                cache
            }
            None => self.get_metadata(&mut state, size_of::<Cache>())?.cast(),
        };
        // SAFETY: zeroed or once opened metadata of a cache's size, and now the caller's.
        unsafe { &mut *cache.as_ptr() }.open();
        Some(cache)
    }

    /// Takes back a cache, which must be empty.
    pub(crate) fn put_cache(&self, mut cache: NonNull<Cache>) {
        let mut state = self.state.lock();
        // SAFETY: the caller gives up the cache.
        unsafe { cache.as_mut() }.next_unused = state.unused_caches;
        state.unused_caches = Some(cache);
    }

    /// Zeroed memory, aligned to [`METADATA_ALIGN`], that is never given back.
    ///
    /// Its lock is taken under that of the pools' growth.
    pub(crate) fn metadata(&self, bytes: usize) -> Option<NonNull<u8>> {
        self.get_metadata(&mut self.state.lock(), bytes)
    }

    fn get_metadata(&self, state: &mut State, bytes: usize) -> Option<NonNull<u8>> {
        let bytes = align_up(bytes, METADATA_ALIGN);
        let fresh = state.metadata.is_none() || state.metadata_left_bytes < bytes;
        if fresh {
            let chunk = align_up(METADATA_CHUNK_BYTES, self.source.page_bytes());
            state.metadata = Some(self.source.get(chunk, self.source.page_bytes()).ok()?);
            state.metadata_left_bytes = chunk;
            state.metadata_bytes += chunk;
        }
        let start = state.metadata?;
        state.metadata_left_bytes -= bytes;
        // SAFETY: the chunk has as many bytes left.
        state.metadata = Some(unsafe { start.add(bytes) });
        Some(start)
    }

    pub(crate) fn stats(&self) -> BackendStats {
        let state = self.state.lock();
        let regions = || state.regions.iter().flatten();
        BackendStats {
            used_bytes: state.used_frames * FRAME_BYTES,
            dirty_bytes: state.dirty_frames() * FRAME_BYTES,
            committed_bytes: regions().map(Region::frontier_bytes).sum(),
            metadata_bytes: state.metadata_bytes,
            regions: regions().count(),
        }
    }

    /// Holds the backend's locks across a fork.
    pub(crate) fn before_fork(&self) {
        self.huge.lock_for_fork();
        self.state.lock_for_fork();
    }

    /// Frees them in the parent and in the child.
    ///
    /// # Safety
    /// This thread, or the one it is the copy of, called [`before_fork`](Self::before_fork).
    pub(crate) unsafe fn after_fork(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.state.unlock() };
        // SAFETY: the caller's promise.
        unsafe { self.huge.unlock() };
    }

    /// Panics unless the regions' invariants hold. For tests.
    #[cfg(any(test, feature = "validate"))]
    pub(crate) fn validate(&self) {
        let state = self.state.lock();
        let in_use: usize = state.regions.iter().flatten().map(Region::validate).sum();
        assert_eq!(in_use, state.used_frames, "frames in use");
    }
}

const METADATA_CHUNK_BYTES: usize = 64 << 10;

/// What the processor fetches together: two cache lines.
const METADATA_ALIGN: usize = 128;

/// What is left of `amount` after so many half-lives.
pub(crate) fn halved(amount: usize, half_lives: u64) -> usize {
    u32::try_from(half_lives).ok().and_then(|times| amount.checked_shr(times)).unwrap_or(0)
}

impl State {
    /// How many frames may always be dirty, besides those that threads keep.
    fn least_allowance_frames(&self, held_frames: usize) -> usize {
        let most = (held_frames / 8).max(MIN_ALLOWANCE_BYTES / FRAME_BYTES);
        most.saturating_sub(self.lent_frames)
    }

    /// How many frames may be dirty for no more to be resident than an eighth above the most that
    /// was lately in use at once.
    fn headroom_frames(&self, held_frames: usize) -> usize {
        let peak = self.peak_held_frames.max(held_frames);
        peak + peak / 8 + MIN_HEADROOM_BYTES / FRAME_BYTES - held_frames
    }

    fn dirty_frames(&self) -> usize {
        self.regions.iter().map_while(Option::as_ref).map(Region::dirty_frames).sum()
    }
}
