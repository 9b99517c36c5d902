//! The pages of a running process, as swap would see them: private, writable, resident.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::{Context, ensure};

use crate::cmd::Exit;
use crate::input;
use crate::list;
use crate::machine::page_bytes;
use crate::runner;
use crate::within::{MOST_PID, within};

/// Bit 63 of an entry of `/proc/PID/pagemap`: the page is in memory.
const PRESENT: u64 = 1 << 63;

/// Whose pages a verb works on.
#[derive(clap::Args)]
pub(crate) struct Sources {
    /// Processes whose private pages to store, separated by commas
    #[arg(long, value_name = "PID,…", num_args = 1.., value_delimiter = ',',
        value_parser = within(1, MOST_PID))]
    pid: Vec<u32>,
    /// Store the private pages of every process on this machine, whoever owns it
    #[arg(long, conflicts_with = "pid")]
    all: bool,
    /// Files whose pages to store after those, separated by commas
    #[arg(long, value_name = "FILE,…", num_args = 1..)]
    file: Vec<PathBuf>,
    /// Store at most this much, uncompressed
    #[arg(long, default_value_t = 256, value_parser = within(1_usize, 1 << 20))]
    limit_mib: usize,
}

impl Sources {
    /// Checks that some processes or files were named.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.all || !self.pid.is_empty() || !self.file.is_empty(),
            Exit::misused(
                "whose pages? --pid N for some processes, --file F for files, --all for every \
                 process of this machine, whosever it is"
            )
        );
        Ok(())
    }

    /// The pages of the processes, then those of the files.
    pub(crate) fn collect(&self) -> anyhow::Result<Vec<Vec<u8>>> {
        let limit = (self.limit_mib << 20) / page_bytes() as usize;
        let mut pages = Vec::new();
        let mut add = |page: &[u8]| {
            if pages.len() < limit {
                pages.push(page.to_vec());
            }
        };
        let own = std::process::id();
        let pids = if self.all { runner::all_processes()? } else { self.pid.clone() };
        for pid in pids.into_iter().filter(|&pid| pid != own) {
            let result = for_each_page(pid, |_, page| {
                add(page);
                Ok(())
            });
            // Of all processes, some have no memory and some end meanwhile.
            if !self.all {
                result?;
            }
        }
        for path in &list::files(&self.file) {
            // Reads no more than will be stored: a device may have no end.
            let mut bytes = Vec::new();
            input::open(path)?
                .take((self.limit_mib << 20) as u64)
                .read_to_end(&mut bytes)
                .with_context(|| format!("reading {}", path.display()))?;
            bytes.chunks_exact(page_bytes() as usize).for_each(&mut add);
        }
        Ok(pages)
    }
}

/// Calls `each` with the number (address / page size) and the content of each such page, in the
/// order of addresses. Pages that vanish while they are read are skipped.
///
/// # Errors
/// When the process does not exist or may not be read.
pub(crate) fn for_each_page(
    pid: u32,
    mut each: impl FnMut(u64, &[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let advice = || format!("reading the memory of process {pid} (is it running, and yours?)");
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).with_context(advice)?;
    let memory = File::open(format!("/proc/{pid}/mem")).with_context(advice)?;
    let pagemap = File::open(format!("/proc/{pid}/pagemap")).with_context(advice)?;
    let page_bytes = page_bytes();
    let mut page = vec![0; page_bytes as usize];
    for (start, end) in maps.lines().filter_map(private_writable) {
        let mut entries = vec![0u8; ((end - start) / page_bytes * 8) as usize];
        let Ok(read) = pagemap.read_at(&mut entries, start / page_bytes * 8) else { continue };
        for (number, entry) in (start / page_bytes..).zip(entries[..read].chunks_exact(8)) {
            let is_present =
                entry.try_into().is_ok_and(|bytes| u64::from_ne_bytes(bytes) & PRESENT != 0);
            if is_present && memory.read_exact_at(&mut page, number * page_bytes).is_ok() {
                each(number, &page)?;
            }
        }
    }
    Ok(())
}

/// The range of a line of `/proc/PID/maps`, if the mapping is private and writable.
fn private_writable(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let access = words.next()?;
    if !access.starts_with("rw") || !access.ends_with('p') {
        return None;
    }
    Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
}

/// Whether all words of the page are the same. Such pages are never stored.
pub(crate) fn is_same_filled(page: &[u8]) -> bool {
    page[8..] == page[..page.len() - 8]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_are_told_apart() {
        let heap = "5581e000-5583f000 rw-p 00000000 00:00 0   [heap]";
        assert_eq!(private_writable(heap), Some((0x5581_e000, 0x5583_f000)));
        assert_eq!(private_writable("7f00-7f10 r-xp 0 08:01 42 /lib/x.so"), None);
        assert_eq!(private_writable("7f00-7f10 rw-s 0 00:01 42 /dev/shm/x"), None);
    }

    #[test]
    fn own_pages_are_found() {
        let mark = vec![0xA7u8; 64 << 10];
        let mut seen = false;
        for_each_page(std::process::id(), |_, page| {
            seen |= page.iter().all(|&byte| byte == 0xA7) && is_same_filled(page);
            Ok(())
        })
        .expect("own memory");
        assert!(seen, "{} marked bytes", mark.len());
    }
}
