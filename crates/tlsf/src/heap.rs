//! The heap: allocation and freeing in constant time.

use core::hint::cold_path;
use core::ptr::NonNull;

use crate::bin::Bin;
use crate::block::{Block, Header};
use crate::error::{Failure, Misuse};
use crate::table::{Row, Rows, Shape, Table, WordOf};
use crate::word::Word;

/// A remainder stays with its block if it is smaller than this many granules (or than the smallest
/// block, if that has more) plus 1/32 of the request. The free of either neighbour would only join
/// such a scrap again.
const MIN_REMAINDER_GRANULES: usize = 2;
const MIN_REMAINDER_SHIFT: u32 = 5;
/// A remainder of up to 1/8 of a request of 2 KiB or more also stays, while the list it would go to
/// still holds a block. It, too, would only lie there until a neighbour's free had to join it.
const LARGE_BYTES: usize = 2 << 10;
const LARGE_REMAINDER_SHIFT: u32 = 3;

/// A two-level segregated fit heap over pools that the caller adds.
///
/// `R` states the parameters: `[Row<index width, second level, granule>; first level]`. The
/// default has 32-bit indices and 16-byte granules, takes 3.5 KiB itself, and manages pools that
/// lie within 32 GiB of the first; see [`Word`](crate::Word) for the others.
///
/// Every call takes constant time, whatever the heap holds, except where its documentation says
/// otherwise. The heap writes only to its pools: headers of [`Word::BYTES`](crate::Word::BYTES)
/// bytes before each block, and links in free blocks.
///
/// ```
/// use core::ptr::NonNull;
/// let mut memory = [0u128; 4096];
/// let mut heap: hectare_tlsf::Tlsf = hectare_tlsf::Tlsf::new();
/// // SAFETY: the memory outlives the heap, and nothing else uses it.
/// unsafe { heap.add_pool(NonNull::from(&mut memory).cast(), size_of_val(&memory)) }?;
/// let block = heap.malloc(100).expect("64 KiB have room for 100 bytes");
/// // SAFETY: `block` came from this heap and is not used any more.
/// unsafe { heap.free(block) }?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[repr(C)]
pub struct Tlsf<R: ?Sized + Rows = [Row<u32, 32>; 26]> {
    /// The address of index zero.
    pub(crate) base: usize,
    /// How much less is used now than at the peak, in the units of [`Header::size_bits`]. So a call
    /// updates one number and compares none.
    pub(crate) headroom_bits: usize,
    /// The indices of all blocks lie in `low..end`.
    pub(crate) low: WordOf<R>,
    pub(crate) end: WordOf<R>,
    /// The first block of the newest pool, 0 without one.
    pub(crate) newest_pool: WordOf<R>,
    pub(crate) pool_count: WordOf<R>,
    /// Granules in all blocks.
    pub(crate) managed_granules: WordOf<R>,
    /// The most granules ever used at once.
    pub(crate) peak_used_granules: WordOf<R>,
    /// The free block that is in no list: what the last split left. Often the next block is cut off
    /// it, or the block right before it is freed next; then no list is touched. 0 if there is none.
    pub(crate) victim: WordOf<R>,
    pub(crate) victim_granules: WordOf<R>,
    pub(crate) last_failure: Option<Failure>,
    pub(crate) table: Table<R>,
}

impl<S: Shape, const FIRST: usize> Tlsf<[S; FIRST]>
where
    [S; FIRST]: Rows<Row = S>,
{
    /// A heap without memory.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            base: 0,
            headroom_bits: 0,
            low: S::Word::ZERO,
            end: S::Word::ZERO,
            newest_pool: S::Word::ZERO,
            pool_count: S::Word::ZERO,
            managed_granules: S::Word::ZERO,
            peak_used_granules: S::Word::ZERO,
            victim: S::Word::ZERO,
            victim_granules: S::Word::ZERO,
            last_failure: None,
            table: Table::<[S; FIRST]>::EMPTY,
        }
    }
}

/// A used block, as found by [`Tlsf::used_block`].
#[derive(Clone, Copy)]
pub(crate) struct Used<S> {
    pub(crate) block: Block<S>,
    pub(crate) header: Header,
    index: usize,
}

impl<S: Shape, const FIRST: usize> Default for Tlsf<[S; FIRST]>
where
    [S; FIRST]: Rows<Row = S>,
{
    fn default() -> Self {
        Self::new()
    }
}

impl<R: ?Sized + Rows> Tlsf<R> {
    /// Allocates `size` bytes, aligned to the granule. An allocation of zero bytes has an address
    /// of its own.
    ///
    /// `None` if no block is large enough; [`last_failure`](Self::last_failure) then says why.
    #[inline]
    pub fn malloc(&mut self, size: usize) -> Option<NonNull<u8>> {
        // For smaller sizes the search would start in lists of blocks below the minimum size.
        let least = const {
            ((Block::<R::Row>::MIN_GRANULES - 1) << R::Row::GRANULE_LOG2)
                .saturating_sub(Self::HEADER_BYTES - 1)
        };
        let size = size.max(least);
        if size > Block::<R::Row>::payload_bytes(self.table.max_near_class()) {
            return self.malloc_large(size);
        }
        let above_bytes = size + (Self::HEADER_BYTES - 1);
        match Bin::above_in_first_row::<R::Row>(above_bytes) {
            // The list implies the size, so the next block is found without waiting for this one's
            // header.
            Some(bin) => self.malloc_near(size, bin, |near, _| near.free_header()),
            None => {
                let bin = Bin::above::<R::Row>(above_bytes);
                self.malloc_near(size, bin, |_, block| block.header())
            }
        }
    }

    /// Allocates `size` bytes from `bin`, the list for that size, or from the list after it.
    /// `sized` gives the size of a block there as a header. A block of the list after is at most
    /// two widths too large, and is not split.
    #[inline(always)]
    fn malloc_near(
        &mut self,
        size: usize,
        bin: Bin,
        sized: impl FnOnce(Bin, Block<R::Row>) -> Header,
    ) -> Option<NonNull<u8>> {
        let (near, index) = self.table.near(bin);
        if index == 0 {
            return self.malloc_larger(size, bin);
        }
        let block = self.block(index);
        self.table.pop(near, block.next());
        Some(self.use_whole(block, sized(near, block)))
    }

    /// Frees a block.
    ///
    /// # Errors
    /// [`Misuse`], if the header shows it; the heap is then unchanged.
    ///
    /// # Safety
    /// Nobody uses the block any more. `ptr` came from this heap: the heap catches any other
    /// pointer only by luck.
    #[inline]
    pub unsafe fn free(&mut self, ptr: NonNull<u8>) -> Result<(), Misuse> {
        let used = self.used_block(ptr)?;
        if !self.free_between_used(used) {
            self.merge(used.block, used.header);
        }
        Ok(())
    }

    /// Frees a block; returns the first block of its pool if the pool is now one free block.
    ///
    /// # Safety
    /// As for [`free`](Self::free).
    #[inline(always)]
    pub(crate) unsafe fn release(
        &mut self,
        ptr: NonNull<u8>,
    ) -> Result<Option<Block<R::Row>>, Misuse> {
        let used = self.used_block(ptr)?;
        Ok(if self.free_between_used(used) { None } else { self.merge(used.block, used.header) })
    }

    /// Frees a block if both its neighbours are used.
    #[inline(always)]
    fn free_between_used(&mut self, used: Used<R::Row>) -> bool {
        let Used { block, header, index } = used;
        let next = block.behind(header);
        let next_header = next.header();
        if header.may_merge(next_header) {
            cold_path();
            return false;
        }
        self.note_freed(header.size_bits());
        next.set_header(next_header.with_prev_free());
        // No block before it is free: header and footer are the same.
        next.set_footer_before(header.with_free());
        block.set_header(header.with_free());
        self.push_index(block, index, Bin::of_header::<R::Row>(header));
        true
    }

    /// The used block whose payload starts at `ptr`, as far as its header shows.
    #[inline(always)]
    pub(crate) fn used_block(&self, ptr: NonNull<u8>) -> Result<Used<R::Row>, Misuse> {
        let payload = ptr.as_ptr().expose_provenance();
        // This rotates the low bits of a misaligned pointer to the top.
        let index = payload.wrapping_sub(self.base).rotate_right(R::Row::GRANULE_LOG2);
        if index >= self.end.get() || index < self.low.get() {
            return Err(Misuse::Foreign);
        }
        // SAFETY: the callers' promise. If they broke it, this may be memory between the pools.
        let block = unsafe { Block::at(payload) };
        let header = block.header();
        if !header.is_used_within(self.end.get() - index) {
            return Err(if header.is_free() { Misuse::DoubleFree } else { Misuse::Corrupt });
        }
        Ok(Used { block, header, index })
    }

    /// Frees a used block, joins it with its free neighbours and files the result. Returns it if it
    /// is all of its pool.
    #[inline(never)]
    fn merge(&mut self, block: Block<R::Row>, header: Header) -> Option<Block<R::Row>> {
        let mut granules = header.granules();
        self.note_freed(header.size_bits());
        let mut end = block.after(granules);
        let end_header = end.header();
        if end_header.is_free() {
            let next_granules = end_header.granules();
            self.unlink(end, next_granules);
            granules += next_granules;
            end = end.after(next_granules);
        } else {
            end.set_header(end_header.with_prev_free());
        }
        let mut first = block;
        let mut first_header = header;
        if header.is_prev_free() && block.footer_before().is_free() {
            let prev_granules = block.footer_before().granules();
            // So that a second free of this block finds it free.
            block.set_header(header.with_free());
            first = block.before(prev_granules);
            first_header = first.header();
            self.unlink(first, prev_granules);
            granules += prev_granules;
        }
        first.set_header(Header::free(granules).with_prev_free_of(first_header));
        end.set_footer_before(Header::free(granules));
        self.link(first, granules);
        // A free block has PREV_FREE only if there is no block before it.
        (first_header.is_prev_free() && first.footer_before().granules() == granules)
            .then_some(first)
    }

    /// Allocates when the list of the size's own class is empty: from a larger class or the victim,
    /// or else from the class below, some of whose blocks may be large enough. `bin` is the
    /// first list in which every block has room for `size`.
    #[inline(never)]
    fn malloc_larger(&mut self, size: usize, bin: Bin) -> Option<NonNull<u8>> {
        let rounded = bin.least_granules::<R::Row>();
        match self.take(rounded, bin) {
            Some(block) => Some(self.use_part(block, block.header(), rounded)),
            None => self.malloc_probing(Self::granules_unchecked(size)),
        }
    }

    /// Allocates `granules` from their own class when all larger classes are empty.
    #[cold]
    fn malloc_probing(&mut self, granules: usize) -> Option<NonNull<u8>> {
        let Some(block) = self.probe(granules) else { return self.fail(granules) };
        let header = block.header();
        self.unlink(block, header.granules());
        Some(self.use_part(block, header, granules))
    }

    /// Allocates a size whose class is the last, or would lie past the end of the table.
    #[cold]
    fn malloc_large(&mut self, size: usize) -> Option<NonNull<u8>> {
        let Some(granules) = self.granules_for(size) else { return self.fail(usize::MAX) };
        if granules > self.table.max_class() {
            return self.malloc_probing(granules);
        }
        self.malloc_larger(size, Bin::round_up::<R::Row>(granules).1)
    }

    #[cold]
    pub(crate) fn fail(&mut self, granules: usize) -> Option<NonNull<u8>> {
        self.last_failure = Some(if granules > self.table.max_granules() {
            Failure::TooLarge
        } else if granules > self.free_granules() {
            Failure::Exhausted
        } else {
            Failure::Fragmented
        });
        None
    }

    /// Marks all of a free block that is in no list as used; the flags of `size` are ignored.
    #[inline(always)]
    pub(crate) fn use_whole(&mut self, block: Block<R::Row>, size: Header) -> NonNull<u8> {
        let header = block.header();
        let next = block.behind(size);
        next.set_header(next.header().without_prev_free());
        block.set_header(header.without_free());
        self.hand_out(block, size)
    }

    /// Marks the first `granules` of a free block that is in no list as used, and makes the rest
    /// the victim.
    #[inline(always)]
    pub(crate) fn use_part(
        &mut self,
        block: Block<R::Row>,
        header: Header,
        granules: usize,
    ) -> NonNull<u8> {
        let rest = header.granules() - granules;
        if Self::stays_whole(rest, granules) || self.is_unwanted(rest, granules) {
            return self.use_whole(block, header);
        }
        let used = Header::used(granules).with_prev_free_of(header);
        block.set_header(used);
        self.split_off(block.after(granules), rest);
        self.hand_out(block, used)
    }

    /// Whether a remainder of `rest` is too small to be split off a block of `granules`.
    #[inline(always)]
    pub(crate) fn stays_whole(rest: usize, granules: usize) -> bool {
        let least = const {
            let least = Block::<R::Row>::MIN_GRANULES;
            if least > MIN_REMAINDER_GRANULES { least } else { MIN_REMAINDER_GRANULES }
        };
        rest < least + (granules >> MIN_REMAINDER_SHIFT)
    }

    /// Whether a remainder of `rest` of a block of `granules` is small, and other blocks of its
    /// size are free.
    #[inline(always)]
    fn is_unwanted(&self, rest: usize, granules: usize) -> bool {
        granules >= LARGE_BYTES >> R::Row::GRANULE_LOG2
            && rest <= granules >> LARGE_REMAINDER_SHIFT
            && self.table.head(Bin::of::<R::Row>(rest)) != 0
    }

    #[inline(always)]
    fn hand_out(&mut self, block: Block<R::Row>, header: Header) -> NonNull<u8> {
        self.note_used(header.size_bits());
        // SAFETY: a block's payload lies after its header, so not at address zero.
        unsafe { NonNull::new_unchecked(block.as_ptr()) }
    }

    #[inline(always)]
    pub(crate) fn index(&self, block: Block<R::Row>) -> usize {
        block.payload().wrapping_sub(self.base) >> R::Row::GRANULE_LOG2
    }

    #[inline(always)]
    pub(crate) fn block(&self, index: usize) -> Block<R::Row> {
        // SAFETY: indices are those of blocks, since only `index` makes them.
        unsafe { Block::at(self.base.wrapping_add(index << R::Row::GRANULE_LOG2)) }
    }

    /// How many granules a block for `size` bytes has; `None` if no block has so many.
    #[inline(always)]
    pub(crate) fn granules_for(&self, size: usize) -> Option<usize> {
        if size > Block::<R::Row>::payload_bytes(self.table.max_granules()) {
            return None;
        }
        Some(Self::granules_unchecked(size))
    }

    #[inline(always)]
    fn granules_unchecked(size: usize) -> usize {
        let header_and_rounding = const { (1 << R::Row::GRANULE_LOG2) - 1 + Self::HEADER_BYTES };
        let granules = (size + header_and_rounding) >> R::Row::GRANULE_LOG2;
        granules.max(Block::<R::Row>::MIN_GRANULES)
    }

    /// What a block costs besides its payload, in bytes.
    pub const HEADER_BYTES: usize = size_of::<<R::Row as Shape>::Word>();

    /// The size of the smallest block with its header, in bytes.
    pub const MIN_BLOCK_BYTES: usize = Block::<R::Row>::MIN_GRANULES << R::Row::GRANULE_LOG2;

    /// The size of the largest block with its header, in bytes, and of the largest pool.
    pub fn max_block_bytes(&self) -> usize {
        self.table.max_granules() << R::Row::GRANULE_LOG2
    }
}
