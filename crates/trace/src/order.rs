//! One order for all threads' rows.
//!
//! ```text
//!  thread 1   m──────────m────────
//!  thread 2   ───f(1.0)─────f(1.1)   f(1.1) waits in `parked` until thread 1 has made 1.1
//! ```
//!
//! Threads are merged by time. A row that names another thread's object is held back until that
//! object has been made (invariant 2 of the crate). So the order is right wherever it matters,
//! however much the processors' clocks disagree.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::Error;
use crate::event::{ObjectId, Record, ThreadId};
use crate::reader::{ThreadRows, Trace};

/// One row with its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The thread of the row.
    pub thread: ThreadId,
    /// The row.
    pub record: Record,
}

/// Streams all rows of a trace in one order. O(log threads) a row, memory for one chunk per thread
/// that is alive at a time.
#[derive(Debug)]
pub struct Ordered<'a> {
    trace: &'a Trace,
    /// Threads that can continue, by the time of their next row.
    ready: BinaryHeap<Reverse<(u64, ThreadId)>>,
    /// Boxed, since a cursor is swapped with `current` whenever another thread's row is earlier.
    open: FxHashMap<ThreadId, Box<Cursor<'a>>>,
    /// Threads of which nothing has been read.
    unopened: FxHashSet<ThreadId>,
    current: Option<(ThreadId, Box<Cursor<'a>>)>,
    /// Threads that wait for an object, by the object's thread: the object's serial, the time of
    /// the row that names it, and the waiting thread.
    parked: FxHashMap<ThreadId, BTreeSet<(u64, u64, ThreadId)>>,
    /// The same threads by the time of that row.
    waiting: BTreeSet<Parked>,
}

#[derive(Debug)]
struct Cursor<'a> {
    rows: ThreadRows<'a>,
    next: Record,
    /// The serial of the thread's next object before the next row: all objects below have been
    /// made, or lost.
    made: u64,
    /// Whether the next row may go even though its object has not been seen.
    released: bool,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Parked {
    time_ticks: u64,
    thread: ThreadId,
    owner: ThreadId,
    serial: u64,
}

impl<'a> Ordered<'a> {
    /// Starts at the beginning.
    pub fn new(trace: &'a Trace) -> Self {
        let first =
            |places: &[crate::ChunkPlace]| places.first().map(|place| place.first_time_ticks);
        let ready = trace
            .threads()
            .iter()
            .filter_map(|(&thread, places)| Some(Reverse((first(places)?, thread))))
            .collect();
        Self {
            trace,
            ready,
            open: FxHashMap::default(),
            unopened: trace.threads().keys().copied().collect(),
            current: None,
            parked: FxHashMap::default(),
            waiting: BTreeSet::new(),
        }
    }

    /// The next row; `None` at the end.
    ///
    /// # Errors
    /// When the file cannot be read. Damage is skipped, and reported by [`Trace::check`].
    #[inline]
    pub fn next_step(&mut self) -> Result<Option<Step>, Error> {
        loop {
            let Some((thread, mut cursor)) = self.current.take() else {
                if !self.resume()? {
                    return Ok(None);
                }
                continue;
            };
            if let Some(object) = cursor.next.event.object()
                && object.thread() != thread
                && !cursor.released
                && !self.exists(object)?
            {
                self.park(thread, cursor, object);
                continue;
            }
            let record = cursor.next;
            cursor.released = false;
            match cursor.rows.next_row()? {
                Some(next) => {
                    cursor.next = next;
                    let made = cursor.rows.serial_before(&next);
                    if made != cursor.made {
                        cursor.made = made;
                        if !self.parked.is_empty() {
                            self.wake(thread, made);
                        }
                    }
                    self.keep(thread, cursor);
                }
                None => self.wake(thread, u64::MAX),
            }
            return Ok(Some(Step { thread, record }));
        }
    }

    /// Continues with the thread, or with another whose next row is earlier.
    #[inline]
    fn keep(&mut self, thread: ThreadId, cursor: Box<Cursor<'a>>) {
        let time = cursor.next.time_ticks;
        match self.ready.peek() {
            Some(&Reverse((other, _))) if other < time => {
                self.ready.push(Reverse((time, thread)));
                self.open.insert(thread, cursor);
            }
            _ => self.current = Some((thread, cursor)),
        }
    }

    /// Makes the thread with the earliest next row the current one; false when none is left.
    fn resume(&mut self) -> Result<bool, Error> {
        let Some(Reverse((_, thread))) = self.ready.pop() else {
            return Ok(self.release_earliest());
        };
        let cursor = match self.unopened.remove(&thread) {
            true => self.begin(thread)?,
            false => self.open.remove(&thread),
        };
        if let Some(cursor) = cursor {
            // A thread whose object was named before it began has its place by the time before its
            // first row.
            self.keep(thread, cursor);
        }
        Ok(true)
    }

    /// Reads the thread's first row; `None` if the thread has no good row.
    fn begin(&self, thread: ThreadId) -> Result<Option<Box<Cursor<'a>>>, Error> {
        let mut rows = self.trace.thread_rows(thread);
        let first = rows.next_row()?;
        Ok(first.map(|next| {
            let made = rows.serial_before(&next);
            Box::new(Cursor { rows, next, made, released: false })
        }))
    }

    /// Whether the object has been made, or never will be (its thread is not in this file, has
    /// ended, or lost the row that made it). A thread that has not begun is read to know what it
    /// lost.
    fn exists(&mut self, object: ObjectId) -> Result<bool, Error> {
        let owner = object.thread();
        if self.unopened.remove(&owner)
            && let Some(cursor) = self.begin(owner)?
        {
            self.open.insert(owner, cursor);
        }
        Ok(self.open.get(&owner).is_none_or(|cursor| object.serial() < cursor.made))
    }

    fn park(&mut self, thread: ThreadId, cursor: Box<Cursor<'a>>, object: ObjectId) {
        let time_ticks = cursor.next.time_ticks;
        self.open.insert(thread, cursor);
        let (owner, serial) = (object.thread(), object.serial());
        self.parked.entry(owner).or_default().insert((serial, time_ticks, thread));
        self.waiting.insert(Parked { time_ticks, thread, owner, serial });
    }

    /// Lets the threads continue that waited for objects of `owner` below `made`.
    fn wake(&mut self, owner: ThreadId, made: u64) {
        let Some(parked) = self.parked.get_mut(&owner) else { return };
        while let Some(&(serial, time_ticks, thread)) = parked.first()
            && serial < made
        {
            parked.pop_first();
            self.waiting.remove(&Parked { time_ticks, thread, owner, serial });
            self.ready.push(Reverse((time_ticks, thread)));
        }
        if parked.is_empty() {
            self.parked.remove(&owner);
        }
    }

    /// All threads wait for each other, so rows were lost. Lets the earliest continue.
    #[cold]
    fn release_earliest(&mut self) -> bool {
        let Some(earliest) = self.waiting.pop_first() else { return false };
        let Parked { time_ticks, thread, owner, serial } = earliest;
        if let Some(parked) = self.parked.get_mut(&owner) {
            parked.remove(&(serial, time_ticks, thread));
            if parked.is_empty() {
                self.parked.remove(&owner);
            }
        }
        if let Some(mut cursor) = self.open.remove(&thread) {
            cursor.released = true;
            self.current = Some((thread, cursor));
        }
        true
    }
}
