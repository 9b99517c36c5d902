//! Writing a sealed trace: rows go into one buffer a thread, full buffers become deflated chunks,
//! and the index comes last.

use std::collections::BTreeMap;
use std::io::{self, Seek, SeekFrom, Write};

use crate::chunk::{CHUNK_HEADER_BYTES, ChunkHeader, ChunkState};
use crate::event::{Event, ObjectId, Record, ThreadId};
use crate::frame::{self, Cuts};
use crate::header::{FileHeader, HEADER_BYTES};
use crate::reader::ChunkPlace;
use crate::row::{ROW_WINDOW_BYTES, RowState};

pub(crate) const INDEX_MAGIC: [u8; 4] = *b"HIx1";
pub(crate) const INDEX_ENTRY_BYTES: usize = 32;

/// Rows of one chunk, bytes: large enough to compress well, small enough that a reader can hold
/// one for each of hundreds of threads.
const CHUNK_PLAIN_BYTES: usize = 1 << 17;

/// Writes a sealed trace. Dropped without [`finish`](Self::finish), the file is one without index:
/// still readable, and told as damaged.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    header: FileHeader,
    offset: u64,
    threads: BTreeMap<ThreadId, Buffer>,
    places: Vec<ChunkPlace>,
}

#[derive(Debug)]
struct Buffer {
    rows: Vec<u8>,
    count: u32,
    cuts: Cuts,
    first: RowState,
    state: RowState,
}

impl Buffer {
    fn new(state: RowState) -> Self {
        Self { rows: Vec::new(), count: 0, cuts: Cuts::default(), first: state, state }
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
        let offset = HEADER_BYTES as u64;
        Ok(Self { out, header, offset, threads: BTreeMap::new(), places: Vec::new() })
    }

    /// Appends an event of `thread` and gives the object it makes.
    ///
    /// # Errors
    /// When writing fails.
    pub fn event(
        &mut self,
        thread: ThreadId,
        time_ticks: u64,
        event: &Event,
        failed: bool,
    ) -> io::Result<Option<ObjectId>> {
        let buffer =
            self.threads.entry(thread).or_insert_with(|| Buffer::new(RowState::new(thread)));
        let mut row = [0; ROW_WINDOW_BYTES];
        let (length, made) = buffer.state.put(&mut row, time_ticks, event, failed);
        buffer.rows.extend_from_slice(&row[..length]);
        buffer.count += 1;
        buffer.cuts.row(buffer.rows.len(), buffer.count);
        if buffer.rows.len() >= CHUNK_PLAIN_BYTES {
            self.flush(thread)?;
        }
        Ok(made)
    }

    /// Appends a record read from another trace; its object keeps its number even if earlier rows
    /// of the thread were lost.
    ///
    /// # Errors
    /// When writing fails.
    pub fn record(&mut self, thread: ThreadId, record: &Record) -> io::Result<()> {
        if let Some(made) = record.made {
            let buffer =
                self.threads.entry(thread).or_insert_with(|| Buffer::new(RowState::new(thread)));
            if buffer.state.next_serial != made.serial() {
                self.flush(thread)?;
                if let Some(buffer) = self.threads.get_mut(&thread) {
                    buffer.state.next_serial = made.serial();
                    buffer.first = buffer.state;
                }
            }
        }
        self.event(thread, record.time_ticks, &record.event, record.failed()).map(drop)
    }

    /// Writes what `thread` has buffered as a chunk; called for a thread that ends, it frees its
    /// buffer.
    ///
    /// # Errors
    /// When writing fails.
    pub fn flush(&mut self, thread: ThreadId) -> io::Result<()> {
        let Some(buffer) = self.threads.get_mut(&thread).filter(|buffer| buffer.count > 0) else {
            return Ok(());
        };
        let plain_bytes = buffer.rows.len();
        let stored = frame::pack(&buffer.rows, buffer.count, std::mem::take(&mut buffer.cuts));
        let header = ChunkHeader {
            state: ChunkState::Framed,
            thread,
            rows: buffer.count,
            span_bytes: (CHUNK_HEADER_BYTES + stored.len()) as u32,
            stored_bytes: stored.len() as u32,
            plain_bytes: plain_bytes as u32,
            crc: crc32fast::hash(&stored),
            first_serial: buffer.first.next_serial,
            first_time_ticks: buffer.first.time_ticks,
            last_time_ticks: buffer.state.time_ticks,
        };
        self.out.write_all(&header.to_bytes())?;
        self.out.write_all(&stored)?;
        self.places.push(ChunkPlace {
            offset: self.offset,
            thread,
            rows: header.rows,
            first_time_ticks: header.first_time_ticks,
            last_time_ticks: header.last_time_ticks,
        });
        self.offset += u64::from(header.span_bytes);
        *buffer = Buffer::new(buffer.state);
        Ok(())
    }

    /// Writes what is left, the index and the final header, and gives back the output.
    ///
    /// # Errors
    /// When writing fails.
    pub fn finish(mut self) -> io::Result<W> {
        let threads: Vec<_> = self.threads.keys().copied().collect();
        for thread in threads {
            self.flush(thread)?;
        }
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
