//! Traces made here, replayed on this process's own `malloc`.

use std::fs::File;
use std::path::PathBuf;

use hectare_trace::{Event, FileHeader, ObjectId, ThreadId, Writer};

use super::plan::WINDOW;
use super::*;
use crate::scratch::Scratch;

/// A trace that goes with its test.
struct Temp {
    path: PathBuf,
    _folder: Scratch,
}

/// A trace without events, and its writer.
fn begun(header: FileHeader) -> (Temp, Writer<File>) {
    let folder = Scratch::new().unwrap();
    let path = folder.path().join("t.hxt");
    let writer = Writer::new(File::create(&path).unwrap(), header).unwrap();
    (Temp { path, _folder: folder }, writer)
}

const PLAIN: Options =
    Options { mode: Mode::Speed, touch: Touch::Full, planted_ns: 0, latency: false, points: 0 };

/// A header by which a tick is a microsecond.
fn microseconds() -> FileHeader {
    FileHeader { ticks_per_second: 1_000_000, ..FileHeader::new() }
}

/// Random events of `threads` threads. A third of the objects change hands. Returns the file, the
/// number of calls, and the peak of live bytes.
fn trace(threads: u32, events: u64) -> (Temp, u64, u64) {
    let (file, mut writer) = begun(microseconds());
    let mut random = fastrand::Rng::with_seed(events + u64::from(threads));
    let mut live: Vec<(ObjectId, u64)> = Vec::new();
    let (mut live_bytes, mut peak_bytes, mut calls) = (0, 0, 0);
    for now in 0..events {
        let mut thread = ThreadId(random.u32(1..=threads));
        let magnitude = random.u32(4..14);
        let size_bytes = random.u64(0..1 << magnitude);
        let given = match live.len() {
            0 => None,
            length => Some(random.usize(0..length)),
        };
        if let Some(at) = given
            && random.u8(0..3) > 0
        {
            thread = live[at].0.thread();
        }
        let mut take = |at| {
            let (object, size) = live.swap_remove(at);
            live_bytes -= size;
            object
        };
        let event = match (random.u8(0..16), given) {
            (0..=3, _) | (_, None) => Event::Malloc { size_bytes },
            (4, _) => Event::Calloc { size_bytes },
            (5, _) => Event::Memalign { size_bytes, align_log2: random.u8(0..13) },
            (6, Some(at)) => Event::Realloc { old: Some(take(at)), size_bytes: size_bytes.max(1) },
            (7, _) => Event::Realloc { old: None, size_bytes },
            (8, Some(at)) => Event::UsableSize { object: live[at].0 },
            (9, _) => Event::Free { object: None },
            (10, Some(at)) => Event::SizedFree { object: Some(take(at)) },
            (11, _) => Event::Marker { value: now },
            (_, Some(at)) => Event::Free { object: Some(take(at)) },
        };
        calls += u64::from(!matches!(event, Event::Marker { .. }));
        if let Some(made) = writer.event(thread, now, &event, false).unwrap() {
            let size_bytes = event.asked_bytes().unwrap_or(0);
            live.push((made, size_bytes));
            live_bytes += size_bytes;
            peak_bytes = peak_bytes.max(live_bytes);
        }
    }
    writer.finish().unwrap();
    (file, calls, peak_bytes)
}

#[test]
fn every_mode_and_touch_executes_every_operation() {
    let (file, calls, peak_bytes) = trace(3, 5000);
    for touch in [Touch::None, Touch::Line, Touch::Page, Touch::Full] {
        for mode in [Mode::Speed, Mode::Serial, Mode::Paced] {
            let outcome = run(&file.path, Options { mode, touch, ..PLAIN }).unwrap();
            assert_eq!(outcome.ops, calls, "{mode:?} {touch:?}");
            assert_eq!(outcome.live_peak_bytes, peak_bytes);
            assert_eq!(outcome.failed_allocations, 0);
            assert!(outcome.ns > 0);
            // Size queries about blocks that another thread frees.
            let skipped = outcome.more["skipped_ops_count"];
            assert!(skipped < calls as f64 / 20.0 && (mode != Mode::Serial || skipped == 0.0));
            assert_eq!(outcome.latencies.is_empty(), mode != Mode::Paced);
        }
    }
}

#[test]
fn the_checksum_belongs_to_the_operations() {
    let (file, ..) = trace(3, 4000);
    let (other, ..) = trace(3, 4001);
    let first = run(&file.path, PLAIN).unwrap().checksum;
    assert_eq!(run(&file.path, Options { touch: Touch::None, ..PLAIN }).unwrap().checksum, first);
    assert_ne!(run(&other.path, PLAIN).unwrap().checksum, first);
}

#[test]
fn a_trace_in_many_segments_is_the_same_trace() {
    let (file, calls, peak_bytes) = trace(4, 9000);
    let whole = run(&file.path, PLAIN).unwrap();
    for most_ops in [99, 1000, 4000] {
        let parts = run_in_segments(&file.path, PLAIN, most_ops).unwrap();
        assert_eq!((parts.ops, parts.checksum), (calls, whole.checksum));
        assert_eq!(parts.live_peak_bytes, peak_bytes);
        assert_eq!(parts.more["segments_count"], calls.div_ceil(most_ops) as f64);
    }
}

#[test]
fn many_threads_that_come_and_go_in_order() {
    let (file, mut writer) = begun(FileHeader::new());
    let mut before = None;
    let mut now = 0;
    for thread in (1..=60).map(ThreadId) {
        // Each thread frees the block that the thread before it left behind.
        let mut event = |event| {
            now += 10;
            writer.event(thread, now, &event, false).unwrap()
        };
        event(Event::ThreadStart);
        event(Event::Free { object: before });
        for _ in 0..100 {
            let object = event(Event::Malloc { size_bytes: 100 });
            event(Event::Free { object });
        }
        before = event(Event::Malloc { size_bytes: 3000 });
        event(Event::ThreadEnd);
    }
    writer.finish().unwrap();
    let outcome = run(&file.path, PLAIN).unwrap();
    assert_eq!(outcome.ops, 60 * 202);
    assert_eq!(outcome.more["threads_count"], 60.0);
    assert_eq!(outcome.live_peak_bytes, 3000);
}

/// Threads that followed each other in the trace must not meet in the replay.
#[test]
fn no_more_threads_live_at_a_time_than_were_recorded() {
    let (file, mut writer) = begun(FileHeader::new());
    const THREADS: u64 = 40;
    const SIZE: u64 = 16 << 20;
    for thread in 1..=THREADS {
        let mut event =
            |event| writer.event(ThreadId(thread as u32), thread, &event, false).unwrap();
        let object = event(Event::Malloc { size_bytes: SIZE });
        event(Event::Free { object });
    }
    writer.finish().unwrap();
    // Each thread holds its block for a while.
    let slow = Options { touch: Touch::Page, planted_ns: 3_000_000, ..PLAIN };
    let outcome = run(&file.path, slow).unwrap();
    assert_eq!(outcome.more["threads_count"], THREADS as f64);
    let peak = outcome.window.unwrap().peak_bytes;
    // Other tests hold memory meanwhile.
    assert!(peak < THREADS * SIZE / 2, "{peak} bytes resident; one thread has {SIZE}");
}

/// A producer that is never slowed by its consumer in the trace must not run away in the replay.
#[test]
fn a_producer_stays_within_the_window_of_its_consumer() {
    let (file, mut writer) = begun(FileHeader::new());
    let (producer, consumer) = (ThreadId(1), ThreadId(2));
    const OBJECTS: u64 = 20_000;
    const SIZE: u64 = 8000;
    for now in 0..OBJECTS {
        let event = Event::Malloc { size_bytes: SIZE };
        let object = writer.event(producer, 2 * now, &event, false).unwrap();
        writer.event(consumer, 2 * now + 1, &Event::Free { object }, false).unwrap();
    }
    writer.finish().unwrap();
    let outcome = run(&file.path, Options { touch: Touch::Page, ..PLAIN }).unwrap();
    assert_eq!(outcome.live_peak_bytes, SIZE);
    let peak = outcome.window.unwrap().peak_bytes;
    let ahead = WINDOW * SIZE;
    assert!(peak < 2 * ahead, "{peak} bytes resident; all objects would be {}", OBJECTS * SIZE);
}

#[test]
fn failed_calls_of_the_recording_are_made_and_left_out() {
    let (file, mut writer) = begun(FileHeader::new());
    let thread = ThreadId(1);
    let mut event = |event, failed| writer.event(thread, 0, &event, failed).unwrap();
    let huge = i64::MAX as u64;
    let kept = event(Event::Malloc { size_bytes: 50 }, false);
    assert_eq!(event(Event::Malloc { size_bytes: huge }, true), None);
    // Succeeds here although it failed when recorded, so it belongs to nobody.
    event(Event::Calloc { size_bytes: 10 }, true);
    event(Event::Realloc { old: kept, size_bytes: huge }, true);
    event(Event::Realloc { old: kept, size_bytes: 60 }, true);
    event(Event::Free { object: kept }, false);
    // This call fails here although it did not when recorded: its free finds nothing.
    let lost = event(Event::Malloc { size_bytes: huge }, false);
    let lost = event(Event::Realloc { old: lost, size_bytes: 10 }, false);
    event(Event::Free { object: lost }, false);
    writer.finish().unwrap();
    let outcome = run(&file.path, PLAIN).unwrap();
    assert_eq!(outcome.ops, 9);
    assert_eq!(outcome.failed_allocations, 1);
}

/// The C library frees a block that is reallocated to size 0. Later records of a trace about that
/// block must not be believed.
#[test]
fn a_block_whose_reallocation_to_nothing_failed_is_freed_once() {
    let (file, mut writer) = begun(FileHeader::new());
    let mut event = |now, event, failed| writer.event(ThreadId(1), now, &event, failed).unwrap();
    for now in 0..100 {
        let old = event(now, Event::Malloc { size_bytes: 5000 }, false);
        event(now, Event::Realloc { old, size_bytes: 0 }, true);
        event(now, Event::Free { object: old }, false);
    }
    writer.finish().unwrap();
    let outcome = run(&file.path, PLAIN).unwrap();
    assert_eq!((outcome.ops, outcome.failed_allocations), (200, 0));
    assert_eq!(outcome.more["skipped_ops_count"], 100.0);
}

/// These calls failed when they were recorded and succeed now. Each frees the block that the other
/// thread reallocates or asks about.
#[test]
fn reallocations_of_one_block_by_two_threads_do_not_meet() {
    let (file, mut writer) = begun(FileHeader::new());
    let malloc = Event::Malloc { size_bytes: 100 };
    let old = writer.event(ThreadId(1), 0, &malloc, false).unwrap();
    for now in 1..3000 {
        let event = match now % 5 {
            0 => Event::UsableSize { object: old.unwrap() },
            _ => Event::Realloc { old, size_bytes: now % 7 * 20_000 + 1 },
        };
        writer.event(ThreadId(1 + (now % 2) as u32), now, &event, true).unwrap();
    }
    writer.finish().unwrap();
    let outcome = run(&file.path, Options { touch: Touch::None, ..PLAIN }).unwrap();
    assert_eq!((outcome.ops, outcome.failed_allocations), (3000, 0));
    // Only the last operation still names the block.
    assert_eq!(outcome.more["skipped_ops_count"], 2998.0);
    let serial = run(&file.path, Options { mode: Mode::Serial, ..PLAIN }).unwrap();
    assert_eq!(serial.more["skipped_ops_count"], 0.0);
}

#[test]
fn a_damaged_trace_is_refused_before_anything_is_measured() {
    let (file, ..) = trace(2, 20_000);
    let whole = std::fs::read(&file.path).unwrap();
    std::fs::write(&file.path, &whole[..whole.len() / 2]).unwrap();
    let error = format!("{:#}", run(&file.path, PLAIN).unwrap_err());
    assert!(error.contains("damaged") && error.contains("good:"), "{error}");
    assert!(summary(&file.path).is_err());
}

#[test]
fn a_planted_slowness_is_there() {
    let (file, calls, _) = trace(1, 20_000);
    let plain = run(&file.path, PLAIN).unwrap().ns;
    let slow = run(&file.path, Options { planted_ns: 2000, ..PLAIN }).unwrap().ns;
    assert!(slow > plain / 2 + calls * 1900, "{plain} ns became {slow} ns");
}

/// A damaged trace may claim times later than any.
#[test]
fn operations_after_the_end_of_time_are_replayed() {
    let (file, mut writer) = begun(microseconds());
    for now in [1 << 60, (1 << 60) + 5, 1 << 61] {
        writer.event(ThreadId(1), now, &Event::Malloc { size_bytes: 8 }, false).unwrap();
    }
    writer.finish().unwrap();
    let options = Options { latency: true, points: 300, ..PLAIN };
    assert_eq!(run(&file.path, options).unwrap().points.len(), 3);
}

#[test]
fn latencies_count_every_call_and_grow_with_rank() {
    let (file, calls, _) = trace(3, 6000);
    let options = Options { latency: true, points: 300, ..PLAIN };
    let outcome = run(&file.path, options).unwrap();
    let worst = |values: &mut dyn Iterator<Item = f64>| values.fold(0.0, f64::max);
    let of_points = worst(&mut outcome.points.iter().map(|point| point[1]));
    let of_records = worst(&mut outcome.latencies.iter().map(|record| record.worst_ns));
    assert!((of_points - of_records).abs() <= 1.0, "{of_points} {of_records}");
    assert!((220..=301).contains(&outcome.points.len()), "{} points", outcome.points.len());
    assert!(outcome.points.is_sorted_by_key(|point| point[0]));
    assert_eq!(outcome.latencies.iter().map(|record| record.count).sum::<u64>(), calls);
    for record in &outcome.latencies {
        let ranks = [
            record.p50_ns,
            record.p90_ns,
            record.p99_ns,
            record.p999_ns,
            record.p9999_ns,
            record.worst_ns,
        ];
        assert!(ranks.is_sorted(), "{}: {ranks:?}", record.operation);
        assert!(record.p50_ns > 0.0 && record.clock_ns > 0.0);
    }
}

#[test]
fn ideal_agrees_with_the_plan() {
    let (file, _, peak_bytes) = trace(3, 30_000);
    let ideal = Ideal::of(&summary(&file.path).unwrap());
    assert_eq!(ideal.live_bytes, peak_bytes);
    assert!(ideal.rounded16_bytes > peak_bytes);
    assert_eq!(ideal.pages_bytes % crate::machine::page_bytes(), 0);
    let most = Ideal::of(&Summary { peak_bytes: u64::MAX, ..Summary::default() });
    assert_eq!(most.pages_bytes, u64::MAX);
}

#[test]
fn the_map_is_of_one_moment_and_shares_are_shares() {
    let (file, ..) = trace(3, 40_000);
    let outcome = occupancy::run(&file.path, Touch::Page).unwrap();
    assert!(outcome.ops > 0 && !outcome.map.is_empty());
    let shares: Vec<f64> = outcome.map.iter().map(|cell| cell[1]).collect();
    assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)), "{shares:?}");
    assert!(shares.iter().any(|&share| share > 0.1), "{shares:?}");
    assert!(outcome.map.windows(2).all(|pair| pair[0][0] < pair[1][0]), "by address");
    let again = occupancy::run(&file.path, Touch::Page).unwrap();
    assert_eq!((outcome.ops, outcome.checksum), (again.ops, again.checksum));
}

#[test]
fn the_map_shows_what_the_replay_writes() {
    let (file, mut writer) = begun(FileHeader::new());
    let large = Event::Malloc { size_bytes: 64 << 20 };
    writer.event(ThreadId(1), 1, &large, false).unwrap();
    writer.finish().unwrap();
    // All cells cover the same number of pages. With nothing written there are fewer pages than
    // cells.
    for (touch, cells) in [(Touch::None, 0..10), (Touch::Page, 400..513)] {
        let map = occupancy::run(&file.path, touch).unwrap().map;
        assert!(cells.contains(&map.len()), "{touch:?}: {}", map.len());
    }
}

#[test]
fn operations_are_counted_as_they_are_done() {
    let (file, ..) = trace(1, 1000);
    let opened = open(&file.path).unwrap();
    for latency in [false, true] {
        let mut planner = Planner::new(&opened, Wanted { serial: false, starts: latency });
        let mut segment = planner.segment(SEGMENT_OPS).unwrap().unwrap();
        // A plan without its last batch: operations that are in no batch are not executed.
        let lane = &mut segment.lanes[0];
        let last = lane.batches.pop().unwrap();
        let forgotten = last.end - lane.batches.last().unwrap().end;
        let mut table = Table::default();
        table.grow(segment.slots);
        let options = Options { latency, ..PLAIN };
        let run = Run::new(&segment, &table, options, latency, Rate::measure());
        assert_eq!(run.execute().unwrap().ops, segment.ops - forgotten as u64);
    }
}
