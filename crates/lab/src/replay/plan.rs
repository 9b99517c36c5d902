//! Decoding: a stretch of the trace becomes arrays of operations before any clock runs.
//!
//! ```text
//!  trace, merged:  g = 0 1 2 3 4 5 …          one number for every operation
//!  thread 1:       [0 1 4][7 9 …]             cut into batches of at most 64 operations
//!  thread 2:           [2 3 5 6][8 …]         that span at most a quarter of the window
//! ```
//!
//! 1. Objects become slots of one table. A slot is reused only by an operation at least [`WINDOW`]
//!    after the one that emptied it, so by invariant 2 of [`engine`](super::engine) no thread can
//!    find the wrong object in it.
//! 2. The plan depends on the trace and the mode alone. Every subject executes the same plan, and
//!    its hash goes into the record.
//! 3. No operation merely uses an object that an operation of another thread can free.
//! 4. Memory: the operations of one segment, and the live objects.

use std::collections::VecDeque;

use hectare_trace::{Event, ObjectId, Ordered, Record, Step, ThreadId, Trace};
use rustc_hash::FxHashMap;

/// How many operations of the merged order a thread may be ahead of the slowest. The order is exact
/// where an object changes hands. This keeps the rest close to the recorded interleaving, so that a
/// producer cannot fill the memory while its consumer sleeps.
pub(crate) const WINDOW: u64 = 4096;

/// Number of operations after which a thread publishes its progress.
const BATCH_OPS: usize = 64;

/// Operations decoded at a time: 24 bytes each.
pub(crate) const SEGMENT_OPS: u64 = 1 << 22;

/// What an operation calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Call {
    Malloc,
    Calloc,
    Memalign,
    Realloc,
    Free,
    UsableSize,
}

impl Call {
    pub(crate) const ALL: [Self; 6] =
        [Self::Malloc, Self::Calloc, Self::Memalign, Self::Realloc, Self::Free, Self::UsableSize];

    /// The C name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Malloc => "malloc",
            Self::Calloc => "calloc",
            Self::Memalign => "posix_memalign",
            Self::Realloc => "realloc",
            Self::Free => "free",
            Self::UsableSize => "malloc_usable_size",
        }
    }
}

/// A slot of the table of objects.
pub(crate) type Slot = u32;

/// No object: the program gave a null pointer, or the call returned null when it was recorded.
pub(crate) const NO_SLOT: Slot = Slot::MAX;

/// One call, ready to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    /// Bytes asked for; for a free, the object's bytes.
    pub(crate) size_bytes: u64,
    /// Low 56 bits: the object's previous size, bytes; high 8: the call and its alignment.
    packed: u64,
    /// The slot of the object made.
    pub(crate) made: Slot,
    /// The slot of the object given.
    pub(crate) given: Slot,
}

const OLD_BITS: u32 = 48;

impl Op {
    fn new(call: Call, size_bytes: u64, old_bytes: u64, align_log2: u8) -> Self {
        let packed = old_bytes.min((1 << OLD_BITS) - 1)
            | u64::from(align_log2) << OLD_BITS
            | (call as u64) << 56;
        Self { size_bytes, packed, made: NO_SLOT, given: NO_SLOT }
    }

    /// The function to call.
    #[inline(always)]
    pub(crate) fn call(&self) -> Call {
        match self.packed >> 56 {
            0 => Call::Malloc,
            1 => Call::Calloc,
            2 => Call::Memalign,
            3 => Call::Realloc,
            4 => Call::Free,
            _ => Call::UsableSize,
        }
    }

    /// Size of the object given, bytes.
    #[inline(always)]
    pub(crate) fn old_bytes(&self) -> u64 {
        self.packed & ((1 << OLD_BITS) - 1)
    }

    /// Alignment asked for, bytes.
    #[inline(always)]
    pub(crate) fn align_bytes(&self) -> usize {
        1 << (self.packed >> OLD_BITS & 63)
    }
}

/// Consecutive operations of one thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch {
    /// Number of the first operation in the merged order.
    pub(crate) first: u64,
    /// Number of the last.
    pub(crate) last: u64,
    /// End of the batch in the thread's operations.
    pub(crate) end: usize,
}

/// What one thread does in a segment.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub(crate) ops: Vec<Op>,
    pub(crate) batches: Vec<Batch>,
    /// Recorded time of each operation, ns from the segment's beginning; empty unless asked for.
    pub(crate) start_ns: Vec<u64>,
}

/// A stretch of the trace, decoded.
#[derive(Debug, Default)]
pub(crate) struct Segment {
    /// The threads with operations in the segment, in the order of their first operations.
    pub(crate) lanes: Vec<Lane>,
    /// Recorded time of the segment's first operation, ns from the trace's beginning, if asked for.
    pub(crate) beginning_ns: u64,
    /// Slots needed so far.
    pub(crate) slots: usize,
    /// Operations in all lanes.
    pub(crate) ops: u64,
}

/// Totals of the whole plan.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// Operations planned.
    pub(crate) ops: u64,
    /// Operations left out: their object was inherited from a parent process, or lost to damage.
    pub(crate) skipped_ops: u64,
    /// Most live bytes at a time.
    pub(crate) live_peak_bytes: u64,
    /// Sum over all operations of the bytes live at each.
    live_sum_bytes: f64,
    /// Hash over all operations.
    pub(crate) hash: u64,
}

impl Totals {
    /// Mean over the operations of the bytes live.
    pub(crate) fn live_mean_bytes(&self) -> f64 {
        self.live_sum_bytes / self.ops.max(1) as f64
    }

    fn mix(&mut self, word: u64) {
        self.hash = (self.hash.rotate_left(5) ^ word).wrapping_mul(0x517C_C1B7_2722_0A95);
    }
}

/// Which arrays are wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// All threads in one lane.
    pub(crate) serial: bool,
    /// The recorded times.
    pub(crate) starts: bool,
}

/// Decodes a trace segment by segment.
pub(crate) struct Planner<'a> {
    ordered: Ordered<'a>,
    wanted: Wanted,
    ns_per_tick: f64,
    live: FxHashMap<ObjectId, (Slot, u64)>,
    live_bytes: u64,
    /// Where in the segment an object is used without ending: lane and operation.
    uses: FxHashMap<Slot, Vec<(usize, usize)>>,
    /// Emptied slots, and when they were emptied.
    emptied: VecDeque<(u64, Slot)>,
    slots: Slot,
    totals: Totals,
}

impl<'a> Planner<'a> {
    pub(crate) fn new(trace: &'a Trace, wanted: Wanted) -> Self {
        Self {
            ordered: Ordered::new(trace),
            wanted,
            ns_per_tick: 1e9 / trace.header().ticks_per_second as f64,
            live: FxHashMap::default(),
            live_bytes: 0,
            uses: FxHashMap::default(),
            emptied: VecDeque::new(),
            slots: 0,
            totals: Totals::default(),
        }
    }

    /// Bytes live after the operations planned so far.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// The objects live after those operations: slot, size in bytes.
    pub(crate) fn live(&self) -> impl Iterator<Item = (Slot, u64)> + '_ {
        self.live.values().copied()
    }

    /// Totals of the operations planned so far.
    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }

    /// The next segment; `None` at the end.
    ///
    /// # Errors
    /// When the trace cannot be read.
    pub(crate) fn segment(&mut self, most_ops: u64) -> anyhow::Result<Option<Segment>> {
        let mut segment = Segment::default();
        let mut lane_of: FxHashMap<ThreadId, usize> = FxHashMap::default();
        let mut beginning = None;
        // Uses in earlier segments are over: those segments end before this one begins.
        self.uses.clear();
        while segment.ops < most_ops {
            let Some(Step { thread, record }) = self.ordered.next_step()? else { break };
            let Some(op) = self.op(&record) else { continue };
            let thread = if self.wanted.serial { ThreadId(0) } else { thread };
            let lane_nth = *lane_of.entry(thread).or_insert_with(|| {
                segment.lanes.push(Lane::default());
                segment.lanes.len() - 1
            });
            let number = self.totals.ops;
            self.count(thread, &op);
            let lane = &mut segment.lanes[lane_nth];
            if self.wanted.starts {
                let beginning = *beginning.get_or_insert(record.time_ticks);
                let ticks = record.time_ticks.saturating_sub(beginning);
                lane.start_ns.push((ticks as f64 * self.ns_per_tick) as u64);
            }
            lane.push(op, number);
            self.order_uses(&mut segment, lane_nth, &op);
            segment.ops += 1;
        }
        let beginning = beginning.unwrap_or(0);
        segment.beginning_ns = (beginning as f64 * self.ns_per_tick) as u64;
        segment.slots = self.slots as usize;
        Ok((segment.ops > 0).then_some(segment))
    }

    /// A thread may ask about a block that another thread frees later, or moves by a reallocation
    /// that failed when it was recorded. Nothing in the replay orders the two operations, and
    /// waiting could make threads wait for each other. So the earlier operation is given no block,
    /// and is counted as left out.
    fn order_uses(&mut self, segment: &mut Segment, lane: usize, op: &Op) {
        if self.wanted.serial || op.given == NO_SLOT {
            return;
        }
        let can_free = |op: &Op| matches!(op.call(), Call::Free | Call::Realloc);
        let mut uses = self.uses.remove(&op.given).unwrap_or_default();
        uses.retain(|&(user, nth)| {
            let earlier = &mut segment.lanes[user].ops[nth];
            let stays = user == lane || !can_free(op) && !can_free(earlier);
            if !stays {
                earlier.given = NO_SLOT;
                self.totals.skipped_ops += 1;
            }
            stays
        });
        let ends = can_free(op) && (op.call() == Call::Free || op.made != NO_SLOT);
        if !ends {
            uses.push((lane, segment.lanes[lane].ops.len() - 1));
            self.uses.insert(op.given, uses);
        }
    }

    fn count(&mut self, thread: ThreadId, op: &Op) {
        let totals = &mut self.totals;
        totals.ops += 1;
        totals.live_peak_bytes = totals.live_peak_bytes.max(self.live_bytes);
        totals.live_sum_bytes += self.live_bytes as f64;
        totals.mix(op.size_bytes);
        totals.mix(op.packed);
        totals.mix(u64::from(op.made) << 32 | u64::from(op.given));
        totals.mix(u64::from(thread.0));
    }

    /// The operation of a record; `None` for records that call nothing or name an unknown object.
    fn op(&mut self, record: &Record) -> Option<Op> {
        let given = match record.event.object() {
            None => None,
            Some(object) => match self.live.get(&object) {
                Some(&known) => Some((object, known)),
                None => {
                    self.totals.skipped_ops += 1;
                    // The reallocation still makes an object that later records will name.
                    record.made?;
                    None
                }
            },
        };
        let fails = record.event.asked_bytes().is_some() && record.made.is_none();
        if fails && given.is_some() && record.event.asked_bytes() == Some(0) {
            // No recorder writes a `realloc` to size 0 that left the block in place. Replayed, it
            // would free the block, which later records still name.
            self.totals.skipped_ops += 1;
            return None;
        }
        let (given_slot, old_bytes) = given.map_or((NO_SLOT, 0), |(_, known)| known);
        let mut op = match record.event {
            Event::Malloc { size_bytes } => Op::new(Call::Malloc, size_bytes, 0, 0),
            Event::Calloc { size_bytes } => Op::new(Call::Calloc, size_bytes, 0, 0),
            Event::Memalign { size_bytes, align_log2 } => {
                Op::new(Call::Memalign, size_bytes, 0, align_log2)
            }
            Event::Realloc { size_bytes, .. } => Op::new(Call::Realloc, size_bytes, old_bytes, 0),
            Event::Free { .. } | Event::SizedFree { .. } => {
                Op::new(Call::Free, old_bytes, old_bytes, 0)
            }
            Event::UsableSize { .. } => Op::new(Call::UsableSize, old_bytes, old_bytes, 0),
            Event::ThreadStart | Event::ThreadEnd | Event::Fork { .. } | Event::Marker { .. } => {
                return None;
            }
        };
        op.given = given_slot;
        let ends = matches!(op.call(), Call::Free | Call::Realloc) && !fails;
        if let Some(made) = record.made {
            op.made = self.take_slot();
            self.live.insert(made, (op.made, op.size_bytes));
            // A damaged trace can claim any size.
            self.live_bytes = self.live_bytes.wrapping_add(op.size_bytes);
        }
        if let Some((object, (slot, bytes))) = given
            && ends
        {
            self.live.remove(&object);
            self.live_bytes = self.live_bytes.wrapping_sub(bytes);
            self.emptied.push_back((self.totals.ops, slot));
        }
        Some(op)
    }

    fn take_slot(&mut self) -> Slot {
        if let Some(&(since, slot)) = self.emptied.front()
            && since + WINDOW < self.totals.ops
        {
            self.emptied.pop_front();
            return slot;
        }
        self.slots += 1;
        self.slots - 1
    }
}

impl Lane {
    fn push(&mut self, op: Op, number: u64) {
        self.ops.push(op);
        let end = self.ops.len();
        if let Some(batch) = self.batches.last_mut()
            && number - batch.first < WINDOW / 4
            && !(end - 1).is_multiple_of(BATCH_OPS)
        {
            batch.last = number;
            batch.end = end;
        } else {
            self.batches.push(Batch { first: number, last: number, end });
        }
    }
}
