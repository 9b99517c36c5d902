//! Size classes over chains of pages: the kernel's zsmalloc (Gupta & Kim, 2011; chains of
//! configurable length Senozhatsky, 2023).
//!
//! Classes lie 16 bytes apart. Each cuts its objects from *zspages*: chains of 1 … N pages, as many
//! as leave the least unused at the end. So an object may straddle pages. Classes whose zspages
//! have the same numbers of pages and objects are merged. In user space a zspage is contiguous
//! address space, so an object is always read in place.
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
//! Locks: one for each class. `free` pins the object's cell, which keeps compaction from moving it,
//! and so knows the class before it takes its lock. The whole pool has two more, which few calls
//! take: one for the numbers of zspages, when a zspage is made or given back, and one for the cells
//! that were never used, when no used cell is free. Order: pin, then class; compaction, which holds
//! the class, only *tries* to pin.

use core::ptr::NonNull;

use hectare_base::sync::{Lock, Park, SpinPark};
use hectare_pages::PageSource;

use crate::PoolError;
use crate::pin::PinCell64;
use crate::setting::{Kind, OutOfRange, Setting, check_pages};
use crate::table::Table;

mod cells;
mod class;
mod columns;
mod compact;
mod geometry;
mod objects;
mod stack;
mod supply;
#[cfg(all(test, not(loom)))]
mod tests;

use cells::Cells;
use class::{State, Zspage, Zspages};
pub use columns::{ClassStats, ClassTable};
use geometry::{Geometry, for_each_step, step_count, step_of};
use supply::Ids;

const MAX_CHAIN: usize = 64;
const MIN_STEP: usize = 4;

/// The parameters of a [`Zs`] pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZsConfig {
    /// The most pages of a zspage, 1 … 64. The kernel is built with 4 … 16, by default with 8.
    pub chain_pages: usize,
    /// Bytes between two classes: a multiple of 4, at most a page. The kernel's is 1/256 of a page.
    pub class_step_bytes: usize,
}

impl ZsConfig {
    /// The kernel's parameters for pages of this size, with a chain of 8.
    #[must_use]
    pub const fn for_page_bytes(page_bytes: usize) -> Self {
        Self {
            chain_pages: 8,
            class_step_bytes: if page_bytes < 4096 { 16 } else { page_bytes >> 8 },
        }
    }

    /// Whether a pool over pages of this size takes these parameters.
    ///
    /// # Errors
    /// [`OutOfRange`] names the first parameter that it does not take, and the values that it does.
    pub fn check(&self, page_bytes: usize) -> Result<(), OutOfRange> {
        let chain = Setting { name: "chain_pages", least: 1, most: MAX_CHAIN, kind: Kind::Any };
        let step = Setting {
            name: "class_step_bytes",
            least: MIN_STEP,
            most: page_bytes,
            kind: Kind::MultipleOf(MIN_STEP),
        };
        chain.check(self.chain_pages)?;
        step.check(self.class_step_bytes)
    }
}

/// A zsmalloc pool over `S`; threads wait for a class's lock as `P` says (see the [crate](crate)).
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

// SAFETY: the classes are memory of the pool's own, reached through their locks.
unsafe impl<S: PageSource + Send, P> Send for Zs<S, P> {}
// SAFETY: as above.
unsafe impl<S: PageSource + Sync, P> Sync for Zs<S, P> {}

impl<S: PageSource, P: Park> Zs<S, P> {
    /// An empty pool with [`ZsConfig::for_page_bytes`].
    ///
    /// # Errors
    /// [`PoolError::OutOfMemory`] when the source has no memory for the classes.
    pub fn new(source: S) -> Result<Self, PoolError> {
        let config = ZsConfig::for_page_bytes(source.page_bytes());
        Self::with_config(source, config)
    }

    /// An empty pool. It has its classes, and takes other memory when needed.
    ///
    /// # Errors
    /// [`PoolError::OutOfMemory`] when the source has no memory for the classes.
    ///
    /// # Panics
    /// If [`ZsConfig::check`] has an objection, or the source's pages are under 64 bytes or
    /// above 64 KiB.
    pub fn with_config(source: S, config: ZsConfig) -> Result<Self, PoolError> {
        let page_bytes = source.page_bytes();
        check_pages("zs", page_bytes, 64);
        if let Err(wrong) = config.check(page_bytes) {
            panic!("zs: {wrong}");
        }
        let step_bytes = config.class_step_bytes;
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
            ids: Lock::new(Ids::new()),
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
}

impl<S: PageSource, P> Drop for Zs<S, P> {
    fn drop(&mut self) {
        for id in 0..self.zspages.end() {
            let zspage = self.zspages.get(id);
            if let Some(base) = zspage.base() {
                // SAFETY: the class of a zspage is one of the `class_count` written.
                let class = unsafe { self.classes.add(zspage.class()) };
                // SAFETY: as above; `&mut self` shows that nobody uses the pool any more.
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
