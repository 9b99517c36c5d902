//! Programs that are measured: how they fail, what they are linked with, what they leave.

use super::*;

#[test]
fn a_program_that_fails_is_told_with_its_code_and_not_measured_unless_asked() {
    let compare = |more: &[&str]| hectare(&[&TWO_ROUNDS[..], more].concat());
    let failed = compare(&["--", "sh", "-c", "exit 7"]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(stderr(&failed).contains("sh under system: ended with exit code 7"));
    assert!(stderr(&failed).contains("--ignore-failure"));
    let hung = compare(&["--timeout", "1", "--", "sleep", "5"]);
    assert_eq!(hung.status.code(), Some(1));
    assert!(!stderr(&hung).contains("--ignore-failure"), "it would hang again");
    let killed = compare(&["--", "sh", "-c", "kill -SEGV $$"]);
    assert_eq!(killed.status.code(), Some(1));
    assert!(stderr(&killed).contains("was killed by SIGSEGV"));
    let by_itself = compare(&["--", "sh", "-c", "exit 137"]);
    assert!(stderr(&by_itself).contains("ended with exit code 137"), "no signal ended it");
    let asked = compare(&["--ignore-failure", "--", "sh", "-c", "exit 7"]);
    assert_eq!(asked.status.code(), Some(0), "{}", stderr(&asked));
}

#[test]
fn a_program_that_is_run_once_reads_what_the_command_was_given() {
    let script = format!("echo given | {HECTARE} run -a system -- cat");
    let output = Command::new("sh").args(["-c", &script]).output().expect("sh");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "given\n", "{}", stderr(&output));
}

#[test]
fn every_run_reads_the_same_file_from_where_the_command_was_given_it() {
    build_recorder();
    let folder = Folder::new("input");
    let (input, read) = (folder.at("input"), folder.at("read"));
    std::fs::write(&input, "first\nsecond\n").unwrap();
    // The shell takes the first line. What the recording reads is what the check must find.
    for (verb, runs) in [("compare", 1 + 2 * 3), ("choose --check", 1 + 1 + 2 * 3)] {
        let _ = std::fs::remove_file(&read);
        let script = format!(
            "{{ head -c 6 > /dev/null; {HECTARE} {verb} -a system -r 2 --warm-memory never -- sh -c 'cat >> {read}'; }} < {input}"
        );
        let output = Command::new("sh").args(["-c", &script]).output().expect("sh");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(std::fs::read_to_string(&read).unwrap(), "second\n".repeat(runs), "{verb}");
    }
}

#[test]
fn a_pipe_that_no_run_could_read_is_told() {
    build_recorder();
    let told = |script: &str| {
        let output = Command::new("sh").args(["-c", script]).output().expect("sh");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        // A note is broken into lines.
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let compare = format!("{HECTARE} compare -a system -r 1 --warm-memory never -- cat");
    for (given, is_told) in
        [(format!("echo word | {compare}"), true), (format!(": | {compare}"), false)]
    {
        let text = told(&given);
        assert_eq!(text.contains("the standard input is a pipe"), is_told, "{given}: {text}");
    }
    let text = told(&format!(
        "echo word | {HECTARE} choose --check -a system -r 1 --warm-memory never -- cat"
    ));
    assert!(text.contains("the program had no standard input here"), "{text}");
}

#[test]
fn a_variable_that_is_no_text_costs_no_figure() {
    use std::os::unix::ffi::OsStrExt;
    let mut command = Command::new(HECTARE);
    command.args(TWO_ROUNDS).args(["--", "true"]);
    command.env("LATIN", std::ffi::OsStr::from_bytes(b"caf\xe9"));
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn a_starter_that_ignores_its_children_keeps_nothing_from_being_measured() {
    let mut command = Command::new(HECTARE);
    command.args(["run", "-a", "system", "--", "sh", "-c", "true; exit 7"]);
    let ignore = || {
        // SAFETY: sets no handler.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        Ok(())
    };
    // SAFETY: one system call.
    unsafe { command.pre_exec(ignore) };
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
}

#[test]
fn a_program_that_asks_the_terminal_is_not_stopped_for_ever() {
    let asking = "if read word < /dev/tty; then exit 3; fi; exit 0";
    for verb in [
        &["run", "-a", "system"][..],
        &["compare", "-a", "system", "--rounds", "1", "--warm-memory", "never"],
    ] {
        let mut command = Command::new(HECTARE);
        command.args(verb).args(["--timeout", "10", "--", "sh", "-c", asking]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let _terminal = on_a_terminal(&mut command);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{verb:?}: {}", stderr(&output));
    }
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
        "--warm-memory",
        "never",
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
fn no_allocator_has_the_name_of_a_control() {
    let folder = Folder::new("control");
    let library = folder.at("bump.so");
    assert!(compile(BUMP, &["-shared", "-fPIC"], &library));
    for name in ["system again", "system +10 %"] {
        let given = format!("{name}={library},system");
        let output = hectare(&["compare", "-a", &given, "--rounds", "1", "--", "true"]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(&format!("`{name}`")), "{}", stderr(&output));
    }
}

#[test]
fn a_workload_that_breaks_under_one_allocator_is_told_by_the_exit_code() {
    let folder = Folder::new("workload");
    let library = folder.at("libbump.so");
    assert!(compile(BUMP, &["-shared", "-fPIC"], &library));
    let subjects = format!("system,bump={library}");
    // More than the sixteen MiB that it has.
    let churn = ["bench", "churn", "--ops", "400000", "--rounds", "2", "--allocators", &subjects];
    let output = hectare(&[&churn[..], &NOT_WARMED].concat());
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert!(stderr(&output).contains("failed under bump: killed by"), "{}", stderr(&output));
}

#[test]
fn who_broke_in_the_replay_keeps_nobody_from_being_checked() {
    build_recorder();
    let folder = Folder::new("checked");
    let (library, program) = (folder.at("libbump.so"), folder.at("program"));
    assert!(compile(BUMP, &["-shared", "-fPIC"], &library));
    let main = "#include <stdlib.h>\nint main(void) { int i; char *p;\n\
        for (i = 0; i < 20000; i++) { p = malloc(2000); *p = 1; free(p); } return 0; }";
    assert!(compile(main, &[], &program));
    let subjects = format!("system,bump={library}");
    let choose = ["choose", "--check", "--rounds", "1", "-a", &subjects];
    let output = hectare(&[&choose[..], &NOT_WARMED, &["--", &program]].concat());
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("no advice on bump: it broke: killed by"), "{told}");
    assert!(told.contains("differences that the program shows"), "{told}");
}

#[test]
fn what_is_set_for_an_allocator_alone_is_told_and_no_line_is_passed_over() {
    let folder = Folder::new("environment");
    let (library, json) = (folder.at("libbump.so"), folder.at("r.json"));
    assert!(compile(BUMP, &["-shared", "-fPIC"], &library));
    let bump = format!("bump={library}");
    let script = "test \"$LD_PRELOAD\" = '' || test \"$OF_BUMP\" = 'a b'";
    let compare = ["compare", "-r", "1", "-a", &bump, "--json", &json];
    let run = ["run", "-a", &bump, "--json", &json];
    let with = |text: &str, verb: &[&str]| {
        std::fs::write(folder.at("libbump.env"), text).unwrap();
        hectare(&[verb, &["--", "sh", "-c", script]].concat())
    };
    for verb in [&[&compare[..], &NOT_WARMED].concat()[..], &run] {
        let output = with("# of bump\n\nOF_BUMP=a b\n", verb);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let told = String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output);
        assert!(told.contains("OF_BUMP=a b was set for bump"), "{told}");
        let record = std::fs::read_to_string(&json).unwrap();
        let record: String = record.split_whitespace().collect();
        assert!(record.contains("\"environments\":{\"bump\":{\"OF_BUMP\":\"ab\"}}"), "{record}");
        let output = with("OF_BUMP=a b\nexport X=1\n", verb);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        let refused = "libbump.env: line 2 is not KEY=VALUE";
        assert!(stderr(&output).contains(refused), "{}", stderr(&output));
    }
}

#[test]
fn a_library_that_is_not_loaded_where_the_work_is_done_is_told() {
    let folder = Folder::new("dropped");
    let (library, program) = (folder.at("libbump.so"), folder.at("busy"));
    assert!(compile(BUMP, &["-shared", "-fPIC"], &library));
    // Enough processor time to be seen, also beside other tests.
    let main = "#include <time.h>\nint main(void) {\n\
        while (clock() < 0.3 * CLOCKS_PER_SEC) ; return 0; }";
    assert!(compile(main, &[], &program));
    let still = folder.at("still");
    let static_main = "void _start(void) { volatile long i; for (i = 0; i < 500000000; i++) ;\n\
        __asm__ volatile(\"syscall\" : : \"a\"(231), \"D\"(0)); __builtin_unreachable(); }";
    let has_static = cfg!(target_arch = "x86_64");
    if has_static {
        assert!(compile(static_main, &["-static", "-nostdlib"], &still));
    }
    let subjects = format!("system,bump={library}");
    let compare = |script: &str| {
        let rounds = ["compare", "--rounds", "1", "-a", &subjects];
        let output = hectare(&[&rounds[..], &NOT_WARMED, &["--", "sh", "-c", script]].concat());
        let told = String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output);
        (output.status.code(), told.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let run = |script: &str| {
        let bump = format!("bump={library}");
        hectare(&["run", "-a", &bump, "--", "sh", "-c", script])
    };
    let mut dropping = vec![
        format!("unset LD_PRELOAD; {program}; exit 0"),
        format!("env -i {program}; exit 0"),
        format!("exec env -u LD_PRELOAD {program}"),
    ];
    if has_static {
        dropping.push(format!("{still}; exit 0"));
    }
    for script in &dropping {
        let (code, told) = compare(script);
        assert_eq!(code, Some(5), "{script}: {told}");
        assert!(told.contains("bump broke in sh: its library was not loaded"), "{script}: {told}");
        assert!(!told.contains("system broke"), "{script}: {told}");
        assert!(!told.contains("shows what it writes"), "it did not fail: {told}");
        let output = run(script);
        assert_eq!(output.status.code(), Some(1), "{script}: {}", stderr(&output));
        assert!(stderr(&output).contains("was not loaded where"), "{script}: {}", stderr(&output));
    }
    let script = format!("{program} && env -i {program}; exit 0");
    let (code, told) = compare(&script);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("bump was not loaded in all that sh runs: `busy` took"), "{told}");
    let output = run(&script);
    assert!(stderr(&output).contains("had bump loaded: `busy` took"), "{}", stderr(&output));
    let (code, told) = compare(&format!("{program}; exit 0"));
    assert_eq!(code, Some(0), "{told}");
    assert!(!told.contains("loaded") && !told.contains("too short to see whether"), "{told}");
    let (code, told) = compare("test -z \"$LD_PRELOAD\" || exit 3");
    assert_eq!(code, Some(5), "{told}");
    assert!(told.contains("exit code 3 (`hectare run` shows what it writes, --ignore"), "{told}");
    let (_, told) = compare("exit 0");
    assert!(told.contains("sh is too short to see whether all that it runs loads"), "{told}");
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
fn each_program_of_a_list_is_a_row_by_its_name() {
    let folder = Folder::new("list");
    let (list, json) = (folder.at("list.txt"), folder.at("a.json"));
    let ran = folder.at("ran");
    let compare = |text: String| {
        std::fs::write(&list, text).unwrap();
        hectare(&[&TWO_ROUNDS[..], &["--json", &json, "--programs", &list]].concat())
    };
    let output = compare(format!("# two\none: true\n\nthe other: sh -c 'echo \"a b\" >> {ran}'\n"));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let record: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let mut workloads: Vec<_> =
        record["rows"].as_array().unwrap().iter().map(|row| row["workload"].to_string()).collect();
    workloads.dedup();
    assert_eq!(workloads, ["\"one\"", "\"the other\"", "\"all\""]);
    let lines = std::fs::read_to_string(&ran).unwrap();
    assert!(lines.lines().count() > 5 && lines.lines().all(|line| line == "a b"), "{lines}");
    // Nothing is measured if one of them cannot be.
    std::fs::remove_file(&ran).unwrap();
    let output = compare(format!("one: sh -c 'echo >> {ran}'\ntwo: no-such-program\n"));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("list.txt: two: there is no program `no-such-program`"));
    assert!(!Path::new(&ran).exists());
    let output = compare("sort x\n".to_owned());
    assert!(
        stderr(&output).contains("list.txt: line 1: `sort x` has no name"),
        "{}",
        stderr(&output)
    );
    let output = compare("# none\n".to_owned());
    assert!(stderr(&output).contains("list.txt: it names no program"), "{}", stderr(&output));
}

#[test]
fn programs_that_cannot_be_preloaded_are_told_before_anything_is_run() {
    let folder = Folder::new("static");
    let program = folder.at("static");
    // Without a C library, of which there may be no static one. It is never run.
    let main = "void _start(void) { for (;;); }";
    assert!(compile(main, &["-static", "-nostdlib"], &program));
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

#[test]
fn what_a_program_started_ends_with_it_where_it_could_disturb() {
    let folder = Folder::new("group");
    let pid_file = folder.at("pid");
    let started = format!("sleep 60 & echo $! > {pid_file}.new; mv {pid_file}.new {pid_file}");
    let script = format!("{started}; wait");
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
    let once = ["compare", "-a", "system", "--rounds", "1", NOT_WARMED[0], NOT_WARMED[1]];
    let output = hectare(&[&once[..], &["--", "sh", "-c", &started]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    gone();
    // A daemon has a session of its own.
    let daemon = format!(
        "rm -f {pid_file}; setsid sh -c 'echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; \
         exec sleep 60' & while ! test -e {pid_file}; do sleep 0.01; done"
    );
    for (then, timeout, code) in [("", "60", 0), ("; wait", "5", 1)] {
        let script = format!("{daemon}{then}");
        let timed = ["--timeout", timeout, "--", "sh", "-c", &script];
        let output = hectare(&[&once[..], &timed].concat());
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        gone();
    }
    for (signal, code) in [("-INT", Some(130)), ("-KILL", None)] {
        let mut child = attentive()
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
fn what_has_lost_its_parent_is_waited_for() {
    let script = "for i in 1 2 3 4 5 6 7 8 9; do (true &) ; done; sleep 0.3; \
                  set -- $(cat /proc/$PPID/task/$PPID/children); test $# -lt 5";
    let output = hectare(&[&TWO_ROUNDS[..], &["--", "sh", "-c", script]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

/// `hectare run` of a shell's script.
fn begin_run(script: &str) -> Child {
    attentive()
        .args(["run", "-a", "system", "--", "sh", "-c", script])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_program_that_had_begun_unnoticed_is_interrupted_as_any() {
    let folder = Folder::new("begun-unnoticed");
    let word = folder.at("word");
    let script = format!("trap 'exit 7' INT; touch {word}; while :; do sleep 0.05; done");
    let child = begin_run(&script);
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let since = Instant::now();
    while std::fs::read_to_string(&children).is_ok_and(|children| children.is_empty()) {
        assert!(since.elapsed() < Duration::from_secs(20), "it starts nothing");
    }
    kill(&child, "-STOP");
    wait_for(&word);
    kill(&child, "-INT");
    kill(&child, "-CONT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
}

#[test]
fn an_interrupted_program_ends_as_it_would_by_itself_and_is_measured() {
    let folder = Folder::new("interrupted-program");
    for (signal, trap) in [("-INT", "INT"), ("-TERM", "TERM")] {
        let (word, ended) = (folder.at("word"), folder.at("ended"));
        let script = format!(
            "trap 'touch {ended}; exit 7' {trap}; touch {word}; while :; do sleep 0.05; done"
        );
        let child = begin_run(&script);
        wait_for(&word);
        kill(&child, signal);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
        assert!(stderr(&output).contains("MiB"), "{}", stderr(&output));
        assert!(std::fs::remove_file(&ended).is_ok(), "{signal}: it could not clean up");
        std::fs::remove_file(&word).unwrap();
    }
}

#[test]
fn a_program_that_is_stopped_is_ended_by_a_signal_all_the_same() {
    build_recorder();
    let folder = Folder::new("stopped-program");
    let (word, trace) = (folder.at("word"), folder.at("t.hxt"));
    for verb in [&["run", "-a", "system"][..], &["record", "-o", &trace]] {
        let script = format!("echo $$ > {word}.new; mv {word}.new {word}; kill -STOP $$; exit 0");
        let mut child = attentive()
            .args(verb)
            .args(["--", "sh", "-c", &script])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for(&word);
        let program = std::fs::read_to_string(&word).unwrap();
        let stat = format!("/proc/{}/stat", program.trim());
        let is_stopped = || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(" T "));
        let since = Instant::now();
        let go_on = || assert!(since.elapsed() < Duration::from_secs(20), "{verb:?}: {stat}");
        while !is_stopped() {
            go_on();
        }
        kill(&child, "-TERM");
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break status,
                None => go_on(),
            }
        };
        assert_eq!(status.code(), Some(128 + libc::SIGTERM), "{verb:?}");
        std::fs::remove_file(&word).unwrap();
    }
}

#[test]
fn a_contest_interrupted_in_its_first_round_leaves_an_earlier_record() {
    let folder = Folder::new("first-round");
    let (json, word) = (folder.at("a.json"), folder.at("word"));
    let earlier = "{\"schema\": 1, \"verb\": \"compare\"}";
    std::fs::write(&json, earlier).unwrap();
    let script = format!("touch {word}; exec sleep 30");
    let child = attentive()
        .args(["compare", "-a", "system", "--json", &json])
        .args(NOT_WARMED)
        .args(["--", "sh", "-c", &script])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for(&word);
    kill(&child, "-INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(stderr(&output).contains("no file is written"), "{}", stderr(&output));
    assert_eq!(std::fs::read_to_string(&json).unwrap(), earlier);
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
fn what_is_preloaded_already_is_told_to_be_left_out() {
    let output = Command::new(HECTARE)
        .args(TWO_ROUNDS)
        .args(["--", "true"])
        .env("LD_PRELOAD", "libm.so.6")
        .output()
        .unwrap();
    let told = stderr(&output);
    assert_eq!(told.matches("LD_PRELOAD=libm.so.6 is not passed on").count(), 1, "{told}");
}

#[test]
fn pools_are_counted_under_valgrind_or_it_is_said_to_be_needed() {
    let folder = Folder::new("pools-counted");
    let json = folder.at("counts.json");
    let counting = ["bench", "pools", "--json", &json, "--"];
    let small = ["--callgrind", "--pools", "dense,zs", "--slots", "100", "--steps", "2000"];
    let output = hectare(&[&counting[..], &small, &["--range", "100..200"]].concat());
    if Command::new("valgrind").arg("--version").output().is_err() {
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        return assert!(stderr(&output).contains("valgrind is needed"), "{}", stderr(&output));
    }
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = std::fs::read_to_string(&json).expect("a record");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2);
    for row in rows {
        for figure in ["alloc_instructions", "free_instructions", "pair_instructions"] {
            assert!(row[figure].as_f64().is_some_and(|count| count > 30.0), "{figure} of {row}");
        }
    }
}
