//! Runs that were freed lately, by their exact length.
//!
//! A program that frees a block of some length often asks for one of the same length next; that
//! one is then a pop, and the buddy allocators are left alone. What is here counts as dirty.
//!
//! Invariants
//! 1. The frames of a run here are free in neither buddy allocator.
//! 2. `frames` is the sum of the lengths, at most [`MAX_FRAMES`].

/// Runs of at most so many frames are kept: 1 MiB.
const MAX_LENGTH: usize = 256;

/// How many frames are kept in all: 4 MiB.
const MAX_FRAMES: usize = 1024;

/// How many runs of one length are kept.
const DEPTH: usize = 7;

#[derive(Debug, Clone, Copy)]
struct Stack {
    starts: [u32; DEPTH],
    len: u32,
}

/// The cache. All zeros when empty.
#[derive(Debug)]
pub(crate) struct RunCache {
    stacks: [Stack; MAX_LENGTH],
    frames: usize,
}

impl RunCache {
    pub(crate) const fn new() -> Self {
        Self { stacks: [Stack { starts: [0; DEPTH], len: 0 }; MAX_LENGTH], frames: 0 }
    }

    /// How many frames it holds.
    pub(crate) fn frames(&self) -> usize {
        self.frames
    }

    /// Keeps the run of `length` frames at `start`, if it is short and there is room.
    pub(crate) fn push(&mut self, start: usize, length: usize) -> bool {
        let Some(stack) = self.stacks.get_mut(length.wrapping_sub(1)) else { return false };
        let (Some(place), Ok(start)) =
            (stack.starts.get_mut(stack.len as usize), u32::try_from(start))
        else {
            return false;
        };
        if self.frames + length > MAX_FRAMES {
            return false;
        }
        *place = start;
        stack.len += 1;
        self.frames += length;
        true
    }

    /// The run of exactly `length` frames that was kept last.
    pub(crate) fn pop(&mut self, length: usize) -> Option<usize> {
        let stack = self.stacks.get_mut(length.wrapping_sub(1))?;
        let top = stack.len.checked_sub(1)?;
        stack.len = top;
        self.frames -= length;
        stack.starts.get(top as usize).map(|&start| start as usize)
    }

    /// Takes some run out: its start and its length.
    pub(crate) fn pop_any(&mut self) -> Option<(usize, usize)> {
        if self.frames == 0 {
            return None;
        }
        let length = 1 + self.stacks.iter().position(|stack| stack.len > 0)?;
        Some((self.pop(length)?, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_exact_lengths_and_counts_them() {
        let mut cache = RunCache::new();
        assert!(cache.push(100, 9) && cache.push(200, 9) && cache.push(300, 10));
        assert_eq!(cache.frames(), 28);
        assert_eq!((cache.pop(9), cache.pop(9), cache.pop(9)), (Some(200), Some(100), None));
        assert_eq!(cache.pop_any(), Some((300, 10)));
        assert_eq!((cache.frames(), cache.pop_any()), (0, None));
    }

    #[test]
    fn refuses_what_is_long_or_too_much() {
        let mut cache = RunCache::new();
        assert!(!cache.push(0, MAX_LENGTH + 1) && !cache.push(0, 0));
        let kept = (0..DEPTH + 1).filter(|&i| cache.push(i * 16, 16)).count();
        assert_eq!(kept, DEPTH);
        let kept = (0..DEPTH).filter(|&i| cache.push(i * MAX_LENGTH, MAX_LENGTH)).count();
        assert_eq!(kept, (MAX_FRAMES - DEPTH * 16) / MAX_LENGTH);
    }
}
