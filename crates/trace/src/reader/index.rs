//! The chunks of a sealed file: by its index where that is whole.

use super::{ChunkPlace, Trace, read_some};
use crate::error::Error;
use crate::event::ThreadId;
use crate::header::HEADER_BYTES;
use crate::writer::{INDEX_ENTRY_BYTES, INDEX_MAGIC};

impl Trace {
    /// The chunks that the index names, if it is whole; else those that are there, and a note that
    /// the index is lost.
    pub(super) fn find_chunks(&self) -> Result<Vec<ChunkPlace>, Error> {
        if let Some(places) = self.read_index()? {
            return Ok(places);
        }
        let end = self.header.index_offset;
        // A writer that was stopped has not said where it would stand.
        let lost_at = if end < HEADER_BYTES as u64 { self.file_bytes } else { end };
        self.note(lost_at, |damage| damage.index_lost = true);
        self.walk(end)
    }

    /// Reads the index; nothing when it is not whole.
    fn read_index(&self) -> Result<Option<Vec<ChunkPlace>>, Error> {
        let offset = self.header.index_offset;
        let Some(length) = self.file_bytes.checked_sub(offset).filter(|_| offset > 0) else {
            return Ok(None);
        };
        // Magic, count, entries, CRC-32.
        let Ok(length) = usize::try_from(length) else { return Ok(None) };
        let mut bytes = vec![0; length];
        if length < 16 || read_some(&self.file, &mut bytes, offset)? < length {
            return Ok(None);
        }
        let (body, crc) = bytes.split_at(length - 4);
        if body[..4] != INDEX_MAGIC || crc32fast::hash(body).to_le_bytes() != *crc {
            return Ok(None);
        }
        let place = |entry: &[u8]| {
            let u32_at =
                |at: usize| entry[at..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
            let u64_at =
                |at: usize| entry[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
            ChunkPlace {
                offset: u64_at(0),
                thread: ThreadId(u32_at(8)),
                rows: u32_at(12),
                first_time_ticks: u64_at(16),
                last_time_ticks: u64_at(24),
            }
        };
        Ok(Some(body[12..].chunks_exact(INDEX_ENTRY_BYTES).map(place).collect()))
    }
}
