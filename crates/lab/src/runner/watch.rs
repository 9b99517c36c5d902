//! Watches a running process: reads its pipe, samples its memory, sees its end.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::FdFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

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
            let mut waiting =
                [PollFd::new(&self.process, PollFlags::IN), PollFd::new(&self.pipe, PollFlags::IN)];
            let count = if pipe_open { 2 } else { 1 };
            let timeout = Timespec::try_from(every).ok();
            if poll(&mut waiting[..count], timeout.as_ref()).is_err() {
                // A signal came. The pipe is read before the flag is looked at, since it may say
                // that the program has begun.
                continue;
            }
            let [has_ended, has_written] = waiting.map(|seen| !seen.revents().is_empty());
            if has_ended {
                return None;
            }
            if has_written {
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
        let _ = rustix::io::ioctl_fionbio(&self.pipe, true);
        let _ = self.pipe.read_to_end(&mut self.line);
    }
}

pub(super) fn pipe() -> anyhow::Result<(File, OwnedFd)> {
    let (read_end, write_end) = pipe_with(PipeFlags::CLOEXEC).context("making a pipe")?;
    Ok((File::from(read_end), write_end))
}

pub(super) fn set_inheritable(descriptor: &OwnedFd) -> anyhow::Result<()> {
    // The runner's invariant 2 allows this.
    rustix::io::fcntl_setfd(descriptor, FdFlags::empty()).context("passing the pipe on")
}

pub(super) fn pid_descriptor(pid: i32) -> anyhow::Result<OwnedFd> {
    // `pid` is our child and not yet waited for, so it names no other process.
    let pid = Pid::from_raw(pid).context("a process has a number above 0")?;
    pidfd_open(pid, PidfdFlags::empty())
        .context("watching the measured process (pidfd_open needs Linux 5.3)")
}
