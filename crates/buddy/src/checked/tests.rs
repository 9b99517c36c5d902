extern crate std;
use std::vec::Vec;

use super::*;
use crate::Atomic;

fn words(count: usize) -> Vec<AtomicU64> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

#[cfg(not(loom))]
mod plain {
    use std::collections::BTreeMap;
    use std::vec;

    use super::*;
    use crate::shadow::Random;
    use crate::{BitmapTree, Bitset, TreeVec};

    /// What every call must answer: the allocations by their first frame, and which frames exist.
    struct Book {
        length_of: BTreeMap<usize, usize>,
        free: Vec<bool>,
    }

    impl Book {
        fn give(&mut self, start: usize, length: usize) -> Result<(), Error> {
            if start >= self.free.len() || self.free.len() - start < length {
                return Err(Error::OutOfRange);
            }
            if self.free[start..start + length].contains(&true) {
                return Err(Error::NotAllocated);
            }
            if self.length_of.get(&start) != Some(&length) {
                return Err(Error::WrongSize);
            }
            self.length_of.remove(&start);
            self.free[start..start + length].fill(true);
            Ok(())
        }

        fn take(&mut self, start: usize, length: usize) {
            assert!(!self.free[start..start + length].contains(&false), "handed out twice");
            self.free[start..start + length].fill(false);
            self.length_of.insert(start, length);
        }
    }

    /// Drives `allocator` beside a book of its allocations. Half of the frees have a different
    /// order or place, or name no allocation at all.
    fn live<A: FrameAllocator>(allocator: A, seed: u64) {
        let frames = allocator.frames();
        let metadata = words(Extents::metadata_words(frames));
        let extents = Extents::new(frames, &metadata).unwrap();
        let mut checked = Checked::new(allocator, &extents);
        let mut random = Random(seed);
        let mut book = Book { length_of: BTreeMap::new(), free: vec![false; frames] };
        // A hole at either end, and one in the middle whose length is that of no order.
        let (middle, last) = (frames / 2, frames - 3);
        for (start, end) in [(2, middle - 1), (middle + 2, last)] {
            checked.add_region(FrameId(start), end - start).unwrap();
            book.free[start..end].fill(true);
        }
        assert!(checked.add_region(FrameId(2), 5).is_err(), "it was added before");
        for step in 0..3_000 {
            let order = random.order(7);
            if random.below(2) == 0 {
                if let Ok(FrameId(frame)) = checked.alloc(order) {
                    book.take(frame, order.frames());
                }
            } else {
                let held: Vec<(usize, usize)> =
                    book.length_of.iter().map(|(&start, &length)| (start, length)).collect();
                let (start, order) = match held.get(random.below(held.len() + 1)) {
                    Some(&(start, length)) if random.below(2) == 0 => {
                        (start, Order::for_frames(length).unwrap())
                    }
                    Some(&(start, _)) => (start & !(order.frames() - 1), order),
                    None => (random.below(frames + 9) & !(order.frames() - 1), order),
                };
                let got = checked.free(FrameId(start), order);
                assert_eq!(got, book.give(start, order.frames()), "step {step}: {start} {order:?}");
            }
            assert_eq!(checked.validate(), Ok(()), "step {step}");
            let free = book.free.iter().filter(|&&free| free).count();
            assert_eq!(checked.free_frames(), free, "step {step}");
        }
    }

    #[test]
    fn only_what_was_allocated_can_be_freed() {
        for (seed, frames) in [(1, 70), (2, 200), (3, 1000), (4, 5000)] {
            let mut metadata = vec![0; Bitset::metadata_words(frames)];
            live(Bitset::new(frames, &mut metadata).unwrap(), seed);
            let metadata = words(Atomic::metadata_words(frames));
            live(Atomic::new(frames, &metadata).unwrap().local(), seed);
            let mut metadata = vec![0; BitmapTree::metadata_bytes(frames)];
            live(BitmapTree::new(frames, &mut metadata).unwrap(), seed);
            live(TreeVec::new(frames), seed);
        }
    }

    #[test]
    fn a_range_is_freed_as_it_was_taken() {
        let metadata = words(Extents::metadata_words(500));
        let extents = Extents::new(500, &metadata).unwrap();
        let mut words = vec![0; Bitset::metadata_words(500)];
        let mut checked = Checked::new(Bitset::new(500, &mut words).unwrap(), &extents);
        checked.add_region(FrameId(0), 500).unwrap();
        let range = checked.alloc_range(150, 1, usize::MAX).unwrap();
        let next = checked.alloc_range(3, 1, usize::MAX).unwrap();
        assert_eq!((range, next), (FrameId(0), FrameId(150)));
        for (start, length) in [(0, 149), (1, 149), (0, 153), (0, 1), (149, 1), (150, 2)] {
            assert_eq!(checked.free_range(FrameId(start), length), Err(Error::WrongSize));
        }
        assert_eq!(checked.free_range(FrameId(0), 154), Err(Error::NotAllocated));
        assert_eq!(checked.free_frames(), 347);
        assert_eq!(checked.free_range(range, 150), Ok(()));
        assert_eq!(checked.free_range(range, 150), Err(Error::NotAllocated));
        assert_eq!(checked.reserve(FrameId(10), 20), Ok(()));
        assert_eq!(checked.free(FrameId(10), Order::ZERO), Err(Error::WrongSize));
        assert_eq!(checked.free_range(FrameId(10), 20), Ok(()));
        assert_eq!(checked.free_range(next, 3), Ok(()));
        assert_eq!(checked.free_frames(), 500);
        checked.validate().unwrap();
    }

    #[test]
    fn validate_sees_what_was_given_back_past_the_map() {
        let metadata = words(1);
        let extents = Extents::new(8, &metadata).unwrap();
        let mut words = vec![0; Bitset::metadata_words(8)];
        let mut checked = Checked::new(Bitset::new(8, &mut words).unwrap(), &extents);
        checked.add_region(FrameId(0), 4).unwrap();
        // A free frame, before the frames with which it would form one hole.
        assert_eq!(checked.add_region(FrameId(3), 1), Err(Error::NotAllocated));
        assert_eq!(checked.validate(), Ok(()));
        let pair = Order::new(1).unwrap();
        let block = checked.alloc(pair).unwrap();
        checked.inner_mut().free(block, pair).unwrap();
        assert!(checked.validate().is_err());
    }

    #[test]
    fn the_hole_after_the_last_region_is_added_like_any_other() {
        for frames in [64, 100, 128] {
            let metadata = words(2);
            let extents = Extents::new(frames, &metadata).unwrap();
            let mut words = vec![0; Bitset::metadata_words(frames)];
            let mut checked = Checked::new(Bitset::new(frames, &mut words).unwrap(), &extents);
            checked.add_region(FrameId(0), 40).unwrap();
            let hole = FrameId(40);
            assert_eq!(checked.free_range(hole, frames - 41), Err(Error::WrongSize));
            assert_eq!(checked.free_range(hole, frames - 40), Ok(()), "{frames} frames");
            assert_eq!(checked.free_frames(), frames);
        }
    }

    #[test]
    fn two_singles_are_not_a_pair() {
        let metadata = words(1);
        let extents = Extents::new(4, &metadata).unwrap();
        let words = super::words(Atomic::metadata_words(4));
        let shared = Atomic::new(4, &words).unwrap();
        let (mut one, mut two) =
            (Checked::new(shared.local(), &extents), Checked::new(shared.local(), &extents));
        one.add_region(FrameId(0), 4).unwrap();
        let pair = Order::new(1).unwrap();
        let mut out = [FrameId(0); 2];
        assert_eq!(one.alloc_many(Order::ZERO, &mut out), 2);
        assert_eq!(two.free(FrameId(0), pair), Err(Error::WrongSize));
        assert_eq!(two.free_many(Order::ZERO, &out), Ok(()));
        drop(two);
        assert_eq!(one.alloc_many(pair, &mut out), 2);
        assert_eq!(one.free(FrameId(1), Order::ZERO), Err(Error::WrongSize));
        assert_eq!(one.free(FrameId(0), Order::new(2).unwrap()), Err(Error::WrongSize));
        assert_eq!(one.free_many(pair, &out), Ok(()));
    }
}

/// 64 frames that threads of a model share, none of them free, and the map of allocations.
#[cfg(loom)]
fn loom_frames() -> (loom::sync::Arc<Atomic<'static>>, &'static Extents<'static>) {
    let metadata: &'static [AtomicU64] = words(1).leak();
    let shared_words: &'static [AtomicU64] = words(Atomic::metadata_words(64)).leak();
    let extents = std::boxed::Box::new(Extents::new(64, metadata).unwrap());
    let shared = Atomic::over_zeroed(64, shared_words).unwrap();
    (loom::sync::Arc::new(shared), std::boxed::Box::leak(extents))
}

/// Neighbours in one word of the map are given back at the same time.
#[cfg(loom)]
#[test]
fn loom_models_neighbours_are_freed_at_once() {
    use loom::sync::Arc;

    loom::model(|| {
        let (shared, extents) = loom_frames();
        let pair = Order::new(1).unwrap();
        {
            let mut local = Checked::new(shared.local(), extents);
            local.add_region(FrameId(0), 64).unwrap();
            assert_eq!(local.alloc(pair), Ok(FrameId(0)));
            assert_eq!(local.alloc(pair), Ok(FrameId(2)));
        }
        let other = Arc::clone(&shared);
        let thread = loom::thread::spawn(move || {
            Checked::new(other.local(), extents).free(FrameId(0), pair)
        });
        assert_eq!(Checked::new(shared.local(), extents).free(FrameId(2), pair), Ok(()));
        assert_eq!(thread.join().unwrap(), Ok(()));
        assert_eq!(shared.free_frames(), 64);
        assert!((0..64).all(|frame| !extents.is_joined(frame)));
    });
}

/// A pair goes to the next owner at once. That owner's bits in the map stay as it wrote them.
#[cfg(loom)]
#[test]
fn loom_models_a_block_is_given_while_another_takes_it() {
    use loom::sync::Arc;

    loom::model(|| {
        let (shared, extents) = loom_frames();
        let pair = Order::new(1).unwrap();
        {
            let mut local = Checked::new(shared.local(), extents);
            local.add_region(FrameId(0), 2).unwrap();
            assert_eq!(local.alloc(pair), Ok(FrameId(0)));
        }
        let other = Arc::clone(&shared);
        let taker = loom::thread::spawn(move || {
            let mut local = Checked::new(other.local(), extents);
            local.alloc(pair).is_ok_and(|block| local.free(block, pair) != Ok(()))
        });
        assert_eq!(Checked::new(shared.local(), extents).free(FrameId(0), pair), Ok(()));
        assert!(!taker.join().unwrap(), "what was taken could not be given back");
        assert_eq!(shared.free_frames(), 2);
    });
}
