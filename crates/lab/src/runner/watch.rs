//! Watches a running process: reads its pipe, samples its memory, sees its end.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;

use super::Failure;
use super::sample::{self, Sample, Tree};
use super::served::Lookout;
use crate::cmd::child::ChildRecord;
use crate::measure::monotonic_ns;

/// What is watched while a process runs.
pub(super) struct Watch {
    /// Whose memory is sampled: the child, or the program that it launched.
    pub(super) pid: i32,
    /// The same process with its descendants.
    pub(super) tree: Tree,
    /// The child.
    pub(super) process: OwnedFd,
    pub(super) pipe: File,
    pub(super) line: Vec<u8>,
    pub(super) samples: Vec<Sample>,
    /// Whether the program has not begun: the launcher's memory is not the program's.
    pub(super) launching: bool,
    /// Looks at the programs of the tree, once the program is launched.
    pub(super) lookout: Option<Lookout>,
}

impl Watch {
    /// Samples until the process has ended (`None`) or must be ended (the reason).
    pub(super) fn until_end(
        &mut self,
        every: Duration,
        start_ns: u64,
        patience: Duration,
        flag: &AtomicBool,
    ) -> Option<Failure> {
        let mut pipe_open = true;
        loop {
            let mut waiting = [
                libc::pollfd { fd: self.process.as_raw_fd(), events: libc::POLLIN, revents: 0 },
                libc::pollfd { fd: self.pipe.as_raw_fd(), events: libc::POLLIN, revents: 0 },
            ];
            let count = if pipe_open { 2 } else { 1 };
            let timeout = libc::timespec {
                tv_sec: every.as_secs() as libc::time_t,
                tv_nsec: libc::c_long::from(every.subsec_nanos() as i32),
            };
            // SAFETY: `waiting` holds `count` initialised entries; no signal mask is given.
            let seen =
                unsafe { libc::ppoll(waiting.as_mut_ptr(), count, &timeout, std::ptr::null()) };
            if seen < 0 {
                // A signal came. The pipe is read before the flag is looked at, since it may say
                // that the program has begun.
                continue;
            }
            if waiting[0].revents != 0 {
                return None;
            }
            if pipe_open && waiting[1].revents != 0 {
                let mut buffer = [0; 4096];
                match self.pipe.read(&mut buffer) {
                    Ok(0) | Err(_) => pipe_open = false,
                    Ok(length) => self.line.extend_from_slice(&buffer[..length]),
                }
                continue;
            }
            // Before the flag is looked at: once the program has begun, an interruption is the
            // program's.
            if self.launching {
                self.find_program();
            }
            if flag.load(Ordering::Relaxed) {
                return Some(Failure::Interrupted);
            }
            let now_ns = monotonic_ns();
            if u128::from(now_ns - start_ns) > patience.as_nanos() {
                let why = format!("did not end within {} s (--timeout)", patience.as_secs());
                return Some(Failure::Broken(why));
            }
            if self.launching {
                continue;
            }
            if let Some(bytes) = self.tree.resident_bytes() {
                self.samples.push(Sample { at_ns: now_ns, bytes });
            }
        }
    }

    /// Watches the program once it has been executed.
    fn find_program(&mut self) {
        let mut records = serde_json::Deserializer::from_slice(&self.line).into_iter();
        if let Some(Ok(ChildRecord::Started { pid })) = records.next()
            && !sample::is_this_executable(pid)
        {
            (self.pid, self.launching) = (pid, false);
            self.tree = Tree::of(pid, self.lookout.take());
        }
    }

    pub(super) fn read_pipe_to_end(&mut self) {
        // A grandchild may still hold the write end, but what the child wrote is already there.
        // SAFETY: the descriptor is open; the call only changes its flags.
        unsafe { libc::fcntl(self.pipe.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        let _ = self.pipe.read_to_end(&mut self.line);
    }
}

pub(super) fn pipe() -> anyhow::Result<(File, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(std::io::Error::last_os_error()).context("making a pipe");
    }
    // SAFETY: just opened, owned by nobody else.
    let read_end = unsafe { File::from_raw_fd(ends[0]) };
    // SAFETY: just opened, owned by nobody else.
    let write_end = unsafe { OwnedFd::from_raw_fd(ends[1]) };
    Ok((read_end, write_end))
}

pub(super) fn set_inheritable(descriptor: &OwnedFd) -> anyhow::Result<()> {
    // SAFETY: the descriptor is open; clearing its flags is what the runner's invariant 2 allows.
    if unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_SETFD, 0) } != 0 {
        return Err(std::io::Error::last_os_error()).context("passing the pipe on");
    }
    Ok(())
}

pub(super) fn pid_descriptor(pid: i32) -> anyhow::Result<OwnedFd> {
    // SAFETY: `pid` is our child and not yet waited for, so it names no other process.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if descriptor < 0 {
        return Err(std::io::Error::last_os_error())
            .context("watching the measured process (pidfd_open needs Linux 5.3)");
    }
    // SAFETY: just opened, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) })
}
