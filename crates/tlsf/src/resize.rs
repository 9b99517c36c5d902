//! Aligned allocation, and resizing in place where the neighbours allow it.

use core::ptr::NonNull;

use crate::bin::Bin;
use crate::block::{Block, Header};
use crate::error::Misuse;
use crate::heap::{Tlsf, Used};
use crate::table::{Rows, Shape};

/// Where a resized block is now, if there was room; and the first block of the pool that it has
/// left, if that pool is now one free block.
pub(crate) type Resized<R> = (Option<NonNull<u8>>, Option<Block<<R as Rows>::Row>>);

impl<R: ?Sized + Rows> Tlsf<R> {
    /// Allocates `size` bytes aligned to `align`, a power of two. If it is none, debug builds
    /// panic, and others give a block that is aligned only to the granule.
    ///
    /// The gap before the aligned address goes back to the free lists, so an aligned block costs no
    /// more memory than any other.
    #[inline]
    pub fn memalign(&mut self, align: usize, size: usize) -> Option<NonNull<u8>> {
        debug_assert!(
            align.is_power_of_two(),
            "memalign: the alignment {align} is no power of two"
        );
        if align <= 1 << R::Row::GRANULE_LOG2 {
            return self.malloc(size);
        }
        self.memalign_larger(align, size)
    }

    #[inline(never)]
    fn memalign_larger(&mut self, align: usize, size: usize) -> Option<NonNull<u8>> {
        let align_granules = align >> R::Row::GRANULE_LOG2;
        let Some(granules) = self.granules_for(size) else { return self.fail(usize::MAX) };
        let rounded = Bin::round_up::<R::Row>(granules).0;
        // The gap before an aligned payload is a block of its own, or empty.
        let beside = align_granules + Block::<R::Row>::MIN_GRANULES - 1;
        // If no class is large enough for the size rounded to its class, the rounding is left out.
        let is_past = rounded + beside > self.table.max_class();
        let room = beside + if is_past { granules } else { rounded };
        let Some(block) = self.take_or_probe(room) else { return self.fail(room) };
        let header = block.header();
        let gap = Self::gap(block, align);
        let granules = rounded.min(header.granules() - gap);
        if gap == 0 {
            return Some(self.use_part(block, header, granules));
        }
        let aligned = block.after(gap);
        block.set_header(Header::free(gap).with_prev_free_of(header));
        aligned.set_footer_before(Header::free(gap));
        self.link(block, gap);
        let rest = Header::free(header.granules() - gap).with_prev_free();
        aligned.set_header(rest);
        Some(self.use_part(aligned, rest, granules))
    }

    /// Takes a free block of at least `granules` out of its list.
    fn take_or_probe(&mut self, granules: usize) -> Option<Block<R::Row>> {
        if granules <= self.table.max_class()
            && let Some(block) = self.take(granules, Bin::round_up::<R::Row>(granules).1)
        {
            return Some(block);
        }
        if granules > self.table.max_granules() {
            return None;
        }
        let block = self.probe(granules)?;
        self.unlink(block, block.header().granules());
        Some(block)
    }

    /// How many granules lie between the payload of `block` and the first aligned one that leaves
    /// either no gap or room for a block.
    fn gap(block: Block<R::Row>, align: usize) -> usize {
        let to_aligned = block.payload().wrapping_neg() & (align - 1);
        let mut gap = to_aligned >> R::Row::GRANULE_LOG2;
        while gap != 0 && gap < Block::<R::Row>::MIN_GRANULES {
            gap += align >> R::Row::GRANULE_LOG2;
        }
        gap
    }

    /// How many bytes of the block at `ptr` may be used: the size asked for, rounded up.
    ///
    /// # Errors
    /// [`Misuse`], if the header shows it.
    ///
    /// # Safety
    /// `ptr` came from this heap.
    #[inline]
    pub unsafe fn usable_size(&self, ptr: NonNull<u8>) -> Result<usize, Misuse> {
        Ok(Block::<R::Row>::payload_bytes(self.used_block(ptr)?.header.granules()))
    }

    /// As [`usable_size`](Self::usable_size), for a block of any heap with these parameters.
    ///
    /// # Safety
    /// `ptr` is an allocated block of such a heap.
    #[inline]
    pub unsafe fn usable_size_of(ptr: NonNull<u8>) -> usize {
        // SAFETY: the caller's promise.
        let block = unsafe { Block::<R::Row>::at(ptr.as_ptr().expose_provenance()) };
        Block::<R::Row>::payload_bytes(block.header().granules())
    }

    /// Resizes the block at `ptr` to `size` bytes and keeps it aligned to `align`, a power of two.
    /// `ptr` must have that alignment already: a block that can stay in place is not moved to
    /// become aligned. The block grows forward if the next block is free, backward (moving the
    /// contents) if the previous one is, or both ways. It moves to another block only if neither is
    /// enough. Constant time except for the copying.
    ///
    /// `Ok(None)` when there is no room: the block is then as it was.
    ///
    /// # Errors
    /// [`Misuse`], if the header shows it; the heap is then unchanged.
    ///
    /// # Safety
    /// As for [`free`](Self::free), unless the result is `Ok(None)`.
    pub unsafe fn realloc(
        &mut self,
        ptr: NonNull<u8>,
        align: usize,
        size: usize,
    ) -> Result<Option<NonNull<u8>>, Misuse> {
        // SAFETY: the caller's promise, passed on.
        Ok(unsafe { self.resize(ptr, align, size) }?.0)
    }

    /// Resizes the block at `ptr` to `size` bytes in place, taking what it needs of the block after
    /// it if that is free. Constant time: nothing is ever copied. Only a larger size can be
    /// refused.
    ///
    /// `Ok(false)` if the two have no room: the block is then as it was.
    ///
    /// # Errors
    /// [`Misuse`], if the header shows it; the heap is then unchanged.
    ///
    /// # Safety
    /// `ptr` came from this heap, and nobody uses the block beyond its first `size` bytes any more.
    pub unsafe fn resize_in_place(
        &mut self,
        ptr: NonNull<u8>,
        size: usize,
    ) -> Result<bool, Misuse> {
        let Used { block, header, .. } = self.used_block(ptr)?;
        let needed = self.granules_for(size);
        Ok(needed.is_some_and(|needed| self.stretch(block, header, needed).is_ok()))
    }

    /// As [`realloc`](Self::realloc); also returns the pool that is now free.
    ///
    /// # Safety
    /// As for [`realloc`](Self::realloc).
    #[inline]
    pub(crate) unsafe fn resize(
        &mut self,
        ptr: NonNull<u8>,
        align: usize,
        size: usize,
    ) -> Result<Resized<R>, Misuse> {
        let Used { block, header, .. } = self.used_block(ptr)?;
        let Some(needed) = self.granules_for(size) else {
            return Ok((self.fail(usize::MAX), None));
        };
        let with_next = match self.stretch(block, header, needed) {
            Ok(()) => return Ok((Some(ptr), None)),
            Err(with_next) => with_next,
        };
        let rounded = Bin::round_up::<R::Row>(needed).0;
        let have = header.granules();
        let old_bytes = Block::<R::Row>::payload_bytes(have);
        if let Some(first) = self.room_before(block, header, align, needed, with_next) {
            // SAFETY: both lie in the joined block at `first`, whose links were taken out of their
            // list.
            unsafe { core::ptr::copy(block.as_ptr(), first.as_ptr(), old_bytes) };
            let joined = first.header().granules();
            let kept = self.cut(first, rounded.min(joined - have + with_next));
            self.note_resized(have, kept);
            return Ok((NonNull::new(first.as_ptr()), None));
        }
        let Some(new) = self.memalign(align, size) else { return Ok((None, None)) };
        // SAFETY: the old block has that many bytes. The new one has more, since `needed` exceeds
        // `with_next`. They overlap only if headers were overwritten.
        unsafe { core::ptr::copy(ptr.as_ptr(), new.as_ptr(), old_bytes) };
        // SAFETY: the caller's promise; the block was found sound above.
        let free_pool = unsafe { self.release(ptr) }?;
        Ok((Some(new), free_pool))
    }

    /// Resizes a used block in place to `needed` granules and what rounding adds. If the block and
    /// the free one after it have too few granules together, returns how many they have.
    #[inline(always)]
    fn stretch(
        &mut self,
        block: Block<R::Row>,
        header: Header,
        needed: usize,
    ) -> Result<(), usize> {
        let have = header.granules();
        let next_header = block.after(have).header();
        let with_next = have + if next_header.is_free() { next_header.granules() } else { 0 };
        if needed > with_next {
            return Err(with_next);
        }
        // The preferred size. A block that has enough only without the rounding stays as well: it
        // moves only if it and the free one after it have less than `needed`.
        let rounded = Bin::round_up::<R::Row>(needed).0;
        let kept = self.cut(block, rounded.min(with_next));
        self.note_resized(have, kept);
        Ok(())
    }

    /// Joins a used block with the free one before it into one used block whose payload is aligned,
    /// if both and the free one after them together have `needed` granules.
    #[inline(always)]
    fn room_before(
        &mut self,
        block: Block<R::Row>,
        header: Header,
        align: usize,
        needed: usize,
        with_next: usize,
    ) -> Option<Block<R::Row>> {
        if !header.is_prev_free() {
            return None;
        }
        let footer = block.footer_before();
        if !footer.is_free() {
            return None;
        }
        let prev_granules = footer.granules();
        let first = block.before(prev_granules);
        if prev_granules + with_next < needed || first.payload() & (align - 1) != 0 {
            return None;
        }
        self.unlink(first, prev_granules);
        let first_header = first.header();
        first.set_header(
            Header::used(prev_granules + header.granules()).with_prev_free_of(first_header),
        );
        // So that a free of the old pointer finds it free, unless the contents come to lie here.
        block.set_header(header.with_free());
        Some(first)
    }

    /// Updates the counts for a used block that had `had` granules and now has `has`.
    #[inline(always)]
    fn note_resized(&mut self, had: usize, has: usize) {
        let size_bits = |granules: usize| Header::used(granules).size_bits();
        if has > had {
            self.note_used(size_bits(has - had));
        } else {
            self.note_freed(size_bits(had - has));
        }
    }

    /// Resizes a used block to `granules`, which it has alone or with the free block after it.
    /// Returns how many it has afterwards.
    #[inline(always)]
    fn cut(&mut self, block: Block<R::Row>, granules: usize) -> usize {
        let header = block.header();
        let have = header.granules();
        let next = block.after(have);
        let next_header = next.header();
        let mut whole = have;
        if next_header.is_free() {
            whole += next_header.granules();
            self.unlink(next, next_header.granules());
        } else if Self::stays_whole(have - granules, granules) {
            return have;
        }
        let kept = if Self::stays_whole(whole - granules, granules) { whole } else { granules };
        let end = block.after(whole);
        block.set_header(Header::used(kept).with_prev_free_of(header));
        if kept == whole {
            end.set_header(end.header().without_prev_free());
        } else {
            end.set_header(end.header().with_prev_free());
            self.split_off(block.after(kept), whole - kept);
        }
        kept
    }
}
