//! What the pool of a CPU keeps of one class: its batches, and how many of them it may keep.
//!
//! A few batches have a place in the pool. If a thread's demand swings by more, the pool absorbs
//! the swing once it has seen it a few times. It then gets a *stock*, with places for so many
//! batches that a program can make a hundred thousand small objects and free them all without going
//! to the bin. Objects in a stock count as idle, as if they were free in their slabs. They go back
//! when they have lain there for long, and before the heap would grow.
//!
//! Objects that come out of a stock have not been touched lately, and in a list each object must
//! have come from memory before the next is known. So the first object of a batch in the stock
//! notes where the others lie, and all are fetched at once. Batches of objects too small for such
//! notes are stocked only if they lie in a row, which the processor prefetches by itself, or are so
//! few that its caches have them. Other batches go to their slabs, which sort them.
//!
//! Invariant: the first `len` places hold a batch each, of `objects` objects in all, the others nothing of value.

#[path = "slots/places.rs"]
mod places;

use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;

use hectare_base::sync::atomic::AtomicUsize;

use crate::batch::{Batch, Packed};
use crate::class::{BATCH_BYTES, ClassId, LONG_BATCH_BYTES};

use places::{PLACES, Places, STOCK};

/// How many batches (of 8 KiB) of a class a pool keeps at first.
const FIRST_LIMIT: u16 = if cfg!(loom) { 1 } else { 6 };

/// If at most this much swings, it is still in a processor's caches when it is needed again.
const NEAR_BYTES: usize = if cfg!(loom) { 0 } else { 2 << 20 };

/// The count of what all stocks hold is corrected in steps of this many bytes, since all CPUs write
/// to it.
const TOLD_AT_ONCE: usize = if cfg!(loom) { 1 } else { 16 * BATCH_BYTES };

/// A pool's batches of one class.
#[derive(Debug)]
pub(crate) struct Slots {
    len: u16,
    /// How many batches it may keep now, beyond [`FIRST_LIMIT`], so that zeros mean the first
    /// limit. This grows by half (doubles from 2 × [`PLACES`] on) each time the slots are asked in
    /// vain for what they had refused before. So if a thread's demand swings, the pool absorbs the
    /// swing.
    limit_beyond_first: u16,
    /// How many more batches its CPU has taken, or asked for in vain, than put back.
    taken: u16,
    /// How many batches it does not lend.
    reserved: u16,
    /// The fewest batches there were since the last look: nobody has needed that many.
    fewest: u16,
    refused: bool,
    /// More than [`NEAR_BYTES`] swing, of small objects that lie scattered.
    is_far: bool,
    /// Its own CPU has taken or put a batch since another CPU last asked in vain.
    is_at_work: bool,
    /// How many objects it keeps: not all batches are whole, since threads that have just begun make short ones.
    objects: u32,
    /// How many of its objects the count of all stocks includes.
    told: u32,
    places: Places,
}

impl Slots {
    /// All zeros, as the slots of a heap begin.
    #[cfg(any(test, loom))]
    pub(crate) const EMPTY: Self = Self {
        len: 0,
        limit_beyond_first: 0,
        taken: 0,
        reserved: 0,
        fewest: 0,
        refused: false,
        is_far: false,
        is_at_work: false,
        objects: 0,
        told: 0,
        places: Places::EMPTY,
    };

    /// Keeps a batch of a thread of its own CPU, of no more objects than a batch of `class` has.
    /// The batch is returned if there are too many, if it is too scattered for the stock, or if
    /// `memory` (as [`Pools::put`](crate::pool::Pools::put) says) has none for the stock.
    pub(crate) fn put(
        &mut self,
        class: ClassId,
        batch: Batch,
        memory: impl Fn(usize) -> Option<NonNull<u8>>,
    ) -> Option<Batch> {
        debug_assert!(batch.count <= class.batch(), "{} objects", batch.count);
        self.taken = self.taken.saturating_sub(1);
        self.is_at_work = true;
        let is_stocked = usize::from(self.len) >= PLACES;
        if is_stocked && !class.notes_members() && !batch.begins_in_row(class.object_bytes()) {
            self.is_far |= usize::from(self.len) * class.batch_bytes() >= NEAR_BYTES;
            if self.is_far {
                return Some(batch);
            }
        }
        let is_full = self.len >= batches_within(self.limit(), class);
        if is_full || !self.places.has(self.len, memory) {
            self.refused = true;
            return Some(batch);
        }
        if is_stocked && class.notes_members() {
            // SAFETY: as `notes_members` says.
            unsafe { batch.note_members() };
        }
        self.objects += batch.count as u32;
        self.places.write(self.len, Packed::new(Some(batch)));
        self.len += 1;
        None
    }

    /// A batch for a thread of its own CPU.
    pub(crate) fn take(&mut self, class: ClassId) -> Option<Batch> {
        if self.len == 0 && core::mem::take(&mut self.refused) {
            let limit = self.limit();
            let is_small = usize::from(limit) < 2 * PLACES;
            let more = if is_small { 1 + limit / 2 } else { limit };
            self.set_limit((limit + more).min((PLACES + STOCK) as u16));
        }
        self.taken = (self.taken + 1).min(self.limit().max(PLACES as u16));
        self.reserved = self.reserved.max(self.taken);
        self.is_at_work = true;
        let batch = self.pop()?;
        if usize::from(self.len) >= PLACES && class.notes_members() {
            // SAFETY: as `notes_members` says; it was noted when it came to the stock.
            unsafe { batch.prefetch_members() };
            self.at(self.len - 1).prefetch_head();
        }
        Some(batch)
    }

    /// A batch for a thread of another CPU.
    pub(crate) fn lend(&mut self) -> Option<Batch> {
        if self.len > self.reserved {
            return self.pop();
        }
        if !core::mem::take(&mut self.is_at_work) {
            self.reserved -= u16::from(self.len > 0);
        }
        None
    }

    #[inline(never)]
    pub(crate) fn pop(&mut self) -> Option<Batch> {
        self.len = self.len.checked_sub(1)?;
        self.fewest = self.fewest.min(self.len);
        let batch = self.at(self.len);
        self.objects -= batch.count() as u32;
        // SAFETY: the place is no batch's any more.
        unsafe { batch.batch() }
    }

    /// As [`pop`](Self::pop), to empty the slots: their limit begins anew.
    pub(crate) fn drain(&mut self) -> Option<Batch> {
        self.limit_beyond_first = 0;
        self.is_far = false;
        self.pop()
    }

    /// A batch that nobody has needed since this last returned `None`. Slots with a stock in use
    /// keep their other batches; other slots keep nothing.
    pub(crate) fn drain_idle(&mut self, class: ClassId) -> Option<Batch> {
        self.is_far = false;
        if usize::from(self.limit()) <= PLACES {
            return self.drain();
        }
        // A look that began with a stock in use takes only what is idle, even if no stock is in use
        // after it.
        let least = PLACES as u16 + 1;
        if self.fewest == 0 {
            self.fewest = self.len;
            self.limit_beyond_first -= u16::from(self.limit() == least);
            return None;
        }
        self.fewest -= 1;
        self.set_limit((self.limit() - limit_units(class)).max(least));
        self.pop()
    }

    /// A batch of the stock, to empty the stock.
    pub(crate) fn drain_stock(&mut self, class: ClassId) -> Option<Batch> {
        // From now on the slots keep no more than what stays.
        let stays = self.len.max(PLACES as u16);
        self.set_limit(self.limit().min(stays));
        self.reserved = self.reserved.min(stays);
        (self.len > unstocked(class)).then(|| self.pop())?
    }

    fn limit(&self) -> u16 {
        FIRST_LIMIT + self.limit_beyond_first
    }

    /// `limit` is [`FIRST_LIMIT`] at least.
    fn set_limit(&mut self, limit: u16) {
        self.limit_beyond_first = limit - FIRST_LIMIT;
    }

    /// How many objects it keeps.
    pub(crate) fn objects(&self) -> usize {
        self.objects as usize
    }

    /// Corrects `stocked_bytes`, the count of all stocks.
    #[inline(never)]
    pub(crate) fn tell(&mut self, class: ClassId, stocked_bytes: &AtomicUsize) {
        let stocked = self.stocked(class);
        let bytes = |objects: u32| objects as usize * class.object_bytes();
        if bytes(stocked.abs_diff(self.told)) >= if stocked == 0 { 1 } else { TOLD_AT_ONCE } {
            stocked_bytes.fetch_add(bytes(stocked).wrapping_sub(bytes(self.told)), Relaxed);
            self.told = stocked;
        }
    }

    /// How many objects it keeps beyond whole batches in all places that do not count as stock.
    fn stocked(&self, class: ClassId) -> u32 {
        self.objects.saturating_sub(u32::from(unstocked(class)) * class.batch() as u32)
    }

    /// The batch numbered `at`, less than `len`.
    fn at(&mut self, at: u16) -> Packed {
        // SAFETY: by the invariant the place holds a batch.
        unsafe { self.places.read(at) }
    }
}

/// How many batches of `class` do not count as stock. Of long batches these are only as many as are
/// kept at first, since pools would otherwise keep much of each size that a program goes through.
fn unstocked(class: ClassId) -> u16 {
    if limit_units(class) > 1 { batches_within(FIRST_LIMIT, class) } else { PLACES as u16 }
}

/// How many batches of `class` a pool with this `limit` keeps: fewer long ones, but as many bytes.
fn batches_within(limit: u16, class: ClassId) -> u16 {
    (limit / limit_units(class)).max(1)
}

/// How much of a limit one batch of `class` takes.
fn limit_units(class: ClassId) -> u16 {
    class.batch_bytes().div_ceil(BATCH_BYTES) as u16
}

const _: () = assert!(
    LONG_BATCH_BYTES / BATCH_BYTES <= FIRST_LIMIT as usize || cfg!(loom),
    "a first batch has room"
);

#[cfg(all(test, not(loom)))]
#[path = "slots/tests.rs"]
mod tests;
