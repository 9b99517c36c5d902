//! What the heap knows about itself at any time, in constant time.

use crate::block::Block;
use crate::error::Failure;
use crate::heap::{PROBES, Tlsf};
use crate::table::{Rows, Shape};
use crate::word::Word;

/// Figures of a heap. Bytes of blocks count their headers.
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
    /// The most bytes that were ever in used blocks at once.
    pub peak_used_bytes: usize,
    /// A size that `malloc` can serve now; larger ones are refused, but for one case: of the
    /// blocks in the highest list only the first few are looked at.
    pub largest_allocatable_bytes: usize,
    /// Why the last allocation that was refused was refused.
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

    /// Why the last allocation that was refused was refused.
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
}
