//! Words of a stack that is being walked. No address is trusted. Wrong tables lead anywhere, and
//! those of hand-written assembly can be wrong without harm until somebody walks through them.

use core::ffi::{c_int, c_void};
use core::ops::Range;

use super::registers::read;
use crate::errno;

/// No page of any system is smaller.
const PAGE_BYTES: usize = 4096;

const WORD_BYTES: usize = size_of::<usize>();

/// The addresses that were last seen to be readable, in whole pages. A walk goes up from page to
/// page, and asks the kernel once for each.
#[derive(Debug, Clone)]
pub(super) struct Memory(Range<usize>);

impl Memory {
    /// Begins with the page that contains `address`, which is readable.
    pub(super) fn with(address: usize) -> Self {
        Self(page_of(address))
    }

    /// No page at all.
    pub(super) fn nothing() -> Self {
        Self(0..0)
    }

    /// Adds `seen`, other readable pages, if there is no gap between.
    #[inline(always)]
    pub(super) fn join(&mut self, seen: Range<usize>) {
        if seen.start <= self.0.end && self.0.start <= seen.end {
            self.0 = self.0.start.min(seen.start)..self.0.end.max(seen.end);
        }
    }

    /// The pages.
    pub(super) fn pages(&self) -> Range<usize> {
        self.0.clone()
    }

    /// The word at `address`, of any alignment; `None` if it cannot be read.
    pub(super) fn word(&mut self, address: usize) -> Option<usize> {
        if !self.can_read(address, address.checked_add(WORD_BYTES)?) {
            return None;
        }
        // SAFETY: it can be read.
        Some(unsafe { read(address) })
    }

    /// Whether all from `start` to `end`, less than a page, can be read. If it lies on the stack of
    /// the thread that asks, it stays readable.
    #[inline(always)]
    pub(super) fn can_read(&mut self, start: usize, end: usize) -> bool {
        self.0.start <= start && end <= self.0.end || self.find_out(start, end)
    }

    #[cold]
    #[inline(never)]
    fn find_out(&mut self, start: usize, end: usize) -> bool {
        let last = end.wrapping_sub(1);
        start <= end && self.find_page(page_of(start)) && self.find_page(page_of(last))
    }

    /// Whether a page is readable.
    fn find_page(&mut self, page: Range<usize>) -> bool {
        if self.0.contains(&page.start) {
            return true;
        }
        if !is_readable(page.start) {
            return false;
        }
        let before = core::mem::replace(&mut self.0, page);
        self.join(before);
        true
    }
}

fn page_of(address: usize) -> Range<usize> {
    let start = address & !(PAGE_BYTES - 1);
    // The range of the last page of all, which no program has, is empty.
    start..start.wrapping_add(PAGE_BYTES)
}

/// Whether the kernel can read eight bytes at `address`, a multiple of eight. The kernel copies the
/// set of signals from there before it finds that the operation on the mask does not exist.
fn is_readable(address: usize) -> bool {
    const NO_SUCH_WAY: c_int = -1;
    let saved = errno::get();
    // SAFETY: the call changes nothing: the operation does not exist.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            NO_SUCH_WAY,
            address,
            core::ptr::null_mut::<c_void>(),
            size_of::<u64>(),
        )
    };
    let answer = errno::get();
    errno::set(saved);
    answer != libc::EFAULT
}
