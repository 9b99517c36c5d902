//! Rows: the bytes of one record.
//!
//! ```text
//!  tag byte   bit 0-3  kind (1…11; 0 ends an open chunk)
//!             bit 4-5  object: 0 none, 1 of this thread, 2 of another thread
//!             bit 6    the allocation returned null
//!  then       time delta, ticks
//!             object of this thread:  distance = next serial − serial (≥ 1)
//!             object of another:      thread, serial
//!             size, bytes             (kinds that ask for memory)
//!             binary log of alignment (memalign)
//!             value                   (fork: pid; marker)
//! ```
//!
//! The object made is not written: it is the next serial of the thread. The recorder calls the
//! `put_*` functions on every event of the recorded program; they are inlined with constant kinds.
//! They write the tag last. Without a tag there is no row, so a program that dies in the midst of a
//! row leaves no wrong one.

use core::sync::atomic::{Ordering, compiler_fence};

use crate::event::{Event, ObjectId, Record, ThreadId};
use crate::varint;

/// The longest row: tag, delta, thread, serial, size, each a varint of up to nine bytes.
pub const MAX_ROW_BYTES: usize = 1 + 4 * varint::MAX_BYTES;

/// The space that a writer needs: a row, and the extra zeroes of its last varint.
pub const ROW_WINDOW_BYTES: usize = 48;

const _: () = assert!(MAX_ROW_BYTES + 8 <= ROW_WINDOW_BYTES);

const KIND_MASK: u8 = 0x0F;
const OWN_OBJECT: u8 = 1 << 4;
const FOREIGN_OBJECT: u8 = 2 << 4;
const OBJECT_MASK: u8 = 3 << 4;
const FAILED: u8 = 1 << 6;

const MALLOC: u8 = 1;
const CALLOC: u8 = 2;
const MEMALIGN: u8 = 3;
const REALLOC: u8 = 4;
const FREE: u8 = 5;
const SIZED_FREE: u8 = 6;
const USABLE_SIZE: u8 = 7;
const THREAD_START: u8 = 8;
const THREAD_END: u8 = 9;
const FORK: u8 = 10;
const MARKER: u8 = 11;

/// The kinds that make an object from nothing but a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AllocKind {
    /// `malloc`.
    Malloc = MALLOC,
    /// `calloc`.
    Calloc = CALLOC,
}

/// Room for one row.
pub type RowWindow = [u8; ROW_WINDOW_BYTES];

/// The state that the writer and the reader of a thread's rows keep in step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowState {
    /// The thread.
    pub thread: ThreadId,
    /// Serial of the next object.
    pub next_serial: u64,
    /// Time of the last row, ticks.
    pub time_ticks: u64,
}

impl RowState {
    /// The state before a thread's first row.
    pub const fn new(thread: ThreadId) -> Self {
        Self { thread, next_serial: 0, time_ticks: 0 }
    }

    /// Writes an allocation. Returns the length of its row and the object made.
    #[inline(always)]
    pub fn put_alloc(
        &mut self,
        out: &mut RowWindow,
        kind: AllocKind,
        now_ticks: u64,
        size_bytes: u64,
        failed: bool,
    ) -> (usize, Option<ObjectId>) {
        let at = self.put_time(out, now_ticks);
        let at = varint::put(out, at, size_bytes);
        put_tag(out, kind as u8 | if failed { FAILED } else { 0 });
        (at, self.make(failed))
    }

    /// Writes an aligned allocation.
    #[inline(always)]
    pub fn put_memalign(
        &mut self,
        out: &mut RowWindow,
        now_ticks: u64,
        size_bytes: u64,
        align_log2: u8,
        failed: bool,
    ) -> (usize, Option<ObjectId>) {
        let at = self.put_time(out, now_ticks);
        let at = varint::put(out, at, size_bytes);
        let at = varint::put(out, at, u64::from(align_log2));
        put_tag(out, MEMALIGN | if failed { FAILED } else { 0 });
        (at, self.make(failed))
    }

    /// Writes a reallocation.
    #[inline(always)]
    pub fn put_realloc(
        &mut self,
        out: &mut RowWindow,
        now_ticks: u64,
        old: Option<ObjectId>,
        size_bytes: u64,
        failed: bool,
    ) -> (usize, Option<ObjectId>) {
        let (given, at) = self.put_object(out, now_ticks, old);
        let at = varint::put(out, at, size_bytes);
        put_tag(out, REALLOC | given | if failed { FAILED } else { 0 });
        (at, self.make(failed))
    }

    /// Writes a free.
    #[inline(always)]
    pub fn put_free(
        &mut self,
        out: &mut RowWindow,
        now_ticks: u64,
        object: Option<ObjectId>,
        sized: bool,
    ) -> usize {
        self.put_named(out, if sized { SIZED_FREE } else { FREE }, now_ticks, object)
    }

    /// Whether [`get`](Self::get) reads the row that [`put`](Self::put) makes of this event: thread
    /// and object have numbers that can be, an object of the thread itself was made before, and the
    /// alignment is below 2^64.
    pub fn can_put(&self, event: &Event) -> bool {
        let is_known = |object: ObjectId| match object.thread() == self.thread {
            true => object.serial() < self.next_serial,
            false => object.thread().can_be(),
        };
        let is_row = !matches!(event, Event::Memalign { align_log2: 64.., .. });
        self.thread.can_be() && is_row && event.object().is_none_or(is_known)
    }

    /// Writes an event of any kind, which must be one that [can be](Self::can_put) written. `failed`
    /// counts only for kinds that ask for memory.
    pub fn put(
        &mut self,
        out: &mut RowWindow,
        now_ticks: u64,
        event: &Event,
        failed: bool,
    ) -> (usize, Option<ObjectId>) {
        let now = now_ticks;
        match *event {
            Event::Malloc { size_bytes } => {
                self.put_alloc(out, AllocKind::Malloc, now, size_bytes, failed)
            }
            Event::Calloc { size_bytes } => {
                self.put_alloc(out, AllocKind::Calloc, now, size_bytes, failed)
            }
            Event::Memalign { size_bytes, align_log2 } => {
                self.put_memalign(out, now, size_bytes, align_log2, failed)
            }
            Event::Realloc { old, size_bytes } => {
                self.put_realloc(out, now, old, size_bytes, failed)
            }
            Event::Free { object } => (self.put_free(out, now, object, false), None),
            Event::SizedFree { object } => (self.put_free(out, now, object, true), None),
            Event::UsableSize { object } => {
                (self.put_named(out, USABLE_SIZE, now, Some(object)), None)
            }
            Event::ThreadStart => (self.put_named(out, THREAD_START, now, None), None),
            Event::ThreadEnd => (self.put_named(out, THREAD_END, now, None), None),
            Event::Fork { child_pid } => (self.put_value(out, FORK, now, child_pid.into()), None),
            Event::Marker { value } => (self.put_value(out, MARKER, now, value), None),
        }
    }

    #[inline(always)]
    fn put_time(&mut self, out: &mut RowWindow, now_ticks: u64) -> usize {
        // When a thread moves, the clocks of the two processors may disagree a little. Time then
        // stands still.
        let now = now_ticks.max(self.time_ticks);
        let delta = now - self.time_ticks;
        self.time_ticks = now;
        varint::put(out, 1, delta)
    }

    /// Writes time and object. Returns the object's bits of the tag and the place after the object.
    #[inline(always)]
    fn put_object(
        &mut self,
        out: &mut RowWindow,
        now_ticks: u64,
        object: Option<ObjectId>,
    ) -> (u8, usize) {
        let at = self.put_time(out, now_ticks);
        match object {
            None => (0, at),
            Some(object) if object.thread() == self.thread => {
                (OWN_OBJECT, varint::put(out, at, self.next_serial - object.serial()))
            }
            Some(object) => {
                let at = varint::put(out, at, u64::from(object.thread().0));
                (FOREIGN_OBJECT, varint::put(out, at, object.serial()))
            }
        }
    }

    /// Writes a row of a kind that has an object at most.
    #[inline(always)]
    fn put_named(
        &mut self,
        out: &mut RowWindow,
        kind: u8,
        now_ticks: u64,
        object: Option<ObjectId>,
    ) -> usize {
        let (given, at) = self.put_object(out, now_ticks, object);
        put_tag(out, kind | given);
        at
    }

    /// Writes a row of a kind that has only a number.
    fn put_value(&mut self, out: &mut RowWindow, kind: u8, now_ticks: u64, value: u64) -> usize {
        let at = self.put_time(out, now_ticks);
        let at = varint::put(out, at, value);
        put_tag(out, kind);
        at
    }

    #[inline(always)]
    fn make(&mut self, failed: bool) -> Option<ObjectId> {
        if failed {
            return None;
        }
        let object = ObjectId::new(self.thread, self.next_serial);
        self.next_serial += 1;
        Some(object)
    }

    /// Reads the row at `bytes[at..]`: the record and the place after it.
    ///
    /// `None` when there is no well-formed row: the bytes end, the tag is unknown, or the row names
    /// an object that the thread has not made, or one whose numbers no object has.
    pub fn get(&mut self, bytes: &[u8], at: usize) -> Option<(Record, usize)> {
        let tag = *bytes.get(at)?;
        let (delta, at) = varint::get(bytes, at + 1)?;
        let (object, at) = self.get_object(tag, bytes, at)?;
        let failed = tag & FAILED != 0;
        let kind = tag & KIND_MASK;
        let (event, at) = match kind {
            MALLOC | CALLOC | MEMALIGN | REALLOC => {
                let (size_bytes, at) = varint::get(bytes, at)?;
                match kind {
                    MALLOC => (Event::Malloc { size_bytes }, at),
                    CALLOC => (Event::Calloc { size_bytes }, at),
                    MEMALIGN => {
                        let (align_log2, at) = varint::get(bytes, at)?;
                        let align_log2 = u8::try_from(align_log2).ok().filter(|&log| log < 64)?;
                        (Event::Memalign { size_bytes, align_log2 }, at)
                    }
                    _ => (Event::Realloc { old: object, size_bytes }, at),
                }
            }
            FREE => (Event::Free { object }, at),
            SIZED_FREE => (Event::SizedFree { object }, at),
            USABLE_SIZE => (Event::UsableSize { object: object? }, at),
            THREAD_START => (Event::ThreadStart, at),
            THREAD_END => (Event::ThreadEnd, at),
            FORK => {
                let (pid, at) = varint::get(bytes, at)?;
                (Event::Fork { child_pid: u32::try_from(pid).ok()? }, at)
            }
            MARKER => {
                let (value, at) = varint::get(bytes, at)?;
                (Event::Marker { value }, at)
            }
            _ => return None,
        };
        let makes = matches!(kind, MALLOC | CALLOC | MEMALIGN | REALLOC);
        let made = match makes && !failed {
            true => Some(ObjectId::checked(self.thread, self.next_serial)?),
            false => None,
        };
        self.time_ticks = self.time_ticks.checked_add(delta)?;
        self.next_serial += u64::from(made.is_some());
        Some((Record { time_ticks: self.time_ticks, event, made }, at))
    }

    fn get_object(&self, tag: u8, bytes: &[u8], at: usize) -> Option<(Option<ObjectId>, usize)> {
        match tag & OBJECT_MASK {
            0 => Some((None, at)),
            OWN_OBJECT => {
                let (distance, at) = varint::get(bytes, at)?;
                let serial = self.next_serial.checked_sub(distance).filter(|_| distance > 0)?;
                Some((Some(ObjectId::checked(self.thread, serial)?), at))
            }
            FOREIGN_OBJECT => {
                let (thread, at) = varint::get(bytes, at)?;
                let (serial, at) = varint::get(bytes, at)?;
                let thread = ThreadId(u32::try_from(thread).ok()?);
                // An object of this thread is named by its distance, so that it is one made before.
                let object = ObjectId::checked(thread, serial).filter(|_| thread != self.thread)?;
                Some((Some(object), at))
            }
            _ => None,
        }
    }
}

/// Turns the bytes written before into a row, and not earlier.
#[inline(always)]
fn put_tag(out: &mut RowWindow, tag: u8) {
    // The compiler must not write the tag first. The processor shows its own writes in order to a
    // reader after the program's death.
    compiler_fence(Ordering::SeqCst);
    out[0] = tag;
}
