//! How a region begins. Its metadata and the region itself are reserved. Of the metadata, the bit
//! sets and the cache of freed runs are committed at once, the tables as far as the region is.
//!
//! ```text
//!   ▒ clean │ dirty │ cache │ page map … │ run table … │ slabs … │ far words … │ region …
//!     └ committed ──────────┘ └ committed as far as the region is ───────────────────────
//! ```
//!
//! The first page (▒) is never committed. The system puts each mapping right below the last one,
//! huge blocks and the program's own mappings among them. A write behind such a mapping faults in
//! that page, and does not reach the bit sets.

use core::ptr::NonNull;

use hectare_base::align::align_up;
use hectare_buddy::{Bitset, FrameAllocator, FrameId};
use hectare_pages::{PageSource, SourceError};

use super::dear::DearBlocks;
use super::filling::Filling;
use super::frontier::HUGE_TABLE_FROM_BYTES;
use super::hollow_slabs::HollowSlabs;
use super::huge_part::HugePart;
use super::shut::Shut;
use super::table::Table;
use super::{FRAME_BYTES, HUGE_PAGE_BYTES, Region, RegionCache, RegionView, RunEntry};
use crate::class::SLAB_BYTES;
use crate::dirty::DirtyFrames;
use crate::huge::MIN_HUGE_BYTES;
use crate::slab::{FarWords, SlabEntry};

impl Region {
    /// The size of the tables for `bytes` of region, whole pages: page map, run table, slabs, and their far words.
    pub(super) fn tables(bytes: usize, page: usize) -> [usize; 4] {
        let frames = bytes / FRAME_BYTES;
        [
            align_up(frames, page),
            align_up(frames * size_of::<RunEntry>(), page),
            align_up(bytes / SLAB_BYTES * size_of::<SlabEntry>(), page),
            align_up(bytes / SLAB_BYTES * size_of::<FarWords>(), page),
        ]
    }

    /// Reserves a region of `bytes`, a multiple of [`SLAB_BYTES`] and of the page, and publishes it
    /// in `view`. The region is aligned as far as any run can ask, if address space allows, and at
    /// least to `align`.
    pub(crate) fn open(
        bytes: usize,
        align: usize,
        source: &impl PageSource,
        view: &RegionView,
    ) -> Result<Self, SourceError> {
        let parts = Parts::of(bytes, source.page_bytes());
        let (metadata, start_at) = reserve_behind(parts.bytes, bytes, align, source)?;
        let all_bytes = start_at + bytes;
        // If the system has huge pages everywhere, the first object would bring one, and the kernel
        // would make one of what is left where memory has gone. So huge pages come only where they
        // are asked for.
        // SAFETY: reserved just now.
        unsafe { source.advise_huge(metadata, all_bytes, false) };
        // SAFETY: as above, and nobody else knows of it.
        let (clean, dirty) = match unsafe { parts.bit_sets(metadata, bytes, source) } {
            Ok(bit_sets) => bit_sets,
            Err(error) => {
                // SAFETY: the reservation made above, which nobody uses.
                unsafe { source.release(metadata, all_bytes) };
                return Err(error);
            }
        };
        // SAFETY: each offset lies within the reservation.
        let part = |offset: usize| unsafe { metadata.add(offset) };
        let front_bytes = parts.front_bytes();
        // Reservations are far longer than memory: a debugger that dumps the process (gcore) would
        // write all of them.
        // SAFETY: the region and its tables, reserved just now.
        unsafe { source.advise_dump(part(front_bytes), all_bytes - front_bytes, false) };
        // SAFETY: committed with the bit sets, aligned to a page, the region's own from now on. An
        // empty cache is all zeros.
        let cached = unsafe { part(parts.cached_at).cast::<RegionCache>().as_mut() };
        let start = part(start_at);
        let tables = parts.tables_at.map(part);
        view.publish(start, tables);
        let [page_map, run_table, slabs, far_words] =
            tables.map(|start| Table { start, committed_bytes: 0 });
        Ok(Self {
            start,
            bytes,
            frontier_bytes: 0,
            touched_frames: 0,
            has_news: false,
            huge: HugePart::behind(0),
            set_aside_until_bytes: 0,
            big_run_frames: 0,
            paged_frames: 0,
            short_run_frames: 0,
            filling: Filling::new(),
            fresh: 0..0,
            refuses_moves: false,
            dear_blocks: DearBlocks::new(),
            clean,
            dirty: DirtyFrames::new(dirty),
            cached,
            hollow_slabs: HollowSlabs::NONE,
            shut: Shut::NOTHING,
            page_map,
            run_table,
            slabs,
            far_words,
        })
    }

    /// From now on, dumps of the process contain all of the region, committed or not. Of its
    /// tables, which the program does not read, they contain what is committed by now.
    pub(crate) fn dump_reserved(&self, source: &impl PageSource) {
        // SAFETY: the region.
        unsafe { source.advise_dump(self.start, self.bytes, true) };
    }
}

/// Where the parts of the metadata lie, in bytes from its start.
struct Parts {
    /// The first of the two bit sets, right behind the page that is never committed.
    bit_sets_at: usize,
    bit_set_bytes: usize,
    cached_at: usize,
    /// In the order of [`Region::tables`].
    tables_at: [usize; 4],
    /// How long the metadata is.
    bytes: usize,
}

impl Parts {
    /// The parts of the metadata of a region of `bytes`.
    fn of(bytes: usize, page: usize) -> Self {
        let words = Bitset::metadata_words(bytes / FRAME_BYTES);
        let bit_set_bytes = align_up(words * size_of::<u64>(), page);
        let bit_sets_at = page;
        let cached_at = bit_sets_at + 2 * bit_set_bytes;
        let page_map_at = align_up(cached_at + size_of::<RegionCache>(), page);
        let [page_map, run_table, slabs, far_words] = Region::tables(bytes, page);
        let run_table_at = page_map_at + page_map;
        // In a large region these tables come in huge pages.
        let unit = if bytes > HUGE_TABLE_FROM_BYTES { page.max(HUGE_PAGE_BYTES) } else { page };
        let slabs_at = align_up(run_table_at + run_table, unit);
        let far_words_at = slabs_at + slabs;
        let tables_at = [page_map_at, run_table_at, slabs_at, far_words_at];
        Self {
            bit_sets_at,
            bit_set_bytes,
            cached_at,
            tables_at,
            bytes: align_up(far_words_at + far_words, unit),
        }
    }

    /// The length of what lies before the tables. It is committed at once, except for the first
    /// page.
    fn front_bytes(&self) -> usize {
        self.tables_at[0]
    }

    /// Commits the front, and makes the bit sets of a region of `bytes`. All frames are clean, none
    /// is dirty.
    ///
    /// # Safety
    /// The metadata is a reservation of `source` of this length, which nobody else uses as long as the bit sets are used.
    unsafe fn bit_sets(
        &self,
        metadata: NonNull<u8>,
        bytes: usize,
        source: &impl PageSource,
    ) -> Result<(Bitset<'static>, Bitset<'static>), SourceError> {
        // SAFETY: within the reservation, as are both bit sets.
        let first = unsafe { metadata.add(self.bit_sets_at) };
        // SAFETY: a part of the reservation.
        unsafe { source.commit(first, self.front_bytes() - self.bit_sets_at) }?;
        let words = |at: usize| {
            // SAFETY: as above.
            let first = unsafe { first.add(at) }.cast::<u64>();
            let count = self.bit_set_bytes / size_of::<u64>();
            // SAFETY: committed just now, zeroed, aligned to a page, and this bit set's alone.
            unsafe { core::slice::from_raw_parts_mut(first.as_ptr(), count) }
        };
        let frames = bytes / FRAME_BYTES;
        let make = || {
            let mut clean = Bitset::over_zeroed(frames, words(0))?;
            clean.add_region(FrameId(0), frames)?;
            Ok((clean, Bitset::over_zeroed(frames, words(self.bit_set_bytes))?))
        };
        make().map_err(|_: hectare_buddy::Error| SourceError::Exhausted)
    }
}

/// Reserves address space for a region of `bytes` behind `metadata_bytes`. Returns it, and how far
/// behind its start the region begins. It is one reservation, so that fewer pages of the system's
/// own describe what is used of both. The region is aligned as far as any run can ask; if the
/// source cannot align so far, to huge pages; else to `align`. What lies in front because of the
/// alignment goes at once.
fn reserve_behind(
    metadata_bytes: usize,
    bytes: usize,
    align: usize,
    source: &impl PageSource,
) -> Result<(NonNull<u8>, usize), SourceError> {
    let reserve = |align: usize| {
        let align = align.max(source.page_bytes());
        let start_at = align_up(metadata_bytes, align);
        let reserved = source.reserve(start_at + bytes, align)?;
        let lead = start_at - metadata_bytes;
        if lead == 0 {
            return Ok((reserved, start_at));
        }
        // SAFETY: the front of what was reserved just now, which nobody uses.
        unsafe { source.release(reserved, lead) };
        // SAFETY: within the reservation.
        Ok((unsafe { reserved.add(lead) }, metadata_bytes))
    };
    let [most, usual] = [MIN_HUGE_BYTES / 2, HUGE_PAGE_BYTES].map(|usual| usual.max(align));
    reserve(most).or_else(|_| reserve(usual)).or_else(|_| reserve(align))
}
