//! The standard input of programs that are measured more than once. Every run finds the same.
//!
//! A file is opened anew for each run and read from the position at which the command got it. A
//! pipe can be read only once, so no run gets its content. A terminal or a device has no content.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileTypeExt;
use std::process::Stdio;
use std::sync::OnceLock;

/// The standard input of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// A file, from this byte on.
    File(u64),
    /// A pipe or a socket.
    Pipe,
    /// Nothing that has content.
    Nothing,
}

impl Given {
    /// The standard input when first asked: before a program has read from it.
    pub(crate) fn at_first() -> Self {
        static GIVEN: OnceLock<Given> = OnceLock::new();
        *GIVEN.get_or_init(|| Self::now().unwrap_or(Self::Nothing))
    }

    fn now() -> std::io::Result<Self> {
        // The duplicate refers to the same open file, and so to the same position.
        let mut input = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
        let kind = input.metadata()?.file_type();
        Ok(if kind.is_file() {
            Self::File(input.stream_position()?)
        } else if kind.is_fifo() || kind.is_socket() {
            Self::Pipe
        } else {
            Self::Nothing
        })
    }

    /// The input of one run of many.
    ///
    /// # Errors
    /// When the file cannot be opened a second time.
    pub(super) fn for_a_run(self) -> std::io::Result<Stdio> {
        let Self::File(place) = self else { return Ok(Stdio::null()) };
        let mut file = File::open("/proc/self/fd/0")?;
        file.seek(SeekFrom::Start(place))?;
        Ok(file.into())
    }

    /// Whether it is a pipe that holds something nobody has read.
    pub(crate) fn has_unread(self) -> bool {
        let mut bytes: libc::c_int = 0;
        // SAFETY: asks how much can be read, which is written to `bytes`.
        let told = unsafe {
            libc::ioctl(
                std::io::stdin().as_raw_fd(),
                libc::FIONREAD,
                std::ptr::from_mut(&mut bytes),
            )
        };
        self == Self::Pipe && told == 0 && bytes > 0
    }
}
