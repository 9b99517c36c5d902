//! Touched memory in a process of its own. It is free again when the process ends.
//!
//! The command does not hold the memory itself: the kernel's account of a child begins with the
//! peak of its parent, and would include the warmed memory.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::ptr::NonNull;

use anyhow::Context;
use hectare_pages::{Os, PageSource, SourceError};

use super::surroundings;

/// A process that holds memory. Dropping it frees the memory.
#[derive(Debug)]
pub(super) struct Held {
    /// The memory held, bytes; 0 if the process got none, since no run depends on it.
    pub(super) bytes: u64,
    process: Child,
}

impl Held {
    /// Starts the process on the processors of the measured processes, and waits until it has
    /// touched all of the memory.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub(super) fn start(bytes: u64) -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("finding this executable")?;
        let mut command = Command::new(own);
        command.arg("hold").arg(bytes.to_string()).env_remove("LD_PRELOAD");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = surroundings::spawn(&mut command)?;
        let mut word = [0];
        let told = process.stdout.as_mut().is_some_and(|pipe| pipe.read_exact(&mut word).is_ok());
        Ok(Self { bytes: if told { bytes } else { 0 }, process })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        // A process that has been waited for has freed everything.
        let _ = self.process.wait();
    }
}

/// Touches that much memory, says so, and holds it until the end of standard input. The hidden verb
/// `hold` does this.
///
/// # Errors
/// When the memory is not available.
pub(crate) fn hold(bytes: usize) -> anyhow::Result<()> {
    let memory = touched(bytes).context("getting memory to be warmed")?;
    let mut out = std::io::stdout();
    out.write_all(b".").and_then(|()| out.flush()).context("telling that memory is touched")?;
    let mut nothing = Vec::new();
    std::io::stdin().read_to_end(&mut nothing).context("waiting for the command")?;
    // SAFETY: the memory got above, which nobody else knows.
    unsafe { Os.release(memory, bytes) };
    Ok(())
}

/// That many bytes of memory, every page written to. Huge pages, if there are any.
fn touched(bytes: usize) -> Result<NonNull<u8>, SourceError> {
    let page = Os.page_bytes();
    let start = Os.get(bytes, page)?;
    // If the advice is refused, the writes bring in small pages.
    // SAFETY: the whole of the memory just got.
    unsafe { Os.advise_huge(start, bytes, true) };
    for offset in (0..bytes).step_by(page) {
        // SAFETY: inside that memory.
        let byte = unsafe { start.add(offset) };
        // A huge page comes with the first write; further writes into it cost next to nothing.
        // SAFETY: as above, and nobody else knows of it.
        unsafe { byte.write_volatile(1) };
    }
    Ok(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_touched() {
        let bytes = 8 << 20;
        let start = touched(bytes).unwrap();
        let mut pages = vec![0_u8; bytes / Os.page_bytes()];
        // SAFETY: the mapping is there, and `pages` has a byte for each of its pages.
        let done = unsafe { libc::mincore(start.as_ptr().cast(), bytes, pages.as_mut_ptr()) };
        assert_eq!(done, 0);
        assert!(pages.len() > 1 && pages.iter().all(|page| page & 1 == 1));
        // SAFETY: the memory got above.
        unsafe { Os.release(start, bytes) };
        assert!(touched(0).is_err());
    }
}
