//! One recording at a time into a file: a second would remove what the first has recorded so far.
//!
//! 1. Who records holds a lock on an empty file, `F.hxt.raw` for `F.hxt`, and removes it at its end.
//! 2. What a killed owner left is unlocked, and is taken over by the next.

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
    /// By the lock file at `path`, for what is recorded into `output`.
    ///
    /// # Errors
    /// When another command records into it, or what stands at `path` is no lock file.
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
            // Its last owner may have removed the file between our opening and our locking it.
            if fs::metadata(path).is_ok_and(|now| now.ino() == held.ino()) {
                return Ok(Self { path: path.to_owned(), _locked: file });
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // What cannot be removed now is taken over by the next.
        let _ = fs::remove_file(&self.path);
    }
}
