//! A profile at one moment, for whoever writes it down.

use hectare_pages::System;

use super::stacks::{Stack, Stacks};
use crate::own_pages::Pages;

/// A profile at one moment, in pages of its own.
#[derive(Debug)]
pub struct Snapshot<'a, S: System> {
    stacks: Stacks,
    calls: Pages<usize>,
    call_count: usize,
    mean_bytes: usize,
    lost_samples: u64,
    source: &'a S,
}

/// The call of a return address. The return address lies behind the call. The byte before it lies
/// in the call, and in the calling function even if that ends with the call.
#[must_use]
pub fn call_of(return_address: usize) -> usize {
    return_address.saturating_sub(1)
}

impl<'a, S: System> Snapshot<'a, S> {
    /// A snapshot of these `stacks`, which it takes over. `None` when out of memory.
    pub(super) fn new(
        stacks: Stacks,
        mean_bytes: usize,
        lost_samples: u64,
        source: &'a S,
    ) -> Option<Self> {
        let calls = Pages::new();
        let mut snapshot = Self { stacks, calls, call_count: 0, mean_bytes, lost_samples, source };
        snapshot.list_calls()?;
        Some(snapshot)
    }

    /// Lists each call of the stacks once, sorted. O(n log n).
    fn list_calls(&mut self) -> Option<()> {
        let count: usize = self.stacks().map(|stack| stack.frames.len()).sum();
        let mut calls = Pages::with_capacity(count.max(1), self.source)?;
        let frames = self.stacks().flat_map(|stack| stack.frames);
        for (call, &frame) in calls.entries_mut().iter_mut().zip(frames) {
            *call = call_of(frame);
        }
        let all = &mut calls.entries_mut()[..count];
        sort(all);
        let mut kept = 0;
        for i in 0..count {
            if kept == 0 || all[i] != all[kept - 1] {
                all[kept] = all[i];
                kept += 1;
            }
        }
        self.calls = calls;
        self.call_count = kept;
        Some(())
    }

    /// Each call (as [`call_of`] gives it) of all stacks, once, sorted.
    #[must_use]
    pub fn calls(&self) -> &[usize] {
        &self.calls.entries()[..self.call_count]
    }

    /// One allocated byte in this many was a sampling point.
    #[must_use]
    pub fn mean_bytes(&self) -> usize {
        self.mean_bytes
    }

    /// How many samples were not taken because there was no memory.
    #[must_use]
    pub fn lost_samples(&self) -> u64 {
        self.lost_samples
    }

    /// The stacks, in the order in which they first allocated.
    pub fn stacks(&self) -> impl Iterator<Item = Stack<'_>> {
        self.stacks.iter()
    }
}

/// Sorts in place, O(n log n), by heapsort. (The core library's sort is 3 KB of code that nothing
/// else here needs.)
fn sort(words: &mut [usize]) {
    #[inline(never)]
    fn sift_down(heap: &mut [usize], mut at: usize) {
        while let Some(&left) = heap.get(2 * at + 1) {
            let right = heap.get(2 * at + 2).copied().unwrap_or(left);
            let child = 2 * at + 1 + usize::from(right > left);
            if heap[at] >= heap[child] {
                return;
            }
            heap.swap(at, child);
            at = child;
        }
    }
    (0..words.len() / 2).rev().for_each(|at| sift_down(words, at));
    for end in (1..words.len()).rev() {
        words.swap(0, end);
        sift_down(&mut words[..end], 0);
    }
}

impl<S: System> Drop for Snapshot<'_, S> {
    fn drop(&mut self) {
        self.stacks.release(self.source);
        self.calls.release(self.source);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;
    use crate::random::spread;

    #[test]
    fn sorts_as_the_core_library_does() {
        for length in (0..40).chain([1000, 4097]) {
            for different in [1, 7, usize::MAX] {
                let mut words: Vec<usize> =
                    (0..length).map(|i| spread(i + 1) % different).collect();
                let mut expected = words.clone();
                expected.sort_unstable();
                sort(&mut words);
                assert_eq!(words, expected);
            }
        }
    }
}
