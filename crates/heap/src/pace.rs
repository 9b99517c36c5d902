//! How often the heap is looked through for holes.
//!
//! Where the slabs have emptied, a look comes some milliseconds later: a program that frees much at a
//! stretch soon frees the neighbours, too, and slabs that become empty meanwhile go as a whole, which
//! costs a twentieth of what their pages cost one by one and leaves huge pages in one piece.
//!
//! A program that has freed much, or has changed its sizes, leaves slabs in which a few objects are
//! still in use. So where much has been idle in the slabs for half a second, the emptier ones are
//! given up: what is freed in them no longer comes back by the threads' lists, and nothing is taken
//! from them while there is room in others. Each half second their idle frames go back to the
//! system: half as often, down to once in four seconds, each time that no less is idle than at the
//! look before; and at the first pace again once more is idle, by a quarter.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// How long after the slabs were first seen to have emptied a look comes: two ticks of the clock.
const SETTLING_MS: u64 = 8;

const PERIOD_MS: u64 = 500;
const MAX_PERIOD_MS: u64 = 4000;

/// When the next look is due. All zeros at first.
#[derive(Debug)]
pub(crate) struct Pace {
    /// When the slabs were first seen to have emptied since the last look; 0 while they have not.
    emptied_ms: AtomicU64,
    /// When the last look was, or when much began to be idle; 0 while little is.
    since_ms: AtomicU64,
    /// 0 stands for [`PERIOD_MS`].
    period_ms: AtomicU64,
    /// What was idle at the last look.
    idle_bytes: AtomicUsize,
    /// How many looks there were.
    looks: AtomicU32,
}

impl Pace {
    pub(crate) const fn new() -> Self {
        Self {
            emptied_ms: AtomicU64::new(0),
            since_ms: AtomicU64::new(0),
            period_ms: AtomicU64::new(0),
            idle_bytes: AtomicUsize::new(0),
            looks: AtomicU32::new(0),
        }
    }

    /// The slabs have not emptied since the last look, or not by much.
    #[inline]
    pub(crate) fn settle(&self) {
        if self.emptied_ms.load(Relaxed) > 0 {
            self.emptied_ms.store(0, Relaxed);
        }
    }

    /// The slabs have emptied by much: whether they had [`SETTLING_MS`] ago.
    pub(crate) fn has_settled(&self, now_ms: u64) -> bool {
        match self.emptied_ms.load(Relaxed) {
            0 => {
                self.emptied_ms.store(now_ms, Relaxed);
                false
            }
            emptied_ms => now_ms >= emptied_ms + SETTLING_MS,
        }
    }

    /// Little is idle in the slabs.
    #[inline]
    pub(crate) fn rest(&self) {
        if self.since_ms.load(Relaxed) > 0 {
            self.since_ms.store(0, Relaxed);
        }
    }

    /// Much is idle in the slabs, `idle_bytes`: whether a look is due.
    pub(crate) fn is_due(&self, now_ms: u64, idle_bytes: usize) -> bool {
        let since_ms = self.since_ms.load(Relaxed);
        if since_ms == 0 {
            self.since_ms.store(now_ms, Relaxed);
            return false;
        }
        let has_grown = idle_bytes / 5 > self.idle_bytes.load(Relaxed) / 4;
        let period_ms = if has_grown { 0 } else { self.period_ms.load(Relaxed) };
        now_ms >= since_ms + period_ms.max(PERIOD_MS)
    }

    /// How many looks there were: at each, what threads keep is asked for.
    #[inline]
    pub(crate) fn looks(&self) -> u32 {
        self.looks.load(Relaxed)
    }

    /// A look begins at `idle_bytes`. One thread at a time may say so.
    pub(crate) fn note_look(&self, now_ms: u64, idle_bytes: usize) {
        self.looks.fetch_add(1, Relaxed);
        self.since_ms.store(now_ms, Relaxed);
        let last_bytes = self.idle_bytes.swap(idle_bytes, Relaxed);
        let period_ms = self.period_ms.load(Relaxed).max(PERIOD_MS);
        let is_in_vain = idle_bytes / 7 > last_bytes / 8 && idle_bytes / 5 <= last_bytes / 4;
        let period_ms = if is_in_vain { (period_ms * 2).min(MAX_PERIOD_MS) } else { PERIOD_MS };
        self.period_ms.store(period_ms, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_once_emptying_has_settled() {
        let pace = Pace::new();
        assert!(!pace.has_settled(1000) && !pace.has_settled(1007) && pace.has_settled(1008));
        pace.settle();
        assert!(!pace.has_settled(1009) && !pace.has_settled(1016) && pace.has_settled(1017));
    }

    #[test]
    fn looks_twice_a_second_while_it_is_worth_it() {
        let pace = Pace::new();
        assert!(!pace.is_due(5000, 1000) && !pace.is_due(5499, 1000));
        assert!(pace.is_due(5500, 1000), "and so until somebody looks");
        assert!(pace.is_due(5500, 1000));
        pace.note_look(5500, 1000);
        assert!(!pace.is_due(5999, 800) && pace.is_due(6000, 800));
    }

    #[test]
    fn begins_anew_when_little_was_idle() {
        let pace = Pace::new();
        assert!(!pace.is_due(5000, 1000));
        pace.rest();
        assert!(!pace.is_due(5700, 1000) && !pace.is_due(6199, 1000) && pace.is_due(6200, 1000));
    }

    #[test]
    fn looks_less_often_where_as_much_stays_idle() {
        let pace = Pace::new();
        assert!(!pace.is_due(1000, 800) && pace.is_due(1500, 800));
        pace.note_look(1500, 800);
        pace.note_look(1500, 800);
        assert!(!pace.is_due(2499, 800) && pace.is_due(2500, 800), "one second");
        for _ in 0..9 {
            pace.note_look(2500, 800);
        }
        assert!(!pace.is_due(6499, 800) && pace.is_due(6500, 800), "four seconds");
        pace.note_look(6500, 800);
        assert!(!pace.is_due(6999, 1050) && pace.is_due(7000, 1050), "more by a quarter");
        pace.note_look(7000, 1050);
        pace.note_look(7000, 800);
        assert!(pace.is_due(7500, 800), "less by an eighth");
        assert_eq!(pace.looks(), 14);
    }
}
