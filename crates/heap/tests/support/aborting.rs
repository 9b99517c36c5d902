//! Misuse that must end a child, with one line that says what.

use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::{Front, Source, new_heap};

/// Runs `misuse` in a child over a fresh heap. Returns what the child wrote to standard error.
/// Panics unless SIGABRT ended the child.
pub fn aborts(misuse: impl FnOnce(&mut Front<'_, Source>)) -> String {
    let mut ends = [0; 2];
    // SAFETY: two places for two descriptors.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: two descriptors just made, nobody else's.
    let [from, to] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    // SAFETY: the child calls the heap and a few system calls, then ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no child");
    if child == 0 {
        let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: valid arguments; this process is the test's own.
        unsafe {
            libc::setrlimit(libc::RLIMIT_CORE, &raw const no_core);
            libc::dup2(to.as_raw_fd(), libc::STDERR_FILENO);
        }
        let heap = new_heap(16 << 20);
        misuse(&mut Front::new(&heap));
        // SAFETY: ends this process without the harness's exit handlers.
        unsafe { libc::_exit(0) };
    }
    drop(to);
    let mut line = String::new();
    std::fs::File::from(from).read_to_string(&mut line).expect("the child's line");
    let mut status = 0;
    // SAFETY: the child just made, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    let aborted = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT;
    assert!(aborted, "status {status:#x}, not SIGABRT; it wrote: {line:?}");
    line
}

pub fn assert_line(line: &str, call: &str, cause: &str) {
    assert!(line.starts_with(&format!("hectare: {call}(0x")), "{line:?}");
    assert!(line.contains(cause), "{line:?} instead of {cause:?}");
    assert!(line.ends_with('\n') && line.lines().count() == 1, "one line: {line:?}");
}
