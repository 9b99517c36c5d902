//! A chunk in the making: a mapped stretch of the file.

use core::ptr::NonNull;

use hectare_trace::{CHUNK_HEADER_BYTES, ChunkHeader, ChunkState, ROW_WINDOW_BYTES, RowState};

use crate::sys;

/// Sizes of a thread's first chunks, bytes; all later ones have the last size. This keeps short
/// threads cheap, and long ones rarely on the slow path.
const SIZES: [usize; 4] = [1 << 12, 1 << 14, 1 << 16, 1 << 18];

/// Size of a thread's `nth` chunk, bytes.
pub(crate) fn size_of_nth(nth: u32) -> usize {
    SIZES[(nth as usize).min(SIZES.len() - 1)]
}

/// A mapped chunk. The rows are written through [`rows`](Self::rows) by its tape.
#[derive(Debug)]
pub(crate) struct Chunk {
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
        let mut chunk = Self { start, bytes, first };
        let room = (bytes - CHUNK_HEADER_BYTES) as u32;
        chunk.write_header(&ChunkHeader {
            state: ChunkState::Open,
            thread: first.thread,
            rows: 0,
            span_bytes: bytes as u32,
            stored_bytes: room,
            plain_bytes: room,
            crc: 0,
            first_serial: first.next_serial,
            first_time_ticks: first.time_ticks,
            last_time_ticks: first.time_ticks,
        });
        chunk
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

    /// Completes the header of the chunk, whose rows end at `cursor`, and unmaps it.
    pub(crate) fn finish(mut self, cursor: *mut u8, rows: u32, last: RowState) {
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
        // SAFETY: the whole mapping, and `self` ends here.
        unsafe { sys::unmap(self.start, self.bytes) };
    }

    fn write_header(&mut self, header: &ChunkHeader) {
        let bytes = header.to_bytes();
        // SAFETY: the mapping is larger than a header and this chunk's alone.
        unsafe { self.start.cast::<[u8; CHUNK_HEADER_BYTES]>().write(bytes) };
    }
}
