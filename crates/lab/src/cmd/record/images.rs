//! The program images that a recording left, and which of them did the work.
//!
//! ```text
//!  process 70   bash wrapper ──exec──▶ bash pyenv ──exec──▶ python3     70.0, 70.1, 70.2
//!  process 71     └─fork─▶ (subshell)                                   71.0
//!  process 72     └─fork─▶ (subshell) ──exec──▶ sed                     72.0, 72.1
//! ```
//!
//! 1. An image that went on to execute another program was a launcher: only the last image of each
//!    process can be the one to advise on. Processes of different times, or of different
//!    namespaces, can have the same number; their times of beginning tell them apart.
//! 2. Among the last images, the one with the most events did the work. A shell's events count a
//!    tenth: a shell is there for what it starts, unless that does next to nothing.

use std::cmp::Reverse;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use hectare_trace::{Error, Trace};

use crate::runner;

/// Names of shells.
const SHELLS: [&str; 8] = ["sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "busybox"];

/// A shell is the image meant if it did this many times as much as any other.
const SHELL_SHARE: u64 = 10;

/// One program that a process was, for some time.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    /// The file its recorder left.
    pub(crate) path: PathBuf,
    /// The process.
    pub(crate) pid: u32,
    /// Which program of the process this is, from 0.
    pub(crate) nth: u32,
    /// When the process began ([`FileHeader::process_start`](hectare_trace::FileHeader)).
    pub(crate) begun: u64,
    /// Events recorded.
    pub(crate) rows: u64,
    /// The command line.
    pub(crate) command: String,
    /// Whether the process went on to execute another program.
    pub(crate) launched: bool,
}

impl Image {
    /// What distinguishes the image's file from the others.
    pub(crate) fn suffix(&self) -> String {
        format!("{}.{}", self.pid, self.nth)
    }

    /// Whether the image's process goes on, as this program or as one that it is just executing or
    /// that nobody records.
    pub(super) fn still_runs(&self) -> bool {
        !self.launched && runner::still_runs(self.pid, self.begun)
    }

    fn is_shell(&self) -> bool {
        let program = self.command.split(' ').next().unwrap_or_default();
        let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
        SHELLS.contains(&name.trim_start_matches('-'))
    }
}

/// Every image whose recorder wrote a file named `raw`.PID.N. The one that did the work comes
/// first, the launchers last.
///
/// # Errors
/// When the folder or a file cannot be read: such a file would be removed unread.
pub(crate) fn found(raw: &Path) -> anyhow::Result<Vec<Image>> {
    let mut images = Vec::new();
    for (path, pid, nth) in files(raw)? {
        let trace = match Trace::open(&path) {
            Ok(trace) => trace,
            Err(error @ Error::Io(_)) => {
                return Err(error).with_context(|| format!("reading {}", path.display()));
            }
            // A process that died while making its file leaves one without a header.
            Err(_) => continue,
        };
        let rows = trace.count_rows().with_context(|| format!("reading {}", path.display()))?;
        let (begun, command) = (trace.header().process_start, trace.header().command.clone());
        images.push(Image { path, pid, nth, begun, rows, command, launched: false });
    }
    rank(&mut images);
    Ok(images)
}

fn rank(images: &mut [Image]) {
    let all: Vec<_> = images.iter().map(|image| (image.pid, image.begun, image.nth)).collect();
    for image in images.iter_mut() {
        let is_later = |&(pid, begun, nth): &(u32, u64, u32)| {
            (pid, begun) == (image.pid, image.begun) && nth > image.nth
        };
        image.launched = all.iter().any(is_later);
    }
    images.sort_by_key(|image| {
        let share = if image.is_shell() { SHELL_SHARE } else { 1 };
        (image.launched, Reverse(image.rows / share), image.pid, image.nth)
    });
}

/// The files of a recording, each with its process and the number of the program within it. A
/// file's name is the recording's, followed by exactly these two numbers; any other file that
/// begins with it belongs to somebody else.
pub(crate) fn files(raw: &Path) -> anyhow::Result<Vec<(PathBuf, u32, u32)>> {
    let folder = raw.parent().context("the output has no folder")?;
    let name = raw.file_name().context("the output has no name")?;
    let prefix = [name.as_bytes(), b"."].concat();
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name();
        let suffix = name.as_bytes().strip_prefix(&prefix[..]);
        let numbers = suffix.and_then(|suffix| str::from_utf8(suffix).ok()?.split_once('.'));
        if let Some((pid, nth)) = numbers
            && let (Ok(pid), Ok(nth)) = (pid.parse(), nth.parse())
        {
            found.push((entry.path(), pid, nth));
        }
    }
    Ok(found)
}

/// Removes the files of a recording.
pub(crate) fn remove(raw: &Path) -> anyhow::Result<()> {
    for (path, ..) in files(raw)? {
        fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Process, number of the program, events, command.
    type Told<'a> = (u32, u32, u64, &'a str);

    fn first(images: &[Told<'_>]) -> String {
        first_begun(&images.iter().map(|&image| (image, 5)).collect::<Vec<_>>())
    }

    fn first_begun(images: &[(Told<'_>, u64)]) -> String {
        let mut images: Vec<Image> = images
            .iter()
            .map(|&((pid, nth, rows, command), begun)| Image {
                path: PathBuf::new(),
                pid,
                nth,
                begun,
                rows,
                command: command.to_owned(),
                launched: false,
            })
            .collect();
        rank(&mut images);
        images[0].command.clone()
    }

    #[test]
    fn a_file_of_another_name_is_not_of_the_recording() {
        let scratch = crate::scratch::Scratch::new().unwrap();
        let raw = scratch.path().join("t.hxt.raw");
        for suffix in [".70.0", ".notes", ".70", ".70.0.old"] {
            fs::write(scratch.path().join(format!("t.hxt.raw{suffix}")), "x").unwrap();
        }
        remove(&raw).unwrap();
        assert!(!scratch.path().join("t.hxt.raw.70.0").exists());
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 3);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_passed_over() {
        let scratch = crate::scratch::Scratch::new().unwrap();
        let raw = scratch.path().join("t.hxt.raw");
        fs::write(scratch.path().join("t.hxt.raw.70.0"), "no header").unwrap();
        assert!(found(&raw).unwrap().is_empty());
        // A link to itself, so that nobody can open it.
        let path = scratch.path().join("t.hxt.raw.71.0");
        std::os::unix::fs::symlink(&path, &path).unwrap();
        let error = format!("{:#}", found(&raw).unwrap_err());
        assert!(error.contains("t.hxt.raw.71.0"), "{error}");
    }

    #[test]
    fn what_a_wrapper_executes_is_the_program() {
        // A shim does more than the short program that it becomes.
        let shim = [(70, 0, 90_000, "bash /shims/python3"), (70, 1, 800, "python3 -c pass")];
        assert_eq!(first(&shim), "python3 -c pass");
        let driver = [(7, 0, 9_000, "gcc -c a.c"), (8, 1, 500_000, "cc1 a.c"), (8, 0, 10, "gcc")];
        assert_eq!(first(&driver), "cc1 a.c");
    }

    #[test]
    fn a_process_with_the_number_of_another_did_not_become_it() {
        let work = (1, 0, 90_000, "work");
        assert_eq!(first_begun(&[(work, 5), ((1, 1, 800, "in another namespace"), 6)]), "work");
    }

    #[test]
    fn what_a_shell_starts_is_the_program_unless_it_is_next_to_nothing() {
        let wrapper = [(70, 0, 60_000, "/bin/bash run"), (71, 1, 20_000, "python3 a.py")];
        assert_eq!(first(&wrapper), "python3 a.py");
        let script = [(70, 0, 60_000, "/bin/bash work"), (71, 1, 200, "date")];
        assert_eq!(first(&script), "/bin/bash work");
    }
}
