//! What the command says when something fails: exit codes, messages, and nothing lost or left.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use hectare_trace::{Event, FileHeader, ObjectId, ThreadId, Writer};

const HECTARE: &str = env!("CARGO_BIN_EXE_hectare");

fn hectare(arguments: &[&str]) -> Output {
    Command::new(HECTARE).args(arguments).output().expect("the command starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A folder that goes with its test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("honesty-{name}"));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn at(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn script(&self, name: &str, text: &str) -> String {
        let path = self.at(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether the recorder stands beside the command; says so when a test is skipped.
fn recorder_is_here(test: &str) -> bool {
    let here = Path::new(HECTARE).with_file_name("libhectare_recorder.so").exists();
    if !here {
        eprintln!("skipped: {test} needs libhectare_recorder.so (cargo build)");
    }
    here
}

fn compile(source: &str, flags: &[&str], target: &str) -> bool {
    let mut compiler = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".to_owned()))
        .args(["-x", "c", "-", "-fno-builtin", "-o", target])
        .args(flags)
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a C compiler is needed");
    compiler.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    compiler.wait().unwrap().success()
}

const TWO_ROUNDS: [&str; 5] = ["compare", "--allocators", "system", "--rounds", "2"];

#[test]
fn a_program_that_fails_is_told_with_its_code_and_not_measured_unless_asked() {
    let compare = |more: &[&str]| hectare(&[&TWO_ROUNDS[..], more].concat());
    let failed = compare(&["--", "sh", "-c", "exit 7"]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(stderr(&failed).contains("sh under system: ended with exit code 7"));
    let killed = compare(&["--", "sh", "-c", "kill -SEGV $$"]);
    assert_eq!(killed.status.code(), Some(1));
    assert!(stderr(&killed).contains("was killed by SIGSEGV"));
    let asked = compare(&["--ignore-failure", "--", "sh", "-c", "exit 7"]);
    assert_eq!(asked.status.code(), Some(0), "{}", stderr(&asked));
}

/// An allocator that never takes anything back.
const BUMP: &str = "#include <stddef.h>\nstatic char m[1 << 24]; static size_t at;\n\
    void *malloc(size_t n) { void *p = m + at; at += (n + 31) & ~(size_t)15; return p; }\n\
    void free(void *p) { (void)p; }\n\
    void *calloc(size_t a, size_t b) { return malloc(a * b); }\n\
    void *realloc(void *p, size_t n) { char *q = malloc(n); size_t i;\n\
    for (i = 0; p && i < n; i++) q[i] = ((char *)p)[i]; return q; }\n";

#[test]
fn a_program_that_fails_under_one_allocator_is_told_with_its_name() {
    let folder = Folder::new("one");
    let library = folder.at("libbump.so");
    assert!(compile(BUMP, &["-shared", "-fPIC"], &library));
    let subjects = format!("system,bump={library}");
    let output = hectare(&[
        "compare",
        "--allocators",
        &subjects,
        "--rounds",
        "2",
        "--",
        "sh",
        "-c",
        "test -z \"$LD_PRELOAD\" || exit 9",
    ]);
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(stderr(&output).contains("sh failed under bump: ended with exit code 9"));
    assert!(String::from_utf8_lossy(&output.stdout).contains("broke: ended with exit code 9"));
}

#[test]
fn the_allocator_that_a_program_links_is_named_where_it_is_measured() {
    let folder = Folder::new("linked");
    let library = folder.at("libbumplinked.so");
    assert!(compile(BUMP, &["-shared", "-fPIC"], &library));
    let program = folder.at("program");
    let main = "#include <stdlib.h>\nint main(void) { free(malloc(100)); return 0; }";
    let path = format!("-Wl,-rpath,{}", folder.at(""));
    assert!(compile(main, &["-xnone", &library, &path], &program));
    let json = folder.at("a.json");
    let output = hectare(&[&TWO_ROUNDS[..], &["--json", &json, "--", &program]].concat());
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("system = libbumplinked.so"), "{told}{}", stderr(&output));
    assert!(told.contains("program links libbumplinked.so"), "{told}");
    let record = std::fs::read_to_string(&json).unwrap();
    assert!(record.contains("\"allocator\": \"libbumplinked.so\""), "{record}");
    let told = hectare(&[&TWO_ROUNDS[..], &["--", "true"]].concat());
    assert!(!String::from_utf8_lossy(&told.stdout).contains("links"));
}

#[test]
fn wrong_arguments_are_told_with_what_is_wrong_and_nothing_is_said_twice() {
    for (arguments, code, part) in [
        (&["compare", "--assert", "rss(a) < b", "--", "true"][..], 2, "neither a number nor"),
        (&["bench", "larson", "--threads", "0"], 2, "--threads"),
        (&["bench", "larson", "--ops", "0"], 2, "--ops"),
        (&["compare", "--pin", "999", "--", "true"], 1, "there is no processor 999"),
        (&["replay", "no-such.hxt"], 1, "no-such.hxt: cannot read the trace: No such file"),
    ] {
        let output = hectare(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).matches("No such file").count() < 2, "{}", stderr(&output));
    }
}

#[test]
fn a_record_on_the_standard_output_stands_there_alone() {
    let output = hectare(&[&TWO_ROUNDS[..], &["--json", "-", "--", "true"]].concat());
    let record: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON alone");
    assert_eq!(record["schema"], 1);
    assert!(stderr(&output).contains("system again"), "the table is told beside it");
}

#[test]
fn record_ends_as_its_program_did() {
    if !recorder_is_here("record_ends_as_its_program_did") {
        return;
    }
    let folder = Folder::new("record");
    let trace = folder.at("t.hxt");
    let record = |script: &str| hectare(&["record", "-o", &trace, "--", "sh", "-c", script]);
    assert_eq!(record("ls / > /dev/null").status.code(), Some(0));
    let failed = record("ls / > /dev/null; exit 7");
    assert_eq!(failed.status.code(), Some(7));
    assert!(stderr(&failed).contains("ended with exit code 7"));
    assert_eq!(record("ls / > /dev/null; kill -KILL $$").status.code(), Some(128 + 9));
    assert!(hectare(&["info", &trace]).status.success(), "what was recorded is kept");
    assert_eq!(
        hectare(&["run", "-a", "system", "--", "sh", "-c", "kill -ABRT $$"]).status.code(),
        Some(134)
    );
}

/// Waits until the program has written its word.
fn wait_for(path: &str) {
    let since = Instant::now();
    while !Path::new(path).exists() {
        assert!(since.elapsed() < Duration::from_secs(20), "{path} never came");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn kill(child: &Child, signal: &str) {
    assert!(
        Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success()
    );
}

#[test]
fn a_signal_ends_the_program_and_keeps_what_was_recorded() {
    if !recorder_is_here("a_signal_ends_the_program_and_keeps_what_was_recorded") {
        return;
    }
    let folder = Folder::new("signal");
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let (trace, word) = (folder.at("t.hxt"), folder.at("word"));
        let _ = std::fs::remove_file(&word);
        let script = format!("ls / > /dev/null; touch {word}; exec sleep 30");
        let mut child = Command::new(HECTARE)
            .args(["record", "-o", &trace, "--", "sh", "-c", &script])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for(&word);
        let since = Instant::now();
        kill(&child, signal);
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(code), "{signal}: {:?}", status.signal());
        assert!(since.elapsed() < Duration::from_secs(29));
        assert!(hectare(&["info", &trace]).status.success());
        let left: Vec<_> = std::fs::read_dir(&folder.0).unwrap().flatten().collect();
        assert_eq!(left.len(), 2, "only the trace and the word: {left:?}");
    }
}

#[test]
fn what_a_wrapper_executes_is_recorded_and_told() {
    if !recorder_is_here("what_a_wrapper_executes_is_recorded_and_told") {
        return;
    }
    let folder = Folder::new("wrapper");
    let wrapper =
        "#!/bin/sh\ni=0; while [ $i -lt 3000 ]; do i=$((i+1)); eval \"v$i=$i\"; done\nexec ls /\n";
    let wrapper = folder.script("wrapper", wrapper);
    let trace = folder.at("t.hxt");
    let output = hectare(&["record", "-o", &trace, "--", &wrapper]);
    assert!(stderr(&output).contains("events of `ls /`"), "{}", stderr(&output));
    assert!(stderr(&output).contains("not kept"), "{}", stderr(&output));
    let rounds = ["--rounds", "1", "--allocators", "system"];
    let chosen = hectare(&[&["choose"][..], &rounds, &["--", &wrapper]].concat());
    let told = String::from_utf8_lossy(&chosen.stdout).into_owned();
    assert!(told.contains("`ls /`: ") && told.contains("the most of the 2 programs"), "{told}");
    assert!(told.contains("before it executed another program"), "{told}");
    let other = hectare(&[&["choose", "--of", "wrapper"][..], &rounds, &["--", &wrapper]].concat());
    assert!(String::from_utf8_lossy(&other.stdout).contains("wrapper`: "), "{}", stderr(&other));
}

#[test]
fn programs_that_cannot_be_preloaded_are_told_before_anything_is_run() {
    let folder = Folder::new("static");
    let program = folder.at("static");
    if !compile("int main(void) { return 0; }\n", &["-static"], &program) {
        eprintln!("skipped: no static C library is installed");
        return;
    }
    let trace = folder.at("t.hxt");
    for arguments in [
        &["record", "-o", &trace, "--", &program][..],
        &["choose", "--", &program],
        &["compare", "--", &program],
    ] {
        let output = hectare(arguments);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains("statically linked"), "{}", stderr(&output));
    }
    assert!(!Path::new(&trace).exists());
}

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
    let empty = folder.at("e.hxt");
    write_trace(&empty, 0);
    let output = hectare(&["replay", &empty, "--allocators", "system", "--rounds", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("nothing to replay"), "{}", stderr(&output));
    let output = hectare(&["info", &whole, "--salvage", &whole]);
    assert_eq!(output.status.code(), Some(1), "a trace is not its own copy");
    assert!(hectare(&["info", &whole]).status.success());
}

#[test]
fn a_trace_of_one_chunk_that_was_cut_gives_its_beginning() {
    let folder = Folder::new("cut");
    let (whole, cut, target) = (folder.at("w.hxt"), folder.at("c.hxt"), folder.at("t.hxt"));
    write_trace(&whole, 30_000);
    let bytes = std::fs::read(&whole).unwrap();
    std::fs::write(&cut, &bytes[..4096 + (bytes.len() - 4096) * 2 / 3]).unwrap();
    assert_eq!(hectare(&["info", &cut]).status.code(), Some(1), "damage is an error");
    let output = hectare(&["info", &cut, "--salvage", &target]);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let words: Vec<&str> = told.lines().last().unwrap().split(' ').collect();
    let events: u64 = words[1].parse().unwrap();
    assert!((10_000..30_000).contains(&events), "{told}");
    assert!(hectare(&["info", &target]).status.success());
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let script = format!("{HECTARE} bench --list | head -1");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(stderr(&output), "");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "churn\n");
}

#[test]
fn places_are_looked_at_before_anything_is_measured() {
    let folder = Folder::new("places");
    let notes = folder.at("notes");
    std::fs::write(&notes, "mine").unwrap();
    let since = Instant::now();
    for (option, place) in
        [("--json", "/no/such/folder/f"), ("--report", &notes), ("--csv", &notes), ("--json", "/")]
    {
        let output = hectare(&["bench", "all", option, place]);
        assert_eq!(output.status.code(), Some(2), "{option} {place}");
        assert!(stderr(&output).contains(place), "{}", stderr(&output));
    }
    assert!(since.elapsed() < Duration::from_secs(5));
    assert_eq!(std::fs::read_to_string(&notes).unwrap(), "mine");
    // The files that the main job leaves unasked do not overwrite others' either.
    std::fs::write(folder.at("hectare-report.json"), "mine").unwrap();
    let output = Command::new(HECTARE).current_dir(&folder.0).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("is no record of hectare"), "{}", stderr(&output));
}

#[test]
fn what_a_killed_command_left_goes_with_the_next() {
    if !recorder_is_here("what_a_killed_command_left_goes_with_the_next") {
        return;
    }
    let folder = Folder::new("killed");
    let word = folder.at("word");
    let left = || {
        let entries = std::fs::read_dir(&folder.0).unwrap().flatten();
        entries.filter(|entry| entry.path() != Path::new(&word)).count()
    };
    let script = format!("touch {word}; exec sleep 3");
    let choose = |script: &str| {
        let mut command = Command::new(HECTARE);
        command
            .args(["choose", "--rounds", "1", "--allocators", "system", "--", "sh", "-c", script])
            .env("TMPDIR", &folder.0)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    };
    let mut child = choose(&script).spawn().unwrap();
    wait_for(&word);
    kill(&child, "-KILL");
    child.wait().unwrap();
    assert!(left() > 0);
    // What it had started still records into its file; it ends on its own.
    std::thread::sleep(Duration::from_secs(3));
    assert!(choose("ls / > /dev/null").status().unwrap().success());
    assert_eq!(left(), 0);
}

#[test]
fn the_list_of_benchmarks_shows_what_can_be_typed() {
    let list = String::from_utf8(hectare(&["bench", "--list"]).stdout).unwrap();
    let calls: Vec<&str> = list.lines().filter_map(|l| l.trim().strip_prefix("hectare ")).collect();
    assert!(calls.len() > 15, "{list}");
    for call in calls.into_iter().filter(|call| !call.contains("--help")) {
        let words: Vec<&str> = call.split(' ').chain(["--allocators", "nosuch"]).collect();
        let output = hectare(&words);
        assert!(stderr(&output).contains("`nosuch`"), "{call}: {}", stderr(&output));
    }
}

#[test]
fn nobodys_memory_is_read_unasked() {
    let output = hectare(&["zram"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("--all"), "{}", stderr(&output));
}

#[test]
fn a_result_that_cannot_be_printed_is_told_without_a_panic() {
    for arguments in [&["bench", "--list"][..], &["doctor"], &["compare", "--help"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = Command::new(HECTARE).args(arguments).stdout(full).output().unwrap();
        if arguments.contains(&"--help") {
            assert!(output.status.code().is_some(), "no panic: {:?}", output.status);
            continue;
        }
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("writing to the standard output: No space left"));
    }
    // What is said beside the result may be lost.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let arguments = [&TWO_ROUNDS[..], &["--", "true"]].concat();
    let output = Command::new(HECTARE).args(arguments).stderr(full).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn what_a_program_started_ends_with_it_when_it_is_ended_early() {
    let folder = Folder::new("group");
    let pid_file = folder.at("pid");
    let script = format!("sleep 60 & echo $! > {pid_file}.new; mv {pid_file}.new {pid_file}; wait");
    let gone = || {
        let pid = std::fs::read_to_string(&pid_file).unwrap();
        let process = PathBuf::from(format!("/proc/{}/stat", pid.trim()));
        let since = Instant::now();
        // Killed by now; somebody still has to wait for it.
        while std::fs::read_to_string(&process).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(since.elapsed() < Duration::from_secs(10), "process {pid} was left");
            std::thread::sleep(Duration::from_millis(10));
        }
        std::fs::remove_file(&pid_file).unwrap();
    };
    let output = hectare(&["run", "-a", "system", "--timeout", "1", "--", "sh", "-c", &script]);
    assert!(stderr(&output).contains("did not end within 1 s"), "{}", stderr(&output));
    gone();
    for (signal, code) in [("-INT", Some(130)), ("-KILL", None)] {
        let mut child = Command::new(HECTARE)
            .args(["run", "-a", "system", "--", "sh", "-c", &script])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for(&pid_file);
        kill(&child, signal);
        assert_eq!(child.wait().unwrap().code(), code);
        gone();
    }
}

#[test]
fn the_figures_of_a_program_are_its_own_however_short_it_is() {
    let folder = Folder::new("own-figures");
    let program = folder.at("program");
    let main = "#include <string.h>\nstatic char m[3 << 20];\n\
        int main(void) { memset(m, 1, sizeof m); return 0; }";
    assert!(compile(main, &["-O0"], &program));
    let figure = |program: &str, name: &str| {
        let output = hectare(&["run", "-a", "system", "--json", "-", "--", program]);
        let record: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        record["rows"][0][name].as_f64().unwrap_or_else(|| panic!("no {name}: {record}"))
    };
    let mib = f64::from(1 << 20);
    assert!((3.0..6.0).contains(&(figure(&program, "peak_bytes") / mib)));
    assert!((0.5..3.0).contains(&(figure("true", "peak_bytes") / mib)));
    // The launcher alone has some 250.
    let faults = figure("true", "minor_faults");
    assert!((20.0..200.0).contains(&faults), "{faults}");
}

#[test]
fn names_need_not_be_text() {
    use std::os::unix::ffi::OsStrExt;
    let word = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    let run = Command::new(HECTARE).args(["run", "-a", "system", "--", "true"]).arg(word).output();
    assert_eq!(run.unwrap().status.code(), Some(0));
    if !recorder_is_here("names_need_not_be_text") {
        return;
    }
    let folder = Folder::new("names");
    let name = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    let trace = folder.0.join(name).with_extension("hxt");
    let record = Command::new(HECTARE)
        .args(["record", "-o"])
        .arg(&trace)
        .args(["--", "ls", "--"])
        .arg(folder.0.join(name))
        .output()
        .unwrap();
    assert_eq!(record.status.code(), Some(2), "as ls of what is not there: {}", stderr(&record));
    let json = folder.0.join(name).with_extension("json");
    let info = Command::new(HECTARE).arg("info").arg(&trace).arg("--json").arg(&json).output();
    assert!(info.unwrap().status.success() && json.exists());
}

#[test]
fn a_daemon_that_still_runs_is_told() {
    if !recorder_is_here("a_daemon_that_still_runs_is_told") {
        return;
    }
    let folder = Folder::new("daemon");
    let (trace, word) = (folder.at("t.hxt"), folder.at("word"));
    // The daemon waits for its child: in place of its last command it would execute that, and be between
    // two images at the moment that is looked at.
    let script = format!(
        "(ls / > /dev/null; sleep 2 & touch {word}; wait) > /dev/null 2>&1 &\n\
        while ! test -e {word}; do sleep 0.01; done"
    );
    let output = hectare(&["record", "--all", "-o", &trace, "--", "sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("still runs: the trace ends here"), "{}", stderr(&output));
    let output = hectare(&["record", "-o", "/dev/null", "--", "ls"]);
    assert_eq!(output.status.code(), Some(2), "a trace needs a file");
}

#[test]
fn an_interrupted_recording_gives_no_advice() {
    if !recorder_is_here("an_interrupted_recording_gives_no_advice") {
        return;
    }
    let folder = Folder::new("interrupted");
    let word = folder.at("word");
    let script = format!("ls / > /dev/null; touch {word}; exec sleep 30");
    let child = Command::new(HECTARE)
        .args(["choose", "-a", "system", "--", "sh", "-c", &script])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for(&word);
    kill(&child, "-TERM");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(stderr(&output).contains("hectare: interrupted"), "{}", stderr(&output));
}

#[test]
fn options_that_would_do_nothing_are_refused() {
    for (arguments, part) in [
        (&["bench", "stress", "--rounds", "2"][..], "options of its own"),
        (&["bench", "stress", "--assert", "time(a) < 1"], "options of its own"),
        (&["bench", "pools", "--threads", "2"], "options of its own"),
        (&["bench", "larson", "--only", "larson"], "of `hectare bench all`"),
        (&["bench", "larson", "--callgrind", "--threads", "1,2"], "one number of --threads"),
        (&["bench", "larson", "--set", "lives=x", "-a", "system"], "whole number from 1"),
        (
            &["bench", "larson", "--set", "slots=18446744073709551615"],
            "--set slots=18446744073709551615: slots of larson can be a whole number from 1 to",
        ),
        (&["bench", "churn", "--ops", "900000000000"], "--ops 900000000000"),
        (&["bench", "trees", "--threads", "1,4000000000"], "--threads 4000000000: threads of"),
    ] {
        let output = hectare(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains(part), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn a_word_that_is_no_verb_is_told_with_the_verbs() {
    let output = hectare(&["reply", "x.hxt"]);
    assert_eq!(output.status.code(), Some(2));
    for part in ["there is no verb `reply`", "record, info, replay", "compare -- reply"] {
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
}

#[test]
fn what_is_preloaded_already_is_told_to_be_left_out() {
    let output = Command::new(HECTARE)
        .args(["compare", "-a", "system", "--rounds", "1", "--", "true"])
        .env("LD_PRELOAD", "libm.so.6")
        .output()
        .unwrap();
    let told = stderr(&output);
    assert_eq!(told.matches("LD_PRELOAD=libm.so.6 is not passed on").count(), 1, "{told}");
}

/// The address space of a replay's process is limited, so that some thread cannot be started: what
/// waits for its objects must not wait for ever. Chance decides whether the limit meets the start of
/// a thread or its first steps, in which the standard library aborts the process.
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
    let command = format!(
        "ulimit -v 150000; exec {HECTARE} replay {trace} -a system --rounds 1 --timeout 60"
    );
    let since = Instant::now();
    let output = Command::new("sh").args(["-c", &command]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let told = stderr(&output);
    assert!(told.contains("cannot start thread") || told.contains("killed by SIGABRT"), "{told}");
    assert!(since.elapsed() < Duration::from_secs(50));
}

#[test]
fn traces_of_one_name_are_told_apart() {
    let folder = Folder::new("same-name");
    std::fs::create_dir_all(folder.at("other")).unwrap();
    let (one, other) = (folder.at("t.hxt"), folder.at("other/t.hxt"));
    write_trace(&one, 1000);
    write_trace(&other, 2000);
    let replay = |more: &[&str]| {
        hectare(&[&["replay", "-a", "system", "--rounds", "1", "--json", "-"], more].concat())
    };
    let record: serde_json::Value =
        serde_json::from_slice(&replay(&[&one, &other]).stdout).unwrap();
    for path in [&one, &other] {
        let rows = record["rows"].as_array().unwrap();
        assert_eq!(rows.iter().filter(|row| row["workload"] == path.as_str()).count(), 3);
    }
    let twice = replay(&[&one, &one]);
    assert_eq!(twice.status.code(), Some(1));
    assert!(stderr(&twice).contains("given twice"), "{}", stderr(&twice));
}
