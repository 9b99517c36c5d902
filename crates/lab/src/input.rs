//! Input that is read from its beginning: records, files of events, content to be stored.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use anyhow::{Context, ensure};

/// The place of the input: `-` is the standard input, as it is the standard output for output.
fn place(path: &Path) -> &Path {
    if path.as_os_str() == "-" { Path::new("/dev/stdin") } else { path }
}

/// Opens the input. If it is a pipe the user is told, since reading takes as long as the pipe's
/// writer does.
///
/// # Errors
/// When it cannot be opened. The path is in the message.
pub(crate) fn open(path: &Path) -> anyhow::Result<File> {
    let path = place(path);
    if fs::metadata(path).is_ok_and(|meta| meta.file_type().is_fifo()) {
        eprintln!("reading {}, a pipe, to its end …", path.display());
    }
    File::open(path).with_context(|| path.display().to_string())
}

/// The whole content of a file or a pipe.
///
/// # Errors
/// When it cannot be read, or is neither a file nor a pipe: a device need not have an end. The path
/// is in the message.
pub(crate) fn whole(path: &Path) -> anyhow::Result<Vec<u8>> {
    let path = place(path);
    let name = || path.display().to_string();
    let kind = fs::metadata(path).with_context(name)?.file_type();
    ensure!(kind.is_file() || kind.is_fifo(), "{}: this is neither a file nor a pipe", name());
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes).with_context(name)?;
    Ok(bytes)
}
