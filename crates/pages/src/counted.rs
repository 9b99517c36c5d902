//! A source that counts what passes through it.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::{PageSource, SourceError};

/// What has passed through a [`Counted`] source; calls that were refused do not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calls of `reserve` (and of `get`).
    pub reserve_calls: usize,
    /// Calls of `commit` (and of `get`).
    pub commit_calls: usize,
    /// Calls of `decommit`.
    pub decommit_calls: usize,
    /// Calls of `release`.
    pub release_calls: usize,
    /// Address space held now, in bytes.
    pub reserved_bytes: usize,
    /// The most address space ever held at once, in bytes.
    pub peak_reserved_bytes: usize,
    /// Bytes committed so far, in sum.
    pub committed_bytes_total: usize,
    /// Bytes decommitted so far, in sum.
    pub decommitted_bytes_total: usize,
}

/// Passes calls that take, move or give back memory on to `S`, and counts what the fields of
/// [`Counts`] say; passes on [`advise_huge`](PageSource::advise_huge), too. The other optional
/// methods (`populate`, `advise_dump`, `is_zero`, `is_resident`, `set_aside`) keep their defaults.
/// Each count is exact, but a [`Counts`] taken while other threads make calls is not a snapshot of
/// one moment.
#[derive(Debug, Default)]
pub struct Counted<S> {
    inner: S,
    reserve_calls: AtomicUsize,
    commit_calls: AtomicUsize,
    decommit_calls: AtomicUsize,
    release_calls: AtomicUsize,
    reserved_bytes: AtomicUsize,
    peak_reserved_bytes: AtomicUsize,
    committed_bytes_total: AtomicUsize,
    decommitted_bytes_total: AtomicUsize,
}

impl<S> Counted<S> {
    /// Counts what passes to `inner`.
    pub const fn new(inner: S) -> Self {
        Self {
            inner,
            reserve_calls: AtomicUsize::new(0),
            commit_calls: AtomicUsize::new(0),
            decommit_calls: AtomicUsize::new(0),
            release_calls: AtomicUsize::new(0),
            reserved_bytes: AtomicUsize::new(0),
            peak_reserved_bytes: AtomicUsize::new(0),
            committed_bytes_total: AtomicUsize::new(0),
            decommitted_bytes_total: AtomicUsize::new(0),
        }
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        Counts {
            reserve_calls: self.reserve_calls.load(Relaxed),
            commit_calls: self.commit_calls.load(Relaxed),
            decommit_calls: self.decommit_calls.load(Relaxed),
            release_calls: self.release_calls.load(Relaxed),
            reserved_bytes: self.reserved_bytes.load(Relaxed),
            peak_reserved_bytes: self.peak_reserved_bytes.load(Relaxed),
            committed_bytes_total: self.committed_bytes_total.load(Relaxed),
            decommitted_bytes_total: self.decommitted_bytes_total.load(Relaxed),
        }
    }

    /// The counted source.
    pub const fn inner(&self) -> &S {
        &self.inner
    }
}

// SAFETY: every call is passed on unchanged to a source that meets the contract.
unsafe impl<S: PageSource> PageSource for Counted<S> {
    fn page_bytes(&self) -> usize {
        self.inner.page_bytes()
    }

    fn reserve(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, SourceError> {
        let start = self.inner.reserve(bytes, align)?;
        self.reserve_calls.fetch_add(1, Relaxed);
        let now = self.reserved_bytes.fetch_add(bytes, Relaxed) + bytes;
        self.peak_reserved_bytes.fetch_max(now, Relaxed);
        Ok(start)
    }

    unsafe fn commit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.commit(start, bytes) }?;
        self.commit_calls.fetch_add(1, Relaxed);
        self.committed_bytes_total.fetch_add(bytes, Relaxed);
        Ok(())
    }

    unsafe fn decommit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.decommit(start, bytes) }?;
        self.decommit_calls.fetch_add(1, Relaxed);
        self.decommitted_bytes_total.fetch_add(bytes, Relaxed);
        Ok(())
    }

    unsafe fn release(&self, start: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.release(start, bytes) };
        self.release_calls.fetch_add(1, Relaxed);
        self.reserved_bytes.fetch_sub(bytes, Relaxed);
    }

    unsafe fn move_pages(
        &self,
        from: NonNull<u8>,
        to: NonNull<u8>,
        bytes: usize,
    ) -> Result<(), SourceError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.move_pages(from, to, bytes) }
    }

    unsafe fn seal(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
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
    use crate::notes::{Notes, optional_calls_pass};
    use crate::{Fixed, PageRange};

    /// Takes the source by reference, since a reference is a source, too.
    fn take_and_give(source: impl PageSource) {
        let [two, three] = [2, 3].map(|pages| source.get(pages * 4096, 4096).expect("memory"));
        let range = |start, pages: usize| PageRange { start, bytes: pages * 4096 };
        // SAFETY: just taken, and unused.
        unsafe {
            assert_eq!(source.decommit_all(&[range(two, 1), range(three, 3)]), 4 * 4096);
            source.release(three, 3 * 4096);
        }
        source.get(4096, 4096).expect("memory");
        assert!(source.get(1 << 20, 4096).is_err());
    }

    #[test]
    fn what_passes_is_counted_and_what_is_refused_is_not() {
        let mut buffer = std::vec![0; 16 * 4096];
        let source = Counted::new(Fixed::new(&mut buffer, 4096));
        take_and_give(&source);
        let expected = Counts {
            reserve_calls: 3,
            commit_calls: 3,
            decommit_calls: 2,
            release_calls: 1,
            reserved_bytes: 3 * 4096,
            peak_reserved_bytes: 5 * 4096,
            committed_bytes_total: 6 * 4096,
            decommitted_bytes_total: 4 * 4096,
        };
        assert_eq!(source.counts(), expected);
    }

    #[test]
    fn what_is_not_counted_passes_too() {
        let source = Counted::new(Notes::default());
        optional_calls_pass(&source, source.inner());
        assert_eq!(source.counts(), Counts::default());
    }
}
