//! Kept blocks: huge blocks that were freed and lie ready. The next block of about the same size
//! then takes no call to the system and no page fault.
//!
//! Freed blocks go back at once, until the program shows that it wants them again. *Regret* counts
//! the bytes that were asked for after as many had gone back; that much may stay. Regret halves
//! each [`HALF_LIFE_MS`]. When a kept block is used, regret rises to what is kept, which was
//! rightly kept.
//!
//! Invariants
//! 1. The first `len` places hold blocks, the one that was freed first in front. `bytes` is the sum
//!    of what they have committed.
//! 2. Used and kept blocks together are never more than the used ones once were. If nothing fits a
//!    request, as much as it takes goes back first ([`Kept::make_way`]).

use crate::backend::{HALF_LIFE_MS, halved};
use crate::huge::HugeBlock;

const MAX_BLOCKS: usize = 16;

/// The kept blocks. All zeros when empty.
#[derive(Debug)]
pub(crate) struct Kept {
    blocks: [Option<HugeBlock>; MAX_BLOCKS],
    len: usize,
    bytes: usize,
    /// How much may be kept.
    regret_bytes: usize,
    /// How much went back lately and has not been asked for again.
    gone_bytes: usize,
    /// When the two were last halved.
    halved_ms: u64,
}

impl Kept {
    pub(crate) const fn new() -> Self {
        Self {
            blocks: [None; MAX_BLOCKS],
            len: 0,
            bytes: 0,
            regret_bytes: 0,
            gone_bytes: 0,
            halved_ms: 0,
        }
    }

    /// What the kept blocks have committed.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The kept block that fits `bytes` best. It is at most an eighth larger, and aligned to
    /// `align`.
    pub(crate) fn take(&mut self, bytes: usize, align: usize) -> Option<HugeBlock> {
        let fits = |block: &HugeBlock| {
            (bytes..=bytes.saturating_add(bytes / 8)).contains(&block.committed_bytes)
                && block.start.addr().get().is_multiple_of(align)
        };
        let (index, _) = self.blocks[..self.len]
            .iter()
            .enumerate()
            .filter_map(|(index, block)| Some((index, block.filter(fits)?.committed_bytes)))
            .min_by_key(|&(_, committed_bytes)| committed_bytes)?;
        self.regret_bytes = self.regret_bytes.max(self.bytes);
        self.remove(index)
    }

    /// Notes that `bytes` must come from the system.
    pub(crate) fn miss(&mut self, bytes: usize) {
        let again_bytes = bytes.min(self.gone_bytes);
        self.gone_bytes -= again_bytes;
        self.regret_bytes = self.regret_bytes.saturating_add(again_bytes);
    }

    /// A block that must go back for `wanted_bytes` to be taken from the system. What it has
    /// committed is subtracted from them. `None` when enough has gone.
    pub(crate) fn make_way(&mut self, wanted_bytes: &mut usize) -> Option<HugeBlock> {
        if *wanted_bytes == 0 {
            return None;
        }
        let block = self.evict()?;
        *wanted_bytes = wanted_bytes.saturating_sub(block.committed_bytes);
        Some(block)
    }

    /// Keeps `block` if that much may be kept, else returns it.
    #[must_use]
    pub(crate) fn put(&mut self, block: HugeBlock) -> Option<HugeBlock> {
        if self.bytes + block.committed_bytes > self.regret_bytes || self.len == MAX_BLOCKS {
            self.gone_bytes = self.gone_bytes.saturating_add(block.committed_bytes);
            return Some(block);
        }
        self.blocks[self.len] = Some(block);
        self.len += 1;
        self.bytes += block.committed_bytes;
        None
    }

    /// Forgets a part of the past, by the time that has passed. What is then too much comes out by
    /// [`pop_over`](Self::pop_over).
    pub(crate) fn age(&mut self, now_ms: u64) {
        let half_lives = now_ms.saturating_sub(self.halved_ms) / HALF_LIFE_MS;
        if half_lives == 0 {
            return;
        }
        self.regret_bytes = halved(self.regret_bytes, half_lives);
        self.gone_bytes = halved(self.gone_bytes, half_lives);
        self.halved_ms = now_ms;
    }

    /// A block that may be kept no longer.
    pub(crate) fn pop_over(&mut self) -> Option<HugeBlock> {
        if self.bytes > self.regret_bytes { self.evict() } else { None }
    }

    /// The block that was freed first, which now goes back.
    pub(crate) fn evict(&mut self) -> Option<HugeBlock> {
        let block = self.remove(0)?;
        self.gone_bytes = self.gone_bytes.saturating_add(block.committed_bytes);
        Some(block)
    }

    #[inline(never)]
    fn remove(&mut self, index: usize) -> Option<HugeBlock> {
        let block = self.blocks[..self.len].get(index).copied()??;
        self.blocks.copy_within(index + 1..self.len, index);
        self.len -= 1;
        self.blocks[self.len] = None;
        self.bytes -= block.committed_bytes;
        Some(block)
    }
}

#[cfg(test)]
mod tests {
    use core::ptr::NonNull;

    use super::*;

    fn block(committed_bytes: usize) -> HugeBlock {
        HugeBlock { start: NonNull::dangling(), committed_bytes, reserved_bytes: committed_bytes }
    }

    #[test]
    fn what_was_asked_for_again_may_stay_until_that_is_forgotten() {
        let mut kept = Kept::new();
        assert!(kept.put(block(400)).is_some());
        kept.miss(300);
        kept.miss(300);
        assert_eq!((kept.regret_bytes, kept.gone_bytes), (400, 0), "as much as went, once");
        assert!(kept.put(block(400)).is_none() && kept.put(block(200)).is_some());
        kept.age(HALF_LIFE_MS / 2);
        assert_eq!((kept.regret_bytes, kept.gone_bytes), (400, 200));
        kept.age(HALF_LIFE_MS);
        assert_eq!((kept.regret_bytes, kept.gone_bytes), (200, 100));
        assert!(kept.take(350, 1).is_none() && kept.take(360, 1).is_some(), "an eighth larger");
        assert_eq!((kept.regret_bytes, kept.bytes()), (400, 0), "it was rightly kept");
        assert!(kept.put(block(400)).is_none() && kept.pop_over().is_none());
        kept.age(2 * HALF_LIFE_MS);
        assert!(kept.pop_over().is_some() && kept.pop_over().is_none());
        assert_eq!((kept.regret_bytes, kept.gone_bytes), (200, 50 + 400));
    }

    #[test]
    fn the_best_fit_is_taken() {
        let mut kept = Kept::new();
        kept.regret_bytes = 2000;
        assert!([400, 380, 370].iter().all(|&bytes| kept.put(block(bytes)).is_none()));
        assert_eq!(kept.take(375, 1).map(|block| block.committed_bytes), Some(380));
        assert_eq!(kept.take(375, 1).map(|block| block.committed_bytes), Some(400));
        assert!(kept.take(375, 1).is_none(), "too short");
        assert!(kept.take(370, 1 << 20).is_none(), "not so aligned");
        assert_eq!(kept.evict().map(|block| block.committed_bytes), Some(370));
        assert!(kept.evict().is_none() && kept.bytes() == 0);
    }

    #[test]
    fn no_more_makes_way_than_is_wanted() {
        const BYTES: usize = 40 << 20;
        let mut kept = Kept::new();
        let block = block(BYTES);
        // Both blocks are asked for again after they went.
        assert!(kept.put(block).is_some() && kept.put(block).is_some());
        kept.miss(2 * BYTES);
        assert!(kept.put(block).is_none() && kept.put(block).is_none());
        let mut wanted_bytes = BYTES;
        assert!(kept.make_way(&mut wanted_bytes).is_some());
        assert!(kept.make_way(&mut wanted_bytes).is_none(), "one is as long as what is wanted");
        assert_eq!((wanted_bytes, kept.bytes()), (0, BYTES));
    }
}
