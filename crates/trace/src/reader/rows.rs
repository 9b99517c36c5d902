//! The rows of one thread, chunk after chunk.

use super::{ChunkPlace, Trace};
use crate::chunk::ChunkState;
use crate::error::Error;
use crate::event::{Record, ThreadId};
use crate::row::RowState;

/// The rows of one thread, in program order.
#[derive(Debug)]
pub struct ThreadRows<'a> {
    trace: &'a Trace,
    places: &'a [ChunkPlace],
    rows: Vec<u8>,
    at: usize,
    /// Offset in the file of the chunk in `rows`.
    offset: u64,
    /// Whether the chunk in `rows` was left open by its recorder.
    open: bool,
    /// Rows of the chunk not yet returned, unless it is open.
    left: u32,
    state: RowState,
}

impl<'a> ThreadRows<'a> {
    /// The rows of `thread` in the chunks at `places`.
    pub(super) fn new(trace: &'a Trace, thread: ThreadId, places: &'a [ChunkPlace]) -> Self {
        Self {
            trace,
            places,
            rows: Vec::new(),
            at: 0,
            offset: 0,
            open: false,
            left: 0,
            state: RowState::new(thread),
        }
    }

    /// The next row; `None` at the end. Skips damaged chunks and notes them in the trace.
    ///
    /// # Errors
    /// When the file cannot be read.
    #[inline]
    pub fn next_row(&mut self) -> Result<Option<Record>, Error> {
        if self.left > 0
            && let Some((record, at)) = self.state.get(&self.rows, self.at)
        {
            self.at = at;
            self.left -= 1;
            return Ok(Some(record));
        }
        self.next_row_slow()
    }

    /// The serial of the thread's next object before `last`, the row returned last. If rows were
    /// lost it is more than the number of objects that the returned rows have made.
    #[inline]
    pub fn serial_before(&self, last: &Record) -> u64 {
        self.state.next_serial - u64::from(last.made.is_some())
    }

    #[cold]
    fn next_row_slow(&mut self) -> Result<Option<Record>, Error> {
        loop {
            if self.open {
                // Up to the zero tag, or to an unfinished row.
                if let Some((record, at)) = self.state.get(&self.rows, self.at) {
                    self.at = at;
                    self.trace.note_good(0, 1);
                    return Ok(Some(record));
                }
                self.open = false;
            } else if self.left > 0 {
                // The checksum is right, yet a row makes no sense.
                let (any, unread) = (self.at > 0, u64::from(self.left));
                self.trace.note(self.offset, |damage| {
                    // The chunk was counted as good when it was loaded.
                    damage.good_chunks = damage.good_chunks.saturating_sub(1);
                    damage.good_rows = damage.good_rows.saturating_sub(unread);
                    damage.partial_chunks += u64::from(any);
                    damage.bad_chunks += u64::from(!any);
                });
                self.left = 0;
            }
            let Some((place, rest)) = self.places.split_first() else {
                self.trace.give_back(std::mem::take(&mut self.rows));
                return Ok(None);
            };
            self.places = rest;
            self.at = 0;
            self.offset = place.offset;
            let Some(header) = self.trace.load(place, &mut self.rows)? else { continue };
            self.state.next_serial = header.first_serial;
            self.state.time_ticks = header.first_time_ticks;
            self.open = header.state == ChunkState::Open;
            self.left = header.rows;
            self.trace.note_good(1, u64::from(header.rows));
            if self.left > 0
                && let Some((record, at)) = self.state.get(&self.rows, 0)
            {
                self.at = at;
                self.left -= 1;
                return Ok(Some(record));
            }
        }
    }
}
