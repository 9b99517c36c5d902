//! Writing a sealed trace: rows go into one buffer per thread, full buffers become compressed
//! chunks, and the index comes last.

use std::collections::BTreeMap;
use std::io::{self, Seek, SeekFrom, Write};

use crate::chunk::{CHUNK_HEADER_BYTES, ChunkHeader, ChunkState};
use crate::event::{Event, ObjectId, Record, ThreadId};
use crate::frame::Cuts;
use crate::header::{FileHeader, HEADER_BYTES};
use crate::packers::{Packers, Rows};
use crate::reader::ChunkPlace;
use crate::row::{ROW_WINDOW_BYTES, RowState};

pub(crate) const INDEX_MAGIC: [u8; 4] = *b"HIx1";
pub(crate) const INDEX_ENTRY_BYTES: usize = 32;

/// Rows of one chunk, bytes: large enough to compress well, small enough that a reader can hold
/// one for each of hundreds of threads.
const CHUNK_PLAIN_BYTES: usize = 1 << 17;

/// Writes a sealed trace. If it is dropped without [`finish`](Self::finish), it leaves a file
/// without an index: still readable, but reported as damaged.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    header: FileHeader,
    offset: u64,
    threads: BTreeMap<ThreadId, ThreadBuffer>,
    /// Chunks under compression, with the parts of their headers that are known.
    packers: Packers<ChunkHeader>,
    places: Vec<ChunkPlace>,
}

/// The rows of one thread that are not in a chunk yet.
#[derive(Debug)]
struct ThreadBuffer {
    /// The first `filled` bytes are rows; there is room for one more after them.
    rows: Vec<u8>,
    filled: usize,
    count: u32,
    cuts: Cuts,
    first: RowState,
    state: RowState,
}

impl ThreadBuffer {
    fn new(state: RowState) -> Self {
        Self { rows: Vec::new(), filled: 0, count: 0, cuts: Cuts::default(), first: state, state }
    }

    /// Appends an event and returns the object it makes.
    #[inline]
    fn event(
        &mut self,
        time_ticks: u64,
        event: &Event,
        failed: bool,
    ) -> io::Result<Option<ObjectId>> {
        if !self.state.can_put(event) {
            return Err(no_row(self.state.thread, event));
        }
        loop {
            if let Some(window) = self.rows[self.filled..].first_chunk_mut::<ROW_WINDOW_BYTES>() {
                let (length, made) = self.state.put(window, time_ticks, event, failed);
                self.filled += length;
                self.count += 1;
                self.cuts.row(self.filled, self.count);
                return Ok(made);
            }
            self.grow();
        }
    }

    #[cold]
    fn grow(&mut self) {
        self.rows.resize((2 * self.rows.len()).max(1 << 12), 0);
    }

    fn is_full(&self) -> bool {
        self.filled >= CHUNK_PLAIN_BYTES
    }

    /// The rows as a chunk, and its header without the fields that are known only after
    /// compression. `None` when there are no rows.
    fn take(&mut self) -> Option<(ChunkHeader, Rows)> {
        if self.count == 0 {
            return None;
        }
        let Self { mut rows, filled, count, cuts, first, state } =
            std::mem::replace(self, Self::new(self.state));
        rows.truncate(filled);
        let header = ChunkHeader {
            state: ChunkState::Framed,
            thread: state.thread,
            rows: count,
            span_bytes: 0,
            stored_bytes: 0,
            plain_bytes: filled as u32,
            crc: 0,
            first_serial: first.next_serial,
            first_time_ticks: first.time_ticks,
            last_time_ticks: state.time_ticks,
        };
        Some((header, Rows { bytes: rows, count, cuts }))
    }
}

impl<W: Write + Seek> Writer<W> {
    /// Begins a trace at the beginning of `out`.
    ///
    /// # Errors
    /// When writing fails.
    pub fn new(mut out: W, header: FileHeader) -> io::Result<Self> {
        let header = FileHeader { sealed: true, index_offset: 0, end_offset: 0, ..header };
        let mut bytes = [0; HEADER_BYTES];
        header.write_to(&mut bytes);
        out.seek(SeekFrom::Start(0))?;
        out.write_all(&bytes)?;
        Ok(Self {
            out,
            header,
            offset: HEADER_BYTES as u64,
            threads: BTreeMap::new(),
            packers: Packers::new(),
            places: Vec::new(),
        })
    }

    /// Appends an event of `thread` and returns the object it makes.
    ///
    /// # Errors
    /// When writing fails. [`io::ErrorKind::InvalidInput`] for an event that no reader would
    /// believe ([`RowState::can_put`]); it is then not in the trace.
    pub fn event(
        &mut self,
        thread: ThreadId,
        time_ticks: u64,
        event: &Event,
        failed: bool,
    ) -> io::Result<Option<ObjectId>> {
        let buffer = self.buffer(thread);
        let made = buffer.event(time_ticks, event, failed)?;
        if buffer.is_full() {
            self.flush(thread)?;
        }
        Ok(made)
    }

    /// Appends a record read from another trace. Before the record, the thread's next object had
    /// the number `serial`: objects keep their numbers even if earlier rows of the thread were
    /// lost.
    ///
    /// # Errors
    /// As [`event`](Self::event).
    pub fn record(&mut self, thread: ThreadId, record: &Record, serial: u64) -> io::Result<()> {
        let mut buffer = self.buffer(thread);
        if serial != buffer.state.next_serial {
            self.flush(thread)?;
            buffer = self.buffer(thread);
            buffer.state.next_serial = serial;
            buffer.first = buffer.state;
        }
        buffer.event(record.time_ticks, &record.event, record.failed())?;
        if buffer.is_full() {
            self.flush(thread)?;
        }
        Ok(())
    }

    fn buffer(&mut self, thread: ThreadId) -> &mut ThreadBuffer {
        self.threads.entry(thread).or_insert_with(|| ThreadBuffer::new(RowState::new(thread)))
    }

    /// Makes a chunk of the rows buffered for `thread`. A call when a thread ends frees the
    /// thread's buffer.
    ///
    /// # Errors
    /// When writing fails.
    pub fn flush(&mut self, thread: ThreadId) -> io::Result<()> {
        let Some((header, rows)) = self.buffer(thread).take() else { return Ok(()) };
        if self.packers.is_full() {
            self.write_oldest()?;
        }
        self.packers.give(header, rows)
    }

    /// Writes the chunk that has been under compression longest. False when there is none.
    fn write_oldest(&mut self) -> io::Result<bool> {
        let Some((known, stored)) = self.packers.take()? else { return Ok(false) };
        let header = ChunkHeader {
            span_bytes: (CHUNK_HEADER_BYTES + stored.len()) as u32,
            stored_bytes: stored.len() as u32,
            crc: crc32fast::hash(&stored),
            ..known
        };
        self.out.write_all(&header.to_bytes())?;
        self.out.write_all(&stored)?;
        self.places.push(ChunkPlace::of(self.offset, &header));
        self.offset += u64::from(header.span_bytes);
        Ok(true)
    }

    /// Writes what is left, the index and the final header, and returns the output.
    ///
    /// # Errors
    /// When writing fails.
    pub fn finish(mut self) -> io::Result<W> {
        let threads: Vec<_> = self.threads.keys().copied().collect();
        for thread in threads {
            self.flush(thread)?;
        }
        while self.write_oldest()? {}
        let mut index = Vec::with_capacity(16 + self.places.len() * INDEX_ENTRY_BYTES);
        index.extend_from_slice(&INDEX_MAGIC);
        index.extend_from_slice(&(self.places.len() as u64).to_le_bytes());
        for place in &self.places {
            index.extend_from_slice(&place.offset.to_le_bytes());
            index.extend_from_slice(&place.thread.0.to_le_bytes());
            index.extend_from_slice(&place.rows.to_le_bytes());
            index.extend_from_slice(&place.first_time_ticks.to_le_bytes());
            index.extend_from_slice(&place.last_time_ticks.to_le_bytes());
        }
        let crc = crc32fast::hash(&index);
        index.extend_from_slice(&crc.to_le_bytes());
        self.out.write_all(&index)?;
        self.header.index_offset = self.offset;
        let mut bytes = [0; HEADER_BYTES];
        self.header.write_to(&mut bytes);
        self.out.seek(SeekFrom::Start(0))?;
        self.out.write_all(&bytes)?;
        self.out.flush()?;
        Ok(self.out)
    }
}

#[cold]
fn no_row(thread: ThreadId, event: &Event) -> io::Error {
    let told = format!("{thread} cannot have the event {event:?}");
    io::Error::new(io::ErrorKind::InvalidInput, told)
}
