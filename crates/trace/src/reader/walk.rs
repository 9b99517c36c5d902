//! Finding chunks without an index, from one to the next.

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::{ChunkPlace, Trace, header_in, read_some};
use crate::chunk::{CHUNK_HEADER_BYTES, ChunkState};
use crate::error::Error;
use crate::header::HEADER_BYTES;

/// How much is searched at a time, bytes.
const BLOCK_BYTES: usize = 1 << 16;

impl Trace {
    /// The chunks between the header and `end`. Bytes that are no chunk are skipped. An impossible
    /// end is replaced by the file's.
    pub(super) fn walk(&self, end: u64) -> Result<Vec<ChunkPlace>, Error> {
        let end = if end < HEADER_BYTES as u64 { self.file_bytes } else { end };
        // The end in a sealed file is checksummed, so all bytes missing before it are reported.
        let reach = if self.header.sealed { end } else { end.min(self.file_bytes) };
        let mut places = Vec::new();
        let mut offset = HEADER_BYTES as u64;
        while offset < reach {
            if let Some(header) = self.chunk_header(offset)? {
                places.push(ChunkPlace::of(offset, &header));
                let next = offset + u64::from(header.span_bytes);
                // The space of an open chunk may not have been written to its end.
                if next > self.file_bytes && header.state != ChunkState::Open {
                    let missing = next.min(end).saturating_sub(self.file_bytes);
                    self.note(self.file_bytes, |damage| damage.stray_bytes += missing);
                }
                offset = next;
            } else {
                let (next, zero) = self.next_header(offset, reach)?;
                // A recorder that died may leave, after its last chunk, space that it took and did
                // not use. Zeroes before a chunk are a lost chunk: it was there before the next
                // one.
                if self.header.sealed || !zero || next < reach {
                    self.note(offset, |damage| damage.stray_bytes += next - offset);
                }
                offset = next;
            }
        }
        Ok(places)
    }

    /// The first chunk header at or after `from`, or `end`, and whether only zeroes come before it.
    fn next_header(&self, from: u64, end: u64) -> Result<(u64, bool), Error> {
        let mut block = [0; BLOCK_BYTES];
        let (mut base, mut zero) = (from, true);
        while base < end {
            let want = (end - base).min(BLOCK_BYTES as u64) as usize;
            let got = read_some(&self.file, &mut block[..want], base)?;
            let bytes = &block[..got];
            if is_zero(bytes) {
                // No header begins with a zero.
                match self.next_data(base + got as u64) {
                    Some(next) if got == want => base = next,
                    _ => return Ok((end, zero)),
                }
                continue;
            }
            let is_header =
                |bytes: &[u8]| bytes.first_chunk().is_some_and(|bytes| header_in(bytes).is_some());
            if let Some(at) = bytes.windows(CHUNK_HEADER_BYTES).position(is_header) {
                return Ok((base + at as u64, zero && is_zero(&bytes[..at])));
            }
            // The next block begins where a header could begin that is only partly in this block.
            let step = got.saturating_sub(CHUNK_HEADER_BYTES - 1);
            if got < want || step == 0 {
                return Ok((end, false));
            }
            zero &= is_zero(&bytes[..step]);
            base += step as u64;
        }
        Ok((end, zero))
    }

    /// The next offset, from `from` on, that is outside the file's holes; `None` if there is none.
    /// If the file system does not report holes, every byte counts as outside.
    fn next_data(&self, from: u64) -> Option<u64> {
        match seek(&self.file, SeekFrom::Data(from)) {
            Ok(at) => Some(at.max(from)),
            Err(Errno::NXIO) => None,
            Err(_) => Some(from),
        }
    }
}

/// Checks many bytes at a time: it runs over everything that a full disk or a careless copy made of
/// a trace.
fn is_zero(bytes: &[u8]) -> bool {
    let (blocks, rest) = bytes.as_chunks::<64>();
    blocks.iter().all(|block| block.iter().fold(0, |all, byte| all | byte) == 0)
        && rest.iter().all(|&byte| byte == 0)
}
