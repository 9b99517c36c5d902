//! A value alone on its cache lines.

use core::ops::{Deref, DerefMut};

/// Aligns `T` to 128 bytes, so that two of them never share a cache line, nor the pair of lines
/// that x86-64's adjacent-line prefetcher fetches together.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Padded<T>(T);

impl<T> Padded<T> {
    /// Pads `value`.
    #[inline]
    pub const fn new(value: T) -> Self {
        Self(value)
    }
}

impl<T> Deref for Padded<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Padded<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
