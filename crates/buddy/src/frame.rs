//! The words of the trade: frames, orders, errors, and the trait that every allocator meets.

use core::fmt;

/// The largest order: 2^18 frames, 1 GiB of 4 KiB frames.
pub const MAX_ORDER: u8 = 18;

/// The number of a frame, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub usize);

/// The size of a block as a power of two: a block of order `n` is 2^n frames, aligned to its
/// size. At most [`MAX_ORDER`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order(u8);

impl Order {
    /// A single frame.
    pub const ZERO: Self = Self(0);

    /// The order `n`, if it is at most [`MAX_ORDER`].
    #[must_use]
    pub const fn new(n: u8) -> Option<Self> {
        if n <= MAX_ORDER { Some(Self(n)) } else { None }
    }

    /// The least order whose block has at least `frames` frames, if there is one.
    #[must_use]
    pub const fn for_frames(frames: usize) -> Option<Self> {
        match frames.checked_next_power_of_two() {
            #[expect(clippy::cast_possible_truncation, reason = "a usize has 64 bits at most")]
            Some(rounded) => Self::new(rounded.trailing_zeros() as u8),
            None => None,
        }
    }

    /// The order as a number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// How many frames a block of this order has.
    #[inline]
    #[must_use]
    pub const fn frames(self) -> usize {
        1 << self.0
    }
}

/// Why a call was refused; the allocator is as it was before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// No free block is large enough.
    Exhausted,
    /// The frame, or a part of the block, lies outside the managed frames.
    OutOfRange,
    /// The block does not start at a multiple of its size.
    Misaligned,
    /// A part of the block is free already.
    NotAllocated,
    /// The caller's metadata buffer is too small.
    MetadataTooSmall,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exhausted => "no free block is large enough",
            Self::OutOfRange => "the block is not within the managed frames",
            Self::Misaligned => "the block does not start at a multiple of its size",
            Self::NotAllocated => "a part of the block is free already",
            Self::MetadataTooSmall => "the metadata buffer is too small",
        })
    }
}

impl core::error::Error for Error {}

/// A buddy allocator with one owner at a time.
pub trait FrameAllocator {
    /// Takes a free block of `order`.
    ///
    /// # Errors
    /// [`Error::Exhausted`].
    fn alloc(&mut self, order: Order) -> Result<FrameId, Error>;

    /// Gives a block back and merges it with its free buddies. `order` may be that of the
    /// allocation, or smaller, to give back a part of it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`], [`Error::NotAllocated`].
    fn free(&mut self, frame: FrameId, order: Order) -> Result<(), Error>;

    /// How many frames it manages.
    fn frames(&self) -> usize;

    /// How many of them are free.
    fn free_frames(&self) -> usize;
}
