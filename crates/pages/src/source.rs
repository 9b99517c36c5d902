//! The trait that every source of memory implements.

use core::fmt;
use core::ptr::NonNull;

/// Why a [`PageSource`] refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceError {
    /// No memory, or no address space, is available now; there may be later.
    Exhausted,
    /// The source cannot do this at all; asking again is pointless.
    Unsupported,
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exhausted => "the page source has no memory left",
            Self::Unsupported => "the page source does not support this operation",
        })
    }
}

impl core::error::Error for SourceError {}

/// Part of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct PageRange {
    /// Its first byte, at a page's start.
    pub start: NonNull<u8>,
    /// Its length in bytes, whole pages.
    pub bytes: usize,
}

/// A source of page-aligned memory. Sizes and addresses are in bytes; every `bytes` is a positive
/// multiple of [`page_bytes`](Self::page_bytes), and so is every `start`.
///
/// A range passes through the states in the crate's diagram. A refused call changes nothing.
///
/// # Safety
/// An implementation hands out each address at most once between a `reserve` and the `release`
/// that ends it; committed memory can be read and written, reads as zero until it is written,
/// keeps what was written until `decommit` or `release`, and never moves.
pub unsafe trait PageSource {
    /// The size of a page in bytes: a power of two, the same for the life of the source.
    fn page_bytes(&self) -> usize;

    /// Takes `bytes` of address space aligned to `align`, a power of two of at least a page. (For
    /// any other alignment a source may refuse, panic, or give a range that is no multiple of it.)
    /// Nothing in the range may be touched before it is committed.
    ///
    /// # Errors
    /// [`SourceError::Exhausted`] if there is no such range; [`SourceError::Unsupported`] if the
    /// alignment is refused.
    fn reserve(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, SourceError>;

    /// Makes part of a reservation usable: it reads as zero. Parts of it that were already
    /// committed keep their contents.
    ///
    /// # Errors
    /// [`SourceError::Exhausted`] if there is no memory for it.
    ///
    /// # Safety
    /// The range lies within one reservation of this source.
    unsafe fn commit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError>;

    /// Gives the memory of a committed range back and forgets what was in it. The range stays
    /// committed: it reads as zero, and takes memory again when touched.
    ///
    /// # Errors
    /// Any; the contents are then undefined, and possibly nothing was given back.
    ///
    /// # Safety
    /// The range is committed, and nothing in it is in use.
    unsafe fn decommit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError>;

    /// [`decommit`](Self::decommit) for each of `ranges`, in fewer calls where the source can.
    /// Returns how many bytes were given back: fewer than asked for if some were refused.
    ///
    /// # Safety
    /// As for [`decommit`](Self::decommit), for each range.
    unsafe fn decommit_all(&self, ranges: &[PageRange]) -> usize {
        // SAFETY: the caller's promise, passed on.
        unsafe { decommit_each(self, ranges) }
    }

    /// Says that a committed range is about to be written. A source that gives memory at the first
    /// touch can give it now, which costs less than a fault for each page. Only advice: contents
    /// are kept, and a source may do nothing.
    ///
    /// # Safety
    /// The range is committed.
    unsafe fn populate(&self, start: NonNull<u8>, bytes: usize) {
        let _ = (start, bytes);
    }

    /// Ends a reservation, or the named part of it: its addresses may be handed out again.
    ///
    /// # Safety
    /// The range lies within one reservation of this source, and nothing in it is in use.
    unsafe fn release(&self, start: NonNull<u8>, bytes: usize);

    /// [`reserve`](Self::reserve) and [`commit`](Self::commit) in one call: `bytes` of zeroed
    /// memory.
    ///
    /// # Errors
    /// As those two.
    fn get(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, SourceError> {
        reserve_and_commit(self, bytes, align)
    }

    /// Moves the contents of the committed range `from` to the committed range `to` without
    /// copying, if the source can; `from` then reads as zero, and what `to` held is forgotten.
    ///
    /// # Errors
    /// [`SourceError::Unsupported`] (the default): `from` is as it was; `to` is as it was or reads
    /// as zero. [`SourceError::Exhausted`]: `from` is as it was, but `to` is lost: it must not be
    /// used, committed or released again.
    ///
    /// # Safety
    /// Both ranges are committed and do not overlap, and nobody else uses them during the call.
    unsafe fn move_pages(
        &self,
        from: NonNull<u8>,
        to: NonNull<u8>,
        bytes: usize,
    ) -> Result<(), SourceError> {
        let _ = (from, to, bytes);
        Err(SourceError::Unsupported)
    }

    /// Takes a committed range back to the state before [`commit`](Self::commit): its memory is
    /// given back, and touching it faults until it is committed again. This catches stray accesses
    /// to memory that is not in use.
    ///
    /// # Errors
    /// [`SourceError::Unsupported`] (the default), or [`SourceError::Exhausted`] if the system
    /// cannot keep track of one more range. The range then stays committed, but its contents are
    /// undefined.
    ///
    /// # Safety
    /// The range is committed, and nothing in it is in use.
    unsafe fn seal(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        let _ = (start, bytes);
        Err(SourceError::Unsupported)
    }

    /// Asks that the range be backed by huge pages (`true`) or never be (`false`). Only advice: a
    /// source without huge pages does nothing.
    ///
    /// # Safety
    /// The range lies within one reservation of this source.
    unsafe fn advise_huge(&self, start: NonNull<u8>, bytes: usize, huge: bool) {
        let _ = (start, bytes, huge);
    }

    /// Says whether the range belongs into a dump of the process: a debugger writes all that is
    /// mapped, even what is merely reserved. Only advice: a source that is not dumped does nothing.
    ///
    /// # Safety
    /// The range lies within one reservation of this source.
    unsafe fn advise_dump(&self, start: NonNull<u8>, bytes: usize, dumped: bool) {
        let _ = (start, bytes, dumped);
    }

    /// Whether the four bytes at `start`, a multiple of four, are all zero now. The call may ask
    /// about memory in use, to which its owner may be writing, or which its owner may have made
    /// inaccessible. `None` (the default) if that cannot be told.
    fn is_zero(&self, start: NonNull<u32>) -> Option<bool> {
        let _ = start;
        None
    }

    /// Whether the page at `page` holds memory. `None` (the default) if that cannot be told.
    ///
    /// The page is committed memory of this source.
    fn is_resident(&self, page: NonNull<u8>) -> Option<bool> {
        let _ = page;
        None
    }

    /// Commits the range, for good, with memory that was set aside for this purpose. That memory is
    /// there whatever else the system does, and none of it goes back before the process ends.
    ///
    /// # Errors
    /// [`SourceError::Unsupported`] (the default) if there is no such memory,
    /// [`SourceError::Exhausted`] if there is not enough of it. The range is then still reserved,
    /// as before.
    ///
    /// # Safety
    /// The range lies within one reservation of this source, none of it was ever committed, and no
    /// other thread uses a source during the call.
    unsafe fn set_aside(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        let _ = (start, bytes);
        Err(SourceError::Unsupported)
    }
}

/// Takes memory from a source in two steps: reserves it, and commits it.
///
/// # Errors
/// The source's. If one is returned, nothing stays reserved.
pub(crate) fn reserve_and_commit(
    source: &(impl PageSource + ?Sized),
    bytes: usize,
    align: usize,
) -> Result<NonNull<u8>, SourceError> {
    let start = source.reserve(bytes, align)?;
    // SAFETY: the whole of a reservation just made.
    match unsafe { source.commit(start, bytes) } {
        Ok(()) => Ok(start),
        Err(error) => {
            // SAFETY: as above; nobody has seen it yet.
            unsafe { source.release(start, bytes) };
            Err(error)
        }
    }
}

/// Decommits each of `ranges` by a call of its own. Returns how many bytes were given back.
///
/// # Safety
/// As for [`PageSource::decommit`], for each range.
pub(crate) unsafe fn decommit_each(
    source: &(impl PageSource + ?Sized),
    ranges: &[PageRange],
) -> usize {
    // SAFETY: the caller's promise, passed on.
    let gone = |range: &&PageRange| unsafe { source.decommit(range.start, range.bytes) }.is_ok();
    ranges.iter().filter(gone).map(|range| range.bytes).sum()
}

// SAFETY: every call is passed on unchanged to a source that meets the contract.
unsafe impl<S: PageSource + ?Sized> PageSource for &S {
    fn page_bytes(&self) -> usize {
        (**self).page_bytes()
    }

    fn reserve(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, SourceError> {
        (**self).reserve(bytes, align)
    }

    unsafe fn commit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { (**self).commit(start, bytes) }
    }

    unsafe fn decommit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { (**self).decommit(start, bytes) }
    }

    unsafe fn decommit_all(&self, ranges: &[PageRange]) -> usize {
        // SAFETY: the caller's promise, passed on.
        unsafe { (**self).decommit_all(ranges) }
    }

    unsafe fn populate(&self, start: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise, passed on.
        unsafe { (**self).populate(start, bytes) }
    }

    unsafe fn release(&self, start: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise, passed on.
        unsafe { (**self).release(start, bytes) }
    }

    fn get(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, SourceError> {
        (**self).get(bytes, align)
    }

    unsafe fn move_pages(
        &self,
        from: NonNull<u8>,
        to: NonNull<u8>,
        bytes: usize,
    ) -> Result<(), SourceError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { (**self).move_pages(from, to, bytes) }
    }

    unsafe fn seal(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { (**self).seal(start, bytes) }
    }

    unsafe fn advise_huge(&self, start: NonNull<u8>, bytes: usize, huge: bool) {
        // SAFETY: the caller's promise, passed on.
        unsafe { (**self).advise_huge(start, bytes, huge) }
    }

    unsafe fn advise_dump(&self, start: NonNull<u8>, bytes: usize, dumped: bool) {
        // SAFETY: the caller's promise, passed on.
        unsafe { (**self).advise_dump(start, bytes, dumped) }
    }

    fn is_zero(&self, start: NonNull<u32>) -> Option<bool> {
        (**self).is_zero(start)
    }

    fn is_resident(&self, page: NonNull<u8>) -> Option<bool> {
        (**self).is_resident(page)
    }

    unsafe fn set_aside(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { (**self).set_aside(start, bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notes::{Notes, place};

    /// Calls each method once, as a program does that does not know what its source is.
    fn call_each(source: impl PageSource) {
        let (start, other) = (place(64), place(128));
        let range = PageRange { start, bytes: 16 };
        assert_eq!(source.page_bytes(), 16);
        assert_eq!(source.reserve(16, 32), Err(SourceError::Exhausted));
        assert_eq!(source.get(32, 64), Err(SourceError::Exhausted));
        // SAFETY: the source touches nothing.
        unsafe {
            assert_eq!(source.commit(start, 16), Ok(()));
            assert_eq!(source.decommit(start, 32), Ok(()));
            assert_eq!(source.decommit_all(&[range; 3]), 1);
            source.populate(start, 48);
            source.release(start, 64);
            assert_eq!(source.move_pages(start, other, 80), Ok(()));
            assert_eq!(source.seal(start, 96), Ok(()));
            source.advise_huge(start, 112, true);
            source.advise_dump(start, 128, false);
            assert_eq!(source.set_aside(start, 144), Ok(()));
        }
        assert_eq!(source.is_zero(other.cast()), Some(true));
        assert_eq!(source.is_resident(other), Some(true));
    }

    #[test]
    fn a_reference_passes_every_call_on() {
        let notes = Notes::default();
        call_each(&notes);
        let expected = [
            "reserve 16 32",
            "get 32 64",
            "commit 64 16",
            "decommit 64 32",
            "decommit_all of 3",
            "populate 64 48",
            "release 64 64",
            "move_pages 64 128 80",
            "seal 64 96",
            "advise_huge 64 112 true",
            "advise_dump 64 128 false",
            "set_aside 64 144",
            "is_zero 128",
            "is_resident 128",
        ];
        assert_eq!(notes.calls(), expected);
    }
}
