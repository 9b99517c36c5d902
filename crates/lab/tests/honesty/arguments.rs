//! What is typed: wrong arguments, places for results, and the standard output.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::*;

#[test]
fn wrong_arguments_are_told_with_what_is_wrong_and_nothing_is_said_twice() {
    for (arguments, code, part) in [
        (&["compare", "--assert", "rss(a) < b", "--", "true"][..], 2, "neither a number nor"),
        (&["bench", "larson", "--threads", "0"], 2, "--threads"),
        (&["bench", "larson", "--ops", "0"], 2, "--ops"),
        (&["bench", "larson", "--seeds", "5-1"], 2, "`5-1` ends before it begins"),
        (&["bench", "larson", "--seeds", "x"], 2, "`x` is no seed"),
        (&["bench", "larson", "--seeds", "1-2", "--set", "seed=1"], 2, "--seeds gives the seeds"),
        (&["bench", "all", "--seeds", "1-2"], 2, "its own parameters"),
        (&["run", "--timeout", "0", "--", "true"], 2, "whole number from 1"),
        (&["run", "--timeout", "-5", "--", "true"], 2, "whole number from 1"),
        (&["compare", "-r", "-1", "--", "true"], 2, "whole number from 1"),
        (&["bench", "larson", "--ops", "-5"], 2, "whole number from 1"),
        (&["buddy", "-b", "-5"], 2, "'-5'"),
        (&["record", "-o", "-", "--", "true"], 2, "is no regular file"),
        (&["swap"], 2, "which file of events?"),
        (&["buddy", "-d", "nosuch"], 2, "there is no allocator `nosuch` here"),
        (&["buddy", "--json", "-", "--report", "-"], 2, "cannot both be written"),
        (&["replay", "--csv", "-", "--json", "-", "x.hxt"], 2, "Usage: hectare replay"),
        (&["tlsf", "regions", "--regions", "0"], 2, "whole number from 4"),
        (&["tlsf", "regions", "--regions", "4,6"], 2, "whole pages"),
        (&["store", "--file", "f", "--limit-mib", "0"], 2, "whole number from 1"),
        (&["buddy", "runs", "--trace", "f", "--ops", "5"], 2, "cannot be used with"),
        (&["compare", "--pin", "999", "--", "true"], 2, "there is no processor 999"),
        (&["run", "-a", "nosuch", "--", "true"], 2, "no allocator is called `nosuch`"),
        (&["run", "-a", "hectare,system", "--", "true"], 2, "`run` takes one allocator"),
        (&["buddy", "--batch", "0"], 2, "at least one"),
        (&["bench", "tlsf", "--", "--slots", "99"], 2, "--slots 99: the sweep ends with arenas"),
        (&["bench", "tlsf", "--", "--only", "talc,no"], 2, "--only: no subject is called no;"),
        (&["bench", "tlsf", "--", "--largest", "10"], 2, "a whole number from 320 to"),
        (&["bench", "tlsf", "--", "--range", "0..4294967296"], 2, "sizes go from 0 to 1073741824"),
        (
            &["bench", "tlsf", "--", "--arena-mib", "9"],
            2,
            "10000 slots of up to 2047 bytes may need",
        ),
        (&["swap", "no.swap", "--pools", "xv,dense,xv"], 2, "--pools: xv is given twice"),
        (&["store", "--file", "/etc/passwd", "--codecs", "lz4,lz4"], 2, "lz4 is given twice"),
        (&["store", "--file", "/etc/passwd", "--threads", "1,1"], 2, "--threads: 1 is given twice"),
        (&["tlsf", "regions", "--regions", "4,8,4"], 2, "--regions: 4 is given twice"),
        (&["buddy", "fragment", "--load", "50,50"], 2, "--load: 50 is given twice"),
        (&["doctor", "--set", "--", "./no-such"], 1, "hectare: there is no program `./no-such`"),
        (&["buddy", "fragment", "--load", "100"], 2, "from 1 to 99"),
        (&["store", "--file", "/etc/passwd", "--pools", "nosuch"], 2, "there is no pool `nosuch`"),
        (&["swap", "no-such.swap", "--pools", "nosuch"], 2, "there is no pool `nosuch`"),
        (&["swap", "--pools", "dense", "no-such.swap"], 1, "no-such.swap: No such file"),
        (&["report", "-o", "-", "a.json", "a.json"], 2, "a.json is given twice"),
        (&["bench", "all", "--from", "a.json,a.json"], 2, "a.json is given twice"),
        (&["bench", "all", "--only", "nosuch"], 2, "`nosuch` has no rows"),
        (&["bench", "published", "--only", "churn"], 2, "`churn` has no rows"),
        (&["compare", "--"], 2, "no program is given after `--`"),
        (&["compare", "--programs", "f", "--", "true"], 2, "cannot be used with"),
        (&["compare", "--programs", "f", "--trace", "g"], 2, "cannot be used with"),
        (&["compare", "--programs", "f", "--mode", "serial"], 2, "are for replays"),
        (&["compare", "--programs", "no-such.txt"], 1, "no-such.txt: No such file"),
        (&["replay", "no-such.hxt"], 1, "no-such.hxt: cannot read the trace: No such file"),
    ] {
        let output = hectare(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).matches("No such file").count() < 2, "{}", stderr(&output));
    }
}

#[test]
fn a_number_that_is_none_is_told_with_what_is_allowed() {
    let number = |arguments: &[&str]| {
        for wrong in ["-1", "x", "18446744073709551616"] {
            let told = stderr(&hectare(&[arguments, &[wrong]].concat()));
            assert!(
                told.contains("it can be a whole number from "),
                "{arguments:?} {wrong}: {told}"
            );
        }
    };
    for verb in ["compare", "choose", "replay", "bench"] {
        number(&[verb, "--seed"]);
    }
    number(&["record", "--tick-ns"]);
    for option in ["--blocks", "--order", "--batch"] {
        number(&["buddy", option]);
    }
    for option in ["--blocks", "--order", "--patience-ms"] {
        number(&["buddy", "growth", option]);
    }
    for option in ["--live", "--seed"] {
        number(&["buddy", "runs", option]);
    }
    for option in ["--load", "--seed"] {
        number(&["buddy", "fragment", option]);
    }
    for option in ["--seed", "--keep-free-bytes"] {
        number(&["tlsf", "regions", option]);
    }
    for verb in [&["zram"][..], &["store"], &["swap", "record"]] {
        number(&[verb, &["--pid"]].concat());
    }
    number(&["bench", "pools", "--", "--threads"]);
    for study in ["tlsf", "pools", "stress"] {
        number(&["bench", study, "--", "--seed"]);
    }
    for study in ["tlsf", "pools"] {
        let told = stderr(&hectare(&["bench", study, "--", "--range", "x..576"]));
        assert!(told.contains("two whole numbers of bytes"), "{study}: {told}");
    }
}

#[test]
fn a_word_that_is_no_text_is_named() {
    let wrong = OsStr::from_bytes(b"sy\xffstem");
    for option in ["-a", "--assert", "--reference", "--only"] {
        let mut command = Command::new(HECTARE);
        // A path may have any bytes: that one is not to blame.
        command.arg("bench").arg("--json").arg(OsStr::from_bytes(b"\xfe")).args(["all", option]);
        let output = command.arg(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{option}: {}", stderr(&output));
        assert!(stderr(&output).contains(r#""sy\xFFstem" must be text"#), "{}", stderr(&output));
        assert!(stderr(&output).contains("Usage: hectare bench"), "{}", stderr(&output));
    }
}

#[test]
fn a_command_that_cannot_be_started_is_told_with_what_is_missing() {
    let folder = Folder::new("missing-interpreter");
    let script = folder.script("work", "#!/no/such/shell\n");
    for verb in [&["run", "-a", "system"][..], &["doctor", "--set"]] {
        // Where there is nothing to set.
        let mut command = Command::new(HECTARE);
        command.env("HECTARE_SYSTEM_ROOT", &folder.0).env("XDG_STATE_HOME", &folder.0);
        let output = command.args(verb).args(["--", &script]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{verb:?}: {}", stderr(&output));
        let told = "is run by `/no/such/shell`, which is not there";
        assert!(stderr(&output).contains(told), "{verb:?}: {}", stderr(&output));
    }
}

#[test]
fn a_record_has_the_command_with_all_its_bytes() {
    let odd = OsStr::from_bytes(b"/no\xff/file");
    let output = Command::new(HECTARE)
        .args(["run", "-a", "system", "--json", "-", "--", "ls"])
        .arg(odd)
        .output()
        .unwrap();
    let record: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON alone");
    let command = record["command"].as_str().unwrap();
    assert!(command.ends_with(r"-- ls $'/no\377/file'"), "{command}");
}

#[test]
fn shells_complete_the_verbs_that_can_be_typed() {
    for shell in ["bash", "zsh", "fish"] {
        let output = hectare(&["completions", shell]);
        let script = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{shell}: {}", stderr(&output));
        assert!(script.contains("choose") && script.contains("allocators"), "{shell}: {script}");
        for hidden in ["keeper", "cost-loop"] {
            assert!(!script.contains(hidden), "{shell} completes {hidden}, which is hidden");
        }
    }
    assert_eq!(hectare(&["completions", "abacus"]).status.code(), Some(2));
}

#[test]
fn a_record_on_the_standard_output_stands_there_alone() {
    let output = hectare(&[&TWO_ROUNDS[..], &["--json", "-", "--", "true"]].concat());
    let record: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON alone");
    assert_eq!(record["schema"], 1);
    assert!(stderr(&output).contains("system again"), "the table is told beside it");
    let folder = Folder::new("alone");
    let file = folder.at("all.json");
    let all = ["bench", "all", "--only", "false-sharing", "-a", "system", "--rounds", "1"];
    let measured = hectare(&[&all[..], &NOT_WARMED, &["--json", &file]].concat());
    assert_eq!(measured.status.code(), Some(0), "{}", stderr(&measured));
    let output = hectare(&["bench", "all", "--from", &file, "--json", "-"]);
    serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON alone");
}

#[test]
fn a_table_is_told_although_its_file_cannot_be_written() {
    let full = ["--json", "/dev/full", "--", "true"];
    let output = hectare(&[&TWO_ROUNDS[..], &full].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("writing /dev/full: No space left"), "{}", stderr(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("system again"));
}

#[test]
fn a_home_is_needed_for_the_machines_settings_alone() {
    let homeless = |arguments: &[&str]| {
        let mut command = Command::new(HECTARE);
        command.args(arguments).env_remove("HOME").env_remove("XDG_STATE_HOME").output().unwrap()
    };
    let output = homeless(&[&TWO_ROUNDS[..], &["--", "true"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let output = homeless(&["doctor", "--restore"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("neither XDG_STATE_HOME nor HOME"), "{}", stderr(&output));
}

#[test]
fn what_a_missing_tool_leaves_undone_is_an_error() {
    for option in [&["--callgrind"][..], &["--flame", "f"]] {
        let mut command = Command::new(HECTARE);
        command.args(["bench", "churn", "-a", "system"]).args(option).env("PATH", "/nowhere");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{option:?}");
        assert!(stderr(&output).contains("not installed"), "{}", stderr(&output));
    }
}

#[test]
fn the_standard_output_is_known_by_its_other_names() {
    let folder = Folder::new("names-of-output");
    for place in ["-", "/dev/stdout", "/proc/self/fd/1"] {
        let path = folder.at("output");
        let mut command = Command::new(HECTARE);
        command.args(["buddy", "-b", "9", "--rounds", "1", "--json", place]);
        let output = command.stdout(File::create(&path).unwrap()).output().unwrap();
        assert!(stderr(&output).contains("list-vec"), "{place}: {}", stderr(&output));
        let record = std::fs::read_to_string(&path).unwrap();
        assert!(serde_json::from_str::<serde_json::Value>(&record).is_ok(), "{place}: {record}");
    }
}

#[test]
fn a_record_goes_from_one_command_to_the_next() {
    let script =
        format!("{HECTARE} buddy -b 9 --rounds 1 --json - | {HECTARE} report - --output -");
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(output.stdout.starts_with(b"<!doctype html>"), "{}", stderr(&output));
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
    let own = std::process::id().to_string();
    for place in [&notes[..], "/no/such/folder/f"] {
        let output = hectare(&["swap", "record", "--pid", &own, "--samples", "1", "-o", place]);
        assert_eq!(output.status.code(), Some(2), "{place}: {}", stderr(&output));
    }
    assert_eq!(std::fs::read_to_string(&notes).unwrap(), "mine");
    // The files that the main job leaves unasked do not overwrite others' either.
    std::fs::write(folder.at("hectare-report.html"), "mine").unwrap();
    let report = Command::new(HECTARE)
        .args(["report", "no-such.json"])
        .current_dir(&folder.0)
        .output()
        .unwrap();
    assert_eq!(report.status.code(), Some(1), "{}", stderr(&report));
    let why = "hectare-report.html exists and is no report of hectare: remove it, or give another name (it is \
               left in the current folder unless --output names another place)";
    assert!(stderr(&report).contains(why), "{}", stderr(&report));
    std::fs::remove_file(folder.at("hectare-report.html")).unwrap();
    std::fs::write(folder.at("hectare-report.json"), "mine").unwrap();
    let output = Command::new(HECTARE).current_dir(&folder.0).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("is no record of hectare"), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("--json and --report name other places"),
        "{}",
        stderr(&output)
    );
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
fn what_concerns_programs_is_shown_where_programs_are_measured() {
    for (verb, is_shown) in
        [("compare", true), ("choose", true), ("replay", false), ("bench", false)]
    {
        let help = String::from_utf8(hectare(&[verb, "--help"]).stdout).unwrap();
        assert_eq!(help.contains("--ignore-failure"), is_shown, "{verb}");
        assert!(help.contains("--timeout"), "{verb}: {help}");
    }
}

#[test]
fn lists_are_divided_by_commas_or_given_again() {
    let folder = Folder::new("lists");
    let file = folder.script("pages", &"a page of text ".repeat(2000));
    let subjects = |arguments: &[&str]| -> Vec<String> {
        let output = hectare(&[arguments, &["--json", "-"]].concat());
        let record: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{arguments:?}: {}", stderr(&output)));
        let rows = record["rows"].as_array().unwrap();
        rows.iter().map(|row| row["subject"].as_str().unwrap().to_owned()).collect()
    };
    let store = |more: &[&str]| {
        let mut told = subjects(&[&["store", "--rounds", "1", "--file", &file][..], more].concat());
        told.retain(|subject| !subject.starts_with("kernel"));
        told
    };
    let expected = [
        "xv, lz4",
        "zs:chain=1,step=4, lz4",
        "xv, lz4, 2 threads",
        "zs:chain=1,step=4, lz4, 2 threads",
    ];
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    let expected = sorted(expected.map(|subject| format!("store, {subject}")).to_vec());
    for lists in [
        &["--pools", "xv,zs:chain=1,step=4", "--codecs", "lz4", "--threads", "1,2"][..],
        &[
            "--pools",
            "xv",
            "--pools",
            "zs:chain=1,step=4",
            "--codecs",
            "lz4",
            "--threads",
            "1",
            "--threads",
            "2",
        ],
        &["--pools", "xv", "zs:chain=1,step=4", "--codecs", "lz4", "--threads", "1", "2"],
    ] {
        assert_eq!(sorted(store(lists)), expected, "{lists:?}");
    }
    for lists in [
        &["-a", "bitset,atomic"][..],
        &["-a", "bitset", "-a", "atomic"],
        &["-d", "bitset", "--demo", "atomic"],
    ] {
        let arguments = [&["buddy", "-b", "9", "--rounds", "1"][..], lists].concat();
        assert_eq!(subjects(&arguments), ["bitset", "atomic"], "{lists:?}");
    }
    // Neither is there: the first is looked for by its own name.
    for verb in [
        &["compare", "-a", "system", "--trace"][..],
        &["buddy", "runs", "--trace"],
        &["tlsf", "space", "--trace"],
    ] {
        let output = hectare(&[verb, &["no-1.hxt,no-2.hxt"]].concat());
        assert!(stderr(&output).contains("no-1.hxt: cannot read"), "{verb:?}: {}", stderr(&output));
    }
}

#[test]
fn a_name_with_a_line_break_leaves_a_message_on_its_line() {
    for arguments in [
        &["info", "no\nfile.hxt"][..],
        &["no\nverb"],
        &["compare", "no\nargument"],
        &["run", "-a", "no\nallocator", "--", "true"],
        &["run", "-a", "system", "--", "/no\nprogram"],
        &["bench", "larson", "--seeds", "no\nseed"],
        &["compare", "--json", "/no\nfolder/x", "--", "true"],
        &["compare", "--assert", "no\nfigure < 1", "--", "true"],
        &["bench", "tlsf", "--", "--only", "no\nsubject"],
    ] {
        let told = stderr(&hectare(arguments));
        assert!(told.contains("no\\n"), "{arguments:?}: {told}");
        assert!(!told.contains("no\n"), "{arguments:?}: {told}");
    }
}

#[test]
fn nobodys_memory_is_read_unasked() {
    for verb in ["zram", "store"] {
        let output = hectare(&[verb]);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("--all"), "{}", stderr(&output));
    }
}

#[test]
fn a_result_that_cannot_be_printed_is_told_without_a_panic() {
    for arguments in [
        &["bench", "--list"][..],
        &["doctor"],
        &["compare", "--help"],
        &["--version"],
        &["bench", "stress", "--", "--help"],
        &["completions", "bash"],
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = Command::new(HECTARE).args(arguments).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("writing to the standard output: No space left"));
    }
    // What is said beside the result may be lost.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (reader, unread) = std::io::pipe().unwrap();
    drop(reader);
    let arguments = [&TWO_ROUNDS[..], &["--csv", "/dev/null", "--", "true"]].concat();
    for lost in [Stdio::from(full), unread.into()] {
        let output = Command::new(HECTARE).args(&arguments).stderr(lost).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{:?}", output.status);
        assert!(String::from_utf8_lossy(&output.stdout).contains("system again"));
    }
}

#[test]
fn a_file_at_its_size_limit_is_told_like_a_full_disk() {
    let folder = Folder::new("file-size");
    let (json, trace) = (folder.at("a.json"), folder.at("t.hxt"));
    let limited = |arguments: &[&str]| {
        let script = "ulimit -f 1; exec \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", HECTARE]).args(arguments).output().unwrap()
    };
    let output = limited(&[&TWO_ROUNDS[..], &["--json", &json, "--", "true"]].concat());
    assert_eq!(output.status.code(), Some(1), "{:?}", output.status);
    assert!(stderr(&output).contains("a.json: File too large"), "{}", stderr(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("system again"));
    build_recorder();
    let output = limited(&["record", "-o", &trace, "--", "ls", "/"]);
    assert_eq!(output.status.code(), Some(1), "{:?}", output.status);
    assert!(stderr(&output).contains("could not be begun"), "{}", stderr(&output));
    // The programs themselves end as they would: what the command ignores is not ignored in them.
    let writing = ["run", "-a", "system", "--", "sh", "-c", "yes > \"$0\"", &json];
    let output = limited(&writing);
    assert_eq!(output.status.code(), Some(128 + libc::SIGXFSZ), "{:?}", output.status);
}

/// Where no thread has room for its stack.
#[test]
fn threads_that_cannot_be_started_are_told_or_done_without() {
    let without = |arguments: &[&str]| {
        let mut command = Command::new(HECTARE);
        command.args(arguments).env("RUST_MIN_STACK", (1_u64 << 60).to_string()).output().unwrap()
    };
    for workload in ["larson", "survivors", "rnbench", "server", "producer-consumer"] {
        let rounds = ["-a", "system", "-r", "1", "--warm-memory", "never", "--ops", "2000"];
        let output = without(&[&["bench", workload][..], &rounds].concat());
        assert_eq!(output.status.code(), Some(1), "{workload}: {:?}", output.status);
        let told = stderr(&output);
        assert!(told.contains("cannot start a thread") && !told.contains("panicked"), "{told}");
    }
    let output = without(&[&TWO_ROUNDS[..], &["--", "true"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let output = without(&["doctor"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn options_that_would_do_nothing_are_refused() {
    for (arguments, part) in [
        (&["bench", "stress", "--rounds", "2"][..], "--rounds: `stress` has subjects and options"),
        (&["bench", "stress", "--assert", "time(a) < 1"], "--assert: `stress` has"),
        (&["bench", "stress", "-a", "system"], "--allocators: `stress` has"),
        (&["bench", "pools", "--threads", "2"], "--threads: `pools` has"),
        (&["bench", "larson", "--only", "larson"], "for `hectare bench all`"),
        (&["compare", "--touch", "full", "--", "true"], "are for replays"),
        (&["bench", "larson", "--callgrind", "--threads", "1,2"], "--threads asks for several"),
        (&["bench", "larson", "--flame", "no", "--seeds", "1,2"], "--seeds asks for several"),
        (
            &["bench", "larson", "--callgrind", "--pin", "0"],
            "--pin cannot be used with --callgrind",
        ),
        (&["bench", "larson", "--flame", "no", "-r", "3"], "--rounds cannot be used with --flame"),
        (&["bench", "larson", "--flame", "no", "--csv", "-"], "--csv cannot be used with --flame"),
        (&["bench", "--list", "--assert", "time(a) < 1"], "cannot be used with"),
        // A claim that nobody decides must not hold.
        (&["bench", "all", "--from", "f", "--assert", "time(a) < 1"], "--assert: --from reads"),
        (&["bench", "all", "--from", "f", "--only", "larson"], "--only: --from reads records"),
        (&["bench", "published", "--from", "f", "--only", "larson"], "--from reads records"),
        (&["bench", "published", "--with-traces"], "for `hectare bench all`"),
        (&["bench", "published", "--threads", "2"], "--threads: `bench published` runs every"),
        (&["bench", "all", "--from", "f", "--with-traces"], "--with-traces: --from reads"),
        (&["bench", "larson", "--ignore-failure"], "--ignore-failure is for programs"),
        (&["bench", "all", "--ignore-failure"], "--ignore-failure is for programs"),
        (&["replay", "f.hxt", "--ignore-failure"], "--ignore-failure is for programs"),
        (&["compare", "--trace", "f.hxt", "--ignore-failure"], "--ignore-failure is for programs"),
        (&["bench", "larson", "--set", "lives=x", "-a", "system"], "whole number from 1"),
        (
            &["bench", "larson", "--set", "slots=18446744073709551615"],
            "--set slots=18446744073709551615: slots of larson can be a whole number from 1 to",
        ),
        (&["bench", "churn", "--ops", "900000000000"], "--ops 900000000000"),
        (&["bench", "misuse", "--threads", "4"], "threads of misuse can be 1"),
        (&["bench", "producer-consumer", "--threads", "2,3"], "--threads 3: producer-consumer"),
        (&["bench", "churn", "--threads", "2,1,2"], "--threads: 2 is given twice"),
        (
            &["bench", "churn", "--set", "slots=9", "--set", "slots=8"],
            "--set slots: it is given twice",
        ),
        (&["bench", "trees", "--threads", "1,4000000000"], "--threads 4000000000: threads of"),
    ] {
        let output = hectare(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
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
    let output = hectare(&["record", "-o", "no.hxt", "sleep", "1"]);
    assert!(stderr(&output).contains("tip: a program stands after '--'"), "{}", stderr(&output));
    let output = hectare(&["compare", "x.hxt"]);
    assert!(stderr(&output).contains("'hectare replay x.hxt'"), "{}", stderr(&output));
    let output = hectare(&["x.hxt"]);
    assert!(stderr(&output).contains("hectare replay x.hxt"), "{}", stderr(&output));
}
