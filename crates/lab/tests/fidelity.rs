//! A replay makes the calls that were recorded: the recording of a replay is the trace that was
//! replayed, but for addresses and times.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use hectare_trace::{Event, FileHeader, ObjectId, Ordered, ThreadId, Trace, Writer};

mod common;

use common::{HECTARE, build_recorder};

/// Every object has a size of its own, so that its size names it; what the C library asks for by
/// itself is smaller.
const LEAST_BYTES: u64 = 20_000;

const THREADS: u32 = 3;

/// A call, with objects named by their sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Malloc(u64),
    Calloc(u64),
    /// Size and binary logarithm of the alignment.
    Memalign(u64, u8),
    Realloc(Option<u64>, u64),
    Free(Option<u64>),
    UsableSize(u64),
}

/// The call of an event, and whether it failed; `size_of` names objects.
fn call(event: &Event, size_of: impl Fn(ObjectId) -> u64) -> Option<Call> {
    Some(match *event {
        Event::Malloc { size_bytes } => Call::Malloc(size_bytes),
        Event::Calloc { size_bytes } => Call::Calloc(size_bytes),
        // The replay calls `posix_memalign`, which demands the alignment of a pointer.
        Event::Memalign { size_bytes, align_log2 } => Call::Memalign(size_bytes, align_log2.max(3)),
        Event::Realloc { old, size_bytes } => Call::Realloc(old.map(size_of), size_bytes),
        // Every allocator has `free`, but not every one `free_sized`.
        Event::Free { object } | Event::SizedFree { object } => Call::Free(object.map(size_of)),
        Event::UsableSize { object } => Call::UsableSize(size_of(object)),
        Event::ThreadStart | Event::ThreadEnd | Event::Fork { .. } | Event::Marker { .. } => {
            return None;
        }
    })
}

/// A call by a thread, and whether it failed.
type Made = (ThreadId, Call, bool);

/// Writes a trace of random calls of several threads; returns them in order.
fn write_trace(path: &Path) -> Vec<Made> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut writer = Writer::new(File::create(path).unwrap(), FileHeader::new()).unwrap();
    let mut sizes: BTreeMap<ObjectId, u64> = BTreeMap::new();
    // With whoever asked for its usable size: the replay leaves questions out that another's free
    // could overtake.
    let mut live: Vec<(ObjectId, Option<ThreadId>)> = Vec::new();
    let mut calls = Vec::new();
    for nth in 0..6000_u64 {
        let thread = ThreadId(1 + random.u32(..THREADS));
        let chosen = (!live.is_empty()).then(|| random.usize(..live.len()));
        let ended = chosen.filter(|&at| live[at].1.is_none_or(|asker| asker == thread));
        // Sizes go up and down, so that blocks grow and shrink where they are and move.
        let size_bytes = LEAST_BYTES + (nth * 7919) % 6007 * 16 + u64::from(random.bool());
        let crowded = live.len() > 200;
        let mut failed = false;
        let event = match random.u32(..12) {
            0 | 1 if !crowded => Event::Malloc { size_bytes },
            2 if !crowded => Event::Calloc { size_bytes },
            3 if !crowded => Event::Memalign { size_bytes, align_log2: random.u8(..17) },
            4 if !crowded => Event::Realloc { old: None, size_bytes },
            5 => {
                failed = true;
                let size_bytes = u64::MAX - 4096;
                let old = ended.map(|at| live[at].0);
                [
                    Event::Malloc { size_bytes },
                    Event::Calloc { size_bytes },
                    Event::Memalign { size_bytes, align_log2: 12 },
                    Event::Realloc { old: None, size_bytes },
                    Event::Realloc { old, size_bytes },
                ][random.usize(..5)]
            }
            6 | 7 if ended.is_some() => {
                Event::Realloc { old: Some(live.swap_remove(ended.unwrap()).0), size_bytes }
            }
            8 if ended.is_some() => {
                let at = ended.unwrap();
                live[at].1 = Some(thread);
                Event::UsableSize { object: live[at].0 }
            }
            9 | 10 if ended.is_some() => {
                Event::Free { object: Some(live.swap_remove(ended.unwrap()).0) }
            }
            11 if ended.is_some() => {
                Event::SizedFree { object: Some(live.swap_remove(ended.unwrap()).0) }
            }
            _ => Event::Free { object: None },
        };
        if failed && let Event::Realloc { old: Some(old), .. } = event {
            // Nor may a failed call be overtaken.
            live.iter_mut().find(|(object, _)| *object == old).unwrap().1 = Some(thread);
        }
        calls.push((thread, call(&event, |object| sizes[&object]).unwrap(), failed));
        if let Some(made) = writer.event(thread, nth, &event, failed).unwrap() {
            sizes.insert(made, size_bytes);
            live.push((made, None));
        }
    }
    writer.finish().unwrap();
    assert!(!live.is_empty(), "some objects are never freed");
    calls
}

/// The calls of the recording `BASE.<pid>.0`, in order, without those that the C library made by
/// itself; the file is removed.
fn recorded(base: &Path) -> Vec<Made> {
    let prefix = format!("{}.", base.file_name().unwrap().to_str().unwrap());
    let is_ours = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&prefix);
    let files =
        std::fs::read_dir(base.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<PathBuf> = files.filter(is_ours).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let trace = Trace::open(&files[0]).unwrap();
    let mut sizes: BTreeMap<ObjectId, u64> = BTreeMap::new();
    let mut calls: Vec<Made> = Vec::new();
    let mut ordered = Ordered::new(&trace);
    while let Some(step) = ordered.next_step().unwrap() {
        let record = step.record;
        if let Some(made) = record.made {
            sizes.insert(made, record.event.asked_bytes().unwrap());
        }
        let Some(call) = call(&record.event, |object| sizes[&object]) else { continue };
        let bytes = match call {
            Call::Malloc(bytes)
            | Call::Calloc(bytes)
            | Call::Memalign(bytes, _)
            | Call::Realloc(_, bytes)
            | Call::UsableSize(bytes)
            | Call::Free(Some(bytes)) => bytes,
            // Of no object: the C library does that, too, before and after.
            Call::Free(None) if calls.iter().any(|(thread, ..)| *thread == step.thread) => {
                LEAST_BYTES
            }
            Call::Free(None) => 0,
        };
        if bytes >= LEAST_BYTES {
            calls.push((step.thread, call, record.failed()));
        }
    }
    std::fs::remove_file(&files[0]).unwrap();
    calls
}

/// The calls of each thread, from its first to its last that names an object.
fn by_thread(calls: &[Made]) -> Vec<Vec<(Call, bool)>> {
    let mut threads: BTreeMap<ThreadId, Vec<(Call, bool)>> = BTreeMap::new();
    for &(thread, call, failed) in calls {
        let of_thread = threads.entry(thread).or_default();
        if !of_thread.is_empty() || call != Call::Free(None) {
            of_thread.push((call, failed));
        }
    }
    let mut threads: Vec<_> = threads.into_values().collect();
    for calls in &mut threads {
        while calls.last().is_some_and(|(call, _)| *call == Call::Free(None)) {
            calls.pop();
        }
    }
    threads.sort_by_key(|calls| format!("{:?}", calls.first()));
    threads
}

#[test]
fn the_recording_of_a_replay_is_what_was_replayed() {
    build_recorder();
    let recorder = Path::new(HECTARE).with_file_name("libhectare_recorder.so");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fidelity");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let trace = folder.join("t.hxt");
    let calls = write_trace(&trace);
    for mode in ["serial", "speed", "paced"] {
        for options in [&["--touch", "none"][..], &["--touch", "full"], &["--latency"]] {
            let base = folder.join("again");
            std::fs::write(&base, "").unwrap();
            let output = Command::new(HECTARE)
                .args(["child", "--fd", "1", "replay", "--mode", mode])
                .args(options)
                .arg(&trace)
                .env("LD_PRELOAD", &recorder)
                .env("HECTARE_TRACE", &base)
                .output()
                .unwrap();
            let told = String::from_utf8_lossy(&output.stdout);
            assert!(told.contains("Done") && told.contains("\"skipped_ops_count\":0.0"), "{told}");
            let again = recorded(&base);
            let (expected, again) = if mode == "serial" {
                let as_one = |calls: &[Made]| -> Vec<Made> {
                    calls.iter().map(|&(_, call, failed)| (ThreadId(1), call, failed)).collect()
                };
                (by_thread(&as_one(&calls)), by_thread(&again))
            } else {
                (by_thread(&calls), by_thread(&again))
            };
            assert_eq!(again.len(), expected.len(), "threads, {mode} {options:?}");
            for (again, expected) in again.iter().zip(&expected) {
                let differs =
                    again.iter().zip(expected).position(|(again, expected)| again != expected);
                let at = differs.map(|at| (at, again[at], expected[at]));
                assert_eq!(at, None, "{mode} {options:?}: position, now, then");
                assert_eq!(again.len(), expected.len(), "{mode} {options:?}");
            }
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
