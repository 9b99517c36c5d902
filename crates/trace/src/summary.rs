//! The content of a trace in figures: one pass, memory for the live objects.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::curve::{Curve, LivePoint};
use crate::error::Error;
use crate::event::{Event, ObjectId, ThreadId};
use crate::histogram::Histogram;
use crate::order::{Ordered, Step};
use crate::reader::Trace;

/// What one thread did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadSummary {
    /// Rows.
    pub rows: u64,
    /// Objects made.
    pub made: u64,
    /// Objects ended by this thread.
    pub ended: u64,
    /// Ended objects that another thread had made.
    pub ended_foreign: u64,
    /// Time of the first row, ticks.
    pub first_ticks: u64,
    /// Time of the last row, ticks.
    pub last_ticks: u64,
}

/// The content of a whole trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Rows by name of the call (`malloc`, `free`, …).
    pub calls: BTreeMap<&'static str, u64>,
    /// Calls that asked for memory and got null.
    pub failed: u64,
    /// Frees, reallocations and size queries of objects that this file does not hold: inherited
    /// from the parent process, or lost to damage.
    pub unknown_objects: u64,
    /// Sizes asked for, bytes.
    pub sizes: Histogram,
    /// Lifetimes of the objects that ended, ns.
    pub lifetimes_ns: Histogram,
    /// Each thread.
    pub threads: BTreeMap<ThreadId, ThreadSummary>,
    /// Time of the last row, ticks.
    pub end_ticks: u64,
    /// Bytes asked for in all.
    pub asked_bytes: u64,
    /// Objects made.
    pub objects: u64,
    /// Objects ended by a thread other than the one that made them.
    pub crossing: u64,
    /// The most bytes live at once: the Ideal footprint.
    pub peak_bytes: u64,
    /// The same with every size rounded up to 16.
    pub peak_rounded_bytes: u64,
    /// The most objects live at once.
    pub peak_objects: u64,
    /// Bytes live at the end.
    pub end_bytes: u64,
    /// Objects live at the end.
    pub end_objects: u64,
    /// Live bytes over the rows, in some hundreds of points.
    pub live: Vec<LivePoint>,
}

impl Summary {
    /// Reads the whole trace. Damaged parts are left out; [`Trace::check`] reports them afterwards.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn of(trace: &Trace) -> Result<Self, Error> {
        let mut reading = Reading {
            summary: Self::default(),
            live: FxHashMap::default(),
            live_bytes: 0,
            curve: Curve::new(),
            live_rounded_bytes: 0,
            ns_per_tick: 1e9 / trace.header().ticks_per_second as f64,
        };
        let mut ordered = Ordered::new(trace);
        while let Some(step) = ordered.next_step()? {
            reading.step(&step);
        }
        let mut summary = reading.summary;
        summary.end_bytes = told(reading.live_bytes);
        summary.end_objects = reading.live.len() as u64;
        summary.live = reading.curve.into_points();
        Ok(summary)
    }

    /// Rows of all threads.
    pub fn rows(&self) -> u64 {
        self.calls.values().sum()
    }
}

struct Reading {
    summary: Summary,
    live: FxHashMap<ObjectId, (u64, u64)>,
    /// Wide enough for as many objects of any size as a file can have.
    live_bytes: u128,
    live_rounded_bytes: u128,
    curve: Curve,
    ns_per_tick: f64,
}

impl Reading {
    fn step(&mut self, step: &Step) {
        let record = &step.record;
        let summary = &mut self.summary;
        *summary.calls.entry(call_name(&record.event)).or_default() += 1;
        summary.end_ticks = summary.end_ticks.max(record.time_ticks);
        let thread = summary.threads.entry(step.thread).or_default();
        if thread.rows == 0 {
            thread.first_ticks = record.time_ticks;
        }
        thread.rows += 1;
        thread.last_ticks = record.time_ticks;
        summary.failed += u64::from(record.failed());
        match record.event {
            Event::UsableSize { object } if !self.live.contains_key(&object) => {
                summary.unknown_objects += 1;
            }
            // A failed reallocation leaves the old object unchanged.
            Event::Realloc { .. } if record.made.is_none() => {}
            Event::Realloc { old: Some(object), .. }
            | Event::Free { object: Some(object) }
            | Event::SizedFree { object: Some(object) } => self.end(step, object),
            _ => {}
        }
        if let (Some(made), Some(size)) = (record.made, record.event.asked_bytes()) {
            self.make(step, made, size);
        }
        self.curve.row(told(self.live_bytes), told(self.live_rounded_bytes));
    }

    fn make(&mut self, step: &Step, object: ObjectId, size: u64) {
        self.live.insert(object, (size, step.record.time_ticks));
        self.live_bytes += u128::from(size);
        self.live_rounded_bytes += u128::from(rounded(size));
        let summary = &mut self.summary;
        summary.threads.entry(step.thread).or_default().made += 1;
        summary.objects += 1;
        summary.asked_bytes = summary.asked_bytes.saturating_add(size);
        summary.sizes.add(size);
        summary.peak_bytes = summary.peak_bytes.max(told(self.live_bytes));
        summary.peak_rounded_bytes = summary.peak_rounded_bytes.max(told(self.live_rounded_bytes));
        summary.peak_objects = summary.peak_objects.max(self.live.len() as u64);
    }

    fn end(&mut self, step: &Step, object: ObjectId) {
        let Some((size, since)) = self.live.remove(&object) else {
            self.summary.unknown_objects += 1;
            return;
        };
        self.live_bytes -= u128::from(size);
        self.live_rounded_bytes -= u128::from(rounded(size));
        let ticks = step.record.time_ticks.saturating_sub(since);
        self.summary.lifetimes_ns.add((ticks as f64 * self.ns_per_tick) as u64);
        let foreign = object.thread() != step.thread;
        self.summary.crossing += u64::from(foreign);
        let thread = self.summary.threads.entry(step.thread).or_default();
        thread.ended += 1;
        thread.ended_foreign += u64::from(foreign);
    }
}

/// A sum of sizes, cut to what its type holds: sizes that no memory has may add up to more.
fn told(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Rounded up to the smallest granularity of a general-purpose allocator.
fn rounded(size: u64) -> u64 {
    size.max(1).checked_next_multiple_of(16).unwrap_or(u64::MAX)
}

fn call_name(event: &Event) -> &'static str {
    match event {
        Event::Malloc { .. } => "malloc",
        Event::Calloc { .. } => "calloc",
        Event::Memalign { .. } => "memalign",
        Event::Realloc { .. } => "realloc",
        Event::Free { .. } => "free",
        Event::SizedFree { .. } => "free_sized",
        Event::UsableSize { .. } => "malloc_usable_size",
        Event::ThreadStart => "thread start",
        Event::ThreadEnd => "thread end",
        Event::Fork { .. } => "fork",
        Event::Marker { .. } => "marker",
    }
}
