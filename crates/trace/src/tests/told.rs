//! What is refused, and where and how much damage is reported.

use std::collections::BTreeMap;
use std::fs;

use super::misled::{MALLOC, merged, of_chunks, of_one_chunk, plain_chunk, row, several_chunks};
use super::{Temp, random_rows, read, write};
use crate::seal::{SealOptions, seal};
use crate::*;

const MEMALIGN: u8 = 3;
const FREE_OWN: u8 = 5 | 1 << 4;
const FREE_FOREIGN: u8 = 5 | 2 << 4;

/// Flips a bit of the first byte of the chunk's rows.
fn damage(content: &mut [u8], place: &ChunkPlace) {
    content[place.offset as usize + CHUNK_HEADER_BYTES] ^= 1;
}

#[test]
fn a_row_that_no_writer_writes_ends_its_chunk() {
    let file = Temp::new("no-row");
    let good = row(MALLOC, &[9, 8]);
    for (what, bad) in [
        ("the object that is made next", row(FREE_OWN, &[0, 0])),
        ("an alignment of 2^64", row(MEMALIGN, &[0, 8, 64])),
        ("a time after the last", row(MALLOC, &[u64::MAX, 8])),
        ("an object of thread 0", row(FREE_FOREIGN, &[0, 0, 1])),
    ] {
        of_one_chunk(&file.0, 1, 0, &[&good, &bad, &good]);
        let trace = Trace::open(&file.0).unwrap();
        assert_eq!(read(&trace)[&ThreadId(1)].len(), 1, "{what}");
        let damage = trace.damage();
        assert_eq!((damage.partial_chunks, damage.bad_chunks, damage.good_chunks), (1, 0, 0));
        assert_eq!(damage.good_rows, 1, "{what}");
    }
    // No row of a whole chunk is believed if the chunk's checksum is wrong.
    let mut chunk = plain_chunk(1, 0, &[&good, &good]);
    *chunk.last_mut().unwrap() ^= 2;
    of_chunks(&file.0, [chunk]);
    let trace = Trace::open(&file.0).unwrap();
    assert!(read(&trace).is_empty());
    assert_eq!((trace.damage().bad_chunks, trace.damage().good_rows), (1, 0));
}

#[test]
fn damage_is_told_from_its_first_byte_on_whatever_is_read_first() {
    let file = Temp::new("first-byte");
    several_chunks(&file);
    let mut content = fs::read(&file.0).unwrap();
    let trace = Trace::open(&file.0).unwrap();
    // The last chunk of the thread that is read first, and the first chunk of the thread that is
    // read last.
    let late = trace.threads()[&ThreadId(1)].last().copied().unwrap();
    let early = trace.threads()[&ThreadId(3)][0];
    assert!(early.offset < late.offset);
    damage(&mut content, &late);
    damage(&mut content, &early);
    fs::write(&file.0, &content).unwrap();
    let trace = Trace::open(&file.0).unwrap();
    read(&trace);
    assert_eq!((trace.damage().offset, trace.damage().bad_chunks), (early.offset, 2));
}

#[test]
fn what_is_missing_at_the_end_and_what_is_no_chunk_is_counted() {
    let file = Temp::new("stray");
    several_chunks(&file);
    let content = fs::read(&file.0).unwrap();
    let trace = Trace::open(&file.0).unwrap();
    let end = trace.header().index_offset as usize;
    for cut in [end - 1, end - 1000, HEADER_BYTES + 1000] {
        fs::write(&file.0, &content[..cut]).unwrap();
        let damage = Trace::open(&file.0).unwrap().damage();
        assert_eq!((damage.stray_bytes, damage.index_lost), ((end - cut) as u64, true));
    }
    // In a sealed file zeroes are damage, too.
    let second = trace.threads().values().flatten().map(|place| place.offset).max().unwrap();
    for filling in [0_u8, 0xA5] {
        let mut other = content.clone();
        other.splice(second as usize..second as usize, [filling; 5000]);
        fs::write(&file.0, &other).unwrap();
        let trace = Trace::open(&file.0).unwrap();
        assert_eq!(trace.damage().offset, second, "{filling}");
        assert!(trace.damage().stray_bytes >= 5000);
    }
    // In a recorder's file zeroes at the end alone can be space that the recorder took and did not
    // use.
    let good = plain_chunk(1, 0, &[&row(MALLOC, &[0, 8])]);
    for filling in [vec![0; 200_000], vec![7; 200_000]] {
        for then in [vec![], vec![0; 100_000]] {
            let bytes = (filling.len() + then.len()) as u64;
            let unused = if filling[0] == 0 { 0 } else { bytes };
            let (good, filling) = (good.clone(), filling.clone());
            for (chunks, stray) in [
                ([good.clone(), filling.clone(), then.clone(), good.clone()], bytes),
                ([good.clone(), good, filling, then], unused),
            ] {
                of_chunks(&file.0, chunks);
                let trace = Trace::open(&file.0).unwrap();
                assert_eq!(trace.damage().stray_bytes, stray);
                assert_eq!(read(&trace)[&ThreadId(1)].len(), 2);
            }
        }
    }
}

/// Chunks of `rows_each` rows as a recorder leaves them, in the order in which they begin.
fn recorded(order: &[Step], rows_each: usize) -> Vec<(ChunkHeader, Vec<u8>)> {
    let mut states: BTreeMap<ThreadId, (RowState, Option<usize>)> = BTreeMap::new();
    let mut chunks: Vec<(ChunkHeader, Vec<u8>)> = Vec::new();
    for Step { thread, record } in order {
        let (state, open) = states.entry(*thread).or_insert((RowState::new(*thread), None));
        let at = *open.get_or_insert_with(|| {
            let mut header = ChunkHeader::from_bytes(
                plain_chunk(thread.0, state.next_serial, &[]).first_chunk().unwrap(),
            )
            .unwrap();
            header.first_time_ticks = state.time_ticks;
            chunks.push((header, Vec::new()));
            chunks.len() - 1
        });
        let (header, rows) = &mut chunks[at];
        let mut window = [0; ROW_WINDOW_BYTES];
        let failed = record.failed();
        let (length, _) = state.put(&mut window, record.time_ticks, &record.event, failed);
        rows.extend_from_slice(&window[..length]);
        header.rows += 1;
        header.last_time_ticks = record.time_ticks;
        if header.rows as usize == rows_each {
            *open = None;
        }
    }
    for (header, rows) in &mut chunks {
        header.span_bytes += rows.len() as u32;
        header.stored_bytes = rows.len() as u32;
        header.plain_bytes = rows.len() as u32;
        header.crc = crc32fast::hash(rows);
    }
    chunks
}

/// Either the chunk's header is damaged, or the chunk never came to the disk.
#[test]
fn a_recording_that_lost_a_threads_first_chunk_says_so_and_keeps_order_and_names() {
    let file = Temp::new("first-lost");
    let (_, mut order) = random_rows(61, 4, 20_000);
    // No two rows have the same time, since their order would be free.
    (0..).zip(&mut order).for_each(|(now, step)| step.record.time_ticks = now);
    let chunks = recorded(&order, 700);
    let bytes = |lost: Option<(usize, bool)>| {
        chunks.iter().enumerate().map(move |(nth, (header, rows))| {
            let mut chunk = [&header.to_bytes()[..], rows].concat();
            match lost {
                Some((at, true)) if at == nth => chunk.fill(0),
                Some((at, false)) if at == nth => chunk[0] ^= 1,
                _ => {}
            }
            chunk
        })
    };
    of_chunks(&file.0, bytes(None));
    let trace = Trace::open(&file.0).unwrap();
    assert!(merged(&trace) == order);
    trace.check().unwrap();
    for thread in 1..=4 {
        let is_its = |(header, _): &(ChunkHeader, Vec<u8>)| header.thread == ThreadId(thread);
        let first = chunks.iter().position(is_its).unwrap();
        for is_zeroed in [false, true] {
            of_chunks(&file.0, bytes(Some((first, is_zeroed))));
            let trace = Trace::open(&file.0).unwrap();
            let mut left = 700;
            let mut good = order.clone();
            good.retain(|step| {
                let is_lost = step.thread == ThreadId(thread) && left > 0;
                left -= usize::from(is_lost);
                !is_lost
            });
            assert!(merged(&trace) == good, "thread {thread}");
            let span_bytes = u64::from(chunks[first].0.span_bytes);
            assert_eq!(trace.damage().stray_bytes, span_bytes, "thread {thread}, {is_zeroed}");
        }
    }
}

#[test]
fn only_an_open_chunk_may_lack_the_end_of_its_space() {
    let file = Temp::new("promised");
    let closed = plain_chunk(1, 0, &[&row(MALLOC, &[0, 8])]);
    let header = ChunkHeader::from_bytes(closed.first_chunk().unwrap()).unwrap();
    for (state, rows, missing) in [(ChunkState::Open, 0, 0), (ChunkState::Plain, 1, 5000)] {
        let span_bytes = header.span_bytes + 5000;
        let header = ChunkHeader { state, rows, span_bytes, ..header };
        let end_offset = (HEADER_BYTES as u32 + span_bytes).into();
        let mut first = [0; HEADER_BYTES];
        FileHeader { end_offset, ..FileHeader::new() }.write_to(&mut first);
        let content = [&first[..], &header.to_bytes(), &closed[CHUNK_HEADER_BYTES..]].concat();
        fs::write(&file.0, content).unwrap();
        let trace = Trace::open(&file.0).unwrap();
        assert_eq!(read(&trace)[&ThreadId(1)].len(), 1);
        assert_eq!(trace.damage().stray_bytes, missing, "{state:?}");
    }
}

#[test]
fn a_chunk_of_more_than_any_has_is_none() {
    let file = Temp::new("most");
    let good = plain_chunk(1, 0, &[&row(MALLOC, &[0, 8])]);
    let known = ChunkHeader::from_bytes(good.first_chunk().unwrap()).unwrap();
    let wide = ChunkHeader { span_bytes: u32::MAX, ..known };
    let most = 1 << 24;
    for claims in [
        ChunkHeader { stored_bytes: most + 1, ..wide },
        ChunkHeader { plain_bytes: most + 1, ..wide },
    ] {
        of_chunks(&file.0, [claims.to_bytes().to_vec(), good.clone()]);
        let trace = Trace::open(&file.0).unwrap();
        assert_eq!(read(&trace)[&ThreadId(1)].len(), 1);
        assert_eq!(trace.damage().stray_bytes, CHUNK_HEADER_BYTES as u64);
    }
}

#[test]
fn a_short_file_of_another_version_is_called_so() {
    let file = Temp::new("short");
    let mut bytes = [0; HEADER_BYTES];
    FileHeader::new().write_to(&mut bytes);
    fs::write(&file.0, &bytes[..200]).unwrap();
    assert!(matches!(Trace::open(&file.0), Err(Error::BadHeader)));
    bytes[8] = 1;
    fs::write(&file.0, &bytes[..200]).unwrap();
    assert!(matches!(Trace::open(&file.0), Err(Error::Version { found: 1 })));
}

#[test]
fn a_writer_says_where_the_index_is_only_once_it_is_there() {
    let file = Temp::new("not-yet");
    let header = FileHeader { index_offset: 5000, end_offset: 7000, ..FileHeader::new() };
    drop(Writer::new(fs::File::create(&file.0).unwrap(), header).unwrap());
    let trace = Trace::open(&file.0).unwrap();
    assert_eq!((trace.header().index_offset, trace.header().end_offset), (0, 0));
    assert_eq!(trace.damage().offset, HEADER_BYTES as u64, "from the end of what is there");
}

/// Their rows would be damage to a reader, or be written with a number that wrapped around.
#[test]
fn an_event_that_no_reader_believes_is_refused_and_costs_nothing() {
    let file = Temp::new("believed");
    let mut writer = Writer::new(fs::File::create(&file.0).unwrap(), FileHeader::new()).unwrap();
    let thread = ThreadId(1);
    let malloc = Event::Malloc { size_bytes: 8 };
    let made = writer.event(thread, 1, &malloc, false).unwrap();
    let free = |thread, serial| Event::Free { object: Some(ObjectId::new(thread, serial)) };
    for (of, event) in [
        (thread, free(thread, 1)),
        (thread, free(thread, 2)),
        (thread, free(ThreadId(0), 1)),
        (thread, Event::Memalign { size_bytes: 8, align_log2: 64 }),
        (ThreadId(0), malloc),
        (ThreadId(1 << 24), malloc),
    ] {
        let record = Record { time_ticks: 2, event, made: None };
        for refused in [
            writer.event(of, 2, &event, false).unwrap_err(),
            writer.record(of, &record, u64::from(of == thread)).unwrap_err(),
        ] {
            assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput, "{of} {event:?}");
        }
    }
    for (of, event) in [
        (ThreadId((1 << 24) - 1), free(ThreadId(2), 77)),
        (thread, Event::Memalign { size_bytes: 8, align_log2: 63 }),
        (thread, Event::Free { object: made }),
    ] {
        writer.event(of, 3, &event, false).unwrap();
    }
    writer.finish().unwrap();
    let trace = Trace::open(&file.0).unwrap();
    assert_eq!(read(&trace).values().map(Vec::len).sum::<usize>(), 4);
    trace.check().unwrap();
}

#[test]
fn a_copy_keeps_what_was_measured() {
    let (file, copy) = (Temp::new("measured"), Temp::new("measured-copy"));
    let header = FileHeader { event_cost_ps: 26_000, ticks_per_second: 7, ..FileHeader::new() };
    let mut writer = Writer::new(fs::File::create(&file.0).unwrap(), header).unwrap();
    writer.event(ThreadId(1), 70, &Event::Malloc { size_bytes: 1 }, false).unwrap();
    writer.finish().unwrap();
    seal(&file.0, &copy.0, SealOptions::default()).unwrap();
    let trace = Trace::open(&copy.0).unwrap();
    assert_eq!((trace.header().event_cost_ps, trace.header().ticks_per_second), (26_000, 7));
    // A tick of more than a second counts as one second.
    seal(&file.0, &copy.0, SealOptions { tick_ns: 5_000_000_000, ..SealOptions::default() })
        .unwrap();
    assert_eq!(Trace::open(&copy.0).unwrap().header().ticks_per_second, 1);
}

#[test]
fn a_trace_is_not_sealed_into_itself() {
    let (file, link) = (Temp::new("itself"), Temp::new("itself-link"));
    let (rows, order) = random_rows(62, 2, 1000);
    write(&file.0, &order);
    fs::hard_link(&file.0, &link.0).unwrap();
    for target in [&file, &link] {
        let refused = seal(&file.0, &target.0, SealOptions::default()).unwrap_err();
        assert!(matches!(refused, Error::Write(_)), "{refused}");
    }
    assert_eq!(read(&Trace::open(&file.0).unwrap()), rows);
}

/// Ticks of the source that are seconds are more nanoseconds than a number holds.
#[test]
fn a_time_that_the_clock_of_a_copy_cannot_tell_is_the_latest() {
    let (file, copy) = (Temp::new("long-ticks"), Temp::new("long-ticks-copy"));
    let header = FileHeader { ticks_per_second: 1, ..FileHeader::new() };
    let mut writer = Writer::new(fs::File::create(&file.0).unwrap(), header).unwrap();
    for time_ticks in [3, 1 << 62] {
        writer.event(ThreadId(1), time_ticks, &Event::Marker { value: 1 }, false).unwrap();
    }
    writer.finish().unwrap();
    seal(&file.0, &copy.0, SealOptions { tick_ns: 1, ..SealOptions::default() }).unwrap();
    let rows = &read(&Trace::open(&copy.0).unwrap())[&ThreadId(1)];
    let times = rows.iter().map(|record| record.time_ticks).collect::<Vec<_>>();
    assert_eq!(times, [3_000_000_000, u64::MAX]);
}

/// The last row in the order is one whose clock is behind: it frees what another thread made later.
#[test]
fn the_end_is_the_latest_row_of_any_thread() {
    let file = Temp::new("latest");
    let (early, late) = (row(MALLOC, &[5, 8]), row(MALLOC, &[900, 8]));
    let frees_it = row(FREE_FOREIGN, &[1, 2, 0]);
    of_chunks(&file.0, [plain_chunk(1, 0, &[&early, &frees_it]), plain_chunk(2, 0, &[&late])]);
    let summary = Summary::of(&Trace::open(&file.0).unwrap()).unwrap();
    assert_eq!((summary.end_ticks, summary.crossing), (900, 1));
}

#[test]
fn who_names_an_object_waits_for_a_thread_that_has_not_begun_and_not_for_what_was_lost() {
    let file = Temp::new("begun");
    let order = |chunks: [Vec<u8>; 2]| {
        of_chunks(&file.0, chunks);
        let trace = Trace::open(&file.0).unwrap();
        merged(&trace).iter().map(|step| step.thread.0).collect::<Vec<_>>()
    };
    // The chunk of the second thread says that it begins at 100.
    let begins = |chunk: Vec<u8>| {
        let known = ChunkHeader::from_bytes(chunk.first_chunk().unwrap()).unwrap();
        let header = ChunkHeader { first_time_ticks: 100, ..known };
        [&header.to_bytes()[..], &chunk[CHUNK_HEADER_BYTES..]].concat()
    };
    let (made, marks) = (row(MALLOC, &[0, 8]), row(11, &[50, 1]));
    let names = |serial| plain_chunk(1, 0, &[&row(FREE_FOREIGN, &[1, 2, serial]), &marks]);
    assert_eq!(order([names(0), begins(plain_chunk(2, 0, &[&made, &marks]))]), [2, 1, 1, 2]);
    // The second thread begins with object number 9: those before were lost.
    assert_eq!(order([names(8), begins(plain_chunk(2, 9, &[&marks, &made]))]), [1, 1, 2, 2]);
    // None of its rows can be read.
    let nothing = begins(plain_chunk(2, 0, &[&row(12, &[])]));
    assert_eq!(order([names(0), nothing]), [1, 1]);
}

#[test]
fn chunks_end_soon_after_their_size() {
    let file = Temp::new("size");
    let (_, order) = random_rows(53, 1, 200_000);
    write(&file.0, &order);
    let content = fs::read(&file.0).unwrap();
    let trace = Trace::open(&file.0).unwrap();
    for place in trace.threads().values().flatten() {
        let at = place.offset as usize;
        let header = ChunkHeader::from_bytes(content[at..].first_chunk().unwrap()).unwrap();
        assert!(header.plain_bytes < (1 << 17) + MAX_ROW_BYTES as u32, "{header:?}");
    }
}
