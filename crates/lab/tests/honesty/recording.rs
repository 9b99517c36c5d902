//! Programs that are recorded: signals, daemons, wrappers, and what a killed command left.

use super::*;

#[test]
fn record_ends_as_its_program_did() {
    build_recorder();
    let folder = Folder::new("record");
    let trace = folder.at("t.hxt");
    let record = |script: &str| hectare(&["record", "-o", &trace, "--", "sh", "-c", script]);
    assert_eq!(record("ls / > /dev/null").status.code(), Some(0));
    let failed = record("ls / > /dev/null; exit 7");
    assert_eq!(failed.status.code(), Some(7));
    assert!(stderr(&failed).contains("ended with exit code 7"));
    assert_eq!(record("ls / > /dev/null; kill -KILL $$").status.code(), Some(128 + 9));
    assert!(stderr(&failed).contains("replaced "), "{}", stderr(&failed));
    assert!(hectare(&["info", &trace]).status.success(), "what was recorded is kept");
    assert_eq!(
        hectare(&["run", "-a", "system", "--", "sh", "-c", "kill -ABRT $$"]).status.code(),
        Some(134)
    );
}

#[test]
fn a_signal_ends_the_program_and_keeps_what_was_recorded() {
    build_recorder();
    let folder = Folder::new("signal");
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let (trace, word) = (folder.at("t.hxt"), folder.at("word"));
        let _ = std::fs::remove_file(&word);
        let script = format!("ls / > /dev/null; touch {word}; exec sleep 30");
        let mut child = attentive()
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

/// Counts the signals that come until some time after the first, and ends with their number.
const COUNTING: &str = "#include <signal.h>\n#include <stdlib.h>\n#include <stdio.h>\n\
    #include <unistd.h>\n\
    static volatile int count;\n\
    static void on(int signal) { (void)signal; count++; }\n\
    int main(int n, char **words) { int i; signal(SIGINT, on); free(malloc(100));\n\
    fclose(fopen(words[n - 1], \"w\"));\n\
    for (i = 0; !count && i < 2000; i++) usleep(10000);\n\
    for (i = 0; i < 30; i++) usleep(10000);\n\
    return count; }\n";

#[test]
fn a_signal_reaches_the_program_once() {
    build_recorder();
    let folder = Folder::new("once");
    let (program, trace, word) = (folder.at("program"), folder.at("t.hxt"), folder.at("word"));
    assert!(compile(COUNTING, &[], &program));
    for by_terminal in [true, false] {
        let _ = std::fs::remove_file(&word);
        let mut command = attentive();
        command.args(["record", "-o", &trace, "--", &program, &word]);
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let mut terminal = on_a_terminal(&mut command);
        let mut child = command.spawn().unwrap();
        wait_for(&word);
        if by_terminal {
            terminal.write_all(b"\x03").unwrap();
        } else {
            kill(&child, "-INT");
        }
        assert_eq!(child.wait().unwrap().code(), Some(1), "by the terminal: {by_terminal}");
    }
}

#[test]
fn a_signal_that_is_ignored_interrupts_nothing() {
    build_recorder();
    let folder = Folder::new("nohup");
    let word = folder.at("word");
    let script = format!("ls / > /dev/null; touch {word}; sleep 1; ls / > /dev/null");
    let choose = "trap '' HUP; exec \"$@\"";
    let child = Command::new("sh")
        .args(["-c", choose, "sh", HECTARE, "choose", "-a", "system", "--rounds", "1"])
        .args(NOT_WARMED)
        .args(["--", "sh", "-c", &script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for(&word);
    kill(&child, "-HUP");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn a_run_ignores_what_is_ignored() {
    let folder = Folder::new("ignored");
    let word = folder.at("word");
    // The program ignores it, too.
    let script = format!("kill -TERM $$; touch {word}; sleep 1; exit 3");
    let child = Command::new("sh")
        .args(["-c", "trap '' INT TERM; exec \"$@\"", "sh", HECTARE])
        .args(["run", "-a", "system", "--", "sh", "-c", &script])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for(&word);
    kill(&child, "-INT");
    kill(&child, "-TERM");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
}

#[test]
fn two_recordings_into_one_file_do_not_disturb_each_other() {
    build_recorder();
    let folder = Folder::new("two");
    let (trace, word) = (folder.at("t.hxt"), folder.at("word"));
    let script = format!("ls / > /dev/null; touch {word}; exec sleep 30");
    let record = |trace: &str| {
        let mut command = Command::new(HECTARE);
        command.args(["record", "-o", trace, "--"]).stdin(Stdio::null()).stderr(Stdio::piped());
        command
    };
    let first = record(&trace).args(["sh", "-c", &script]).spawn().unwrap();
    wait_for(&word);
    let second = record(&trace).arg("ls").output().unwrap();
    assert_eq!(second.status.code(), Some(1), "{}", stderr(&second));
    assert!(stderr(&second).contains("another command records into"), "{}", stderr(&second));
    kill(&first, "-TERM");
    let first = first.wait_with_output().unwrap();
    assert_eq!(first.status.code(), Some(143));
    assert!(stderr(&first).contains("events of `ls /`"), "{}", stderr(&first));
    // Names that differ after their last dot are of different files.
    std::fs::remove_file(&word).unwrap();
    let first = record(&folder.at("t.1")).args(["sh", "-c", &script]).spawn().unwrap();
    wait_for(&word);
    let second = record(&folder.at("t.2")).arg("ls").output().unwrap();
    assert_eq!(second.status.code(), Some(0), "{}", stderr(&second));
    kill(&first, "-TERM");
    assert!(stderr(&first.wait_with_output().unwrap()).contains("events of `ls /`"));
}

#[test]
fn a_recording_interrupted_before_its_program_leaves_nothing() {
    build_recorder();
    let folder = Folder::new("before");
    let left = || std::fs::read_dir(&folder.0).unwrap().count();
    let child = attentive()
        .args(["record", "-o", &folder.at("t.hxt"), "--", "ls"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let since = Instant::now();
    // The lock and the folder in which the recorder's cost is measured.
    while left() < 2 {
        assert!(since.elapsed() < Duration::from_secs(20), "nothing came");
    }
    kill(&child, "-INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert_eq!(left(), 0);
}

/// What a report says, its lines made one: where they are cut depends on the folder's name.
fn unwrapped(told: &[u8]) -> String {
    String::from_utf8_lossy(told).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn what_a_wrapper_executes_is_recorded_and_told() {
    build_recorder();
    let folder = Folder::new("wrapper");
    let wrapper =
        "#!/bin/sh\ni=0; while [ $i -lt 3000 ]; do i=$((i+1)); eval \"v$i=$i\"; done\nexec ls /\n";
    let wrapper = folder.script("wrapper", wrapper);
    let trace = folder.at("t.hxt");
    let output = hectare(&["record", "-o", &trace, "--", &wrapper]);
    assert!(stderr(&output).contains("events of `ls /`"), "{}", stderr(&output));
    assert!(stderr(&output).contains("not kept"), "{}", stderr(&output));
    let rounds = [&["--rounds", "1", "--allocators", "system"][..], &NOT_WARMED].concat();
    let chosen = hectare(&[&["choose"][..], &rounds, &["--", &wrapper]].concat());
    let told = unwrapped(&chosen.stdout);
    assert!(told.contains("`ls /`: ") && told.contains("the most of the 2 programs"), "{told}");
    assert!(told.contains(" ls, replayed — "), "{told}");
    assert!(told.contains("before it executed another program"), "{told}");
    assert!(told.contains("no advice: it takes 3 complete rounds, and there are 1"), "{told}");
    assert!(!stderr(&chosen).contains("chosen.hxt"), "what goes with the command is not named");
    let other = hectare(&[&["choose", "--of", "wrapper"][..], &rounds, &["--", &wrapper]].concat());
    let told = unwrapped(&other.stdout);
    assert!(told.contains("wrapper`: ") && told.contains("chosen by --of from the 2"), "{told}");
}

#[test]
fn what_a_killed_recording_left_does_not_go_without_a_word() {
    build_recorder();
    let folder = Folder::new("left-by-killed");
    let (trace, left) = (folder.at("t.hxt"), folder.at("t.hxt.raw.1.0"));
    std::fs::write(&left, "rows").unwrap();
    let output = hectare(&["record", "-o", &trace, "--", "ls", "/"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains(&format!("{left}, which a killed recording had left")));
    assert!(!Path::new(&left).exists());
}

#[test]
fn what_a_killed_command_left_goes_with_the_next() {
    build_recorder();
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
            .args(["choose", "--rounds", "1", "--allocators", "system"])
            .args(NOT_WARMED)
            .args(["--", "sh", "-c", script])
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

/// A script that goes on with an incomplete trace would not know.
#[test]
fn an_incomplete_recording_is_kept_and_is_no_success() {
    build_recorder();
    let folder = Folder::new("incomplete");
    let (trace, program) = (folder.at("t.hxt"), folder.at("many"));
    let source = "#include <stdlib.h>\nint main(void) { int i;\n\
        for (i = 0; i < 200000; i++) free(malloc(100)); return 0; }\n";
    assert!(compile(source, &[], &program));
    let record = |limit: &str| {
        let script = format!("ulimit -f {limit}; exec {HECTARE} record -o {trace} -- {program}");
        Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).output().unwrap()
    };
    assert_eq!(record("unlimited").status.code(), Some(0));
    let output = record("200");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("cut short"), "{}", stderr(&output));
    assert!(stderr(&output).contains("a trace is incomplete"), "{}", stderr(&output));
    let info = hectare(&["info", &trace]);
    assert!(info.status.success(), "what was recorded is kept");
    assert!(unwrapped(&info.stdout).contains("incomplete the recording is cut short"));
    for replay in [&["replay", &trace][..], &["compare", "--trace", &trace]] {
        let json = folder.at("r.json");
        let once = ["-a", "system", "-r", "1", "--json", &json];
        let output = hectare(&[replay, &once[..], &NOT_WARMED].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let note = "t: the recording is cut short, so what is replayed is only";
        assert!(unwrapped(&output.stdout).contains(note), "{replay:?}");
        assert!(std::fs::read_to_string(&json).unwrap().contains(note), "{replay:?}");
    }
    let choose = format!(
        "ulimit -f 200; exec {HECTARE} choose -r 3 -a system --warm-memory never -- {program}"
    );
    let output = Command::new("sh").args(["-c", &choose]).stdin(Stdio::null()).output().unwrap();
    let told = unwrapped(&output.stdout);
    assert!(told.contains("no advice: the recording is cut short"), "{told}{}", stderr(&output));
}

/// The recorder's memory does not count as the program's.
#[test]
fn a_program_that_writes_to_a_part_of_its_memory_gets_no_advice() {
    build_recorder();
    let folder = Folder::new("sparse");
    let program = folder.at("sparse");
    // 38 MiB of the 67 MiB that are live; the recorder's table takes 30 MiB.
    let source = "#include <stdlib.h>\n#include <string.h>\nint main(void) { int i;\n\
        for (i = 0; i < 60000; i++) memset(malloc(500), 1, 500);\n\
        for (i = 0; i < 200; i++) memset(malloc(200000), 1, 40000); return 0; }\n";
    assert!(compile(source, &[], &program));
    let choose = ["choose", "-r", "3", "-a", "system"];
    let output = hectare(&[&choose[..], &NOT_WARMED, &["--", &program]].concat());
    let told = unwrapped(&output.stdout);
    assert!(told.contains("no advice: the program writes to only a part"), "{told}");
    assert!(told.contains("66.8 MiB were live at once, and it held 38."), "{told}");
}

#[test]
fn what_cannot_be_sealed_is_kept_and_told_how_to_make_a_trace_of() {
    build_recorder();
    let folder = Folder::new("unsealed");
    let trace = folder.at("t.hxt");
    let script = format!("ls / > /dev/null; mkdir {trace} && exec ls /");
    let output = hectare(&["record", "-o", &trace, "--", "sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let told = stderr(&output);
    let advice = told.split('`').find(|words| words.starts_with("hectare info")).expect(&told);
    std::fs::remove_dir(&trace).unwrap();
    // Nor does the next recording take it away.
    let output = hectare(&["record", "-o", &trace, "--", "ls", "/"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains(&format!("`{}", &advice[..12])), "{}", stderr(&output));
    let words: Vec<&str> = advice.split(' ').skip(1).collect();
    assert_eq!(hectare(&words).status.code(), Some(0), "{advice}");
    assert!(hectare(&["info", &trace]).status.success());
}

#[test]
fn what_is_no_trace_is_not_replaced_by_one() {
    build_recorder();
    let folder = Folder::new("not-replaced");
    let trace = folder.at("t.hxt");
    // The shell's own trace would come there, or that of `ls`, which does the work.
    for mine in [folder.at("t.$$.0.hxt"), trace.clone()] {
        let script = format!("echo mine > {mine}; ls -l / > /dev/null; exec true");
        let output = hectare(&["record", "--all", "-o", &trace, "--", "sh", "-c", &script]);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        let told = stderr(&output);
        assert!(told.contains("exists and is no trace of hectare"), "{told}");
        let advice = told.split('`').find(|words| words.starts_with("hectare info")).expect(&told);
        let words: Vec<&str> = advice.split(' ').skip(1).collect();
        let mine = words.last().unwrap();
        assert_eq!(std::fs::read_to_string(mine).unwrap(), "mine\n");
        std::fs::remove_file(mine).unwrap();
        assert_eq!(hectare(&words).status.code(), Some(0), "{advice}");
        for entry in std::fs::read_dir(&folder.0).unwrap().flatten() {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
}

#[test]
fn names_need_not_be_text() {
    use std::os::unix::ffi::OsStrExt;
    let word = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    let run = Command::new(HECTARE).args(["run", "-a", "system", "--", "true"]).arg(word).output();
    assert_eq!(run.unwrap().status.code(), Some(0));
    build_recorder();
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
    build_recorder();
    let folder = Folder::new("daemon");
    let (trace, word) = (folder.at("t.hxt"), folder.at("word"));
    let script = format!(
        "(ls / > /dev/null; sleep 2 & touch {word}; wait) > /dev/null 2>&1 &\n\
        while ! test -e {word}; do sleep 0.01; done"
    );
    let output = hectare(&["record", "--all", "-o", &trace, "--", "sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("still runs: its trace ends here"), "{}", stderr(&output));
    let output = hectare(&["record", "-o", "/dev/null", "--", "ls"]);
    assert_eq!(output.status.code(), Some(2), "a trace needs a file");
    // One that is between two programs when it is looked at, or in one that is not recorded, runs as well.
    let script = format!(
        "sh -c 'ls / > /dev/null; echo $$ > {word}; exec env -i sleep 4' > /dev/null 2>&1 &\n\
        until grep -q sleep /proc/$!/comm; do sleep 0.02; done"
    );
    let recorded = hectare(&["record", "-o", &trace, "--", "sh", "-c", &script]);
    let pid = std::fs::read_to_string(&word).unwrap();
    let told = format!("process {}, `env -i sleep 4`, still runs: its trace ends here", pid.trim());
    assert!(stderr(&recorded).contains(&told), "{}", stderr(&recorded));
    let choose = ["choose", "-a", "system", "-r", "1", "--of", "env"];
    let output = hectare(&[&choose[..], &NOT_WARMED, &["--", "sh", "-c", &script]].concat());
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.contains("still ran when the command had ended"), "{told} {}", stderr(&output));
}

#[test]
fn a_daemon_that_has_recorded_nothing_is_told() {
    build_recorder();
    let folder = Folder::new("silent");
    let (trace, program) = (folder.at("t.hxt"), folder.at("silent"));
    // As `daemon` does: the parent ends at once, the child has not allocated by then.
    let source = "
        #include <stdlib.h>
        #include <unistd.h>
        int main(void) { free(malloc(1)); if (fork() == 0) { close(1); close(2); sleep(4); } return 0; }";
    assert!(compile(source, &[], &program));
    let output = hectare(&["record", "-o", &trace, "--", &program]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let told = format!("`{program}`, still runs, and nothing of it is recorded");
    assert!(stderr(&output).contains(&told), "{}", stderr(&output));
    let choose = ["choose", "-a", "system", "-r", "1"];
    let output = hectare(&[&choose[..], &NOT_WARMED, &["--", &program]].concat());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let in_one_line = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(in_one_line.contains("nothing of it is recorded"), "{said} {}", stderr(&output));
}

#[test]
fn what_a_daemon_starts_after_its_recording_leaves_no_files() {
    build_recorder();
    let folder = Folder::new("daemons-child");
    let (trace, end, word) = (folder.at("t.hxt"), folder.at("end"), folder.at("word"));
    let script = format!(
        "(while ! test -e {end}; do sleep 0.05; done; ls / > /dev/null; touch {word}) > /dev/null 2>&1 & ls /"
    );
    let output = hectare(&["record", "-o", &trace, "--", "sh", "-c", &script]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    std::fs::write(&end, "").unwrap();
    wait_for(&word);
    let left: Vec<_> =
        std::fs::read_dir(&folder.0).unwrap().flatten().map(|e| e.file_name()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

#[test]
fn an_interrupted_watch_of_swapping_keeps_what_it_saw() {
    let folder = Folder::new("watch");
    let events = folder.at("f.swap");
    let child = attentive()
        .args(["swap", "record", "--every-ms", "60000", "-o", &events])
        .args(["--pid", &std::process::id().to_string()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // By then it has looked once and waits for its second look.
    std::thread::sleep(Duration::from_secs(2));
    kill(&child, "-INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(std::fs::read_to_string(&events).unwrap().starts_with("hectare-swap 1\n"));
}

#[test]
fn an_interrupted_recording_gives_no_advice() {
    build_recorder();
    let folder = Folder::new("interrupted");
    let word = folder.at("word");
    let script = format!("ls / > /dev/null; touch {word}; exec sleep 30");
    let child = attentive()
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
fn what_cannot_be_recorded_is_told_and_its_launcher_not_advised_on() {
    build_recorder();
    let folder = Folder::new("unreached");
    let (program, trace) = (folder.at("own"), folder.at("t.hxt"));
    // It has a `malloc` of its own, as a Rust compiler has, and runs long enough to be seen.
    let source = "#include <stddef.h>\n#include <unistd.h>\nvoid *malloc(size_t n) { (void)n; return 0; }\n\
        int main(void) { usleep(500000); return 0; }\n";
    assert!(compile(source, &[], &program));
    let launcher =
        folder.script("launcher", &format!("#!/bin/sh\nls / > /dev/null\nexec {program}\n"));
    let explained = format!("what cannot be recorded: {program} has an allocator of its own");
    let output = hectare(&["record", "-o", &trace, "--", &launcher]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains(&explained), "{}", stderr(&output));
    let choose = |of: &[&str], program: &[&str]| {
        let rounds = ["--rounds", "1", "--allocators", "system"];
        hectare(&[&["choose"][..], of, &rounds, &NOT_WARMED, &["--"], program].concat())
    };
    // The process that became the program did nothing else.
    let output = choose(&[], &["sh", "-c", &format!("x=$(exit 3); exec {program}")]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("no advice: only a launcher of `sh` was recorded"));
    assert!(stderr(&output).contains(&explained), "{}", stderr(&output));
    let output = choose(&["--of", "launcher"], &[&launcher]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let told = unwrapped(&output.stdout);
    assert!(told.contains(&unwrapped(explained.as_bytes())), "{told}");
}

#[test]
fn what_was_started_without_the_recorder_is_told_and_its_launcher_not_advised_on() {
    build_recorder();
    let folder = Folder::new("without-recorder");
    let (program, trace) = (folder.at("program"), folder.at("t.hxt"));
    let source = "#include <stdlib.h>\n#include <unistd.h>\n\
        int main(void) { free(malloc(9)); usleep(500000); return 0; }\n";
    assert!(compile(source, &[], &program));
    let told = format!("ran {program} without the recorder: LD_PRELOAD was dropped on the way");
    let scripts =
        [format!("env -i {program}; exit 0"), format!("unset LD_PRELOAD; {program}; exit 0")];
    for script in scripts {
        let output = hectare(&["record", "-o", &trace, "--", "sh", "-c", &script]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(stderr(&output).contains(&told), "{script}: {}", stderr(&output));
    }
    let output =
        hectare(&["record", "-o", &trace, "--", "sh", "-c", &format!("{program}; exit 0")]);
    assert!(!stderr(&output).contains("without the recorder"), "{}", stderr(&output));
    let choose = ["choose", "--rounds", "1", "--allocators", "system", "--", "env", "-i", &program];
    let output = hectare(&choose);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let refused = "no advice: only a launcher of `env` was recorded";
    assert!(stderr(&output).contains(&told), "{}", stderr(&output));
    assert!(stderr(&output).contains(refused), "{}", stderr(&output));
}
