//! The densest pool: blocks of exactly the size needed, and objects in several pieces if no free
//! block is large enough.
//!
//! What makes the other pools larger than their contents, and what this pool does about it:
//!
//! | | xv | zs | dense |
//! |---|---|---|---|
//! | room lost at a page's end | up to half a page | chains of pages | one area |
//! | half-filled pages of many classes | none | one zspage a class | none: no classes |
//! | holes that nothing fits | all of them | none | objects take several holes |
//! | bytes an object | 4 | 16, and rounding to 16 | 8, and rounding to 4 |
//! | memory after many frees | stays | compaction in each class | compaction over all |
//!
//! ```text
//!  handle  63│ size, 16 bits │ shard │ cell │0
//!                                │      ▼
//!                                │   cell: place, pin            4 bytes
//!                                ▼      ▼
//!                             shard: an area of blocks: head, bytes
//! ```
//!
//! A shard has its own lock, area and cells. A thread works in the shard that its stack's address
//! selects, or in another while that one is locked. An object is freed in the shard that its handle
//! names. Reading takes no lock but the object's own pin.

use core::num::NonZeroU64;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use hectare_base::sync::{Lock, Park, SpinPark};
use hectare_pages::PageSource;

use crate::pin::PinCell32;
use crate::setting::{Kind, OutOfRange, Setting, check_pages};
use crate::{Handle, NoObject, Pool, PoolError, PoolStats};

mod area;
mod bins;
mod block;
mod blocks;
mod cells;
mod compact;
mod migrate;
mod pages;
mod shard;
#[cfg(all(test, not(loom)))]
mod tests;

use area::{Area, MAX_AREA_BYTES, Place, UNIT};
use block::{HEAD_UNITS, LINKED_HEAD_UNITS};
use shard::{MAX_PIECES, Shard};

const MAX_SHARDS: usize = 16;
const CELL_BITS: u32 = 32;
const SHARD_BITS: u32 = 8;
const SIZE_SHIFT: u32 = CELL_BITS + SHARD_BITS;
/// Room for a shard, a page for it, and some pages of blocks.
const LEAST_AREA_BYTES: usize = 16 << 10;
#[cfg(not(loom))]
const _: () = assert!(Shard::<SpinPark>::bytes(4096) == 4096);

/// The parameters of a [`Dense`] pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Address space that a shard reserves for itself and all it holds: a power of two, from 16 KiB
    /// or 4 pages to 2 GiB. If the source has less, the shard gets what there is.
    pub area_bytes: usize,
    /// The most pieces that an object may be cut into, 1 … 16; 1 keeps every object whole.
    pub max_pieces: usize,
    /// How many threads can have a lock of their own, 1 … 16, a power of two. A shard takes no
    /// memory before a thread uses it.
    pub shards: usize,
    /// A shard compacts itself, a little with each free, once more than this percentage of the
    /// memory it holds is unused, and more than 64 pages are. 0: only on request.
    pub compact_percent: usize,
}

impl Limits {
    /// 2 GiB, 8 pieces, 8 shards, compaction at a quarter.
    #[must_use]
    pub const fn new() -> Self {
        Self { area_bytes: MAX_AREA_BYTES, max_pieces: 8, shards: 8, compact_percent: 25 }
    }

    /// Whether a pool over pages of this size takes these parameters.
    ///
    /// # Errors
    /// [`OutOfRange`] names the first parameter that it does not take, and the values that it does.
    pub fn check(&self, page_bytes: usize) -> Result<(), OutOfRange> {
        let area = Setting {
            name: "area_bytes",
            least: LEAST_AREA_BYTES.max(4 * page_bytes),
            most: MAX_AREA_BYTES,
            kind: Kind::PowerOfTwo,
        };
        let pieces = Setting { name: "max_pieces", least: 1, most: MAX_PIECES, kind: Kind::Any };
        let shards = Setting { name: "shards", least: 1, most: MAX_SHARDS, kind: Kind::PowerOfTwo };
        let percent = Setting { name: "compact_percent", least: 0, most: 100, kind: Kind::Any };
        area.check(self.area_bytes)?;
        pieces.check(self.max_pieces)?;
        shards.check(self.shards)?;
        percent.check(self.compact_percent)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::new()
    }
}

/// A dense pool over `S`; threads wait for a shard's lock as `P` says (see the [crate](crate)).
#[derive(Debug)]
pub struct Dense<S: PageSource, P = SpinPark> {
    shards: [AtomicPtr<Shard<P>>; MAX_SHARDS],
    limits: Limits,
    page_bytes: usize,
    /// Held while a shard is made.
    making: Lock<(), P>,
    source: S,
}

impl<S: PageSource, P: Park> Dense<S, P> {
    /// An empty pool with [`Limits::new`].
    pub fn new(source: S) -> Self {
        Self::with_limits(source, Limits::new())
    }

    /// An empty pool. It takes its first memory with its first object.
    ///
    /// # Panics
    /// If [`Limits::check`] has an objection, or the source's pages are under 128 bytes or above
    /// 64 KiB.
    pub fn with_limits(source: S, limits: Limits) -> Self {
        let page_bytes = source.page_bytes();
        // A page must have room for the first words of page bits.
        check_pages("dense", page_bytes, 128);
        if let Err(wrong) = limits.check(page_bytes) {
            panic!("dense: {wrong}");
        }
        let shards = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_SHARDS];
        Self { shards, limits, page_bytes, making: Lock::new(()), source }
    }

    /// The source that the memory comes from.
    pub const fn source(&self) -> &S {
        &self.source
    }

    #[inline]
    fn shard(&self, number: usize) -> Option<&Shard<P>> {
        let shard = self.shards[number].load(Acquire);
        // SAFETY: null, or a shard that `make_shard` made and only `drop` ends.
        unsafe { shard.as_ref() }
    }

    #[cold]
    fn make_shard(&self, number: usize) -> Result<&Shard<P>, PoolError> {
        let _making = self.making.lock();
        if let Some(shard) = self.shard(number) {
            return Ok(shard);
        }
        let shard = Shard::make(&self.source, self.limits).map_err(|_| PoolError::OutOfMemory)?;
        self.shards[number].store(shard.as_ptr(), Release);
        // SAFETY: made just now.
        Ok(unsafe { shard.as_ref() })
    }

    /// The shard that this thread tries first.
    #[inline]
    fn home(&self) -> usize {
        let marker = 0u8;
        home_of(ptr::from_ref(&marker).addr()) & (self.limits.shards - 1)
    }

    #[inline]
    fn handle(&self, shard: usize, cell: Place, size_bytes: usize) -> Handle {
        let raw =
            (size_bytes as u64) << SIZE_SHIFT | (shard as u64) << CELL_BITS | u64::from(cell.0);
        Handle::new(NonZeroU64::new(raw).expect("a size is at least 1"))
    }

    /// The handle's shard, if it exists, the place of its cell, and the object's size.
    #[inline]
    fn open(&self, handle: Handle) -> Option<(&Shard<P>, Place, usize)> {
        let raw = handle.to_raw().get();
        let shard = self.shard((raw >> CELL_BITS) as usize & (MAX_SHARDS - 1))?;
        Some((shard, Place(raw as u32), (raw >> SIZE_SHIFT) as usize))
    }

    /// Pins the object that `handle` names.
    #[inline]
    fn pin(&self, handle: Handle) -> Result<Pinned<'_>, NoObject> {
        let pinned = self.open(handle).and_then(|(shard, cell, size_bytes)| {
            let place = shard.pin(cell)?.place();
            Some(Pinned { area: shard.area, cell: shard.area.cell(cell), place, size_bytes })
        });
        pinned.ok_or(NoObject { handle })
    }

    /// Allocates in a shard, if it exists, no other thread holds it and it has room.
    #[inline(always)]
    fn alloc_in(&self, number: usize, size_bytes: usize) -> Option<Handle> {
        let shard = self.shard(number)?;
        let mut state = shard.state.try_lock()?;
        let cell = shard.locked(&self.source, &mut state).alloc(size_bytes).ok()?;
        Some(self.handle(number, cell, size_bytes))
    }

    /// The home shard did not exist yet, was held, or had no room. So this makes it, and tries it
    /// and all others in turn; then home again and all others once more, now waiting for their
    /// locks, since a shard that was held may be the one that has room.
    #[cold]
    fn alloc_elsewhere(&self, home: usize, size_bytes: usize) -> Result<Handle, PoolError> {
        for step in 0..self.limits.shards {
            let number = (home + step) & (self.limits.shards - 1);
            if self.shard(number).is_none() {
                // If this fails, the next shard may already exist.
                let _ = self.make_shard(number);
            }
            if let Some(handle) = self.alloc_in(number, size_bytes) {
                return Ok(handle);
            }
        }
        let patient = |step: usize| {
            let number = (home + step) & (self.limits.shards - 1);
            let shard = self.make_shard(number)?;
            let mut state = shard.state.lock();
            let cell = shard.locked(&self.source, &mut state).alloc(size_bytes)?;
            Ok(self.handle(number, cell, size_bytes))
        };
        patient(0).or_else(|refusal| {
            (1..self.limits.shards).find_map(|step| patient(step).ok()).ok_or(refusal)
        })
    }
}

// Average instructions with ten thousand objects (`hectare bench pools -- --callgrind --range R`):
//
// | sizes | alloc | free |
// |---|---|---|
// | 0..64 | 150 | 137 |
// | 512..576 | 233 | 140 (three in ten objects lie in pieces) |
// | 3072..3136 | 231 | 139 |
impl<S: PageSource + Sync, P: Park> Pool for Dense<S, P> {
    fn name(&self) -> &'static str {
        "dense"
    }

    fn max_size_bytes(&self) -> usize {
        self.page_bytes
    }

    fn alloc(&self, size_bytes: usize) -> Result<Handle, PoolError> {
        if size_bytes == 0 || size_bytes > self.page_bytes {
            return Err(PoolError::Size { bytes: size_bytes, most_bytes: self.page_bytes });
        }
        let home = self.home();
        match self.alloc_in(home, size_bytes) {
            Some(handle) => Ok(handle),
            None => self.alloc_elsewhere(home, size_bytes),
        }
    }

    // Out of line, `free` takes 6 instructions more.
    #[inline(always)]
    unsafe fn try_free(&self, handle: Handle) -> Result<(), NoObject> {
        let refused = NoObject { handle };
        let (shard, cell, size_bytes) = self.open(handle).ok_or(refused)?;
        let mut state = shard.state.lock();
        let is_freed = shard.locked(&self.source, &mut state).free(cell, size_bytes);
        if is_freed { Ok(()) } else { Err(refused) }
    }

    unsafe fn size_bytes(&self, handle: Handle) -> usize {
        (handle.to_raw().get() >> SIZE_SHIFT) as usize
    }

    unsafe fn write(&self, handle: Handle, data: &[u8]) {
        let pinned = self.pin(handle).unwrap_or_else(|refused| refused.panic());
        let (area, place) = (pinned.area, pinned.place);
        let head = area.head(place);
        if head.has_more() {
            write_pieces(area, place, data);
        } else {
            debug_assert!(data.len() <= (head.units() - HEAD_UNITS) * UNIT, "too much data");
            area.span().copy_in(place.forward(HEAD_UNITS).offset_bytes(), data);
        }
    }

    unsafe fn try_read(
        &self,
        handle: Handle,
        bounce: &mut [u8],
        reader: &mut dyn FnMut(&[u8]),
    ) -> Result<(), NoObject> {
        let pinned = self.pin(handle)?;
        let Pinned { area, mut place, size_bytes, .. } = pinned;
        // Also for an object in one piece: whether it is in one depends on what was freed before.
        assert!(
            bounce.len() >= size_bytes,
            "`bounce` has {} bytes, an object of the pool up to {}",
            bounce.len(),
            self.page_bytes
        );
        let mut head = area.head(place);
        let span = area.span();
        if !head.has_more() {
            let offset = place.forward(HEAD_UNITS).offset_bytes();
            // SAFETY: pinned, so the object stays here; the caller promises that nobody writes it.
            reader(unsafe { span.bytes(offset, size_bytes) });
            return Ok(());
        }
        let mut filled = 0;
        while filled < size_bytes {
            let skip_units = if head.has_more() { LINKED_HEAD_UNITS } else { HEAD_UNITS };
            let bytes = ((head.units() - skip_units) * UNIT).min(size_bytes - filled);
            let offset = place.forward(skip_units).offset_bytes();
            // SAFETY: as above.
            let piece = unsafe { span.bytes(offset, bytes) };
            bounce[filled..filled + bytes].copy_from_slice(piece);
            filled += bytes;
            if head.has_more() {
                place = area.link(place.forward(1));
                head = area.head(place);
            }
        }
        reader(&bounce[..size_bytes]);
        Ok(())
    }

    fn compact(&self) -> usize {
        let shards = (0..self.limits.shards).filter_map(|number| self.shard(number));
        shards.map(|shard| shard.compact(&self.source)).sum()
    }

    fn compact_some(&self) -> Option<usize> {
        let mut shards = (0..self.limits.shards).filter_map(|number| self.shard(number));
        shards.find_map(|shard| shard.compact_some(&self.source))
    }

    fn stats(&self) -> PoolStats {
        let mut stats = PoolStats { descriptor_bytes: size_of::<Self>(), ..PoolStats::default() };
        for shard in (0..self.limits.shards).filter_map(|number| self.shard(number)) {
            let state = shard.state.lock();
            stats.objects += state.objects;
            stats.stored_bytes += state.stored_bytes;
            stats.page_bytes += state.pages * self.page_bytes;
            stats.cell_bytes += state.cell_bytes::<P>(shard.area);
            stats.descriptor_bytes += Shard::<P>::bytes(self.page_bytes);
            stats.descriptor_bytes += shard.given_back.bytes();
            stats.pages_taken += state.pages_taken;
            stats.pages_returned += state.pages_returned;
            stats.objects_moved += state.objects_moved;
        }
        stats
    }
}

/// Writes the first bytes of an object in several pieces, whose first piece is at `place`.
#[inline(never)]
fn write_pieces(area: Area, mut place: Place, data: &[u8]) {
    let mut left = data;
    loop {
        let head = area.head(place);
        let skip_units = if head.has_more() { LINKED_HEAD_UNITS } else { HEAD_UNITS };
        let room_bytes = (head.units() - skip_units) * UNIT;
        let (now, later) = left.split_at(left.len().min(room_bytes));
        area.span().copy_in(place.forward(skip_units).offset_bytes(), now);
        left = later;
        if left.is_empty() {
            return;
        }
        debug_assert!(head.has_more(), "more data than the object has room for");
        place = area.link(place.forward(1));
    }
}

/// A number for the thread whose stack has this address; only its low bits matter.
///
/// Stacks lie 2 MiB (Rust's) or 8 MiB (the system's) and a guard page apart. The sum of the two
/// counts differs between neighbours of either kind, and takes on all values before it repeats one.
#[inline]
const fn home_of(stack: usize) -> usize {
    (stack >> 21) + (stack >> 23)
}

/// A pinned object. Dropping this unpins its cell, even if a reader panics.
struct Pinned<'a> {
    area: Area,
    cell: &'a PinCell32,
    /// Where the object's first block lies.
    place: Place,
    size_bytes: usize,
}

impl Drop for Pinned<'_> {
    #[inline]
    fn drop(&mut self) {
        self.cell.unpin();
    }
}

impl<S: PageSource, P> Drop for Dense<S, P> {
    fn drop(&mut self) {
        for slot in &self.shards {
            let Some(shard) = NonNull::new(slot.load(Relaxed)) else { continue };
            // SAFETY: made by `make_shard`; `&mut self` shows that nobody uses the pool any more.
            unsafe { Shard::release(shard, &self.source) };
        }
    }
}
