//! How often the heap looks for holes.
//!
//! Once the slabs have emptied, a look comes some milliseconds later. A program that frees much at
//! a stretch soon frees the neighbours, too, and slabs that become empty meanwhile go as a whole.
//! That costs a twentieth of what their pages cost one by one, and leaves huge pages in one piece.
//!
//! A program that has freed much, or has changed its sizes, leaves slabs in which a few objects are
//! still in use. So if much has been idle in the slabs for half a second, the emptier ones are
//! given up: what is freed in them no longer comes back by the threads' lists, and nothing is taken
//! from them while there is room in others. Each half second their idle frames go back to the
//! system. Each time that hardly less is idle than at the previous look, the looks come half as
//! often, down to one in four seconds. Once a quarter more is idle, they come at the first pace
//! again.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// How long after the slabs were first seen to have emptied a look comes: two ticks of the clock.
const SETTLING_MS: u64 = 8;

const PERIOD_MS: u64 = 500;
const MAX_PERIOD_MS: u64 = 4000;

/// When the next look is due. All zeros at first.
#[derive(Debug)]
pub(crate) struct Pace {
    /// When the slabs were first seen to have emptied since the last look; 0 while they have not.
    emptied_ms: AtomicU64,
    /// A look has begun and is not through yet.
    is_unfinished: AtomicBool,
    /// When the last look was, or when much began to be idle; 0 while little is.
    since_ms: AtomicU64,
    /// 0 stands for [`PERIOD_MS`].
    period_ms: AtomicU64,
    /// How much was idle at the last look.
    idle_bytes: AtomicUsize,
    /// How many looks gave slabs up.
    looks: AtomicU32,
}

impl Pace {
    pub(crate) const fn new() -> Self {
        Self {
            emptied_ms: AtomicU64::new(0),
            is_unfinished: AtomicBool::new(false),
            since_ms: AtomicU64::new(0),
            period_ms: AtomicU64::new(0),
            idle_bytes: AtomicUsize::new(0),
            looks: AtomicU32::new(0),
        }
    }

    /// Notes whether the slabs have emptied by much since the last look. Asks for the time `now_ms` only if that has
    /// changed.
    pub(crate) fn note_emptied(&self, has_emptied: bool, now_ms: impl FnOnce() -> u64) {
        note_since(&self.emptied_ms, has_emptied, now_ms);
    }

    /// Notes that a look begins, for whatever cause: the slabs have yet to empty again.
    pub(crate) fn settle(&self) {
        self.emptied_ms.store(0, Relaxed);
    }

    /// Whether the slabs had emptied by [`SETTLING_MS`] ago.
    pub(crate) fn has_settled(&self, now_ms: u64) -> bool {
        let emptied_ms = self.emptied_ms.load(Relaxed);
        emptied_ms > 0 && now_ms >= emptied_ms + SETTLING_MS
    }

    /// Notes whether a look has begun that is not through yet.
    pub(crate) fn note_unfinished(&self, is_unfinished: bool) {
        self.is_unfinished.store(is_unfinished, Relaxed);
    }

    /// Whether a look has begun that is not through yet.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.is_unfinished.load(Relaxed)
    }

    /// Notes whether much is idle in the slabs, as [`note_emptied`](Self::note_emptied) does.
    pub(crate) fn note_idle(&self, is_much: bool, now_ms: impl FnOnce() -> u64) {
        note_since(&self.since_ms, is_much, now_ms);
    }

    /// Whether a look is due now that `idle_bytes`, which is much, are idle in the slabs.
    pub(crate) fn is_due(&self, now_ms: u64, idle_bytes: usize) -> bool {
        let since_ms = self.since_ms.load(Relaxed);
        let has_grown = idle_bytes / 5 > self.idle_bytes.load(Relaxed) / 4;
        let period_ms = if has_grown { 0 } else { self.period_ms.load(Relaxed) };
        since_ms > 0 && now_ms >= since_ms + period_ms.max(PERIOD_MS)
    }

    /// How many looks gave slabs up. At each, threads are asked for what they keep.
    #[inline]
    pub(crate) fn looks(&self) -> u32 {
        self.looks.load(Relaxed)
    }

    /// Notes that a look begins at `idle_bytes`. Only one thread at a time may call this.
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

/// Notes in `since_ms` since when something has been so; 0 while it is not.
fn note_since(since_ms: &AtomicU64, is_so: bool, now_ms: impl FnOnce() -> u64) {
    let was_so = since_ms.load(Relaxed) > 0;
    if is_so != was_so {
        since_ms.store(if is_so { now_ms() } else { 0 }, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_once_emptying_has_settled() {
        let pace = Pace::new();
        let note = |has_emptied, now_ms| pace.note_emptied(has_emptied, || now_ms);
        note(true, 1000);
        note(true, 1005);
        assert!(!pace.has_settled(1007) && pace.has_settled(1008));
        note(false, 1008);
        assert!(!pace.has_settled(1009), "what had gone is in use again");
        note(true, 1009);
        assert!(!pace.has_settled(1016) && pace.has_settled(1017));
        pace.settle();
        assert!(!pace.has_settled(1017), "somebody looks");
    }

    #[test]
    fn looks_twice_a_second_while_it_is_worth_it() {
        let pace = Pace::new();
        assert!(!pace.is_due(5000, 1000), "nothing was idle so far");
        pace.note_idle(true, || 5000);
        pace.note_idle(true, || 5400);
        assert!(!pace.is_due(5499, 1000));
        assert!(pace.is_due(5500, 1000), "and so until somebody looks");
        assert!(pace.is_due(5500, 1000));
        pace.note_look(5500, 1000);
        assert!(!pace.is_due(5999, 800) && pace.is_due(6000, 800));
    }

    #[test]
    fn begins_anew_when_little_was_idle() {
        let pace = Pace::new();
        pace.note_idle(true, || 5000);
        pace.note_idle(false, || 5100);
        assert!(!pace.is_due(5600, 1000));
        pace.note_idle(true, || 5700);
        assert!(!pace.is_due(6199, 1000) && pace.is_due(6200, 1000));
    }

    #[test]
    fn looks_less_often_where_as_much_stays_idle() {
        let pace = Pace::new();
        pace.note_idle(true, || 1000);
        assert!(!pace.is_due(1499, 800) && pace.is_due(1500, 800));
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
