//! The heap profile: which call stacks allocated the sampled objects that are live, and all that
//! ever were.
//!
//! ```text
//!   record ─▶ samples: address ─▶ bytes, stack
//!                                        └─▶ stacks: frames, what is live of it, what ever was
//!                                               └─ a copy at one moment ─▶ snapshot ─▶ pprof's file
//! ```
//! Invariants
//! 1. Each sample's stack is one of the stacks; the live tally of a stack is the sum of what its
//!    samples stand for, its total tally that of all samples it ever had: whole numbers, so that
//!    what was added goes without a rest.
//! 2. The tables are pages of the source's own, grown by doubling: nothing here allocates from the
//!    heap that it watches.
//!
//! When a table cannot grow, the sample is not taken, and is counted as lost.

mod samples;
mod snapshot;
mod stacks;
#[cfg(test)]
mod tests;

use hectare_base::sync::Lock;
use hectare_pages::{PageSource, System};

use crate::sample::{counted, weight};
pub(crate) use samples::Sample;
use samples::Samples;
use stacks::{Stacks, Which};

pub use snapshot::{Snapshot, call_of};
pub use stacks::{MAX_FRAMES, Stack, Tally};

#[derive(Debug)]
struct State {
    mean_bytes: usize,
    samples: Samples,
    stacks: Stacks,
    lost_samples: u64,
}

/// The profile of a heap. All methods may be called by any thread; none allocates from the heap.
#[derive(Debug)]
pub(crate) struct Profile<S: System> {
    state: Lock<State, S::Park>,
}

impl<S: System> Profile<S> {
    /// An empty profile, which owns nothing yet.
    pub(crate) const fn new() -> Self {
        Self {
            state: Lock::new(State {
                mean_bytes: 0,
                samples: Samples::new(),
                stacks: Stacks::new(),
                lost_samples: 0,
            }),
        }
    }

    /// Says at which rate samples are taken: before the first.
    pub(crate) fn begin(&self, mean_bytes: usize) {
        self.state.lock().mean_bytes = mean_bytes;
    }

    /// Enters the sampled object at `address`, allocated by `frames`.
    pub(crate) fn record(&self, address: usize, bytes: usize, frames: &[usize], source: &S) {
        let mut state = self.state.lock();
        if state.enter(address, bytes, frames, source).is_none() {
            state.lost_samples += 1;
        }
    }

    /// Takes the object at `address` off the live ones. `None` if it was no sampled one.
    pub(crate) fn forget(&self, address: usize) -> Option<Sample> {
        self.state.lock().forget(address)
    }

    /// Enters an object again that was [forgotten](Self::forget), but is still there.
    pub(crate) fn restore(&self, sample: Sample, source: &S) {
        let mut state = self.state.lock();
        if state.samples.make_room(source).is_some() {
            state.enter_live(sample);
        } else {
            state.lost_samples += 1;
        }
    }

    /// Whether the object at `address` is a small sampled one that a realloc to `bytes` leaves where
    /// it is.
    pub(crate) fn keeps(&self, address: usize, bytes: usize) -> bool {
        let state = self.state.lock();
        let class = state.samples.find(address).map(|sample| counted(sample.bytes).0);
        class.is_some_and(|class| class.is_small() && class.keeps(bytes))
    }

    /// A copy of the profile, at one moment; `None` when memory is out.
    pub(crate) fn snapshot<'a>(&self, source: &'a S) -> Option<Snapshot<'a, S>> {
        let state = self.state.lock();
        let stacks = state.stacks.copy(source)?;
        let (mean_bytes, lost_samples) = (state.mean_bytes, state.lost_samples);
        drop(state);
        Snapshot::new(stacks, mean_bytes, lost_samples, source)
    }

    /// Holds the profile's lock across a fork.
    pub(crate) fn before_fork(&self) {
        self.state.lock_for_fork();
    }

    /// Frees it in the parent and in the child.
    ///
    /// # Safety
    /// This thread, or the one it is the copy of, called [`before_fork`](Self::before_fork).
    pub(crate) unsafe fn after_fork(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.state.unlock() };
    }
}

impl State {
    fn enter(
        &mut self,
        address: usize,
        bytes: usize,
        frames: &[usize],
        source: &impl PageSource,
    ) -> Option<()> {
        self.samples.make_room(source)?;
        let stack = self.stacks.find_or_add(frames, source)?;
        // What was freed behind the heap's back (an exec'd child's copy) must not stay.
        self.forget(address);
        let weight = weight(bytes, self.mean_bytes);
        self.stacks.change(stack, Which::Total, |tally| tally.add(weight));
        self.enter_live(Sample { address, bytes, stack });
        Some(())
    }

    /// There must be room for one more sample.
    fn enter_live(&mut self, sample: Sample) {
        let weight = weight(sample.bytes, self.mean_bytes);
        self.stacks.change(sample.stack, Which::Live, |tally| tally.add(weight));
        self.samples.insert(sample);
    }

    fn forget(&mut self, address: usize) -> Option<Sample> {
        let sample = self.samples.remove(address)?;
        let weight = weight(sample.bytes, self.mean_bytes);
        self.stacks.change(sample.stack, Which::Live, |tally| tally.subtract(weight));
        Some(sample)
    }
}

/// Spreads every bit of `word` over the upper ones (Knuth's multiplicative hashing).
fn spread(word: usize) -> usize {
    (word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize
}
