//! Sealing: turns the file that a recorder left into a compressed one with an index.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::{Damage, Error};
use crate::header::FileHeader;
use crate::reader::Trace;
use crate::writer::Writer;

/// What to put into the sealed file besides the rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct SealOptions {
    /// Ticks a second of the unsealed file, if better known than from its header; 0: as in the
    /// header.
    pub source_ticks_per_second: u64,
    /// Resolution wanted, ns per tick; 0: as in the source. Coarser times compress better.
    pub tick_ns: u64,
    /// Measured cost of recording, picoseconds per event; 0: as in the source.
    pub event_cost_ps: u64,
}

/// What sealing found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sealed {
    /// Rows written.
    pub rows: u64,
    /// Size of the file written, bytes.
    pub file_bytes: u64,
    /// Damage found in the source. The good part of the source has been written.
    pub damage: Damage,
}

/// Writes the good part of the trace `source` to `target` as a sealed file. The threads are
/// streamed one after another, so memory stays bounded by a chunk.
///
/// # Errors
/// When the source is not a readable trace, the target cannot be written, or it is the source,
/// which is then as it was.
pub fn seal(source: &Path, target: &Path, options: SealOptions) -> Result<Sealed, Error> {
    let trace = Trace::open(source)?;
    if is_one_file(source, target) {
        let told = "it is the trace itself, which would be lost";
        return Err(Error::Write(io::Error::new(io::ErrorKind::InvalidInput, told)));
    }
    let clock = Clock::new(trace.header(), options);
    let header = FileHeader {
        ticks_per_second: clock.to,
        event_cost_ps: match options.event_cost_ps {
            0 => trace.header().event_cost_ps,
            cost => cost,
        },
        ..trace.header().clone()
    };
    let file = BufWriter::with_capacity(1 << 18, File::create(target).map_err(Error::Write)?);
    let mut writer = Writer::new(file, header).map_err(Error::Write)?;
    let mut rows = 0;
    for &thread in trace.threads().keys() {
        let mut stream = trace.thread_rows(thread);
        while let Some(mut record) = stream.next_row()? {
            record.time_ticks = clock.convert(record.time_ticks);
            let serial = stream.serial_before(&record);
            writer.record(thread, &record, serial).map_err(Error::Write)?;
            rows += 1;
        }
        writer.flush(thread).map_err(Error::Write)?;
    }
    let file = writer.finish().map_err(Error::Write)?;
    let file = file.into_inner().map_err(|error| Error::Write(error.into_error()))?;
    (&file).flush().map_err(Error::Write)?;
    Ok(Sealed { rows, file_bytes: file.metadata()?.len(), damage: trace.damage() })
}

/// Whether both paths lead to the same file.
fn is_one_file(source: &Path, target: &Path) -> bool {
    let [source, target] = [source, target]
        .map(|path| fs::metadata(path).ok().map(|known| (known.dev(), known.ino())));
    source.is_some() && source == target
}

/// Converts the source's ticks to the target's.
struct Clock {
    from: u64,
    to: u64,
}

impl Clock {
    fn new(header: &FileHeader, options: SealOptions) -> Self {
        let from = match options.source_ticks_per_second {
            0 => header.ticks_per_second,
            known => known,
        };
        let to = match options.tick_ns {
            0 => from,
            tick_ns => (1_000_000_000 / tick_ns).max(1),
        };
        Self { from, to }
    }

    /// At most the latest time there is: a header without a checksum may name any clock.
    fn convert(&self, ticks: u64) -> u64 {
        let converted = u128::from(ticks) * u128::from(self.to) / u128::from(self.from);
        converted.try_into().unwrap_or(u64::MAX)
    }
}
