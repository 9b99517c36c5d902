//! Huge blocks: each is a reservation of its own, beside the regions. These get one: large objects
//! from 1 GiB on (in a short region, from a 64th of it on, and 32 MiB at least); zeros from 32 MiB
//! on, of which a program may leave most untouched; and buffers from 8 MiB on that grow and find no
//! room behind them.
//!
//! ```text
//!   table, sorted by address:   … │ start, committed, reserved │ …
//!   a block:                    │ committed │ room to grow, reserved only │
//! ```
//! A block that has grown once is given as much address space again, so that the next growth is one
//! call and moves nothing. If it must move, the source moves the pages, if it can. [`Kept`] decides
//! which freed blocks stay for the next request.
//!
//! Invariant: the table's first `len` entries are sorted by start and describe disjoint blocks.

mod zeros;

use core::ops::Range;
use core::ptr::NonNull;

use hectare_base::align::{align_up, checked_align_up};
use hectare_base::rolled;
use hectare_pages::{PageSource, SourceError, System};

use self::zeros::Zeros;
use crate::kept::Kept;
use crate::region::HUGE_PAGE_BYTES;

/// Requests of at least this many bytes are huge, unless the region is long enough to serve them
/// ([`Backend::min_huge_bytes`](crate::backend::Backend::min_huge_bytes)).
pub(crate) const MIN_HUGE_BYTES: usize = 32 << 20;

/// How many huge blocks there can be at once.
const MAX_BLOCKS: usize = 1 << 16;

/// How many blocks that were given back the table remembers.
const REMEMBERED: usize = 32;

/// What a caller wants to find in a large object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Anything: the caller will write.
    Any,
    /// Zeros, most of which the caller may leave untouched.
    Zeros,
}

/// A block: committed from its start, and only reserved behind that.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HugeBlock {
    pub(crate) start: NonNull<u8>,
    pub(crate) committed_bytes: usize,
    pub(crate) reserved_bytes: usize,
}

/// The table of huge blocks.
#[derive(Debug)]
pub(crate) struct Huge {
    table: Option<NonNull<HugeBlock>>,
    table_bytes: usize,
    len: usize,
    pub(crate) bytes: usize,
    /// Where the blocks given back last began, in a ring, to tell a double free from a foreign
    /// pointer.
    gone: [usize; REMEMBERED],
    next_gone: usize,
    kept: Kept,
    zeros: Zeros,
}

// SAFETY: the table is metadata of the heap that is reached only through this value.
unsafe impl Send for Huge {}

impl Huge {
    pub(crate) const fn new() -> Self {
        Self {
            table: None,
            table_bytes: 0,
            len: 0,
            bytes: 0,
            gone: [0; REMEMBERED],
            next_gone: 0,
            kept: Kept::new(),
            zeros: Zeros::new(),
        }
    }

    fn blocks(&self) -> &[HugeBlock] {
        match self.table {
            // SAFETY: by the invariant the first `len` entries are written.
            Some(table) => unsafe { core::slice::from_raw_parts(table.as_ptr(), self.len) },
            None => &[],
        }
    }

    fn blocks_mut(&mut self) -> &mut [HugeBlock] {
        match self.table {
            // SAFETY: by the invariant the first `len` entries are written.
            Some(table) => unsafe { core::slice::from_raw_parts_mut(table.as_ptr(), self.len) },
            None => &mut [],
        }
    }

    #[inline(never)]
    fn index_of(&self, start: NonNull<u8>) -> Option<usize> {
        self.blocks().binary_search_by_key(&start.addr(), |block| block.start.addr()).ok()
    }

    /// Takes a block of at least `bytes`, aligned to `align`. Returns whether it reads as zero,
    /// too. A caller that wants zeros gets them (`huge/zeros.rs`). Any other caller gets a kept
    /// block or huge pages.
    #[inline(never)]
    pub(crate) fn get(
        &mut self,
        bytes: usize,
        align: usize,
        contents: Contents,
        source: &impl System,
    ) -> Option<(NonNull<u8>, bool)> {
        self.make_room(source)?;
        let page = source.page_bytes();
        let bytes = whole_pages(bytes.max(1), page)?;
        self.age(source);
        if contents == Contents::Any {
            if let Some(block) = self.kept.take(bytes, align) {
                self.insert(block);
                return Some((block.start, false));
            }
            self.kept.miss(bytes);
        }
        self.make_way(bytes, source);
        let align = align.max(page).max(HUGE_PAGE_BYTES);
        let start = self.take_from(source, || source.get(bytes, align).ok())?;
        let is_huge = contents == Contents::Any || self.will_fill_zeros(source);
        // SAFETY: the whole of the block just taken.
        unsafe { source.advise_huge(start, bytes, is_huge) };
        if contents == Contents::Zeros {
            self.zeros.note_taken(start, is_huge);
        }
        self.insert(HugeBlock { start, committed_bytes: bytes, reserved_bytes: bytes });
        Some((start, true))
    }

    /// Whether zeros that are asked for now are likely to be filled.
    fn will_fill_zeros(&mut self, source: &impl PageSource) -> bool {
        let index = self.zeros.last().and_then(|start| self.index_of(start));
        let last = index.map(|index| self.blocks()[index]);
        self.zeros.will_be_filled(last, source)
    }

    /// How many bytes of freed blocks lie ready.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.kept.bytes()
    }

    /// Gives back kept blocks that have lain ready for too long. Returns how many bytes went.
    pub(crate) fn age(&mut self, source: &impl System) -> usize {
        self.kept.age(source.now_ms());
        self.release_each(Kept::pop_over, source)
    }

    /// Gives back all kept blocks. Returns how many bytes went.
    pub(crate) fn release_kept(&mut self, source: &impl PageSource) -> usize {
        self.release_each(Kept::evict, source)
    }

    /// Gives back each block that `next` returns. Returns how many bytes went.
    #[inline(never)]
    fn release_each(
        &mut self,
        next: fn(&mut Kept) -> Option<HugeBlock>,
        source: &impl PageSource,
    ) -> usize {
        let mut gone_bytes = 0;
        while let Some(block) = next(&mut self.kept) {
            gone_bytes += release(block, source);
        }
        gone_bytes
    }

    /// Gives back as much of the kept blocks as is about to be taken.
    #[inline(never)]
    fn make_way(&mut self, bytes: usize, source: &impl PageSource) {
        let mut wanted_bytes = bytes;
        while let Some(block) = self.kept.make_way(&mut wanted_bytes) {
            release(block, source);
        }
    }

    /// What `take` gets from `source`. If it gets nothing at first, the kept blocks go before the
    /// next try.
    fn take_from<T>(
        &mut self,
        source: &impl PageSource,
        take: impl Fn() -> Option<T>,
    ) -> Option<T> {
        take().or_else(|| (self.release_kept(source) > 0).then(take)?)
    }

    /// The usable size in bytes of the block that begins at `start`, if one does.
    pub(crate) fn usable_bytes(&self, start: NonNull<u8>) -> Option<usize> {
        Some(self.blocks()[self.index_of(start)?].committed_bytes)
    }

    /// Whether a block that began at `address` was given back lately.
    pub(crate) fn was_freed(&self, address: usize) -> bool {
        rolled(&self.gone).contains(&address)
    }

    /// How many blocks there are.
    pub(crate) fn count(&self) -> usize {
        self.len
    }

    /// Whether `address` lies in a huge block.
    pub(crate) fn contains(&self, address: usize) -> bool {
        let after = self.blocks().partition_point(|block| block.start.addr().get() <= address);
        after.checked_sub(1).is_some_and(|i| {
            let block = self.blocks()[i];
            address - block.start.addr().get() < block.committed_bytes
        })
    }

    /// Takes back the block that begins at `start`. `None` if none does.
    #[inline(never)]
    pub(crate) fn put(&mut self, start: NonNull<u8>, source: &impl System) -> Option<()> {
        let block = self.take_back(start)?;
        self.zeros.probe(block, source);
        self.age(source);
        if let Some(block) = self.kept.put(block) {
            release(block, source);
        }
        Some(())
    }

    /// As [`put`](Self::put), for a block whose pages are sealed, which goes back to the system.
    pub(crate) fn put_sealed(&mut self, start: NonNull<u8>, source: &impl System) -> Option<()> {
        release(self.take_back(start)?, source);
        Some(())
    }

    #[inline(never)]
    fn take_back(&mut self, start: NonNull<u8>) -> Option<HugeBlock> {
        let block = self.remove(self.index_of(start)?);
        self.gone[self.next_gone % REMEMBERED] = start.addr().get();
        self.next_gone = self.next_gone.wrapping_add(1);
        Some(block)
    }

    /// Makes the block at `start` `bytes` long, moving it if need be. `None`, with nothing changed,
    /// if out of memory.
    #[inline(never)]
    pub(crate) fn resize(
        &mut self,
        start: NonNull<u8>,
        bytes: usize,
        source: &impl PageSource,
    ) -> Option<NonNull<u8>> {
        let index = self.index_of(start)?;
        let block = self.blocks()[index];
        let bytes = whole_pages(bytes, source.page_bytes())?;
        if bytes <= block.reserved_bytes {
            self.resize_in_place(index, bytes, source)?;
            return Some(start);
        }
        let moved = self.get_with_room(bytes, block.committed_bytes, source)?;
        // SAFETY: both are committed as far, disjoint, and their owner waits for this call.
        unsafe { move_contents(block.start, moved, block.committed_bytes, source) }?;
        self.remove(index);
        release(block, source);
        self.insert(moved);
        Some(moved.start)
    }

    /// Takes over the contents of `used_bytes` whole pages that lie elsewhere, into a new huge
    /// block of `bytes` with room to grow.
    ///
    /// # Safety
    /// The pages from `from` are committed memory of `source` that the caller owns.
    pub(crate) unsafe fn adopt(
        &mut self,
        from: NonNull<u8>,
        used_bytes: usize,
        bytes: usize,
        source: &impl PageSource,
    ) -> Option<NonNull<u8>> {
        self.make_room(source)?;
        let bytes = whole_pages(bytes, source.page_bytes())?;
        let moved = self.get_with_room(bytes, used_bytes, source)?;
        // SAFETY: the caller's promise, and the reservation just made.
        unsafe { move_contents(from, moved, used_bytes, source) }?;
        self.insert(moved);
        Some(moved.start)
    }

    fn resize_in_place(
        &mut self,
        index: usize,
        bytes: usize,
        source: &impl PageSource,
    ) -> Option<()> {
        let block = self.blocks()[index];
        if bytes > block.committed_bytes {
            self.make_way(bytes - block.committed_bytes, source);
            // SAFETY: within the block's reservation.
            let end = unsafe { block.start.add(block.committed_bytes) };
            self.take_from(source, || {
                // SAFETY: as above.
                unsafe { source.commit(end, bytes - block.committed_bytes) }.ok()
            })?;
        } else if bytes < block.committed_bytes {
            // SAFETY: within the block's reservation.
            let end = unsafe { block.start.add(bytes) };
            // SAFETY: the block's tail, which its owner gives up.
            unsafe { source.release(end, block.reserved_bytes - bytes) };
            self.blocks_mut()[index].reserved_bytes = bytes;
        }
        self.bytes = self.bytes + bytes - block.committed_bytes;
        self.blocks_mut()[index].committed_bytes = bytes;
        Some(())
    }

    /// A new block of `bytes` whole pages, not yet in the table, that has room to grow.
    /// `moving_bytes` of its pages will come from elsewhere.
    fn get_with_room(
        &mut self,
        bytes: usize,
        moving_bytes: usize,
        source: &impl PageSource,
    ) -> Option<HugeBlock> {
        self.make_way(bytes.saturating_sub(moving_bytes), source);
        self.take_from(source, || {
            let block = Self::reserve_with_room(bytes, source)?;
            // SAFETY: the front of the reservation just made.
            if unsafe { source.commit(block.start, bytes) }.is_err() {
                release(block, source);
                return None;
            }
            Some(HugeBlock { committed_bytes: bytes, ..block })
        })
    }

    /// Address space for `bytes` and as much again, or just for `bytes` if there is no more.
    #[inline(never)]
    fn reserve_with_room(bytes: usize, source: &impl PageSource) -> Option<HugeBlock> {
        let page = source.page_bytes();
        let sizes = [bytes.saturating_mul(2), bytes];
        sizes.into_iter().find_map(|reserved_bytes| {
            let start = source.reserve(reserved_bytes, page.max(HUGE_PAGE_BYTES)).ok()?;
            // SAFETY: the whole of the reservation just made.
            unsafe { source.advise_huge(start, reserved_bytes, true) };
            Some(HugeBlock { start, committed_bytes: 0, reserved_bytes })
        })
    }

    /// Ensures that one more block can be entered.
    #[inline(never)]
    fn make_room(&mut self, source: &impl PageSource) -> Option<()> {
        let page = source.page_bytes();
        let table = match self.table {
            Some(table) => table,
            None => {
                let table = source.reserve(MAX_BLOCKS * size_of::<HugeBlock>(), page).ok()?.cast();
                self.table = Some(table);
                table
            }
        };
        if (self.len + 1) * size_of::<HugeBlock>() > self.table_bytes {
            if self.len == MAX_BLOCKS {
                return None;
            }
            // SAFETY: fewer than MAX_BLOCKS blocks: within the reservation.
            let end = unsafe { table.cast::<u8>().add(self.table_bytes) };
            // SAFETY: as above.
            unsafe { source.commit(end, page) }.ok()?;
            self.table_bytes += page;
        }
        Some(())
    }

    #[inline(never)]
    fn insert(&mut self, block: HugeBlock) {
        let at = self.blocks().partition_point(|other| other.start < block.start);
        let Some(table) = self.table else { return };
        // SAFETY: at ≤ len, and `make_room` committed room for len + 1 entries.
        let place = unsafe { table.add(at) };
        // SAFETY: as above: at + 1 ≤ the entries that there is room for.
        let behind = unsafe { place.add(1) };
        // SAFETY: as above; the entries behind `at` move up by one.
        unsafe { place.copy_to(behind, self.len - at) };
        // SAFETY: as above.
        unsafe { place.write(block) };
        self.bytes += block.committed_bytes;
        self.len += 1;
    }

    fn remove(&mut self, index: usize) -> HugeBlock {
        let block = self.blocks()[index];
        let len = self.len;
        self.blocks_mut().copy_within(index + 1..len, index);
        self.len -= 1;
        self.bytes -= block.committed_bytes;
        block
    }
}

/// Gives back a block that is off the table and that its owner has given up. Returns how many bytes
/// of memory went.
fn release(block: HugeBlock, source: &impl PageSource) -> usize {
    // SAFETY: the whole of a reservation that nobody uses.
    unsafe { source.release(block.start, block.reserved_bytes) };
    block.committed_bytes
}

/// Moves pages to the front of `to`, which is not in the table, as far as the source can, and
/// copies the rest. What lies in several mappings (a long run of which only a part has asked for
/// huge pages does) moves piece by piece. `None` if the source has lost a part of the place: then
/// everything is in `from` again, and what is left of `to` goes back.
///
/// # Safety
/// Both ranges are committed, disjoint, and used by nobody else.
unsafe fn move_contents(
    from: NonNull<u8>,
    to: HugeBlock,
    bytes: usize,
    source: &impl PageSource,
) -> Option<()> {
    let (mut moved, mut piece) = (0, bytes);
    while moved < bytes {
        // SAFETY: within the two ranges, as all that follows.
        let here = unsafe { from.add(moved) };
        // SAFETY: as above.
        let there = unsafe { to.start.add(moved) };
        // SAFETY: the caller's promise.
        match unsafe { source.move_pages(here, there, piece) } {
            Ok(()) => {}
            Err(SourceError::Unsupported) if piece > HUGE_PAGE_BYTES => {
                piece = align_up(piece / 2, HUGE_PAGE_BYTES);
                continue;
            }
            // SAFETY: the caller's promise; both are still there.
            Err(SourceError::Unsupported) => unsafe {
                here.copy_to_nonoverlapping(there, piece);
            },
            Err(SourceError::Exhausted) => {
                // SAFETY: the caller's promise; what lies before the piece that was lost is still there.
                unsafe { to.start.copy_to_nonoverlapping(from, moved) };
                release_around(to, moved..moved + piece, source);
                return None;
            }
        }
        moved += piece;
        piece = bytes - moved;
    }
    Some(())
}

/// Gives back a block that is not in the table, except for a `gap` in it.
fn release_around(block: HugeBlock, gap: Range<usize>, source: &impl PageSource) {
    for part in [0..gap.start, gap.end..block.reserved_bytes] {
        if !part.is_empty() {
            // SAFETY: within the block.
            let start = unsafe { block.start.add(part.start) };
            release(HugeBlock { start, committed_bytes: 0, reserved_bytes: part.len() }, source);
        }
    }
}

fn whole_pages(bytes: usize, page: usize) -> Option<usize> {
    checked_align_up(bytes, page).filter(|&b| isize::try_from(b).is_ok())
}

#[cfg(test)]
mod tests;
