//! The lists of all CPUs, and how they are taken away from the threads.
//!
//! A sequence finds its lists by the table (`sequence.rs`). Whoever wants what is listed (a trim,
//! one CPU at a time; a fork, all at once) clears the table's entry and restarts the sequences
//! under way. Threads then wait at the gate until the entry is filled again.
//!
//! Invariants
//! 1. `table[cpu]` is `lists[cpu]` or null. Whoever changes it holds `gate`.
//! 2. While `gate` is held, `table[cpu]` is null and the sequences of that CPU have been restarted
//!    since, only the holder changes the words of `lists[cpu]`.
//! 3. Locks: the gate is taken first, before those of pools, bins and backend.

use core::ptr::NonNull;
use core::sync::atomic::{
    AtomicBool, AtomicIsize, AtomicPtr, AtomicU8, AtomicU16, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use hectare_base::sync::{Lock, Park};
use hectare_pages::rseq;

use crate::batch::{Batch, Packed};
use crate::cache::first_limit;
use crate::class::{ClassId, STATES};
use crate::object::{FreeObject, Key};
use crate::seat::Sharing;
use crate::sequence::{self, CPUS, CpuLists, Refusal, Table, Word};

/// How often a sequence is tried. A thread that is interrupted each time (because a debugger steps
/// through it) goes on without the lists.
pub(crate) const TRIES: usize = 64;

/// Nobody has asked yet whether there are sequences.
const UNKNOWN: u8 = 0;
/// There are no sequences, or somebody is just asking.
const UNFIT: u8 = 1;
/// Threads have areas.
const POSSIBLE: u8 = 2;
/// The kernel will restart sequences, too.
const READY: u8 = 3;

/// The lists of all CPUs.
#[derive(Debug)]
pub(crate) struct Cpus<P> {
    table: Table,
    lists: Table,
    /// One more than the number of the highest CPU that has lists.
    used: AtomicUsize,
    /// The offset of the threads' areas, once known.
    area_offset: AtomicIsize,
    /// One of the four values above.
    readiness: AtomicU8,
    gate: Lock<(), P>,
    /// Whether the fork that is under way has stopped all sequences.
    is_stopped: AtomicBool,
    /// How many sequences were tried again, as far as slow paths know.
    aborts: AtomicUsize,
}

impl CpuLists {
    fn new() -> Self {
        let lists = Self {
            words: [const { AtomicUsize::new(0) }; 2 * STATES],
            limits: [const { AtomicU16::new(0) }; STATES],
        };
        // This also makes empty lists of words that never held any.
        lists.take_all();
        lists
    }

    #[inline(never)]
    fn begin_limits(&self) {
        for class in ClassId::all() {
            self.limits[class.index()].store(first_limit(class), Relaxed);
        }
    }

    /// Takes out all that is listed.
    #[inline(never)]
    fn take_all(&self) -> [Packed; 2 * STATES] {
        self.begin_limits();
        let nothing = Packed::new(None).bits();
        core::array::from_fn(|at| Packed::from_bits(self.words[at].swap(nothing, Relaxed)))
    }
}

/// Where a class's two words lie.
fn places_of(class: ClassId) -> [usize; 2] {
    [class.index(), class.index() + STATES]
}

impl<P: Park> Cpus<P> {
    pub(crate) const fn new() -> Self {
        Self {
            table: [const { AtomicPtr::new(core::ptr::null_mut()) }; CPUS],
            lists: [const { AtomicPtr::new(core::ptr::null_mut()) }; CPUS],
            used: AtomicUsize::new(0),
            area_offset: AtomicIsize::new(0),
            readiness: AtomicU8::new(UNKNOWN),
            gate: Lock::new(()),
            is_stopped: AtomicBool::new(false),
            aborts: AtomicUsize::new(0),
        }
    }

    fn area(&self) -> isize {
        self.area_offset.load(Relaxed)
    }

    /// Whether [`begin`](Self::begin) can return `true`, as far as can be known without asking the
    /// kernel. The first call asks the dynamic linker, which may allocate. Calls that come here
    /// meanwhile return `false`.
    pub(crate) fn may_begin(&self) -> bool {
        // Only one thread asks: a second would take back for a moment what the first has found.
        let is_first = self.readiness.compare_exchange(UNKNOWN, UNFIT, Relaxed, Relaxed).is_ok();
        if is_first && let Some(offset) = rseq::area_offset() {
            self.area_offset.store(offset, Relaxed);
            // Release: whoever sees that it is possible sees the offset.
            self.readiness.store(POSSIBLE, Release);
        }
        self.readiness.load(Acquire) >= POSSIBLE
    }

    /// Whether threads may have [`Seat::cpu`](crate::Seat::cpu), and some may have it already.
    pub(crate) fn has_begun(&self) -> bool {
        self.readiness.load(Relaxed) == READY
    }

    /// Prepares for [`Seat::cpu`](crate::Seat::cpu). Returns whether this thread may have it.
    pub(crate) fn begin(&self) -> bool {
        if self.may_begin() && self.readiness.load(Relaxed) == POSSIBLE {
            let readiness = if rseq::announce_restarts() { READY } else { UNFIT };
            self.readiness.store(readiness, Release);
        }
        self.readiness.load(Acquire) == READY && self.cpu().is_some()
    }

    /// The CPU that this thread runs on: a hint, stale as soon as it is read. `None` if the kernel
    /// does not say.
    fn cpu(&self) -> Option<usize> {
        // SAFETY: the offset is that of the areas, by `begin`.
        unsafe { rseq::cpu(self.area()) }.filter(|&cpu| cpu < CPUS)
    }

    /// The first object of this CPU's list of `class`, which still bears its mark.
    #[inline(always)]
    pub(crate) fn pop(&self, _: Sharing, class: ClassId, key: Key) -> Result<FreeObject, Refusal> {
        // SAFETY: sharing has begun, so the offset is that of the areas; lists are there for good.
        unsafe { sequence::pop(&self.table, self.area(), class, key) }
    }

    /// Puts a marked object on this CPU's list of `class`.
    #[inline(always)]
    pub(crate) fn push(
        &self,
        _: Sharing,
        class: ClassId,
        object: FreeObject,
    ) -> Result<(), Refusal> {
        // SAFETY: as in `pop`.
        unsafe { sequence::push(&self.table, self.area(), class, object) }
    }

    /// Puts `batch` in a place of this CPU, and returns the batch that was there. If it is refused
    /// each time, returns `batch`.
    pub(crate) fn exchange(
        &self,
        _: Sharing,
        place: Word,
        class: ClassId,
        batch: Option<Batch>,
    ) -> Option<Batch> {
        let word = Packed::new(batch);
        for _ in 0..TRIES {
            // SAFETY: as in `pop`; the batch is the caller's.
            match unsafe { sequence::exchange(&self.table, self.area(), place, class, word) } {
                // SAFETY: taken out in exchange.
                Ok(old) => return unsafe { old.batch() },
                Err(Refusal::Aborted) => self.note_abort(),
                Err(_) => break,
            }
        }
        batch
    }

    /// The limit of `class` on some CPU, most often this one.
    pub(crate) fn limit(&self, class: ClassId) -> Option<&AtomicU16> {
        // SAFETY: null, or lists, which are there for good.
        let lists = unsafe { self.lists[self.cpu()?].load(Acquire).as_ref() }?;
        Some(&lists.limits[class.index()])
    }

    /// Lets this CPU have its lists, made of `memory` if it never had any. `false` if that is not
    /// possible.
    #[cold]
    pub(crate) fn open(&self, memory: impl FnOnce(usize) -> Option<NonNull<u8>>) -> bool {
        let _gate = self.gate.lock();
        let Some(cpu) = self.cpu() else { return false };
        let mut lists = self.lists[cpu].load(Relaxed);
        if lists.is_null() {
            let Some(fresh) = memory(size_of::<CpuLists>()) else { return false };
            let fresh: NonNull<CpuLists> = fresh.cast();
            // SAFETY: fresh memory of its size and alignment.
            unsafe { fresh.write(CpuLists::new()) };
            lists = fresh.as_ptr();
            self.lists[cpu].store(lists, Release);
            self.used.fetch_max(cpu + 1, Relaxed);
        }
        // Release: a sequence that reads the address sees the lists written.
        self.table[cpu].store(lists, Release);
        true
    }

    /// The lists of the CPUs that have any.
    fn in_use(&self) -> impl Iterator<Item = (usize, &CpuLists)> {
        (0..self.used.load(Relaxed)).filter_map(|cpu| {
            // SAFETY: null, or lists, which are there for good.
            let lists = unsafe { self.lists[cpu].load(Acquire).as_ref() }?;
            Some((cpu, lists))
        })
    }

    /// Stops all sequences. The gate must be held. `false`, with nothing changed, if the kernel
    /// will not restart the sequences under way.
    fn stop(&self) -> bool {
        for (cpu, _) in self.in_use() {
            // A sequence that begins after the restart sees the null.
            self.table[cpu].store(core::ptr::null_mut(), Relaxed);
        }
        let stopped = rseq::restart_all();
        if !stopped {
            self.resume();
        }
        stopped
    }

    /// Lets sequences go on. The gate must be held.
    #[inline(never)]
    fn resume(&self) {
        for (cpu, _) in self.in_use() {
            self.resume_on(cpu);
        }
    }

    fn resume_on(&self, cpu: usize) {
        self.table[cpu].store(self.lists[cpu].load(Relaxed), Release);
    }

    /// Takes all objects out of the lists of all CPUs, a list at a time.
    pub(crate) fn drain(&self, give: impl FnMut(ClassId, Batch)) {
        if self.used.load(Relaxed) > 0 {
            self.drain_used(give);
        }
    }

    #[cold]
    #[inline(never)]
    fn drain_used(&self, mut give: impl FnMut(ClassId, Batch)) {
        for (cpu, lists) in self.in_use() {
            let Some(words) = self.take_all(cpu, lists) else { continue };
            for class in ClassId::all() {
                for at in places_of(class) {
                    // SAFETY: the word was taken out of its place.
                    if let Some(batch) = unsafe { words[at].batch() } {
                        give(class, batch);
                    }
                }
            }
        }
    }

    /// Takes out all that is listed on a CPU. Its sequences are stopped only as long as that takes.
    /// `None` if the kernel will not restart those under way. A child forked before these objects
    /// are in their slabs has lost them, like all that is on its way between other threads.
    fn take_all(&self, cpu: usize, lists: &CpuLists) -> Option<[Packed; 2 * STATES]> {
        let _gate = self.gate.lock();
        // As in `stop`.
        self.table[cpu].store(core::ptr::null_mut(), Relaxed);
        let words = rseq::restart_on(cpu).then(|| lists.take_all());
        self.resume_on(cpu);
        words
    }

    /// How many objects of `class` are listed. Exact if no other thread is at work.
    pub(crate) fn objects(&self, class: ClassId) -> usize {
        let words =
            |(_, lists): (_, &CpuLists)| places_of(class).map(|at| lists.words[at].load(Relaxed));
        self.in_use().flat_map(words).map(|word| Packed::from_bits(word).count()).sum()
    }

    /// How many sequences were tried again.
    #[cfg(any(test, feature = "validate"))]
    pub(crate) fn aborts(&self) -> usize {
        self.aborts.load(Relaxed)
    }

    /// How many CPUs have lists.
    pub(crate) fn count(&self) -> usize {
        self.in_use().count()
    }

    /// Notes that a sequence is to be tried again.
    pub(crate) fn note_abort(&self) {
        self.aborts.fetch_add(1, Relaxed);
    }

    /// Stops all sequences across a fork.
    pub(crate) fn before_fork(&self) {
        self.gate.lock_for_fork();
        self.is_stopped.store(self.used.load(Relaxed) == 0 || self.stop(), Relaxed);
    }

    /// Drops the lists in a forked child, if they may have been copied while they changed: their
    /// objects are lost. Must be called before [`after_fork`](Self::after_fork).
    pub(crate) fn drop_if_torn(&self) {
        if !self.is_stopped.load(Relaxed) {
            for (_, lists) in self.in_use() {
                lists.take_all();
            }
        }
    }

    /// Lets sequences go on, in the parent and in the child.
    ///
    /// # Safety
    /// This thread, or the one it is the copy of, called [`before_fork`](Self::before_fork).
    pub(crate) unsafe fn after_fork(&self) {
        self.resume();
        // SAFETY: the caller's promise.
        unsafe { self.gate.unlock() };
    }
}
