//! The chunks of a sealed file, from its index if that is right.

use super::{ChunkPlace, Trace, read_some};
use crate::chunk::CHUNK_HEADER_BYTES;
use crate::error::{Damage, Error};
use crate::event::ThreadId;
use crate::fixed::{u32_at, u64_at};
use crate::header::HEADER_BYTES;
use crate::writer::{INDEX_ENTRY_BYTES, INDEX_MAGIC};

/// Magic and count.
const HEAD_BYTES: usize = 12;

const CRC_BYTES: usize = 4;

/// Entries read at a time.
const BLOCK_ENTRIES: usize = 2048;

impl Trace {
    /// The chunks that the index names, if the index is intact and they agree with it. Otherwise
    /// the chunks that a walk finds, with a note that the index is lost.
    pub(super) fn find_chunks(&self) -> Result<Vec<ChunkPlace>, Error> {
        let index = self.read_index()?;
        if let Some(places) = &index
            && self.agrees(places)?
        {
            return Ok(index.unwrap_or_default());
        }
        let end = self.header.index_offset;
        let found = self.walk(end)?;
        if let Some(places) = index
            && found.iter().all(|place| is_among(place, &places))
            && self.are_damaged(&places, &found)?
        {
            // The index is intact and headers are damaged. Each is reported when its rows are read.
            self.damage.set(Damage::default());
            return Ok(places);
        }
        // A writer that was stopped has not stated the index's offset.
        let lost_at = if end < HEADER_BYTES as u64 { self.file_bytes } else { end };
        self.note(lost_at, |damage| damage.index_lost = true);
        Ok(found)
    }

    /// Reads the index; `None` when it is not intact, or names a place where no chunk can be.
    fn read_index(&self) -> Result<Option<Vec<ChunkPlace>>, Error> {
        let end = self.header.index_offset;
        let Some(length) = self.file_bytes.checked_sub(end) else { return Ok(None) };
        let mut head = [0; HEAD_BYTES];
        if read_some(&self.file, &mut head, end)? < head.len() || head[..4] != INDEX_MAGIC {
            return Ok(None);
        }
        let count = u64_at(&head, 4);
        let counted = count
            .checked_mul(INDEX_ENTRY_BYTES as u64)
            .and_then(|bytes| bytes.checked_add((HEAD_BYTES + CRC_BYTES) as u64));
        if counted != Some(length) {
            return Ok(None);
        }
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&head);
        // The length can be that of a hole, so memory grows only with the entries that make sense.
        let mut places = Vec::new();
        let mut block = [0; BLOCK_ENTRIES * INDEX_ENTRY_BYTES];
        let mut offset = end + HEAD_BYTES as u64;
        let entries_end = self.file_bytes - CRC_BYTES as u64;
        let mut least = HEADER_BYTES as u64;
        while offset < entries_end {
            let want = (entries_end - offset).min(block.len() as u64) as usize;
            let bytes = &mut block[..want];
            if read_some(&self.file, bytes, offset)? < want {
                return Ok(None);
            }
            hasher.update(bytes);
            for entry in bytes.chunks_exact(INDEX_ENTRY_BYTES) {
                let place = ChunkPlace {
                    offset: u64_at(entry, 0),
                    thread: ThreadId(u32_at(entry, 8)),
                    rows: u32_at(entry, 12),
                    first_time_ticks: u64_at(entry, 16),
                    last_time_ticks: u64_at(entry, 24),
                };
                // Chunks must be in file order, at least a header apart.
                if place.offset < least || place.offset >= end {
                    return Ok(None);
                }
                least = place.offset + CHUNK_HEADER_BYTES as u64;
                places.push(place);
            }
            offset += want as u64;
        }
        let mut crc = [0; CRC_BYTES];
        read_some(&self.file, &mut crc, entries_end)?;
        Ok((u32::from_le_bytes(crc) == hasher.finalize()).then_some(places))
    }

    /// Whether none of the `places` that a walk has not `found` has a header. A place with a header
    /// lies inside another chunk: it could claim all bytes up to the end of the file, as could many
    /// more.
    fn are_damaged(&self, places: &[ChunkPlace], found: &[ChunkPlace]) -> Result<bool, Error> {
        for place in places {
            if !is_among(place, found) && self.chunk_header(place.offset)?.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the chunks at `places` are those that the index names, and fill the file up to the
    /// index.
    fn agrees(&self, places: &[ChunkPlace]) -> Result<bool, Error> {
        let mut next = HEADER_BYTES as u64;
        for place in places {
            let Some(header) = self.chunk_header(place.offset)? else { return Ok(false) };
            if place.offset != next || *place != ChunkPlace::of(next, &header) {
                return Ok(false);
            }
            next += u64::from(header.span_bytes);
        }
        Ok(next == self.header.index_offset)
    }
}

fn is_among(place: &ChunkPlace, places: &[ChunkPlace]) -> bool {
    places
        .binary_search_by_key(&place.offset, |other| other.offset)
        .is_ok_and(|at| places[at] == *place)
}
