//! Traces that are empty, cut, named alike, or too much for the machine.

use super::*;

/// A sealed trace of `objects` allocations.
fn write_trace(path: &str, objects: u64) {
    let file = std::fs::File::create(path).unwrap();
    let mut writer = Writer::new(file, FileHeader::new()).unwrap();
    for nth in 0..objects {
        writer.event(ThreadId(1), nth, &Event::Malloc { size_bytes: 8 + nth % 99 }, false).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn nothing_is_neither_salvaged_nor_replayed() {
    let folder = Folder::new("nothing");
    let (whole, cut, target) = (folder.at("w.hxt"), folder.at("c.hxt"), folder.at("t.hxt"));
    write_trace(&whole, 100);
    std::fs::write(&cut, &std::fs::read(&whole).unwrap()[..4096]).unwrap();
    let output = hectare(&["info", &cut, "--salvage", &target]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("nothing is salvaged"), "{}", stderr(&output));
    assert!(!Path::new(&target).exists());
    let told = String::from_utf8_lossy(&hectare(&["info", &cut]).stdout).into_owned();
    assert!(told.contains("(+0.0 %)") && !told.contains("bytes each"), "{told}");
    let empty = folder.at("e.hxt");
    write_trace(&empty, 0);
    let output = hectare(&["replay", &empty, "--allocators", "system", "--rounds", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("nothing to replay"), "{}", stderr(&output));
    for verb in [
        &["buddy", "runs", "-a", "bitset", "--rounds", "1", "--trace"][..],
        &["tlsf", "space", "--ops", "1", "--seeds", "1", "--trace"],
    ] {
        let output = hectare(&[verb, &[&empty]].concat());
        assert_eq!(output.status.code(), Some(1), "{verb:?}");
        assert!(stderr(&output).contains("there is no allocation in it"), "{}", stderr(&output));
    }
    let output = hectare(&["info", &whole, "--salvage", &whole]);
    assert_eq!(output.status.code(), Some(2), "a trace is not its own copy");
    assert!(hectare(&["info", &whole]).status.success());
}

#[test]
fn a_recording_that_stopped_early_is_called_incomplete() {
    let folder = Folder::new("stopped");
    let trace = folder.at("t.hxt");
    let header = FileHeader { lost_events: 1, ..FileHeader::new() };
    let mut writer = Writer::new(std::fs::File::create(&trace).unwrap(), header).unwrap();
    writer.event(ThreadId(1), 0, &Event::Malloc { size_bytes: 8 }, false).unwrap();
    writer.finish().unwrap();
    let told = String::from_utf8_lossy(&hectare(&["info", &trace]).stdout).into_owned();
    assert!(told.contains("cut short") && !told.contains("events lost"), "{told}");
}

#[test]
fn a_trace_of_one_chunk_that_was_cut_gives_its_beginning() {
    let folder = Folder::new("cut");
    let (whole, cut, target) = (folder.at("w.hxt"), folder.at("c.hxt"), folder.at("t.hxt"));
    write_trace(&whole, 30_000);
    let bytes = std::fs::read(&whole).unwrap();
    std::fs::write(&cut, &bytes[..4096 + (bytes.len() - 4096) * 2 / 3]).unwrap();
    let of_whole = hectare(&["info", &whole]);
    assert!(String::from_utf8_lossy(&of_whole.stdout).contains("bytes each"));
    let of_cut = hectare(&["info", &cut]);
    assert_eq!(of_cut.status.code(), Some(1), "damage is an error");
    assert!(!String::from_utf8_lossy(&of_cut.stdout).contains("bytes each"));
    for verb in [
        &["buddy", "runs", "--demo", "bitset", "--rounds", "1", "--trace"][..],
        &["tlsf", "space", "--ops", "1", "--seeds", "1", "--trace"],
    ] {
        let output = hectare(&[verb, &[&cut]].concat());
        assert_eq!(output.status.code(), Some(1), "{verb:?}");
        assert!(stderr(&output).contains("is damaged from byte"), "{}", stderr(&output));
    }
    let output = hectare(&["info", &cut, "--salvage", &target]);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let words: Vec<&str> = told.lines().last().unwrap().split(' ').collect();
    assert_eq!(words[..2], ["wrote", &format!("{target}:")]);
    let events: u64 = words[2].parse().unwrap();
    assert!((10_000..30_000).contains(&events), "{told}");
    assert!(hectare(&["info", &target]).status.success());
    let output = hectare(&["info", &cut, "--salvage", &target, "--json", "-"]);
    serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON alone");
    assert!(stderr(&output).contains("replaced "), "{}", stderr(&output));
    // Two files in one place, and one that cannot be written.
    std::fs::remove_file(&target).unwrap();
    let same = target.replace("/honesty", "/./honesty");
    let output = hectare(&["info", &cut, "--salvage", &target, "--json", &same]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot both be written to"), "{}", stderr(&output));
    let output = hectare(&["info", &cut, "--salvage", &target, "--json", "/dev/full"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(hectare(&["info", &target]).status.success(), "written all the same");
}

/// The address space of a replay's process is limited, so that some thread cannot be started: what
/// waits for its objects must not wait for ever. Chance decides whether a limit meets the start of
/// a thread or, more seldom, its first steps, in which the standard library aborts the process: so there
/// are three limits.
#[test]
fn a_replay_whose_threads_cannot_be_started_is_an_error_and_no_hang() {
    let folder = Folder::new("threads");
    let trace = folder.at("t.hxt");
    const THREADS: u32 = 1000;
    let mut writer =
        Writer::new(std::fs::File::create(&trace).unwrap(), FileHeader::new()).unwrap();
    for nth in 1..THREADS {
        writer.event(ThreadId(nth), 1, &Event::Malloc { size_bytes: 8 }, false).unwrap();
        writer.event(ThreadId(THREADS), 1, &Event::Malloc { size_bytes: 8 }, false).unwrap();
        // Every thread waits for the last.
        let object = Some(ObjectId::new(ThreadId(THREADS), u64::from(nth) - 1));
        writer.event(ThreadId(nth), 2, &Event::Free { object }, false).unwrap();
    }
    writer.finish().unwrap();
    let is_told_of_a_thread = |limit_kib: u32| {
        let command = format!(
            "ulimit -v {limit_kib}; exec {HECTARE} replay {trace} -a system --rounds 1 --warm-memory never --timeout 60"
        );
        let since = Instant::now();
        let output = Command::new("sh").args(["-c", &command]).output().unwrap();
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(since.elapsed() < Duration::from_secs(50));
        let is_told = told.contains("cannot start thread");
        assert!(is_told || told.contains("killed by SIGABRT"), "{told}");
        is_told
    };
    assert!([150_000, 150_700, 151_400].into_iter().any(is_told_of_a_thread));
}

#[test]
fn traces_of_one_name_are_told_apart() {
    let folder = Folder::new("same-name");
    std::fs::create_dir_all(folder.at("other")).unwrap();
    let (one, other) = (folder.at("t.hxt"), folder.at("other/t.hxt"));
    write_trace(&one, 1000);
    write_trace(&other, 2000);
    let replay = |more: &[&str]| {
        let replay = ["replay", "-a", "system", "--rounds", "1", "--json", "-"];
        hectare(&[&replay[..], &NOT_WARMED, more].concat())
    };
    let record: serde_json::Value =
        serde_json::from_slice(&replay(&[&one, &other]).stdout).unwrap();
    for path in [&one, &other] {
        let rows = record["rows"].as_array().unwrap();
        assert_eq!(rows.iter().filter(|row| row["workload"] == path.as_str()).count(), 3);
    }
    let both = format!("{one},{other}");
    for verb in [
        &["buddy", "runs", "-a", "bitset", "--rounds", "1"][..],
        &["tlsf", "space", "--ops", "1", "--seeds", "1", "--trace-rounds", "1"],
    ] {
        let output = hectare(&[verb, &["--json", "-", "--trace", &both]].concat());
        let record: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let rows = record["rows"].as_array().unwrap();
        for path in [&one, &other] {
            let is_named =
                |row: &&serde_json::Value| row["workload"].as_str().unwrap().ends_with(path);
            assert!(rows.iter().filter(is_named).count() > 1, "{verb:?}: {record}");
        }
    }
    for again in [one.clone(), folder.at("other/../t.hxt")] {
        let twice = replay(&[&one, &again]);
        assert_eq!(twice.status.code(), Some(2), "{again}");
        assert!(stderr(&twice).contains("given twice"), "{}", stderr(&twice));
    }
}

/// A pipe into which nobody writes: to open it is to wait for ever.
fn pipe(folder: &Folder, name: &str) -> String {
    let path = folder.at(name);
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

/// What the command does with an input that nobody writes, in the words of its error output.
fn within_seconds(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new("timeout").arg("20").arg(HECTARE).args(arguments).output().unwrap();
    (output.status.code(), stderr(&output))
}

#[test]
fn what_is_no_file_is_told_and_not_waited_for() {
    let folder = Folder::new("no-file");
    let pipe = pipe(&folder, "pipe");
    let what = [(&pipe[..], "a pipe"), (&folder.at(""), "a folder"), ("/dev/zero", "a device")]
        .map(|(path, what)| (path.to_owned(), what));
    for (path, what) in &what {
        for verb in [
            &["info"][..],
            &["replay", "-a", "system"],
            &["compare", "-a", "system", "--trace"],
            &["buddy", "runs", "--demo", "bitset", "--rounds", "1", "--trace"],
            &["tlsf", "space", "--ops", "1", "--seeds", "1", "--trace"],
        ] {
            let (code, told) = within_seconds(&[verb, &[path]].concat());
            assert_eq!(code, Some(1), "{verb:?} {path}: {told}");
            assert!(told.contains(path) && told.contains(what), "{verb:?}: {told}");
            assert!(told.contains("regular file"), "{verb:?}: {told}");
        }
        let library = format!("x={path}");
        for (verb, expected) in [
            (&["run", "-a", &library, "--", "true"][..], 2),
            (&["tlsf", "space", "--ops", "1", "--seeds", "1", "--library", path], 1),
        ] {
            let (code, told) = within_seconds(verb);
            assert_eq!(code, Some(expected), "{told}");
            assert!(told.contains("is no regular file"), "{told}");
        }
    }
    // Who reads a pipe says so before it waits.
    let waiting = ["-k", "1", "1", HECTARE, "store", "--file", &pipe];
    let output = Command::new("timeout").args(waiting).output().unwrap();
    assert!(stderr(&output).contains("pipe, a pipe, to its end"), "{}", stderr(&output));
    for verb in [&["report"][..], &["swap"], &["bench", "all", "--from"]] {
        let (code, told) = within_seconds(&[verb, &["/dev/zero"]].concat());
        assert_eq!(code, Some(1), "{told}");
        assert!(told.contains("/dev/zero: this is neither a file nor a pipe"), "{told}");
    }
}

#[test]
fn a_record_comes_through_a_pipe_and_a_trace_does_not() {
    let folder = Folder::new("through");
    let (trace, page) = (folder.at("t.hxt"), folder.at("page.html"));
    write_trace(&trace, 100);
    let shell = |script: String| Command::new("sh").args(["-c", &script]).output().unwrap();
    let output = shell(format!("cat {trace} | {HECTARE} info /dev/stdin"));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/dev/stdin: this is a pipe"), "{}", stderr(&output));
    assert!(shell(format!("{HECTARE} info /dev/stdin < {trace}")).status.success());
    let script = format!("{HECTARE} info {trace} --json - | {HECTARE} report -o {page} /dev/stdin");
    let output = shell(script);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("reading /dev/stdin, a pipe"), "{}", stderr(&output));
    assert!(Path::new(&page).exists());
}

#[test]
fn a_name_of_a_trace_breaks_neither_a_table_nor_the_terminal() {
    let folder = Folder::new("trace-names");
    let (trace, markdown) = (folder.at("t|\u{1b}[31m\n<b>.hxt"), folder.at("t.md"));
    write_trace(&trace, 100);
    let replay = ["replay", &trace, "-a", "system", "-r", "1", "--markdown", &markdown];
    let output = hectare(&[&replay[..], &NOT_WARMED].concat());
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.contains("\nt|\\u{1b}[31m\\n<b> — Ideal"), "{told}");
    let text = std::fs::read_to_string(&markdown).unwrap();
    assert!(
        text.starts_with("<!-- made by hectare -->\n### t\\|\\\\u{1b}[31m\\\\n\\<b> — Ideal"),
        "{text}"
    );
    let told = String::from_utf8_lossy(&hectare(&["info", &trace]).stdout).into_owned();
    let first = told.lines().next().unwrap();
    assert!(first.ends_with("t|\\u{1b}[31m\\n<b>.hxt"), "{told}");
    let missing = hectare(&["info", "no\u{1b}[31m.hxt"]);
    assert!(stderr(&missing).contains("no\\u{1b}[31m.hxt"), "{}", stderr(&missing));
}

#[test]
fn threads_that_have_ended_hold_no_memory() {
    let folder = Folder::new("ended");
    let trace = folder.at("t.hxt");
    let file = std::fs::File::create(&trace).unwrap();
    let mut writer = Writer::new(file, FileHeader::new()).unwrap();
    for thread in 1..=1000 {
        // Ten of them are as many operations as a window has: no more overlap.
        for nth in 0..200 {
            let now = u64::from(thread) * 200 + nth;
            let event = Event::Malloc { size_bytes: 100 };
            let object = writer.event(ThreadId(thread), now, &event, false).unwrap();
            writer.event(ThreadId(thread), now, &Event::Free { object }, false).unwrap();
        }
    }
    writer.finish().unwrap();
    let replay = ["replay", &trace, "-a", "system", "--rounds", "1", "--json", "-"];
    let output = hectare(&[&replay[..], &NOT_WARMED].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let record: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let peak_bytes = record["rows"][0]["peak_bytes"].as_f64().unwrap();
    // What is left of their stacks alone would be 8 MiB.
    assert!(peak_bytes < 4e6, "{peak_bytes}");
}

#[test]
fn an_interruption_while_traces_are_read_says_that_nothing_was_measured() {
    let folder = Folder::new("early");
    let (trace, json) = (folder.at("t.hxt"), folder.at("r.json"));
    write_trace(&trace, 2_000_000);
    for verb in [&["compare", "--trace", &trace][..], &["replay", &trace]] {
        let child = attentive()
            .args(verb)
            .args(["-a", "system", "-r", "3", "--json", &json])
            .args(NOT_WARMED)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let open = PathBuf::from(format!("/proc/{}/fd", child.id()));
        let is_read = || {
            let files = std::fs::read_dir(&open).unwrap().flatten();
            let mut files = files.filter_map(|file| std::fs::read_link(file.path()).ok());
            files.any(|file| file == Path::new(&trace))
        };
        let since = Instant::now();
        while !is_read() {
            assert!(since.elapsed() < Duration::from_secs(20), "the trace is never read");
            std::thread::sleep(Duration::from_millis(1));
        }
        kill(&child, "-INT");
        let output = child.wait_with_output().unwrap();
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(130), "{verb:?}: {}, {told}", output.status);
        assert!(told.contains("interrupted before the first round was complete"), "{told}");
        assert!(!Path::new(&json).exists());
    }
}
