//! The flattened tree: each node holds the largest free order beneath it.
//!
//! ```text
//!                 [1] 3                 a node of height h stands for 2^h frames;
//!            ┌──────┴──────┐            its byte is 0 if nothing beneath is free,
//!          [2] 1         [3] 3          else 1 + the largest free order beneath
//!         ┌──┴──┐       ┌──┴──┐
//!       [4] 1 [5] 0   [6] ·  [7] ·      the children of node n are 2n and 2n + 1
//! ```
//!
//! Invariants
//! 1. A node that says 0 has no free frame beneath it; one that says 1 + its height has only free
//!    frames. In both cases its children's bytes mean nothing.
//! 2. Any other node says the larger of its children.
//! 3. Frames past the last are never free.
//!
//! `alloc` and `free` are logarithmic in the number of frames. Metadata: a byte a node, two nodes a
//! frame.

use crate::frame::check_block;
use crate::{Error, FrameAllocator, FrameId, Invalid, Order};

/// A buddy allocator over a flattened tree: each node is a byte that holds the largest free order
/// beneath it. The metadata is the caller's.
#[derive(Debug)]
pub struct BitmapTree<'m> {
    /// Node n at index n; index 0 is not used.
    nodes: &'m mut [u8],
    height: u32,
    frames: usize,
    free_frames: usize,
}

impl<'m> BitmapTree<'m> {
    /// Bytes of metadata that `frames` frames need: two a frame, rounded up to a power of two.
    #[must_use]
    pub const fn metadata_bytes(frames: usize) -> usize {
        match frames.checked_next_power_of_two() {
            Some(leaves) => leaves.saturating_mul(2),
            // More than any buffer can have.
            None => usize::MAX,
        }
    }

    /// An allocator of `frames` frames, none of them free.
    ///
    /// # Errors
    /// [`Error::MetadataTooSmall`].
    pub fn new(frames: usize, metadata: &'m mut [u8]) -> Result<Self, Error> {
        let nodes =
            metadata.get_mut(..Self::metadata_bytes(frames)).ok_or(Error::MetadataTooSmall)?;
        nodes.fill(0);
        let height = frames.next_power_of_two().ilog2();
        Ok(Self { nodes, height, frames, free_frames: 0 })
    }

    /// What a node says if all its frames are free.
    const fn whole(height: u32) -> u8 {
        height as u8 + 1
    }

    fn node(&self, node: usize) -> u8 {
        self.nodes.get(node).copied().unwrap_or(0)
    }

    fn set_node(&mut self, node: usize, value: u8) {
        if let Some(byte) = self.nodes.get_mut(node) {
            *byte = value;
        }
    }

    /// Gives the children's bytes, which invariant 1 leaves undefined, their true values.
    fn push_down(&mut self, node: usize, height: u32) {
        let value = self.node(node);
        if value == 0 || value == Self::whole(height) {
            let child = if value == 0 { 0 } else { Self::whole(height - 1) };
            self.set_node(2 * node, child);
            self.set_node(2 * node + 1, child);
        }
    }

    /// What a node of `height` says if its children say `left` and `right`.
    const fn join(left: u8, right: u8, height: u32) -> u8 {
        let child = Self::whole(height - 1);
        if left == child && right == child {
            Self::whole(height)
        } else if left > right {
            left
        } else {
            right
        }
    }

    /// Sets a node and updates its ancestors.
    fn set_and_join(&mut self, node: usize, height: u32, value: u8) {
        self.set_node(node, value);
        let (mut node, mut height) = (node / 2, height + 1);
        while node > 0 {
            let joined = Self::join(self.node(2 * node), self.node(2 * node + 1), height);
            self.set_node(node, joined);
            node /= 2;
            height += 1;
        }
    }

    /// Whether any frame of the block at `node` is free.
    fn has_free(&self, block: usize) -> bool {
        // From the root down, the first node to which invariant 1 applies decides.
        (0..=block.ilog2()).rev().map(|up| (block >> up, self.height - block.ilog2() + up)).fold(
            None,
            |known, (node, height)| match (known, self.node(node)) {
                (Some(known), _) => Some(known),
                (None, 0) => Some(false),
                (None, value) if value == Self::whole(height) || node == block => Some(true),
                _ => None,
            },
        ) == Some(true)
    }

    /// Checks the subtree and counts its free frames.
    fn check(&self, node: usize, height: u32) -> Result<usize, Invalid> {
        let value = self.node(node);
        if value == 0 {
            return Ok(0);
        }
        let first = (node << height) - (1 << self.height);
        if value == Self::whole(height) {
            return if first + (1 << height) <= self.frames {
                Ok(1 << height)
            } else {
                Err(Invalid("a frame past the end is free (3)"))
            };
        }
        if height == 0 || value != Self::join(self.node(2 * node), self.node(2 * node + 1), height)
        {
            return Err(Invalid("a node does not say the larger of its children (2)"));
        }
        Ok(self.check(2 * node, height - 1)? + self.check(2 * node + 1, height - 1)?)
    }
}

impl FrameAllocator for BitmapTree<'_> {
    fn alloc(&mut self, order: Order) -> Result<FrameId, Error> {
        let wanted = u32::from(order.get());
        if self.node(1) <= order.get() {
            return Err(Error::Exhausted);
        }
        let (mut node, mut height) = (1, self.height);
        while height > wanted {
            self.push_down(node, height);
            node = if self.node(2 * node) > order.get() { 2 * node } else { 2 * node + 1 };
            height -= 1;
        }
        self.set_and_join(node, height, 0);
        self.free_frames -= order.frames();
        Ok(FrameId((node << height) - (1 << self.height)))
    }

    fn free(&mut self, frame: FrameId, order: Order) -> Result<(), Error> {
        check_block(frame, order, self.frames)?;
        let height = u32::from(order.get());
        let block = ((1 << self.height) + frame.0) >> height;
        if self.has_free(block) {
            return Err(Error::NotAllocated);
        }
        for up in (1..=block.ilog2()).rev() {
            self.push_down(block >> up, height + up);
        }
        self.set_and_join(block, height, Self::whole(height));
        self.free_frames += order.frames();
        Ok(())
    }

    fn frames(&self) -> usize {
        self.frames
    }

    fn free_frames(&self) -> usize {
        self.free_frames
    }

    fn is_free(&self, frame: FrameId) -> bool {
        frame.0 < self.frames && self.has_free((1 << self.height) + frame.0)
    }

    fn validate(&self) -> Result<(), Invalid> {
        if self.check(1, self.height)? != self.free_frames {
            return Err(Invalid("the count of free frames is wrong"));
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn validate_names_each_invariant_that_does_not_hold() {
        let check = |damage: fn(&mut BitmapTree<'_>), expected: &str| {
            let mut nodes = alloc::vec![0; BitmapTree::metadata_bytes(100)];
            let mut tree = BitmapTree::new(100, &mut nodes).unwrap();
            tree.add_region(FrameId(0), 100).unwrap();
            tree.alloc(Order::ZERO).unwrap();
            assert_eq!(tree.validate(), Ok(()));
            damage(&mut tree);
            let Err(Invalid(what)) = tree.validate() else { panic!("not seen: {expected}") };
            assert!(what.contains(expected), "{what}");
        };
        // A free frame that the nodes above do not know of, and one that they do.
        check(|tree| tree.set_node(128, 1), "(2)");
        check(|tree| tree.set_and_join(128 + 100, 0, 1), "(3)");
        check(|tree| tree.set_and_join(128, 0, 1), "count");
    }
}
