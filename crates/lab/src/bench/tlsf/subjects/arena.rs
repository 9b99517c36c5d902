//! The memory that the heaps under measurement work in.

use std::ptr::{NonNull, null_mut};

use anyhow::{Context, ensure};

/// Memory for one heap at a time: mapped once, faulted in once, and not cleared in between.
pub(crate) struct Arena {
    pub(super) start: NonNull<u8>,
    pub(super) bytes: usize,
}

impl Arena {
    /// Maps `bytes`. With `touched`, all pages are resident from the beginning.
    ///
    /// # Errors
    /// When the system does not have that much memory.
    pub(crate) fn new(bytes: usize, touched: bool) -> anyhow::Result<Self> {
        let populate = if touched { libc::MAP_POPULATE } else { libc::MAP_NORESERVE };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | populate;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever the kernel likes.
        let start = unsafe { libc::mmap(null_mut(), bytes, protection, flags, -1, 0) };
        ensure!(
            start != libc::MAP_FAILED,
            "no arena of {bytes} bytes: {}",
            std::io::Error::last_os_error()
        );
        Ok(Self { start: NonNull::new(start.cast()).context("a mapping at zero")?, bytes })
    }

    /// The address of the arena's first byte.
    pub(crate) fn address(&self) -> usize {
        self.start.addr().get()
    }

    /// The first `bytes` of the arena, as an arena of their own.
    ///
    /// # Panics
    /// When the arena is smaller.
    pub(crate) fn shrunk<T>(&mut self, bytes: usize, use_it: impl FnOnce(&mut Self) -> T) -> T {
        assert!(bytes <= self.bytes, "{bytes} of {} bytes", self.bytes);
        let whole = std::mem::replace(&mut self.bytes, bytes);
        let result = use_it(self);
        self.bytes = whole;
        result
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: our own mapping; heaps over it borrowed it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}
