//! Size classes over chains of pages: the kernel's zsmalloc (Gupta & Kim, 2011; chains of
//! configurable length Senozhatsky, 2023).
//!
//! Classes lie 16 bytes apart. Each cuts its objects from *zspages*: chains of 1 … N pages, as
//! many as leave least at the end, so that an object may straddle a page. Classes whose zspages
//! have equally many pages and objects are one. In user space a zspage is contiguous address
//! space: an object is always read where it lies.
//!
//! ```text
//!  handle ──▶ cell ──▶ zspage, object number          a cell: see `pin`
//!                        │
//!  class 1536            ▼            page            page            page
//!   ┌─ full 100% ──▶ zspage … │cell│ object │cell│ object │cell│ object │ …
//!   ├─ 99% ─▶ zspage ─▶ zspage      (8 objects in 3 pages)
//!   ├─ 90% …          ▲ allocation takes from the fullest that has room
//!   └─ 10% ─▶ zspage  └ compaction moves objects from here up, and frees the zspage
//! ```
//!
//! Locks: one a class. `free` pins the object's cell, which keeps compaction from moving it, and
//! so knows the class before it takes its lock; no lock is the whole pool's, but for the numbers
//! of zspages when one is made or given back. Order: pin, then class; compaction, which holds the
//! class, only *tries* to pin.

use core::num::NonZeroU64;
use core::ptr::NonNull;

use hectare_base::sync::{Lock, Park, SpinPark};
use hectare_pages::PageSource;

use crate::pin::PinCell64;
use crate::table::Table;
use crate::{Handle, Pool, PoolError, PoolStats};

mod cells;
mod class;
mod columns;
mod compact;
mod geometry;
mod stack;
#[cfg(all(test, not(loom)))]
mod tests;

use cells::Cells;
use class::{State, Zspage, ZspageId, Zspages};
pub use columns::{ClassStats, ClassTable};
use geometry::{Geometry, HEADER, for_each_step, step_count, step_of};

/// Handles keep the object's exact size above the number of its cell.
const SIZE_SHIFT: u32 = 40;
const OBJECT_BITS: u32 = 16;
const MAX_CHAIN: usize = 64;
const MIN_STEP: usize = 4;

/// What a [`Zs`] pool is built with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZsConfig {
    /// The most pages of a zspage, 1 … 64. The kernel is built with 4 … 16, 8 where nothing else
    /// was chosen.
    pub chain_pages: usize,
    /// Bytes between two classes: a multiple of 4. The kernel's is 1/256 of a page.
    pub class_step_bytes: usize,
}

impl ZsConfig {
    /// The kernel's for pages of this size, with a chain of 8.
    #[must_use]
    pub const fn for_page_bytes(page_bytes: usize) -> Self {
        Self {
            chain_pages: 8,
            class_step_bytes: if page_bytes < 4096 { 16 } else { page_bytes >> 8 },
        }
    }
}

/// A zsmalloc pool over `S`; threads wait for a class's lock as `P` says.
#[derive(Debug)]
pub struct Zs<S: PageSource, P = SpinPark> {
    config: ZsConfig,
    page_bytes: usize,
    steps: usize,
    class_count: usize,
    /// `class_count` classes, then the class of each step as a `u16`.
    classes: NonNull<Class<P>>,
    classes_bytes: usize,
    cells: Cells<P>,
    zspages: Table<Zspage>,
    ids: Lock<Ids, P>,
    source: S,
}

#[derive(Debug)]
struct Class<P> {
    geometry: Geometry,
    state: Lock<State, P>,
}

/// The numbers of zspages, and what was ever taken for them.
#[derive(Debug)]
struct Ids {
    used: u32,
    free: Option<ZspageId>,
    pages_taken: u64,
    pages_returned: u64,
}

// SAFETY: the classes are memory of the pool's own, reached through their locks.
unsafe impl<S: PageSource + Send, P> Send for Zs<S, P> {}
// SAFETY: as above.
unsafe impl<S: PageSource + Sync, P> Sync for Zs<S, P> {}

#[inline]
fn place_of(zspage: ZspageId, object: u16) -> u64 {
    u64::from(zspage.0) << OBJECT_BITS | u64::from(object)
}

impl<S: PageSource, P: Park> Zs<S, P> {
    /// An empty pool with [`ZsConfig::for_page_bytes`].
    ///
    /// # Errors
    /// [`PoolError::OutOfMemory`] when the source has no memory for the classes.
    pub fn new(source: S) -> Result<Self, PoolError> {
        let config = ZsConfig::for_page_bytes(source.page_bytes());
        Self::with_config(source, config)
    }

    /// An empty pool: it has its classes, and takes the rest when it is needed.
    ///
    /// # Errors
    /// [`PoolError::OutOfMemory`] when the source has no memory for the classes.
    ///
    /// # Panics
    /// If the configuration is outside its ranges, or the source's pages are under 64 bytes or
    /// above 64 KiB.
    pub fn with_config(source: S, config: ZsConfig) -> Result<Self, PoolError> {
        let page_bytes = source.page_bytes();
        let step_bytes = config.class_step_bytes;
        assert!((64..=1 << 16).contains(&page_bytes), "zs: pages of {page_bytes} bytes");
        assert!((1..=MAX_CHAIN).contains(&config.chain_pages), "zs: {} pages", config.chain_pages);
        assert!(step_bytes >= MIN_STEP && step_bytes.is_multiple_of(MIN_STEP), "zs: {step_bytes}");
        let steps = step_count(page_bytes, step_bytes);
        let mut class_count = 0;
        let mut last = None;
        for_each_step(page_bytes, step_bytes, config.chain_pages, |_, geometry| {
            class_count += usize::from(last != Some(geometry));
            last = Some(geometry);
        });
        let classes_bytes = class_count * size_of::<Class<P>>() + steps * size_of::<u16>();
        let classes_bytes = classes_bytes.next_multiple_of(page_bytes);
        let room = source.get(classes_bytes, page_bytes).map_err(|_| PoolError::OutOfMemory)?;
        let pool = Self {
            config,
            page_bytes,
            steps,
            class_count,
            classes: room.cast(),
            classes_bytes,
            cells: Cells::new(page_bytes),
            zspages: Table::new(page_bytes),
            ids: Lock::new(Ids { used: 0, free: None, pages_taken: 0, pages_returned: 0 }),
            source,
        };
        let (mut class, mut last) = (0usize, None);
        for_each_step(page_bytes, step_bytes, config.chain_pages, |step, geometry| {
            if last != Some(geometry) {
                // SAFETY: there are `class_count` changes of geometry, counted above.
                let place = unsafe { pool.classes.add(class) };
                // SAFETY: fresh memory with room for that many classes, aligned to a page.
                unsafe { place.write(Class { geometry, state: Lock::new(State::new()) }) };
                class += 1;
                last = Some(geometry);
            }
            // SAFETY: `step < steps`, and the table has an entry for each.
            let entry = unsafe { pool.step_table().add(step) };
            // SAFETY: as above.
            unsafe { entry.write(class as u16 - 1) };
        });
        Ok(pool)
    }

    /// The source that the memory comes from.
    pub const fn source(&self) -> &S {
        &self.source
    }

    /// Where the object lies, until [`unmap`](Self::unmap); it cannot move meanwhile. Whoever
    /// else maps it waits.
    ///
    /// # Safety
    /// `handle` names a live object of this pool that this thread has not mapped.
    pub unsafe fn map(&self, handle: Handle) -> NonNull<[u8]> {
        let (cell, size_bytes) = open(handle);
        let place = self.cell(cell).pin();
        let (id, object) = (ZspageId((place >> OBJECT_BITS) as u32), place as u16);
        let zspages = self.zspages();
        let geometry = self.classes()[zspages.get(id).class()].geometry;
        let span = zspages.span(id, geometry);
        let offset = object as usize * geometry.size_bytes + geometry.header_bytes();
        // SAFETY: the object lies within the zspage.
        let start = unsafe { span.base().add(offset) };
        NonNull::slice_from_raw_parts(start, size_bytes)
    }

    /// Ends what [`map`](Self::map) began.
    ///
    /// # Safety
    /// This thread has mapped the object, and uses what `map` returned no more.
    pub unsafe fn unmap(&self, handle: Handle) {
        self.cell(open(handle).0).unpin();
    }

    #[inline]
    fn classes(&self) -> &[Class<P>] {
        // SAFETY: `with_config` wrote `class_count` classes, which live as long as the pool.
        unsafe { core::slice::from_raw_parts(self.classes.as_ptr(), self.class_count) }
    }

    #[inline]
    fn step_table(&self) -> NonNull<u16> {
        // SAFETY: the table follows the classes in the same memory.
        unsafe { self.classes.add(self.class_count) }.cast()
    }

    #[inline]
    fn class_of(&self, size_bytes: usize) -> usize {
        let step = step_of(size_bytes, self.config.class_step_bytes, self.steps);
        // SAFETY: `step_of` is below `steps`, and the table has an entry for each.
        let entry = unsafe { self.step_table().add(step) };
        // SAFETY: written by `with_config`.
        usize::from(unsafe { entry.read() })
    }

    #[inline]
    fn cell(&self, cell: u32) -> &PinCell64 {
        self.cells.cell(cell)
    }

    #[inline]
    const fn zspages(&self) -> Zspages<'_> {
        Zspages { table: &self.zspages, page_bytes: self.page_bytes }
    }

    /// Memory for one zspage more of this shape. Without a class's lock: asking the system for
    /// memory is slow.
    #[cold]
    fn take_zspage(&self, geometry: Geometry) -> Result<(ZspageId, NonNull<u8>), PoolError> {
        let bytes = geometry.pages * self.page_bytes;
        let base = self.source.get(bytes, self.page_bytes).map_err(|_| PoolError::OutOfMemory)?;
        match self.take_id(geometry.pages) {
            Ok(id) => Ok((id, base)),
            Err(error) => {
                // SAFETY: taken just now, seen by nobody.
                unsafe { self.source.release(base, bytes) };
                Err(error)
            }
        }
    }

    fn take_id(&self, pages: usize) -> Result<ZspageId, PoolError> {
        let mut ids = self.ids.lock();
        let id = match ids.free {
            Some(id) => {
                ids.free = self.zspages().get(id).next();
                id
            }
            None => {
                if ids.used as usize == self.zspages.end() {
                    self.zspages.grow(&self.source).map_err(|_| PoolError::OutOfMemory)?;
                }
                let id = ids.used;
                ids.used = id.checked_add(1).ok_or(PoolError::Full)?;
                ZspageId(id)
            }
        };
        ids.pages_taken += pages as u64;
        Ok(id)
    }

    /// Gives the memory of a zspage back, which is empty and in no list.
    #[cold]
    fn give_back(&self, id: ZspageId, geometry: Geometry) {
        let zspages = self.zspages();
        let zspage = zspages.get(id);
        if let Some(base) = zspage.base() {
            // SAFETY: taken in `take_zspage` with this length; no object of it is in use.
            unsafe { self.source.release(base, geometry.pages * self.page_bytes) };
        }
        zspage.set_base(None);
        let mut ids = self.ids.lock();
        zspage.set_next(ids.free);
        ids.free = Some(id);
        ids.pages_returned += geometry.pages as u64;
    }
}

/// The number of the handle's cell, and the object's size.
#[inline]
const fn open(handle: Handle) -> (u32, usize) {
    let raw = handle.to_raw().get();
    (raw as u32, (raw >> SIZE_SHIFT) as usize)
}

// Instructions on average with ten thousand objects (`hectare bench pools -- --callgrind --range R`):
// alloc 354, free 356 for 512..576; 370 and 340 for 0..4096.
impl<S: PageSource + Sync, P: Park> Pool for Zs<S, P> {
    fn name(&self) -> &'static str {
        "zs"
    }

    fn max_size_bytes(&self) -> usize {
        self.page_bytes
    }

    fn alloc(&self, size_bytes: usize) -> Result<Handle, PoolError> {
        if size_bytes == 0 || size_bytes > self.page_bytes {
            return Err(PoolError::Size);
        }
        let cell = self.cells.take(&self.source)?;
        let number = self.class_of(size_bytes);
        let class = &self.classes()[number];
        let (zspages, geometry) = (self.zspages(), class.geometry);
        let mut state = class.state.lock();
        let (zspage, object) = match state.take(&zspages, geometry, cell) {
            Some(taken) => taken,
            None => {
                drop(state);
                let (id, base) = match self.take_zspage(geometry) {
                    Ok(taken) => taken,
                    Err(error) => {
                        self.cells.put(cell);
                        return Err(error);
                    }
                };
                // The object lies in the new zspage even if another thread has made room
                // meanwhile: nobody would give back one that was never used.
                state = class.state.lock();
                (id, state.adopt(&zspages, id, base, number, geometry, cell))
            }
        };
        state.stored_bytes += size_bytes;
        self.cell(cell).move_to(place_of(zspage, object));
        let raw = (size_bytes as u64) << SIZE_SHIFT | u64::from(cell);
        NonZeroU64::new(raw).map(Handle::new).ok_or(PoolError::Size)
    }

    unsafe fn free(&self, handle: Handle) {
        let (cell, size_bytes) = open(handle);
        let place = self.cell(cell).pin();
        let (id, object) = (ZspageId((place >> OBJECT_BITS) as u32), place as u16);
        let zspages = self.zspages();
        let zspage = zspages.get(id);
        let class = &self.classes()[zspage.class()];
        let geometry = class.geometry;
        let mut state = class.state.lock();
        let was = State::group_of(zspage.in_use(), geometry.objects);
        state.put_to(&zspages, id, geometry, object);
        state.stored_bytes -= size_bytes;
        let now = State::group_of(zspage.in_use(), geometry.objects);
        if now == 0 {
            state.remove(&zspages, id, was);
            state.allocated -= geometry.objects;
        } else {
            state.regroup(&zspages, id, was, now);
        }
        drop(state);
        if now == 0 {
            self.give_back(id, geometry);
        }
        self.cells.put(cell);
    }

    unsafe fn size_bytes(&self, handle: Handle) -> usize {
        open(handle).1
    }

    unsafe fn write(&self, handle: Handle, data: &[u8]) {
        // SAFETY: the caller's promise.
        let room = unsafe { self.map(handle) };
        debug_assert!(data.len() <= room.len());
        // SAFETY: room for the object, mapped; `data` is borrowed from elsewhere.
        unsafe {
            room.cast::<u8>().copy_from_nonoverlapping(NonNull::from(data).cast(), data.len())
        };
        // SAFETY: mapped above.
        unsafe { self.unmap(handle) };
    }

    unsafe fn read(&self, handle: Handle, _bounce: &mut [u8], reader: &mut dyn FnMut(&[u8])) {
        let _unpin = Unpin { pin: self.cell(open(handle).0) };
        // SAFETY: the caller's promise.
        let object = unsafe { self.map(handle) };
        // SAFETY: mapped, by the caller's promise written and not being written.
        reader(unsafe { object.as_ref() });
    }

    fn compact(&self) -> usize {
        (0..self.class_count).map(|class| self.compact_class(class) * self.page_bytes).sum()
    }

    fn stats(&self) -> PoolStats {
        let mut stats = PoolStats {
            cell_bytes: self.cells.table.bytes(),
            descriptor_bytes: size_of::<Self>() + self.classes_bytes + self.zspages.bytes(),
            ..PoolStats::default()
        };
        for class in self.classes() {
            let state = class.state.lock();
            let zspages = state.allocated / class.geometry.objects;
            stats.objects += state.in_use;
            stats.stored_bytes += state.stored_bytes;
            stats.page_bytes += zspages * class.geometry.pages * self.page_bytes;
            stats.objects_moved += state.moved;
        }
        let ids = self.ids.lock();
        stats.pages_taken = ids.pages_taken;
        stats.pages_returned = ids.pages_returned;
        stats
    }
}

/// Unpins when dropped, a reader's panic included.
struct Unpin<'a> {
    pin: &'a PinCell64,
}

impl Drop for Unpin<'_> {
    fn drop(&mut self) {
        self.pin.unpin();
    }
}

impl<S: PageSource, P> Drop for Zs<S, P> {
    fn drop(&mut self) {
        for id in 0..self.zspages.end() {
            let zspage = self.zspages.get(id);
            if let Some(base) = zspage.base() {
                // SAFETY: the class of a zspage is one of the `class_count` written.
                let class = unsafe { self.classes.add(zspage.class()) };
                // SAFETY: as above; `&mut self` says that nobody uses the pool any more.
                let pages = unsafe { class.as_ref() }.geometry.pages;
                // SAFETY: taken in `take_zspage` with this length.
                unsafe { self.source.release(base, pages * self.page_bytes) };
            }
        }
        // SAFETY: no handle may be used any more.
        unsafe { self.cells.table.release(&self.source) };
        // SAFETY: as above.
        unsafe { self.zspages.release(&self.source) };
        // SAFETY: the range that `with_config` took.
        unsafe { self.source.release(self.classes.cast(), self.classes_bytes) };
    }
}

const _: () = assert!(HEADER == 8, "the header is the kernel's");
