//! The heap profile: which call stacks allocated the sampled objects that are live, and all that
//! ever were.
//!
//! ```text
//!   record ─▶ samples: address ─▶ bytes, stack
//!              │                         └─▶ stacks: frames, what is live of it, what ever was
//!              ▼                                └─ a copy at one moment ─▶ snapshot ─▶ pprof's file
//!            packs: objects of the heap that the small ones share
//! ```
//! Invariants
//! 1. Each sample's stack is one of the stacks. The live tally of a stack is the sum of what its
//!    live samples stand for, its total tally the sum for all samples it ever had. Tallies are
//!    whole numbers, so that what was added can be subtracted exactly.
//! 2. The tables are pages of the source's own and grow by doubling. Nothing here allocates from
//!    the heap that it watches.
//!
//! If a table cannot grow, the sample is not taken, and is counted as lost.

mod packs;
mod snapshot;
mod stacks;
mod table;
#[cfg(test)]
mod tests;

use core::ptr::NonNull;

use hectare_base::sync::Lock;
use hectare_pages::{PageSource, System};

use crate::class::ClassId;
use crate::heap::becomes_free;
use crate::sample::weight;
use packs::Packs;
pub(crate) use packs::{MAX_PACKED_BYTES, PACK_BYTES};
use stacks::{StackPlace, Stacks, Which};
use table::{Entry, Table};

pub use snapshot::{Snapshot, call_of};
pub use stacks::{MAX_FRAMES, Stack, Tally};

/// A live sampled object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    address: usize,
    bytes: usize,
    stack: StackPlace,
    class: ClassId,
}

impl Sample {
    /// The class by which the object was drawn. Its size is the object's room.
    pub(crate) fn class(&self) -> ClassId {
        self.class
    }
}

/// A stack's place leaves room for a class in one word.
const CLASS_BITS: u32 = u8::BITS;

impl From<Entry> for Sample {
    fn from(Entry { address, value: [bytes, origin] }: Entry) -> Self {
        // SAFETY: a class's byte is the lowest, by the conversion below.
        let class = unsafe { ClassId::from_byte(origin as u8) };
        Self { address, bytes, stack: origin >> CLASS_BITS, class }
    }
}

impl From<Sample> for Entry {
    fn from(Sample { address, bytes, stack, class }: Sample) -> Self {
        Self { address, value: [bytes, stack << CLASS_BITS | usize::from(class.byte())] }
    }
}

/// What the profile knows of an address.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Known {
    /// Nothing: no sampled object begins there.
    Nothing,
    /// No object begins there, but it lies in a pack: there may have been one.
    Gone,
    /// A sampled object that the heap knows as one of its own.
    Alone(Sample),
    /// A sampled object in a pack.
    Packed(Sample),
}

#[derive(Debug)]
struct State {
    mean_bytes: usize,
    samples: Table,
    packs: Packs,
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
                samples: Table::new(),
                packs: Packs::new(),
                stacks: Stacks::new(),
                lost_samples: 0,
            }),
        }
    }

    /// Sets the rate at which samples are taken. Must be called before the first sample.
    pub(crate) fn begin(&self, mean_bytes: usize) {
        self.state.lock().mean_bytes = mean_bytes;
    }

    /// Enters the sampled object at `address`, drawn by `class` and allocated by `frames`, in place
    /// of one that was known there. Returns whether there was memory for it.
    pub(crate) fn record(
        &self,
        address: usize,
        bytes: usize,
        class: ClassId,
        frames: &[usize],
        source: &S,
    ) -> bool {
        let mut state = self.state.lock();
        let is_entered = state.enter(address, bytes, class, frames, source).is_some();
        if !is_entered {
            state.lost_samples += 1;
        }
        is_entered
    }

    /// Removes the object at `address` from the live ones, and from its pack if it lies in one.
    /// Returns what was known of the address; and the pack, for the heap to free, if the object was
    /// the last there.
    pub(crate) fn forget(&self, address: usize) -> (Known, Option<NonNull<u8>>) {
        let mut state = self.state.lock();
        let known = state.know(address);
        state.forget(address);
        let emptied = match known {
            Known::Packed(_) => state.packs.leave(address),
            _ => None,
        };
        (known, emptied)
    }

    /// Enters an object again that was [forgotten](Self::forget) but is still there.
    pub(crate) fn restore(&self, sample: Sample, source: &S) {
        let mut state = self.state.lock();
        if state.samples.make_room(source).is_some() {
            state.enter_live(sample);
        } else {
            state.lost_samples += 1;
        }
    }

    /// What the profile knows of `address`.
    pub(crate) fn know(&self, address: usize) -> Known {
        self.state.lock().know(address)
    }

    /// Room in the open pack for a sampled object of `bytes` aligned to `align`, neither above
    /// [`MAX_PACKED_BYTES`]. The room is then [recorded](Self::record), or
    /// [given back](Self::unpack).
    pub(crate) fn pack(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        self.state.lock().packs.take(bytes, align)
    }

    /// As [`pack`](Self::pack), in `pack`, an object of the heap of [`PACK_BYTES`], aligned to as
    /// many, which is open from now on. Nobody else takes room in it before this call does.
    /// Returns, too, a pack for the heap to free, if there is one.
    pub(crate) fn open_pack(
        &self,
        pack: NonNull<u8>,
        bytes: usize,
        align: usize,
        source: &S,
    ) -> (Option<NonNull<u8>>, Option<NonNull<u8>>) {
        let packs = &mut self.state.lock().packs;
        let freed = packs.open(pack, source);
        (packs.take(bytes, align), freed)
    }

    /// Makes `pack`, an object of the heap aligned to [`PACK_BYTES`], the pack of a single object.
    /// The object is then [recorded](Self::record), or [given back](Self::unpack). `None` when out
    /// of memory.
    pub(crate) fn enter_pack(&self, pack: NonNull<u8>, source: &S) -> Option<()> {
        self.state.lock().packs.enter(pack, source)
    }

    /// Takes back room that was [taken](Self::pack). Returns the pack if the heap has to free it.
    pub(crate) fn unpack(&self, room: NonNull<u8>) -> Option<NonNull<u8>> {
        self.state.lock().packs.leave(room.addr().get())
    }

    /// A copy of the profile, at one moment. `None` when out of memory.
    pub(crate) fn snapshot<'a>(&self, source: &'a S) -> Option<Snapshot<'a, S>> {
        let state = self.state.lock();
        let stacks = state.stacks.copy(source)?;
        let (mean_bytes, lost_samples) = (state.mean_bytes, state.lost_samples);
        drop(state);
        Snapshot::new(stacks, mean_bytes, lost_samples, source)
    }

    /// Whether the lock that [`snapshot`](Self::snapshot) takes is free, or soon becomes free.
    pub(crate) fn can_be_asked(&self, source: &S) -> bool {
        becomes_free(&self.state, source)
    }

    /// Holds the profile's lock across a fork.
    pub(crate) fn before_fork(&self) {
        self.state.lock_for_fork();
    }

    /// Releases the lock in the parent and in the child.
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
        class: ClassId,
        frames: &[usize],
        source: &impl PageSource,
    ) -> Option<()> {
        self.samples.make_room(source)?;
        let stack = self.stacks.find_or_add(frames, source)?;
        // An object that was resized in place, or was freed unseen by the heap (in an exec'd
        // child's copy).
        self.forget(address);
        let weight = weight(bytes, class, self.mean_bytes);
        self.stacks.change(stack, Which::Total, |tally| tally.add(weight));
        self.enter_live(Sample { address, bytes, stack, class });
        Some(())
    }

    /// Enters a live sample, for which there must be room.
    fn enter_live(&mut self, sample: Sample) {
        let weight = weight(sample.bytes, sample.class, self.mean_bytes);
        self.stacks.change(sample.stack, Which::Live, |tally| tally.add(weight));
        self.samples.insert(sample.into());
    }

    fn know(&self, address: usize) -> Known {
        match (self.samples.find(address), self.packs.has(address)) {
            (None, false) => Known::Nothing,
            (None, true) => Known::Gone,
            (Some(&sample), false) => Known::Alone(sample.into()),
            (Some(&sample), true) => Known::Packed(sample.into()),
        }
    }

    fn forget(&mut self, address: usize) {
        let Some(sample) = self.samples.remove(address).map(Sample::from) else { return };
        let weight = weight(sample.bytes, sample.class, self.mean_bytes);
        self.stacks.change(sample.stack, Which::Live, |tally| tally.subtract(weight));
    }
}
