//! Whether huge pages are worth the time that they take.
//!
//! Usually a huge page comes in a seventh of the time that its pages take one by one. But if the
//! kernel must move other memory to get 2 MiB in a row, or the host of a virtual machine must find
//! them first, it takes several times as long as single pages, some of which are at hand. So after
//! two slow blocks some slabs come page by page before the next block is tried, half as many more
//! each time: dear blocks come in clusters, of a few, which are soon over, or of hundreds. Until a
//! block has come quickly again, the region asks for no huge pages. (Two slow ones, since one may
//! have been touched while the host had the processor do something else.)

/// Twice what the pages of a block take one by one: 512 times 1.4 µs.
const DEAR_US: u64 = 1400;

/// How many slabs no block is opened for after two dear ones: as many as eight blocks have, so that
/// a program of some megabytes never tries a third.
const LEAST_PASSED: u32 = 256;
const MOST_PASSED: u32 = 1 << 14;

/// What the last blocks took.
#[derive(Debug)]
pub(super) struct DearBlocks {
    /// How many blocks in a row were dear.
    in_a_row: u32,
    /// How many slabs no block is opened for after the last block; 0 while blocks are cheap.
    passed: u32,
    /// How many of these slabs are still to come.
    left: u32,
}

impl DearBlocks {
    pub(super) const fn new() -> Self {
        Self { in_a_row: 0, passed: 0, left: 0 }
    }

    /// Whether the last two blocks were dear.
    pub(super) fn are_dear(&self) -> bool {
        self.in_a_row > 1
    }

    /// Notes how long the last block took. Returns whether that makes blocks dear, or no longer
    /// dear.
    pub(super) fn note(&mut self, took_us: u64) -> bool {
        let were_dear = self.are_dear();
        self.in_a_row = if took_us > DEAR_US { self.in_a_row.saturating_add(1) } else { 0 };
        self.passed = match self.in_a_row {
            0 | 1 => 0,
            _ => (self.passed / 2 * 3).clamp(LEAST_PASSED, MOST_PASSED),
        };
        self.left = self.passed;
        self.are_dear() != were_dear
    }

    /// Counts off one of the slabs that do without a block. Returns whether there was one left.
    pub(super) fn pass_slab(&mut self) -> bool {
        let passes = self.left > 0;
        self.left -= u32::from(passes);
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many slabs no block is opened for.
    fn passed(blocks: &mut DearBlocks) -> u32 {
        let mut slabs = 0;
        while blocks.pass_slab() {
            slabs += 1;
        }
        slabs
    }

    #[test]
    fn dear_blocks_are_tried_less_often() {
        let mut blocks = DearBlocks::new();
        assert_eq!(passed(&mut blocks), 0);
        for took_us in [100, 3700, 100, 3700] {
            let changes = blocks.note(took_us);
            assert!(passed(&mut blocks) == 0 && !changes, "one alone");
        }
        for expected in [256, 384, 576] {
            assert_eq!(blocks.note(3700), expected == 256);
            assert_eq!(passed(&mut blocks), expected);
            assert!(blocks.are_dear());
        }
        assert!(blocks.note(100));
        assert_eq!(passed(&mut blocks), 0);
        for _ in 0..40 {
            blocks.note(3700);
        }
        assert_eq!(passed(&mut blocks), MOST_PASSED);
    }
}
