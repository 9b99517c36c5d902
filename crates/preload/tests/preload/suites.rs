//! Programs' own test suites, as Debian ships them. Each part runs on the system's allocator and
//! with the library. It must end the same, with the same tests passed.
//!
//! A part takes a second or two. `HECTARE_SUITES=all` adds those that take up to a minute.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::harness::{
    Ended, Outcome, Suite, ensure, find_tool, plain, preloaded, run_for, scratch,
};

pub(crate) fn add(suite: &mut Suite) {
    python(suite);
    glib(suite);
}

/// Adds a test for each of `parts`, and for each of `longer` if those are asked for. Those that are
/// not `here` are skipped.
fn add_parts(
    suite: &mut Suite,
    theme: &str,
    [parts, longer]: [&[&'static str]; 2],
    here: impl Fn(&str) -> bool,
    test: fn(&str) -> Outcome,
) {
    let all = env::var("HECTARE_SUITES").is_ok_and(|value| value == "all");
    if !all {
        let reason = format!("{} parts that HECTARE_SUITES=all runs", longer.len());
        suite.skip(format!("suites::{theme}[longer]"), reason);
    }
    for &part in parts.iter().chain(longer.iter().filter(|_| all)) {
        let name = format!("suites::{theme}[{part}]");
        if here(part) {
            suite.test(name, move || test(part));
        } else {
            suite.skip(name, format!("this {theme} comes without it"));
        }
    }
}

/// How long a part may run: as long as a slow one takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs a part with the library and without. The lines that `outcomes` finds must be the same.
fn same(
    theme: &str,
    command: &dyn Fn(fn(&Path) -> Command) -> Command,
    outcomes: fn(&Ended) -> Vec<String>,
) -> Outcome {
    let directory = scratch(&format!("suites-{theme}"));
    let run_by = |start| run_for(command(start).current_dir(&directory), LIMIT);
    let without = run_by(|program| plain(program))?;
    let with = run_by(|program| preloaded(program))?;
    let (expected, seen) = (outcomes(&without), outcomes(&with));
    ensure(!expected.is_empty(), || without.describe("without the library no test has run"))?;
    ensure(with.status == without.status && seen == expected, || {
        format!("without the library: {}, {expected:?}\n{}", without.status, with.describe("with"))
    })?;
    std::fs::remove_dir_all(&directory).map_err(|error| error.to_string())
}

/// Modules of CPython's suite that allocate, thread, fork and map (Debian: `libpython3-testsuite`).
const PYTHON: [&[&str]; 2] = [
    &["array", "ctypes", "dict", "fork1", "gc", "json", "mmap", "re", "thread", "xml_etree"],
    &[
        "bytes",
        "bz2",
        "decimal",
        "faulthandler",
        "hashlib",
        "io",
        "itertools",
        "lzma",
        "multiprocessing_fork",
        "os",
        "pickle",
        "posix",
        "queue",
        "selectors",
        "set",
        "signal",
        "subprocess",
        "threading",
        "tracemalloc",
        "unicode",
        "weakref",
        "zlib",
    ],
];

fn python(suite: &mut Suite) {
    match find_python() {
        Some(python) => add_parts(
            suite,
            "python3",
            PYTHON,
            |module| has(&python, module),
            |module| {
                let python = find_python().ok_or("python3 is gone")?;
                let command = |start: fn(&Path) -> Command| {
                    let mut command = start(&python);
                    // Python's own allocator for small objects would serve most of what is tested.
                    command.env("PYTHONMALLOC", "malloc").env("PYTHONDONTWRITEBYTECODE", "1");
                    command.args(["-m", "test", "-v"]).arg(format!("test_{module}"));
                    command
                };
                same(&format!("python3-{module}"), &command, unittest_outcomes)
            },
        ),
        None => suite.skip("suites::python3", "no python3 with its test suite here"),
    }
}

/// The `python3` that has the suite: the distribution's, or else the first on the path.
fn find_python() -> Option<PathBuf> {
    let candidates = [Some(PathBuf::from("/usr/bin/python3")), find_tool("python3")];
    candidates.into_iter().flatten().find(|python| {
        let mut command = plain(python);
        command.args(["-c", "import test.test_gc, test.test_json"]);
        command.output().is_ok_and(|output| output.status.success())
    })
}

/// Whether a Python's suite has a module: some builds leave out what is a directory of tests.
fn has(python: &Path, module: &str) -> bool {
    let find = "import importlib.util as u, sys; sys.exit(u.find_spec('test.test_' + sys.argv[1]) is None)";
    let mut command = plain(python);
    command.args(["-c", find, module]);
    command.status().is_ok_and(|status| status.success())
}

/// How many tests were run, and how that went: `Ran 55 tests`, `OK (skipped=2)`.
fn unittest_outcomes(ended: &Ended) -> Vec<String> {
    let summary = |line: &str| {
        let (counted, _) = line.split_once(" in ").unwrap_or((line, ""));
        ["Ran ", "OK", "FAILED"].iter().any(|start| line.starts_with(start)).then(|| counted.into())
    };
    ended.stdout.lines().chain(ended.stderr.lines()).filter_map(summary).collect()
}

/// Where `libglib2.0-tests` puts its programs.
const GLIB_PROGRAMS: &str = "/usr/libexec/installed-tests/glib";

/// The seed of their random numbers: tests are named after it.
const SEED: &str = "R02S9a79238f4bf03f87b0500fab5317d291";

/// Programs of GLib's suite: containers, strings, threads and their pools, processes, D-Bus.
const GLIB: [&[&str]; 2] = [
    &[
        "array-test",
        "asyncqueue",
        "bytes",
        "gdbus-peer",
        "gdbus-proxy-threads",
        "gdbus-server-auth",
        "hash",
        "list",
        "markup-parse",
        "queue",
        "rcbox",
        "regex",
        "slice",
        "spawn-singlethread",
        "strfuncs",
        "thread",
        "thread-pool",
        "tree",
        "utils",
    ],
    &[
        "1bit-mutex",
        "cond",
        "gdbus-proxy",
        "gsubprocess",
        "gvariant",
        "mainloop",
        "objects-refcount1",
        "private",
        "rec-mutex",
        "sequence",
        "signals-refcount1",
        "spawn-multithreaded",
        "thread-deprecated",
        "thread-pool-slow",
        "threadtests",
        "timeout",
    ],
];

fn glib(suite: &mut Suite) {
    let has = |program: &str| Path::new(GLIB_PROGRAMS).join(program).is_file();
    if !GLIB.concat().into_iter().any(has) {
        return suite.skip("suites::glib", format!("{GLIB_PROGRAMS} has none of GLib's tests"));
    }
    add_parts(suite, "glib", GLIB, has, |program| {
        let command = |start: fn(&Path) -> Command| {
            let mut command = start(&Path::new(GLIB_PROGRAMS).join(program));
            command.args(["--tap", "--seed", SEED]).env("G_TEST_SRCDIR", GLIB_PROGRAMS);
            command.env("G_TEST_BUILDDIR", GLIB_PROGRAMS).env_remove("DBUS_SESSION_BUS_ADDRESS");
            command
        };
        same(&format!("glib-{program}"), &command, tap_outcomes)
    });
}

/// The lines of the Test Anything Protocol: `ok 3 /hash/direct`, `not ok 4 /hash/direct2`.
fn tap_outcomes(ended: &Ended) -> Vec<String> {
    let is_outcome = |line: &&str| line.starts_with("ok ") || line.starts_with("not ok ");
    ended.stdout.lines().filter(is_outcome).map(str::to_owned).collect()
}
