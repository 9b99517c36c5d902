//! Synchronisation cells that need no operating system.
//!
//! [`atomic`], [`cell`] and [`hint`] are `core`'s, or loom's under `--cfg loom`. Code that is to be
//! model-checked takes them from here and nowhere else.

// The lock swaps, which the smallest processors cannot do.
#[cfg(target_has_atomic = "32")]
mod lock;
mod padded;

#[cfg(target_has_atomic = "32")]
pub use lock::{Lock, LockGuard, Park, SpinPark};
pub use padded::Padded;

#[cfg(not(loom))]
pub use core::{hint, sync::atomic};

#[cfg(loom)]
pub use loom::{hint, sync::atomic};

/// Cells for data that an atomic word of the same structure protects.
pub mod cell {
    #[cfg(loom)]
    pub use loom::cell::UnsafeCell;

    /// `core::cell::UnsafeCell` with the closure interface of loom's cell, so that one source
    /// serves both.
    #[cfg(not(loom))]
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct UnsafeCell<T: ?Sized>(core::cell::UnsafeCell<T>);

    #[cfg(not(loom))]
    impl<T> UnsafeCell<T> {
        /// A cell that holds `value`.
        #[inline]
        pub const fn new(value: T) -> Self {
            Self(core::cell::UnsafeCell::new(value))
        }

        /// Calls `f` with a pointer for reading.
        #[inline]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Calls `f` with a pointer for writing.
        #[inline]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}
