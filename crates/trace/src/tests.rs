//! A shadow of the format: random events go in, and the same events must come out, in a valid
//! order. Then the file is damaged in every way and must yield exactly the intact part.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use crate::seal::{SealOptions, seal};
use crate::*;

mod misled;
mod told;

/// A file that is removed with the test.
struct Temp(PathBuf);

impl Temp {
    fn new(name: &str) -> Self {
        let name = format!("hectare-trace-{}-{name}.hxt", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

type Rows = BTreeMap<ThreadId, Vec<Record>>;

/// Random but sensible events: objects are named only while live, many by other threads.
fn random_rows(seed: u64, threads: u32, events: usize) -> (Rows, Vec<Step>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut states: Vec<_> = (1..=threads).map(|t| RowState::new(ThreadId(t))).collect();
    let mut live: Vec<ObjectId> = Vec::new();
    let mut rows = Rows::new();
    let mut order = Vec::new();
    let mut now = 0;
    for _ in 0..events {
        now += if random.u8(..) < 8 { random.u64(0..1 << 40) } else { random.u64(0..200) };
        let state = &mut states[random.usize(0..threads as usize)];
        let size_bytes = random.u64(..) >> random.u32(10..64);
        let failed = random.u8(..) == 0;
        let mut take = |live: &mut Vec<ObjectId>, remove: bool| {
            if live.is_empty() || random.u8(..) < 6 {
                return None;
            }
            let at = random.usize(0..live.len());
            Some(if remove { live.swap_remove(at) } else { live[at] })
        };
        let event = match now % 17 {
            0..=4 => Event::Malloc { size_bytes },
            5 => Event::Calloc { size_bytes },
            6 => Event::Memalign { size_bytes, align_log2: (now % 21) as u8 },
            7 | 8 => Event::Realloc { old: take(&mut live, !failed), size_bytes },
            9..=12 => Event::Free { object: take(&mut live, true) },
            13 => Event::SizedFree { object: take(&mut live, true) },
            14 => match take(&mut live, false) {
                Some(object) => Event::UsableSize { object },
                None => Event::ThreadStart,
            },
            15 => Event::Fork { child_pid: now as u32 },
            _ => Event::Marker { value: now },
        };
        let mut window = [0; ROW_WINDOW_BYTES];
        let (length, made) = state.put(&mut window, now, &event, failed);
        assert!(length <= MAX_ROW_BYTES);
        live.extend(made);
        let record = Record { time_ticks: now, event, made };
        rows.entry(state.thread).or_default().push(record);
        order.push(Step { thread: state.thread, record });
    }
    (rows, order)
}

fn write(path: &PathBuf, order: &[Step]) {
    let header = FileHeader { command: "prog --flag".into(), pid: 7, ..FileHeader::new() };
    let mut writer = Writer::new(fs::File::create(path).unwrap(), header).unwrap();
    for step in order {
        let record = &step.record;
        let made =
            writer.event(step.thread, record.time_ticks, &record.event, record.failed()).unwrap();
        assert_eq!(made, record.made);
    }
    writer.finish().unwrap();
}

fn read(trace: &Trace) -> Rows {
    let mut rows = Rows::new();
    for &thread in trace.threads().keys() {
        let mut stream = trace.thread_rows(thread);
        while let Some(record) = stream.next_row().unwrap() {
            rows.entry(thread).or_default().push(record);
        }
    }
    rows
}

#[test]
fn what_goes_in_comes_out() {
    for seed in 0..40 {
        let file = Temp::new(&format!("round-{seed}"));
        let (rows, order) = random_rows(seed, 1 + (seed % 9) as u32, 1 << (seed % 15));
        write(&file.0, &order);
        let trace = Trace::open(&file.0).unwrap();
        assert_eq!(trace.header().command, "prog --flag");
        assert_eq!(trace.rows(), order.len() as u64);
        assert_eq!(read(&trace), rows, "seed {seed}");
        trace.check().unwrap();
        assert_eq!(trace.damage().good_rows, order.len() as u64);
    }
}

#[test]
fn merged_order_is_by_time() {
    let file = Temp::new("order");
    let (_, order) = random_rows(3, 12, 60_000);
    write(&file.0, &order);
    let trace = Trace::open(&file.0).unwrap();
    let mut ordered = Ordered::new(&trace);
    let mut last = 0;
    let mut count = 0;
    while let Some(step) = ordered.next_step().unwrap() {
        assert!(step.record.time_ticks >= last);
        last = step.record.time_ticks;
        count += 1;
    }
    assert_eq!(count, order.len());
}

/// The clocks of the threads are off by far more than the time between events. The order must still
/// have every object made before it is named.
#[test]
fn an_object_is_made_before_it_is_named_however_wrong_the_clocks() {
    for seed in 0..10 {
        let file = Temp::new(&format!("skew-{seed}"));
        let (rows, mut order) = random_rows(seed, 8, 20_000);
        let mut random = fastrand::Rng::with_seed(seed);
        let skew: Vec<u64> = (0..9).map(|_| random.u64(0..1 << 41)).collect();
        for step in &mut order {
            step.record.time_ticks += skew[step.thread.0 as usize];
        }
        write(&file.0, &order);
        let trace = Trace::open(&file.0).unwrap();
        let mut ordered = Ordered::new(&trace);
        let mut made = BTreeSet::new();
        let mut seen: BTreeMap<ThreadId, usize> = BTreeMap::new();
        while let Some(step) = ordered.next_step().unwrap() {
            if let Some(object) = step.record.event.object() {
                assert!(made.contains(&object), "{object} named before it was made");
            }
            made.extend(step.record.made);
            let nth = seen.entry(step.thread).or_default();
            assert_eq!(step.record.event, rows[&step.thread][*nth].event, "program order");
            *nth += 1;
        }
        assert_eq!(seen.values().sum::<usize>(), order.len());
    }
}

#[test]
fn every_cut_yields_a_prefix_of_each_thread_and_an_error() {
    let file = Temp::new("cut");
    let (rows, order) = random_rows(5, 3, 120_000);
    write(&file.0, &order);
    let whole = fs::read(&file.0).unwrap();
    let mut random = fastrand::Rng::with_seed(9);
    for _ in 0..60 {
        let length = random.usize(HEADER_BYTES..whole.len());
        fs::write(&file.0, &whole[..length]).unwrap();
        let trace = Trace::open(&file.0).unwrap();
        let got = read(&trace);
        for (thread, records) in &got {
            assert_eq!(records[..], rows[thread][..records.len()], "cut at {length}");
        }
        let error = trace.check().expect_err("the cut went unnoticed");
        let good: usize = got.values().map(Vec::len).sum();
        assert_eq!(trace.damage().good_rows, good as u64);
        assert!(error.to_string().contains(&format!("with {good} event")), "{error}");
        assert_eq!(error.to_string().contains("info F --salvage"), good > 0, "{error}");
    }
    for length in [0, 5, 8, 100, HEADER_BYTES - 1] {
        fs::write(&file.0, &whole[..length]).unwrap();
        assert!(Trace::open(&file.0).is_err(), "a file of {length} bytes");
    }
}

#[test]
fn a_flipped_bit_costs_one_chunk_and_is_told() {
    let file = Temp::new("flip");
    let (rows, order) = random_rows(6, 4, 150_000);
    write(&file.0, &order);
    let whole = fs::read(&file.0).unwrap();
    let chunks = Trace::open(&file.0).unwrap().threads().values().flatten().count() as u64;
    assert!(chunks >= 8, "the test wants several chunks a thread, not {chunks}");
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..60 {
        let at = random.usize(HEADER_BYTES..whole.len());
        let mut hurt = whole.clone();
        hurt[at] ^= 1 << random.u8(0..8);
        fs::write(&file.0, &hurt).unwrap();
        let trace = Trace::open(&file.0).unwrap();
        let got = read(&trace);
        let damage = trace.damage();
        assert!(damage.any(), "the flip at {at} went unnoticed");
        assert!(damage.good_chunks >= chunks - 1, "the flip at {at} cost more than its chunk");
        for (thread, records) in &got {
            let all: BTreeMap<_, _> =
                rows[thread].iter().filter_map(|r| Some((r.made?, r))).collect();
            for record in records {
                if let Some(made) = record.made {
                    assert_eq!(record, all[&made], "wrong rows after a flip at {at}");
                }
            }
        }
        // Ordering must end even with rows missing.
        let mut ordered = Ordered::new(&trace);
        let mut count = 0;
        while ordered.next_step().unwrap().is_some() {
            count += 1;
        }
        assert_eq!(count, damage.good_rows);
    }
}

#[test]
fn random_bytes_behind_a_header_are_survived() {
    let file = Temp::new("noise");
    let mut random = fastrand::Rng::with_seed(12);
    for sealed in [false, true] {
        let mut bytes = [0; HEADER_BYTES];
        let end_offset = 300_000;
        FileHeader { sealed, end_offset, ..FileHeader::new() }.write_to(&mut bytes);
        let noise = (0..200_000).map(|_| random.u8(..));
        let content: Vec<u8> = bytes.into_iter().chain(noise).collect();
        fs::write(&file.0, content).unwrap();
        let trace = Trace::open(&file.0).unwrap();
        assert!(read(&trace).is_empty());
        assert!(trace.check().is_err());
    }
}

#[test]
fn another_version_is_told_with_what_to_do() {
    let mut bytes = [0; HEADER_BYTES];
    FileHeader::new().write_to(&mut bytes);
    for (version, remedy) in [(VERSION - 1, "record it again"), (VERSION + 1, "a newer hectare")] {
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        let told = FileHeader::from_bytes(&bytes).unwrap_err().to_string();
        assert!(told.contains(&format!("version {version}")) && told.contains(remedy), "{told}");
    }
}

#[test]
fn decoding_noise_never_panics() {
    let mut random = fastrand::Rng::with_seed(13);
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..random.usize(0..60)).map(|_| random.u8(..)).collect();
        let mut state = RowState { next_serial: random.u64(0..4), ..RowState::new(ThreadId(1)) };
        let mut at = 0;
        while let Some((_, next)) = state.get(&bytes, at) {
            assert!(next > at && next <= bytes.len());
            at = next;
        }
    }
}

/// A file as a recorder leaves it: chunks in a mapping, some never finished.
#[test]
fn open_chunks_are_read_up_to_their_last_row_and_sealed() {
    let file = Temp::new("open");
    let target = Temp::new("open-sealed");
    let (rows, _) = random_rows(20, 2, 3000);
    let mut content = vec![0; HEADER_BYTES];
    for (&thread, records) in &rows {
        let room = 1 << 16;
        let header = ChunkHeader {
            state: ChunkState::Open,
            thread,
            rows: 0,
            span_bytes: room,
            stored_bytes: room - CHUNK_HEADER_BYTES as u32,
            plain_bytes: room - CHUNK_HEADER_BYTES as u32,
            crc: 0,
            first_serial: 0,
            first_time_ticks: 0,
            last_time_ticks: 0,
        };
        let start = content.len();
        content.extend_from_slice(&header.to_bytes());
        let mut state = RowState::new(thread);
        for record in records {
            let mut window = [0; ROW_WINDOW_BYTES];
            let failed = record.failed();
            let (length, _) = state.put(&mut window, record.time_ticks, &record.event, failed);
            content.extend_from_slice(&window[..length]);
        }
        assert!(content.len() - start < room as usize);
        content.resize(start + room as usize, 0);
    }
    let mut bytes = [0; HEADER_BYTES];
    let end_offset = content.len() as u64 + 4096;
    let known = FileHeader { end_offset, ticks_per_second: 125_000_000, ..FileHeader::new() };
    known.write_to(&mut bytes);
    content[..HEADER_BYTES].copy_from_slice(&bytes);
    // The last page was handed out but never written.
    content.resize(content.len() + 4096, 0);
    fs::write(&file.0, &content).unwrap();

    let trace = Trace::open(&file.0).unwrap();
    assert_eq!(read(&trace), rows);
    trace.check().unwrap();

    let sealed = seal(&file.0, &target.0, SealOptions::default()).unwrap();
    assert_eq!(sealed.rows, 3000);
    assert!(!sealed.damage.any());
    let again = Trace::open(&target.0).unwrap();
    assert_eq!(read(&again), rows);
    again.check().unwrap();

    // A coarser clock keeps everything but the time.
    let options = SealOptions { tick_ns: 1000, event_cost_ps: 17_000, ..SealOptions::default() };
    seal(&file.0, &target.0, options).unwrap();
    let coarse = Trace::open(&target.0).unwrap();
    assert_eq!(coarse.header().ticks_per_second, 1_000_000);
    assert_eq!(coarse.header().event_cost_ps, 17_000);
    let got = read(&coarse);
    for (thread, records) in &rows {
        for (record, coarse) in records.iter().zip(&got[thread]) {
            assert_eq!((record.event, record.made), (coarse.event, coarse.made));
            assert_eq!(coarse.time_ticks, record.time_ticks / 125);
        }
    }
}

#[test]
fn summary_agrees_with_a_naive_count() {
    let file = Temp::new("summary");
    let (_, mut order) = random_rows(30, 5, 30_000);
    for step in &mut order {
        if let Event::Malloc { size_bytes } | Event::Calloc { size_bytes } = &mut step.record.event
        {
            *size_bytes %= 100_000;
        }
        if let Event::Memalign { size_bytes, .. } | Event::Realloc { size_bytes, .. } =
            &mut step.record.event
        {
            *size_bytes %= 100_000;
        }
    }
    write(&file.0, &order);
    let trace = Trace::open(&file.0).unwrap();
    let summary = Summary::of(&trace).unwrap();

    let mut live: BTreeMap<ObjectId, u64> = BTreeMap::new();
    let mut since: BTreeMap<ObjectId, u64> = BTreeMap::new();
    let mut threads: BTreeMap<ThreadId, ThreadSummary> = BTreeMap::new();
    let mut lifetimes_ns: Histogram = Histogram::new();
    let (mut peak, mut peak_rounded, mut peak_objects, mut crossing, mut failed) = (0, 0, 0, 0, 0);
    for Step { thread, record } in &order {
        let own = threads.entry(*thread).or_insert(ThreadSummary {
            first_ticks: record.time_ticks,
            ..ThreadSummary::default()
        });
        own.rows += 1;
        own.last_ticks = record.time_ticks;
        failed += u64::from(record.failed());
        let ends = match record.event {
            Event::UsableSize { .. } => false,
            Event::Realloc { .. } => record.made.is_some(),
            _ => true,
        };
        if let Some(object) = record.event.object()
            && ends
        {
            live.remove(&object).unwrap();
            lifetimes_ns.add(record.time_ticks - since[&object]);
            own.ended += 1;
            own.ended_foreign += u64::from(object.thread() != *thread);
            crossing += u64::from(object.thread() != *thread);
        }
        if let Some(made) = record.made {
            live.insert(made, record.event.asked_bytes().unwrap());
            since.insert(made, record.time_ticks);
            own.made += 1;
        }
        peak = peak.max(live.values().sum::<u64>());
        peak_rounded =
            peak_rounded.max(live.values().map(|bytes| bytes.max(&1).next_multiple_of(16)).sum());
        peak_objects = peak_objects.max(live.len() as u64);
    }
    assert!(summary.threads == threads);
    assert!(summary.lifetimes_ns.buckets().eq(lifetimes_ns.buckets()));
    assert_eq!((summary.peak_rounded_bytes, summary.peak_objects), (peak_rounded, peak_objects));
    assert_eq!(
        (summary.failed, summary.end_ticks),
        (failed, order.last().unwrap().record.time_ticks)
    );
    assert_eq!(summary.peak_bytes, peak);
    assert_eq!(summary.crossing, crossing);
    assert_eq!(summary.end_objects, live.len() as u64);
    assert_eq!(summary.end_bytes, live.values().sum::<u64>());
    assert_eq!(summary.rows(), order.len() as u64);
    assert_eq!(summary.unknown_objects, 0);
    assert_eq!(summary.sizes.total(), summary.objects);
}

#[test]
fn histogram_buckets_hold_what_they_say() {
    let mut random = fastrand::Rng::with_seed(40);
    for _ in 0..10_000 {
        let value = random.u64(..) >> random.u32(0..64);
        let mut histogram: Histogram = Histogram::new();
        histogram.add(value);
        let (lower, count) = histogram.buckets().next().unwrap();
        assert_eq!(count, 1);
        let upper = histogram.quantile(1.0);
        assert!(lower <= value && value <= upper, "{lower} {value} {upper}");
        assert_eq!(histogram.quantile(0.0), upper, "the least there is");
        assert!(upper - lower <= lower / 4 + 1, "{lower} {upper}");
    }
}
