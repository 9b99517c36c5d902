//! Folders for files that are needed only while the command runs.
//!
//! 1. A folder lives as long as its [`Scratch`]. Dropping that removes the folder with its content.
//! 2. The owner holds a lock on its folder. The folder of a killed owner is unlocked, whatever
//!    process has the owner's number now. The next command that makes a folder in the same place
//!    removes it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;

const PREFIX: &str = ".hectare-scratch-";

/// A folder of this process.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    /// Invariant 2.
    _locked: File,
}

impl Scratch {
    /// A folder in the system's directory for temporary files.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(crate) fn new() -> anyhow::Result<Self> {
        Self::inside(&std::env::temp_dir())
    }

    /// A folder inside `folder`.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(crate) fn inside(folder: &Path) -> anyhow::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        remove_stale(folder);
        let pid = std::process::id();
        loop {
            let nth = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!("{PREFIX}{pid}-{nth}"));
            match fs::create_dir(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
                made => made.with_context(|| format!("making {}", path.display()))?,
            }
            // Until it is locked, another command may take the new folder for a stale one.
            let Ok(locked) = File::open(&path) else { continue };
            if lock(&locked) && path.is_dir() {
                return Ok(Self { path, _locked: locked });
            }
        }
    }

    /// The folder's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If it cannot be removed now, the next command removes it.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the folders that killed commands left in `folder`.
fn remove_stale(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        if File::open(entry.path()).is_ok_and(|file| lock(&file)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Locks a file or folder without waiting. False when another process holds the lock.
pub(crate) fn lock(file: &File) -> bool {
    file.try_lock().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_go_with_their_owner_and_stale_ones_with_the_next() {
        let outer = Scratch::new().unwrap();
        let kept = Scratch::inside(outer.path()).unwrap();
        fs::write(kept.path().join("file"), "x").unwrap();
        let stale = outer.path().join(format!("{PREFIX}1-0"));
        fs::create_dir(&stale).unwrap();
        let next = Scratch::inside(outer.path()).unwrap();
        assert!(!stale.exists(), "nobody holds it");
        assert!(kept.path().join("file").exists(), "its owner lives");
        let path = next.path().to_owned();
        drop(next);
        assert!(!path.exists());
    }
}
