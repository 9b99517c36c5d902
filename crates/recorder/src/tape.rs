//! A thread's tape: where its rows go.
//!
//! An event costs: the thread-local pointer to the tape, the check for room, the clock, one row of
//! three to eight bytes, and the shadow entry.

use hectare_trace::{AllocKind, Event, ObjectId, ROW_WINDOW_BYTES, RowState, RowWindow, ThreadId};

use crate::chunk::{self, Chunk};
use crate::clock;
use crate::process::{self, Stop};
use crate::shadow;
use crate::tls::{self, Local};

/// Lies in the arena that is wiped on fork; all zero means no room and no thread.
#[derive(Debug)]
pub(crate) struct Tape {
    /// Where the next row goes.
    cursor: *mut u8,
    /// From here on a row may not fit.
    limit: *mut u8,
    /// Clock at the beginning of the file, ticks.
    epoch_ticks: u64,
    state: RowState,
    /// Rows in the chunk.
    rows: u32,
    /// Chunks begun.
    chunks: u32,
    chunk: Option<Chunk>,
}

impl Tape {
    /// A tape that continues from `state`, in the rest of a chunk that another thread has `left`.
    /// Without such a rest it has no chunk yet.
    pub(crate) fn new(epoch_ticks: u64, state: RowState, left: Option<Chunk>) -> Self {
        let nowhere = core::ptr::null_mut();
        let mut tape = Self {
            cursor: nowhere,
            limit: nowhere,
            epoch_ticks,
            state,
            rows: 0,
            chunks: 0,
            chunk: None,
        };
        if let Some(left) = left {
            tape.enter(left.given_to(state));
        }
        tape
    }

    /// The thread; number 0 on a tape that was wiped.
    pub(crate) fn thread(&self) -> ThreadId {
        self.state.thread
    }

    /// Whether a row fits.
    #[inline(always)]
    pub(crate) fn has_room(&self) -> bool {
        self.cursor < self.limit
    }

    /// How far the thread's rows have come.
    pub(crate) fn state(&self) -> RowState {
        self.state
    }

    /// Completes the chunk, if there is one.
    pub(crate) fn finish_chunk(&mut self) {
        if let Some(chunk) = self.chunk.take() {
            chunk.finish(self.cursor, self.rows, self.state);
        }
        self.limit = self.cursor;
    }

    /// Completes the chunk, if there is one, and returns what it leaves for a thread that begins.
    pub(crate) fn leave_chunk(&mut self) -> Option<Chunk> {
        let chunk = self.chunk.take()?;
        self.limit = self.cursor;
        chunk.leave(self.cursor, self.rows, self.state)
    }

    /// Continues in a new chunk, made of the mapping that `map` returns for a size.
    pub(crate) fn begin_chunk(
        &mut self,
        map: impl FnOnce(usize, RowState) -> Result<Chunk, Stop>,
    ) -> Result<(), Stop> {
        self.enter(map(chunk::size_of_nth(self.chunks), self.state)?);
        Ok(())
    }

    fn enter(&mut self, chunk: Chunk) {
        (self.cursor, self.limit) = chunk.rows();
        self.chunk = Some(chunk);
        self.rows = 0;
        self.chunks += 1;
    }

    /// Writes a row with `put`, which gets a window and the time, and returns the row's length.
    #[inline(always)]
    fn row<T>(&mut self, put: impl FnOnce(&mut RowState, &mut RowWindow, u64) -> (usize, T)) -> T {
        debug_assert!(self.has_room());
        let now = clock::ticks().saturating_sub(self.epoch_ticks);
        // SAFETY: below the limit a whole window lies in the chunk, which is this thread's alone.
        let window = unsafe { &mut *self.cursor.cast::<[u8; ROW_WINDOW_BYTES]>() };
        let (length, value) = put(&mut self.state, window, now);
        // SAFETY: a row is shorter than the window.
        self.cursor = unsafe { self.cursor.add(length) };
        self.rows += 1;
        value
    }

    /// Writes an event off the hot path.
    pub(crate) fn event(&mut self, event: &Event) {
        self.row(|state, window, now| state.put(window, now, event, false));
    }
}

/// This thread's tape, with room for a row; `None` if the event is not to be recorded.
#[inline(always)]
fn current() -> Option<&'static mut Tape> {
    let local = tls::local();
    // SAFETY: null, or a tape in the arena that belongs to this thread; the reference ends before
    // the thread reaches this line again.
    match unsafe { local.tape.get().as_mut() } {
        Some(tape) if tape.has_room() => Some(tape),
        _ => current_slow(local),
    }
}

#[cold]
#[inline(never)]
fn current_slow(local: &Local) -> Option<&'static mut Tape> {
    process::tape_for(local)
}

/// Notes where an object lives. If that fails, ends the recording, in which the object would seem
/// to live for ever. This tape ends with it, whatever room it has.
#[inline(always)]
fn follow(tape: &mut Tape, address: *mut u8, object: ObjectId, size: usize) {
    if !shadow::set(address, object, size) {
        tape.limit = tape.cursor;
        process::give_up(Stop::Addresses);
    }
}

/// Records that `address` (null: failed) was handed out for `size` bytes.
#[inline(always)]
pub(crate) fn allocated(kind: AllocKind, address: *mut u8, size: usize) {
    let Some(tape) = current() else { return };
    let made = tape.row(|state, window, now| {
        state.put_alloc(window, kind, now, size as u64, address.is_null())
    });
    if let Some(object) = made {
        follow(tape, address, object, size);
    }
}

/// Records an aligned allocation.
#[inline(always)]
pub(crate) fn aligned(address: *mut u8, size: usize, align: usize) {
    let Some(tape) = current() else { return };
    // The C library rounds an alignment that is no power of two up to one, and aligns the block to
    // that.
    let align_log2 = align.checked_next_power_of_two().map_or(63, usize::ilog2) as u8;
    let made = tape.row(|state, window, now| {
        state.put_memalign(window, now, size as u64, align_log2, address.is_null())
    });
    if let Some(object) = made {
        follow(tape, address, object, size);
    }
}

/// Records that `address` is about to be freed. Returns false for a pointer that was never seen.
///
/// glibc frees null for every thread after its end. A tape for that alone would cost more than many
/// a thread does.
#[inline(always)]
pub(crate) fn freeing(address: *mut u8, sized: bool) -> bool {
    let object = if address.is_null() {
        if tls::local().ended.get() {
            return true;
        }
        None
    } else {
        match shadow::take(address) {
            Some(object) => Some(object),
            None => return false,
        }
    };
    if let Some(tape) = current() {
        tape.row(|state, window, now| (state.put_free(window, now, object, sized), ()));
    }
    true
}

/// Records that the object at an address, taken before, became `address` (null: stayed).
#[inline(always)]
pub(crate) fn reallocated(old: Option<ObjectId>, address: *mut u8, size: usize) {
    let Some(tape) = current() else { return };
    let made = tape.row(|state, window, now| {
        state.put_realloc(window, now, old, size as u64, address.is_null())
    });
    if let Some(object) = made {
        follow(tape, address, object, size);
    }
}

/// Records anything else.
#[inline(always)]
pub(crate) fn other(event: &Event) {
    if let Some(tape) = current() {
        tape.event(event);
    }
}
