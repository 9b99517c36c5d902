//! One recording at a time into a file: a second one would remove what the first has recorded so
//! far.
//!
//! 1. A command that records holds a lock on an empty file, `F.hxt.raw` for `F.hxt`, and removes
//!    the file at the end. No recorder begins a file after that.
//! 2. The lock file of a killed owner is unlocked, and the next owner takes it over.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::scratch;

/// The right to record into a file.
#[derive(Debug)]
pub(super) struct Claim {
    path: PathBuf,
    /// Invariant 1.
    _locked: File,
}

impl Claim {
    /// Claims `output` by the lock file at `path`.
    ///
    /// # Errors
    /// When another command is recording into `output`, or what is at `path` is no lock file.
    pub(super) fn on(path: &Path, output: &Path) -> anyhow::Result<Self> {
        loop {
            let file = OpenOptions::new().append(true).create(true).open(path);
            let file = file.with_context(|| format!("making {}", path.display()))?;
            let held = file.metadata()?;
            ensure!(
                held.is_file() && held.len() == 0,
                "{} is in the way of the recording: remove it, or give another output",
                path.display()
            );
            ensure!(
                scratch::lock(&file),
                "another command records into {}: wait for its end, or give another output",
                output.display()
            );
            // The last owner may have removed the file between our opening and locking it.
            if fs::metadata(path).is_ok_and(|now| now.ino() == held.ino()) {
                return Ok(Self { path: path.to_owned(), _locked: file });
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // If the file cannot be removed now, the next owner takes it over.
        let _ = fs::remove_file(&self.path);
    }
}
