//! The word in which block headers, links and list heads are stored: the index width.

mod sealed {
    pub trait Sealed {}
    impl Sealed for u16 {}
    impl Sealed for u32 {}
    impl Sealed for usize {}
}

/// An unsigned integer that holds a block's size and flags, or the place of a block counted in
/// granules from the heap's base. The distance of pools counts from the middle of the first.
///
/// | word | overhead a block | smallest block | largest block, pools within that of the first (granule of 16) |
/// |---|---|---|---|
/// | `u16` | 2 bytes | 16 bytes | 256 KiB, 512 KiB |
/// | `u32` | 4 bytes | 16 bytes | 16 GiB, 32 GiB |
/// | `usize` | 8 bytes | 32 bytes | the address space |
pub trait Word: Copy + Eq + Default + core::fmt::Debug + sealed::Sealed + 'static {
    /// Size in bytes.
    const BYTES: usize = size_of::<Self>();
    /// Size in bits, a power of two.
    const BITS: u32 = Self::BYTES as u32 * 8;
    /// The largest value.
    const MAX: usize;
    /// Zero: no block.
    const ZERO: Self;

    /// The low bits of `value`, which must fit unless the caller says otherwise.
    fn truncate(value: usize) -> Self;
    /// The value.
    fn get(self) -> usize;
    /// The difference, and whether it is below zero.
    fn minus(self, value: usize) -> (Self, bool);
    /// The value with bit `number`, taken modulo the width, inverted if `invert`; no branch.
    fn inverted(self, number: usize, invert: bool) -> Self;
}

macro_rules! word {
    ($($ty:ty)*) => {$(
        impl Word for $ty {
            const MAX: usize = <$ty>::MAX as usize;
            const ZERO: Self = 0;

            #[inline(always)]
            fn truncate(value: usize) -> Self {
                value as $ty
            }

            #[inline(always)]
            fn get(self) -> usize {
                self as usize
            }

            #[inline(always)]
            fn minus(self, value: usize) -> (Self, bool) {
                self.overflowing_sub(value as $ty)
            }

            #[inline(always)]
            fn inverted(self, number: usize, invert: bool) -> Self {
                self ^ <$ty>::from(invert).wrapping_shl(number as u32)
            }
        }
    )*};
}

word!(u16 u32 usize);
