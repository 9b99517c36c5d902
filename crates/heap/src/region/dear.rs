//! Whether blocks of huge pages are worth what they take.
//!
//! Usually one comes in a seventh of the time that its pages take one by one. But where the kernel must
//! move other memory to have two mebibytes in a row, or the host of a virtual machine has to find them
//! first, it takes several times as long as these, of which some are at hand. So after a block that has
//! taken long some slabs come page by page before the next is tried, twice as many each time.

/// What the pages of a block take one by one: 512 times 1.4 µs.
const DEAR_US: u64 = 700;

/// For how many slabs no block is opened after a dear one: as many as eight blocks have, at first.
const LEAST_PASSED: u32 = 256;
const MOST_PASSED: u32 = 1 << 14;

/// What the last blocks took.
#[derive(Debug)]
pub(super) struct DearBlocks {
    /// For how many slabs none was opened after the last dear one; 0 while blocks are cheap.
    passed: u32,
    /// How many of them are still to come.
    left: u32,
}

impl DearBlocks {
    pub(super) const fn new() -> Self {
        Self { passed: 0, left: 0 }
    }

    /// Notes how long the last block took.
    pub(super) fn note(&mut self, took_us: u64) {
        self.passed =
            if took_us > DEAR_US { (2 * self.passed).clamp(LEAST_PASSED, MOST_PASSED) } else { 0 };
        self.left = self.passed;
    }

    /// Whether the next slab is to do without.
    pub(super) fn passes(&mut self) -> bool {
        let passes = self.left > 0;
        self.left -= u32::from(passes);
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For how many slabs no block is opened.
    fn passed(blocks: &mut DearBlocks) -> u32 {
        let mut slabs = 0;
        while blocks.passes() {
            slabs += 1;
        }
        slabs
    }

    #[test]
    fn dear_blocks_are_tried_less_often() {
        let mut blocks = DearBlocks::new();
        assert_eq!(passed(&mut blocks), 0);
        blocks.note(100);
        assert_eq!(passed(&mut blocks), 0);
        for expected in [256, 512, 1024] {
            blocks.note(3700);
            assert_eq!(passed(&mut blocks), expected);
        }
        blocks.note(100);
        assert_eq!(passed(&mut blocks), 0);
        for _ in 0..40 {
            blocks.note(3700);
        }
        assert_eq!(passed(&mut blocks), MOST_PASSED);
    }
}
