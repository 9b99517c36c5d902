//! Records a C program that does what is hard to record, and reads what came of it.
//!
//! The program is `program.c`; each test is one of its cases.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Instant;

use hectare_trace::{Event, FileHeader, ObjectId, Ordered, Record, Step, Summary, ThreadId, Trace};

/// The recorder. Cargo builds a library that nothing links only when told so.
fn recorder() -> &'static Path {
    static RECORDER: OnceLock<PathBuf> = OnceLock::new();
    RECORDER.get_or_init(|| {
        let target = folder().parent().expect("the folder is one of the target's").to_owned();
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "hectare-recorder", "--target-dir"])
            .arg(&target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .expect("cargo is needed");
        assert!(status.success());
        target.join("debug/libhectare_recorder.so")
    })
}

/// The compiled program.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/program.c");
        let target = folder().join(format!("recorded-program-{}", std::process::id()));
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
        let status = Command::new(compiler)
            .args(["-O1", "-w", "-pthread", "-fno-builtin", "-o"])
            .args([&target, &source])
            .status()
            .expect("a C compiler is needed");
        assert!(status.success());
        target
    })
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// What one program image left.
struct Image {
    header: FileHeader,
    steps: Vec<Step>,
    summary: Summary,
    chunks: usize,
    /// Those that were not completed.
    open_chunks: usize,
}

impl Image {
    /// What was recorded between the marks 1 and 2.
    fn between_marks(&self) -> &[Step] {
        let at = |value| {
            let marker = Event::Marker { value };
            self.steps.iter().position(|step| step.record.event == marker).expect("a marker")
        };
        &self.steps[at(1) + 1..at(2)]
    }

    fn sizes(&self) -> BTreeMap<u64, usize> {
        let mut sizes = BTreeMap::new();
        for step in &self.steps {
            if let Some(size) = step.record.event.asked_bytes() {
                *sizes.entry(size).or_default() += 1;
            }
        }
        sizes
    }

    fn made(&self) -> BTreeMap<ObjectId, u64> {
        let made = self.steps.iter().filter_map(|s| Some((s.record.made?, &s.record.event)));
        made.map(|(object, event)| (object, event.asked_bytes().unwrap_or(0))).collect()
    }
}

/// Records a case; gives the images by pid and number.
fn record(case: &str) -> (ExitStatus, BTreeMap<(u32, u32), Image>) {
    record_telling(case, Stdio::inherit())
}

fn record_telling(case: &str, error_output: Stdio) -> (ExitStatus, BTreeMap<(u32, u32), Image>) {
    let base = folder().join(format!("{case}-{}", std::process::id()));
    let prefix = format!("{}.", base.file_name().unwrap().to_string_lossy());
    std::fs::write(&base, "").unwrap();
    let status = Command::new(program())
        .arg(case)
        .env("LD_PRELOAD", recorder())
        .env("HECTARE_TRACE", &base)
        .stderr(error_output)
        .status()
        .expect("the program starts");
    let mut images = BTreeMap::new();
    for entry in std::fs::read_dir(folder()).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(suffix) = name.strip_prefix(&prefix) else { continue };
        let (pid, nth) = suffix.split_once('.').expect("PID.N");
        let trace = Trace::open(&entry.path()).expect("a readable trace");
        let summary = Summary::of(&trace).unwrap();
        trace.check().expect("an undamaged trace");
        let mut steps = Vec::new();
        let mut ordered = Ordered::new(&trace);
        while let Some(step) = ordered.next_step().unwrap() {
            steps.push(step);
        }
        let (pid, nth) = (pid.parse().unwrap(), nth.parse().unwrap());
        assert_eq!(suffix, format!("{pid}.{nth}"), "numbers without zeroes before them");
        let places: Vec<_> = trace.threads().values().flatten().collect();
        let open_chunks = places.iter().filter(|place| place.rows == 0).count();
        let header = trace.header().clone();
        let image = Image { header, steps, summary, chunks: places.len(), open_chunks };
        images.insert((pid, nth), image);
        std::fs::remove_file(entry.path()).unwrap();
    }
    std::fs::remove_file(&base).unwrap();
    (status, images)
}

fn only(images: BTreeMap<(u32, u32), Image>) -> Image {
    assert_eq!(images.len(), 1, "{:?}", images.keys());
    images.into_values().next().unwrap()
}

#[test]
fn every_call_of_the_family_is_recorded_as_it_was_made() {
    let (status, images) = record("family");
    assert!(status.success());
    let image = only(images);
    let calls: Vec<Record> = image.between_marks().iter().map(|step| step.record).collect();
    let memalign = |size_bytes, align_log2| Event::Memalign { size_bytes, align_log2 };
    let made = |nth: usize| calls[nth].made;
    let realloc = |old, size_bytes| Event::Realloc { old, size_bytes };
    let free = |object| Event::Free { object };
    let expected = [
        Event::Malloc { size_bytes: 101 },
        Event::Calloc { size_bytes: 102 },
        realloc(made(0), 103),
        realloc(made(2), 40004),
        realloc(None, 105),
        realloc(None, 106),
        memalign(128, 6),
        memalign(109, 8),
        memalign(110, 12),
        memalign(111, 12),
        memalign(4096, 12),
        Event::UsableSize { object: made(3).unwrap() },
        free(None),
        Event::Malloc { size_bytes: i64::MAX as u64 },
        realloc(made(3), i64::MAX as u64),
        realloc(made(3), u64::MAX),
        Event::Calloc { size_bytes: u64::MAX },
        memalign(u64::MAX, 12),
        memalign(i64::MAX as u64, 63),
        Event::Malloc { size_bytes: i64::MAX as u64 },
        free(made(4)),
        free(made(3)),
        free(made(1)),
        free(made(5)),
        free(made(6)),
        free(made(7)),
        free(made(8)),
        free(made(9)),
        free(made(10)),
    ];
    for (nth, (call, expected)) in calls.iter().zip(&expected).enumerate() {
        assert_eq!(call.event, *expected, "call {nth}");
        let is_too_much = expected.asked_bytes().is_some_and(|bytes| bytes >= i64::MAX as u64);
        assert_eq!(call.failed(), is_too_much, "call {nth}");
    }
    assert_eq!(calls.len(), expected.len());
    assert!(image.header.command.ends_with("family"), "{}", image.header.command);
}

/// Its place may have been that of an object that was recorded.
#[test]
fn a_block_that_was_not_seen_made_is_taken_for_no_other() {
    let (status, images) = record("unseen");
    assert!(status.success());
    let image = only(images);
    let calls: Vec<Record> = image.between_marks().iter().map(|step| step.record).collect();
    let made = |nth: usize| calls[nth].made;
    let expected = [
        Event::Malloc { size_bytes: 200 },
        Event::Malloc { size_bytes: 16 },
        Event::Realloc { old: made(0), size_bytes: 100_000 },
        Event::Malloc { size_bytes: 500 },
        Event::Malloc { size_bytes: i64::MAX as u64 },
        Event::Memalign { size_bytes: 4096, align_log2: 12 },
        Event::SizedFree { object: made(2) },
        Event::Free { object: made(1) },
        Event::Free { object: made(3) },
        Event::Free { object: made(5) },
    ];
    assert_eq!(calls.iter().map(|call| call.event).collect::<Vec<_>>(), expected);
    assert_eq!(image.header.unknown_frees, 4, "two frees and two reallocations");
}

#[test]
fn the_programs_own_memory_is_told() {
    let mib = f64::from(1 << 20);
    let (status, images) = record("holds");
    assert!(status.success(), "{status}");
    let header = only(images).header;
    let held = header.held_bytes as f64 / mib;
    assert!(header.held_to_the_end, "it returned from `main`");
    // Of that 20 MiB are its objects; the recorder's table takes 12 MiB and more.
    assert!((19.0..26.0).contains(&held), "{held} MiB");
    let (status, images) = record("holds-and-ends");
    assert!(status.success(), "{status}");
    let header = only(images).header;
    let held = header.held_bytes as f64 / mib;
    assert!(!header.held_to_the_end && (0.5..26.0).contains(&held), "{held} MiB: {header:?}");
}

#[test]
fn the_speed_of_the_clock_is_told() {
    let since = Instant::now();
    let (status, images) = record("timed");
    let most = since.elapsed().as_secs_f64();
    assert!(status.success(), "{status}");
    let image = only(images);
    let [first, .., last] = image.between_marks() else { panic!("no calls") };
    assert_eq!(first.record.made.map(ObjectId::thread), Some(ThreadId(1)));
    let start = image.steps[0].record.time_ticks;
    let seconds = |ticks| ticks as f64 / image.header.ticks_per_second as f64;
    assert!(seconds(start) < most, "it begins with the recording");
    let lasted = seconds(last.record.time_ticks - start);
    assert!((0.1..most).contains(&lasted), "{lasted} s of {most} s");
}

#[test]
fn a_thread_that_has_ended_takes_no_memory() {
    let (status, images) = record("many-threads");
    assert!(status.success(), "{status}");
    let image = only(images);
    assert_eq!(image.sizes()[&5008], 4100);
    // The first thread's, the last late one's, and what the last has left, if that is worth a header.
    assert!((2..=3).contains(&image.open_chunks), "{} open chunks", image.open_chunks);
    assert!(
        image.header.end_offset < 20 << 20,
        "4100 threads share chunks: 4 KiB each would be more"
    );
}

#[test]
fn calls_before_main_and_after_exit_are_recorded() {
    let (_, images) = record("family");
    let sizes = only(images).sizes();
    for size in [70001, 70002, 70003] {
        assert_eq!(sizes.get(&size), Some(&1), "the block of {size} bytes");
    }
}

/// The sizes tell who must have made what each thread frees. An object taken for another, because
/// its address had been handed out again, would show here.
#[test]
fn objects_that_change_hands_keep_their_identity() {
    let (status, images) = record("hand-over");
    assert!(status.success());
    let image = only(images);
    let made = image.made();
    let mut handed: BTreeMap<u64, usize> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut partner: BTreeMap<ThreadId, u64> = BTreeMap::new();
    for Step { thread, record } in &image.steps {
        if let Some(object) = record.event.object() {
            assert!(seen.contains(&object), "{object} is freed before it is made");
            let size = made[&object];
            if (1000..1004).contains(&size) {
                assert_ne!(object.thread(), *thread, "{object} was to change hands");
                assert_eq!(*partner.entry(*thread).or_insert(size), size, "a stranger's object");
                *handed.entry(size).or_default() += 1;
            } else if (2000..4000).contains(&size) {
                assert_eq!(object.thread(), *thread, "{object} of {size} bytes is private");
            }
        }
        seen.extend(record.made);
    }
    assert_eq!(handed, (1000..1004).map(|size| (size, 10_000)).collect());
    assert_eq!(image.summary.crossing, 40_000);
    assert_eq!(image.summary.unknown_objects, 0);
}

fn check_forks(case: &str) {
    let (status, mut images) = record(case);
    assert!(status.success());
    let parent_key = *images
        .iter()
        .max_by_key(|(_, image)| image.steps.len())
        .expect("the parent recorded something")
        .0;
    let parent = images.remove(&parent_key).unwrap();
    assert_eq!(images.len(), 20, "one file for each child");
    assert_eq!(parent.header.first_thread, 1);
    assert_eq!(parent.sizes()[&4001], 20);
    assert!(!parent.sizes().contains_key(&4002), "the children's events are their own");
    assert_eq!(parent.summary.unknown_objects, 0);
    for ((pid, _), child) in &images {
        assert_eq!(child.header.parent_pid, parent_key.0);
        assert_eq!(child.sizes()[&4002], 10);
        let inherited: Vec<_> =
            child.steps.iter().filter_map(|s| s.record.event.object()).collect();
        let first = child.header.first_thread;
        assert_eq!(inherited.iter().filter(|object| object.thread().0 < first).count(), 1);
        assert_eq!(child.summary.unknown_objects, 1, "the inherited object");
        let forked = Event::Fork { child_pid: *pid };
        let told = parent.steps.iter().any(|step| step.record.event == forked);
        assert_eq!(told, case == "fork", "the parent's row for process {pid}");
        assert!(!child.summary.calls.contains_key("fork"));
    }
}

#[test]
fn a_fork_in_the_midst_of_threads_gives_each_process_its_own_file() {
    check_forks("fork");
}

#[test]
fn a_fork_behind_the_c_librarys_back_does_too() {
    check_forks("raw-fork");
}

#[test]
fn a_title_written_over_the_environment_does_not_lose_the_children() {
    let (status, images) = record("title");
    assert!(status.success());
    assert_eq!(images.len(), 2, "{:?}", images.keys());
    assert!(images.values().any(|image| image.sizes().get(&9002) == Some(&100)));
}

#[test]
fn exec_begins_another_file_of_the_same_process() {
    let (status, images) = record("exec");
    assert!(status.success());
    let keys: Vec<_> = images.keys().copied().collect();
    assert_eq!(keys.len(), 2);
    assert_eq!(keys[0].0, keys[1].0, "the same process");
    let begun = |nth: usize| images[&keys[nth]].header.process_start;
    assert!(begun(0) > 0 && begun(0) == begun(1), "{} {}", begun(0), begun(1));
    assert_eq!(images[&keys[0]].sizes()[&7001], 1);
    assert!(!images[&keys[1]].sizes().contains_key(&7001));
    assert_eq!(images[&keys[1]].sizes()[&40004], 1);
}

#[test]
fn threads_end_after_their_destructors() {
    let (status, images) = record("short-threads");
    assert!(status.success());
    let image = only(images);
    assert_eq!(image.summary.calls["thread start"], 301);
    assert_eq!(image.summary.calls["thread end"], 300);
    // Of their some thirty bytes each, behind headers of 64.
    assert!(image.header.end_offset < 100_000, "{} bytes", image.header.end_offset);
    let last = |thread| image.steps.iter().rfind(|step| step.thread == thread).unwrap();
    for &thread in image.summary.threads.keys().filter(|thread| thread.0 > 1) {
        assert_eq!(last(thread).record.event, Event::ThreadEnd, "the C library's free of null");
    }
    let made = image.made();
    let freed: BTreeSet<_> = image.steps.iter().filter_map(|s| s.record.event.object()).collect();
    let left = made.iter().filter(|(object, size)| **size == 5001 && !freed.contains(object));
    assert_eq!(left.count(), 0, "what destructors free is recorded");
    for (thread, summary) in &image.summary.threads {
        assert!(thread.0 == 1 || summary.made == 2, "{thread} made {}", summary.made);
    }
}

#[test]
fn calls_after_a_threads_end_keep_no_mapping() {
    let (status, images) = record("late-threads");
    assert!(status.success(), "{status}");
    let image = only(images);
    let mut ended = BTreeSet::new();
    let mut late = BTreeSet::new();
    for step in &image.steps {
        match step.record.event {
            Event::ThreadEnd => drop(ended.insert(step.thread)),
            Event::Free { object: Some(_) } if ended.contains(&step.thread) => {
                late.insert(step.thread);
            }
            _ => {}
        }
    }
    assert_eq!((ended.len(), late.len()), (300, 300));
}

#[test]
fn a_child_of_a_thread_that_has_ended_has_numbers_of_its_own() {
    let (status, images) = record("late-fork");
    assert!(status.success(), "{status}");
    let child = images.values().find(|image| image.sizes().contains_key(&5004)).expect("a child");
    let made = child.made();
    assert_eq!(made.values().collect::<Vec<_>>(), [&5004]);
    assert!(made.keys().all(|object| object.thread().0 >= child.header.first_thread), "{made:?}");
    assert_eq!(child.summary.unknown_objects, 1, "what it inherited is not taken for its own");
}

#[test]
fn a_child_that_uses_its_parents_memory_ends_no_threads_tape() {
    let (status, images) = record("late-vfork");
    assert!(status.success(), "{status}");
    let image = only(images);
    let sizes = image.sizes();
    assert_eq!((sizes[&5006], sizes[&5007]), (11, 11));
    // Two at a time leave two; each of the next two takes one of these and leaves it again.
    assert_eq!(image.open_chunks, 4, "the first thread's, the last one's, and what is left");
}

#[test]
fn who_waits_for_the_recorder_lets_those_of_lower_priority_run() {
    let (status, images) = record("priorities");
    assert!(status.success(), "{status}");
    assert_eq!(only(images).sizes()[&6005], 2000);
}

#[test]
fn no_call_is_a_place_at_which_a_thread_may_be_cancelled() {
    let (status, images) = record("cancel");
    assert!(status.success(), "{status}");
    let sizes = only(images).sizes();
    assert_eq!((sizes[&4001], sizes[&4002]), (100_000, 100_000));
}

#[test]
fn an_object_that_cannot_be_followed_ends_the_recording() {
    let (status, images) = record_telling("crowded", Stdio::null());
    assert!(status.success(), "{status}");
    let Image { header, steps, .. } = only(images);
    assert!(header.lost_events > 0 && header.unknown_frees == 0, "{header:?}");
    // What came after would seem to live for ever, too.
    assert_eq!(
        steps.last().map(|last| last.record.event),
        Some(Event::Malloc { size_bytes: 1 << 20 })
    );
}

#[test]
fn a_mask_that_denies_the_owner_writing_does_not_end_the_recording() {
    let (status, images) = record("mask");
    assert!(status.success(), "{status}");
    assert_eq!(images.len(), 2, "{:?}", images.keys());
    assert!(images.values().any(|image| image.sizes().get(&7501) == Some(&50_000)));
}

#[test]
fn descriptors_that_the_program_closes_do_not_matter() {
    let (status, images) = record("close");
    assert!(status.success(), "{status}");
    assert_eq!(only(images).sizes()[&6002], 200_000);
}

#[test]
fn a_signal_in_the_midst_of_a_call_does_not_end_the_recording() {
    let (status, images) = record("interrupted");
    assert!(status.success(), "{status}");
    let image = only(images);
    assert_eq!((image.header.lost_events, image.sizes()[&6003]), (0, 200_000));
}

#[test]
fn files_whose_space_cannot_be_allocated_are_recorded_into() {
    let (status, images) = record("plain-files");
    assert!(status.success(), "{status}");
    let image = only(images);
    assert_eq!((image.header.lost_events, image.sizes()[&6004]), (0, 200_000));
}

#[test]
fn what_ends_a_recording_is_told() {
    let path = folder().join(format!("reasons-{}", std::process::id()));
    for (case, reason) in [
        ("full-disk", "the disk is full"),
        ("other-root", "the program cannot open its file"),
        ("limited", "files may not be so large (ulimit -f)"),
        ("crowded", "the program has no address space left (ulimit -v)"),
    ] {
        let messages = std::fs::File::create(&path).unwrap();
        let (status, images) = record_telling(case, messages.into());
        assert!(status.success(), "{case}: {status}");
        assert_eq!(only(images).header.lost_events, 1, "{case}");
        let told = std::fs::read_to_string(&path).unwrap();
        assert_eq!(told.lines().count(), 1, "{case}: {told}");
        assert!(told.contains(&format!(": recording stops here: {reason}")), "{case}: {told}");
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn no_message_goes_into_a_file_of_the_program() {
    let (status, images) = record_telling("other-output", Stdio::null());
    assert!(status.success(), "{status}");
    assert_eq!(only(images).header.lost_events, 1);
}

#[test]
fn a_program_whose_files_may_not_grow_goes_on_unrecorded() {
    // Nor may the file of messages, if it is longer already.
    let path = folder().join(format!("messages-{}", std::process::id()));
    for (written, told) in [(0, true), (100_000, false)] {
        std::fs::write(&path, vec![b'x'; written]).unwrap();
        let messages = OpenOptions::new().append(true).open(&path).unwrap();
        let (status, images) = record_telling("limited", messages.into());
        assert!(status.success(), "{status}");
        let image = only(images);
        assert!(image.header.lost_events > 0);
        assert!(image.sizes()[&9001] < 500_000);
        let length = std::fs::metadata(&path).unwrap().len();
        assert_eq!(length > written as u64, told);
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn what_was_recorded_survives_a_kill() {
    let (status, images) = record("killed");
    assert!(!status.success());
    let image = only(images);
    assert_eq!((image.sizes()[&8001], image.open_chunks), (50_000, 1));
    assert!(image.chunks < 10, "{} chunks, though each is larger than the last", image.chunks);
    let (status, images) = record("aborts");
    assert!(!status.success());
    assert_eq!(only(images).sizes()[&8002], 500);
}

/// Rows that were begun and not completed are none: they would be of another size.
#[test]
fn a_sudden_end_leaves_no_row_in_part() {
    let (status, images) = record("sudden");
    assert!(status.success(), "{status}");
    assert_eq!(images.len(), 61);
    let mut churned = 0;
    for image in images.values() {
        for step in image.steps.iter().filter(|step| step.thread.0 > image.header.first_thread) {
            if let Some(size) = step.record.event.asked_bytes() {
                assert_eq!(size, 12_345, "{step:?}");
                churned += 1;
            }
        }
    }
    assert!(churned > 1000, "{churned}");
}

#[test]
fn a_name_that_is_too_long_is_told_and_the_program_runs() {
    for (bytes, reason) in [(4090, "is too long"), (4072, "is too long"), (4071, "open its file")] {
        let output = Command::new(program())
            .arg("family")
            .env("LD_PRELOAD", recorder())
            .env("HECTARE_TRACE", format!("/{}", "x".repeat(bytes - 1)))
            .output()
            .unwrap();
        assert!(output.status.success(), "{bytes} bytes: {}", output.status);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(told.contains(reason), "{bytes} bytes: {told}");
    }
}

#[test]
fn after_the_end_of_a_recording_no_process_begins_a_file() {
    let base = folder().join(format!("ended-{}", std::process::id()));
    let run = Command::new(program())
        .arg("family")
        .env("LD_PRELOAD", recorder())
        .env("HECTARE_TRACE", &base)
        .output()
        .unwrap();
    assert!(run.status.success() && run.stderr.is_empty(), "{run:?}");
    let name = base.file_name().unwrap().to_string_lossy().into_owned();
    let left = std::fs::read_dir(folder()).unwrap().flatten();
    let left: Vec<_> =
        left.filter(|file| file.file_name().to_string_lossy().starts_with(&name)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn without_a_name_nothing_is_recorded_and_the_program_runs() {
    let status = Command::new(program())
        .arg("hand-over")
        .env("LD_PRELOAD", recorder())
        .env_remove("HECTARE_TRACE")
        .status()
        .unwrap();
    assert!(status.success());
}
