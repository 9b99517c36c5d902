//! What the command says when something fails: exit codes, messages, and nothing lost or left.

use std::fs::File;
use std::io::Write;
use std::os::fd::FromRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use hectare_trace::{Event, FileHeader, ObjectId, ThreadId, Writer};

mod arguments;
#[path = "../common/mod.rs"]
mod common;
mod programs;
mod recording;
mod traces;

use common::{HECTARE, build_recorder};

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

/// The command, with no signal ignored: what a shell starts in the background ignores some.
fn attentive() -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", HECTARE]);
    command
}

/// Makes `command` lead a session with a terminal, which is not its standard input; returns the
/// other end.
fn on_a_terminal(command: &mut Command) -> File {
    let (mut master, mut slave) = (0, 0);
    let none = std::ptr::null_mut();
    // SAFETY: both are valid for writing; the rest is left out.
    let opened =
        unsafe { libc::openpty(&mut master, &mut slave, none, std::ptr::null(), std::ptr::null()) };
    assert_eq!(opened, 0);
    let lead = move || {
        // SAFETY: only changes what the new process belongs to.
        let alone = unsafe { libc::setsid() } != -1;
        // SAFETY: as above.
        let led = alone && unsafe { libc::ioctl(slave, libc::TIOCSCTTY, 0) } != -1;
        if led { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: system calls alone.
    unsafe { command.pre_exec(lead) };
    // SAFETY: just opened, and owned by nobody else.
    unsafe { File::from_raw_fd(master) }
}

/// Where nothing is measured that warm memory would change: to warm it takes seconds on some machines.
const NOT_WARMED: [&str; 2] = ["--warm-memory", "never"];

const TWO_ROUNDS: [&str; 7] =
    ["compare", "--allocators", "system", "--rounds", "2", NOT_WARMED[0], NOT_WARMED[1]];

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
