//! The file header: what was recorded, when, and with which clock.

use crate::error::Error;
use crate::fixed;

/// Bytes before the first chunk: a page, so that a recorder can map header and chunks separately.
pub const HEADER_BYTES: usize = 4096;

/// Recorders on x86-64 count ticks of the time-stamp counter divided by two to this power: at 2 to
/// 4 GHz a tick is 4 to 8 ns, below what recording costs, and most time deltas fit one byte.
pub const RECORDER_CLOCK_SHIFT: u32 = 4;

/// The version of the format that this crate reads and writes.
pub const VERSION: u32 = 2;

const MAGIC: [u8; 8] = *b"HECTRACE";
const COMMAND_AT: usize = 256;
const COMMAND_MAX: usize = HEADER_BYTES - COMMAND_AT;

/// The beginning of a trace.
///
/// A recorder keeps the fields marked *live* up to date in its mapping. Therefore the header has no
/// checksum before the file is sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// Whether the file is complete, with an index.
    pub sealed: bool,
    /// Process recorded.
    pub pid: u32,
    /// Its parent.
    pub parent_pid: u32,
    /// Threads with a lower number belong to the process that this one was forked from: their
    /// objects were inherited, and the rows that made them are in the parent's file.
    pub first_thread: u32,
    /// *Live.* Ticks a second of every time in the file.
    pub ticks_per_second: u64,
    /// When recording began, ns since 1970.
    pub start_unix_ns: u64,
    /// What recording cost each event, picoseconds, measured on the recording machine; 0: unknown.
    pub event_cost_ps: u64,
    /// *Live.* Frees of pointers that the recorder had not seen allocated (they were allocated
    /// before it could record, or by other means).
    pub unknown_frees: u64,
    /// *Live.* Above 0 when recording stopped before the program did (no room on the file system).
    /// Later events were not counted.
    pub lost_events: u64,
    /// *Live, unsealed files only.* End of the space given to chunks, bytes.
    pub end_offset: u64,
    /// Offset of the index; 0 without one.
    pub index_offset: u64,
    /// When the process began, clock ticks since the system did; 0: unknown. It stays the same over
    /// `exec`, while another process may get the same process id later or in another namespace.
    pub process_start: u64,
    /// *Live.* The most memory that the process held at a time, without the recorder's, bytes; 0:
    /// unknown.
    pub held_bytes: u64,
    /// *Live.* Whether `held_bytes` is of the process's whole life: it called `exit`, or returned
    /// from `main`. If not, it may have held more after its last chunk was begun.
    pub held_to_the_end: bool,
    /// The command line recorded, arguments separated by spaces.
    pub command: String,
}

/// Offsets of the fields that a recorder updates in place.
pub mod live {
    /// [`FileHeader::ticks_per_second`](super::FileHeader::ticks_per_second).
    pub const TICKS_PER_SECOND_AT: usize = 32;
    /// [`FileHeader::unknown_frees`](super::FileHeader::unknown_frees).
    pub const UNKNOWN_FREES_AT: usize = 56;
    /// [`FileHeader::lost_events`](super::FileHeader::lost_events).
    pub const LOST_EVENTS_AT: usize = 64;
    /// [`FileHeader::end_offset`](super::FileHeader::end_offset).
    pub const END_OFFSET_AT: usize = 72;
    /// [`FileHeader::held_bytes`](super::FileHeader::held_bytes).
    pub const HELD_BYTES_AT: usize = 104;
    /// [`FileHeader::held_to_the_end`](super::FileHeader::held_to_the_end): not 0 if so.
    pub const HELD_TO_THE_END_AT: usize = 112;
}

impl FileHeader {
    /// Whether the process was forked from a recorded one. Objects that its parent had allocated
    /// until then are known by number only.
    pub fn is_forked(&self) -> bool {
        self.first_thread > 1
    }

    /// A header of an unsealed file in which nothing is known yet.
    pub fn new() -> Self {
        Self {
            sealed: false,
            pid: 0,
            parent_pid: 0,
            first_thread: 1,
            ticks_per_second: 1_000_000_000,
            start_unix_ns: 0,
            event_cost_ps: 0,
            unknown_frees: 0,
            lost_events: 0,
            end_offset: HEADER_BYTES as u64,
            index_offset: 0,
            process_start: 0,
            held_bytes: 0,
            held_to_the_end: false,
            command: String::new(),
        }
    }

    /// Writes the header. The command line is truncated to what fits.
    pub fn write_to(&self, out: &mut [u8; HEADER_BYTES]) {
        self.write_fields(out);
        write_command(out, self.command.as_bytes());
        if self.sealed {
            let crc = crc(out);
            out[100..104].copy_from_slice(&crc.to_le_bytes());
        }
    }

    /// Writes everything but the command line. Allocates nothing.
    pub fn write_fields(&self, out: &mut [u8; HEADER_BYTES]) {
        out[0..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&(HEADER_BYTES as u32).to_le_bytes());
        out[16..20].copy_from_slice(&u32::from(self.sealed).to_le_bytes());
        out[20..24].copy_from_slice(&self.pid.to_le_bytes());
        out[24..28].copy_from_slice(&self.parent_pid.to_le_bytes());
        out[28..32].copy_from_slice(&self.first_thread.to_le_bytes());
        out[32..40].copy_from_slice(&self.ticks_per_second.to_le_bytes());
        out[40..48].copy_from_slice(&self.start_unix_ns.to_le_bytes());
        out[48..56].copy_from_slice(&self.event_cost_ps.to_le_bytes());
        out[56..64].copy_from_slice(&self.unknown_frees.to_le_bytes());
        out[64..72].copy_from_slice(&self.lost_events.to_le_bytes());
        out[72..80].copy_from_slice(&self.end_offset.to_le_bytes());
        out[80..88].copy_from_slice(&self.index_offset.to_le_bytes());
        out[88..96].copy_from_slice(&self.process_start.to_le_bytes());
        out[104..112].copy_from_slice(&self.held_bytes.to_le_bytes());
        out[112..120].copy_from_slice(&u64::from(self.held_to_the_end).to_le_bytes());
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`Error::NotATrace`], [`Error::Version`], [`Error::BadHeader`].
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Error> {
        let u32_at = |at| fixed::u32_at(bytes, at);
        let u64_at = |at| fixed::u64_at(bytes, at);
        if bytes[..8] != MAGIC {
            return Err(Error::NotATrace);
        }
        if u32_at(8) != VERSION {
            return Err(Error::Version { found: u32_at(8) });
        }
        let sealed = u32_at(16) & 1 != 0;
        let command_bytes = u32_at(96) as usize;
        if u32_at(12) as usize != HEADER_BYTES
            || command_bytes > COMMAND_MAX
            || u64_at(32) == 0
            || (sealed && u32_at(100) != crc(bytes))
        {
            return Err(Error::BadHeader);
        }
        let command = &bytes[COMMAND_AT..COMMAND_AT + command_bytes];
        Ok(Self {
            sealed,
            pid: u32_at(20),
            parent_pid: u32_at(24),
            first_thread: u32_at(28),
            ticks_per_second: u64_at(live::TICKS_PER_SECOND_AT),
            start_unix_ns: u64_at(40),
            event_cost_ps: u64_at(48),
            unknown_frees: u64_at(live::UNKNOWN_FREES_AT),
            lost_events: u64_at(live::LOST_EVENTS_AT),
            end_offset: u64_at(live::END_OFFSET_AT),
            index_offset: u64_at(80),
            process_start: u64_at(88),
            held_bytes: u64_at(live::HELD_BYTES_AT),
            held_to_the_end: u64_at(live::HELD_TO_THE_END_AT) != 0,
            command: String::from_utf8_lossy(command).into_owned(),
        })
    }
}

impl Default for FileHeader {
    fn default() -> Self {
        Self::new()
    }
}

/// Writes the command line into a header, truncated to what fits. Allocates nothing.
pub fn write_command(out: &mut [u8; HEADER_BYTES], command: &[u8]) {
    let command = &command[..command.len().min(COMMAND_MAX)];
    out[96..100].copy_from_slice(&(command.len() as u32).to_le_bytes());
    out[COMMAND_AT..COMMAND_AT + command.len()].copy_from_slice(command);
}

/// CRC-32 of the header, with its own field taken as zero.
fn crc(bytes: &[u8; HEADER_BYTES]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..100]);
    hasher.update(&[0; 4]);
    hasher.update(&bytes[104..]);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header whose numbers all differ.
    fn header(sealed: bool) -> FileHeader {
        FileHeader {
            sealed,
            pid: 1,
            parent_pid: 2,
            first_thread: 3,
            ticks_per_second: 4,
            start_unix_ns: 5,
            event_cost_ps: 6,
            unknown_frees: 7,
            lost_events: 8,
            end_offset: 9,
            index_offset: 10,
            process_start: 11,
            held_bytes: 12,
            held_to_the_end: true,
            command: "a command".into(),
        }
    }

    fn written(header: &FileHeader) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        header.write_to(&mut bytes);
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        for header in [header(false), header(true), FileHeader::new()] {
            assert_eq!(FileHeader::from_bytes(&written(&header)).unwrap(), header);
        }
        let command = "c".repeat(COMMAND_MAX + 1);
        let read = FileHeader::from_bytes(&written(&FileHeader { command, ..header(true) }));
        assert_eq!(read.unwrap().command, "c".repeat(COMMAND_MAX), "as much as fits");
    }

    #[test]
    fn what_no_header_says_is_refused() {
        let of = |at: usize, change: &[u8]| {
            let mut bytes = written(&header(false));
            bytes[at..at + change.len()].copy_from_slice(change);
            FileHeader::from_bytes(&bytes)
        };
        assert!(matches!(of(7, b"?"), Err(Error::NotATrace)));
        assert!(matches!(of(8, &[9]), Err(Error::Version { found: 9 })));
        let too_long = (COMMAND_MAX as u32 + 1).to_le_bytes();
        for (at, change) in [(12, &[0, 32][..]), (live::TICKS_PER_SECOND_AT, &[0]), (96, &too_long)]
        {
            assert!(matches!(of(at, change), Err(Error::BadHeader)), "byte {at}");
        }
    }

    #[test]
    fn a_sealed_header_is_checked_as_a_whole() {
        let bytes = written(&header(true));
        // Every byte but the one that says that the file is sealed.
        for at in (0..HEADER_BYTES).filter(|&at| at != 16) {
            let mut bytes = bytes;
            bytes[at] ^= 0x80;
            assert!(FileHeader::from_bytes(&bytes).is_err(), "byte {at}");
        }
    }
}
