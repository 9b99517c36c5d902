//! The shadow: a map of frames that says what every allocator driven beside it must answer.

extern crate std;
use std::vec;
use std::vec::Vec;

use crate::{Error, FrameAllocator, FrameId, Order, RangeAllocator, Stats};

/// A small generator with a fixed seed (Steele and others, "SplitMix", 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// An order up to `largest`, small ones more often.
    pub(crate) fn order(&mut self, largest: u8) -> Order {
        let bound = usize::from(largest) + 1;
        let order = self.below(bound).min(self.below(bound));
        u8::try_from(order).ok().and_then(Order::new).unwrap()
    }
}

/// Which frames are free, one by one.
pub(crate) struct Shadow {
    pub(crate) free: Vec<bool>,
}

impl Shadow {
    pub(crate) fn new(frames: usize) -> Self {
        Self { free: vec![false; frames] }
    }

    /// What `free_range` must answer. If it must succeed, this also carries it out.
    pub(crate) fn give(&mut self, start: usize, frames: usize) -> Result<(), Error> {
        if start >= self.free.len() || self.free.len() - start < frames {
            Err(Error::OutOfRange)
        } else if self.free[start..start + frames].contains(&true) {
            Err(Error::NotAllocated)
        } else {
            self.free[start..start + frames].fill(true);
            Ok(())
        }
    }

    /// What `free` must answer.
    pub(crate) fn free(&mut self, frame: usize, order: Order) -> Result<(), Error> {
        if frame >= self.free.len() || self.free.len() - frame < order.frames() {
            Err(Error::OutOfRange)
        } else if !FrameId(frame).is_aligned(order) {
            Err(Error::Misaligned)
        } else {
            self.give(frame, order.frames())
        }
    }

    pub(crate) fn is_free(&self, start: usize, frames: usize) -> bool {
        start + frames <= self.free.len() && !self.free[start..start + frames].contains(&false)
    }

    /// Notes an allocation, which must be of free frames.
    pub(crate) fn take(&mut self, start: usize, frames: usize) {
        assert!(self.is_free(start, frames), "frames {start}+{frames} were handed out twice");
        self.free[start..start + frames].fill(false);
    }

    /// The lowest free block of `order`.
    pub(crate) fn lowest(&self, order: Order) -> Option<usize> {
        let length = order.frames();
        (0..self.free.len() / length).map(|at| at * length).find(|&at| self.is_free(at, length))
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats::count(self.free.len(), |frame| self.free[frame])
    }
}

/// Drives `allocator` for `steps` random operations from the seed, beside a shadow. The weights of
/// the operations are random, too, so that some lives are nearly full and others nearly empty.
pub(crate) fn live(allocator: &mut impl FrameAllocator, seed: u64, steps: usize) {
    let frames = allocator.frames();
    let mut random = Random(seed);
    let mut shadow = Shadow::new(frames);
    let mut held: Vec<(usize, Order)> = Vec::new();
    let weights: [usize; 4] = core::array::from_fn(|_| 1 + random.below(10));
    let largest = u8::try_from(frames.ilog2() + 1).unwrap().min(18);
    assert!([frames, usize::MAX].iter().all(|&past| !allocator.is_free(FrameId(past))));
    // Holes: some stretches are never added.
    let mut at = random.below(3);
    while at < frames {
        let length = (1 + random.below(frames)).min(frames - at);
        assert_eq!(allocator.add_region(FrameId(at), length), shadow.give(at, length));
        at += length + random.below(3) * random.below(70);
    }
    for step in 0..steps {
        let mut pick = random.below(weights.iter().sum());
        let action = weights.iter().position(|&weight| {
            let here = pick < weight;
            pick = pick.wrapping_sub(weight);
            here
        });
        match action.unwrap() {
            0 => {
                let order = random.order(largest);
                match allocator.alloc(order) {
                    Ok(FrameId(frame)) => {
                        assert_eq!(frame % order.frames(), 0);
                        shadow.take(frame, order.frames());
                        held.push((frame, order));
                    }
                    Err(error) => {
                        assert_eq!(error, Error::Exhausted);
                        assert_eq!(shadow.lowest(order), None, "step {step}: {order:?} is there");
                    }
                }
            }
            1 if !held.is_empty() => {
                let (frame, order) = held.swap_remove(random.below(held.len()));
                assert_eq!(allocator.free(FrameId(frame), order), shadow.free(frame, order));
            }
            2 if !held.is_empty() => {
                // Free a part of an allocation.
                let (frame, order) = held.swap_remove(random.below(held.len()));
                let part = random.order(order.get());
                let at = frame + random.below(order.frames() / part.frames()) * part.frames();
                assert_eq!(allocator.free(FrameId(at), part), shadow.free(at, part));
            }
            _ => {
                // Free anything: mostly wrong.
                let order = random.order(largest);
                let frame = random.below(frames + 2);
                let frame =
                    if random.below(4) == 0 { frame } else { frame & !(order.frames() - 1) };
                assert_eq!(
                    allocator.free(FrameId(frame), order),
                    shadow.free(frame, order),
                    "step {step}: free({frame}, {order:?})"
                );
            }
        }
        if let Err(invalid) = allocator.validate() {
            panic!("step {step}: {invalid}");
        }
        assert_eq!(allocator.free_frames(), shadow.free.iter().filter(|&&free| free).count());
        if step % 64 == 0 {
            assert_eq!(allocator.stats(), shadow.stats(), "step {step}");
        }
    }
    // Free everything: the largest block must be there again.
    let mut at = 0;
    while at < frames {
        if !shadow.free[at] {
            assert_eq!(allocator.free(FrameId(at), Order::ZERO), shadow.free(at, Order::ZERO));
        }
        at += 1;
    }
    let largest = shadow.stats().free_blocks.iter().rposition(|&blocks| blocks > 0).unwrap();
    let largest = Order::new(u8::try_from(largest).unwrap()).unwrap();
    assert!(allocator.alloc(largest).is_ok(), "all is free, but {largest:?} cannot be had");
}

/// A random call on a range of at most `most` frames.
pub(crate) fn range_step(
    allocator: &mut impl RangeAllocator,
    shadow: &mut Shadow,
    random: &mut Random,
    most: usize,
) {
    let frames = shadow.free.len();
    let (start, length) = (random.below(frames + 2), 1 + random.below(most));
    match random.below(4) {
        0 => {
            let expected = shadow.give(start, length);
            assert_eq!(allocator.free_range(FrameId(start), length), expected);
        }
        1 => {
            let expected = if start + length > frames {
                Err(Error::OutOfRange)
            } else if shadow.is_free(start, length) {
                shadow.take(start, length);
                Ok(())
            } else {
                Err(Error::Exhausted)
            };
            assert_eq!(allocator.reserve(FrameId(start), length), expected);
        }
        _ => {
            let align = 1 << random.below(8);
            let limit = if random.below(2) == 0 { usize::MAX } else { start };
            let fits = |at: usize| at + length <= limit && shadow.is_free(at, length);
            let lowest = (0..frames).step_by(align).find(|&at| fits(at));
            let got = allocator.alloc_range(length, align, limit);
            assert_eq!(got.map(|frame| frame.0), lowest.ok_or(Error::Exhausted));
            if let Some(at) = lowest {
                shadow.take(at, length);
            }
        }
    }
}

/// [`live`] over several sizes and seeds; `with` makes an allocator and passes it on.
pub(crate) fn many_lives(steps: usize, with: impl Fn(usize, &dyn Fn(&mut dyn FrameAllocator))) {
    for (seed, frames) in [1, 2, 63, 64, 65, 100, 1000, 1024, 4161].into_iter().enumerate() {
        for seed in [seed as u64, 1000 + seed as u64] {
            with(frames, &|mut allocator| live(&mut allocator, seed, steps));
        }
    }
}

impl FrameAllocator for &mut dyn FrameAllocator {
    fn alloc(&mut self, order: Order) -> Result<FrameId, Error> {
        (**self).alloc(order)
    }

    fn free(&mut self, frame: FrameId, order: Order) -> Result<(), Error> {
        (**self).free(frame, order)
    }

    fn add_region(&mut self, start: FrameId, frames: usize) -> Result<(), Error> {
        (**self).add_region(start, frames)
    }

    fn frames(&self) -> usize {
        (**self).frames()
    }

    fn free_frames(&self) -> usize {
        (**self).free_frames()
    }

    fn is_free(&self, frame: FrameId) -> bool {
        (**self).is_free(frame)
    }

    fn stats(&self) -> Stats {
        (**self).stats()
    }

    fn validate(&self) -> Result<(), crate::Invalid> {
        (**self).validate()
    }
}

mod tests {
    use super::*;
    use crate::MAX_ORDER;
    use crate::{Atomic, BitmapTree, Bitset, Extents, ListLinked, ListVec, TreeLinked, TreeVec};
    use hectare_base::sync::atomic::AtomicU64;

    #[test]
    fn bitset() {
        many_lives(1500, |frames, live| {
            let mut metadata = vec![!0; Bitset::metadata_words(frames)];
            live(&mut Bitset::new(frames, &mut metadata).unwrap());
        });
    }

    #[test]
    fn bitmap_tree() {
        many_lives(1500, |frames, live| {
            let mut metadata = vec![1; BitmapTree::metadata_bytes(frames)];
            live(&mut BitmapTree::new(frames, &mut metadata).unwrap());
        });
    }

    #[test]
    fn more_frames_than_memory_describes_are_refused() {
        for frames in [usize::MAX, 1 << (usize::BITS - 1), 1 << (usize::BITS - 2)] {
            assert_eq!(BitmapTree::new(frames, &mut []).unwrap_err(), Error::MetadataTooSmall);
            assert_eq!(Bitset::new(frames, &mut []).unwrap_err(), Error::TooManyFrames);
            assert_eq!(Atomic::new(frames, &[]).unwrap_err(), Error::MetadataTooSmall);
            assert_eq!(Extents::new(frames, &[]).unwrap_err(), Error::MetadataTooSmall);
        }
    }

    #[test]
    fn a_range_of_no_frames_or_at_no_power_of_two_is_refused() {
        fn refuses(allocator: &mut impl RangeAllocator) {
            allocator.add_region(FrameId(0), 64).unwrap();
            for (frames, align) in [(0, 1), (1, 0), (1, 3)] {
                let got = allocator.alloc_range(frames, align, usize::MAX);
                assert_eq!(got, Err(Error::InvalidRequest), "{frames} at {align}");
            }
            assert_eq!(allocator.reserve(FrameId(0), 0), Err(Error::InvalidRequest));
            assert_eq!(allocator.free_range(FrameId(0), 0), Err(Error::InvalidRequest));
            assert_eq!(allocator.free_frames(), 64);
        }
        let mut metadata = vec![0; Bitset::metadata_words(64)];
        refuses(&mut Bitset::new(64, &mut metadata).unwrap());
        let words: Vec<_> = (0..Atomic::metadata_words(64)).map(|_| AtomicU64::new(!0)).collect();
        let shared = Atomic::new(64, &words).unwrap();
        assert_eq!(shared.free_frames(), 0, "the metadata was not cleared");
        refuses(&mut shared.local());
    }

    /// Calls `check` with an allocator of every row, none of whose frames is free.
    fn every_row(frames: usize, check: impl Fn(&mut dyn FrameAllocator, &str)) {
        let mut words = vec![0; Bitset::metadata_words(frames)];
        check(&mut Bitset::new(frames, &mut words).unwrap(), "bitset");
        let words: Vec<_> =
            (0..Atomic::metadata_words(frames)).map(|_| AtomicU64::new(0)).collect();
        check(&mut Atomic::new(frames, &words).unwrap().local(), "atomic");
        let mut nodes = vec![0; BitmapTree::metadata_bytes(frames)];
        check(&mut BitmapTree::new(frames, &mut nodes).unwrap(), "bitmap-tree");
        check(&mut ListVec::new(frames), "list-vec");
        check(&mut ListLinked::new(frames), "list-linked");
        check(&mut TreeVec::new(frames), "tree-vec");
        check(&mut TreeLinked::new(frames), "tree-linked");
    }

    #[test]
    fn a_region_that_is_refused_is_not_added_in_part() {
        every_row(100, |row, name| {
            row.add_region(FrameId(50), 10).unwrap();
            for (start, frames, error) in [
                (0, 51, Error::NotAllocated),
                (40, 60, Error::NotAllocated),
                (60, 41, Error::OutOfRange),
                (100, 1, Error::OutOfRange),
                (usize::MAX, 2, Error::OutOfRange),
                (1, usize::MAX, Error::OutOfRange),
                (0, 0, Error::InvalidRequest),
            ] {
                let got = row.add_region(FrameId(start), frames);
                assert_eq!(got, Err(error), "{name}: {frames} from {start}");
                assert_eq!((row.free_frames(), row.validate()), (10, Ok(())), "{name}");
            }
        });
    }

    #[test]
    fn a_block_past_the_last_frame_is_refused_wherever_it_begins() {
        every_row(100, |row, name| {
            for order in Order::all() {
                for frame in [100, 128, usize::MAX, usize::MAX & !(order.frames() - 1)] {
                    let got = row.free(FrameId(frame), order);
                    assert_eq!(got, Err(Error::OutOfRange), "{name}: {order:?} at {frame}");
                }
            }
            assert_eq!((row.free_frames(), row.validate()), (0, Ok(())), "{name}");
        });
    }

    #[test]
    fn the_largest_blocks_are_split_and_whole_again() {
        let frames = 2 << MAX_ORDER;
        let [largest, half] = [MAX_ORDER, MAX_ORDER - 1].map(|order| Order::new(order).unwrap());
        every_row(frames, |row, name| {
            for block in [0, largest.frames()] {
                row.free(FrameId(block), largest).unwrap();
            }
            for order in [Order::ZERO, half, largest] {
                let block = row.alloc(order).unwrap();
                row.free(block, order).unwrap();
                row.validate().unwrap();
            }
            let mut blocks = [(); 2].map(|()| row.alloc(largest).unwrap().0);
            blocks.sort_unstable();
            assert_eq!(blocks, [0, largest.frames()], "{name}");
            assert_eq!(row.alloc(Order::ZERO), Err(Error::Exhausted), "{name}");
        });
    }

    #[test]
    fn list_vec() {
        many_lives(200, |frames, live| live(&mut ListVec::new(frames)));
    }

    #[test]
    fn list_linked() {
        many_lives(100, |frames, live| live(&mut ListLinked::new(frames)));
    }

    #[test]
    fn tree_vec() {
        many_lives(1500, |frames, live| live(&mut TreeVec::new(frames)));
    }

    #[test]
    fn tree_linked() {
        many_lives(1500, |frames, live| live(&mut TreeLinked::new(frames)));
    }
}
