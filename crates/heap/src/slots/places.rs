//! Where the batches of slots lie: some in the pool itself, the others in the stock.

use core::mem::MaybeUninit;
use core::ptr::NonNull;

use crate::batch::Packed;

/// How many batches have a place in the pool itself, and how many in the stock.
pub(super) const PLACES: usize = if cfg!(loom) { 2 } else { 32 };
pub(super) const STOCK: usize = SHELVES * SHELF;

/// The stock consists of this many shelves, each of this many places, added one by one.
const SHELVES: usize = if cfg!(loom) { 2 } else { 4 };
const SHELF: usize = if cfg!(loom) { 1 } else { 1024 };

/// Only places that hold a batch were ever written, so only the used part of a shelf becomes resident.
type Place = MaybeUninit<Packed>;
type Shelf = [Place; SHELF];

/// Places by their numbers. All zeros are places without a stock.
#[derive(Debug)]
pub(super) struct Places {
    first: [Place; PLACES],
    /// More places: shelves, added in order once they are needed, for good.
    stock: [Option<NonNull<Shelf>>; SHELVES],
}

// SAFETY: the stock is memory of the places' own.
unsafe impl Send for Places {}

impl Places {
    #[cfg(any(test, loom))]
    pub(super) const EMPTY: Self =
        Self { first: [MaybeUninit::uninit(); PLACES], stock: [None; SHELVES] };

    /// Whether there is a place numbered `at`. Its shelf, if it is new, takes `memory`.
    pub(super) fn has(&mut self, at: u16, memory: impl Fn(usize) -> Option<NonNull<u8>>) -> bool {
        let Some(at) = usize::from(at).checked_sub(PLACES) else { return true };
        let Some(shelf) = self.stock.get_mut(at / SHELF) else { return false };
        if shelf.is_none() {
            *shelf = memory(size_of::<Shelf>()).map(NonNull::cast);
        }
        shelf.is_some()
    }

    /// Puts a batch at a place that [exists](Self::has).
    pub(super) fn write(&mut self, at: u16, batch: Packed) {
        self.place(at).write(batch);
    }

    /// The batch at a place.
    ///
    /// # Safety
    /// The place holds one.
    pub(super) unsafe fn read(&mut self, at: u16) -> Packed {
        // SAFETY: the caller's promise.
        unsafe { self.place(at).assume_init_read() }
    }

    fn place(&mut self, at: u16) -> &mut Place {
        let at = usize::from(at);
        let stocked = at.wrapping_sub(PLACES);
        match self.stock.get(stocked / SHELF) {
            // SAFETY: the places' own memory, of its size and alignment.
            Some(&Some(mut shelf)) => unsafe { &mut shelf.as_mut()[stocked % SHELF] },
            _ => &mut self.first[at % PLACES],
        }
    }
}
