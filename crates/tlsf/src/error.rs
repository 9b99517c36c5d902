//! What can go wrong, as small values.

use core::fmt;

/// Why an allocation was refused; the heap remembers the last reason. If the request has an
/// alignment, it includes the bytes that aligning may take: fewer than the alignment and a smallest
/// block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// No heap with these parameters has a block of that size and alignment.
    TooLarge,
    /// There are fewer free bytes than asked for.
    Exhausted,
    /// There are enough free bytes, but no free block has enough of them (at that alignment).
    Fragmented,
    /// The page source gave no further region, or gave one that is too far from the first for the
    /// index width or too large for this heap.
    Source,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLarge => "the size or alignment exceeds what this heap's parameters allow",
            Self::Exhausted => "fewer bytes are free than were asked for; add a pool",
            Self::Fragmented => "no free block is large enough, though enough bytes are free",
            Self::Source => "the page source gave no region that this heap can reach and hold",
        })
    }
}

impl core::error::Error for Failure {}

/// What is wrong with a pointer given to `free` or `realloc` that does not lead to an allocated
/// block. The heap is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Misuse {
    /// It lies before or after all pools of this heap, or is not aligned as blocks are. The heap
    /// cannot tell an address between two pools from a block.
    Foreign,
    /// The block is free already.
    DoubleFree,
    /// The header before it names an impossible size: it was overwritten, or the pointer does not
    /// point to a block's start.
    Corrupt,
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Foreign => "the pointer does not come from this heap",
            Self::DoubleFree => "the block is free already",
            Self::Corrupt => "the block's header is damaged, or the pointer is not a block's start",
        })
    }
}

impl core::error::Error for Misuse {}

/// Why a pool was not added or not removed. The heap is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolError {
    /// The memory has no room for one block.
    TooSmall,
    /// The memory exceeds the largest block of these parameters; add it in parts.
    TooLarge,
    /// The memory is too far from the first pool for the index width.
    OutOfReach,
    /// The memory belongs, in part or in whole, to a pool of this heap already, or is the heap's
    /// own value.
    Overlap,
    /// Blocks of the pool are in use.
    InUse,
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooSmall => "the pool has no room for one block",
            Self::TooLarge => "the pool exceeds the largest block of this heap; add it in parts",
            Self::OutOfReach => "the pool is too far from the first one for the index width",
            Self::Overlap => "the pool overlaps the heap itself or another one of its pools",
            Self::InUse => "blocks of the pool are in use",
        })
    }
}

impl core::error::Error for PoolError {}

/// What `validate` found broken, with the address of the block's payload if it concerns one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Corruption {
    /// A block's size leads past the end of its pool.
    Size(usize),
    /// A block's flag or footer disagrees with the block before it.
    PrevFree(usize),
    /// Two free neighbours were not joined.
    Unmerged(usize),
    /// A free list contains something that is not a free block of its size, or is circular.
    List(usize),
    /// The numbers of free blocks and of listed blocks differ.
    Unlisted,
    /// A bitmap disagrees with the lists.
    Bitmap,
    /// The counters disagree with the blocks.
    Count,
    /// The chain of pools is broken.
    Pools,
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(at) => write!(f, "the size of the block at {at:#x} leads out of its pool"),
            Self::PrevFree(at) => {
                write!(f, "the header at {at:#x} disagrees with the block before it")
            }
            Self::Unmerged(at) => write!(f, "the free block at {at:#x} follows a free block"),
            Self::List(at) => write!(f, "a free list is broken at {at:#x}"),
            Self::Unlisted => f.write_str("some free block is in no list"),
            Self::Bitmap => f.write_str("a bitmap disagrees with its lists"),
            Self::Count => f.write_str("the counters disagree with the blocks"),
            Self::Pools => f.write_str("the chain of pools is broken"),
        }
    }
}

impl core::error::Error for Corruption {}
