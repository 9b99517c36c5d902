//! Runs that were freed lately, by their exact length.
//!
//! A program that frees a block of some length often asks for one of about the same length next;
//! that one is then a pop, and the buddy allocators are left alone. What is here counts as dirty.
//!
//! Invariants
//! 1. The frames of a run here are free in neither buddy allocator.
//! 2. `frames` is the sum of the lengths, at most [`MAX_FRAMES`].
//! 3. A bit of `filled` is set exactly while its stack is not empty.

/// How many frames are kept in all: 4 MiB.
const MAX_FRAMES: usize = 1024;

/// How many lengths there are: each up to 16 frames, then eight to a doubling.
const LENGTHS: usize = 49;

/// How many runs of one length are kept.
const DEPTH: usize = 31;

#[derive(Debug, Clone, Copy)]
struct Stack {
    starts: [u32; DEPTH],
    len: u32,
}

/// The cache. All zeros when empty.
#[derive(Debug)]
pub(crate) struct RunCache {
    stacks: [Stack; LENGTHS],
    filled: u64,
    frames: usize,
}

const _: () = assert!(LENGTHS <= 64, "one word of bits has to do");

/// Which stack runs of `length` frames are on, if they are kept: those of the lengths that the
/// heap asks for.
fn stack_of(length: usize) -> Option<usize> {
    if length == 0 || length > RunCache::MAX_LENGTH {
        return None;
    }
    if length <= 16 {
        return Some(length);
    }
    let bits = (length - 1).ilog2();
    let step = 1 << (bits - 3);
    let behind = length - (1 << bits);
    behind.is_multiple_of(step).then(|| 8 + (bits as usize - 3) * 8 + behind / step)
}

/// The inverse of [`stack_of`].
fn length_of(stack: usize) -> usize {
    if stack <= 16 {
        return stack;
    }
    let (doubling, step) = ((stack - 17) / 8, (stack - 17) % 8 + 1);
    (8 + step) << (doubling + 1)
}

impl RunCache {
    /// Runs of at most so many frames are kept: 1 MiB.
    pub(crate) const MAX_LENGTH: usize = 256;

    pub(crate) const fn new() -> Self {
        Self { stacks: [Stack { starts: [0; DEPTH], len: 0 }; LENGTHS], filled: 0, frames: 0 }
    }

    /// How many frames it holds.
    pub(crate) fn frames(&self) -> usize {
        self.frames
    }

    /// Whether a run of `length` frames more would not be too much.
    pub(crate) fn has_room(&self, length: usize) -> bool {
        self.frames + length <= MAX_FRAMES
    }

    /// Keeps the run of `length` frames at `start`, if it is short and there is room.
    pub(crate) fn push(&mut self, start: usize, length: usize) -> bool {
        let (Some(index), Ok(start)) = (stack_of(length), u32::try_from(start)) else {
            return false;
        };
        let stack = &mut self.stacks[index % LENGTHS];
        let Some(place) = stack.starts.get_mut(stack.len as usize) else { return false };
        if self.frames + length > MAX_FRAMES {
            return false;
        }
        *place = start;
        stack.len += 1;
        self.filled |= 1 << index;
        self.frames += length;
        true
    }

    /// A run of at least `length` frames, the shortest that is kept, if it is at most a quarter
    /// longer: its start and its length.
    pub(crate) fn pop(&mut self, length: usize) -> Option<(usize, usize)> {
        self.pop_from(stack_of(length)?, length + length / 4)
    }

    /// Takes some run out: its start and its length.
    pub(crate) fn pop_any(&mut self) -> Option<(usize, usize)> {
        self.pop_from(0, usize::MAX)
    }

    /// A run from the first stack that is not empty, from `stack` on, unless it is too long.
    fn pop_from(&mut self, stack: usize, longest: usize) -> Option<(usize, usize)> {
        let candidates = self.filled & (u64::MAX << stack);
        let index = candidates.trailing_zeros() as usize;
        let length = length_of(index);
        if candidates == 0 || length > longest {
            return None;
        }
        let stack = &mut self.stacks[index % LENGTHS];
        stack.len = stack.len.checked_sub(1)?;
        if stack.len == 0 {
            self.filled &= !(1 << index);
        }
        self.frames -= length;
        stack.starts.get(stack.len as usize).map(|&start| (start as usize, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_length_that_the_heap_asks_for_has_its_stack() {
        let lengths = || (1..=RunCache::MAX_LENGTH).filter(|&n| stack_of(n).is_some());
        assert_eq!(lengths().count(), LENGTHS - 1);
        for (index, length) in lengths().enumerate() {
            assert_eq!(stack_of(length), Some(index + 1), "{length}");
            assert_eq!(length_of(index + 1), length);
            let step = (length.next_power_of_two() / 16).max(1);
            assert!(length.is_multiple_of(step), "{length}");
        }
        assert_eq!(
            (stack_of(0), stack_of(RunCache::MAX_LENGTH + 1), stack_of(17)),
            (None, None, None)
        );
    }

    #[test]
    fn keeps_lengths_and_counts_them() {
        let mut cache = RunCache::new();
        assert!([(100, 9), (200, 9), (300, 10)].iter().all(|&(s, n)| cache.push(s, n)));
        assert_eq!(cache.frames(), 28);
        assert_eq!((cache.pop(9), cache.pop(9)), (Some((200, 9)), Some((100, 9))));
        assert_eq!((cache.pop(7), cache.pop(11)), (None, None), "too long, too short");
        assert_eq!(cache.pop(8), Some((300, 10)), "a quarter longer will do");
        assert!(cache.push(400, 40));
        assert_eq!(cache.pop_any(), Some((400, 40)));
        assert_eq!((cache.frames(), cache.pop_any()), (0, None));
    }

    #[test]
    fn refuses_what_is_long_or_too_much() {
        let mut cache = RunCache::new();
        assert!(!cache.push(0, RunCache::MAX_LENGTH + 1) && !cache.push(0, 0));
        assert!(!cache.push(0, 17), "no length that the heap asks for");
        let kept = (0..DEPTH + 1).filter(|&i| cache.push(i * 16, 16)).count();
        assert_eq!(kept, DEPTH);
        let kept = (0..DEPTH)
            .filter(|&i| cache.push(i * RunCache::MAX_LENGTH, RunCache::MAX_LENGTH))
            .count();
        assert_eq!(kept, (MAX_FRAMES - DEPTH * 16) / RunCache::MAX_LENGTH);
        assert!(!cache.has_room(RunCache::MAX_LENGTH));
    }
}
