//! How much of what they free threads may keep as their own (`own_runs.rs`).

use hectare_pages::System;

use super::Backend;
use crate::region::FRAME_BYTES;

/// What threads may always keep of freed runs.
const MIN_LENT_BYTES: usize = 2 << 20;

impl<S: System> Backend<S> {
    /// Whether a thread may keep `frames` frames more of what it frees: all together an eighth of
    /// what is in use, and at least [`MIN_LENT_BYTES`]; four times that where most of it was never
    /// touched.
    pub(crate) fn lend(&self, frames: usize) -> bool {
        let mut state = self.state.lock();
        let shares = if state.is_sparse() { 4 } else { 1 };
        let most = shares * (state.used_frames / 8).max(MIN_LENT_BYTES / FRAME_BYTES);
        let may = state.lent_frames + frames <= most;
        state.lent_frames += if may { frames } else { 0 };
        may
    }

    /// One of the threads that keep runs is left, which may keep `frames` frames.
    pub(crate) fn lend_only(&self, frames: usize) {
        self.state.lock().lent_frames = frames;
    }

    /// A thread keeps `frames` frames less.
    pub(crate) fn take_back(&self, frames: usize) {
        if frames > 0 {
            self.state.lock().lent_frames -= frames;
        }
    }
}
