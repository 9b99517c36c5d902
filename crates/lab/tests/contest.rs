//! The command from outside: a real contest, its exit codes, its record.

use std::path::PathBuf;
use std::process::{Command, Output};

use hectare_trace::{Event, FileHeader, ThreadId, Writer};

fn hectare(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hectare"))
        .args(arguments)
        .output()
        .expect("the command starts")
}

fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("hectare-e2e-{}-{name}", std::process::id()))
}

fn record(name: &str, arguments: &[&str]) -> serde_json::Value {
    let file = temporary(name);
    let mut all = arguments.to_vec();
    all.extend(["--json", file.to_str().unwrap()]);
    let output = hectare(&all);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Where nothing is measured that warm memory would change: to warm it takes seconds on some machines.
const NOT_WARMED: [&str; 2] = ["--warm-memory", "never"];

const CHURN: [&str; 8] =
    ["bench", "churn", "--ops", "400000", "--rounds", "60", "--allocators", "system"];

/// The canary: a contest that does not see a slowness that is there is worth nothing. Tests run
/// beside builds, where single rounds differ by a fifth: six rounds cannot tell 10 % there, sixty
/// short ones can. A burst of other work may hide it once, not three times.
#[test]
fn a_planted_slowness_is_seen() {
    let seen = (0..3).any(|_| {
        let report = record("planted", &[&CHURN[..], &NOT_WARMED].concat());
        assert_eq!(report["schema"], 1);
        let notes = report["notes"].as_array().unwrap();
        notes.iter().any(|note| note.as_str().unwrap().starts_with("planted slowness seen"))
    });
    assert!(seen, "a slowness of 10 % was planted and not seen in three contests");
}

/// Each thread touches a page of its stack at least. In a process of its own, as they are measured: in one where
/// others have ended, what these leave goes back while the threads start.
#[test]
fn what_threads_take_before_the_window_is_part_of_the_start() {
    const SERVER: &str = r#"{"mib":"64","seconds":"0.2","day_seconds":"0.2"}"#;
    for (name, more) in [
        ("idle-threads", r#"{"sleep_ms":"1"}"#),
        ("random-phases", r#"{"mib":"2","phases":"2"}"#),
        ("server", SERVER),
    ] {
        let start_bytes = |threads: u64| {
            let parameters =
                format!(r#"{{"threads":{threads},"ops":2000,"seed":1,"more":{more}}}"#);
            let output = hectare(&["child", "--fd", "1", "bench", name, &parameters]);
            let said = String::from_utf8_lossy(&output.stdout);
            let line = said.lines().next().unwrap_or_default();
            let answer: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let bytes = answer["Done"]["outcome"]["window"]["start_bytes"].as_u64();
            bytes.unwrap_or_else(|| panic!("{name}: {said}"))
        };
        let (few, many) = (start_bytes(16), start_bytes(256));
        assert!(many >= few + 240 * 4096, "{name}: {few} and {many} bytes");
    }
}

#[test]
fn a_program_is_compared_and_claims_decide_the_exit_code() {
    let claim = |claim: &str, rounds: &str| {
        let subjects = ["compare", "--allocators", "system", "--rounds", rounds];
        hectare(&[&subjects[..], &NOT_WARMED, &["--assert", claim, "--", "true"]].concat())
            .status
            .code()
    };
    assert_eq!(claim("time(system) < 60s", "5"), Some(0));
    assert_eq!(claim("time(system) > 60s", "5"), Some(3));
    assert_eq!(claim("time(system) < 60s", "4"), Some(4), "so few rounds decide nothing");
    assert_eq!(claim("time(nobody) > 60s", "5"), Some(2));
    assert_eq!(claim("nonsense", "5"), Some(2));
}

#[test]
fn what_cannot_be_done_is_said() {
    for (arguments, code, part) in [
        (&["compare", "--allocators", "nosuch"][..], 2, "no allocator is called `nosuch`"),
        (&["compare", "--", "no-such-program"][..], 1, "no program `no-such-program`"),
        (&["bench", "nosuch"][..], 2, "no workload or study is called `nosuch`"),
        (&["report", "/nowhere.json"][..], 1, "/nowhere.json"),
    ] {
        let output = hectare(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn each_seed_is_a_row_and_a_single_one_is_told_by_phases() {
    let few = ["bench", "random-phases", "--ops", "2000", "--set", "mib=4", "--set", "phases=3"];
    let once = [&["--rounds", "1", "--allocators", "system"][..], &NOT_WARMED].concat();
    let report = |name: &str, cases: &[&str]| record(name, &[&few[..], &once, cases].concat());
    let rows = report("seeds", &["--seeds", "3-4,9", "--threads", "1,2"]);
    let rows = rows["rows"].as_array().unwrap().iter();
    let names: Vec<_> = rows.filter(|row| row["role"] == "reference").collect();
    let names: Vec<_> = names.iter().map(|row| row["workload"].as_str().unwrap()).collect();
    let wanted = ["3", "4", "9"].map(|seed| {
        ["1 thread", "2 threads"].map(|of| format!("random-phases, {of}, seed {seed}"))
    });
    let mut wanted = wanted.concat();
    wanted.push("all".to_owned());
    assert_eq!(names, wanted);
    let alone = report("seed", &["--seeds", "5"]);
    let notes = alone["notes"].as_array().unwrap().iter().map(|note| note.as_str().unwrap());
    let phases: Vec<_> = notes.filter(|note| note.starts_with("phase ")).collect();
    assert_eq!(phases.len(), 3, "{phases:?}");
    assert!(phases[0].starts_with("phase 1, grow to ") && phases[0].contains(": system "));
    assert!(alone["rows"][0]["phase_1_grow_resident_bytes"].is_number());
}

#[test]
fn a_record_becomes_a_page() {
    let (json, html) = (temporary("page.json"), temporary("page.html"));
    let churn = ["bench", "churn", "--ops", "1000", "--rounds", "3", "--allocators", "system"];
    let mut arguments = churn.to_vec();
    arguments.extend(["--json", json.to_str().unwrap()]);
    arguments.extend(NOT_WARMED);
    assert!(hectare(&arguments).status.success());
    assert!(
        hectare(&["report", "-o", html.to_str().unwrap(), json.to_str().unwrap()]).status.success()
    );
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.contains("<svg") && page.contains("hectare bench churn"));
    std::fs::remove_file(&json).unwrap();
    std::fs::remove_file(&html).unwrap();
}

/// Both controls, in every kind of contest: by their rows and in words.
#[test]
fn every_report_carries_its_controls() {
    let path = temporary("controls.hxt");
    let file = std::fs::File::create(&path).unwrap();
    let mut writer = Writer::new(file, FileHeader::new()).unwrap();
    for nth in 0..5000 {
        writer.event(ThreadId(1), nth, &Event::Malloc { size_bytes: 8 + nth % 99 }, false).unwrap();
    }
    writer.finish().unwrap();
    let trace = path.to_str().unwrap();
    let rounds = [&["--rounds", "3", "--allocators", "system"][..], &NOT_WARMED].concat();
    for arguments in [
        &["replay", trace][..],
        &["compare", "--trace", trace],
        &["bench", "churn", "--ops", "1000"],
        &["bench", "all", "--only", "churn"],
    ] {
        let report = record("controls", &[arguments, &rounds[..]].concat());
        check_controls(&report, arguments);
    }
    std::fs::remove_file(&path).unwrap();
    let program = [&["compare"][..], &rounds, &["--json"]].concat();
    let file = temporary("controls-program");
    let output = hectare(&[&program[..], &[file.to_str().unwrap(), "--", "true"]].concat());
    assert!(output.status.success());
    let report = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    check_controls(&report, &["compare", "--", "true"]);
}

fn check_controls(report: &serde_json::Value, arguments: &[&str]) {
    let notes: Vec<&str> =
        report["notes"].as_array().unwrap().iter().map(|note| note.as_str().unwrap()).collect();
    for control in ["noise floor, time", "planted slowness"] {
        assert!(notes.iter().any(|note| note.starts_with(control)), "{arguments:?}: {notes:?}");
    }
    for role in ["again", "planted"] {
        let rows = report["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["role"] == role).expect("a control's row");
        assert!(row["time_ratio_low"].is_number(), "{arguments:?}: {row}");
    }
}

#[test]
fn an_interrupted_contest_keeps_what_it_measured() {
    let file = temporary("interrupted");
    // No signal ignored, as a shell has it in what it starts in the background.
    let mut command = Command::new("env");
    command.args(["--default-signal", env!("CARGO_BIN_EXE_hectare")]);
    command.args(["bench", "churn", "--ops", "20000", "--allocators", "system"]);
    // Warming would wait for the host, and the first round come after the interruption.
    command.args(NOT_WARMED);
    command.args(["--rounds", "1000", "--json", file.to_str().unwrap()]);
    let child = command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_secs(2));
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.contains("system again") && table.contains("interrupted:"), "{table}");
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    let rounds = report["parameters"]["rounds"].as_u64().unwrap();
    assert!((1..1000).contains(&rounds), "{rounds} rounds");
    for row in report["rows"].as_array().unwrap() {
        assert_eq!(row["time_ns_runs"].as_array().unwrap().len() as u64, rounds, "{row}");
    }
}
