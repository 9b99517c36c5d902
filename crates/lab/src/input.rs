//! What is read whole: records, and files of events.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use anyhow::{Context, ensure};

/// What stands in a file, or comes through a pipe until its end. A pipe is told, since that takes as
/// long as whoever writes into it.
///
/// # Errors
/// When it cannot be read, or is neither: a device need not have an end. The path is in the message.
pub(crate) fn whole(path: &Path) -> anyhow::Result<Vec<u8>> {
    let name = || path.display().to_string();
    let kind = fs::metadata(path).with_context(name)?.file_type();
    ensure!(kind.is_file() || kind.is_fifo(), "{}: this is neither a file nor a pipe", name());
    if kind.is_fifo() {
        eprintln!("reading {}, a pipe, to its end …", name());
    }
    fs::read(path).with_context(name)
}
