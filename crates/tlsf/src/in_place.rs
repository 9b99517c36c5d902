//! A heap whose control structure lies in the caller's memory, with as many rows as its pools need:
//! for 64 KiB it takes tens of bytes instead of kilobytes.

use core::mem::MaybeUninit;

use crate::heap::Tlsf;
use crate::table::{Row, storage_rows};
use crate::word::Word;

impl<W: Word, const SECOND: usize, const GRANULE: usize> Tlsf<[Row<W, SECOND, GRANULE>]> {
    /// How many bytes, aligned to 8, the control structure takes for pools of at most
    /// `pool_bytes` each.
    #[must_use]
    pub const fn control_bytes(pool_bytes: usize) -> usize {
        let rows = Self::storage_rows_for(pool_bytes) * size_of::<Row<W, SECOND, GRANULE>>();
        (size_of::<Tlsf<[Row<W, SECOND, GRANULE>; 0]>>() + rows).next_multiple_of(8)
    }

    /// Makes a heap without pools at the start of `memory`, for pools of at most `pool_bytes`
    /// each. Returns it with what is left of the memory, which may become its first pool.
    ///
    /// `None` if the memory is not aligned to 8 bytes or too small.
    pub fn new_in(
        memory: &mut [MaybeUninit<u8>],
        pool_bytes: usize,
    ) -> Option<(&mut Self, &mut [MaybeUninit<u8>])> {
        let rows = Self::storage_rows_for(pool_bytes);
        let (control, rest) = memory.split_at_mut_checked(Self::control_bytes(pool_bytes))?;
        if control.as_ptr().addr() % 8 != 0 {
            return None;
        }
        // All zeroes means an empty table and no memory; the fields that must not be zero are set
        // below.
        control.fill(MaybeUninit::zeroed());
        let heap = core::ptr::slice_from_raw_parts_mut(control.as_mut_ptr(), rows) as *mut Self;
        // SAFETY: by `control_bytes` and `repr(C)`, the memory is aligned and has room for the
        // structure with so many rows.
        let last_failure = unsafe { &raw mut (*heap).last_failure };
        // SAFETY: as above; writing drops nothing.
        unsafe { last_failure.write(None) };
        // SAFETY: every field is initialised: integers by zeroes, `last_failure` just now.
        Some((unsafe { &mut *heap }, rest))
    }

    /// How many rows of storage a table needs to file the blocks of a pool of `pool_bytes`.
    const fn storage_rows_for(pool_bytes: usize) -> usize {
        // The most granules the pool can have, wherever it starts: its head may end right at a
        // multiple of the granule.
        let granules = pool_bytes.saturating_sub(4 * W::BYTES) / GRANULE;
        let log2 = SECOND.trailing_zeros();
        let rows = if granules < SECOND { 1 } else { (granules.ilog2() - log2 + 2) as usize };
        storage_rows::<W, SECOND>(rows)
    }
}

const _: () = {
    // `new_in` checks for this alignment, so a heap must need no larger one.
    assert!(align_of::<Tlsf<[Row<usize, 2>; 1]>>() <= 8);
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PoolError;
    use core::ptr::NonNull;

    #[repr(align(8))]
    struct Memory([MaybeUninit<u8>; 72 << 10]);

    #[test]
    fn a_small_heap_has_a_small_table_and_uses_all_the_rest() {
        let mut memory = Memory([MaybeUninit::uninit(); 72 << 10]);
        for pool_bytes in [64usize, 1000, 4096, 65_520, 65_536, 65_552, 70_000] {
            let control = Tlsf::<[Row<u16, 4>]>::control_bytes(pool_bytes);
            let memory = &mut memory.0[..control + pool_bytes];
            let (heap, rest) = Tlsf::<[Row<u16, 4>]>::new_in(memory, pool_bytes).expect("fits");
            assert_eq!((rest.len(), heap.last_failure()), (pool_bytes, None));
            let start = NonNull::from(rest).cast();
            // SAFETY: the memory outlives the heap.
            unsafe { heap.add_pool(start, pool_bytes) }.expect("the size it was made for");
            let largest = heap.stats().largest_allocatable_bytes;
            assert!(largest + 48 >= pool_bytes, "{largest} of {pool_bytes}");
            assert!(heap.malloc(largest).is_some());
            assert_eq!(heap.validate(), Ok(()));
        }
        assert_eq!(Tlsf::<[Row<u16, 2>]>::control_bytes(64 << 10), 96);
        assert!(Tlsf::<[Row<u16, 4>]>::control_bytes(64 << 10) <= 144);
        for offset in 1..8 {
            assert!(Tlsf::<[Row<u16, 4>]>::new_in(&mut memory.0[offset..], 64).is_none());
        }
        assert!(Tlsf::<[Row<u16, 4>]>::new_in(&mut memory.0[..100], 65536).is_none());
    }

    /// A pool has a granule more than others of its size if its head ends at a multiple of the
    /// granule.
    #[test]
    fn a_pool_of_the_size_that_the_table_was_made_for_fits_wherever_it_starts() {
        fn check<W: Word, const SECOND: usize, const GRANULE: usize>() {
            let mut memory = Memory([MaybeUninit::uninit(); 72 << 10]);
            let (table, pool) = memory.0.split_at_mut(8 << 10);
            let start = NonNull::from(pool).cast::<u8>();
            for pool_bytes in
                (0..9).flat_map(|log2| (0..2 * GRANULE).map(move |b| (GRANULE << log2) + b))
            {
                for offset in 0..GRANULE {
                    let (heap, _) = Tlsf::<[Row<W, SECOND, GRANULE>]>::new_in(table, pool_bytes)
                        .expect("8 KiB have room for the table");
                    // SAFETY: the memory is longer than the offset and the pool together.
                    let start = unsafe { start.add(offset) };
                    // SAFETY: the memory outlives the heap.
                    let added = unsafe { heap.add_pool(start, pool_bytes) };
                    let is_tiny =
                        matches!(added, Err(PoolError::TooSmall)) && pool_bytes < 3 * GRANULE;
                    assert!(added.is_ok() || is_tiny, "{pool_bytes} bytes at {offset}: {added:?}");
                }
            }
        }
        check::<u16, 2, 16>();
        check::<u16, 4, 64>();
        check::<u32, 2, 32>();
        check::<u32, 16, 64>();
        check::<usize, 32, 64>();
    }
}
