//! The words by which each call recognises a sound object.
//!
//! Every `malloc` and `free` reads them, so they lie where no such read stalls:
//!
//! - in a cache line that nobody writes to, since another thread's writes would take it away each
//!   time;
//! - at other offsets in their page than a thread's lists of small objects. A processor compares
//!   only the low bits of addresses to decide whether a load may depend on an earlier store that is
//!   still pending, and if so delays the load. What one call stores to a list would slow the next
//!   call's first load if the two were [`ALIAS_BYTES`](crate::cache::ALIAS_BYTES) apart. (4K
//!   aliasing: Intel, "64 and IA-32 Architectures Optimization Reference Manual". On a Zen 5 it
//!   took `malloc` and `free` of 16 bytes from 3.8 to 6.4 ns.)

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use crate::object::Key;

/// All zeros before the key is drawn.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Keys {
    key: AtomicUsize,
    /// The key by which [`malloc_fast`](super::Heap::malloc_fast) recognises a sound list: `key`,
    /// or its complement in a heap that counts what it hands out, so that the last test fails.
    fast_key: AtomicUsize,
    counted: AtomicBool,
}

impl Keys {
    pub(super) const fn new() -> Self {
        Self {
            key: AtomicUsize::new(0),
            fast_key: AtomicUsize::new(0),
            counted: AtomicBool::new(false),
        }
    }

    #[inline(always)]
    pub(super) fn key(&self) -> Key {
        Key(self.key.load(Relaxed))
    }

    #[inline(always)]
    pub(super) fn fast_key(&self) -> Key {
        Key(self.fast_key.load(Relaxed))
    }

    /// Draws the key, before the first object is linked. A second thread draws the same key from the same secret.
    pub(super) fn draw(&self, secret: impl FnOnce() -> usize) {
        if self.key.load(Relaxed) == 0 {
            let key = secret() | 1;
            self.key.store(key, Relaxed);
            self.fast_key.store(if self.counted.load(Relaxed) { !key } else { key }, Relaxed);
        }
    }

    /// From now on `malloc` counts. Must be called while there is only one thread.
    pub(super) fn count(&self) {
        self.counted.store(true, Relaxed);
        self.fast_key.store(!self.key.load(Relaxed), Relaxed);
    }
}
