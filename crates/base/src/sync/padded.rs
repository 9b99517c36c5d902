//! A value alone on its cache lines.

use core::ops::{Deref, DerefMut};

/// Aligns `T` to 128 bytes, so that two such values never share a cache line, nor the pair of lines
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_pair_of_lines_has_two_of_them() {
        assert_eq!(align_of::<Padded<u8>>(), 128);
        let two = [Padded::new(1_u8), Padded::new(2)];
        let lines = [&two[0], &two[1]].map(|padded| (&raw const **padded).addr() / 128);
        assert_eq!(lines[1], lines[0] + 1);
    }
}
