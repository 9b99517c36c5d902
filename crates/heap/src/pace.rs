//! How often the heap is looked through for holes when nothing but time asks for it.
//!
//! A program that has freed much, or has changed its sizes, leaves slabs in which a few objects are
//! still in use. So where much has been free in the slabs for a second, the emptier ones are given
//! up: what is freed in them no longer comes back by the threads' lists, and nothing is taken from
//! them while there is room in others. Each second their idle frames go back to the system: half as
//! often, down to once in eight seconds, each time that there were few of them, or that half of
//! what had gone was needed again.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

const PERIOD_MS: u64 = 1000;
const MAX_PERIOD_MS: u64 = 8000;

/// When the next look is due. All zeros at first.
#[derive(Debug)]
pub(crate) struct Pace {
    /// 0 while little is free.
    due_ms: AtomicU64,
    /// 0 stands for [`PERIOD_MS`].
    period_ms: AtomicU64,
    /// What the last look gained, and what was needed again since, of all that ever went.
    gained_bytes: AtomicUsize,
    needed_bytes: AtomicUsize,
}

impl Pace {
    pub(crate) const fn new() -> Self {
        Self {
            due_ms: AtomicU64::new(0),
            period_ms: AtomicU64::new(0),
            gained_bytes: AtomicUsize::new(0),
            needed_bytes: AtomicUsize::new(0),
        }
    }

    fn period_ms(&self) -> u64 {
        self.period_ms.load(Relaxed).max(PERIOD_MS)
    }

    /// Little is free in the slabs.
    #[inline]
    pub(crate) fn rest(&self) {
        if self.due_ms.load(Relaxed) > 0 {
            self.due_ms.store(0, Relaxed);
        }
    }

    /// Much is free in the slabs: whether a look is due, which only one of the threads that ask is
    /// told.
    pub(crate) fn is_due(&self, now_ms: u64) -> bool {
        let due_ms = self.due_ms.load(Relaxed);
        let next_ms = now_ms + self.period_ms();
        (due_ms == 0 || now_ms >= due_ms)
            && self.due_ms.compare_exchange(due_ms, next_ms, Relaxed, Relaxed).is_ok()
            && due_ms > 0
    }

    /// Memory that had gone is needed again.
    pub(crate) fn note_needed(&self, bytes: usize) {
        self.needed_bytes.fetch_add(bytes, Relaxed);
    }

    /// A look has gained `gained_bytes` of the `free_bytes` that lay free: given back, or in slabs
    /// given up just now.
    pub(crate) fn note_look(&self, gained_bytes: usize, free_bytes: usize) {
        let last_bytes = self.gained_bytes.swap(gained_bytes, Relaxed);
        let needed_bytes = self.needed_bytes.swap(0, Relaxed);
        let slower = gained_bytes < free_bytes / 32 || needed_bytes > last_bytes / 2;
        let period_ms = if slower { (self.period_ms() * 2).min(MAX_PERIOD_MS) } else { PERIOD_MS };
        self.period_ms.store(period_ms, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_once_a_second_while_it_is_worth_it() {
        let pace = Pace::new();
        assert!(!pace.is_due(5000) && !pace.is_due(5999));
        assert!(pace.is_due(6000) && !pace.is_due(6000));
        pace.note_look(1 << 20, 8 << 20);
        assert!(!pace.is_due(6999) && pace.is_due(7000));
    }

    #[test]
    fn begins_anew_when_little_was_free() {
        let pace = Pace::new();
        assert!(!pace.is_due(5000));
        pace.rest();
        assert!(!pace.is_due(6500) && !pace.is_due(7499) && pace.is_due(7500));
    }

    #[test]
    fn looks_less_often_where_little_is_idle_or_much_comes_back() {
        let pace = Pace::new();
        pace.note_look(1000, 8 << 20);
        assert_eq!(pace.period_ms(), 2 * PERIOD_MS);
        pace.note_look(4 << 20, 8 << 20);
        assert_eq!(pace.period_ms(), PERIOD_MS);
        for _ in 0..9 {
            pace.note_needed(3 << 20);
            pace.note_look(4 << 20, 8 << 20);
        }
        assert_eq!(pace.period_ms(), MAX_PERIOD_MS);
    }
}
