//! Touched memory in a process of its own, free again when the process ends.
//!
//! The command itself does not take it: the kernel's account of a child begins with the peak of
//! whoever started it, and would show what was warmed.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use anyhow::Context;

use super::surroundings;
use crate::machine;

/// A process that holds memory; dropping it frees that.
#[derive(Debug)]
pub(super) struct Held {
    /// How much, bytes: nothing where the process got nothing, since no run depends on it.
    pub(super) bytes: u64,
    process: Child,
}

impl Held {
    /// Starts it, on the processors of the measured processes, and waits until all is touched.
    ///
    /// # Errors
    /// When no process can be started.
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

/// Touches so much memory, says so, and keeps it until the end of standard input: what the hidden verb
/// `hold` does.
///
/// # Errors
/// When the memory cannot be had.
pub(crate) fn hold(bytes: usize) -> anyhow::Result<()> {
    let memory = touched(bytes).context("mapping memory to be warmed")?;
    let mut out = std::io::stdout();
    out.write_all(b".").and_then(|()| out.flush()).context("telling that memory is touched")?;
    let mut nothing = Vec::new();
    std::io::stdin().read_to_end(&mut nothing).context("waiting for the command")?;
    // SAFETY: the mapping made above, which nobody else knows.
    unsafe { libc::munmap(memory, bytes) };
    Ok(())
}

/// A mapping of so many bytes, by huge pages where there are any, of which each page has been written to.
fn touched(bytes: usize) -> std::io::Result<*mut libc::c_void> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: asks for memory at no particular place.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    // Where it is refused the writes bring small pages.
    // SAFETY: the mapping above, of this length.
    unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
    for offset in (0..bytes).step_by(machine::page_bytes() as usize) {
        // SAFETY: `offset` lies inside the mapping.
        let page = unsafe { start.cast::<u8>().add(offset) };
        // A huge page comes with the first write; the others into it cost next to nothing.
        // SAFETY: inside the mapping, which nobody else knows.
        unsafe { page.write_volatile(1) };
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
        let mut pages = vec![0_u8; bytes / machine::page_bytes() as usize];
        // SAFETY: the mapping is there, and `pages` has a byte for each of its pages.
        let done = unsafe { libc::mincore(start, bytes, pages.as_mut_ptr()) };
        assert_eq!(done, 0);
        assert!(pages.len() > 1 && pages.iter().all(|page| page & 1 == 1));
        // SAFETY: the mapping made above.
        unsafe { libc::munmap(start, bytes) };
        assert!(touched(0).is_err());
    }
}
