//! Finds the library, compiles the programs, runs them with a time limit, and lists the tests.

use std::collections::HashMap;
use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

pub(crate) use hectare_check::{Suite, find_tool};

/// How long a program may run. The limit is generous: a machine may be busy, and a deadlock lasts
/// for ever.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// What a test says when its promise is broken.
pub(crate) type Outcome = Result<(), String>;

/// Fails with `message` unless `condition` holds.
pub(crate) fn ensure(condition: bool, message: impl FnOnce() -> String) -> Outcome {
    if condition { Ok(()) } else { Err(message()) }
}

/// The library under test, in the profile that this test was built in.
///
/// # Panics
/// If it cannot be built.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| build_library().unwrap_or_else(|error| panic!("{error}")))
}

/// Cargo builds no `cdylib` for the tests of its package, so this asks it to. If the library is up
/// to date, that takes a fraction of a second; a stale library is never tested.
fn build_library() -> Result<PathBuf, String> {
    let test = env::current_exe().map_err(|error| error.to_string())?;
    let directory = test.ancestors().nth(2).ok_or("the test lies in no target directory")?;
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--offline", "--package", "hectare-preload", "--lib"]);
    build.arg("--manifest-path").arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
    match directory.file_name().and_then(OsStr::to_str) {
        // The directory of both `dev` and `test`; the latter is optimised.
        Some("debug") => build.args(["--profile", "test"]),
        Some(profile) => build.args(["--profile", profile]),
        None => return Err(format!("no profile is named by {}", directory.display())),
    };
    let target = directory.parent().ok_or("the profile's directory has no parent")?;
    build.arg("--target-dir").arg(target);
    let output = build.output().map_err(|error| format!("{build:?}: {error}"))?;
    ensure(output.status.success(), || {
        format!("{build:?} failed:\n{}", String::from_utf8_lossy(&output.stderr))
    })?;
    let library = directory.join("libhectare.so");
    ensure(library.is_file(), || format!("{build:?} made no {}", library.display()))?;
    Ok(library)
}

/// An empty directory for a test's files.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "{}-{}",
        name.replace("::", "-"),
        std::process::id()
    ));
    // It is left over from a process with the same number, if it exists at all.
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).expect("a directory for the test's files");
    directory
}

/// The C or C++ program `tests/c/<source>`, compiled once.
pub(crate) fn program(source: &'static str) -> Result<PathBuf, String> {
    compile(source, &[], "")
}

/// `tests/c/<source>` compiled with `flags`, which make it the variant called `variant`.
pub(crate) fn compile(
    source: &'static str,
    flags: &[&str],
    variant: &'static str,
) -> Result<PathBuf, String> {
    type Built = Arc<OnceLock<Result<PathBuf, String>>>;
    static BUILT: Mutex<Option<HashMap<(&str, &str), Built>>> = Mutex::new(None);
    let cell = {
        let mut built = BUILT.lock().expect("no test panics while it looks a program up");
        let programs = built.get_or_insert_default();
        programs.entry((source, variant)).or_default().clone()
    };
    cell.get_or_init(|| compile_now(source, flags, variant)).clone()
}

fn compile_now(source: &str, flags: &[&str], variant: &str) -> Result<PathBuf, String> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
    let (compiler, standard) =
        if source.ends_with(".cpp") { ("c++", "-std=c++17") } else { ("cc", "-std=gnu11") };
    let name = format!("{}{variant}-{}", source.replace('.', "-"), std::process::id());
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut command = Command::new(compiler);
    // With the built-ins, the compiler could drop a pair of malloc and free.
    command.args([standard, "-O1", "-g", "-fno-builtin", "-Wall", "-Wno-use-after-free"]);
    command.arg(&place).arg("-o").arg(&out).args(["-pthread", "-ldl"]).args(flags);
    let output = command.output().map_err(|error| format!("{compiler}: {error}"))?;
    ensure(output.status.success(), || {
        format!("{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr))
    })?;
    Ok(out)
}

/// What a program printed and how it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// An error with everything printed, unless the program ended with status 0.
    pub(crate) fn well(self) -> Result<Self, String> {
        if self.status.success() { Ok(self) } else { Err(self.describe("it failed")) }
    }

    /// Whether this signal ended the program.
    pub(crate) fn signalled(&self, signal: i32) -> bool {
        self.status.signal() == Some(signal)
    }

    pub(crate) fn describe(&self, what: &str) -> String {
        format!(
            "{what}: {}\n--- stdout\n{}\n--- stderr\n{}",
            self.status,
            clipped(&self.stdout),
            clipped(&self.stderr)
        )
    }
}

/// As much of a text as shows what went wrong.
fn clipped(text: &str) -> &str {
    let end = text.char_indices().nth(4000).map_or(text.len(), |(end, _)| end);
    &text[..end]
}

/// A command with the library preloaded, and no configuration unless the test gives one.
pub(crate) fn preloaded(program: impl AsRef<OsStr>) -> Command {
    let mut command = plain(program);
    command.env("LD_PRELOAD", library());
    command
}

/// A command without the library.
pub(crate) fn plain(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_remove("LD_PRELOAD").env_remove("HECTARE_CONF").env("LC_ALL", "C");
    command
}

/// Runs a command to its end, or kills it at the time limit and says so.
pub(crate) fn run(command: &mut Command) -> Result<Ended, String> {
    run_with_input(command, "")
}

/// As [`run`], with another time limit.
pub(crate) fn run_for(command: &mut Command, limit: Duration) -> Result<Ended, String> {
    run_until(command, "", limit)
}

/// As [`run`], with `input` on its standard input.
pub(crate) fn run_with_input(command: &mut Command, input: &str) -> Result<Ended, String> {
    run_until(command, input, TIME_LIMIT)
}

fn run_until(command: &mut Command, input: &str, limit: Duration) -> Result<Ended, String> {
    // Files, not pipes: they never fill up, and a grandchild that lives on does not make this wait.
    let [mut stdin, mut stdout, mut stderr] = [temporary()?, temporary()?, temporary()?];
    std::io::Write::write_all(&mut stdin, input.as_bytes()).map_err(|e| e.to_string())?;
    stdin.rewind().map_err(|error| error.to_string())?;
    let clone = |file: &File| file.try_clone().map(Stdio::from).map_err(|e| e.to_string());
    command.stdin(clone(&stdin)?).stdout(clone(&stdout)?).stderr(clone(&stderr)?);
    let mut child = command.spawn().map_err(|error| format!("{command:?}: {error}"))?;
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            break Some(status);
        }
        if started.elapsed() > limit {
            // Either call fails only if the child has ended meanwhile.
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let (stdout, stderr) = (text_of(&mut stdout)?, text_of(&mut stderr)?);
    match status {
        Some(status) => Ok(Ended { status, stdout, stderr }),
        None => Err(format!(
            "{command:?} still ran after {limit:?}\n--- stdout\n{}\n--- stderr\n{}",
            clipped(&stdout),
            clipped(&stderr)
        )),
    }
}

fn temporary() -> Result<File, String> {
    static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let name = format!("stream-{}-{number}", std::process::id());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let file = File::options().read(true).write(true).create_new(true).open(&path);
    let file = file.map_err(|error| format!("{}: {error}", path.display()))?;
    // Open and nameless: gone with its last user.
    fs::remove_file(&path).map_err(|error| error.to_string())?;
    Ok(file)
}

fn text_of(file: &mut File) -> Result<String, String> {
    file.rewind().map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Adds a test for each case of a program, which gets the case's name as its argument.
pub(crate) fn add_cases(suite: &mut Suite, theme: &str, source: &'static str, cases: &[&str]) {
    add_cases_of(suite, theme, source, cases, |source| program(source).map(preloaded));
}

/// As [`add_cases`], for the program that `command` makes of the source.
pub(crate) fn add_cases_of(
    suite: &mut Suite,
    theme: &str,
    source: &'static str,
    cases: &[&str],
    command: fn(&'static str) -> Result<Command, String>,
) {
    let compiler = if source.ends_with(".cpp") { "c++" } else { "cc" };
    for &case in cases {
        let case = case.to_owned();
        suite.test_with(format!("{theme}::{case}"), &[compiler], move || {
            run(command(source)?.arg(&case))?.well().map(drop)
        });
    }
}
