//! Chunks: stretches of one thread's rows, each decodable by itself.

use crate::event::ThreadId;
use crate::fixed;

/// Bytes of a chunk header.
pub const CHUNK_HEADER_BYTES: usize = 64;

const MAGIC: u32 = u32::from_le_bytes(*b"HCk1");

/// How the rows of a chunk are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkState {
    /// A recorder is still writing, or was when it died: uncompressed rows up to a zero tag, with
    /// no checksum over them.
    Open,
    /// Complete; rows uncompressed.
    Plain,
    /// Complete; rows compressed in frames, each with a checksum.
    Framed,
}

/// The header before the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// How the rows are stored.
    pub state: ChunkState,
    /// The thread whose rows these are.
    pub thread: ThreadId,
    /// How many rows; 0 while open.
    pub rows: u32,
    /// From this header to the next, bytes.
    pub span_bytes: u32,
    /// Rows as stored, bytes; while open, the room for them.
    pub stored_bytes: u32,
    /// Rows when inflated, bytes.
    pub plain_bytes: u32,
    /// CRC-32 of the rows as stored; 0 while open.
    pub crc: u32,
    /// Serial of the first object made in this chunk.
    pub first_serial: u64,
    /// Time before the first row, ticks.
    pub first_time_ticks: u64,
    /// Time of the last row, ticks; while open, time of the first.
    pub last_time_ticks: u64,
}

impl ChunkHeader {
    /// The header as stored in the file; its last field is a CRC-32 of the others.
    pub fn to_bytes(&self) -> [u8; CHUNK_HEADER_BYTES] {
        let mut out = [0; CHUNK_HEADER_BYTES];
        out[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4] = match self.state {
            ChunkState::Open => 1,
            ChunkState::Plain => 2,
            ChunkState::Framed => 4,
        };
        out[8..12].copy_from_slice(&self.thread.0.to_le_bytes());
        out[12..16].copy_from_slice(&self.rows.to_le_bytes());
        out[16..20].copy_from_slice(&self.span_bytes.to_le_bytes());
        out[20..24].copy_from_slice(&self.stored_bytes.to_le_bytes());
        out[24..28].copy_from_slice(&self.plain_bytes.to_le_bytes());
        out[28..32].copy_from_slice(&self.crc.to_le_bytes());
        out[32..40].copy_from_slice(&self.first_serial.to_le_bytes());
        out[40..48].copy_from_slice(&self.first_time_ticks.to_le_bytes());
        out[48..56].copy_from_slice(&self.last_time_ticks.to_le_bytes());
        let crc = crc32fast::hash(&out[..60]);
        out[60..64].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads a header. `None` when the bytes are not those of an undamaged header.
    pub fn from_bytes(bytes: &[u8; CHUNK_HEADER_BYTES]) -> Option<Self> {
        let u32_at = |at| fixed::u32_at(bytes, at);
        let u64_at = |at| fixed::u64_at(bytes, at);
        if u32_at(0) != MAGIC || u32_at(60) != crc32fast::hash(&bytes[..60]) {
            return None;
        }
        let header = Self {
            state: match bytes[4] {
                1 => ChunkState::Open,
                2 => ChunkState::Plain,
                4 => ChunkState::Framed,
                _ => return None,
            },
            thread: ThreadId(u32_at(8)),
            rows: u32_at(12),
            span_bytes: u32_at(16),
            stored_bytes: u32_at(20),
            plain_bytes: u32_at(24),
            crc: u32_at(28),
            first_serial: u64_at(32),
            first_time_ticks: u64_at(40),
            last_time_ticks: u64_at(48),
        };
        let fits = u64::from(header.stored_bytes) + CHUNK_HEADER_BYTES as u64
            <= u64::from(header.span_bytes);
        // An open chunk must claim no rows: they would be counted as good whether or not they
        // exist.
        let is_open = header.state == ChunkState::Open;
        let can_be = fits && header.thread.can_be() && !(is_open && header.rows > 0);
        can_be.then_some(header)
    }
}
