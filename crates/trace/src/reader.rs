//! Reading: finds the chunks, then streams each thread's rows.
//!
//! Opening reads only headers: those of the chunks in the index, if the index is intact and they
//! agree with it. Otherwise it walks from chunk to chunk. Rows are checked when they are read.
//! Memory: 40 bytes a chunk for the places, and the rows of one chunk for every [`ThreadRows`] in
//! use. No length, count or offset in the file is trusted beyond the data that is really there.

mod index;
mod rows;
mod walk;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::{self, File, FileType};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use crate::chunk::{CHUNK_HEADER_BYTES, ChunkHeader, ChunkState};
use crate::error::{Damage, Error};
use crate::event::ThreadId;
use crate::frame::Unpacker;
use crate::header::{FileHeader, HEADER_BYTES};
use crate::row::MAX_ROW_BYTES;
pub use rows::ThreadRows;

/// No chunk is larger than this when inflated. A header that claims more is damaged.
const MAX_PLAIN_BYTES: u32 = 1 << 24;

/// Where a chunk is and what it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPlace {
    /// Offset of its header.
    pub offset: u64,
    /// The thread whose rows these are.
    pub thread: ThreadId,
    /// How many rows; 0 if the chunk was left open.
    pub rows: u32,
    /// Time before the first row, ticks.
    pub first_time_ticks: u64,
    /// Time of the last row, ticks.
    pub last_time_ticks: u64,
}

impl ChunkPlace {
    pub(crate) fn of(offset: u64, header: &ChunkHeader) -> Self {
        Self {
            offset,
            thread: header.thread,
            rows: header.rows,
            first_time_ticks: header.first_time_ticks,
            last_time_ticks: header.last_time_ticks,
        }
    }
}

/// An open trace.
#[derive(Debug)]
pub struct Trace {
    file: File,
    file_bytes: u64,
    header: FileHeader,
    threads: BTreeMap<ThreadId, Vec<ChunkPlace>>,
    damage: Cell<Damage>,
    /// Buffers that nobody reads from now.
    spare: RefCell<Vec<Vec<u8>>>,
    unpacker: RefCell<Unpacker>,
}

impl Trace {
    /// Opens a trace, sealed or not.
    ///
    /// Damage after the header is no error here. Everything readable is read, and
    /// [`damage`](Self::damage) tells the rest.
    ///
    /// # Errors
    /// When the path does not lead to a regular file, or the file cannot be read, is no trace, or
    /// has another version or a damaged header.
    pub fn open(path: &Path) -> Result<Self, Error> {
        // Checked before the file is opened, since opening a pipe would wait for a writer.
        if let Some(found) = no_file(fs::metadata(path)?.file_type()) {
            return Err(Error::NotAFile { found });
        }
        let file = File::open(path)?;
        let mut bytes = [0; HEADER_BYTES];
        let got = read_some(&file, &mut bytes, 0)?;
        // Read after the header, which says how far a recorder that is still at work had come by
        // then.
        let file_bytes = file.metadata()?.len();
        let header = FileHeader::from_bytes(&bytes);
        if got < HEADER_BYTES {
            // The file was truncated within the header. If it is no trace at all, the error is "no
            // trace" rather than "damaged".
            return Err(match header {
                Err(error @ (Error::NotATrace | Error::Version { .. })) => error,
                _ => Error::BadHeader,
            });
        }
        let mut trace = Self {
            file,
            file_bytes,
            header: header?,
            threads: BTreeMap::new(),
            damage: Cell::new(Damage::default()),
            spare: RefCell::new(Vec::new()),
            unpacker: RefCell::new(Unpacker::new()),
        };
        let places = if trace.header.sealed {
            trace.find_chunks()?
        } else {
            trace.walk(trace.header.end_offset)?
        };
        for place in places {
            trace.threads.entry(place.thread).or_default().push(place);
        }
        Ok(trace)
    }

    /// The header of the file.
    pub fn header(&self) -> &FileHeader {
        &self.header
    }

    /// Size of the file, bytes.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// The threads with rows in this file and where their chunks are, in program order.
    pub fn threads(&self) -> &BTreeMap<ThreadId, Vec<ChunkPlace>> {
        &self.threads
    }

    /// Rows in all complete chunks, without reading them.
    pub fn rows(&self) -> u64 {
        self.threads.values().flatten().map(|place| u64::from(place.rows)).sum()
    }

    /// Rows of all threads, counted by reading the chunks that the recorder left open. O(rows of
    /// one chunk per thread).
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn count_rows(&self) -> Result<u64, Error> {
        // Damage found here is not noted: the reader of the rows finds it again.
        let found = self.damage.get();
        let mut count = self.rows();
        for (&thread, places) in &self.threads {
            for open in places.chunks(1).filter(|place| place[0].rows == 0) {
                let mut rows = ThreadRows::new(self, thread, open);
                while rows.next_row()?.is_some() {
                    count += 1;
                }
            }
        }
        self.damage.set(found);
        Ok(count)
    }

    /// The damage found so far. Complete once every row has been read.
    pub fn damage(&self) -> Damage {
        self.damage.get()
    }

    /// The error to report after reading, if anything was damaged.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub fn check(&self) -> Result<(), Error> {
        let damage = self.damage();
        if damage.any() { Err(Error::Damaged(damage)) } else { Ok(()) }
    }

    /// Streams the rows of one thread; empty for a thread that is not in the file.
    pub fn thread_rows(&self, thread: ThreadId) -> ThreadRows<'_> {
        let places = self.threads.get(&thread).map_or(&[][..], Vec::as_slice);
        ThreadRows::new(self, thread, places)
    }

    /// Header and plain rows of the chunk at `place`; `None` (and a note of the damage) when it is
    /// not intact.
    fn load(&self, place: &ChunkPlace, rows: &mut Vec<u8>) -> Result<Option<ChunkHeader>, Error> {
        let Some(header) = self.chunk_header(place.offset)? else {
            self.note(place.offset, |damage| damage.bad_chunks += 1);
            return Ok(None);
        };
        let mut stored = self.buffer();
        if rows.capacity() == 0 {
            *rows = self.buffer();
        }
        stored.clear();
        stored.resize(header.stored_bytes as usize, 0);
        let got = read_some(&self.file, &mut stored, place.offset + CHUNK_HEADER_BYTES as u64)?;
        stored.truncate(got);
        let found = match header.state {
            // A recorder that died may leave a chunk whose last pages were never written.
            ChunkState::Open => {
                std::mem::swap(rows, &mut stored);
                cut_zeroes(rows);
                Some(header)
            }
            ChunkState::Plain => {
                std::mem::swap(rows, &mut stored);
                let cut = got < header.stored_bytes as usize;
                if !cut && crc32fast::hash(rows) == header.crc {
                    cut_zeroes(rows);
                    Some(header)
                } else {
                    self.beginning(place, header, cut && !rows.is_empty())
                }
            }
            ChunkState::Framed => {
                let plain_bytes = header.plain_bytes as usize;
                let good = self.unpacker.borrow_mut().unpack(&stored, plain_bytes, rows);
                if good == header.rows {
                    Some(header)
                } else {
                    self.beginning(place, header, good > 0)
                }
            }
        };
        self.give_back(stored);
        Ok(found)
    }

    /// A buffer of arbitrary content.
    fn buffer(&self) -> Vec<u8> {
        self.spare.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps a buffer for whoever reads next.
    fn give_back(&self, buffer: Vec<u8>) {
        if buffer.capacity() > 0 {
            self.spare.borrow_mut().push(buffer);
        }
    }

    /// The memory kept for whoever reads next, bytes.
    #[cfg(test)]
    pub(crate) fn spare_bytes(&self) -> usize {
        self.spare.borrow().iter().map(Vec::capacity).sum()
    }

    /// The header for a chunk of which only the beginning is good, as if the chunk had been left
    /// open: to be read up to the last whole row. `None` if no beginning is good.
    fn beginning(&self, place: &ChunkPlace, header: ChunkHeader, any: bool) -> Option<ChunkHeader> {
        if !any {
            self.note(place.offset, |damage| damage.bad_chunks += 1);
            return None;
        }
        self.note(place.offset, |damage| damage.partial_chunks += 1);
        Some(ChunkHeader { state: ChunkState::Open, rows: 0, ..header })
    }

    fn chunk_header(&self, offset: u64) -> Result<Option<ChunkHeader>, Error> {
        let mut bytes = [0; CHUNK_HEADER_BYTES];
        if read_some(&self.file, &mut bytes, offset)? < bytes.len() {
            return Ok(None);
        }
        Ok(header_in(&bytes))
    }

    fn note(&self, offset: u64, change: impl FnOnce(&mut Damage)) {
        let mut damage = self.damage.get();
        damage.offset = if damage.any() { damage.offset.min(offset) } else { offset };
        change(&mut damage);
        self.damage.set(damage);
    }

    fn note_good(&self, chunks: u64, rows: u64) {
        let mut damage = self.damage.get();
        damage.good_chunks += chunks;
        damage.good_rows += rows;
        self.damage.set(damage);
    }
}

/// The chunk header in these bytes, if it is credible.
fn header_in(bytes: &[u8; CHUNK_HEADER_BYTES]) -> Option<ChunkHeader> {
    ChunkHeader::from_bytes(bytes).filter(|header| {
        header.plain_bytes <= MAX_PLAIN_BYTES && header.stored_bytes <= MAX_PLAIN_BYTES
    })
}

/// Drops zeroes in which no row can begin: a hole of megabytes in the file may be read as such.
fn cut_zeroes(rows: &mut Vec<u8>) {
    let filled = rows.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    // The last row may end with zeroes.
    rows.truncate(filled + MAX_ROW_BYTES);
    if rows.capacity() / 4 > rows.len() {
        rows.shrink_to_fit();
    }
}

/// The kind of a file that is not regular; `None` if it is regular.
fn no_file(kind: FileType) -> Option<&'static str> {
    match kind {
        _ if kind.is_file() => None,
        _ if kind.is_dir() => Some("a folder"),
        _ if kind.is_fifo() => Some("a pipe"),
        _ if kind.is_socket() => Some("a socket"),
        _ => Some("a device"),
    }
}

/// Fills `out` from `offset`, as far as the file goes.
fn read_some(file: &File, out: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut got = 0;
    while got < out.len() {
        match file.read_at(&mut out[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(count) => got += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}
