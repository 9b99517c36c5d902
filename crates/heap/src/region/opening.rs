//! How a region begins: its metadata and it are reserved; of the metadata, the bit sets and the cache of freed runs are
//! committed at once and the tables as far as the region is.
//!
//! ```text
//!   clean │ dirty │ cache │ page map … │ run table … │ slabs … │ far words … │ region …
//!   └ committed ──────────┘ └ committed as far as the region is ───────────────────────
//! ```

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};

use hectare_base::align::align_up;
use hectare_buddy::{Bitset, FrameAllocator, FrameId};
use hectare_pages::{PageSource, SourceError};

use super::dear::DearBlocks;
use super::filling::Filling;
use super::huge_part::HugePart;
use super::shut::Shut;
use super::table::Table;
use super::{FRAME_BYTES, HUGE_PAGE_BYTES, Region, RegionCache, RegionView};
use crate::class::SLAB_BYTES;
use crate::dirty::DirtyFrames;
use crate::huge::MIN_HUGE_BYTES;
use crate::run_cache::Near;
use crate::slab::{FarWords, Slab};

impl Region {
    /// The size of the tables for `bytes` of region, whole pages: page map, run table, slabs, and their far words.
    pub(super) fn tables(bytes: usize, page: usize) -> [usize; 4] {
        let frames = bytes / FRAME_BYTES;
        [
            align_up(frames, page),
            align_up(frames * size_of::<u32>(), page),
            align_up(bytes / SLAB_BYTES * size_of::<Slab>(), page),
            align_up(bytes / SLAB_BYTES * size_of::<FarWords>(), page),
        ]
    }

    /// Reserves a region of `bytes`, a multiple of [`SLAB_BYTES`] and of the page, and publishes
    /// it in `view`.
    pub(crate) fn open(
        bytes: usize,
        source: &impl PageSource,
        view: &RegionView,
    ) -> Result<Self, SourceError> {
        let page = source.page_bytes();
        let frames = bytes / FRAME_BYTES;
        let bit_set = align_up(Bitset::metadata_words(frames) * size_of::<u64>(), page);
        let cached_at = 2 * bit_set;
        let page_map_at = align_up(cached_at + size_of::<RegionCache>(), page);
        let [page_map, run_lengths, slabs, far_words] = Self::tables(bytes, page);
        let run_lengths_at = page_map_at + page_map;
        // These come in huge pages in a large region.
        let slabs_at = align_up(run_lengths_at + run_lengths, page.max(HUGE_PAGE_BYTES));
        let far_words_at = slabs_at + slabs;
        let (metadata, start_at) = reserve_behind(far_words_at + far_words, bytes, source)?;
        let all_bytes = start_at + bytes;
        // SAFETY: each offset lies within the reservation.
        let part = |offset: usize| unsafe { metadata.add(offset) };
        let words = |offset: usize| {
            let first = part(offset).cast::<u64>();
            // SAFETY: committed below, zeroed, aligned to a page, this bit set's alone, and given back only if the
            // region does not come to be.
            unsafe { core::slice::from_raw_parts_mut(first.as_ptr(), bit_set / 8) }
        };
        let bit_sets = || {
            let mut clean = Bitset::over_zeroed(frames, words(0))?;
            clean.add_region(FrameId(0), frames)?;
            Ok((clean, Bitset::over_zeroed(frames, words(bit_set))?))
        };
        // SAFETY: the first part of the reservation.
        let opened = unsafe { source.commit(metadata, page_map_at) }
            .and_then(|()| bit_sets().map_err(|_: hectare_buddy::Error| SourceError::Exhausted));
        let (clean, dirty) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                // SAFETY: the reservation made above, which nobody uses.
                unsafe { source.release(metadata, all_bytes) };
                return Err(error);
            }
        };
        let start = part(start_at);
        // Far more than memory: a debugger that dumps the process (gcore) would write all of it.
        // SAFETY: the region and its tables, reserved just now.
        unsafe { source.advise_dump(part(page_map_at), all_bytes - page_map_at, false) };
        // SAFETY: committed above, aligned to a page, the region's own from now on; of zeros, as an empty one is.
        let cached = unsafe { part(cached_at).cast::<RegionCache>().as_mut() };
        let first_frame = start.addr().get() / FRAME_BYTES;
        let map = part(page_map_at).as_ptr().cast::<AtomicU8>();
        view.page_map_of_zero.store(map.wrapping_sub(first_frame), Relaxed);
        view.slabs.store(part(slabs_at).as_ptr().cast(), Relaxed);
        view.far_words.store(part(far_words_at).as_ptr().cast(), Relaxed);
        view.run_lengths.store(part(run_lengths_at).as_ptr().cast(), Relaxed);
        view.set_near(Near::USUAL);
        view.start.store(start.expose_provenance().get(), Relaxed);
        Ok(Self {
            start,
            bytes,
            frontier: 0,
            touched: 0,
            huge: HugePart::behind(0),
            set_aside_until: 0,
            filled_frames: 0,
            regrown_frames: 0,
            run_frames: 0,
            filling: Filling::new(),
            fresh: 0..0,
            refused_moves: 0,
            dear_blocks: DearBlocks::new(),
            clean,
            dirty: DirtyFrames::new(dirty),
            cached,
            shut: Shut::NOTHING,
            page_map: Table { start: part(page_map_at), committed_bytes: 0 },
            run_lengths: Table { start: part(run_lengths_at), committed_bytes: 0 },
            slabs: Table { start: part(slabs_at), committed_bytes: 0 },
            far_words: Table { start: part(far_words_at), committed_bytes: 0 },
        })
    }

    /// Has dumps of the process contain all of the region, committed or not, from now on; of its tables, which the program
    /// does not read, only what is committed by now.
    pub(crate) fn dump_reserved(&self, source: &impl PageSource) {
        // SAFETY: the region.
        unsafe { source.advise_dump(self.start, self.bytes, true) };
    }
}

/// Address space for a region of `bytes` behind `metadata_bytes`, and how far behind its start the region begins: all in one,
/// so that fewer pages of the system's own describe what is used of both. The region is aligned as far as any run can ask; by
/// a source that cannot align so far, to huge pages.
fn reserve_behind(
    metadata_bytes: usize,
    bytes: usize,
    source: &impl PageSource,
) -> Result<(NonNull<u8>, usize), SourceError> {
    let reserve = |align: usize| {
        let align = align.max(source.page_bytes());
        let start_at = align_up(metadata_bytes, align);
        source.reserve(start_at + bytes, align).map(|metadata| (metadata, start_at))
    };
    reserve(MIN_HUGE_BYTES / 2).or_else(|_| reserve(HUGE_PAGE_BYTES))
}
