//! Files whose checksums are right but whose claims are not: lengths, counts, places.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::*;

/// Far more than reading a few chunks takes, far less than reading a hole of hundreds of GiB.
const SOON: Duration = Duration::from_secs(5);

const SEALED_AT: usize = 16;
const INDEX_OFFSET_AT: usize = 80;

/// A sealed trace with several chunks per thread.
pub(super) fn several_chunks(file: &Temp) -> (Rows, u64) {
    let (rows, order) = random_rows(50, 3, 90_000);
    write(&file.0, &order);
    (rows, order.len() as u64)
}

/// Turns the sealed file into one as a recorder leaves it, with that end of its chunks.
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

/// Opens a file. All of its rows must be read soon.
fn opened_soon(path: &Path, rows: &Rows, what: &str) -> Trace {
    let since = Instant::now();
    let trace = Trace::open(path).unwrap();
    assert_eq!(&read(&trace), rows, "{what}");
    assert!(since.elapsed() < SOON, "{what}: {:?}", since.elapsed());
    trace
}

/// Writes the file with a changed index whose checksum is correct.
fn with_index(path: &Path, content: &[u8], change: impl FnOnce(&mut Vec<u8>)) {
    let (chunks, index) = content.split_at(index_offset(content));
    let mut index = index[..index.len() - 4].to_vec();
    change(&mut index);
    let crc = crc32fast::hash(&index);
    fs::write(path, [chunks, &index, &crc.to_le_bytes()].concat()).unwrap();
}

#[test]
fn a_length_that_the_count_of_the_index_does_not_explain_costs_only_the_index() {
    let file = Temp::new("extended");
    let (rows, _) = several_chunks(&file);
    let whole = fs::read(&file.0).unwrap();
    for length in [whole.len() as u64 + 1, 1 << 30, 1 << 40] {
        set_length(&file.0, length);
        let trace = opened_soon(&file.0, &rows, &format!("{length} bytes"));
        assert!(trace.damage().index_lost);
    }
}

/// The length fits the count, but the file has no entries of that size.
#[test]
fn a_count_is_believed_only_as_far_as_its_entries_go() {
    let file = Temp::new("count");
    let (rows, _) = several_chunks(&file);
    let whole = fs::read(&file.0).unwrap();
    let count = 1_u64 << 33;
    with_index(&file.0, &whole, |index| index[4..12].copy_from_slice(&count.to_le_bytes()));
    set_length(&file.0, index_offset(&whole) as u64 + 16 + 32 * count);
    assert!(opened_soon(&file.0, &rows, "such a count").damage().index_lost);
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
        let what = format!("{length} bytes, end at {end_offset}");
        opened_soon(&file.0, &rows, &what).check().unwrap();
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
        let trace = opened_soon(&holed.0, &rows, &format!("a hole of {gap} bytes"));
        assert_eq!(trace.damage().stray_bytes, gap);
        // The same with a byte of something else in the hole.
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

#[test]
fn an_index_that_the_chunks_disagree_with_is_lost_and_costs_no_event() {
    let (file, copy) = (Temp::new("liar"), Temp::new("liar-copy"));
    let (rows, count) = several_chunks(&file);
    let whole = fs::read(&file.0).unwrap();
    let last = index_offset(&whole) as u64;
    let entry = |nth: usize| 12 + 32 * nth;
    let (u64s, u32s) = (|value: u64| value.to_le_bytes().to_vec(), |v: u32| v.to_le_bytes().into());
    let lies: [(usize, Vec<u8>); 12] = [
        (entry(0), u64s(u64::MAX - 4)),
        (entry(0), u64s(0)),
        (entry(0), u64s(4096 + 8)),
        (entry(1), u64s(4096)),
        (entry(1), u64s(last)),
        (entry(1), u64s(last - 64)),
        (entry(1), u64s(1 << 62)),
        (entry(0) + 8, u32s(0)),
        (entry(0) + 8, u32s(77)),
        (entry(1) + 12, u32s(u32::MAX)),
        (entry(1) + 12, u32s(0)),
        (entry(1) + 16, u64s(u64::MAX)),
    ];
    for (at, lie) in lies {
        with_index(&file.0, &whole, |index| index[at..at + lie.len()].copy_from_slice(&lie));
        misled(&file, &copy, &rows, count, &format!("{lie:?} at {at} of the index"));
    }
    with_index(&file.0, &whole, |index| index.truncate(entry(0)));
    misled(&file, &copy, &rows, count, "no entries, another count");
    with_index(&file.0, &whole, |index| {
        index.truncate(entry(0));
        index[4..12].fill(0);
    });
    misled(&file, &copy, &rows, count, "no entries");
    with_index(&file.0, &whole, |index| {
        index.drain(entry(1)..entry(2));
        index[4] -= 1;
    });
    misled(&file, &copy, &rows, count, "one entry less");
}

/// Every event is read and goes into a copy, and the error says how to make one.
fn misled(file: &Temp, copy: &Temp, rows: &Rows, count: u64, what: &str) {
    let trace = Trace::open(&file.0).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(&read(&trace), rows, "{what}");
    assert!(trace.damage().index_lost, "{what}");
    let told = trace.check().unwrap_err().to_string();
    assert!(told.contains("is damaged") && told.contains("info F --salvage"), "{told}");
    let sealed = seal(&file.0, &copy.0, SealOptions::default()).unwrap();
    assert_eq!(sealed.rows, count, "{what}");
    let again = Trace::open(&copy.0).unwrap();
    assert_eq!(&read(&again), rows, "{what}");
    again.check().unwrap();
}

/// The index is right, and so are the other chunks: only the rows of the damaged one are lost.
#[test]
fn a_damaged_chunk_header_is_no_damage_of_the_index() {
    let file = Temp::new("header");
    several_chunks(&file);
    let mut content = fs::read(&file.0).unwrap();
    content[HEADER_BYTES + 12] ^= 1;
    fs::write(&file.0, &content).unwrap();
    let trace = Trace::open(&file.0).unwrap();
    read(&trace);
    let damage = trace.damage();
    assert_eq!((damage.bad_chunks, damage.index_lost, damage.stray_bytes), (1, false, 0));
}

/// What follows a lost chunk names objects of that chunk.
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
        assert!(merged(&again) == merged(&trace), "seed {seed}: in another order");
    }
}

pub(super) fn merged(trace: &Trace) -> Vec<Step> {
    let mut ordered = Ordered::new(trace);
    std::iter::from_fn(|| ordered.next_step().unwrap()).collect()
}

/// A file as a recorder leaves it, of one complete chunk with these rows, numbers and checksums.
pub(super) fn of_one_chunk(path: &Path, thread: u32, first_serial: u64, rows: &[&[u8]]) {
    of_chunks(path, [plain_chunk(thread, first_serial, rows)]);
}

pub(super) fn of_chunks(path: &Path, chunks: impl IntoIterator<Item = Vec<u8>>) {
    let mut content = vec![0; HEADER_BYTES];
    content.extend(chunks.into_iter().flatten());
    let end_offset = content.len() as u64;
    let first = content.first_chunk_mut().unwrap();
    FileHeader { end_offset, ..FileHeader::new() }.write_to(first);
    fs::write(path, content).unwrap();
}

pub(super) fn plain_chunk(thread: u32, first_serial: u64, rows: &[&[u8]]) -> Vec<u8> {
    let bytes = rows.concat();
    let header = ChunkHeader {
        state: ChunkState::Plain,
        thread: ThreadId(thread),
        rows: rows.len() as u32,
        span_bytes: (CHUNK_HEADER_BYTES + bytes.len()) as u32,
        stored_bytes: bytes.len() as u32,
        plain_bytes: bytes.len() as u32,
        crc: crc32fast::hash(&bytes),
        first_serial,
        first_time_ticks: 0,
        last_time_ticks: 0,
    };
    [&header.to_bytes()[..], &bytes].concat()
}

/// A row of its parts.
pub(super) fn row(tag: u8, numbers: &[u64]) -> Vec<u8> {
    let mut out = vec![0; 64];
    out[0] = tag;
    let end = numbers.iter().fold(1, |at, &number| varint::put(&mut out, at, number));
    out.truncate(end);
    out
}

pub(super) const MALLOC: u8 = 1;
const FREE_OWN: u8 = 5 | 1 << 4;
const REALLOC_FOREIGN: u8 = 4 | 2 << 4;
const FREE_FOREIGN: u8 = 5 | 2 << 4;

/// Whatever was good before is read and goes into a copy that is whole.
#[test]
fn objects_that_cannot_be_are_damage() {
    let (file, copy) = (Temp::new("serials"), Temp::new("serials-copy"));
    let most = (1_u64 << 40) - 1;
    let good = row(MALLOC, &[0, 8]);
    let cases: [(&str, u32, u64, Vec<u8>); 6] = [
        ("more objects than have numbers", 1, most, good.clone()),
        ("a first number that is none", 1, u64::MAX, good.clone()),
        ("an object of its own, not made, as another's", 1, 0, row(REALLOC_FOREIGN, &[0, 1, 9, 8])),
        ("an object of its own, made, as another's", 1, 0, row(FREE_FOREIGN, &[0, 1, 0])),
        ("another's object whose number is too long", 1, 0, row(FREE_FOREIGN, &[0, 2, most + 1])),
        ("a thread whose number is too long", 1 << 24, 0, row(FREE_OWN, &[0, 1])),
    ];
    for (what, thread, first_serial, bad) in cases {
        of_one_chunk(&file.0, thread, first_serial, &[&good, &bad]);
        let trace = Trace::open(&file.0).unwrap();
        let rows = read(&trace);
        assert!(trace.damage().any(), "{what}");
        seal(&file.0, &copy.0, SealOptions::default()).unwrap();
        let again = Trace::open(&copy.0).unwrap();
        assert_eq!(read(&again), rows, "{what}");
        again.check().unwrap();
    }
}

/// Where rows were lost, all threads may wait for each other. One thread then continues, but with
/// that row alone.
#[test]
fn after_a_row_whose_object_was_lost_the_order_holds_again() {
    let file = Temp::new("waits");
    let first = [row(FREE_FOREIGN, &[0, 2, 5]), row(FREE_FOREIGN, &[9, 2, 0])];
    let second = [row(FREE_FOREIGN, &[1, 1, 7]), row(MALLOC, &[1, 8])];
    let chunk = |thread, [a, b]: &[Vec<u8>; 2]| plain_chunk(thread, 0, &[a, b]);
    of_chunks(&file.0, [chunk(1, &first), chunk(2, &second)]);
    let trace = Trace::open(&file.0).unwrap();
    let mut ordered = Ordered::new(&trace);
    let threads: Vec<_> =
        std::iter::from_fn(|| ordered.next_step().unwrap()).map(|step| step.thread.0).collect();
    assert_eq!(threads, [1, 2, 2, 1], "the second row of the first names what the second makes");
}

/// The header of a compressed chunk may claim megabytes where there are a few rows.
#[test]
fn a_chunk_takes_memory_for_what_is_in_it() {
    let file = Temp::new("claim");
    let threads = 40;
    let (rows, order) = random_rows(52, threads, 4000);
    write(&file.0, &order);
    let mut content = fs::read(&file.0).unwrap();
    let trace = Trace::open(&file.0).unwrap();
    for place in trace.threads().values().flatten() {
        let at = place.offset as usize;
        let header = ChunkHeader::from_bytes(content[at..].first_chunk().unwrap()).unwrap();
        let claims = ChunkHeader { plain_bytes: 1 << 24, ..header };
        content[at..at + CHUNK_HEADER_BYTES].copy_from_slice(&claims.to_bytes());
    }
    fs::write(&file.0, &content).unwrap();
    let trace = Trace::open(&file.0).unwrap();
    let before_bytes = resident_bytes();
    let mut streams: Vec<_> = rows.keys().map(|&thread| trace.thread_rows(thread)).collect();
    streams.iter_mut().for_each(|stream| assert!(stream.next_row().unwrap().is_some()));
    let taken_bytes = resident_bytes().saturating_sub(before_bytes);
    assert!(taken_bytes < u64::from(threads) << 22, "{taken_bytes}");
}

fn resident_bytes() -> u64 {
    let sizes = fs::read_to_string("/proc/self/statm").unwrap();
    4096 * sizes.split(' ').nth(1).unwrap().parse::<u64>().unwrap()
}

/// Chunks inside another's rows could each claim all that follows, and be read many times over.
#[test]
fn an_index_that_names_chunks_inside_others_is_lost() {
    let file = Temp::new("nested");
    let good = row(MALLOC, &[0, 8]);
    let inner_count = 100_u64;
    let outer_bytes = CHUNK_HEADER_BYTES as u32 * (inner_count as u32 + 100);
    let chunk = |thread: u32, span_bytes: u32| ChunkHeader {
        state: ChunkState::Open,
        thread: ThreadId(thread),
        rows: 0,
        span_bytes,
        stored_bytes: span_bytes - CHUNK_HEADER_BYTES as u32,
        plain_bytes: span_bytes - CHUNK_HEADER_BYTES as u32,
        crc: 0,
        first_serial: 0,
        first_time_ticks: 0,
        last_time_ticks: 0,
    };
    let mut chunks = chunk(1, outer_bytes).to_bytes().to_vec();
    chunks.extend(&good);
    let mut places = vec![(HEADER_BYTES as u64, 1)];
    for nth in 0..inner_count as u32 {
        let offset = HEADER_BYTES + chunks.len().next_multiple_of(CHUNK_HEADER_BYTES);
        chunks.resize(offset - HEADER_BYTES, 0);
        chunks.extend(chunk(2 + nth, outer_bytes - chunks.len() as u32).to_bytes());
        places.push((offset as u64, 2 + nth));
    }
    chunks.resize(outer_bytes as usize, 0);
    let index_offset = (HEADER_BYTES + chunks.len()) as u64;
    let mut index = b"HIx1".to_vec();
    index.extend((places.len() as u64).to_le_bytes());
    for (offset, thread) in places {
        index.extend(offset.to_le_bytes());
        index.extend(u64::from(thread).to_le_bytes());
        index.extend([0; 16]);
    }
    index.extend(crc32fast::hash(&index).to_le_bytes());
    let mut first = [0; HEADER_BYTES];
    FileHeader { sealed: true, index_offset, ..FileHeader::new() }.write_to(&mut first);
    fs::write(&file.0, [&first[..], &chunks, &index].concat()).unwrap();
    let trace = Trace::open(&file.0).unwrap();
    assert_eq!(trace.threads().len(), 1);
    assert_eq!(read(&trace)[&ThreadId(1)].len(), 1);
    assert!(trace.damage().index_lost);
}

/// No program can have such sizes, but a file can claim them.
#[test]
fn a_summary_survives_sizes_that_no_memory_has() {
    let file = Temp::new("sizes");
    let [small, huge] = [8, u64::MAX].map(|size| row(MALLOC, &[0, size]));
    let free = row(FREE_OWN, &[0, 1]);
    of_one_chunk(&file.0, 1, 0, &[&small, &huge, &huge, &free, &small]);
    let trace = Trace::open(&file.0).unwrap();
    let summary = Summary::of(&trace).unwrap();
    trace.check().unwrap();
    assert_eq!((summary.peak_bytes, summary.peak_rounded_bytes), (u64::MAX, u64::MAX));
    assert_eq!((summary.end_bytes, summary.asked_bytes), (u64::MAX, u64::MAX));
    let points: Vec<_> = summary.live.iter().map(|point| point.live_bytes).collect();
    assert_eq!(points, [8, u64::MAX, u64::MAX, u64::MAX, u64::MAX]);
}

/// The checksums are right, but the rows are not, and there are fewer than the header says.
#[test]
fn only_rows_that_were_read_are_told_as_good() {
    let file = Temp::new("nonsense");
    let (good, bad) = (row(MALLOC, &[0, 8]), row(15, &[0]));
    for (rows, bad_chunks, partial_chunks, good_rows) in
        [([&bad, &good, &good], 1, 0, 0), ([&good, &good, &bad], 0, 1, 2)]
    {
        of_one_chunk(&file.0, 1, 0, &rows.map(|row| row.as_slice()));
        let trace = Trace::open(&file.0).unwrap();
        read(&trace);
        let offset = HEADER_BYTES as u64;
        let damage = Damage { offset, bad_chunks, partial_chunks, good_rows, ..Damage::default() };
        assert_eq!(trace.damage(), damage);
    }
}

/// Threads that wait for objects that are never made, or made only late.
#[test]
fn many_threads_that_wait_are_merged_soon() {
    const THREADS: u32 = 30_000;
    let file = Temp::new("waiting");
    let free = |owner: u32, serial| row(FREE_FOREIGN, &[1, owner.into(), serial]);
    let ring = (1..=THREADS).map(|thread| {
        let row = free(thread % THREADS + 1, 9);
        plain_chunk(thread, 0, &[row.as_slice(); 4])
    });
    of_chunks(&file.0, ring);
    merged_soon(&file.0, u64::from(THREADS) * 4);
    let made = 200_000;
    let maker = plain_chunk(1, 0, &vec![row(MALLOC, &[1, 8]).as_slice(); made]);
    let row = free(1, made as u64 - 1);
    let waiting = (2..=THREADS).map(|thread| plain_chunk(thread, 0, &[&row]));
    of_chunks(&file.0, std::iter::once(maker).chain(waiting));
    merged_soon(&file.0, made as u64 + u64::from(THREADS) - 1);
}

fn merged_soon(path: &Path, rows: u64) {
    let since = Instant::now();
    let trace = Trace::open(path).unwrap();
    let mut ordered = Ordered::new(&trace);
    let mut steps = 0;
    while ordered.next_step().unwrap().is_some() {
        steps += 1;
    }
    assert_eq!(steps, rows);
    trace.check().unwrap();
    assert!(since.elapsed() < SOON, "{:?}", since.elapsed());
}

/// A recorder leaves only the last chunk of a thread open. Another file may do otherwise.
#[test]
fn rows_behind_an_open_chunk_are_counted_once() {
    let file = Temp::new("behind");
    let good = row(MALLOC, &[0, 8]);
    let closed = plain_chunk(1, 0, &[&good, &good, &good]);
    let header = ChunkHeader::from_bytes(closed.first_chunk().unwrap()).unwrap();
    let open = ChunkHeader { state: ChunkState::Open, rows: 0, crc: 0, ..header };
    let open = [&open.to_bytes()[..], &closed[CHUNK_HEADER_BYTES..]].concat();
    of_chunks(&file.0, [closed.clone(), open, closed]);
    let trace = Trace::open(&file.0).unwrap();
    assert_eq!(trace.count_rows().unwrap(), 9);
    assert_eq!(read(&trace)[&ThreadId(1)].len(), 9);
}

/// A recorder states how many rows a chunk has when it completes the chunk.
#[test]
fn an_open_chunk_that_counts_its_rows_is_damage() {
    let file = Temp::new("counted");
    let good = row(MALLOC, &[0, 8]);
    let closed = plain_chunk(1, 0, &[&good]);
    let header = ChunkHeader::from_bytes(closed.first_chunk().unwrap()).unwrap();
    let open = ChunkHeader { state: ChunkState::Open, rows: 5, crc: 0, ..header };
    let open = [&open.to_bytes()[..], &closed[CHUNK_HEADER_BYTES..]].concat();
    of_chunks(&file.0, [closed, open]);
    let trace = Trace::open(&file.0).unwrap();
    assert_eq!(read(&trace)[&ThreadId(1)].len(), 1);
    let damage = trace.damage();
    assert!(damage.any() && damage.good_rows == 1, "{damage:?}");
}

/// Counting reads chunks, but the damage that it finds is not reported.
#[test]
fn what_opening_found_damaged_is_told_after_counting() {
    let file = Temp::new("counting");
    let (_, rows) = several_chunks(&file);
    let bytes = fs::metadata(&file.0).unwrap().len();
    set_length(&file.0, bytes - 1);
    let trace = Trace::open(&file.0).unwrap();
    assert!(trace.damage().index_lost);
    assert_eq!(trace.count_rows().unwrap(), rows);
    assert!(trace.damage().index_lost);
}

/// A chunk left open may be a hole except for its first rows. So may a chunk whose checksum is
/// right.
#[test]
fn the_holes_of_chunks_take_no_memory() {
    const CHUNK_BYTES: usize = 1 << 23;
    let threads = 40;
    let file = Temp::new("holes");
    let good = row(MALLOC, &[0, 8]);
    let mut rows = good.clone();
    rows.resize(CHUNK_BYTES - CHUNK_HEADER_BYTES, 0);
    let crc = crc32fast::hash(&rows);
    let _ = fs::remove_file(&file.0);
    let out = File::create(&file.0).unwrap();
    let closed = plain_chunk(1, 0, &[&good]);
    let header = ChunkHeader::from_bytes(closed.first_chunk().unwrap()).unwrap();
    for thread in 1..=threads {
        let (state, rows, crc) = match thread % 2 {
            0 => (ChunkState::Open, 0, 0),
            _ => (ChunkState::Plain, 1, crc),
        };
        let chunk = ChunkHeader {
            state,
            thread: ThreadId(thread),
            rows,
            crc,
            span_bytes: CHUNK_BYTES as u32,
            stored_bytes: (CHUNK_BYTES - CHUNK_HEADER_BYTES) as u32,
            ..header
        };
        let offset = (HEADER_BYTES + (thread as usize - 1) * CHUNK_BYTES) as u64;
        out.write_all_at(&[&chunk.to_bytes()[..], &good].concat(), offset).unwrap();
    }
    let end_offset = (HEADER_BYTES + threads as usize * CHUNK_BYTES) as u64;
    out.set_len(end_offset).unwrap();
    let mut first = [0; HEADER_BYTES];
    FileHeader { end_offset, ..FileHeader::new() }.write_to(&mut first);
    out.write_all_at(&first, 0).unwrap();
    let trace = Trace::open(&file.0).unwrap();
    drop(rows);
    let before_bytes = resident_bytes();
    let mut streams: Vec<_> = (1..=threads).map(|t| trace.thread_rows(ThreadId(t))).collect();
    streams.iter_mut().for_each(|stream| assert!(stream.next_row().unwrap().is_some()));
    let taken_bytes = resident_bytes().saturating_sub(before_bytes);
    streams.iter_mut().for_each(|stream| assert!(stream.next_row().unwrap().is_none()));
    trace.check().unwrap();
    assert!(taken_bytes < u64::from(threads) << 22, "{taken_bytes}");
}

/// Of threads that follow each other, each uses the memory of the one before.
#[test]
fn reading_thread_after_thread_takes_memory_for_one_chunk() {
    let file = Temp::new("in-turn");
    let mut writer = Writer::new(File::create(&file.0).unwrap(), FileHeader::new()).unwrap();
    for thread in (1..=50).map(ThreadId) {
        for nth in 0..5_000 {
            writer.event(thread, nth, &Event::Marker { value: nth << 48 }, false).unwrap();
        }
    }
    writer.finish().unwrap();
    let trace = Trace::open(&file.0).unwrap();
    let read_threads = |threads: std::ops::Range<u32>| {
        for thread in threads.map(ThreadId) {
            let mut rows = trace.thread_rows(thread);
            while rows.next_row().unwrap().is_some() {}
            // Whoever asks again gets the same answer.
            assert_eq!(rows.next_row().unwrap(), None);
        }
        trace.spare_bytes()
    };
    let of_one_bytes = read_threads(1..2);
    assert!(of_one_bytes > 50_000, "{of_one_bytes}");
    let of_all_bytes = read_threads(1..51);
    assert!(of_all_bytes < 2 * of_one_bytes, "{of_all_bytes} bytes, {of_one_bytes} for one");
    trace.check().unwrap();
}
