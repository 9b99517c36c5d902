//! Starts a user's program for the runner, so that the program alone is counted.
//!
//! ```text
//!  runner ──spawn──► launcher ──fork──► … ──exec──► program
//!    │                  │ Started{pid, at}              │
//!    │◄──────pipe───────┘ Ended{at, status, usage} ◄─wait4
//!    └─ samples the program by its pid
//! ```
//!
//! 1. A process that `fork` made begins with an account of its own, all zero; by `exec` in the
//!    launcher's place, or by `vfork`, the program would inherit the launcher's processor time, its
//!    page faults and its mark of resident memory.
//! 2. The launcher has one thread, so what follows `fork` in the child may allocate.
//! 3. The program ends with the launcher, and the launcher with the runner.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use super::{ChildRecord, send, spin};
use crate::measure::monotonic_ns;
use crate::runner;

/// Starts the program, waits for it, and writes both moments to `pipe`.
pub(super) fn run(
    pipe: &mut File,
    preload: Option<PathBuf>,
    planted_ns: u64,
    command: &[OsString],
) -> anyhow::Result<()> {
    // SAFETY: the descriptor is open; the program must not inherit it.
    unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
    // SAFETY: by invariant 2 no other thread holds a lock that the child would need.
    let pid = unsafe { libc::fork() };
    match pid {
        0 => {
            let error = become_program(pipe, preload, planted_ns, command);
            let _ = send(pipe, &ChildRecord::Failed(format!("{error:#}")));
            // SAFETY: ends this process without the launcher's handlers at exit.
            unsafe { libc::_exit(127) }
        }
        1.. => {
            let (status, usage) = runner::wait(pid)?;
            let at_ns = monotonic_ns();
            send(pipe, &ChildRecord::Ended { at_ns, status, usage })
        }
        _ => {
            let error = std::io::Error::last_os_error();
            send(pipe, &ChildRecord::Failed(format!("cannot start a process: {error}")))
        }
    }
}

/// Takes the place of the forked child; comes back only with the reason why it could not.
fn become_program(
    pipe: &mut File,
    preload: Option<PathBuf>,
    planted_ns: u64,
    command: &[OsString],
) -> anyhow::Error {
    let Some((program, arguments)) = command.split_first() else {
        return anyhow::anyhow!("no program is given");
    };
    // SAFETY: takes a signal number and changes nothing but this process's own setting.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let mut command = Command::new(program);
    command.args(arguments);
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    let pid = std::process::id() as i32;
    if let Err(error) = send(pipe, &ChildRecord::Started { pid, at_ns: monotonic_ns() }) {
        return error;
    }
    spin(Duration::from_nanos(planted_ns));
    Err::<(), _>(command.exec())
        .with_context(|| format!("starting {}", program.to_string_lossy()))
        .expect_err("`exec` comes back only when it failed")
}
