//! Runs and slabs from a block, which is opened while the backend's lock is free.

use core::sync::atomic::Ordering;

use hectare_base::sync::Lock;
use hectare_pages::System;

use super::{Backend, Held, Taken};
use crate::region::{Block, Blocks, FRAME_BYTES, Refusal, UNIT_FRAMES, Wanted};

/// How many threads can open a block at once.
pub(super) const OPENERS: usize = 4;

/// One thread at a time opens a block, and one more for each this many frames in slabs.
const FRAMES_AN_OPENER: usize = (16 << 20) / FRAME_BYTES;

impl<S: System> Backend<S> {
    /// Takes what is `wanted`. If a block is the place for it, this thread opens one, or waits for
    /// another thread that does. Returns the lock, too, and the region's number with the run.
    pub(super) fn take_opening(&self, wanted: Wanted) -> (Held<'_, S>, Taken) {
        let mut state = self.state.lock();
        let taken = self.take(&mut state, wanted, Blocks::MayOpen);
        if taken.is_err_and(|refusal| refusal == Refusal::Block) {
            drop(state);
            return self.take_from_block(wanted);
        }
        (state, taken)
    }

    /// Takes what is `wanted` from a block that another thread has opened meanwhile, or that this
    /// one opens now. If there is none, memory comes page by page.
    #[cold]
    #[inline(never)]
    fn take_from_block(&self, wanted: Wanted) -> (Held<'_, S>, Taken) {
        let _opener = self.opener().lock();
        let mut state = self.state.lock();
        let taken = self.take(&mut state, wanted, Blocks::MayOpen);
        if !taken.is_err_and(|refusal| refusal == Refusal::Block) {
            return (state, taken);
        }
        let region = state.regions.first_mut();
        if let Some(block) = region.and_then(|region| region.take_block(&self.source)) {
            drop(state);
            state = self.open(block);
        }
        let taken = self.take(&mut state, wanted, Blocks::AsTheyAre);
        (state, taken)
    }

    /// Waits until blocks that other threads are opening are there for all. Must be called with no
    /// lock held.
    #[cold]
    #[inline(never)]
    pub(super) fn wait_for_blocks(&self) {
        self.openers.iter().for_each(|opener| drop(opener.lock()));
    }

    /// The lock to hold while opening a block. Threads on different CPUs open blocks side by side,
    /// since otherwise all but one would wait while the kernel clears a block. But in a small heap
    /// each further block would be too far ahead of what it needs.
    fn opener(&self) -> &Lock<(), S::Park> {
        let slab_frames = self.slab_frames.load(Ordering::Relaxed);
        let openers = (1 + slab_frames / FRAMES_AN_OPENER).min(OPENERS);
        &self.openers[self.source.cpu() % openers % OPENERS]
    }

    /// Faults in a block's memory, and makes it dirty memory.
    fn open(&self, mut block: Block) -> Held<'_, S> {
        let began_us = self.source.thread_us();
        block.touch(&self.source);
        let took_us = self.source.thread_us().saturating_sub(began_us);
        if block.passes_over && !block.came_apart {
            self.grown_frames.fetch_add(UNIT_FRAMES, Ordering::Relaxed);
        }
        let mut state = self.state.lock();
        state.regret_frames += if block.was_used { UNIT_FRAMES } else { 0 };
        if let Some(region) = state.regions.first_mut() {
            region.give_block(block, took_us, &self.source);
        }
        state
    }
}
