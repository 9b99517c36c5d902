//! The pools: one per CPU, each with a few batches of every class, between threads and bins.
//!
//! ```text
//!   thread ──full batch──▶ this CPU's pool ──too many──▶ bin (object by object)
//!   thread ◀─full batch─── this CPU's pool ◀─borrowed─── another CPU's pool
//! ```
//! A batch changes hands as a unit, under a lock that is only ever tried: a pool whose lock is
//! held is passed by. So a one-way flow (one thread allocates, another frees) costs one hand-over
//! a batch, and no thread waits for one that was preempted inside a pool.
//!
//! Invariant: the first `len` slots hold a batch each; the others none.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use hectare_base::sync::{Lock, Padded, Park};

use crate::class::{ClassId, STATES};
use crate::object::{Batch, FreeObject};

/// CPUs with a pool of their own; the CPU numbered `n` uses pool `n % CPUS`.
const CPUS: usize = 128;

/// How many batches of a class a pool keeps at first, and how many at most. Batches are of 8 KiB.
const FIRST_LIMIT: u8 = 6;
const SLOTS: usize = 32;

#[derive(Debug)]
struct Slots {
    len: u8,
    /// How many batches it keeps now: one more each time that it is asked in vain for what it had
    /// to refuse before, so where a thread's demand swings, the pool takes the swing.
    limit: u8,
    refused: bool,
    counts: [u16; SLOTS],
    heads: [Option<FreeObject>; SLOTS],
}

#[derive(Debug)]
struct CpuPool<P> {
    bins: [Lock<Slots, P>; STATES],
}

/// The pools of all CPUs.
#[derive(Debug)]
pub(crate) struct Pools<P> {
    cpus: [Padded<CpuPool<P>>; CPUS],
    /// One more than the highest pool in use: how far borrowing looks.
    used: AtomicUsize,
    /// Held while `used` grows, and across a fork: the child must not get a pool whose locks its
    /// parent's other threads hold.
    growth: Lock<(), P>,
}

impl Slots {
    const EMPTY: Self = Self {
        len: 0,
        limit: FIRST_LIMIT,
        refused: false,
        counts: [0; SLOTS],
        heads: [None; SLOTS],
    };

    fn push(&mut self, batch: Batch) {
        let at = usize::from(self.len) % SLOTS;
        self.heads[at] = Some(batch.head);
        self.counts[at] = batch.count as u16;
        self.len += 1;
    }

    /// A batch for a thread that needs one.
    fn take(&mut self) -> Option<Batch> {
        if self.len == 0 && core::mem::take(&mut self.refused) {
            self.limit = (self.limit + 1 + self.limit / 2).min(SLOTS as u8);
        }
        self.pop()
    }

    fn pop(&mut self) -> Option<Batch> {
        let at = usize::from(self.len.checked_sub(1)?) % SLOTS;
        self.len -= 1;
        Some(Batch { head: self.heads[at].take()?, count: usize::from(self.counts[at]) })
    }
}

impl<P: Park> Pools<P> {
    pub(crate) const fn new() -> Self {
        Self {
            cpus: [const { Padded::new(CpuPool { bins: [const { Lock::new(Slots::EMPTY) }; STATES] }) };
                CPUS],
            used: AtomicUsize::new(0),
            growth: Lock::new(()),
        }
    }

    /// Puts a batch into the pool of `cpu`. It comes back, and must go to the bin, if the pool is
    /// full or busy. (An older batch in its place would cost more: the bin reads each object, and
    /// those that were freed last are the ones that are still in the processor's cache.)
    pub(crate) fn put(&self, cpu: usize, class: ClassId, batch: Batch) -> Option<Batch> {
        let cpu = cpu % CPUS;
        if cpu >= self.used.load(Relaxed) {
            self.begin_to_use(cpu);
        }
        let Some(mut slots) = self.cpus[cpu].bins[class.index()].try_lock() else {
            return Some(batch);
        };
        if slots.len >= slots.limit.min(most_batches(class)) {
            slots.refused = true;
            return Some(batch);
        }
        slots.push(batch);
        None
    }

    #[cold]
    fn begin_to_use(&self, cpu: usize) {
        let _growth = self.growth.lock();
        self.used.fetch_max(cpu + 1, Relaxed);
    }

    /// Takes a batch from the pool of `cpu`, or borrows one from another.
    pub(crate) fn take(&self, cpu: usize, class: ClassId) -> Option<Batch> {
        let used = self.used.load(Relaxed);
        let first = cpu % CPUS;
        let own = (first < used).then_some(first);
        own.into_iter()
            .chain((0..used).filter(|&other| other != first))
            .find_map(|cpu| self.cpus[cpu].bins[class.index()].try_lock()?.take())
    }

    /// Takes a batch of `class` from whichever pool has one, waiting for its lock: for emptying.
    pub(crate) fn drain(&self, class: ClassId) -> Option<Batch> {
        let used = self.used.load(Relaxed);
        self.cpus[..used].iter().find_map(|cpu| {
            let mut slots = cpu.bins[class.index()].lock();
            slots.limit = FIRST_LIMIT;
            slots.pop()
        })
    }

    /// How many objects of `class` the pools hold.
    pub(crate) fn objects(&self, class: ClassId) -> usize {
        let used = self.used.load(Relaxed);
        let held = |cpu: &Padded<CpuPool<P>>| {
            let slots = cpu.bins[class.index()].lock();
            slots.counts[..usize::from(slots.len)].iter().map(|&c| usize::from(c)).sum::<usize>()
        };
        self.cpus[..used].iter().map(held).sum()
    }

    /// Holds the locks of the pools in use across a fork.
    pub(crate) fn before_fork(&self) {
        self.growth.lock_for_fork();
        self.used_bins().for_each(Lock::lock_for_fork);
    }

    /// Frees them in the parent and in the child.
    ///
    /// # Safety
    /// This thread, or the one it is the copy of, called [`before_fork`](Self::before_fork).
    pub(crate) unsafe fn after_fork(&self) {
        for bin in self.used_bins() {
            // SAFETY: the caller's promise; `used` is what it was, since `growth` is held.
            unsafe { bin.unlock() };
        }
        // SAFETY: the caller's promise.
        unsafe { self.growth.unlock() };
    }

    fn used_bins(&self) -> impl Iterator<Item = &Lock<Slots, P>> {
        self.cpus[..self.used.load(Relaxed)].iter().flat_map(|cpu| &cpu.bins)
    }
}

/// How many batches of a class a pool keeps at most: of large objects few.
fn most_batches(class: ClassId) -> u8 {
    if class.object_bytes() > 8 * 1024 { 2 } else { SLOTS as u8 }
}
