//! Files whose checksums are right and whose claims are not: lengths, counts, places.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::*;

/// Far more than reading a few chunks takes, far less than reading a hole of hundreds of GiB.
const SOON: Duration = Duration::from_secs(5);

const SEALED_AT: usize = 16;
const INDEX_OFFSET_AT: usize = 80;

/// A sealed trace of several chunks a thread.
fn several_chunks(file: &Temp) -> (Rows, u64) {
    let (rows, order) = random_rows(50, 3, 90_000);
    write(&file.0, &order);
    (rows, order.len() as u64)
}

/// Makes the sealed file one that its recorder left, with that end of its chunks.
fn unseal(path: &Path, end_offset: u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[0; 4], SEALED_AT as u64).unwrap();
    file.write_all_at(&end_offset.to_le_bytes(), header::live::END_OFFSET_AT as u64).unwrap();
}

fn set_length(path: &Path, bytes: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

fn index_offset(content: &[u8]) -> usize {
    u64::from_le_bytes(*content[INDEX_OFFSET_AT..].first_chunk().unwrap()) as usize
}

#[test]
fn an_end_that_cannot_be_is_not_walked_to() {
    let file = Temp::new("absurd-end");
    let (rows, _) = several_chunks(&file);
    let index = index_offset(&fs::read(&file.0).unwrap());
    set_length(&file.0, index as u64);
    for (length, end_offset) in [
        (index as u64, 1 << 62),
        (300 << 30, 1 << 62),
        (300 << 30, 300 << 30),
        (300 << 30, u64::MAX),
        (300 << 30, 0),
    ] {
        unseal(&file.0, end_offset);
        set_length(&file.0, length);
        let since = Instant::now();
        let trace = Trace::open(&file.0).unwrap();
        assert_eq!(read(&trace), rows, "{length} bytes, end at {end_offset}");
        assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
        trace.check().unwrap();
    }
}

#[test]
fn chunks_behind_a_hole_are_found() {
    let (file, holed) = (Temp::new("hole-in"), Temp::new("hole-out"));
    let (rows, _) = several_chunks(&file);
    let whole = fs::read(&file.0).unwrap();
    let trace = Trace::open(&file.0).unwrap();
    let mut offsets: Vec<u64> = trace.threads().values().flatten().map(|p| p.offset).collect();
    offsets.sort_unstable();
    let (first, rest) = whole[..index_offset(&whole)].split_at(offsets[1] as usize);
    // Headers that begin in one block of the search and end in the next, too.
    for gap in [1, 65_500, 65_536, 1 << 20, 100 << 30] {
        let _ = fs::remove_file(&holed.0);
        let out = File::create(&holed.0).unwrap();
        out.write_all_at(first, 0).unwrap();
        out.write_all_at(rest, first.len() as u64 + gap).unwrap();
        let length = (first.len() + rest.len()) as u64 + gap;
        unseal(&holed.0, length);
        let since = Instant::now();
        let trace = Trace::open(&holed.0).unwrap();
        assert_eq!(read(&trace), rows, "a hole of {gap} bytes");
        assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
        trace.check().unwrap();
        // The hole is no part of it once something else stands there.
        out.write_all_at(b"x", first.len() as u64 + gap - 1).unwrap();
        let trace = Trace::open(&holed.0).unwrap();
        assert_eq!(read(&trace), rows);
        assert_eq!(trace.damage().stray_bytes, gap);
    }
}

#[test]
fn a_writer_that_was_dropped_leaves_what_it_had_written() {
    let file = Temp::new("dropped");
    let (rows, order) = random_rows(51, 1, 200_000);
    let mut writer = Writer::new(File::create(&file.0).unwrap(), FileHeader::new()).unwrap();
    for Step { thread, record } in &order {
        writer.event(*thread, record.time_ticks, &record.event, record.failed()).unwrap();
    }
    drop(writer);
    let trace = Trace::open(&file.0).unwrap();
    let got = read(&trace).remove(&ThreadId(1)).unwrap();
    assert_eq!(got[..], rows[&ThreadId(1)][..got.len()]);
    assert!(trace.damage().index_lost);
}

/// What follows a chunk that was lost names objects of that chunk.
#[test]
fn the_copy_of_a_trace_with_a_lost_chunk_holds_what_was_good() {
    let (file, copy) = (Temp::new("lost"), Temp::new("lost-copy"));
    for seed in 0..8 {
        let (_, order) = random_rows(60 + seed, 2, 90_000);
        write(&file.0, &order);
        let mut content = fs::read(&file.0).unwrap();
        let trace = Trace::open(&file.0).unwrap();
        let place = trace.threads()[&ThreadId(1)][seed as usize % 2];
        content[place.offset as usize] ^= 1;
        fs::write(&file.0, &content).unwrap();
        let trace = Trace::open(&file.0).unwrap();
        let good = read(&trace);
        assert!(trace.damage().bad_chunks == 1);
        seal(&file.0, &copy.0, SealOptions::default()).unwrap();
        let again = Trace::open(&copy.0).unwrap();
        assert_eq!(read(&again), good, "seed {seed}");
        again.check().unwrap();
    }
}
