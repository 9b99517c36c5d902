//! Exact frees: a caller must give back exactly what it took, from first frame to last.
//!
//! The allocators track frames, not allocations. They cannot tell a block of order 1 from two of
//! order 0, nor refuse to free the second half of one. To know the extent of every allocation takes
//! at least 1.1755 bits a frame: with N(0) = 2 for a frame and N(k + 1) = N(k)² + 1 for a pair of
//! blocks or one whole, log2 N(k) / 2^k tends to that. This is 37.6 KiB a GiB before there is
//! anything to search by. So this layer keeps a map of its own for callers that want the check.
//!
//! ```text
//!   frames     │ 0   1   2   3 │ 4 │ 5 │ 6   7 │ 8   9  10  11 …
//!              │ order 2       │   │   │ order 1│ free
//!   joined     │ 0   1   1   1 │ 0 │ 0 │ 0   1 │ 0   0   0   0 …
//! ```
//! Invariants
//! 1. A frame's bit is set if and only if it and the frame before it belong to the same allocation.
//!    A hole between regions counts as one, and can be freed if it is named exactly (which adds
//!    it).
//! 2. So `start .. end` is an allocation if and only if its first bit is clear, the others are set,
//!    and that of `end` is clear — and its frames are not free, which `inner` knows.
//!
//! A single frame never writes the map: its bit and the next are 0 already. A larger block writes
//! only its own bits, and only while it is this thread's: after it was taken and before it is given
//! back. The frame `end` is the first of another allocation, free, or past the last frame: nobody
//! sets its bit. So threads need no ordering beyond that of `inner`. In a word shared with
//! neighbours, atomic instructions change the bits.

use core::ops::Range;

use hectare_base::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::bits::{WORD, span};
use crate::frame::{check_block, range_end};
use crate::{Error, FrameAllocator, FrameId, Invalid, Order, RangeAllocator, Stats};

/// Where allocations begin and end: one bit a frame, 32 KiB a GiB of 4 KiB frames. Shared by the
/// handles of all threads.
#[derive(Debug)]
pub struct Extents<'m> {
    joined: &'m [AtomicU64],
}

impl<'m> Extents<'m> {
    /// Words that `frames` frames need.
    #[must_use]
    pub const fn metadata_words(frames: usize) -> usize {
        frames.div_ceil(WORD)
    }

    /// The map of `frames` frames, none of them added yet.
    ///
    /// # Errors
    /// [`Error::MetadataTooSmall`].
    pub fn new(frames: usize, metadata: &'m [AtomicU64]) -> Result<Self, Error> {
        let joined = metadata.get(..Self::metadata_words(frames)).ok_or(Error::MetadataTooSmall)?;
        for (at, word) in joined.iter().enumerate() {
            // The frame past the last belongs to no allocation.
            word.store(span(0, (frames - at * WORD).min(WORD)), Relaxed);
        }
        Ok(Self { joined })
    }

    #[inline]
    fn is_joined(&self, frame: usize) -> bool {
        let word = self.joined.get(frame / WORD).map_or(0, |word| word.load(Relaxed));
        word >> (frame % WORD) & 1 != 0
    }

    /// The words that hold the bits of `frames`, and the mask of those bits in each.
    fn words(&self, frames: Range<usize>) -> impl Iterator<Item = (&'m AtomicU64, u64)> {
        let first = frames.start / WORD;
        let count = if frames.is_empty() { 0 } else { frames.end.div_ceil(WORD) - first };
        self.joined.iter().enumerate().skip(first).take(count).map(move |(at, word)| {
            let from = frames.start.max(at * WORD) - at * WORD;
            let to = frames.end.min((at + 1) * WORD) - at * WORD;
            (word, span(from, to))
        })
    }

    /// Invariant 2, as far as the map shows.
    #[inline]
    fn is_one(&self, start: usize, end: usize) -> bool {
        !self.is_joined(start)
            && !self.is_joined(end)
            && (end - start == 1 || self.are_joined(start + 1..end))
    }

    fn are_joined(&self, frames: Range<usize>) -> bool {
        self.words(frames).all(|(word, mask)| word.load(Relaxed) & mask == mask)
    }

    fn join(&self, frames: Range<usize>) {
        for (word, mask) in self.words(frames) {
            if mask == !0 {
                word.store(!0, Relaxed);
            } else {
                word.fetch_or(mask, Relaxed);
            }
        }
    }

    fn part(&self, frames: Range<usize>) {
        for (word, mask) in self.words(frames) {
            if mask == !0 {
                word.store(0, Relaxed);
            } else {
                word.fetch_and(!mask, Relaxed);
            }
        }
    }
}

/// An allocator that takes back exactly what it handed out.
///
/// It cannot tell a hole between regions from an allocation:
/// [`add_region`](FrameAllocator::add_region) of frames that are in use gives them back, and `free`
/// of exactly a hole after a region adds it. Of two threads that free one block at the same time,
/// the second can take it from a third that has allocated it in between.
#[derive(Debug)]
pub struct Checked<'e, A> {
    inner: A,
    extents: &'e Extents<'e>,
}

impl<'e, A: FrameAllocator> Checked<'e, A> {
    /// Puts the check in front of `inner`, which either has no frames yet or is another handle to
    /// frames already behind a `Checked` with the same `extents`. The extents must be for as many
    /// frames as `inner` has: frames past their end are not checked.
    pub const fn new(inner: A, extents: &'e Extents<'e>) -> Self {
        Self { inner, extents }
    }

    /// The allocator inside. The map does not notice what is taken from it or given to it directly.
    pub const fn inner_mut(&mut self) -> &mut A {
        &mut self.inner
    }

    /// Why `start .. end`, which lies within the frames, is not an allocation.
    #[cold]
    fn refusal(&self, start: usize, end: usize) -> Error {
        if (start..end).any(|frame| self.inner.is_free(FrameId(frame))) {
            Error::NotAllocated
        } else {
            Error::WrongSize
        }
    }

    /// Carries out `give` if `start .. end` is one allocation.
    #[inline]
    fn give(
        &mut self,
        start: usize,
        end: usize,
        give: impl FnOnce(&mut A) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if !self.extents.is_one(start, end) {
            return Err(self.refusal(start, end));
        }
        // Before `give`: afterwards the next owner writes these bits.
        if end - start > 1 {
            self.extents.part(start + 1..end);
        }
        give(&mut self.inner)
    }
}

impl<A: FrameAllocator> FrameAllocator for Checked<'_, A> {
    #[inline]
    fn alloc(&mut self, order: Order) -> Result<FrameId, Error> {
        let block = self.inner.alloc(order)?;
        if order != Order::ZERO {
            self.extents.join(block.0 + 1..block.0 + order.frames());
        }
        Ok(block)
    }

    /// Gives back a block that was allocated with this order. For a single frame the check reads
    /// two bits: 23 more instructions on the atomic row and 56 on the bitset.
    ///
    /// # Errors
    /// The errors of `inner`, and [`Error::WrongSize`].
    #[inline]
    fn free(&mut self, frame: FrameId, order: Order) -> Result<(), Error> {
        check_block(frame, order, self.inner.frames())?;
        self.give(frame.0, frame.0 + order.frames(), |inner| inner.free(frame, order))
    }

    /// Adds a region. The map cannot tell a hole between regions from an allocation: an allocation
    /// named here, in whole or in part, is given back as if it had never been added.
    ///
    /// # Errors
    /// The errors of `inner`, and [`Error::WrongSize`] for frames of more than one hole or
    /// allocation.
    fn add_region(&mut self, start: FrameId, frames: usize) -> Result<(), Error> {
        let end = range_end(start, frames, self.inner.frames())?;
        // A hole is like one allocation, but any part of it may be added.
        if !self.extents.are_joined(start.0 + 1..end) {
            return Err(self.refusal(start.0, end));
        }
        let was_joined = self.extents.is_joined(start.0);
        self.extents.part(start.0..end);
        if let Err(error) = self.inner.add_region(start, frames) {
            self.extents.join(start.0 + usize::from(!was_joined)..end);
            return Err(error);
        }
        // The rest of the hole begins after the region.
        self.extents.part(end..end + 1);
        Ok(())
    }

    fn alloc_many(&mut self, order: Order, out: &mut [FrameId]) -> usize {
        let taken = self.inner.alloc_many(order, out);
        if order != Order::ZERO {
            for block in out.iter().take(taken) {
                self.extents.join(block.0 + 1..block.0 + order.frames());
            }
        }
        taken
    }

    fn frames(&self) -> usize {
        self.inner.frames()
    }

    fn free_frames(&self) -> usize {
        self.inner.free_frames()
    }

    fn is_free(&self, frame: FrameId) -> bool {
        self.inner.is_free(frame)
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }

    fn validate(&self) -> Result<(), Invalid> {
        let is_wrong = |frame| self.extents.is_joined(frame) && self.is_free(FrameId(frame));
        if (0..self.frames()).any(is_wrong) {
            return Err(Invalid("a free frame is joined to the one before it (1)"));
        }
        self.inner.validate()
    }
}

impl<A: RangeAllocator> RangeAllocator for Checked<'_, A> {
    fn alloc_range(&mut self, frames: usize, align: usize, limit: usize) -> Result<FrameId, Error> {
        let start = self.inner.alloc_range(frames, align, limit)?;
        self.extents.join(start.0 + 1..start.0 + frames);
        Ok(start)
    }

    fn reserve(&mut self, start: FrameId, frames: usize) -> Result<(), Error> {
        self.inner.reserve(start, frames)?;
        self.extents.join(start.0 + 1..start.0 + frames);
        Ok(())
    }

    /// Gives back a range that was taken as a whole, by whichever call.
    ///
    /// # Errors
    /// The errors of `inner`, and [`Error::WrongSize`].
    fn free_range(&mut self, start: FrameId, frames: usize) -> Result<(), Error> {
        let end = range_end(start, frames, self.inner.frames())?;
        self.give(start.0, end, |inner| inner.free_range(start, frames))
    }
}

#[cfg(test)]
mod tests;
