//! How each kind of candidate serves a run of frames.

use hectare_buddy::{Bitset, FrameId, Order, RangeAllocator};

use super::super::subjects::Subject;

/// What a candidate does with a request.
pub(super) trait Keeper {
    fn take(&mut self, frames: usize, is_slab: bool) -> Option<usize>;
    fn give(&mut self, start: usize, frames: usize);
}

/// The lowest range that fits.
pub(super) struct Ranges<A>(pub(super) A);

impl<A: RangeAllocator> Keeper for Ranges<A> {
    fn take(&mut self, frames: usize, is_slab: bool) -> Option<usize> {
        let found = match Order::for_frames(frames) {
            Some(order) if is_slab => self.0.alloc(order),
            _ => self.0.alloc_range(frames, 1, usize::MAX),
        };
        found.ok().map(|frame| frame.0)
    }

    fn give(&mut self, start: usize, frames: usize) {
        self.0.free_range(FrameId(start), frames).expect("it was taken");
    }
}

/// The shortest of the first free runs that are long enough.
pub(super) struct BestRun<'m>(pub(super) Ranges<Bitset<'m>>);

impl Keeper for BestRun<'_> {
    fn take(&mut self, frames: usize, is_slab: bool) -> Option<usize> {
        const RUNS_TRIED: usize = 64;
        let Ranges(bitset) = &mut self.0;
        let mut best: Option<(FrameId, usize)> = None;
        let mut from = FrameId(0);
        for _ in 0..if is_slab { 0 } else { RUNS_TRIED } {
            let Some((start, length)) = bitset.next_free_run(from) else { break };
            if length >= frames && best.is_none_or(|(_, least)| length < least) {
                best = Some((start, length));
            }
            from = FrameId(start.0 + length);
        }
        match best {
            Some((start, _)) => {
                bitset.reserve(start, frames).expect("the run is free");
                Some(start.0)
            }
            None => self.0.take(frames, is_slab),
        }
    }

    fn give(&mut self, start: usize, frames: usize) {
        self.0.give(start, frames);
    }
}

/// Blocks of the next power of two.
pub(super) struct Blocks<S> {
    pub(super) subject: S,
    /// Whether the excess over what was asked for can be given back.
    pub(super) trims: bool,
}

impl<S: Subject> Blocks<S> {
    fn give_part(&mut self, mut start: usize, end: usize) {
        while start < end {
            let largest = start.trailing_zeros().min((end - start).ilog2());
            let order = Order::new(largest.min(18) as u8).expect("18 at most");
            self.subject.free(start, order);
            start += order.frames();
        }
    }
}

impl<S: Subject> Keeper for Blocks<S> {
    fn take(&mut self, frames: usize, _is_slab: bool) -> Option<usize> {
        let order = Order::for_frames(frames)?;
        let start = self.subject.alloc(order)?;
        if self.trims {
            self.give_part(start + frames, start + order.frames());
        }
        Some(start)
    }

    fn give(&mut self, start: usize, frames: usize) {
        if self.trims {
            return self.give_part(start, start + frames);
        }
        self.subject.free(start, Order::for_frames(frames).expect("it was taken"));
    }
}
