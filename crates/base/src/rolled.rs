//! Keeps loops over arrays as loops.

/// The same items, but the compiler does not know how many there are. Over an array it would unroll
/// a loop of a few turns, and repeat in each turn all that is done with an item. For code that runs
/// seldom and should be short.
#[inline(always)]
#[must_use]
pub fn rolled<T>(items: &[T]) -> &[T] {
    core::hint::black_box(items)
}

#[cfg(test)]
mod tests {
    use super::rolled;

    #[test]
    fn the_items_are_the_same() {
        let items = [3, 1, 2];
        assert!(core::ptr::eq(rolled(&items), &raw const items as *const [i32]));
        assert_eq!(rolled(&items), [3, 1, 2]);
    }
}
