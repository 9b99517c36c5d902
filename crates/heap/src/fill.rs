//! What the slabs hold: how much of it is live, how much is idle, and the extremes of both since
//! the last scavenge.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What the slabs hold at one time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fill {
    /// The bytes of objects that are out of the slabs and in no stock.
    pub(crate) live_bytes: usize,
    /// What the slabs hold beyond the live bytes.
    pub(crate) idle_bytes: usize,
}

impl Fill {
    /// Whether more lies idle than this share of what is live, and more than `least_bytes`.
    pub(crate) fn is_idle(self, share: usize, least_bytes: usize) -> bool {
        self.idle_bytes > (self.live_bytes / share).max(least_bytes)
    }
}

/// The most that was live since the last scavenge, and the least that was idle. All zeros at first.
#[derive(Debug)]
pub(crate) struct Extremes {
    most_live_bytes: AtomicUsize,
    least_idle_bytes: AtomicUsize,
}

impl Extremes {
    pub(crate) const fn new() -> Self {
        Self { most_live_bytes: AtomicUsize::new(0), least_idle_bytes: AtomicUsize::new(0) }
    }

    /// Notes how much is live, which has grown.
    #[inline]
    pub(crate) fn note_live(&self, live_bytes: usize) {
        if live_bytes > self.most_live_bytes.load(Relaxed) {
            self.most_live_bytes.store(live_bytes, Relaxed);
        }
    }

    /// Notes how much is idle, which may have shrunk.
    #[inline]
    pub(crate) fn note_idle(&self, idle_bytes: usize) {
        if idle_bytes < self.least_idle_bytes.load(Relaxed) {
            self.least_idle_bytes.store(idle_bytes, Relaxed);
        }
    }

    /// Whether less is live now than the most noted, or more is idle than the least noted, by more
    /// than `slack_bytes`.
    pub(crate) fn are_left(&self, now: Fill, slack_bytes: usize) -> bool {
        now.idle_bytes.saturating_sub(self.least_idle_bytes.load(Relaxed)) > slack_bytes
            || self.freed_bytes(now) > slack_bytes
    }

    /// How much less is live now than the most noted.
    pub(crate) fn freed_bytes(&self, now: Fill) -> usize {
        self.most_live_bytes.load(Relaxed).saturating_sub(now.live_bytes)
    }

    /// Begins anew with what there is now, for a scavenge.
    pub(crate) fn reset(&self, now: Fill) {
        self.most_live_bytes.store(now.live_bytes, Relaxed);
        self.least_idle_bytes.store(now.idle_bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_left_by_what_was_freed_or_has_become_idle() {
        let extremes = Extremes::new();
        let fill = |live_bytes, idle_bytes| Fill { live_bytes, idle_bytes };
        extremes.reset(fill(900, 100));
        extremes.note_live(1000);
        extremes.note_live(950);
        assert_eq!(extremes.freed_bytes(fill(700, 0)), 300);
        assert!(!extremes.are_left(fill(700, 400), 300) && extremes.are_left(fill(699, 0), 300));
        extremes.note_idle(50);
        extremes.note_idle(80);
        assert!(
            !extremes.are_left(fill(1000, 350), 300) && extremes.are_left(fill(1000, 351), 300)
        );
        extremes.reset(fill(700, 400));
        assert!(!extremes.are_left(fill(700, 400), 0));
    }

    #[test]
    fn is_idle_beyond_a_share_and_at_least_so_much() {
        let is_idle = |live_bytes, idle_bytes| Fill { live_bytes, idle_bytes }.is_idle(4, 100);
        assert!(!is_idle(0, 100) && is_idle(0, 101));
        assert!(!is_idle(800, 200) && is_idle(800, 201));
    }
}
