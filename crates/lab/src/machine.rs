//! Where a measurement was made: read once, stored in every report.

use std::fs;

use serde::{Deserialize, Serialize};

/// The machine and those of its settings that move measurements.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// Processor model.
    pub(crate) cpu: String,
    /// Logical processors online.
    pub(crate) cpus: usize,
    /// Memory in all, bytes.
    pub(crate) memory_bytes: u64,
    /// Kernel release.
    pub(crate) kernel: String,
    /// C library.
    pub(crate) libc: String,
    /// Whether a hypervisor is below.
    pub(crate) virtualised: bool,
    /// Frequency governor, `none` when the machine shows none.
    pub(crate) governor: String,
    /// Transparent huge pages: `always`, `madvise`, `never`.
    pub(crate) thp: String,
    /// `kernel.randomize_va_space`.
    pub(crate) aslr: String,
    /// Page size, bytes.
    pub(crate) page_bytes: u64,
}

impl Machine {
    /// Reads the machine; what cannot be read is empty, never guessed.
    pub(crate) fn probe() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self {
            cpu: field(&cpuinfo, "model name").unwrap_or_default(),
            // SAFETY: asks for a number of the system.
            cpus: usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) })
                .unwrap_or(0),
            memory_bytes: field(&meminfo, "MemTotal")
                .and_then(|text| text.strip_suffix(" kB")?.trim().parse::<u64>().ok())
                .map_or(0, |kib| kib * 1024),
            kernel: line("/proc/sys/kernel/osrelease").unwrap_or_default(),
            libc: libc_version(),
            virtualised: cpuinfo.contains(" hypervisor"),
            governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
                .unwrap_or_else(|| "none".to_owned()),
            thp: line("/sys/kernel/mm/transparent_hugepage/enabled")
                .and_then(|text| Some(text.split_once('[')?.1.split_once(']')?.0.to_owned()))
                .unwrap_or_default(),
            aslr: line("/proc/sys/kernel/randomize_va_space").unwrap_or_default(),
            page_bytes: page_bytes(),
        }
    }
}

/// The system's page size, bytes.
pub(crate) fn page_bytes() -> u64 {
    // SAFETY: `sysconf` reads a constant of the system.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as u64 }
}

/// Version of the C library in this process.
fn libc_version() -> String {
    // SAFETY: returns a static string.
    let version = unsafe { libc::gnu_get_libc_version() };
    // SAFETY: a static, null-terminated string of the C library.
    let version = unsafe { std::ffi::CStr::from_ptr(version) };
    format!("glibc {}", version.to_string_lossy())
}

/// First line of a file, trimmed.
fn line(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.lines().next()?.trim().to_owned())
}

/// `name : value` in a `/proc` table.
fn field(table: &str, name: &str) -> Option<String> {
    table.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}
