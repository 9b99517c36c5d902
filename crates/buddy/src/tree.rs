//! The search-tree allocator: one red-black tree of all blocks, and one list of free blocks for
//! each order.
//!
//! ```text
//!              8 used, order 3                    free lists
//!            ┌───────┴───────┐                      order 2: 4
//!       2 free, order 1    16 used, order 4         order 1: 2
//!      ┌─────┴─────┐
//!   0 used, o. 1   4 free, order 2
//! ```
//!
//! The tree, by first frame, finds a block and its buddy in logarithmic time; a free list gives a
//! block of an order at once. But the lists cannot remove a block from their middle fast when its
//! buddy becomes free: that is linear in the list.
//!
//! Invariants
//! 1. The blocks of the tree cover each managed frame exactly once.
//! 2. A block is in the free list of its order, once, if and only if it is free.
//! 3. Two buddies are never both free.

use alloc::boxed::Box;
use alloc::vec::Vec;

use intrusive_collections::{
    Bound, KeyAdapter, RBTree, RBTreeLink, SinglyLinkedList, SinglyLinkedListLink,
    intrusive_adapter,
};

use crate::frame::{blocks_of, check_block};
use crate::{Error, FrameAllocator, FrameId, Invalid, MAX_ORDER, Order};

/// A list of the first frames of free blocks.
pub trait FreeList: Default {
    /// Adds a frame.
    fn push(&mut self, frame: usize);
    /// Takes the frame added last.
    fn pop(&mut self) -> Option<usize>;
    /// Removes a frame; linear. Returns whether it was there.
    fn remove(&mut self, frame: usize) -> bool;
    /// How many frames the list has; linear.
    fn length(&self) -> usize;
}

impl FreeList for Vec<usize> {
    fn push(&mut self, frame: usize) {
        self.push(frame);
    }

    fn pop(&mut self) -> Option<usize> {
        self.pop()
    }

    fn remove(&mut self, frame: usize) -> bool {
        self.iter().rposition(|&f| f == frame).map(|at| self.swap_remove(at)).is_some()
    }

    fn length(&self) -> usize {
        self.len()
    }
}

/// A node of [`SinglyLinked`].
#[derive(Debug)]
struct FreeNode {
    link: SinglyLinkedListLink,
    frame: usize,
}

/// A block in the tree.
#[derive(Debug)]
struct Block {
    link: RBTreeLink,
    frame: usize,
    order: Order,
    is_free: core::cell::Cell<bool>,
}

mod adapters {
    use super::{Block, Box, FreeNode, RBTreeLink, SinglyLinkedListLink, intrusive_adapter};
    intrusive_adapter!(pub(super) FreeAdapter = Box<FreeNode>: FreeNode { link => SinglyLinkedListLink });
    intrusive_adapter!(pub(super) BlockAdapter = Box<Block>: Block { link => RBTreeLink });
}

impl KeyAdapter<'_> for adapters::BlockAdapter {
    type Key = usize;

    fn get_key(&self, block: &Block) -> usize {
        block.frame
    }
}

/// A singly linked list of boxed frames.
#[derive(Debug, Default)]
pub struct SinglyLinked(SinglyLinkedList<adapters::FreeAdapter>);

impl FreeList for SinglyLinked {
    fn push(&mut self, frame: usize) {
        self.0.push_front(Box::new(FreeNode { link: SinglyLinkedListLink::new(), frame }));
    }

    fn pop(&mut self) -> Option<usize> {
        self.0.pop_front().map(|node| node.frame)
    }

    fn remove(&mut self, frame: usize) -> bool {
        // A singly linked list can only remove the node after the cursor.
        let mut cursor = self.0.cursor_mut();
        while let Some(next) = cursor.peek_next().get() {
            if next.frame == frame {
                return cursor.remove_next().is_some();
            }
            cursor.move_next();
        }
        false
    }

    fn length(&self) -> usize {
        self.0.iter().count()
    }
}

/// The search-tree allocator over the free lists `L`: a red-black tree of all blocks beside them.
#[derive(Debug)]
pub struct Tree<L> {
    blocks: RBTree<adapters::BlockAdapter>,
    free_lists: [L; MAX_ORDER as usize + 1],
    frames: usize,
    free_frames: usize,
}

/// [`Tree`] with vectors: `tree-vec`.
pub type TreeVec = Tree<Vec<usize>>;
/// [`Tree`] with singly linked lists: `tree-linked`.
pub type TreeLinked = Tree<SinglyLinked>;

impl<L: FreeList> Tree<L> {
    /// An allocator of `frames` frames of which none is free. Takes time and memory for a block for
    /// each 2^18 of them.
    #[must_use]
    pub fn new(frames: usize) -> Self {
        let mut tree = Self {
            blocks: RBTree::default(),
            free_lists: Default::default(),
            frames,
            free_frames: 0,
        };
        for (frame, order) in blocks_of(0, frames) {
            tree.insert(frame.0, order, false);
        }
        tree
    }

    /// Puts a block into the tree, and into its free list if it is free.
    fn insert(&mut self, frame: usize, order: Order, is_free: bool) {
        let is_free = core::cell::Cell::new(is_free);
        if is_free.get() {
            self.free_lists[usize::from(order.get())].push(frame);
        }
        let block = Block { link: RBTreeLink::new(), frame, order, is_free };
        self.blocks.insert(Box::new(block));
    }

    /// Splits the used block at `frame` until its first part has `order`; the rest is inserted.
    fn split(&mut self, frame: usize, from: Order, to: Order, rest_is_free: bool) {
        self.blocks.find_mut(&frame).remove();
        for order in Order::all().filter(|&order| order >= to && order < from) {
            self.insert(frame + order.frames(), order, rest_is_free);
        }
        self.insert(frame, to, false);
    }

    /// The order of the free block at exactly `frame`.
    fn free_order(&self, frame: usize) -> Option<Order> {
        self.blocks.find(&frame).get().filter(|block| block.is_free.get()).map(|block| block.order)
    }

    /// Turns a block whose frames are all allocated into a used block of its own. Changes nothing
    /// if one of them is free.
    fn isolate(&mut self, frame: usize, order: Order) -> Result<(), Error> {
        let end = frame + order.frames();
        let mut cursor = self.blocks.upper_bound(Bound::Included(&frame));
        while let Some(block) = cursor.get().filter(|block| block.frame < end) {
            if block.is_free.get() {
                return Err(Error::NotAllocated);
            }
            cursor.move_next();
        }
        // Aligned blocks nest: either one encloses the wanted one, or several make it up.
        while let Some((start, whole)) = self.block_around(frame).filter(|&(_, o)| o > order) {
            let half = Order::new(whole.get() - 1).unwrap_or(Order::ZERO);
            self.split(start, whole, half, false);
        }
        if self.block_around(frame).is_some_and(|(_, part)| part < order) {
            let mut cursor = self.blocks.find_mut(&frame);
            while cursor.get().is_some_and(|block| block.frame < end) {
                cursor.remove();
            }
            self.insert(frame, order, false);
        }
        Ok(())
    }

    fn block_around(&self, frame: usize) -> Option<(usize, Order)> {
        let block = self.blocks.upper_bound(Bound::Included(&frame)).get()?;
        Some((block.frame, block.order))
    }
}

impl<L: FreeList> FrameAllocator for Tree<L> {
    fn alloc(&mut self, order: Order) -> Result<FrameId, Error> {
        let larger = Order::all().filter(|&larger| larger >= order);
        let (frame, found) = larger
            .filter_map(|larger| Some((self.free_lists[usize::from(larger.get())].pop()?, larger)))
            .next()
            .ok_or(Error::Exhausted)?;
        if found == order {
            if let Some(block) = self.blocks.find(&frame).get() {
                block.is_free.set(false);
            }
        } else {
            self.split(frame, found, order, true);
        }
        self.free_frames -= order.frames();
        Ok(FrameId(frame))
    }

    fn free(&mut self, frame: FrameId, order: Order) -> Result<(), Error> {
        check_block(frame, order, self.frames)?;
        self.isolate(frame.0, order)?;
        self.free_frames += order.frames();
        self.blocks.find_mut(&frame.0).remove();
        let (mut frame, mut order) = (frame.0, order);
        while let Some(larger) = Order::new(order.get() + 1)
            && self.free_order(frame ^ order.frames()) == Some(order)
        {
            let buddy = frame ^ order.frames();
            self.free_lists[usize::from(order.get())].remove(buddy);
            self.blocks.find_mut(&buddy).remove();
            frame &= buddy;
            order = larger;
        }
        self.insert(frame, order, true);
        Ok(())
    }

    fn frames(&self) -> usize {
        self.frames
    }

    fn free_frames(&self) -> usize {
        self.free_frames
    }

    fn is_free(&self, frame: FrameId) -> bool {
        let around = self.blocks.upper_bound(Bound::Included(&frame.0));
        frame.0 < self.frames && around.get().is_some_and(|block| block.is_free.get())
    }

    fn validate(&self) -> Result<(), Invalid> {
        let (mut next, mut free, mut free_blocks) = (0, 0, 0);
        for block in &self.blocks {
            if block.frame != next || !FrameId(block.frame).is_aligned(block.order) {
                return Err(Invalid("the blocks do not cover the frames once (1)"));
            }
            next += block.order.frames();
            if block.is_free.get() {
                free += block.order.frames();
                free_blocks += 1;
                let buddy = block.frame ^ block.order.frames();
                if block.order.get() < MAX_ORDER && self.free_order(buddy) == Some(block.order) {
                    return Err(Invalid("two free buddies were not merged (3)"));
                }
            }
        }
        if next != self.frames {
            return Err(Invalid("the blocks do not cover the frames once (1)"));
        }
        if free_blocks != self.free_lists.iter().map(L::length).sum::<usize>() {
            return Err(Invalid("the free lists do not name the free blocks (2)"));
        }
        if free != self.free_frames {
            return Err(Invalid("the count of free frames is wrong"));
        }
        Ok(())
    }
}
