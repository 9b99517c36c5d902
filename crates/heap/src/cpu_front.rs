//! The front of threads that have no cache of their own: lists of the CPU they run on.
//!
//! ```text
//!   thread ──object──▶ this CPU's list ──full list──▶ this CPU's spare ──▶ pools, as any batch
//!          ◀─object───                 ◀────────────                   ◀──
//! ```
//! What a thousand threads keep so is bounded by the CPUs, and what one frees the next one on the
//! same CPU takes while it still lies in the processor's cache. An object passes in a restartable
//! sequence of some twenty instructions (`sequence.rs`), where a cache of the thread's own needs
//! six or seven: so the first threads of a process have caches, and those beyond a number that
//! depends on the CPUs have not (`seat.rs`).
//!
//! A list changes by one word alone: a full one is exchanged for a short one, an empty one for a
//! batch, and what came out in exchange goes on to the next place; in between it belongs to the
//! thread, on whatever CPU that is by then.
//!
//! Invariants
//! 1. `table[cpu]` is `lists[cpu]` or null; `gate` is held where it changes.
//! 2. While `gate` is held, `table[cpu]` is null and all sequences have been restarted since, the
//!    holder alone changes the words of `lists[cpu]`. Threads that find it null wait at the gate.
//! 3. Locks: the gate is taken first, before those of pools, bins and backend.

use core::ptr::NonNull;
use core::sync::atomic::{
    AtomicBool, AtomicIsize, AtomicPtr, AtomicU8, AtomicU16, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};

use hectare_base::sync::{Lock, Park};
use hectare_pages::{System, rseq};

use crate::cache::{first_limit, longer_limit};
use crate::class::{ClassId, STATES};
use crate::heap::Heap;
use crate::misuse::Misuse;
use crate::object::{Batch, FreeObject, Key};
use crate::seat::Seat;
use crate::sequence::{self, CPUS, CpuLists, Place, Refusal, Table, Word};

/// How often a sequence is tried: a thread that is interrupted each time (a debugger steps through
/// it) goes on without the lists.
const TRIES: usize = 64;

/// Nobody has asked yet whether there are sequences.
const UNKNOWN: u8 = 0;
/// There are none; or the question is just being asked.
const UNFIT: u8 = 1;
/// Threads have areas.
const POSSIBLE: u8 = 2;
/// And the kernel will restart sequences.
const READY: u8 = 3;

/// The lists of all CPUs.
#[derive(Debug)]
pub(crate) struct CpuFront<P> {
    table: Table,
    lists: Table,
    /// One more than the highest CPU that has lists.
    used: AtomicUsize,
    /// The offset of the threads' areas, once possible.
    area_offset: AtomicIsize,
    /// One of the four above.
    readiness: AtomicU8,
    gate: Lock<(), P>,
    /// Whether the fork that is under way has kept all sequences away.
    is_stopped: AtomicBool,
    /// How many sequences were tried again, as far as slow paths have seen it.
    aborts: AtomicUsize,
}

impl CpuLists {
    fn new() -> Self {
        let lists = Self {
            words: [const { AtomicUsize::new(0) }; 2 * STATES],
            limits: [const { AtomicU16::new(0) }; STATES],
        };
        for class in ClassId::all() {
            lists.limits[class.index()].store(first_limit(class), Relaxed);
        }
        lists
    }

    /// A class's two words.
    fn words_of(&self, class: ClassId) -> [&AtomicUsize; 2] {
        [&self.words[class.index()], &self.words[class.index() + STATES]]
    }

    /// Takes out all that is listed, a list at a time.
    fn drain(&self, mut give: impl FnMut(ClassId, Batch)) {
        for class in ClassId::all() {
            for word in self.words_of(class) {
                // SAFETY: the list was taken out of its place.
                let list = unsafe { Word::from_bits(word.swap(0, Relaxed)).batch() };
                if let Some(batch) = list {
                    give(class, batch);
                }
            }
            self.limits[class.index()].store(first_limit(class), Relaxed);
        }
    }
}

impl<P: Park> CpuFront<P> {
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

    /// Whether [`begin`](Self::begin) can say yes, as far as can be known without asking the kernel.
    /// The first call asks the dynamic linker, which may allocate; what finds its way here meanwhile
    /// is told no.
    pub(crate) fn may_begin(&self) -> bool {
        if self.readiness.load(Acquire) == UNKNOWN {
            self.readiness.store(UNFIT, Relaxed);
            if let Some(offset) = rseq::area_offset() {
                self.area_offset.store(offset, Relaxed);
                // Release: whoever sees that it is possible sees the offset.
                self.readiness.store(POSSIBLE, Release);
            }
        }
        self.readiness.load(Acquire) >= POSSIBLE
    }

    /// Makes ready for [`Seat::Cpu`]; whether this thread may have it.
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
    ///
    /// # Safety
    /// [`begin`](Self::begin) has said yes.
    #[inline(always)]
    pub(crate) unsafe fn pop(&self, class: ClassId, key: Key) -> Result<FreeObject, Refusal> {
        // SAFETY: the offset is that of the areas; lists are there for good.
        unsafe { sequence::pop(&self.table, self.area(), class, key) }
    }

    /// Puts a marked object on this CPU's list of `class`.
    ///
    /// # Safety
    /// As [`pop`](Self::pop).
    #[inline(always)]
    pub(crate) unsafe fn push(&self, class: ClassId, object: FreeObject) -> Result<(), Refusal> {
        // SAFETY: as in `pop`.
        unsafe { sequence::push(&self.table, self.area(), class, object) }
    }

    /// Puts `batch` in a place of this CPU, and returns the one that was there. When it is refused
    /// each time, `batch` comes back.
    ///
    /// # Safety
    /// As [`pop`](Self::pop).
    unsafe fn exchange(&self, place: Place, class: ClassId, batch: Option<Batch>) -> Option<Batch> {
        let word = batch.map_or(Word::EMPTY, Word::new);
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
    fn limit(&self, class: ClassId) -> Option<&AtomicU16> {
        // SAFETY: null, or lists, which are there for good.
        let lists = unsafe { self.lists[self.cpu()?].load(Acquire).as_ref() }?;
        Some(&lists.limits[class.index()])
    }

    /// Lets this CPU have its lists, made of `memory` if it never had any. `false` if it cannot.
    #[cold]
    fn open(&self, memory: impl FnOnce(usize) -> Option<NonNull<u8>>) -> bool {
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

    /// Keeps all sequences away; the gate must be held. `false`, and nothing has changed, if the
    /// kernel will not restart those under way.
    fn stop(&self) -> bool {
        for (cpu, _) in self.in_use() {
            self.table[cpu].store(core::ptr::null_mut(), SeqCst);
        }
        let stopped = rseq::restart_all();
        if !stopped {
            self.resume();
        }
        stopped
    }

    /// Lets sequences go on; the gate must be held.
    fn resume(&self) {
        for (cpu, _) in self.in_use() {
            self.table[cpu].store(self.lists[cpu].load(Relaxed), Release);
        }
    }

    /// Takes all objects out of the lists of all CPUs, a list at a time.
    pub(crate) fn drain(&self, give: impl FnMut(ClassId, Batch) + Copy) {
        if self.used.load(Relaxed) == 0 {
            return;
        }
        let _gate = self.gate.lock();
        if self.stop() {
            for (_, lists) in self.in_use() {
                lists.drain(give);
            }
            self.resume();
        }
    }

    /// How many objects of `class` are listed; exact when no other thread is at work.
    pub(crate) fn objects(&self, class: ClassId) -> usize {
        let count = |word: &AtomicUsize| Word::from_bits(word.load(Relaxed)).count();
        self.in_use().flat_map(|(_, lists)| lists.words_of(class)).map(count).sum()
    }

    /// How many CPUs have lists.
    pub(crate) fn count(&self) -> usize {
        self.in_use().count()
    }

    /// A sequence is to be tried again.
    fn note_abort(&self) {
        self.aborts.fetch_add(1, Relaxed);
    }

    /// Keeps all sequences away across a fork.
    pub(crate) fn before_fork(&self) {
        self.gate.lock_for_fork();
        self.is_stopped.store(self.used.load(Relaxed) == 0 || self.stop(), Relaxed);
    }

    /// Drops the lists in a forked child, if they may be the copy of a moment at which they changed:
    /// their objects are lost. To be called before [`after_fork`](Self::after_fork).
    pub(crate) fn drop_if_torn(&self) {
        if !self.is_stopped.load(Relaxed) {
            for (_, lists) in self.in_use() {
                lists.drain(|_, _| {});
            }
        }
    }

    /// Lets them go on, in the parent and in the child.
    ///
    /// # Safety
    /// This thread, or the one it is the copy of, called [`before_fork`](Self::before_fork).
    pub(crate) unsafe fn after_fork(&self) {
        self.resume();
        // SAFETY: the caller's promise.
        unsafe { self.gate.unlock() };
    }
}

impl<S: System> Heap<S> {
    /// How many sequences the slow paths have tried again. For tests.
    #[cfg(any(test, feature = "validate"))]
    pub fn aborted_sequences(&self) -> usize {
        self.cpus.aborts.load(Relaxed)
    }

    /// Makes ready for [`Seat::Cpu`]; whether this thread may have it.
    pub fn begin_cpu_front(&self) -> bool {
        self.ensure_key();
        self.cpus.begin()
    }

    /// An object of `class` from this CPU's list; null when the slow path must be asked.
    ///
    /// # Safety
    /// [`begin_cpu_front`](Self::begin_cpu_front) has said yes.
    #[inline(always)]
    pub(crate) unsafe fn take_by_cpu(&self, class: ClassId) -> *mut u8 {
        // SAFETY: the caller's promise, passed on.
        let Ok(object) = (unsafe { self.cpus.pop(class, self.key()) }) else {
            return core::ptr::null_mut();
        };
        hand_out(object)
    }

    /// Puts an object on this CPU's list; `false`, and nothing has changed, when the slow path must
    /// be asked.
    ///
    /// # Safety
    /// As [`take_by_cpu`](Self::take_by_cpu).
    #[inline(always)]
    pub(crate) unsafe fn give_by_cpu(&self, class: ClassId, object: FreeObject, key: Key) -> bool {
        object.mark(key);
        // SAFETY: the caller's promise, passed on.
        let given = unsafe { self.cpus.push(class, object) }.is_ok();
        if !given {
            object.unmark();
        }
        given
    }

    /// As [`take_by_cpu`](Self::take_by_cpu), whatever it takes; null when memory is out.
    ///
    /// # Safety
    /// As [`take_by_cpu`](Self::take_by_cpu).
    #[cold]
    pub(crate) unsafe fn take_by_cpu_slow(&self, class: ClassId) -> *mut u8 {
        for _ in 0..TRIES {
            // SAFETY: the caller's promise, passed on.
            match unsafe { self.cpus.pop(class, self.key()) } {
                Ok(object) => return hand_out(object),
                Err(Refusal::Aborted) => self.cpus.note_abort(),
                // SAFETY: as above.
                Err(Refusal::Exhausted) => return unsafe { self.refill(class) },
                Err(Refusal::Absent) => {
                    if !self.cpus.open(|bytes| self.backend.metadata(bytes)) {
                        break;
                    }
                }
                Err(Refusal::Corrupt(object)) => {
                    self.misuse("malloc", object, Misuse::FreeListCorrupted);
                }
            }
        }
        self.take_uncached(class)
    }

    /// An object of `class`, and the rest of its batch for this CPU's list, which was empty.
    unsafe fn refill(&self, class: ClassId) -> *mut u8 {
        // SAFETY: the caller's promise, passed on.
        let spare = unsafe { self.cpus.exchange(Place::Spare, class, None) };
        let ask = || self.lengthen(class);
        let Some(batch) = spare.or_else(|| self.get_batch(class, ask())) else {
            return core::ptr::null_mut();
        };
        if let Some(head) = batch.head.next() {
            let rest = Batch { head, count: batch.count - 1 };
            // SAFETY: as above. What another thread has put there meanwhile comes out.
            if let Some(other) = unsafe { self.cpus.exchange(Place::List, class, Some(rest)) } {
                self.put_batch(class, other);
            }
        }
        hand_out(batch.head)
    }

    /// The limit of this CPU's list of `class`, as it was; from now on it is longer.
    fn lengthen(&self, class: ClassId) -> usize {
        let Some(limit) = self.cpus.limit(class) else { return 1 };
        let before = limit.load(Relaxed);
        limit.store(longer_limit(before, class.batch()), Relaxed);
        before.into()
    }

    /// As [`give_by_cpu`](Self::give_by_cpu), whatever it takes.
    ///
    /// # Safety
    /// As [`give_by_cpu`](Self::give_by_cpu).
    #[cold]
    pub(crate) unsafe fn give_by_cpu_slow(&self, class: ClassId, object: FreeObject) {
        object.mark(self.key());
        for _ in 0..TRIES {
            // SAFETY: the caller's promise, passed on.
            match unsafe { self.cpus.push(class, object) } {
                Ok(()) => return,
                // SAFETY: as above.
                Err(Refusal::Exhausted) => return unsafe { self.overflow(class, object) },
                Err(Refusal::Absent) => {
                    if !self.cpus.open(|bytes| self.backend.metadata(bytes)) {
                        break;
                    }
                }
                Err(_) => self.cpus.note_abort(),
            }
        }
        object.link(None, self.key());
        self.give_to_slabs(class, Batch { head: object, count: 1 });
    }

    /// Makes a list of `object` alone in place of this CPU's full one.
    unsafe fn overflow(&self, class: ClassId, object: FreeObject) {
        object.link(None, self.key());
        let single = Batch { head: object, count: 1 };
        // SAFETY: the caller's promise, passed on.
        let full = unsafe { self.cpus.exchange(Place::List, class, Some(single)) };
        let surplus = if self.lengthen(class) < class.batch() {
            full
        } else {
            // SAFETY: as above.
            unsafe { self.cpus.exchange(Place::Spare, class, full) }
        };
        if let Some(batch) = surplus {
            self.put_batch(class, batch);
            // SAFETY: as above.
            unsafe { self.relieve(Seat::Cpu) };
        }
    }
}

/// Takes the mark off an object on its way to a caller.
#[inline(always)]
fn hand_out(object: FreeObject) -> *mut u8 {
    object.unmark();
    object.as_ptr().as_ptr()
}
