//! Execution: the planned operations on this process's `malloc`, one thread a lane.
//!
//! 1. Nothing here allocates, reads the trace or makes a system call but the planned calls, the
//!    touching of memory, and yielding while a thread must wait.
//! 2. Before a batch, a thread waits until every other lane has done all operations that lie more
//!    than [`WINDOW`] before the batch's last. The lane with the earliest operation never waits,
//!    for a batch spans at most a quarter of the window.
//! 3. An operation on another thread's object waits until that object is in its slot. It was made
//!    by an earlier operation, so such waits end.
//!
//! Orderings: an object's pointer is stored `Release` and loaded `Acquire`, so the block's content
//! goes with it; so is the progress of a lane, which lets others use emptied slots again.

use std::ffi::c_void;
use std::hint::{black_box, spin_loop};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::clock::{Rate, ticks};
use super::plan::{Call, Lane, NO_SLOT, Op, Segment, Slot, WINDOW};
use super::{Mode, Options, Touch};

/// What stands in a slot whose allocation failed: not null, never given to the allocator.
const FAILED: *mut c_void = std::ptr::without_provenance_mut(1);

/// Room for the harness's few frames and the subject's, bytes.
const LANE_STACK_BYTES: usize = 1 << 18;

/// Looks at a word this often before the thread yields.
const SPINS: u32 = 100;

/// Where a lane is, alone on its cache lines.
#[repr(align(128))]
struct Progress(AtomicU64);

/// The pointers of all live objects; grows between segments.
#[derive(Default)]
pub(crate) struct Table {
    slots: Vec<AtomicPtr<c_void>>,
}

impl Table {
    /// Makes room, and touches it, so that it is resident before a window opens.
    pub(crate) fn grow(&mut self, slots: usize) {
        let known = self.slots.len();
        if slots > known {
            self.slots.resize_with(slots, AtomicPtr::default);
            for slot in &self.slots[known..] {
                slot.store(null_mut(), Ordering::Relaxed);
            }
        }
    }
}

impl Table {
    /// The block in a slot; null or [`FAILED`] where there is none.
    pub(crate) fn pointer(&self, slot: Slot, order: Ordering) -> *mut c_void {
        self.slots[slot as usize].load(order)
    }
}

/// What a lane's thread counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Planted slowness not yet lost, ns.
    owed_ns: u64,
    /// Operations executed.
    pub(crate) ops: u64,
    /// Allocations that returned null but did not when recorded.
    pub(crate) failed: u64,
    /// Blocks that did not hold what was written into them, or calloc'ed and not zero.
    pub(crate) corrupt: u64,
    /// Time spent waiting for other threads, ticks.
    pub(crate) waiting_ticks: u64,
    /// From the first operation to the last, ticks.
    pub(crate) elapsed_ticks: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: Self) {
        self.ops += other.ops;
        self.failed += other.failed;
        self.corrupt += other.corrupt;
        self.waiting_ticks += other.waiting_ticks;
        self.elapsed_ticks += other.elapsed_ticks;
    }
}

/// A segment about to run: everything that its threads share.
pub(crate) struct Run<'a> {
    lanes: &'a [Lane],
    table: &'a Table,
    options: Options,
    rate: Rate,
    progress: Vec<Progress>,
    /// Lanes before this one are done.
    done: AtomicUsize,
    /// Of each lane, the latency of every operation in ticks; empty unless asked for.
    latencies: Vec<Vec<AtomicU32>>,
}

impl<'a> Run<'a> {
    /// Prepares; the latency arrays are allocated and touched here.
    pub(crate) fn new(
        segment: &'a Segment,
        table: &'a Table,
        options: Options,
        timed: bool,
        rate: Rate,
    ) -> Self {
        let first = |lane: &Lane| lane.batches.first().map_or(u64::MAX, |batch| batch.first);
        let untouched = |lane: &Lane| lane.ops.iter().map(|_| AtomicU32::new(u32::MAX)).collect();
        Self {
            lanes: &segment.lanes,
            table,
            options,
            rate,
            progress: segment.lanes.iter().map(|l| Progress(AtomicU64::new(first(l)))).collect(),
            done: AtomicUsize::new(0),
            latencies: if timed { segment.lanes.iter().map(untouched).collect() } else { vec![] },
        }
    }

    /// Latency of every operation of each lane, ticks, after the run.
    pub(crate) fn into_latencies(self) -> Vec<Vec<AtomicU32>> {
        self.latencies
    }

    /// Executes all lanes: the first on this thread, as the program's main thread did, the others
    /// on threads that begin when their first operation is due.
    pub(crate) fn execute(&self) -> anyhow::Result<Counts> {
        if let [_] = self.lanes {
            return Ok(self.lane(0, ticks()));
        }
        let start = ticks();
        std::thread::scope(|scope| {
            let starter = std::thread::Builder::new().stack_size(LANE_STACK_BYTES).spawn_scoped(
                scope,
                || -> anyhow::Result<Counts> {
                    let mut running = Vec::new();
                    for lane in 1..self.lanes.len() {
                        let first = self.progress[lane].0.load(Ordering::Relaxed);
                        self.wait_for_window(lane, first);
                        running.push(
                            std::thread::Builder::new()
                                .stack_size(LANE_STACK_BYTES)
                                .spawn_scoped(scope, move || self.lane(lane, start))?,
                        );
                    }
                    let mut counts = Counts::default();
                    for thread in running {
                        counts.add(thread.join().map_err(|_| anyhow::anyhow!("a lane panicked"))?);
                    }
                    Ok(counts)
                },
            )?;
            let mut counts = self.lane(0, start);
            counts.add(starter.join().map_err(|_| anyhow::anyhow!("the starter panicked"))??);
            Ok(counts)
        })
    }

    /// Executes one lane on this thread; `start` is the beginning of the segment.
    fn lane(&self, nth: usize, start: u64) -> Counts {
        let lane = &self.lanes[nth];
        let shared = self.lanes.len() > 1;
        let timed = self.latencies.get(nth).map(Vec::as_slice);
        let mut counts = Counts::default();
        let began = ticks();
        let mut from = 0;
        for batch in &lane.batches {
            if shared {
                self.progress[nth].0.store(batch.first, Ordering::Release);
                counts.waiting_ticks += self.wait_for_window(nth, batch.last);
            }
            let ops = from..batch.end;
            from = batch.end;
            match timed {
                None => {
                    for op in &lane.ops[ops] {
                        self.op(op, &mut counts);
                    }
                }
                Some(latencies) => {
                    for at in ops {
                        let op = &lane.ops[at];
                        let due = self.due(lane, at, start);
                        if shared && op.given != NO_SLOT {
                            counts.waiting_ticks += self.wait_for_object(op.given).1;
                        }
                        let before = due.unwrap_or_else(ticks);
                        self.op(op, &mut counts);
                        let took = u32::try_from(ticks() - before).unwrap_or(u32::MAX);
                        latencies[at].store(took, Ordering::Relaxed);
                    }
                }
            }
        }
        self.progress[nth].0.store(u64::MAX, Ordering::Release);
        counts.ops = lane.ops.len() as u64;
        counts.elapsed_ticks = ticks() - began;
        counts
    }

    /// Paced: waits until operation `at` is due and gives that moment, ticks.
    fn due(&self, lane: &Lane, at: usize, start: u64) -> Option<u64> {
        if self.options.mode != Mode::Paced {
            return None;
        }
        let start_ns = *lane.start_ns.get(at)?;
        let due = start + (start_ns as f64 / self.rate.ns_per_tick) as u64;
        loop {
            let now = ticks();
            if now >= due {
                return Some(due);
            }
            let left_ns = ((due - now) as f64 * self.rate.ns_per_tick) as u64;
            // A sleeping thread wakes some 50 µs late; the rest is spent looking.
            if left_ns > 200_000 {
                std::thread::sleep(std::time::Duration::from_nanos(left_ns - 150_000));
            } else if self.lanes.len() > 1 {
                std::thread::yield_now();
            } else {
                spin_loop();
            }
        }
    }

    /// Waits by invariant 2 before an operation numbered `last`; gives the ticks it took.
    #[inline]
    fn wait_for_window(&self, nth: usize, last: u64) -> u64 {
        let must = last.saturating_sub(WINDOW);
        if self.others_have_done(nth, must) { 0 } else { self.wait_for_window_slow(nth, must) }
    }

    #[cold]
    fn wait_for_window_slow(&self, nth: usize, must: u64) -> u64 {
        let since = ticks();
        wait(|| self.others_have_done(nth, must).then_some(()));
        ticks() - since
    }

    /// Whether every other lane has done all operations below `must`. Lanes stand in the order of
    /// their first operation, so those that begin later need not be looked at.
    #[inline]
    fn others_have_done(&self, nth: usize, must: u64) -> bool {
        let first = self.done.load(Ordering::Relaxed);
        for (lane, progress) in self.progress.iter().enumerate().skip(first) {
            let at = progress.0.load(Ordering::Acquire);
            if lane != nth && at < must {
                return false;
            }
            let begins = self.lanes[lane].batches.first().map_or(u64::MAX, |batch| batch.first);
            if begins >= must {
                break;
            }
            if at == u64::MAX && self.done.load(Ordering::Relaxed) == lane {
                self.done.store(lane + 1, Ordering::Relaxed);
            }
        }
        true
    }

    /// The object in a slot, when it is there, and the ticks that waiting for it took.
    #[inline(always)]
    fn wait_for_object(&self, slot: Slot) -> (*mut c_void, u64) {
        let object = self.table.slots[slot as usize].load(Ordering::Acquire);
        if object.is_null() { self.wait_for_object_slow(slot) } else { (object, 0) }
    }

    #[cold]
    fn wait_for_object_slow(&self, slot: Slot) -> (*mut c_void, u64) {
        let since = ticks();
        let slot = &self.table.slots[slot as usize];
        let object = wait(|| {
            let object = slot.load(Ordering::Acquire);
            (!object.is_null()).then_some(object)
        });
        (object, ticks() - since)
    }

    /// The object given to an operation: null for none, taken out of its slot if it `ends`.
    #[inline(always)]
    fn given(&self, op: &Op, ends: bool, counts: &mut Counts) -> *mut c_void {
        if op.given == NO_SLOT {
            return null_mut();
        }
        let (object, waited) = self.wait_for_object(op.given);
        counts.waiting_ticks += waited;
        if ends {
            self.table.slots[op.given as usize].store(null_mut(), Ordering::Relaxed);
        }
        object
    }

    #[inline(always)]
    fn op(&self, op: &Op, counts: &mut Counts) {
        match op.call() {
            Call::Malloc => {
                // SAFETY: any size may be asked for.
                let block = unsafe { libc::malloc(op.size_bytes as usize) };
                self.made(op, block, 0, counts);
            }
            Call::Free => {
                let block = self.given(op, true, counts);
                if block != FAILED {
                    self.check(op.given, block, op.old_bytes(), counts);
                    // SAFETY: null, or a live block that was in its slot and is there no longer.
                    unsafe { libc::free(block) };
                }
            }
            Call::Calloc => {
                // SAFETY: any size may be asked for.
                let block = unsafe { libc::calloc(1, op.size_bytes as usize) };
                if self.options.touch != Touch::None && op.size_bytes > 0 && !block.is_null() {
                    // SAFETY: the block has at least one byte, initialised by calloc.
                    counts.corrupt += u64::from(unsafe { block.cast::<u8>().read() } != 0);
                }
                self.made(op, block, 0, counts);
            }
            Call::Memalign => self.memalign(op, counts),
            Call::Realloc => self.realloc(op, counts),
            Call::UsableSize => {
                let block = self.given(op, false, counts);
                if block != FAILED {
                    // SAFETY: null or a live block.
                    black_box(unsafe { libc::malloc_usable_size(block) });
                }
            }
        }
        if self.options.planted_ns > 0 {
            self.be_slow(counts);
        }
    }

    #[inline(never)]
    fn memalign(&self, op: &Op, counts: &mut Counts) {
        let mut block = null_mut();
        let align = op.align_bytes().max(size_of::<*mut c_void>());
        // SAFETY: `block` is valid for writing, the alignment a power of two and large enough.
        let error = unsafe { libc::posix_memalign(&mut block, align, op.size_bytes as usize) };
        let block = if error == 0 { block } else { null_mut() };
        counts.corrupt += u64::from(block.addr() & (align - 1) != 0);
        self.made(op, block, 0, counts);
    }

    #[inline(never)]
    fn realloc(&self, op: &Op, counts: &mut Counts) {
        let ends = op.made != NO_SLOT;
        let old = match self.given(op, ends, counts) {
            FAILED => null_mut(),
            old => old,
        };
        if op.given != NO_SLOT {
            self.check(op.given, old, op.old_bytes(), counts);
        }
        // SAFETY: null or a live block; if it is freed by this call its slot has been emptied.
        let block = unsafe { libc::realloc(old, op.size_bytes as usize) };
        if !ends {
            // Failed when recorded. What moved nevertheless takes the place of the old object.
            if !block.is_null() && op.given != NO_SLOT {
                self.table.slots[op.given as usize].store(block, Ordering::Release);
            } else if op.given == NO_SLOT {
                // SAFETY: null or a block just made.
                unsafe { libc::free(black_box(block)) };
            }
            return;
        }
        let kept = if old.is_null() { 0 } else { op.old_bytes().min(op.size_bytes) };
        if op.given != NO_SLOT && !block.is_null() {
            self.check(op.given, block, kept, counts);
        }
        if block.is_null() && !old.is_null() && op.size_bytes > 0 {
            // The old block is still there, and nobody will free it: the recorded program would.
            // SAFETY: a live block whose slot has been emptied.
            unsafe { libc::free(old) };
        }
        self.made(op, block, kept, counts);
    }

    /// Touches a new block beyond the bytes it `kept` and puts it into its slot.
    #[inline(always)]
    fn made(&self, op: &Op, block: *mut c_void, kept: u64, counts: &mut Counts) {
        let block = black_box(block);
        if op.made == NO_SLOT {
            // It failed when it was recorded; what is given now belongs to nobody.
            // SAFETY: null or a block just made.
            unsafe { libc::free(block) };
            return;
        }
        let object = if block.is_null() {
            counts.failed += 1;
            FAILED
        } else {
            self.touch(op, block.cast(), kept);
            block
        };
        self.table.slots[op.made as usize].store(object, Ordering::Release);
    }

    #[inline(always)]
    fn touch(&self, op: &Op, block: *mut u8, kept: u64) {
        let step = match self.options.touch {
            Touch::None => return,
            Touch::Line => 64,
            Touch::Page => 4096,
            Touch::Full => return touch_all(op, block, kept),
        };
        let size = op.size_bytes as usize;
        let mut at = (kept as usize).next_multiple_of(step);
        while at < size {
            // SAFETY: `at` lies inside the block.
            let place = unsafe { block.add(at) };
            // SAFETY: as above.
            unsafe { place.write_volatile(1) };
            at += step;
        }
        mark(op, block);
    }

    /// Counts a block whose mark is no longer there.
    #[inline(always)]
    fn check(&self, slot: Slot, block: *mut c_void, size_bytes: u64, counts: &mut Counts) {
        if self.options.touch != Touch::None && size_bytes > 0 && !block.is_null() {
            // SAFETY: the block has at least one byte, and `mark` wrote it.
            let mark = unsafe { block.cast::<u8>().read() };
            counts.corrupt += u64::from(mark != slot as u8);
        }
    }

    /// The planted control: loses the planted time of this operation. Reading the clock takes
    /// longer than a planted nanosecond or two, so the time is lost for many operations at once.
    fn be_slow(&self, counts: &mut Counts) {
        counts.owed_ns += self.options.planted_ns;
        if counts.owed_ns < PAID_AT_ONCE_NS {
            return;
        }
        let ticks_owed = (counts.owed_ns as f64 / self.rate.ns_per_tick) as u64;
        let until = ticks() + ticks_owed;
        while ticks() < until {
            spin_loop();
        }
        counts.owed_ns = 0;
    }
}

/// How much planted time is lost at once: much more than a reading of the clock takes.
const PAID_AT_ONCE_NS: u64 = 5_000;

#[inline(never)]
fn touch_all(op: &Op, block: *mut u8, kept: u64) {
    let fresh = op.size_bytes.saturating_sub(kept) as usize;
    // SAFETY: the kept bytes are part of the block.
    let start = unsafe { block.add(kept as usize) };
    // SAFETY: the rest of the block.
    unsafe { start.write_bytes(0xA5, fresh) };
    black_box(block);
    mark(op, block);
}

/// Writes the slot's number into the block, for [`Run::check`].
#[inline(always)]
fn mark(op: &Op, block: *mut u8) {
    if op.size_bytes > 0 {
        // SAFETY: the block has at least one byte.
        unsafe { block.write_volatile(op.made as u8) };
    }
}

/// Looks until `ready` gives something; yields the processor after some time.
fn wait<T>(ready: impl Fn() -> Option<T>) -> T {
    let mut looks = 0;
    loop {
        if let Some(value) = ready() {
            return value;
        }
        looks += 1;
        if looks < SPINS {
            spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}
