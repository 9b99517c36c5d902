//! A source that notes each call, so that a test sees what a source around it passes on.

extern crate std;

use core::cell::RefCell;
use core::fmt::Arguments;
use core::num::NonZero;
use core::ptr::NonNull;
use std::string::{String, ToString};
use std::vec::Vec;

use crate::{PageRange, PageSource, SourceError};

/// A place that a test names, and that a [`Notes`] source never touches.
pub(crate) fn place(address: usize) -> NonNull<u8> {
    NonNull::without_provenance(NonZero::new(address).expect("an address"))
}

/// Has no memory. Otherwise its answers differ from every default.
#[derive(Debug, Default)]
pub(crate) struct Notes(RefCell<Vec<String>>);

impl Notes {
    /// What was called so far: names and arguments.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.0.borrow().clone()
    }

    fn note(&self, call: Arguments<'_>) {
        self.0.borrow_mut().push(call.to_string());
    }
}

/// Makes the optional calls that a source around `inner` passes on, and looks for them there.
pub(crate) fn optional_calls_pass(source: &impl PageSource, inner: &Notes) {
    // SAFETY: the source inside touches nothing.
    unsafe {
        assert_eq!(source.move_pages(place(64), place(128), 16), Ok(()));
        assert_eq!(source.seal(place(64), 32), Ok(()));
        source.advise_huge(place(64), 48, true);
    }
    let expected = ["move_pages 64 128 16", "seal 64 32", "advise_huge 64 48 true"];
    assert_eq!(inner.calls(), expected);
}

// SAFETY: it hands out nothing.
unsafe impl PageSource for Notes {
    fn page_bytes(&self) -> usize {
        16
    }

    fn reserve(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, SourceError> {
        self.note(format_args!("reserve {bytes} {align}"));
        Err(SourceError::Exhausted)
    }

    unsafe fn commit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        self.note(format_args!("commit {} {bytes}", start.addr()));
        Ok(())
    }

    unsafe fn decommit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        self.note(format_args!("decommit {} {bytes}", start.addr()));
        Ok(())
    }

    unsafe fn decommit_all(&self, ranges: &[PageRange]) -> usize {
        self.note(format_args!("decommit_all of {}", ranges.len()));
        1
    }

    unsafe fn populate(&self, start: NonNull<u8>, bytes: usize) {
        self.note(format_args!("populate {} {bytes}", start.addr()));
    }

    unsafe fn release(&self, start: NonNull<u8>, bytes: usize) {
        self.note(format_args!("release {} {bytes}", start.addr()));
    }

    fn get(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, SourceError> {
        self.note(format_args!("get {bytes} {align}"));
        Err(SourceError::Exhausted)
    }

    unsafe fn move_pages(
        &self,
        from: NonNull<u8>,
        to: NonNull<u8>,
        bytes: usize,
    ) -> Result<(), SourceError> {
        self.note(format_args!("move_pages {} {} {bytes}", from.addr(), to.addr()));
        Ok(())
    }

    unsafe fn seal(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        self.note(format_args!("seal {} {bytes}", start.addr()));
        Ok(())
    }

    unsafe fn advise_huge(&self, start: NonNull<u8>, bytes: usize, huge: bool) {
        self.note(format_args!("advise_huge {} {bytes} {huge}", start.addr()));
    }

    unsafe fn advise_dump(&self, start: NonNull<u8>, bytes: usize, dumped: bool) {
        self.note(format_args!("advise_dump {} {bytes} {dumped}", start.addr()));
    }

    fn is_zero(&self, start: NonNull<u32>) -> Option<bool> {
        self.note(format_args!("is_zero {}", start.addr()));
        Some(true)
    }

    fn is_resident(&self, page: NonNull<u8>) -> Option<bool> {
        self.note(format_args!("is_resident {}", page.addr()));
        Some(true)
    }

    unsafe fn set_aside(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        self.note(format_args!("set_aside {} {bytes}", start.addr()));
        Ok(())
    }
}
