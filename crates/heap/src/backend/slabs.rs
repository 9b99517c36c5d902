//! Slabs as runs of the backend, and how much of them holds memory.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use hectare_pages::System;

use super::{Backend, State};
use crate::class::ClassId;
use crate::region::{FRAME_BYTES, Region, SLAB_FRAMES, Wanted};
use crate::slab::FreshSlab;

impl<S: System> Backend<S> {
    /// Takes memory for a slab of `class`, which has `siblings` slabs now.
    pub(crate) fn get_slab(&self, class: ClassId, siblings: usize) -> Option<FreshSlab> {
        let run = self.get_run(Wanted::Slab { of_pages: class.is_of_pages(), siblings }, class)?;
        let view = self.find(run.start.addr().get())?;
        // Where a page is longer than a frame, the first touch brings other frames, too.
        let bare = run.bare_frames > 0 && !run.huge && self.source.page_bytes() <= FRAME_BYTES;
        let fresh = view.fresh_slab(run.start, bare)?;
        self.become_bare(if bare { SLAB_FRAMES } else { 0 });
        Some(fresh)
    }

    /// Takes back an empty slab, `bare_frames` of whose frames hold no memory.
    pub(crate) fn put_slab(&self, start: NonNull<u8>, bare_frames: usize) {
        let mut state = self.state.lock();
        let Some(region) = self.forget_slab(&mut state, start, bare_frames) else { return };
        region.give_slab(start, bare_frames);
        let are_due = region.hollow_slabs_are_due();
        self.gave(state, SLAB_FRAMES, are_due);
    }

    /// Removes a slab that is given back from the counts and the page map. Returns the region that
    /// it lies in.
    pub(super) fn forget_slab<'a>(
        &self,
        state: &'a mut State,
        start: NonNull<u8>,
        bare_frames: usize,
    ) -> Option<&'a mut Region> {
        let index = self.index_of(start.addr().get())?;
        let region = state.regions.get_mut(index)?;
        self.bare_frames.fetch_sub(bare_frames, Ordering::Relaxed);
        self.slab_frames.fetch_sub(SLAB_FRAMES, Ordering::Relaxed);
        // SAFETY: the slab lies in this region, and is being given back.
        unsafe { self.views[index].mark(start.addr().get(), SLAB_FRAMES, ClassId::NONE) };
        Some(region)
    }

    /// Notes that `frames` frames of slabs hold no memory any more, or never will.
    pub(crate) fn become_bare(&self, frames: usize) {
        self.bare_frames.fetch_add(frames, Ordering::Relaxed);
    }

    /// Notes that `frames` bare frames hold memory again, of which `returned` had been given back.
    pub(crate) fn come_back(&self, frames: usize, returned: usize) {
        self.bare_frames.fetch_sub(frames, Ordering::Relaxed);
        self.returned_frames.fetch_add(returned, Ordering::Relaxed);
    }

    /// How much memory the slabs hold beyond the `live_bytes` of their objects.
    pub(crate) fn idle_bytes(&self, live_bytes: usize) -> usize {
        let bare_frames = self.bare_frames.load(Ordering::Relaxed);
        let held_frames = self.slab_frames.load(Ordering::Relaxed).saturating_sub(bare_frames);
        (held_frames * FRAME_BYTES).saturating_sub(live_bytes)
    }

    /// How many slabs there are.
    pub(crate) fn slabs(&self) -> usize {
        self.slab_frames.load(Ordering::Relaxed) / SLAB_FRAMES
    }

    /// How many frames are in use and hold memory.
    pub(super) fn held_frames(&self, state: &State) -> usize {
        state.used_frames.saturating_sub(self.bare_frames.load(Ordering::Relaxed))
    }
}
