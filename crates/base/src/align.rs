//! Alignment arithmetic. Every function is constant time and total over its stated range.

/// Rounds `value` up to a multiple of `align`, a power of two.
///
/// `None` when the result does not fit in a `usize`.
#[inline]
#[must_use]
pub const fn checked_align_up(value: usize, align: usize) -> Option<usize> {
    check(align);
    match value.checked_add(align - 1) {
        Some(sum) => Some(sum & !(align - 1)),
        None => None,
    }
}

/// Rounds `value` up to a multiple of `align`, a power of two. The result must fit in a `usize`.
#[inline]
#[must_use]
pub const fn align_up(value: usize, align: usize) -> usize {
    check(align);
    (value + (align - 1)) & !(align - 1)
}

/// Rounds `value` down to a multiple of `align`, a power of two.
#[inline]
#[must_use]
pub const fn align_down(value: usize, align: usize) -> usize {
    check(align);
    value & !(align - 1)
}

/// In builds with checks, ends the program if an alignment is no power of two.
#[inline(always)]
const fn check(align: usize) {
    if cfg!(debug_assertions) && !align.is_power_of_two() {
        no_alignment();
    }
}

/// A function of its own, so that its text is not repeated in each module that rounds.
#[cold]
#[inline(never)]
const fn no_alignment() -> ! {
    panic!("an alignment is a power of two");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_agrees_with_division() {
        for align in [1usize, 2, 16, 4096] {
            for value in 0..3 * align + 3 {
                assert_eq!(align_up(value, align), value.div_ceil(align) * align);
                assert_eq!(align_down(value, align), value / align * align);
                assert_eq!(checked_align_up(value, align), Some(align_up(value, align)));
            }
        }
    }

    #[test]
    fn rounding_up_past_the_end_is_seen() {
        assert_eq!(checked_align_up(usize::MAX, 2), None);
        assert_eq!(checked_align_up(usize::MAX - 4095, 4096), Some(usize::MAX - 4095));
    }
}
