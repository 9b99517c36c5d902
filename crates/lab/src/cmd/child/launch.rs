//! Starts a user's program for the runner, so that the program alone is counted.
//!
//! ```text
//!  runner ──spawn──► launcher ──fork──► … ──exec──► program
//!    │                  │ Started{pid}                 │
//!    │◄──────pipe───────┘ Ended{from, to, …} ◄──wait4──┘
//!    └─ samples the program by its pid
//! ```
//!
//! 1. A process made by `fork` begins with its own account, all zero. With `exec` in the launcher's
//!    place, or with `vfork`, the program would inherit the launcher's processor time, page faults
//!    and high-water mark of resident memory. What the child touches before `exec` still counts, so
//!    everything is prepared before the fork, and the child reports through one shared page.
//! 2. The launcher has one thread. Between `fork` and `exec` the child only makes system calls.
//! 3. The launcher ends with the runner, and its whole group ends with it. If nothing may outlive
//!    the program, the launcher also ends the processes that have left the group.
//! 4. The program has no controlling terminal. In a group of its own it would be stopped when it
//!    asks there (a pager for a key, `ssh` for a password), and nobody would ever continue it.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use anyhow::Context;
use rustix::io::FdFlags;
use rustix::process::{Signal, set_parent_process_death_signal};

use super::{ChildRecord, send};
use crate::measure::monotonic_ns;
use crate::runner;

/// What the child reports.
struct Told {
    /// The moment before `exec`, `CLOCK_MONOTONIC`, ns.
    started_ns: AtomicU64,
    /// Why `exec` failed; 0 if it did not.
    errno: AtomicI32,
}

/// Starts the program, waits for it, and writes both moments to `pipe`.
pub(super) fn run(
    pipe: &mut File,
    preload: Option<PathBuf>,
    planted_ns: u64,
    end_all: bool,
    command: &[OsString],
) -> anyhow::Result<()> {
    if end_all {
        // A process left without a parent becomes this process's child, even in a session of its
        // own.
        // SAFETY: takes a number and changes nothing but this process's own setting.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
    }
    let ended = launch(pipe, preload, planted_ns, command);
    if end_all {
        end_children();
    }
    match ended {
        Ok(ended) => send(pipe, &ended),
        Err(error) => send(pipe, &ChildRecord::Failed(format!("{error:#}"))),
    }
}

/// Ends all children, and the processes that thereby become children of this process. A process
/// with the rights of another user stays, with all that it started: this process may not end it,
/// and waiting for it would cost the figures.
fn end_children() {
    loop {
        let mut left = runner::descendants(std::process::id() as i32);
        // SAFETY: a signal to a process just seen below this one.
        left.retain(|&pid| unsafe { libc::kill(pid, libc::SIGKILL) } == 0);
        // Only this process's own children can be waited for. Deeper descendants become its
        // children in turn.
        left.retain(|&pid| runner::wait(pid).is_ok());
        if left.is_empty() {
            return;
        }
    }
}

fn launch(
    pipe: &mut File,
    preload: Option<PathBuf>,
    planted_ns: u64,
    command: &[OsString],
) -> anyhow::Result<ChildRecord> {
    // The program must not inherit it.
    rustix::io::fcntl_setfd(&*pipe, FdFlags::CLOEXEC).context("keeping the pipe")?;
    let on_term = end_group_with_the_runner();
    leave_the_terminal();
    let words = command.iter().map(|word| CString::new(word.as_bytes()));
    let words = words.collect::<Result<Vec<_>, _>>().context("a null in an argument")?;
    let program = words.first().context("no program is given")?;
    let pointers: Vec<_> = words.iter().map(|word| word.as_ptr()).chain([null()]).collect();
    if let Some(library) = preload {
        // SAFETY: by invariant 2 nobody else reads the environment meanwhile.
        unsafe { std::env::set_var("LD_PRELOAD", library) };
    }
    let told = shared_page()?;
    // SAFETY: by invariant 2 no other thread holds a lock that the child would need.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        // SAFETY: restores the previous action, which is no handler.
        unsafe { libc::signal(libc::SIGTERM, on_term) };
        let started_ns = monotonic_ns();
        told.started_ns.store(started_ns, Ordering::Relaxed);
        while monotonic_ns() - started_ns < planted_ns {
            std::hint::spin_loop();
        }
        // SAFETY: strings that live on, and an array of them that ends in null.
        unsafe { libc::execvp(program.as_ptr(), pointers.as_ptr()) };
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOEXEC);
        told.errno.store(errno, Ordering::Relaxed);
        // SAFETY: ends this process without the launcher's handlers at exit.
        unsafe { libc::_exit(127) };
    }
    anyhow::ensure!(pid > 0, "starting a process: {}", std::io::Error::last_os_error());
    // The runner passes the signal on to the group; it is meant for the program.
    // SAFETY: changes nothing but this process's own setting.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
    send(pipe, &ChildRecord::Started { pid })?;
    let (status, usage) = loop {
        let (ended, status, usage) = runner::wait(-1)?;
        // The others have lost their parent. They fill the system's table unless somebody waits for
        // them.
        if ended == pid {
            break (status, usage);
        }
    };
    let ended_ns = monotonic_ns();
    match told.errno.load(Ordering::Relaxed) {
        0 => {
            let started_ns = told.started_ns.load(Ordering::Relaxed);
            Ok(ChildRecord::Ended { started_ns, ended_ns, status, usage })
        }
        errno => Err(std::io::Error::from_raw_os_error(errno))
            .with_context(|| format!("starting {}", command[0].to_string_lossy())),
    }
}

/// Keeps invariant 3 for a runner that was killed; otherwise the runner ends the group itself.
/// Returns the previous action of SIGTERM.
fn end_group_with_the_runner() -> libc::sighandler_t {
    extern "C" fn end_group(_signal: libc::c_int) {
        // SAFETY: signals the process's own group, which the runner made for it.
        unsafe { libc::kill(0, libc::SIGKILL) };
    }
    let handler = end_group as extern "C" fn(libc::c_int);
    // SAFETY: the handler makes one system call.
    let before = unsafe { libc::signal(libc::SIGTERM, handler as *const () as libc::sighandler_t) };
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    before
}

/// Invariant 4: `/dev/tty` can no longer be opened. Open descriptors stay open.
fn leave_the_terminal() {
    if let Ok(terminal) = File::open("/dev/tty") {
        // SAFETY: changes nothing but which terminal is this process's.
        unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCNOTTY) };
    }
}

/// A page that is shared with forked children, and lasts as long as this process.
fn shared_page() -> anyhow::Result<&'static Told> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let page = unsafe { libc::mmap(null_mut(), size_of::<Told>(), protection, flags, -1, 0) };
    anyhow::ensure!(page != libc::MAP_FAILED, "a page: {}", std::io::Error::last_os_error());
    // SAFETY: zeros are a valid value, the page is aligned for it and never unmapped.
    Ok(unsafe { &*page.cast::<Told>() })
}
