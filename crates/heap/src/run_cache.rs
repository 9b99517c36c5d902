//! Runs that were freed lately, by their length.
//!
//! A program that frees a block of some length often asks for one of about the same length next.
//! That request then takes the cached run, and leaves the buddy allocators alone. Each region has
//! such a cache, and so does each thread that needs one (`own_runs.rs`).
//!
//! Invariants
//! 1. The frames of a run here are free in neither buddy allocator.
//! 2. `frames` is the sum of the lengths.
//! 3. A bit of `filled` is set exactly while its stack is not empty.

/// How many stacks there are, a bit of a word for each. The lengths are all those up to 16 frames,
/// then eight to a doubling. Stack 0 is unused, and those above [`LONGEST_CACHED_FRAMES`] stay
/// empty.
const STACKS: usize = u64::BITS as usize;

/// The lengths that a cached run may have, a bit each: the length that was asked for, and longer
/// ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Near(pub(crate) u64);

impl Near {
    /// The next two longer ones: at most a quarter longer than what was asked for.
    pub(crate) const USUAL: Self = Self(0b111);
    /// All those up to twice as long.
    pub(crate) const WIDE: Self = Self(0b1_1111_1111);
}

#[derive(Debug, Clone, Copy)]
struct Stack<const DEPTH: usize> {
    starts: [u32; DEPTH],
    len: u32,
}

/// The cache, of at most `DEPTH` runs of each length. All zeros when empty.
#[derive(Debug)]
pub(crate) struct RunCache<const DEPTH: usize> {
    stacks: [Stack<DEPTH>; STACKS],
    filled: u64,
    frames: usize,
}

/// Runs of at most this many frames are cached: 1 MiB.
pub(crate) const LONGEST_CACHED_FRAMES: usize = 256;

/// The length of the runs on each stack.
static STACK_FRAMES: [u16; STACKS] = {
    let mut frames = [0; STACKS];
    let mut stack = 1;
    while stack < STACKS {
        let step = if stack <= 16 { 1 } else { 2 << ((stack - 17) / 8) };
        frames[stack] = frames[stack - 1] + step;
        stack += 1;
    }
    frames
};

/// The stack of the shortest runs that have as many frames as the index says. A table, since a
/// branch on the length is often mispredicted.
static STACK_OF: [u8; LONGEST_CACHED_FRAMES + 1] = {
    let mut stacks = [0; LONGEST_CACHED_FRAMES + 1];
    let mut frames = 1;
    while frames <= LONGEST_CACHED_FRAMES {
        let last = stacks[frames - 1];
        let is_longer = frames > STACK_FRAMES[last as usize] as usize;
        stacks[frames] = last + is_longer as u8;
        frames += 1;
    }
    stacks
};

#[inline(always)]
fn stack_for(length: usize) -> Option<usize> {
    STACK_OF.get(length).map(|&stack| usize::from(stack))
}

/// How long a cached run that serves `length` frames is, if such runs are cached.
pub(crate) fn stepped(length: usize) -> Option<usize> {
    stack_for(length).map(|stack| usize::from(STACK_FRAMES[stack % STACKS]))
}

/// Whether a run of `frames` frames may serve a request for `length` frames, one of [`stepped`]'s:
/// [`RunCache::pop`] hands out longer runs as far as `near` allows.
pub(crate) fn serves(length: usize, frames: usize, near: Near) -> bool {
    let (Some(least), Some(stack)) = (stack_for(length), stack_for(frames)) else { return false };
    let longer = stack.checked_sub(least).filter(|&longer| longer < STACKS);
    usize::from(STACK_FRAMES[stack % STACKS]) == frames
        && longer.is_some_and(|longer| near.0 >> longer & 1 == 1)
}

impl<const DEPTH: usize> RunCache<DEPTH> {
    #[cfg(test)]
    pub(crate) const fn new() -> Self {
        Self { stacks: [Stack { starts: [0; DEPTH], len: 0 }; STACKS], filled: 0, frames: 0 }
    }

    /// How many frames the cached runs have.
    #[inline(always)]
    pub(crate) fn frames(&self) -> usize {
        self.frames
    }

    /// Keeps the run of `length` frames, at least one, at `start`, if there is a stack for that
    /// length with room on it.
    #[inline(always)]
    pub(crate) fn push(&mut self, start: usize, length: usize) -> bool {
        let Some(index) = stack_for(length).map(|index| index % STACKS) else { return false };
        if usize::from(STACK_FRAMES[index]) != length {
            return false;
        }
        let stack = &mut self.stacks[index];
        let (Some(place), Ok(start)) =
            (stack.starts.get_mut(stack.len as usize), u32::try_from(start))
        else {
            return false;
        };
        *place = start;
        stack.len += 1;
        self.filled |= 1 << index;
        self.frames += length;
        true
    }

    /// Takes out the shortest cached run of at least `length` frames, from 1 to [`LONGEST_CACHED_FRAMES`], if
    /// it is one of the lengths that `near` allows: its first frame and its length.
    #[inline(always)]
    pub(crate) fn pop(&mut self, length: usize, near: Near) -> Option<(usize, usize)> {
        let index = stack_for(length)?;
        let near = self.filled.wrapping_shr(index as u32) & near.0;
        if near == 0 { None } else { self.pop_from(index + near.trailing_zeros() as usize) }
    }

    /// Takes out a run of the next length from stack `from` on, wrapping around: its first frame
    /// and its length. Sets `from` to where to go on.
    pub(crate) fn pop_any(&mut self, from: &mut u32) -> Option<(usize, usize)> {
        if self.filled == 0 {
            return None;
        }
        let index = *from + self.filled.rotate_right(*from).trailing_zeros();
        *from = (index + 1) % u64::BITS;
        self.pop_from(index as usize)
    }

    #[inline(always)]
    fn pop_from(&mut self, index: usize) -> Option<(usize, usize)> {
        let index = index % STACKS;
        let stack = &mut self.stacks[index];
        let len = stack.len.checked_sub(1)?;
        let start = *stack.starts.get(len as usize)?;
        stack.len = len;
        if len == 0 {
            self.filled &= !(1 << index);
        }
        let length = usize::from(STACK_FRAMES[index]);
        self.frames -= length;
        Some((start as usize, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_length_has_the_least_stack_that_serves_it() {
        for length in 1..=LONGEST_CACHED_FRAMES {
            let stack = stack_for(length).expect("a stack");
            let frames = usize::from(STACK_FRAMES[stack]);
            assert!(frames >= length && usize::from(STACK_FRAMES[stack - 1]) < length, "{length}");
            assert_eq!(stepped(length), Some(frames));
            assert!(length <= 8 || (frames - length) * 8 < length, "{length} in {frames}");
        }
        assert_eq!(stepped(LONGEST_CACHED_FRAMES + 1), None);
    }

    #[test]
    fn keeps_lengths_and_counts_them() {
        let mut cache = RunCache::<4>::new();
        assert!([(100, 9), (200, 9), (300, 10)].iter().all(|&(s, n)| cache.push(s, n)));
        assert_eq!(cache.frames(), 28);
        let mut pop = |length| cache.pop(length, Near::USUAL);
        assert_eq!((pop(9), pop(9)), (Some((200, 9)), Some((100, 9))));
        assert_eq!((pop(7), pop(11)), (None, None), "too long, too short");
        assert_eq!(pop(8), Some((300, 10)), "two lengths longer will do");
        assert_eq!(cache.frames(), 0);
    }

    #[test]
    fn serves_requests_down_to_a_half() {
        let longest = |length: usize| {
            let serves = |&frames: &usize| {
                let mut cache = RunCache::<4>::new();
                cache.push(0, frames) && cache.pop(length, Near::WIDE).is_some()
            };
            (length..=LONGEST_CACHED_FRAMES).filter(serves).max()
        };
        let twice = |n| stepped(n).map(|stepped| (2 * stepped).min(LONGEST_CACHED_FRAMES));
        assert!((8..=LONGEST_CACHED_FRAMES).all(|n| longest(n) == twice(n)));
    }

    #[test]
    fn tells_what_it_may_hand_out() {
        for near in [Near::USUAL, Near::WIDE] {
            for length in (1..=LONGEST_CACHED_FRAMES).filter_map(stepped) {
                for frames in 1..=LONGEST_CACHED_FRAMES + 1 {
                    let mut cache = RunCache::<4>::new();
                    let handed_out = cache.push(0, frames) && cache.pop(length, near).is_some();
                    assert_eq!(serves(length, frames, near), handed_out, "{frames} for {length}");
                }
            }
        }
    }

    #[test]
    fn takes_out_round_about() {
        let mut cache = RunCache::<4>::new();
        let mut from = 0;
        assert_eq!(cache.pop_any(&mut from), None);
        assert!([(1, 9), (2, 9), (3, 40)].iter().all(|&(s, n)| cache.push(s, n)));
        let mut any = || cache.pop_any(&mut from).map(|(start, _)| start);
        assert_eq!([any(), any(), any(), any()], [Some(2), Some(3), Some(1), None]);
    }

    #[test]
    fn refuses_what_is_long_or_too_much() {
        let mut cache = RunCache::<4>::new();
        assert!(!cache.push(0, LONGEST_CACHED_FRAMES + 1));
        assert!(!cache.push(0, 17), "no length that the heap asks for");
        let kept = (0..9).filter(|&i| cache.push(i * 16, 16)).count();
        assert_eq!((kept, cache.frames()), (4, 64));
    }
}
