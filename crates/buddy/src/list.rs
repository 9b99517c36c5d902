//! The naive allocator: a list of blocks for each order, searched from the front.
//!
//! ```text
//!   order 2   [0 split] [4 free]
//!   order 1   [0 split] [2 free]
//!   order 0   [0 used] [1 free]
//! ```
//!
//! `alloc` looks through the list of the order for a free block. If there is none, it takes a block
//! of the order above in the same way and splits it. So the n-th block costs n steps, and n blocks
//! cost n². This is the baseline that the others are measured against, not something to use.
//!
//! Invariants
//! 1. Each managed frame lies in exactly one block that is not split.
//! 2. A block is split if and only if both its halves are in the list below.
//! 3. Two buddies are never both free: they are merged into one free block.

use alloc::boxed::Box;
use alloc::vec::Vec;

use intrusive_collections::{LinkedList, LinkedListLink, intrusive_adapter};

use crate::frame::{blocks_of, check_block};
use crate::{Error, FrameAllocator, FrameId, Invalid, MAX_ORDER, Order};

/// The state of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Free as a whole.
    Free,
    /// Allocated as a whole.
    Used,
    /// The block's halves are blocks of the order below.
    Split,
}

/// A block in the list of its order.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    frame: usize,
    state: State,
}

/// What [`Lists`] requires of a list. All but `push` may be linear.
pub trait BlockList: Default {
    /// Appends a block.
    fn push(&mut self, block: Block);
    /// The first block for which `is` holds.
    fn find(&self, is: impl FnMut(&Block) -> bool) -> Option<Block>;
    /// Sets the state of the first block for which `is` holds; returns its frame.
    fn set(&mut self, state: State, is: impl FnMut(&Block) -> bool) -> Option<usize>;
    /// Removes the block at `frame`.
    fn remove(&mut self, frame: usize);
    /// Calls `each` for every block.
    fn for_each(&self, each: impl FnMut(&Block));
}

impl BlockList for Vec<Block> {
    fn push(&mut self, block: Block) {
        self.push(block);
    }

    fn find(&self, mut is: impl FnMut(&Block) -> bool) -> Option<Block> {
        self.iter().find(|block| is(block)).copied()
    }

    fn set(&mut self, state: State, mut is: impl FnMut(&Block) -> bool) -> Option<usize> {
        let block = self.iter_mut().find(|block| is(block))?;
        block.state = state;
        Some(block.frame)
    }

    fn remove(&mut self, frame: usize) {
        if let Some(at) = self.iter().position(|block| block.frame == frame) {
            self.swap_remove(at);
        }
    }

    fn for_each(&self, each: impl FnMut(&Block)) {
        self.iter().for_each(each);
    }
}

/// A node of [`DoublyLinked`].
#[derive(Debug)]
struct Node {
    link: LinkedListLink,
    block: core::cell::Cell<Block>,
}

mod adapter {
    use super::{Box, LinkedListLink, Node, intrusive_adapter};
    intrusive_adapter!(pub(super) NodeAdapter = Box<Node>: Node { link => LinkedListLink });
}

/// A doubly linked list of boxed blocks.
#[derive(Debug, Default)]
pub struct DoublyLinked(LinkedList<adapter::NodeAdapter>);

impl BlockList for DoublyLinked {
    fn push(&mut self, block: Block) {
        let node = Node { link: LinkedListLink::new(), block: core::cell::Cell::new(block) };
        self.0.push_back(Box::new(node));
    }

    fn find(&self, mut is: impl FnMut(&Block) -> bool) -> Option<Block> {
        self.0.iter().map(|node| node.block.get()).find(|block| is(block))
    }

    fn set(&mut self, state: State, mut is: impl FnMut(&Block) -> bool) -> Option<usize> {
        let node = self.0.iter().find(|node| is(&node.block.get()))?;
        let frame = node.block.get().frame;
        node.block.set(Block { frame, state });
        Some(frame)
    }

    fn remove(&mut self, frame: usize) {
        let mut cursor = self.0.front_mut();
        while let Some(node) = cursor.get() {
            if node.block.get().frame == frame {
                cursor.remove();
                return;
            }
            cursor.move_next();
        }
    }

    fn for_each(&self, mut each: impl FnMut(&Block)) {
        self.0.iter().for_each(|node| each(&node.block.get()));
    }
}

/// The naive allocator over the list `L`: a list of all blocks for each order, searched from the
/// front.
#[derive(Debug)]
pub struct Lists<L> {
    lists: [L; MAX_ORDER as usize + 1],
    frames: usize,
    free_frames: usize,
}

/// [`Lists`] over vectors: `list-vec`.
pub type ListVec = Lists<Vec<Block>>;
/// [`Lists`] over doubly linked lists: `list-linked`.
pub type ListLinked = Lists<DoublyLinked>;

impl<L: BlockList> Lists<L> {
    /// An allocator of `frames` frames of which none is free. Takes time and memory for a block for
    /// each 2^18 of them.
    #[must_use]
    pub fn new(frames: usize) -> Self {
        let mut lists: [L; MAX_ORDER as usize + 1] = Default::default();
        for (FrameId(frame), order) in blocks_of(0, frames) {
            lists[usize::from(order.get())].push(Block { frame, state: State::Used });
        }
        Self { lists, frames, free_frames: 0 }
    }

    /// Finds a free block of `order` and gives it `state`; splits a larger one if necessary.
    fn find_or_split(&mut self, order: usize, state: State) -> Option<usize> {
        if let Some(frame) =
            self.lists.get_mut(order)?.set(state, |block| block.state == State::Free)
        {
            return Some(frame);
        }
        let frame = self.find_or_split(order + 1, State::Split)?;
        self.lists[order].push(Block { frame, state });
        self.lists[order].push(Block { frame: frame + (1 << order), state: State::Free });
        Some(frame)
    }

    /// The smallest block of at least `order` that encloses `frame`.
    fn enclosing(&self, frame: usize, order: usize) -> Option<(usize, Block)> {
        (order..self.lists.len()).find_map(|order| {
            let start = frame >> order << order;
            Some((order, self.lists[order].find(|block| block.frame == start)?))
        })
    }

    /// Whether all frames of the block are allocated.
    fn is_used(&self, frame: usize, order: usize) -> bool {
        match self.enclosing(frame, order) {
            Some((_, Block { state: State::Free, .. })) | None => false,
            Some((_, Block { state: State::Used, .. })) => true,
            Some((_, Block { state: State::Split, .. })) => {
                self.is_used(frame, order - 1)
                    && self.is_used(frame + (1 << (order - 1)), order - 1)
            }
        }
    }

    /// Turns a block whose frames are all allocated into a used block of its own.
    fn isolate(&mut self, frame: usize, order: usize) {
        let Some((above, block)) = self.enclosing(frame, order) else { return };
        if block.state == State::Split {
            for half in [frame, frame + (1 << (order - 1))] {
                self.isolate(half, order - 1);
                self.lists[order - 1].remove(half);
            }
            self.lists[order].set(State::Used, |block| block.frame == frame);
        }
        for above in (order + 1..=above).rev() {
            let start = frame >> above << above;
            self.lists[above].set(State::Split, |block| block.frame == start);
            for half in [start, start + (1 << (above - 1))] {
                self.lists[above - 1].push(Block { frame: half, state: State::Used });
            }
        }
    }

    /// Frees the used block and merges it with its buddies.
    fn merge(&mut self, frame: usize, order: usize) {
        let (mut frame, mut order) = (frame, order);
        while order < usize::from(MAX_ORDER) {
            let buddy = frame ^ (1 << order);
            let parent = frame & buddy;
            let is_free = |block: &Block| block.frame == buddy && block.state == State::Free;
            if self.lists[order].find(is_free).is_none()
                || self.lists[order + 1].find(|block| block.frame == parent).is_none()
            {
                break;
            }
            self.lists[order].remove(frame);
            self.lists[order].remove(buddy);
            (frame, order) = (parent, order + 1);
        }
        self.lists[order].set(State::Free, |block| block.frame == frame);
    }
}

impl<L: BlockList> FrameAllocator for Lists<L> {
    fn alloc(&mut self, order: Order) -> Result<FrameId, Error> {
        let frame = self.find_or_split(usize::from(order.get()), State::Used);
        let frame = frame.ok_or(Error::Exhausted)?;
        self.free_frames -= order.frames();
        Ok(FrameId(frame))
    }

    fn free(&mut self, frame: FrameId, order: Order) -> Result<(), Error> {
        check_block(frame, order, self.frames)?;
        let level = usize::from(order.get());
        if !self.is_used(frame.0, level) {
            return Err(Error::NotAllocated);
        }
        self.isolate(frame.0, level);
        self.merge(frame.0, level);
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
        self.enclosing(frame.0, 0).is_some_and(|(_, block)| block.state == State::Free)
    }

    fn validate(&self) -> Result<(), Invalid> {
        let (mut frames, mut free) = (0, 0);
        let mut broken = None;
        for (order, list) in self.lists.iter().enumerate() {
            list.for_each(|&Block { frame, state }| {
                let half = 1usize << order >> 1;
                if state != State::Split {
                    frames += 1 << order;
                } else if order == 0
                    || !self.has_block(frame, order - 1)
                    || !self.has_block(frame + half, order - 1)
                {
                    broken = Some(Invalid("a split block lacks a half (2)"));
                }
                if state == State::Free {
                    free += 1 << order;
                    let buddy = frame ^ (1 << order);
                    let twin = list.find(|b| b.frame == buddy && b.state == State::Free);
                    if twin.is_some() && order < usize::from(MAX_ORDER) {
                        broken = Some(Invalid("two free buddies were not merged (3)"));
                    }
                }
            });
        }
        if frames != self.frames {
            broken = Some(Invalid("the blocks do not add up to the managed frames (1)"));
        }
        if free != self.free_frames {
            broken = Some(Invalid("the count of free frames is wrong"));
        }
        broken.map_or(Ok(()), Err)
    }
}

impl<L: BlockList> Lists<L> {
    fn has_block(&self, frame: usize, order: usize) -> bool {
        self.lists[order].find(|block| block.frame == frame).is_some()
    }
}
