//! Execution: the planned operations on this process's `malloc`, one thread a lane.
//!
//! ```text
//!  execute ──► lane ──► order: is its time there, are the others near, is its object there?
//!               │  ▲      │
//!               ▼  └──────┘
//!           operation: call, touch, check
//! ```
//!
//! 1. Nothing here allocates, reads the trace or makes a system call, except for the planned calls,
//!    the touching of memory, and yielding while a thread must wait.
//! 2. Before a batch, a thread waits until every other lane has done all operations more than
//!    [`WINDOW`](super::plan::WINDOW) before the batch's last. The lane with the earliest operation
//!    never waits, since a batch spans at most a quarter of the window.
//! 3. An operation on another thread's object waits until that object is in its slot. An earlier
//!    operation makes the object, so such waits end.
//! 4. If a lane's thread cannot be started the run is abandoned: no thread waits any longer, and
//!    the run gives an error instead of a figure.
//! 5. A lane's thread begins once all threads are done whose last operation is earlier than its
//!    first. (The first lane has no thread of its own.) Those threads wait only for earlier
//!    operations, all of which are in lanes that have begun.
//!
//! Orderings: an object's pointer is stored `Release` and loaded `Acquire`, so the block's content
//! goes with it. Likewise the progress of a lane, which lets others reuse emptied slots, and the
//! number of lanes that are done, whose progress is no longer looked at.

mod operation;
mod order;

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;

use anyhow::bail;

use super::Options;
use super::clock::{Rate, ticks};
use super::plan::{Lane, NO_SLOT, Segment, Slot};

/// The content of a slot whose allocation failed: not null, and never given to the allocator.
const FAILED: *mut c_void = std::ptr::without_provenance_mut(1);

/// Room for the few stack frames of the harness and the subject, bytes.
const LANE_STACK_BYTES: usize = 1 << 18;

/// How far a lane is, on cache lines of its own.
#[repr(align(128))]
struct Progress(AtomicU64);

/// The pointers of all live objects. The table grows between segments.
#[derive(Default)]
pub(crate) struct Table {
    slots: Vec<AtomicPtr<c_void>>,
}

impl Table {
    /// Makes room for `slots` slots and touches it, so that it is resident before a window opens.
    pub(crate) fn grow(&mut self, slots: usize) {
        let known = self.slots.len();
        if slots > known {
            self.slots.resize_with(slots, AtomicPtr::default);
            for slot in &self.slots[known..] {
                slot.store(null_mut(), Ordering::Relaxed);
            }
        }
    }

    /// The block in a slot; null or [`FAILED`] if there is none.
    pub(crate) fn pointer(&self, slot: Slot, order: Ordering) -> *mut c_void {
        self.slots[slot as usize].load(order)
    }
}

/// What a lane's thread counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Planted slowness not yet spent, ns.
    owed_ns: u64,
    /// Operations executed.
    pub(crate) ops: u64,
    /// Allocations that returned null but did not when recorded.
    pub(crate) failed: u64,
    /// Blocks that did not hold what was written into them, or were calloc'ed and not zero.
    pub(crate) corrupt: u64,
    /// Time spent waiting for other threads, ticks.
    pub(crate) waiting_ticks: u64,
    /// Time from the first operation to the last, ticks.
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
    /// All lanes before this one are done.
    done: AtomicUsize,
    /// Invariant 4.
    abandoned: AtomicBool,
    /// For each lane, the latency of every operation in ticks; empty unless asked for.
    latencies: Vec<Vec<AtomicU32>>,
}

impl<'a> Run<'a> {
    /// Prepares a run. The latency arrays are allocated and touched here.
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
            abandoned: AtomicBool::new(false),
            latencies: if timed { segment.lanes.iter().map(untouched).collect() } else { vec![] },
        }
    }

    /// Latency of every operation of each lane, ticks, after the run.
    pub(crate) fn into_latencies(self) -> Vec<Vec<AtomicU32>> {
        self.latencies
    }

    /// Executes all lanes: the first on this thread, as the program's main thread did; the others
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
                    let mut counts = Counts::default();
                    let mut running: Vec<(u64, ScopedJoinHandle<'_, Counts>)> = Vec::new();
                    for lane in 1..self.lanes.len() {
                        let first = self.progress[lane].0.load(Ordering::Relaxed);
                        self.wait_for_window(lane, first);
                        // No more threads run at a time than were recorded. Joined threads give
                        // back their stacks, which would otherwise count as the subject's memory.
                        // By invariant 5 the joins end.
                        for (_, done) in running.extract_if(.., |&mut (last, _)| last < first) {
                            counts.add(self.joined(done)?);
                        }
                        let thread = std::thread::Builder::new()
                            .stack_size(LANE_STACK_BYTES)
                            .spawn_scoped(scope, move || self.lane(lane, start));
                        match thread {
                            Ok(thread) => running.push((self.last_of(lane), thread)),
                            Err(error) => {
                                self.abandoned.store(true, Ordering::Relaxed);
                                let all = self.lanes.len();
                                bail!("cannot start thread {} of {all}: {error}", lane + 1);
                            }
                        }
                    }
                    for (_, thread) in running {
                        counts.add(self.joined(thread)?);
                    }
                    Ok(counts)
                },
            )?;
            let mut counts = self.lane(0, start);
            counts.add(starter.join().map_err(|_| anyhow::anyhow!("the starter panicked"))??);
            Ok(counts)
        })
    }

    /// Number of a lane's last operation.
    fn last_of(&self, lane: usize) -> u64 {
        self.lanes[lane].batches.last().map_or(0, |batch| batch.last)
    }

    /// What a lane's thread counted, once it has ended.
    fn joined(&self, thread: ScopedJoinHandle<'_, Counts>) -> anyhow::Result<Counts> {
        thread.join().map_err(|_| {
            self.abandoned.store(true, Ordering::Relaxed);
            anyhow::anyhow!("a lane panicked")
        })
    }

    /// Executes one lane on this thread. `start` is the beginning of the segment.
    fn lane(&self, nth: usize, start: u64) -> Counts {
        let lane = &self.lanes[nth];
        let shared = self.lanes.len() > 1;
        let timed = self.latencies.get(nth).map(Vec::as_slice);
        let mut counts = Counts::default();
        let began = ticks();
        let mut from = 0;
        for batch in &lane.batches {
            if self.abandoned.load(Ordering::Relaxed) {
                break;
            }
            if shared {
                self.progress[nth].0.store(batch.first, Ordering::Release);
                counts.waiting_ticks += self.wait_for_window(nth, batch.last);
            }
            let ops = from..batch.end;
            from = batch.end;
            let done = ops.len() as u64;
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
            counts.ops += done;
        }
        self.progress[nth].0.store(u64::MAX, Ordering::Release);
        counts.elapsed_ticks = ticks() - began;
        counts
    }
}
