//! How much of the runs that they free threads may keep as their own (`own_runs.rs`).

use hectare_pages::System;

use super::Backend;
use crate::region::FRAME_BYTES;

/// How much of freed runs threads may always keep.
const MIN_LENT_BYTES: usize = 2 << 20;

impl<S: System> Backend<S> {
    /// Whether a thread may keep `frames` more frames of the runs it frees. All threads together
    /// may keep an eighth of what is in use, and at least [`MIN_LENT_BYTES`]; four times that if
    /// most of what runs hold was never touched.
    pub(crate) fn lend(&self, frames: usize) -> bool {
        let mut state = self.state.lock();
        let shares = if state.is_sparse() { 4 } else { 1 };
        let most = shares * (state.used_frames / 8).max(MIN_LENT_BYTES / FRAME_BYTES);
        let may = state.lent_frames + frames <= most;
        state.lent_frames += if may { frames } else { 0 };
        may
    }

    /// Notes that only one of the threads that keep runs is left, which may keep `frames` frames.
    pub(crate) fn lend_only(&self, frames: usize) {
        self.state.lock().lent_frames = frames;
    }

    /// Notes that a thread may keep `frames` frames less.
    pub(crate) fn take_back(&self, frames: usize) {
        if frames > 0 {
            self.state.lock().lent_frames -= frames;
        }
    }
}
