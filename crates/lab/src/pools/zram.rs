//! The kernel's compressed block device, `/dev/zram0`: set up, written, read, counted, reset.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, bail};

use crate::machine::page_bytes;
use crate::runner;

const DEVICE: &str = "/dev/zram0";
const SYSFS: &str = "/sys/block/zram0";
/// Linux's `BLKDISCARD`.
const BLKDISCARD: libc::c_ulong = 0x1277;

/// Bytes stored, and the memory they take.
#[derive(Clone, Copy, Default)]
pub(crate) struct Account {
    pub(crate) compressed_bytes: usize,
    pub(crate) used_bytes: usize,
}

/// The device, set up by this process. It is reset when dropped, so also after a signal, which ends
/// whatever is being done with the device.
pub(crate) struct Device {
    file: File,
}

impl Device {
    /// What this machine lacks for the comparison, by name.
    pub(crate) fn missing() -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some(format!("root is needed to set up {DEVICE}"));
        }
        if !Path::new(DEVICE).exists() {
            return Some(format!("{DEVICE} does not exist (modprobe zram)"));
        }
        match std::fs::read_to_string(Path::new(SYSFS).join("initstate")) {
            Ok(state) if state.trim() == "0" => None,
            Ok(_) => Some(format!("{DEVICE} is in use; it is left alone")),
            Err(error) => Some(format!("{SYSFS}/initstate: {error}")),
        }
    }

    /// Whether the kernel has this compressor.
    pub(crate) fn has(algorithm: &str) -> bool {
        let known = std::fs::read_to_string(Path::new(SYSFS).join("comp_algorithm"));
        // The selected algorithm is in brackets.
        let mut names = known.iter().flat_map(|names| names.split_whitespace());
        names.any(|name| name.trim_matches(['[', ']']) == algorithm)
    }

    pub(crate) fn open(algorithm: &str, pages: usize) -> anyhow::Result<Self> {
        // From here on a signal makes the next step an error.
        runner::go_on()?;
        let sysfs = Path::new(SYSFS);
        write(&sysfs.join("reset"), "1")?;
        write(&sysfs.join("comp_algorithm"), algorithm)?;
        write(&sysfs.join("disksize"), &(pages as u64 * page_bytes()).to_string())?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_DIRECT);
        match options.open(DEVICE) {
            Ok(file) => Ok(Self { file }),
            Err(error) => {
                write(&sysfs.join("reset"), "1")?;
                bail!("opening {DEVICE}: {error}")
            }
        }
    }

    /// Writes the pages. Returns the length that each became; 0 for a page that is not stored.
    pub(crate) fn store(&self, pages: &[Vec<u8>]) -> anyhow::Result<Vec<usize>> {
        let mut room = AlignedPage::new();
        let buffer = room.bytes();
        let mut lengths = Vec::with_capacity(pages.len());
        let mut before = self.account()?.compressed_bytes;
        for (number, page) in pages.iter().enumerate() {
            buffer.copy_from_slice(page);
            self.write(number, buffer)?;
            let now = self.account()?.compressed_bytes;
            lengths.push(now.checked_sub(before).context("mm_stat went backwards")?);
            before = now;
        }
        Ok(lengths)
    }

    /// Writes a page, of an [`AlignedPage`].
    pub(crate) fn write(&self, number: usize, page: &[u8]) -> anyhow::Result<()> {
        runner::go_on()?;
        let written = self.file.write_all_at(page, number as u64 * page_bytes());
        written.with_context(|| format!("writing {DEVICE}"))
    }

    /// Reads a page, to an [`AlignedPage`].
    pub(crate) fn read(&self, number: usize, page: &mut [u8]) -> anyhow::Result<()> {
        runner::go_on()?;
        let read = self.file.read_exact_at(page, number as u64 * page_bytes());
        read.with_context(|| format!("reading {DEVICE}"))
    }

    pub(crate) fn compact(&self) -> anyhow::Result<()> {
        write(&Path::new(SYSFS).join("compact"), "1")
    }

    pub(crate) fn discard(&self, pages: &[usize]) -> anyhow::Result<()> {
        for &page in pages {
            runner::go_on()?;
            let range = [page as u64 * page_bytes(), page_bytes()];
            // SAFETY: the ioctl reads two 64-bit numbers, which live through the call.
            let status = unsafe { libc::ioctl(self.file.as_raw_fd(), BLKDISCARD, range.as_ptr()) };
            if status != 0 {
                bail!("discarding a page of {DEVICE}: {}", std::io::Error::last_os_error());
            }
        }
        Ok(())
    }

    /// The second and third number of `mm_stat`.
    pub(crate) fn account(&self) -> anyhow::Result<Account> {
        let path = Path::new(SYSFS).join("mm_stat");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let mut numbers = text.split_whitespace().skip(1).map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(compressed_bytes)), Some(Ok(used_bytes))) => {
                Ok(Account { compressed_bytes, used_bytes })
            }
            _ => bail!("{} has not the columns expected: {text}", path.display()),
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // An open device cannot be reset, so another file takes this one's place.
        if let Ok(null) = File::open("/dev/null") {
            self.file = null;
        }
        if let Err(error) = write(&Path::new(SYSFS).join("reset"), "1") {
            eprintln!("hectare: {DEVICE} could not be reset: {error:#}");
        }
    }
}

/// A page aligned to the device's block, as O_DIRECT needs it.
pub(crate) struct AlignedPage {
    room: Vec<u8>,
}

impl AlignedPage {
    pub(crate) fn new() -> Self {
        Self { room: vec![0; 2 * page_bytes() as usize] }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        let bytes = page_bytes() as usize;
        let skip = self.room.as_ptr().align_offset(bytes);
        &mut self.room[skip..skip + bytes]
    }
}

fn write(path: &Path, value: &str) -> anyhow::Result<()> {
    std::fs::write(path, value).with_context(|| format!("writing `{value}` to {}", path.display()))
}
