//! The free cells of a zs pool: a lock-free stack.
//!
//! ```text
//!   head: │ tag, 32 bits │ cell + 1, 32 bits │ ──▶ cell ──▶ cell ──▶ 0
//! ```
//! Invariants
//! 1. A cell on the stack is put aside (see [`pin`](crate::pin)). Its link is the next cell plus 1,
//!    and a bit that no place has.
//! 2. Every change of the head changes its tag. So a thread that read the link of a cell which
//!    others took and put back in the meantime fails to swing the head. (Treiber, 1986; the tag as
//!    in IBM System/370's.)
//!
//! Orderings: pushing is `Release`, popping `Acquire`, so a thread that pops a cell sees its link.
//! From then on the pin orders accesses to the cell's content.

use hectare_base::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire};

use crate::pin::PinCell64;

const INDEX_BITS: u32 = 32;
/// A bit of every link. No place has it: places have 48 bits.
const FREE: u64 = 1 << 48;

#[derive(Debug)]
pub(super) struct FreeCells {
    head: AtomicU64,
}

impl FreeCells {
    pub(super) fn new() -> Self {
        Self { head: AtomicU64::new(0) }
    }

    /// Takes the cell put last, if any; `pin_of` finds a cell by its number.
    #[inline]
    pub(super) fn pop<'a>(&self, pin_of: impl Fn(u32) -> &'a PinCell64) -> Option<u32> {
        let mut head = self.head.load(Acquire);
        loop {
            let cell = (head as u32).checked_sub(1)?;
            // Another thread may have taken the cell and given it to an object. Then the link is
            // garbage, but the head has changed.
            let link = pin_of(cell).peek();
            let next = next_tag(head) | u64::from(link as u32);
            match self.head.compare_exchange_weak(head, next, AcqRel, Acquire) {
                Ok(_) => return Some(cell),
                Err(now) => head = now,
            }
        }
    }

    /// Pushes a cell that the caller has pinned or taken; `pin` is that cell.
    #[inline]
    pub(super) fn push(&self, cell: u32, pin: &PinCell64) {
        let mut head = self.head.load(Acquire);
        loop {
            pin.put_aside(FREE | head & u64::from(u32::MAX));
            let next = next_tag(head) | u64::from(cell + 1);
            match self.head.compare_exchange_weak(head, next, AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

/// Whether `word`, which [`PinCell64::peek`] returned, is a link: the cell names no object.
#[inline]
pub(super) const fn is_free(word: u64) -> bool {
    word & FREE != 0
}

/// The head's next tag, over an empty index.
#[inline]
const fn next_tag(head: u64) -> u64 {
    ((head >> INDEX_BITS) + 1) << INDEX_BITS
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::vec::Vec;

    use hectare_base::sync::SpinPark;
    use loom::sync::Arc;

    use super::*;

    struct World {
        free: FreeCells,
        cells: [PinCell64; 3],
    }

    impl World {
        /// The cells `0..count` on the stack, the last on top.
        fn new(count: u32) -> Arc<Self> {
            let cells = core::array::from_fn(|_| PinCell64::default());
            let world = Self { free: FreeCells::new(), cells };
            (0..count).for_each(|cell| world.push(cell));
            Arc::new(world)
        }

        fn pop(&self) -> Option<u32> {
            self.free.pop(|cell| &self.cells[cell as usize])
        }

        fn push(&self, cell: u32) {
            self.free.push(cell, &self.cells[cell as usize]);
        }

        /// Takes a cell and uses it for an object for a while: its word is then a place, not a
        /// link.
        fn alloc(&self) -> Option<u32> {
            let cell = self.pop()?;
            self.cells[cell as usize].move_to(0xFFFF_0000_0000 | 99);
            Some(cell)
        }

        fn free(&self, cell: u32) {
            self.cells[cell as usize].pin::<SpinPark>(is_free).expect("a cell in use");
            self.push(cell);
        }

        fn drain(&self) -> impl Iterator<Item = u32> {
            core::iter::from_fn(|| self.pop())
        }
    }

    /// Every cell must be somewhere, and none twice.
    fn assert_all_once(cells: impl Iterator<Item = u32>, count: u32) {
        let mut cells: Vec<_> = cells.collect();
        cells.sort_unstable();
        assert_eq!(cells, (0..count).collect::<Vec<_>>());
    }

    #[test]
    fn a_cell_is_popped_once() {
        loom::model(|| {
            let world = World::new(2);
            let other = Arc::clone(&world);
            let thread = loom::thread::spawn(move || other.alloc());
            let mine = world.alloc();
            let others = thread.join().expect("the other thread panicked");
            assert_all_once(mine.into_iter().chain(others), 2);
        });
    }

    /// The case that the tag is for: the head is the same cell as before, but the cell below it is
    /// not.
    #[test]
    fn a_cell_that_comes_back_is_told_from_one_that_stayed() {
        loom::model(|| {
            let world = World::new(3);
            let other = Arc::clone(&world);
            let thread = loom::thread::spawn(move || {
                let (first, second) = (other.alloc(), other.alloc());
                if let Some(first) = first {
                    other.free(first);
                }
                second
            });
            let mine = world.alloc();
            let others = thread.join().expect("the other thread panicked");
            assert_all_once(world.drain().chain(mine).chain(others), 3);
        });
    }

    #[test]
    fn pushes_and_pops_lose_nothing() {
        loom::model(|| {
            let world = World::new(1);
            let threads = [1, 2].map(|cell| {
                let world = Arc::clone(&world);
                loom::thread::spawn(move || {
                    world.push(cell);
                    world.alloc()
                })
            });
            let kept = threads.map(|thread| thread.join().expect("a thread panicked"));
            assert_all_once(world.drain().chain(kept.into_iter().flatten()), 3);
        });
    }
}
