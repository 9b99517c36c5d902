//! What the heap reports about itself, in constant time.

use crate::block::{Block, Header};
use crate::error::Failure;
use crate::heap::Tlsf;
use crate::lists::PROBES;
use crate::table::{Rows, Shape, WordOf};
use crate::word::Word;

/// Figures of a heap. Bytes of blocks include their headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stats {
    /// How many pools there are.
    pub pools: usize,
    /// Bytes in all blocks: `used_bytes + free_bytes`.
    pub managed_bytes: usize,
    /// Bytes in used blocks.
    pub used_bytes: usize,
    /// Bytes in free blocks.
    pub free_bytes: usize,
    /// The most bytes ever in used blocks at once.
    pub peak_used_bytes: usize,
    /// A size that `malloc` can serve now. It refuses larger ones, with one exception: only the
    /// first few blocks of the highest list are examined here.
    pub largest_allocatable_bytes: usize,
    /// Why the heap last refused an allocation.
    pub last_failure: Option<Failure>,
}

impl<R: ?Sized + Rows> Tlsf<R> {
    /// The figures. Constant time.
    pub fn stats(&self) -> Stats {
        let bytes = |granules: usize| granules << R::Row::GRANULE_LOG2;
        Stats {
            pools: self.pool_count.get(),
            managed_bytes: bytes(self.managed_granules.get()),
            used_bytes: bytes(self.used_granules()),
            free_bytes: bytes(self.free_granules()),
            peak_used_bytes: bytes(self.peak_used_granules.get()),
            largest_allocatable_bytes: self.largest_allocatable_bytes(),
            last_failure: self.last_failure,
        }
    }

    /// Why the heap last refused an allocation.
    pub fn last_failure(&self) -> Option<Failure> {
        self.last_failure
    }

    fn largest_allocatable_bytes(&self) -> usize {
        let mut largest = self.victim_granules.get();
        let mut index = self.table.last().map_or(0, |bin| self.table.head(bin));
        for _ in 0..PROBES {
            if index == 0 {
                break;
            }
            let block = self.block(index);
            largest = largest.max(block.header().granules());
            index = block.next();
        }
        if largest == 0 { 0 } else { Block::<R::Row>::payload_bytes(largest) }
    }

    /// Counts so much more as used, in the units of headers.
    #[inline(always)]
    pub(crate) fn note_used(&mut self, size_bits: usize) {
        let is_peak = self.headroom_bits < size_bits;
        self.headroom_bits = self.headroom_bits.wrapping_sub(size_bits);
        if is_peak {
            self.raise_peak();
        }
    }

    #[cold]
    #[inline(never)]
    fn raise_peak(&mut self) {
        // The headroom is below zero by as much as the peak rises.
        let higher_granules = self.headroom_bits.wrapping_neg() >> Header::FLAG_BITS;
        let peak_granules = self.peak_used_granules.get() + higher_granules;
        self.peak_used_granules = WordOf::<R>::truncate(peak_granules);
        self.headroom_bits = 0;
    }

    /// Counts so much less as used, in the units of headers.
    #[inline(always)]
    pub(crate) fn note_freed(&mut self, size_bits: usize) {
        self.headroom_bits += size_bits;
    }

    /// How many granules are in used blocks.
    #[inline(always)]
    pub(crate) fn used_granules(&self) -> usize {
        // Only overwritten headers can make the difference negative.
        self.peak_used_granules.get().saturating_sub(self.headroom_bits >> Header::FLAG_BITS)
    }

    /// How many granules are in free blocks.
    pub(crate) fn free_granules(&self) -> usize {
        // As above.
        self.managed_granules.get().saturating_sub(self.used_granules())
    }
}
