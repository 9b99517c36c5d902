//! The command from outside: a real contest, its exit codes, its record.

use std::path::PathBuf;
use std::process::{Command, Output};

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

const CHURN: [&str; 8] =
    ["bench", "churn", "--ops", "400000", "--rounds", "60", "--allocators", "system"];

/// The canary: a contest that does not see a slowness that is there is worth nothing. Tests run
/// beside builds, where single rounds differ by a fifth: six rounds cannot tell 10 % there, sixty
/// short ones can. A burst of other work may hide it once, not three times.
#[test]
fn a_planted_slowness_is_seen() {
    let seen = (0..3).any(|_| {
        let report = record("planted", &CHURN);
        assert_eq!(report["schema"], 1);
        let notes = report["notes"].as_array().unwrap();
        notes.iter().any(|note| note.as_str().unwrap().starts_with("planted slowness seen"))
    });
    assert!(seen, "a slowness of 10 % was planted and not seen in three contests");
}

#[test]
fn a_program_is_compared_and_claims_decide_the_exit_code() {
    let claim = |claim: &str| {
        let arguments =
            ["compare", "--allocators", "system", "--rounds", "3", "--assert", claim, "--", "true"];
        hectare(&arguments).status.code()
    };
    assert_eq!(claim("time(system) < 60s"), Some(0));
    assert_eq!(claim("time(system) > 60s"), Some(3));
    assert_eq!(claim("time(nobody) > 60s"), Some(1));
    assert_eq!(claim("nonsense"), Some(2));
}

#[test]
fn what_cannot_be_done_is_said() {
    for (arguments, part) in [
        (&["compare", "--allocators", "nosuch"][..], "no allocator is called `nosuch`"),
        (&["compare", "--", "no-such-program"][..], "no program `no-such-program`"),
        (&["bench", "nosuch"][..], "no benchmark is called `nosuch`"),
        (&["report", "/nowhere.json"][..], "/nowhere.json"),
    ] {
        let output = hectare(arguments);
        assert_eq!(output.status.code(), Some(1));
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_record_becomes_a_page() {
    let (json, html) = (temporary("page.json"), temporary("page.html"));
    let churn = ["bench", "churn", "--ops", "1000", "--rounds", "3", "--allocators", "system"];
    let mut arguments = churn.to_vec();
    arguments.extend(["--json", json.to_str().unwrap()]);
    assert!(hectare(&arguments).status.success());
    assert!(
        hectare(&["report", "-o", html.to_str().unwrap(), json.to_str().unwrap()]).status.success()
    );
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.contains("<svg") && page.contains("hectare bench churn"));
    std::fs::remove_file(&json).unwrap();
    std::fs::remove_file(&html).unwrap();
}
