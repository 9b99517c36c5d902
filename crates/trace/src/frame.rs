//! Frames: the rows of a compressed chunk, in pieces that can each be checked.
//!
//! ```text
//!  chunk   │ header │ frame │ frame │ frame │
//!  frame   │ stored bytes │ plain bytes │ rows │ CRC-32 │ a stretch of one deflate stream │
//! ```
//!
//! 1. The stretches of a chunk are one deflate stream, flushed to a whole byte at the end of each
//!    frame. So a frame can be inflated once the frames before it have been.
//! 2. A frame ends between two rows, and its checksum covers its own header. So a chunk that was
//!    cut or damaged in the middle is good up to the frame before.
//! 3. Frames of a chunk double in size up to [`MOST_PLAIN_BYTES`], so that a short recording can
//!    lose only a little, and a long one compresses as if it were in one piece.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress};

use crate::fixed::u32_at;

/// Bytes before the stretch of a frame.
const HEADER_BYTES: usize = 16;

/// Rows of a chunk's first frame, bytes.
const FIRST_PLAIN_BYTES: usize = 512;

/// The most rows of a frame, bytes (plus one row).
const MOST_PLAIN_BYTES: usize = 1 << 14;

/// The strongest level gains 2 to 5 per cent on the bundled traces, but takes three times as long.
const DEFLATE_LEVEL: u32 = 6;

/// No byte of a deflate stream stands for more (258 bytes in two bits).
const MOST_EXPANSION: usize = 1032;

/// Room for the end marker of a stretch, bytes. Without it an inflater stops before the marker.
const FLUSH_BYTES: usize = 16;

/// Where a chunk's rows are cut into frames.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cuts {
    /// End of each frame in the rows, bytes, and how many rows it has.
    ends: Vec<(usize, u32)>,
}

impl Cuts {
    /// Must be called after each row: the chunk now has `rows` rows of `bytes` bytes in all.
    #[inline]
    pub(crate) fn row(&mut self, bytes: usize, rows: u32) {
        let (begin, _) = self.last();
        let size = FIRST_PLAIN_BYTES << self.ends.len().min(8);
        if bytes - begin >= size.min(MOST_PLAIN_BYTES) {
            self.end(bytes, rows);
        }
    }

    fn last(&self) -> (usize, u32) {
        self.ends.last().copied().unwrap_or((0, 0))
    }

    fn end(&mut self, bytes: usize, rows: u32) {
        self.ends.push((bytes, rows));
    }
}

/// Makes frames. Its tables are reused from chunk to chunk.
#[derive(Debug)]
pub(crate) struct Packer {
    stream: Compress,
}

impl Packer {
    pub(crate) fn new() -> Self {
        // A raw stream, without the header of zlib.
        Self { stream: Compress::new(Compression::new(DEFLATE_LEVEL), false) }
    }

    /// The frames of a chunk whose `rows` rows are in `plain`.
    pub(crate) fn pack(&mut self, plain: &[u8], rows: u32, mut cuts: Cuts) -> Vec<u8> {
        if cuts.last().0 < plain.len() {
            cuts.end(plain.len(), rows);
        }
        self.stream.reset();
        let mut stored = Vec::with_capacity(plain.len());
        let (mut begin, mut rows_before) = (0, 0);
        for (end, rows) in cuts.ends {
            let at = stored.len();
            stored.resize(at + HEADER_BYTES, 0);
            self.deflate(&plain[begin..end], &mut stored);
            let bytes = stored.len() - at - HEADER_BYTES;
            let fields = [bytes as u32, (end - begin) as u32, rows - rows_before];
            for (nth, field) in fields.iter().enumerate() {
                stored[at + 4 * nth..][..4].copy_from_slice(&field.to_le_bytes());
            }
            let crc = crc(&stored[at..]);
            stored[at + 12..][..4].copy_from_slice(&crc.to_le_bytes());
            (begin, rows_before) = (end, rows);
        }
        stored
    }

    /// Appends the deflated `plain`, flushed.
    fn deflate(&mut self, mut plain: &[u8], out: &mut Vec<u8>) {
        loop {
            // Incompressible data grows by five bytes a block.
            out.reserve(plain.len() + plain.len() / 64 + 64);
            let before = self.stream.total_in();
            // Fails only if a stream is used out of order, which this function alone cannot do.
            let _ = self.stream.compress_vec(plain, out, FlushCompress::Sync);
            plain = &plain[(self.stream.total_in() - before) as usize..];
            // If `out` has room left, the stream holds nothing back.
            if plain.is_empty() && out.len() < out.capacity() {
                return;
            }
        }
    }
}

/// Reads frames. Its tables are reused from chunk to chunk.
#[derive(Debug)]
pub(crate) struct Unpacker {
    stream: Decompress,
}

impl Unpacker {
    pub(crate) fn new() -> Self {
        Self { stream: Decompress::new(false) }
    }

    /// Inflates the frames in `stored` into `plain`, as far as they are good. Returns the number of
    /// rows in them. `plain_bytes` is the length that the whole chunk claims; memory grows only
    /// with the frames that are really there.
    pub(crate) fn unpack(
        &mut self,
        mut stored: &[u8],
        plain_bytes: usize,
        plain: &mut Vec<u8>,
    ) -> u32 {
        plain.clear();
        self.stream.reset(false);
        let (mut filled, mut rows) = (0, 0);
        while let Some((header, rest)) = stored.split_first_chunk::<HEADER_BYTES>() {
            let field = |nth: usize| u32_at(header, 4 * nth);
            let (bytes, size) = (field(0) as usize, field(1) as usize);
            let Some(stretch) = rest.get(..bytes) else { break };
            if crc(&stored[..HEADER_BYTES + bytes]) != field(3)
                || size > plain_bytes - filled
                || size / MOST_EXPANSION > bytes
            {
                break;
            }
            plain.resize(filled + size + FLUSH_BYTES, 0);
            let (taken, given) = (self.stream.total_in(), self.stream.total_out());
            let done = self.stream.decompress(stretch, &mut plain[filled..], FlushDecompress::Sync);
            let taken = (self.stream.total_in() - taken) as usize;
            let given = (self.stream.total_out() - given) as usize;
            if done.is_err() || (taken, given) != (bytes, size) {
                break;
            }
            filled += size;
            rows = field(2).saturating_add(rows);
            stored = &rest[bytes..];
        }
        plain.truncate(filled);
        rows
    }
}

/// CRC-32 of a frame, excluding its own field.
fn crc(frame: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&frame[..12]);
    hasher.update(&frame[HEADER_BYTES..]);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of 1 to 9 bytes with their ends.
    fn example() -> (Vec<u8>, Vec<usize>, Cuts) {
        let mut random = fastrand::Rng::with_seed(3);
        let (mut plain, mut ends, mut cuts) = (Vec::new(), Vec::new(), Cuts::default());
        while plain.len() < 100_000 {
            for _ in 0..random.usize(1..10) {
                plain.push(random.u8(0..40));
            }
            ends.push(plain.len());
            cuts.row(plain.len(), ends.len() as u32);
        }
        (plain, ends, cuts)
    }

    #[test]
    fn what_was_packed_comes_back_and_a_cut_gives_whole_rows() {
        let (plain, ends, cuts) = example();
        let stored = Packer::new().pack(&plain, ends.len() as u32, cuts);
        assert!(stored.len() < plain.len());
        let mut out = Vec::new();
        let mut unpacker = Unpacker::new();
        assert_eq!(unpacker.unpack(&stored, plain.len(), &mut out), ends.len() as u32);
        assert_eq!(out, plain);
        let mut seen = 0;
        for length in (0..stored.len()).step_by(97) {
            let rows = unpacker.unpack(&stored[..length], plain.len(), &mut out);
            let end = if rows == 0 { 0 } else { ends[rows as usize - 1] };
            assert_eq!(out, plain[..end], "cut at {length}");
            assert!(rows >= seen);
            // Less than a frame is lost: the rest of the file is smaller than the frame's rows.
            assert!(length < end + 2 * MOST_PLAIN_BYTES);
            seen = rows;
        }
        assert!(seen > 0);
    }

    #[test]
    fn a_flipped_bit_costs_what_follows_and_nothing_before() {
        let (plain, ends, cuts) = example();
        let stored = Packer::new().pack(&plain, ends.len() as u32, cuts);
        let (mut out, mut unpacker) = (Vec::new(), Unpacker::new());
        for at in (0..stored.len()).step_by(211) {
            let mut damaged = stored.clone();
            damaged[at] ^= 1 << (at % 8);
            let rows = unpacker.unpack(&damaged, plain.len(), &mut out) as usize;
            assert!(rows < ends.len(), "the flip at {at} went unnoticed");
            let end = if rows == 0 { 0 } else { ends[rows - 1] };
            assert_eq!(out, plain[..end], "a flip at {at}");
        }
    }

    #[test]
    fn a_frame_is_believed_only_as_far_as_its_stretch_goes() {
        let plain = [7; 400];
        let stored = Packer::new().pack(&plain, 100, Cuts::default());
        let claiming = |bytes: usize, size: u32, rows: u32| {
            let mut frame = stored[..HEADER_BYTES + bytes].to_vec();
            for (nth, field) in [bytes as u32, size, rows].into_iter().enumerate() {
                frame[4 * nth..][..4].copy_from_slice(&field.to_le_bytes());
            }
            let crc = crc(&frame);
            frame[12..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
            frame
        };
        let mut unpacker = Unpacker::new();
        let mut unpack = |frame: &[u8], plain_bytes| {
            let mut out = Vec::new();
            let rows = unpacker.unpack(frame, plain_bytes, &mut out);
            (rows, out.len(), out.capacity())
        };
        let bytes = stored.len() - HEADER_BYTES;
        let (rows, length, _) = unpack(&claiming(bytes, 400, 100), 400);
        assert_eq!((rows, length), (100, 400));
        for (what, frame, plain_bytes) in [
            ("more than the chunk", claiming(bytes, 400, 100), 399),
            ("more than it inflates to", claiming(bytes, 401, 100), 1 << 24),
            ("less than it inflates to", claiming(bytes, 399, 100), 1 << 24),
            ("a stretch that is cut", claiming(bytes / 2, 400, 100), 1 << 24),
            ("more than any stretch of that length", claiming(bytes, 1 << 24, 100), 1 << 24),
        ] {
            let (rows, length, capacity) = unpack(&frame, plain_bytes);
            assert_eq!((rows, length), (0, 0), "{what}");
            assert!(capacity < 1 << 20, "{what}: {capacity} bytes taken");
        }
        // The rows counted by two frames must not exceed what a number holds.
        let whole = claiming(bytes, 400, u32::MAX);
        let (rows, ..) = unpack(&[&whole[..], &whole].concat(), 800);
        assert_eq!(rows, u32::MAX);
    }
}
