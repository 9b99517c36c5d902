//! A value that is set once, while the library is loaded, and only read from then on.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const EMPTY: u8 = 0;
const BEING_SET: u8 = 1;
const SET: u8 = 2;

/// Invariant: only the thread that has taken `state` from `EMPTY` to `BEING_SET` writes `value`;
/// once it has then stored `SET`, nobody does.
pub(crate) struct Once<T> {
    state: AtomicU8,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: by the invariant the value is written by one thread, and read by others only after that.
unsafe impl<T: Send + Sync> Sync for Once<T> {}

impl<T> Once<T> {
    pub(crate) const fn new() -> Self {
        Self { state: AtomicU8::new(EMPTY), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// Sets the value, unless that has been done before.
    pub(crate) fn set(&self, value: T) {
        if self.state.compare_exchange(EMPTY, BEING_SET, Relaxed, Relaxed).is_ok() {
            // SAFETY: by the invariant nobody else reaches the value yet.
            unsafe { (*self.value.get()).write(value) };
            self.state.store(SET, Release);
        }
    }

    /// The value; `None` before it was set.
    pub(crate) fn get(&self) -> Option<&T> {
        if self.state.load(Acquire) != SET {
            return None;
        }
        // SAFETY: by the invariant nobody writes the value any more.
        let value = unsafe { &*self.value.get() };
        // SAFETY: it was written before `SET` was stored.
        Some(unsafe { value.assume_init_ref() })
    }
}
