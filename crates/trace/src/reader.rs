//! Reading: find the chunks, then stream each thread's rows.
//!
//! Opening reads headers only (through the index where it is whole, else by walking from chunk to
//! chunk). Rows are checked when they are read. Memory: 40 bytes a chunk for the places, and the
//! rows of one chunk for every [`ThreadRows`] in use.

mod rows;

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
use crate::writer::{INDEX_ENTRY_BYTES, INDEX_MAGIC};
pub use rows::ThreadRows;

/// No chunk is larger than this when inflated; a header that claims more is damaged.
const MAX_PLAIN_BYTES: u32 = 1 << 24;

/// Where a chunk is and what it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPlace {
    /// Offset of its header.
    pub offset: u64,
    /// Whose rows.
    pub thread: ThreadId,
    /// How many; 0 when it was left open.
    pub rows: u32,
    /// Time before the first row, ticks.
    pub first_time_ticks: u64,
    /// Time of the last row, ticks.
    pub last_time_ticks: u64,
}

/// An open trace.
#[derive(Debug)]
pub struct Trace {
    file: File,
    file_bytes: u64,
    header: FileHeader,
    threads: BTreeMap<ThreadId, Vec<ChunkPlace>>,
    damage: Cell<Damage>,
    spare: RefCell<Vec<Vec<u8>>>,
    unpacker: RefCell<Unpacker>,
}

impl Trace {
    /// Opens a trace, sealed or not.
    ///
    /// Damage behind the header is no error here: what is readable is read, and
    /// [`damage`](Self::damage) tells what was not.
    ///
    /// # Errors
    /// When what stands there is no regular file, cannot be read, is no trace, has another version,
    /// or a damaged header.
    pub fn open(path: &Path) -> Result<Self, Error> {
        // Looked at before it is opened: that would wait for whoever writes into a pipe.
        if let Some(found) = no_file(fs::metadata(path)?.file_type()) {
            return Err(Error::NotAFile { found });
        }
        let file = File::open(path)?;
        let file_bytes = file.metadata()?.len();
        let mut bytes = [0; HEADER_BYTES];
        let got = read_some(&file, &mut bytes, 0)?;
        let header = FileHeader::from_bytes(&bytes);
        if got < HEADER_BYTES {
            // A file cut inside the header: say "no trace" rather than "damaged" where it is none.
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
        if !trace.header.sealed {
            let end = trace.header.end_offset;
            trace.walk(end)?;
        } else if !trace.read_index()? {
            trace.note(trace.header.index_offset, |damage| damage.index_lost = true);
            let end = trace.header.index_offset;
            trace.walk(end)?;
        }
        Ok(trace)
    }

    /// What the file says of itself.
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

    /// Rows of all threads, counted by reading what its recorder left open. O(rows of one chunk a
    /// thread).
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn count_rows(&self) -> Result<u64, Error> {
        let mut count = self.rows();
        for (&thread, places) in &self.threads {
            let open = places.iter().position(|place| place.rows == 0).unwrap_or(places.len());
            let mut rows = ThreadRows::new(self, thread, &places[open..]);
            while rows.next_row()?.is_some() {
                count += 1;
            }
        }
        self.damage.set(Damage::default());
        Ok(count)
    }

    /// What has been found damaged so far. Complete once every row has been read.
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

    /// Header and plain rows of the chunk at `place`; nothing (and a note of the damage) when it
    /// is not whole.
    fn load(&self, place: &ChunkPlace, rows: &mut Vec<u8>) -> Result<Option<ChunkHeader>, Error> {
        let Some(header) = self.chunk_header(place.offset)? else {
            self.note(place.offset, |damage| damage.bad_chunks += 1);
            return Ok(None);
        };
        let mut stored = self.spare.borrow_mut().pop().unwrap_or_default();
        stored.clear();
        stored.resize(header.stored_bytes as usize, 0);
        let got = read_some(&self.file, &mut stored, place.offset + CHUNK_HEADER_BYTES as u64)?;
        stored.truncate(got);
        let found = match header.state {
            // A recorder that died may leave a chunk whose last pages were never written.
            ChunkState::Open => {
                std::mem::swap(rows, &mut stored);
                Some(header)
            }
            ChunkState::Plain => {
                std::mem::swap(rows, &mut stored);
                let cut = got < header.stored_bytes as usize;
                if !cut && crc32fast::hash(rows) == header.crc {
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
        self.spare.borrow_mut().push(stored);
        Ok(found)
    }

    /// The header of a chunk of which only the beginning is good: as of one left open, to be read
    /// up to the last whole row. Nothing if there is none.
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
        let header = ChunkHeader::from_bytes(&bytes);
        Ok(header.filter(|header| {
            header.plain_bytes <= MAX_PLAIN_BYTES && header.stored_bytes <= MAX_PLAIN_BYTES
        }))
    }

    /// Finds the chunks between the header and `end` by walking; skips what is no chunk.
    fn walk(&mut self, end: u64) -> Result<(), Error> {
        let end = end.max(HEADER_BYTES as u64);
        let mut offset = HEADER_BYTES as u64;
        while offset < end {
            if let Some(header) = self.chunk_header(offset)? {
                self.add(ChunkPlace {
                    offset,
                    thread: header.thread,
                    rows: header.rows,
                    first_time_ticks: header.first_time_ticks,
                    last_time_ticks: header.last_time_ticks,
                });
                let next = offset + u64::from(header.span_bytes);
                if next > self.file_bytes {
                    let missing = next.min(end) - self.file_bytes;
                    // The room of an open chunk need not have been written.
                    if header.state != ChunkState::Open {
                        self.note(self.file_bytes, |damage| damage.stray_bytes += missing);
                    }
                }
                offset = next;
            } else {
                let next = self.next_header(offset + 1, end)?;
                // A recorder that dies between taking room and writing a header leaves zeroes.
                if self.header.sealed || !self.all_zero(offset, next)? {
                    self.note(offset, |damage| damage.stray_bytes += next - offset);
                }
                offset = next;
            }
        }
        Ok(())
    }

    /// The first undamaged chunk header at or after `from`, or `end`.
    fn next_header(&self, from: u64, end: u64) -> Result<u64, Error> {
        let mut block = vec![0; 1 << 16];
        let mut base = from;
        while base < end {
            let got = read_some(&self.file, &mut block, base)?;
            if got < CHUNK_HEADER_BYTES {
                return Ok(end);
            }
            for (at, bytes) in block[..got].windows(CHUNK_HEADER_BYTES).enumerate() {
                let found = bytes.first_chunk().and_then(ChunkHeader::from_bytes).is_some();
                if found && base + at as u64 <= end {
                    return Ok(base + at as u64);
                }
            }
            base += (got - CHUNK_HEADER_BYTES + 1) as u64;
        }
        Ok(end)
    }

    fn all_zero(&self, from: u64, to: u64) -> Result<bool, Error> {
        let mut block = vec![0; 1 << 16];
        let mut offset = from;
        while offset < to.min(self.file_bytes) {
            let want = block.len().min((to - offset) as usize);
            let got = read_some(&self.file, &mut block[..want], offset)?;
            if block[..got].iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
            if got == 0 {
                break;
            }
            offset += got as u64;
        }
        Ok(true)
    }

    /// Reads the index of a sealed file; false when it is not whole.
    fn read_index(&mut self) -> Result<bool, Error> {
        let offset = self.header.index_offset;
        let Some(length) = self.file_bytes.checked_sub(offset).filter(|_| offset > 0) else {
            return Ok(false);
        };
        // Magic, count, entries, CRC-32.
        let Ok(length) = usize::try_from(length) else { return Ok(false) };
        let mut bytes = vec![0; length];
        if length < 16 || read_some(&self.file, &mut bytes, offset)? < length {
            return Ok(false);
        }
        let (body, crc) = bytes.split_at(length - 4);
        if body[..4] != INDEX_MAGIC || crc32fast::hash(body).to_le_bytes() != *crc {
            return Ok(false);
        }
        for entry in body[12..].chunks_exact(INDEX_ENTRY_BYTES) {
            let u32_at =
                |at: usize| entry[at..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
            let u64_at =
                |at: usize| entry[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
            self.add(ChunkPlace {
                offset: u64_at(0),
                thread: ThreadId(u32_at(8)),
                rows: u32_at(12),
                first_time_ticks: u64_at(16),
                last_time_ticks: u64_at(24),
            });
        }
        Ok(true)
    }

    fn add(&mut self, place: ChunkPlace) {
        self.threads.entry(place.thread).or_default().push(place);
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

/// What something is that is no regular file.
fn no_file(kind: FileType) -> Option<&'static str> {
    match kind {
        _ if kind.is_file() => None,
        _ if kind.is_dir() => Some("a folder"),
        _ if kind.is_fifo() => Some("a pipe"),
        _ if kind.is_socket() => Some("a socket"),
        _ => Some("a device"),
    }
}

/// Fills `out` from `offset` as far as the file reaches.
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
