//! Slabs and runs of the hardened front that cannot be opened when they are given back.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;

use hectare_pages::System;

use super::Backend;
use crate::class::ClassId;
use crate::region::SLAB_FRAMES;

impl<S: System> Backend<S> {
    /// As [`put_slab`](Self::put_slab), for a slab with a page that cannot be opened.
    #[cold]
    #[inline(never)]
    pub(crate) fn shut_slab(&self, start: NonNull<u8>, bare_frames: usize) {
        let mut state = self.state.lock();
        let Some(region) = self.forget_slab(&mut state, start, bare_frames) else { return };
        region.shut(start, SLAB_FRAMES, &self.source);
        state.used_frames -= SLAB_FRAMES;
        self.has_shut.store(true, Relaxed);
    }

    /// Takes back the run at `start`, which has a page that cannot be opened.
    #[cold]
    #[inline(never)]
    pub(crate) fn shut_run(&self, start: NonNull<u8>) {
        let address = start.addr().get();
        let Some(index) = self.index_of(address) else { return };
        let mut state = self.state.lock();
        let Some((_, frames)) = self.views[index].run_at(address) else { return };
        let Some(region) = state.regions.get_mut(index) else { return };
        // SAFETY: the run begins in this region, and is being given back.
        unsafe { self.views[index].mark_run(address, ClassId::NONE) };
        region.shut(start, frames, &self.source);
        state.note_length(frames, 0);
        state.used_frames -= frames;
        self.has_shut.store(true, Relaxed);
    }

    /// Opens shut frames, as far as the system allows.
    pub(crate) fn reopen(&self) {
        if self.has_shut.load(Relaxed) {
            self.try_to_reopen();
        }
    }

    /// Whether a region has shut frames.
    #[cfg(test)]
    pub(crate) fn has_shut(&self) -> bool {
        self.has_shut.load(Relaxed)
    }

    #[cold]
    #[inline(never)]
    fn try_to_reopen(&self) {
        let mut state = self.state.lock();
        let mut has_shut = false;
        for region in state.regions.iter_mut() {
            while region.reopen(&self.source) {}
            has_shut |= region.has_shut();
        }
        self.has_shut.store(has_shut, Relaxed);
    }
}
