//! Long traces are recorded, read and replayed in memory that does not grow with them.
//!
//! By default some millions of events, more than are replayed at a time. `HECTARE_LONG_EVENTS` sets
//! another number; 380000000 make a trace of more than a gibibyte:
//!
//!     HECTARE_LONG_EVENTS=380000000 cargo test --release -p hectare-lab --test long -- --nocapture

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

mod common;

use common::{HECTARE, build_recorder};

/// Enough for two stretches of the replay.
const DEFAULT_EVENTS: u64 = 4_300_000;

/// What recording and replaying may take, bytes: the operations of one stretch, decoded (24 bytes
/// each of four million, and what timing them takes), and some chunks. Independent of the length.
const MOST_BYTES: u64 = 350 << 20;

/// Frees and allocates: sizes and slots are drawn, so that the trace does not compress to nothing.
const PROGRAM: &str = r#"
#include <stdint.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    static void *slots[4096];
    uint64_t x = 88172645463325252u, left = strtoull(argv[argc - 1], 0, 10) / 2;
    while (left--) {
        x ^= x << 13; x ^= x >> 7; x ^= x << 17;
        void **slot = &slots[x % 4096];
        free(*slot);
        *slot = malloc(1 + (x >> 20) % 3000);
    }
    return 0;
}
"#;

/// Runs the command; gives the peak of resident memory of it and what it started, and its time.
fn measured(arguments: &[&str]) -> (u64, Duration) {
    let since = Instant::now();
    #[expect(clippy::zombie_processes, reason = "wait4 below waits, and gives the usage as well")]
    let child = Command::new(HECTARE)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command starts");
    let mut status = 0;
    // SAFETY: all-zero is a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both out-parameters are valid for writing; the child is ours and not yet waited for.
    let waited = unsafe { libc::wait4(child.id() as i32, &mut status, 0, &mut usage) };
    assert_eq!((waited, status), (child.id() as i32, 0), "{arguments:?}");
    (usage.ru_maxrss as u64 * 1024, since.elapsed())
}

#[test]
fn memory_does_not_grow_with_the_trace() {
    build_recorder();
    let events: u64 = match std::env::var("HECTARE_LONG_EVENTS") {
        Ok(text) => text.parse().expect("HECTARE_LONG_EVENTS is a number"),
        Err(_) => DEFAULT_EVENTS,
    };
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let at = |name: &str| {
        let name = format!("{}-{name}", std::process::id());
        folder.join(name).to_str().unwrap().to_owned()
    };
    let (program, trace) = (at("long-program"), at("long.hxt"));
    let mut compiler = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".to_owned()))
        .args(["-O1", "-fno-builtin", "-x", "c", "-", "-o", &program])
        .stdin(Stdio::piped())
        .spawn()
        .expect("a C compiler is needed");
    compiler.stdin.take().unwrap().write_all(PROGRAM.as_bytes()).unwrap();
    assert!(compiler.wait().unwrap().success());

    let events_text = events.to_string();
    let mut steps = Vec::new();
    let mut step = |name: &str, arguments: &[&str]| {
        let (peak_bytes, time) = measured(arguments);
        eprintln!("{name}: {:.1} s, peak {:.1} MiB", time.as_secs_f64(), mib(peak_bytes));
        steps.push((name.to_owned(), peak_bytes));
    };
    step("record", &["record", "--tick-ns", "1", "-o", &trace, "--", &program, &events_text]);
    let bytes = std::fs::metadata(&trace).unwrap().len();
    eprintln!("{events} events, {:.1} MiB sealed", mib(bytes));
    step("info", &["info", &trace]);
    // What is touched to warm memory is the machine's need, not the trace's.
    let replay =
        ["replay", &trace, "--allocators", "system", "--rounds", "1", "--warm-memory", "never"];
    step("replay", &replay);
    std::fs::remove_file(&trace).unwrap();
    std::fs::remove_file(&program).unwrap();
    for (name, peak_bytes) in steps {
        assert!(peak_bytes < MOST_BYTES, "{name} took {:.1} MiB", mib(peak_bytes));
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
