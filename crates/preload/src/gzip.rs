//! A gzip file whose contents are stored, not compressed (RFC 1951, 3.2.4; RFC 1952). Readers of
//! profiles ask for gzip. Stored contents cost a checksum, but not the quarter of a megabyte of
//! tables that a compressor needs.

use crate::output::Sink;

/// A stored block's length must fit 16 bits; this keeps the writer's buffer small.
const BLOCK_BYTES: usize = 4096;

/// Collects bytes into stored blocks on their way to a sink.
pub(crate) struct Gzip<'a, S: Sink> {
    sink: &'a mut S,
    block: [u8; BLOCK_BYTES],
    filled: usize,
    checksum: u32,
    bytes: u32,
}

/// Magic number, method "deflate", no name, no time, unknown system.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];

impl<'a, S: Sink> Gzip<'a, S> {
    pub(crate) fn begin(sink: &'a mut S) -> Option<Self> {
        sink.put(&HEADER)?;
        Some(Self { sink, block: [0; BLOCK_BYTES], filled: 0, checksum: !0, bytes: 0 })
    }

    /// Writes the last block, the checksum and the length.
    pub(crate) fn finish(mut self) -> Option<()> {
        self.write_block(true)?;
        self.sink.put(&(!self.checksum).to_le_bytes())?;
        self.sink.put(&self.bytes.to_le_bytes())
    }

    fn write_block(&mut self, last: bool) -> Option<()> {
        let length = self.filled as u16;
        self.sink.put(&[u8::from(last)])?;
        self.sink.put(&length.to_le_bytes())?;
        self.sink.put(&(!length).to_le_bytes())?;
        self.sink.put(&self.block[..self.filled])?;
        self.filled = 0;
        Some(())
    }
}

impl<S: Sink> Sink for Gzip<'_, S> {
    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        self.bytes = self.bytes.wrapping_add(bytes.len() as u32);
        for &byte in bytes {
            let index = (self.checksum ^ u32::from(byte)) & 0xff;
            self.checksum = CHECKSUMS[index as usize] ^ self.checksum >> 8;
            self.block[self.filled] = byte;
            self.filled += 1;
            if self.filled == BLOCK_BYTES {
                self.write_block(false)?;
            }
        }
        Some(())
    }
}

/// The CRC-32 of each byte (ISO 3309; RFC 1952, 8).
const CHECKSUMS: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut remainder = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            let odd = remainder & 1 == 1;
            remainder >>= 1;
            if odd {
                remainder ^= 0xedb8_8320;
            }
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
};
