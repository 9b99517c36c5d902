//! A source that refuses on command, so that a test can go down every out-of-memory path.

use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

use crate::{PageSource, SourceError};

/// Numbers the calls that can fail (`reserve`, `commit`, `decommit`, `seal`, `move_pages`), from 0,
/// and refuses those whose number lies in a range that the test chooses. As in
/// [`Counted`](crate::Counted), optional methods keep their defaults.
#[derive(Debug)]
pub struct Failing<S> {
    inner: S,
    calls: AtomicU64,
    refuse_from: AtomicU64,
    refuse_until: AtomicU64,
}

impl<S> Failing<S> {
    /// A source that refuses nothing so far.
    pub const fn new(inner: S) -> Self {
        Self {
            inner,
            calls: AtomicU64::new(0),
            refuse_from: AtomicU64::new(u64::MAX),
            refuse_until: AtomicU64::new(u64::MAX),
        }
    }

    /// Refuses the calls whose number lies in `range`, and no others. Set it while no other thread
    /// makes calls.
    pub fn refuse(&self, range: Range<u64>) {
        self.refuse_until.store(range.end, SeqCst);
        self.refuse_from.store(range.start, SeqCst);
    }

    /// Refuses every call from now on (`true`), or none (`false`).
    pub fn refuse_all(&self, refuse: bool) {
        self.refuse(if refuse { 0..u64::MAX } else { u64::MAX..u64::MAX });
    }

    /// How many calls that can fail were made, refused ones included.
    pub fn calls(&self) -> u64 {
        self.calls.load(SeqCst)
    }

    /// The source inside.
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    fn admit(&self) -> Result<(), SourceError> {
        let call = self.calls.fetch_add(1, SeqCst);
        let refused = self.refuse_from.load(SeqCst)..self.refuse_until.load(SeqCst);
        if refused.contains(&call) { Err(SourceError::Exhausted) } else { Ok(()) }
    }
}

// SAFETY: a call is passed on unchanged or refused without effect.
unsafe impl<S: PageSource> PageSource for Failing<S> {
    fn page_bytes(&self) -> usize {
        self.inner.page_bytes()
    }

    fn reserve(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, SourceError> {
        self.admit()?;
        self.inner.reserve(bytes, align)
    }

    unsafe fn commit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        self.admit()?;
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.commit(start, bytes) }
    }

    unsafe fn decommit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        self.admit()?;
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.decommit(start, bytes) }
    }

    unsafe fn release(&self, start: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.release(start, bytes) }
    }

    unsafe fn move_pages(
        &self,
        from: NonNull<u8>,
        to: NonNull<u8>,
        bytes: usize,
    ) -> Result<(), SourceError> {
        // A call refused here has no effect.
        self.admit().map_err(|_| SourceError::Unsupported)?;
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.move_pages(from, to, bytes) }
    }

    unsafe fn seal(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        self.admit()?;
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.seal(start, bytes) }
    }

    unsafe fn advise_huge(&self, start: NonNull<u8>, bytes: usize, huge: bool) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.advise_huge(start, bytes, huge) }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::notes::{Notes, optional_calls_pass, place};
    use crate::{Fixed, PageRange};

    #[test]
    fn the_calls_of_a_range_are_refused_and_lose_nothing() {
        let mut buffer = std::vec![0; 16 * 4096];
        let source = Failing::new(Fixed::new(&mut buffer, 4096));
        source.refuse(1..2);
        assert_eq!(source.get(4096, 4096), Err(SourceError::Exhausted), "its commit");
        assert_eq!(source.inner().free_pages(), source.inner().page_count());
        let start = source.get(4096, 4096).expect("calls 2 and 3");
        source.refuse_all(true);
        // SAFETY: just taken, and unused; refused calls do nothing.
        unsafe {
            assert_eq!(source.decommit(start, 4096), Err(SourceError::Exhausted));
            assert_eq!(source.seal(start, 4096), Err(SourceError::Exhausted));
            assert_eq!(source.move_pages(start, start, 4096), Err(SourceError::Unsupported));
        }
        assert_eq!(source.calls(), 7);
        source.refuse_all(false);
        assert!(source.get(4096, 4096).is_ok());
    }

    #[test]
    fn what_is_not_refused_passes_on() {
        let source = Failing::new(Notes::default());
        optional_calls_pass(&source, source.inner());
        assert_eq!(source.calls(), 2, "advice cannot fail");
    }

    #[test]
    fn of_several_ranges_those_that_went_are_counted() {
        let source = Failing::new(Notes::default());
        source.refuse(1..2);
        let ranges = [16, 32, 64].map(|bytes| PageRange { start: place(64), bytes });
        // SAFETY: the source inside touches nothing.
        assert_eq!(unsafe { source.decommit_all(&ranges) }, 16 + 64);
    }

    #[test]
    fn the_first_call_of_all_can_be_refused() {
        let mut buffer = std::vec![0; 16 * 4096];
        let source = Failing::new(Fixed::new(&mut buffer, 4096));
        source.refuse_all(true);
        assert_eq!(source.reserve(4096, 4096), Err(SourceError::Exhausted));
    }
}
