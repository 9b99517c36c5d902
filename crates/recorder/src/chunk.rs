//! A chunk in the making: a mapped stretch of the file.
//!
//! ```text
//!  mapping   │ header, rows │ header, rows │ header, room …     of threads that followed each other
//!                 completed      completed      open
//! ```
//!
//! A thread that ends leaves the rest of a small mapping to the next thread, so that a short thread
//! costs no system call. The completed chunk reaches over the rest until that is an open chunk
//! without rows. So whenever the program dies, a reader gets from each chunk to the next.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};

use hectare_trace::{CHUNK_HEADER_BYTES, ChunkHeader, ChunkState, ROW_WINDOW_BYTES, RowState};

use crate::sys;

/// Sizes of a thread's first chunks, bytes; all later ones have the last size. This keeps short
/// threads cheap, and long ones rarely on the slow path.
const SIZES: [usize; 4] = [1 << 12, 1 << 14, 1 << 16, 1 << 18];

/// Nothing is left of a larger mapping: otherwise every thread that has ended could keep one.
const LEFT_OF_BYTES: usize = SIZES[1];

/// A rest shorter than this, bytes, is not worth a header.
const LEAST_LEFT_BYTES: usize = 512;
const _: () = assert!(LEAST_LEFT_BYTES > CHUNK_HEADER_BYTES + ROW_WINDOW_BYTES);

/// What the chunks of this process take, bytes. A forked child has none of them.
static MAPPED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// What the chunks of this process take in memory, bytes.
pub(crate) fn mapped_bytes() -> usize {
    MAPPED_BYTES.load(Ordering::Relaxed)
}

/// This process, which has just been forked, has no chunks.
pub(crate) fn none_is_mapped() {
    MAPPED_BYTES.store(0, Ordering::Relaxed);
}

/// Size of a thread's `nth` chunk, bytes.
pub(crate) fn size_of_nth(nth: u32) -> usize {
    SIZES[(nth as usize).min(SIZES.len() - 1)]
}

/// A mapped chunk. The rows are written through [`rows`](Self::rows) by its tape.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// Where its mapping begins; the mapping ends where the chunk does.
    mapping: NonNull<u8>,
    start: NonNull<u8>,
    bytes: usize,
    first: RowState,
}

impl Chunk {
    /// Takes over a new, zeroed mapping of `bytes` and writes the header of an open chunk.
    ///
    /// # Safety
    /// The mapping is writable, nobody else uses it, and the caller gives it up.
    pub(crate) unsafe fn begin(start: NonNull<u8>, bytes: usize, first: RowState) -> Self {
        MAPPED_BYTES.fetch_add(bytes, Ordering::Relaxed);
        Self { mapping: start, start, bytes, first }.begun()
    }

    /// This chunk, which has no rows, for the thread that begins with `first`.
    pub(crate) fn given_to(self, first: RowState) -> Self {
        Self { first, ..self }.begun()
    }

    /// Writes the header of an open chunk.
    fn begun(mut self) -> Self {
        let first = self.first;
        let room = (self.bytes - CHUNK_HEADER_BYTES) as u32;
        self.write_header(&ChunkHeader {
            state: ChunkState::Open,
            thread: first.thread,
            rows: 0,
            span_bytes: self.bytes as u32,
            stored_bytes: room,
            plain_bytes: room,
            crc: 0,
            first_serial: first.next_serial,
            first_time_ticks: first.time_ticks,
            last_time_ticks: first.time_ticks,
        });
        self
    }

    /// Where the first row goes, and the first place at which a whole row may no longer fit.
    pub(crate) fn rows(&self) -> (*mut u8, *mut u8) {
        let start = self.start.as_ptr();
        // SAFETY: the smallest chunk is larger than its header.
        let first = unsafe { start.add(CHUNK_HEADER_BYTES) };
        // SAFETY: as above, with room for a window.
        let limit = unsafe { start.add(self.bytes - ROW_WINDOW_BYTES) };
        (first, limit)
    }

    /// Completes the chunk, whose rows end at `cursor`, and unmaps it.
    pub(crate) fn finish(mut self, cursor: *mut u8, rows: u32, last: RowState) {
        self.complete(cursor, rows, last);
        self.unmap();
    }

    /// Completes the chunk, whose rows end at `cursor`. Returns the rest of its mapping as an empty
    /// chunk. If the rest is too short, or the mapping is a large one, it is unmapped and nothing
    /// is returned.
    pub(crate) fn leave(mut self, cursor: *mut u8, rows: u32, last: RowState) -> Option<Self> {
        let used = cursor.addr() - self.start.addr().get();
        let bytes = self.bytes - used;
        if bytes < LEAST_LEFT_BYTES || self.mapping_bytes() > LEFT_OF_BYTES {
            self.finish(cursor, rows, last);
            return None;
        }
        // SAFETY: inside the mapping by the check above.
        let start = unsafe { self.start.add(used) };
        let complete = self.complete(cursor, rows, last);
        let left = Self { mapping: self.mapping, start, bytes, first: last }.begun();
        self.write_header(&ChunkHeader { span_bytes: used as u32, ..complete });
        Some(left)
    }

    /// Writes the header of a complete chunk, and returns that header.
    fn complete(&mut self, cursor: *mut u8, rows: u32, last: RowState) -> ChunkHeader {
        let used = cursor.addr() - self.start.addr().get() - CHUNK_HEADER_BYTES;
        let (first, _) = self.rows();
        // SAFETY: these bytes lie in the mapping, and only this thread writes them.
        let stored = unsafe { core::slice::from_raw_parts(first, used) };
        let header = ChunkHeader {
            state: ChunkState::Plain,
            thread: self.first.thread,
            rows,
            span_bytes: self.bytes as u32,
            stored_bytes: used as u32,
            plain_bytes: used as u32,
            crc: crc32fast::hash(stored),
            first_serial: self.first.next_serial,
            first_time_ticks: self.first.time_ticks,
            last_time_ticks: last.time_ticks,
        };
        self.write_header(&header);
        header
    }

    /// Ends the mapping; what has been written into it stays in the file.
    pub(crate) fn unmap(self) {
        let bytes = self.mapping_bytes();
        MAPPED_BYTES.fetch_sub(bytes, Ordering::Relaxed);
        // SAFETY: the whole mapping; `self` ends here, and those before it have ended.
        unsafe { sys::unmap(self.mapping, bytes) };
    }

    fn mapping_bytes(&self) -> usize {
        self.start.addr().get() - self.mapping.addr().get() + self.bytes
    }

    fn write_header(&mut self, header: &ChunkHeader) {
        let bytes = header.to_bytes();
        // SAFETY: the mapping is larger than a header and this chunk's alone.
        unsafe { self.start.cast::<[u8; CHUNK_HEADER_BYTES]>().write(bytes) };
    }
}
