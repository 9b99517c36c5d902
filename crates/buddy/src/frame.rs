//! The common vocabulary: frames, orders, errors, and the trait that every allocator implements.

use core::fmt;

use crate::Stats;

/// The largest order: 2^18 frames, 1 GiB of 4 KiB frames.
pub const MAX_ORDER: u8 = 18;

/// The number of a frame, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub usize);

impl FrameId {
    /// Whether a block of `order` can start here.
    #[inline]
    #[must_use]
    pub const fn is_aligned(self, order: Order) -> bool {
        self.0 & (order.frames() - 1) == 0
    }
}

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

    /// The smallest order whose block has at least `frames` frames, if any.
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

    /// All orders, from the smallest.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> {
        (0..=MAX_ORDER).map(Self)
    }

    /// The largest order of a block that starts at frame `start` and has at most `frames` frames,
    /// which must not be 0.
    #[inline]
    #[must_use]
    pub(crate) const fn largest_at(start: usize, frames: usize) -> Self {
        debug_assert!(frames > 0);
        let by_align = start.trailing_zeros();
        let by_length = frames.ilog2();
        let least = if by_align < by_length { by_align } else { by_length };
        #[expect(clippy::cast_possible_truncation, reason = "a usize has 64 bits at most")]
        if least < MAX_ORDER as u32 { Self(least as u8) } else { Self(MAX_ORDER) }
    }

    /// How many frames a block of this order has.
    #[inline]
    #[must_use]
    pub const fn frames(self) -> usize {
        1 << self.0
    }
}

/// Why a call was refused; the allocator is as it was before the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// No free block is large enough.
    Exhausted,
    /// The frame, or part of the block, lies outside the managed frames.
    OutOfRange,
    /// The block does not start at a multiple of its size.
    Misaligned,
    /// Part of the block is free already.
    NotAllocated,
    /// All frames of the block are in use, but they are not exactly one allocation: they are part
    /// of one, or several. Only [`Checked`](crate::Checked) reports this; the others track frames,
    /// not allocations.
    WrongSize,
    /// The caller's metadata buffer is too small.
    MetadataTooSmall,
    /// More frames than [`Bitset`](crate::Bitset) can manage: 2^36, or half of all numbers if those
    /// have fewer bits.
    TooManyFrames,
    /// A range of no frames, or an alignment that is not a power of two.
    InvalidRequest,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exhausted => "no free block is large enough",
            Self::OutOfRange => "the block is not within the managed frames",
            Self::Misaligned => "the block does not start at a multiple of its size",
            Self::NotAllocated => "a part of the block is free already",
            Self::WrongSize => "the block was not allocated with this start and this size",
            Self::MetadataTooSmall => "the metadata buffer is too small",
            Self::TooManyFrames => "the allocator cannot manage so many frames",
            Self::InvalidRequest => "no frames asked for, or an alignment that is no power of two",
        })
    }
}

impl core::error::Error for Error {}

/// An invariant that does not hold, in the words of the module that states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Invalid(pub &'static str);

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the allocator's state is damaged: {}", self.0)
    }
}

impl core::error::Error for Invalid {}

/// A buddy allocator with one owner at a time.
///
/// A new allocator has no free frames; [`add_region`](Self::add_region) gives it some.
pub trait FrameAllocator {
    /// Takes a free block of `order`.
    ///
    /// Time: amortised constant in [`Bitset`](crate::Bitset). In [`Atomic`](crate::Atomic) mostly
    /// constant, plus a step for each 64 frames of the block, and linear in the metadata at worst.
    /// In [`BitmapTree`](crate::BitmapTree) and `Tree` logarithmic in the number of frames, in
    /// `Lists` linear in the number of blocks. [`Checked`](crate::Checked) adds a step for each 64
    /// frames of a block, none for a single frame.
    ///
    /// # Errors
    /// [`Error::Exhausted`].
    fn alloc(&mut self, order: Order) -> Result<FrameId, Error>;

    /// Gives a block back and merges it with its free buddies.
    ///
    /// The allocator tracks frames, not allocations: the block may be one that was allocated, part
    /// of one, or several together. [`Checked`](crate::Checked) accepts only the first.
    ///
    /// Time: as [`alloc`](Self::alloc), but constant without amortisation in
    /// [`Bitset`](crate::Bitset), and linear in the number of free blocks at worst in `Tree`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`]; [`Error::NotAllocated`] if any of its frames
    /// is free.
    fn free(&mut self, frame: FrameId, order: Order) -> Result<(), Error>;

    /// Makes the `frames` frames from `start` free for the first time. Adjoining regions
    /// coalesce like blocks.
    ///
    /// Time: in [`Bitset`](crate::Bitset) constant for up to 2^24 frames, plus a step for each
    /// further 2^24; in [`Atomic`](crate::Atomic) a step for each 64 frames. Elsewhere that of
    /// [`is_free`](Self::is_free) for each frame and [`free`](Self::free) for each block.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::NotAllocated`] if part of it is free already;
    /// [`Error::InvalidRequest`] for no frames.
    fn add_region(&mut self, start: FrameId, frames: usize) -> Result<(), Error> {
        let end = range_end(start, frames, self.frames())?;
        if (start.0..end).any(|frame| self.is_free(FrameId(frame))) {
            return Err(Error::NotAllocated);
        }
        for (frame, order) in blocks_of(start.0, frames) {
            self.free(frame, order)?;
        }
        Ok(())
    }

    /// Takes blocks of `order` until `out` is full or no block is left. Returns how many. They fill
    /// `out` from the front. Time: at most that of as many calls of [`alloc`](Self::alloc).
    fn alloc_many(&mut self, order: Order, out: &mut [FrameId]) -> usize {
        for (taken, slot) in out.iter_mut().enumerate() {
            match self.alloc(order) {
                Ok(frame) => *slot = frame,
                Err(_) => return taken,
            }
        }
        out.len()
    }

    /// Gives back blocks of `order`, in turn. Time: at most that of as many calls of
    /// [`free`](Self::free).
    ///
    /// # Errors
    /// As [`free`](Self::free), for the first block that is refused, with its index. The blocks
    /// before it are then free; that block and those after it are as they were.
    fn free_many(&mut self, order: Order, blocks: &[FrameId]) -> Result<(), (usize, Error)> {
        for (index, &frame) in blocks.iter().enumerate() {
            self.free(frame, order).map_err(|error| (index, error))?;
        }
        Ok(())
    }

    /// How many frames the allocator manages, free or not, holes included.
    fn frames(&self) -> usize;

    /// How many frames are free. Constant time; linear in the metadata in
    /// [`Atomic`](crate::Atomic).
    fn free_frames(&self) -> usize;

    /// Whether `frame` is free. A frame out of range is not. Constant time in
    /// [`Bitset`](crate::Bitset) and [`Atomic`](crate::Atomic), logarithmic in the trees, linear in
    /// the number of blocks in `Lists`.
    fn is_free(&self, frame: FrameId) -> bool;

    /// Counts the free blocks. Linear in the runs of free frames in [`Bitset`](crate::Bitset), in
    /// the metadata in [`Atomic`](crate::Atomic); elsewhere the time of
    /// [`is_free`](Self::is_free) for each frame.
    fn stats(&self) -> Stats {
        Stats::count(self.frames(), |frame| self.is_free(FrameId(frame)))
    }

    /// Checks every invariant. Linear in the metadata.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    fn validate(&self) -> Result<(), Invalid>;
}

/// The end of the range of `frames` frames from `start`, if it lies within `managed` frames.
pub(crate) const fn range_end(
    start: FrameId,
    frames: usize,
    managed: usize,
) -> Result<usize, Error> {
    if frames == 0 {
        return Err(Error::InvalidRequest);
    }
    if start.0 >= managed || managed - start.0 < frames {
        return Err(Error::OutOfRange);
    }
    Ok(start.0 + frames)
}

/// Checks that the block of `order` at `frame` is aligned and lies within `managed` frames.
#[inline]
pub(crate) const fn check_block(frame: FrameId, order: Order, managed: usize) -> Result<(), Error> {
    if frame.0 >= managed || managed - frame.0 < order.frames() {
        return Err(Error::OutOfRange);
    }
    if !frame.is_aligned(order) {
        return Err(Error::Misaligned);
    }
    Ok(())
}

/// The fewest aligned blocks that make up `frames` frames from `start`, in ascending order.
pub(crate) fn blocks_of(
    mut start: usize,
    mut frames: usize,
) -> impl Iterator<Item = (FrameId, Order)> {
    core::iter::from_fn(move || {
        if frames == 0 {
            return None;
        }
        let order = Order::largest_at(start, frames);
        let block = FrameId(start);
        start += order.frames();
        frames -= order.frames();
        Some((block, order))
    })
}

/// What the bitmap allocators can also do: take and give ranges of any length, at any place.
pub trait RangeAllocator: FrameAllocator {
    /// Takes `frames` consecutive frames that start at a multiple of `align`, a power of two, and
    /// end at or below frame `limit` (`usize::MAX` for no limit). It takes the lowest place that
    /// fits, even in the middle of a block. Each free run below that place that is too short costs
    /// a step. By its summaries [`Bitset`](crate::Bitset) skips runs that are much too short. After
    /// 64 others it takes a place that it finds in one step, if there is one; that need not be the
    /// lowest.
    ///
    /// # Errors
    /// [`Error::Exhausted`], [`Error::InvalidRequest`].
    fn alloc_range(&mut self, frames: usize, align: usize, limit: usize) -> Result<FrameId, Error>;

    /// Takes exactly the `frames` frames from `start`: to keep a hole, a device or a boot image out
    /// of use.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::InvalidRequest`]; [`Error::Exhausted`] if any of them is not
    /// free.
    fn reserve(&mut self, start: FrameId, frames: usize) -> Result<(), Error>;

    /// Takes exactly the block of `order` at `frame`.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve), and [`Error::Misaligned`].
    fn alloc_at(&mut self, frame: FrameId, order: Order) -> Result<(), Error> {
        if !frame.is_aligned(order) {
            return Err(Error::Misaligned);
        }
        self.reserve(frame, order.frames())
    }

    /// Gives back the `frames` frames from `start`, whichever calls took them.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::NotAllocated`], [`Error::InvalidRequest`].
    fn free_range(&mut self, start: FrameId, frames: usize) -> Result<(), Error>;
}
