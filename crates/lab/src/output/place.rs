//! Where results go, checked before any work is done.
//!
//! A path that cannot be written is reported as an error of the command line, not at the end of a
//! long run. A file that somebody else made is not overwritten because of a mistyped name.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::builder::{PathBufValueParser, TypedValueParser};

use crate::scratch::Scratch;

/// A kind of file that is written, and how files of that kind begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A record, schema 1.
    Json,
    /// Rows.
    Csv,
    /// Tables.
    Markdown,
    /// A page, or one plot of it.
    Html,
    /// A flame graph.
    Flame,
    /// A trace.
    Trace,
    /// Events of swapping.
    Swap,
}

/// The beginning of our Markdown and plots, which identifies them.
pub(crate) const MADE_BY: &str = "<!-- made by hectare -->\n";

/// The same in the notes of a flame graph.
pub(crate) const FLAME_NOTE: &str = "made by hectare";

/// How many bytes of an existing file are examined.
const HEAD_BYTES: u64 = 1024;

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Json => "record of hectare",
            Self::Csv => "CSV of hectare",
            Self::Markdown => "Markdown of hectare",
            Self::Html => "report of hectare",
            Self::Flame => "flame graph of hectare",
            Self::Trace => "trace of hectare",
            Self::Swap => "file of swap events",
        }
    }

    fn begins(self, head: &[u8]) -> bool {
        let holds = |part: &str| head.windows(part.len()).any(|bytes| bytes == part.as_bytes());
        match self {
            Self::Json => {
                let dense: Vec<u8> =
                    head.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
                dense.starts_with(b"{\"schema\":1,\"verb\":")
            }
            Self::Csv => head.starts_with(b"subject,workload"),
            Self::Markdown => head.starts_with(MADE_BY.as_bytes()),
            Self::Html => holds("<title>hectare") || head.starts_with(MADE_BY.as_bytes()),
            Self::Flame => head.starts_with(b"<?xml") && holds(FLAME_NOTE),
            Self::Trace => head.starts_with(b"HECTRACE"),
            Self::Swap => head.starts_with(b"hectare-swap "),
        }
    }
}

/// A parser for the command line: accepts the path if a file of that kind can be written there.
pub(crate) fn writable(kind: Kind) -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(move |path| check(&path, kind).map(|()| path))
}

/// Whether a path stands for the standard output. If that is a file, writing by another of its
/// names would replace the file, and other output would be lost.
pub(crate) fn is_standard_output(path: &Path) -> bool {
    const NAMES: [&str; 4] = ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];
    NAMES.iter().any(|name| path.as_os_str() == *name)
}

/// The one path that stands for all names of a place.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    if is_standard_output(path) {
        return PathBuf::from("-");
    }
    let known = |path: &Path| path.canonicalize().ok();
    let beside = || {
        let folder = std::path::absolute(path).ok()?.parent().and_then(known)?;
        Some(folder.join(path.file_name()?))
    };
    known(path).or_else(beside).unwrap_or_else(|| path.to_owned())
}

/// What writing a file to `path` does: replaces a file or writes a new one.
pub(crate) fn done(path: &Path) -> &'static str {
    if path.is_file() { "replaced" } else { "wrote" }
}

/// Checks that a file of that kind can be written to `path`. The message says why not.
///
/// # Errors
/// When the folder is missing, the file cannot be opened for writing, or holds something else.
pub(crate) fn check(path: &Path, kind: Kind) -> Result<(), String> {
    let existed = path.exists();
    let special = fs::metadata(path).is_ok_and(|meta| !meta.is_file() && !meta.is_dir());
    if special || is_standard_output(path) {
        // The path is a pipe, a terminal or /dev/null: nothing is lost there.
        return match kind {
            Kind::Trace => {
                Err("is no regular file, which a trace needs: give the name of one".to_owned())
            }
            _ => Ok(()),
        };
    }
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|error| format!("cannot be written: {error}"))?;
    if !existed {
        // The file was made only to see whether it can be made. If the path is a dangling link, its
        // target was made.
        let made = path.canonicalize().and_then(fs::remove_file);
        return made.map_err(|error| error.to_string());
    }
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
    read.map_err(|error| format!("exists and cannot be read: {error}"))?;
    if head.is_empty() || kind.begins(&head) {
        return Ok(());
    }
    Err(format!("exists and is no {}: remove it, or give another name", kind.name()))
}

/// The place in the current folder of a file for which none is given, if the file can be written
/// there.
///
/// # Errors
/// As [`check`]. `otherwise` is in the message: which option names another place.
pub(crate) fn by_default(name: &str, kind: Kind, otherwise: &str) -> anyhow::Result<PathBuf> {
    check(Path::new(name), kind).map_err(|why| {
        anyhow::anyhow!("{name} {why} (it is left in the current folder unless {otherwise})")
    })?;
    Ok(name.into())
}

/// Makes a file at `path` with `make`, which writes to a place beside it. The old file is replaced
/// only when the new one is complete, so neither a full disk nor a kill destroys it.
///
/// # Errors
/// Errors of `make`, and when the file cannot be moved to its place.
pub(crate) fn replace<T>(
    path: &Path,
    make: impl FnOnce(&Path) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let before = fs::metadata(path).ok();
    let target = match &before {
        Some(before) if before.is_file() => path.canonicalize()?,
        None if path.symlink_metadata().is_err() => std::path::absolute(path)?,
        // The path is a pipe, a terminal or a dangling link: nothing is lost there.
        _ => return make(path),
    };
    let folder = target.parent().context("a file is in a folder")?;
    let scratch = match Scratch::inside(folder) {
        // We may be able to write a file in a folder that we cannot write to.
        Err(error) if is_denied(&error) => return make(path),
        made => made?,
    };
    let new = scratch.path().join("new");
    let made = make(&new)?;
    if let Some(before) = before {
        fs::set_permissions(&new, before.permissions())?;
        // Keeps the owner, if possible: only root can give a file away.
        let _ = chown(&new, Some(before.uid()), Some(before.gid()));
    }
    fs::rename(&new, &target)?;
    Ok(made)
}

fn is_denied(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref().map(std::io::Error::kind);
    matches!(kind, Some(ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{export, html, table};

    #[test]
    fn what_is_not_ours_is_left_alone() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().join("notes.json");
        assert_eq!(check(&path, Kind::Json), Ok(()));
        assert!(!path.exists(), "looking leaves nothing behind");
        fs::write(&path, "my own notes").unwrap();
        assert!(check(&path, Kind::Json).unwrap_err().contains("no record of hectare"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "my own notes");
        fs::write(&path, "").unwrap();
        assert_eq!(check(&path, Kind::Trace), Ok(()));
        let link = scratch.path().join("link");
        let target = scratch.path().join("target");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert_eq!(check(&link, Kind::Json), Ok(()));
        assert!(!target.exists(), "nor where a link leads");
    }

    #[test]
    fn what_is_ours_is_known_again() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().join("any");
        let report = crate::report::Report::new("test");
        for (kind, ours, other) in [
            (Kind::Json, export::json(&report).unwrap(), "{\"schema\":\"x\",\"mine\":1}"),
            (Kind::Csv, export::csv(&report), "subject;workload"),
            (Kind::Markdown, table::markdown(&report), "### keep me\n"),
            (
                Kind::Html,
                html::page(std::slice::from_ref(&report)).unwrap(),
                "<svg viewBox=\"0 0 1 1\"></svg>",
            ),
        ] {
            fs::write(&path, ours).unwrap();
            assert_eq!(check(&path, kind), Ok(()), "{kind:?}");
            fs::write(&path, other).unwrap();
            assert!(check(&path, kind).is_err(), "{kind:?}");
            assert_eq!(fs::read_to_string(&path).unwrap(), other);
        }
    }

    #[test]
    fn what_is_not_whole_replaces_nothing() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().join("a.json");
        let half = |new: &Path| -> anyhow::Result<()> {
            fs::write(new, "ha")?;
            anyhow::bail!("the disk is full")
        };
        let whole = |new: &Path| Ok(fs::write(new, "whole")?);
        assert!(replace(&path, half).is_err() && !path.exists());
        replace(&path, whole).unwrap();
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink("a.json", &link).unwrap();
        assert!(replace(&link, half).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole");
        replace(&link, |new| Ok(fs::write(new, "other")?)).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "other");
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 2, "nothing is left beside them");
    }

    #[test]
    fn what_cannot_be_written_is_told_at_once() {
        let scratch = Scratch::new().unwrap();
        assert!(check(&scratch.path().join("no/such/folder.json"), Kind::Json).is_err());
        assert!(check(scratch.path(), Kind::Json).is_err());
        assert_eq!(check(Path::new("/dev/null"), Kind::Html), Ok(()));
        for no_file in ["/dev/null", "-"] {
            assert!(check(Path::new(no_file), Kind::Trace).is_err());
        }
    }
}
