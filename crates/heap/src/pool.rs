//! The pools: one per CPU, each with some batches of every class, between threads and bins.
//!
//! ```text
//!   thread ──full batch──▶ this CPU's pool ──too many──▶ bin (object by object)
//!   thread ◀─full batch─── this CPU's pool ◀─borrowed─── another CPU's pool
//!   thread ◀──────────────────objects───────────────────  bin
//! ```
//! A batch changes hands as a unit, under a lock that `put` and `take` only try: they skip a pool
//! whose lock is held. So a one-way flow (one thread allocates, another frees) costs one hand-over
//! a batch, and no hand-over waits for a thread that was preempted inside a pool.
//!
//! A pool lends only what its own CPU does not need. Suppose threads on two CPUs allocate and free
//! in turn, each for itself. Each is about to need again what the other would find in its pool. If
//! these batches were lent, they would wander between the CPUs for ever, and the lines of their
//! objects with them. So a pool counts how many more batches were taken from it than came back, and
//! reserves as many as that count ever was. It reserves one fewer each time another CPU asks in
//! vain, if no thread of its own CPU has used the pool since the previous ask. So batches that a
//! CPU only frees are lent at once, and batches that it no longer needs are lent after some asks.
//!
//! Each ask takes a cache line from the CPU that is asked. So only a few of many CPUs are asked at
//! a time: first the one that lent last, then those behind it. The next ask goes on behind these.

use core::ptr::NonNull;
use core::sync::atomic::AtomicU16;
use hectare_base::rolled;
use hectare_base::sync::atomic::{
    AtomicPtr, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use hectare_base::sync::{Lock, Park};

use crate::batch::{Batch, Batches};
use crate::class::{ClassId, STATES};
use crate::slots::Slots;

/// The number of CPUs with a pool of their own. CPU `n` uses pool `n % CPUS`. (Few of everything
/// under loom, where `tests/models.rs` explores all interleavings.)
const CPUS: usize = if cfg!(loom) { 2 } else { 128 };

/// How many pools are asked at a time for a CPU whose own is empty.
const ASKED: usize = 8;

#[derive(Debug)]
#[repr(align(128))]
struct CpuPool<P> {
    slots: [Lock<Slots, P>; STATES],
}

impl<P: Park> CpuPool<P> {
    /// Makes `memory` an empty pool.
    ///
    /// # Safety
    /// Nobody else uses `memory`, which has a pool's size and alignment and is zeroed.
    #[cfg(not(loom))]
    unsafe fn open(memory: NonNull<u8>) -> NonNull<Self> {
        // Zeros are free locks over empty slots. Nothing is written, so the slots of classes that a
        // program does not use, which are most, never become resident.
        memory.cast()
    }

    /// As above, for loom, whose locks cannot be made of zeros.
    ///
    /// # Safety
    /// As above.
    #[cfg(loom)]
    unsafe fn open(memory: NonNull<u8>) -> NonNull<Self> {
        let pool = memory.cast();
        let slots = [(); STATES].map(|()| Lock::new(Slots::EMPTY));
        // SAFETY: the caller's promise.
        unsafe { pool.write(Self { slots }) };
        pool
    }
}

/// The pools of all CPUs.
#[derive(Debug)]
pub(crate) struct Pools<P> {
    /// Null until the CPU's pool is first needed; then it is there for good.
    cpus: [AtomicPtr<CpuPool<P>>; CPUS],
    /// One more than the number of the highest pool in use: how far borrowing looks.
    used: AtomicUsize,
    /// The pool that each CPU asks first: a hint.
    lenders: [AtomicU16; CPUS],
    /// What the stocks hold, to within some batches.
    stocked_bytes: AtomicUsize,
    /// Held while a pool comes into use, and across a fork: the child must not get a pool whose
    /// locks its parent's other threads hold.
    growth: Lock<(), P>,
}

impl<P: Park> Pools<P> {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        Self {
            cpus: [const { AtomicPtr::new(core::ptr::null_mut()) }; CPUS],
            used: AtomicUsize::new(0),
            lenders: [const { AtomicU16::new(0) }; CPUS],
            stocked_bytes: AtomicUsize::new(0),
            growth: Lock::new(()),
        }
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self {
            cpus: core::array::from_fn(|_| AtomicPtr::new(core::ptr::null_mut())),
            used: AtomicUsize::new(0),
            lenders: [const { AtomicU16::new(0) }; CPUS],
            stocked_bytes: AtomicUsize::new(0),
            growth: Lock::new(()),
        }
    }

    /// Puts a batch into the pool of `cpu`. The batch is returned, and must go to the bin, if the
    /// pool is full or busy, or is yet to be made and `memory` has none. (`memory` gives that many
    /// zeroed bytes, aligned to 128, for good.) To send an older batch to the bin instead would
    /// cost more: the bin reads each object, and those freed last are still in the processor's
    /// cache. From a full pool the bin takes some more batches, so that it can read them side by
    /// side.
    pub(crate) fn put(
        &self,
        cpu: usize,
        class: ClassId,
        batch: Batch,
        memory: impl Fn(usize) -> Option<NonNull<u8>>,
    ) -> Option<Batch> {
        let cpu = cpu % CPUS;
        let Some(pool) = self.pool(cpu).or_else(|| self.begin_to_use(cpu, &memory)) else {
            return Some(batch);
        };
        let Some(mut slots) = pool.slots[class.index()].try_lock() else {
            return Some(batch);
        };
        let refused = slots.put(class, batch, memory);
        slots.tell(class, &self.stocked_bytes);
        refused
    }

    fn pool(&self, cpu: usize) -> Option<&CpuPool<P>> {
        // SAFETY: null, or a pool written before it was published, which is there for good.
        unsafe { self.cpus[cpu].load(Acquire).as_ref() }
    }

    #[cold]
    fn begin_to_use(
        &self,
        cpu: usize,
        memory: impl FnOnce(usize) -> Option<NonNull<u8>>,
    ) -> Option<&CpuPool<P>> {
        let _growth = self.growth.lock();
        if self.pool(cpu).is_none() {
            let memory = memory(size_of::<CpuPool<P>>())?;
            // SAFETY: fresh memory of its size and alignment.
            let pool = unsafe { CpuPool::open(memory) };
            // Release: whoever reads the address sees an empty pool.
            self.cpus[cpu].store(pool.as_ptr(), Release);
            self.used.fetch_max(cpu + 1, Relaxed);
        }
        self.pool(cpu)
    }

    /// How many CPUs have been seen at work. O(CPUs).
    pub(crate) fn count(&self) -> usize {
        self.in_use().count()
    }

    /// The pools in use.
    fn in_use(&self) -> impl Iterator<Item = &CpuPool<P>> {
        (0..self.used.load(Relaxed)).filter_map(|cpu| self.pool(cpu))
    }

    /// Takes a batch from the pool of `cpu`, or borrows one that another CPU does not need. O(1).
    pub(crate) fn take(&self, cpu: usize, class: ClassId) -> Option<Batch> {
        let cpu = cpu % CPUS;
        let own =
            self.pool(cpu).and_then(|pool| self.try_with(pool, class, |slots| slots.take(class)));
        own.or_else(|| self.borrow(cpu, class))
    }

    /// A batch that a CPU other than `cpu` does not need, if one of the CPUs asked has any.
    fn borrow(&self, cpu: usize, class: ClassId) -> Option<Batch> {
        let used = self.used.load(Relaxed);
        let first = self.lenders[cpu].load(Relaxed);
        let mut at = usize::from(first);
        let mut lent = None;
        for _ in 0..used.min(ASKED) {
            let other = (at != cpu).then(|| self.pool(at)).flatten();
            lent = other.and_then(|pool| self.try_with(pool, class, Slots::lend));
            if lent.is_some() {
                break;
            }
            at = if at + 1 < used { at + 1 } else { 0 };
        }
        if at != usize::from(first) {
            self.lenders[cpu].store(at as u16, Relaxed);
        }
        lent
    }

    /// Takes a batch that the pool of `cpu` has too many of.
    #[inline(never)]
    pub(crate) fn take_own(&self, cpu: usize, class: ClassId) -> Option<Batch> {
        self.try_with(self.pool(cpu % CPUS)?, class, Slots::pop)
    }

    /// What `take` takes from a pool; nothing if its lock is held.
    #[inline(always)]
    fn try_with(
        &self,
        pool: &CpuPool<P>,
        class: ClassId,
        take: impl FnOnce(&mut Slots) -> Option<Batch>,
    ) -> Option<Batch> {
        let mut slots = pool.slots[class.index()].try_lock()?;
        let batch = take(&mut slots);
        slots.tell(class, &self.stocked_bytes);
        batch
    }

    /// Hands the batches that `drain` takes from each pool's slots of `class` to `give`, some
    /// [`Batches`] at a time, until `give` returns `true`. Waits for the slots' locks, which are
    /// free again while `give` runs. A pool is not asked again once `drain` has returned `None`.
    pub(crate) fn drain(
        &self,
        class: ClassId,
        drain: fn(&mut Slots, ClassId) -> Option<Batch>,
        mut give: impl FnMut(&[Batch]) -> bool,
    ) {
        for pool in self.in_use() {
            loop {
                let mut slots = pool.slots[class.index()].lock();
                let Some(first) = drain(&mut slots, class) else { break };
                let batches = Batches::gather(first, || drain(&mut slots, class));
                slots.tell(class, &self.stocked_bytes);
                drop(slots);
                if give(batches.as_slice()) {
                    return;
                }
                if !batches.are_full() {
                    break;
                }
            }
        }
    }

    /// The bytes that lie in stocks, to within some batches of each stock: idle, though out of
    /// their slabs.
    #[inline]
    pub(crate) fn stocked_bytes(&self) -> usize {
        self.stocked_bytes.load(Relaxed)
    }

    /// How many objects of `class` the pools hold.
    pub(crate) fn objects(&self, class: ClassId) -> usize {
        let held = |pool: &CpuPool<P>| pool.slots[class.index()].lock().objects();
        self.in_use().map(held).sum()
    }

    /// Whether `holds` is true of all slots of the pools in use.
    pub(crate) fn all_slots(&self, holds: impl Fn(&Lock<Slots, P>) -> bool) -> bool {
        // Loops, not iterators' own, which would be one more function.
        for pool in self.in_use() {
            for slots in rolled(&pool.slots) {
                if !holds(slots) {
                    return false;
                }
            }
        }
        true
    }

    /// Holds the locks of the pools in use across a fork.
    pub(crate) fn before_fork(&self) {
        self.growth.lock_for_fork();
        self.used_slots().for_each(Lock::lock_for_fork);
    }

    /// Releases them in the parent and in the child.
    ///
    /// # Safety
    /// This thread, or the one it is the copy of, called [`before_fork`](Self::before_fork).
    pub(crate) unsafe fn after_fork(&self) {
        for slots in self.used_slots() {
            // SAFETY: the caller's promise; the pools are those they were, since `growth` is held.
            unsafe { slots.unlock() };
        }
        // SAFETY: the caller's promise.
        unsafe { self.growth.unlock() };
    }

    fn used_slots(&self) -> impl Iterator<Item = &Lock<Slots, P>> {
        self.in_use().flat_map(|pool| rolled(&pool.slots))
    }
}

#[cfg(all(test, not(loom)))]
#[path = "pool/tests.rs"]
mod tests;
