//! Carries out operations and compares the results.

use std::ptr::NonNull;
use std::sync::Mutex;
use std::thread;

use crate::operation::Operation;
use crate::payload::Payload;
use crate::random::Random;
use crate::shadow::{Object, Shadow};
use crate::subject::Subject;
use crate::swarm::{Limits, Swarm};

/// A stretch ends after this many operations on average. The next one draws its own weights.
const STRETCH_OPERATIONS: usize = 5000;

/// Counts of what a run has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Operations carried out, refused ones included.
    pub operations: u64,
    /// Requests that got null.
    pub refused: u64,
    /// Objects that came from another thread.
    pub received: u64,
}

/// One thread of a random program, with its shadow.
#[derive(Debug)]
pub struct Driver<'a> {
    seed: u64,
    random: Random,
    limits: Limits,
    swarm: Swarm,
    shadow: Shadow,
    next_tag: u64,
    /// Slots in which threads leave objects for each other.
    slots: &'a [Mutex<Option<Object>>],
    tally: Tally,
}

impl<'a> Driver<'a> {
    /// A thread whose run is determined by `seed`, except for the effects of other threads through
    /// `slots`. Threads that share slots have different seeds.
    #[must_use]
    pub fn new(seed: u64, limits: Limits, slots: &'a [Mutex<Option<Object>>]) -> Self {
        let mut random = Random::new(seed);
        let swarm = Swarm::draw(&mut random, limits);
        // No two objects of one run have the same tag, whichever thread made them.
        let next_tag = seed << 40;
        Self {
            seed,
            random,
            limits,
            swarm,
            shadow: Shadow::default(),
            next_tag,
            slots,
            tally: Tally::default(),
        }
    }

    /// The live objects of this thread.
    #[must_use]
    pub fn shadow(&self) -> &Shadow {
        &self.shadow
    }

    /// Counts of what was done so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Carries out one random operation.
    pub fn step(&mut self, subject: &mut impl Subject) -> Operation {
        if self.random.one_in(STRETCH_OPERATIONS) {
            self.swarm = Swarm::draw(&mut self.random, self.limits);
        }
        let operation =
            self.swarm.operation(&mut self.random, self.shadow.len(), self.shadow.live_bytes());
        self.perform(subject, operation);
        operation
    }

    /// Carries out `operation`. Returns whether the subject did what was asked.
    pub fn perform(&mut self, subject: &mut impl Subject, operation: Operation) -> bool {
        self.tally.operations += 1;
        let done = match operation {
            Operation::Malloc { bytes } => {
                let object = subject.malloc(bytes);
                self.enter(subject, object, bytes, subject.min_align(), false)
            }
            Operation::Calloc { bytes } => {
                let object = subject.calloc(bytes);
                self.enter(subject, object, bytes, subject.min_align(), true)
            }
            Operation::Aligned { bytes, align } => {
                let object = subject.aligned(bytes, align);
                self.enter(subject, object, bytes, align, false)
            }
            Operation::Realloc { index, bytes } => self.realloc(subject, index, bytes),
            Operation::Free { index } => {
                let object = self.shadow.remove(index);
                free(subject, &object);
                true
            }
            Operation::Exchange { index } => {
                self.exchange(index);
                true
            }
            Operation::Trim => {
                subject.trim();
                true
            }
        };
        if !done {
            self.tally.refused += 1;
        }
        done
    }

    fn enter(
        &mut self,
        subject: &impl Subject,
        object: *mut u8,
        bytes: usize,
        align: usize,
        zeroed: bool,
    ) -> bool {
        let Some(start) = NonNull::new(object) else { return false };
        assert_eq!(start.addr().get() % align, 0, "{start:p} of {bytes} bytes: misaligned");
        self.next_tag += 1;
        let payload = Payload::new(self.next_tag);
        let usable_bytes = subject.usable_bytes(start);
        let object = Object { start, bytes, usable_bytes, align, payload };
        // Entered before it is written, so that an overlap is reported as an overlap and not as
        // changed contents.
        self.shadow.insert(object);
        if zeroed {
            // SAFETY: an object of `bytes` initialised bytes, just taken.
            let at = unsafe { payload.first_not_zero(start, bytes) };
            assert!(at.is_none(), "calloc of {bytes} bytes at {start:p} is not zero: byte {at:?}");
        }
        // SAFETY: an object of `bytes` bytes, just taken.
        unsafe { payload.write(start, 0, bytes) };
        true
    }

    fn realloc(&mut self, subject: &mut impl Subject, index: usize, bytes: usize) -> bool {
        let old = self.shadow.remove(index);
        old.verify();
        // SAFETY: live until now, and forgotten, unless the answer is null.
        let Some(start) = NonNull::new(unsafe { subject.realloc(old.start, bytes) }) else {
            old.verify();
            let still = subject.usable_bytes(old.start);
            assert_eq!(still, old.usable_bytes, "a refused realloc changed {:p}", old.start);
            self.shadow.insert(old);
            return false;
        };
        assert_eq!(start.addr().get() % subject.min_align(), 0, "{start:p}: misaligned");
        let usable_bytes = subject.usable_bytes(start);
        let kept_bytes = old.bytes.min(bytes);
        let payload = old.payload;
        let align = subject.min_align();
        self.shadow.insert(Object { start, bytes, usable_bytes, align, payload });
        // SAFETY: an object of at least `kept_bytes`, with which the old object was written.
        let at = unsafe { payload.first_difference(start, kept_bytes) };
        assert!(
            at.is_none(),
            "realloc from {} to {bytes} bytes at {start:p} lost byte {at:?}",
            old.bytes
        );
        // SAFETY: an object of `bytes` bytes.
        unsafe { payload.write(start, kept_bytes, bytes) };
        true
    }

    fn exchange(&mut self, index: usize) {
        if self.slots.is_empty() {
            return;
        }
        let slot = &self.slots[self.random.below(self.slots.len())];
        let left = self.shadow.remove(index);
        let Ok(mut slot) = slot.lock() else { panic!("another thread failed") };
        let taken = slot.replace(left);
        drop(slot);
        if let Some(object) = taken {
            object.verify();
            self.tally.received += 1;
            self.shadow.insert(object);
        }
    }

    /// Verifies every object's contents.
    pub fn verify_all(&self) {
        self.shadow.verify_all();
    }

    /// Frees all objects of this thread.
    pub fn free_all(&mut self, subject: &mut impl Subject) {
        while !self.shadow.is_empty() {
            let object = self.shadow.remove(self.shadow.len() - 1);
            free(subject, &object);
        }
    }
}

fn free(subject: &mut impl Subject, object: &Object) {
    object.verify();
    // SAFETY: live until now, and forgotten.
    unsafe { subject.free(object.start) };
}

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let Tally { operations, .. } = self.tally;
            eprintln!("failed at operation {operations} of the thread with seed {}", self.seed);
        }
    }
}

#[cfg(test)]
mod tests;
