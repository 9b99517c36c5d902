//! Where a measurement was made: read once, stored in every report.

use std::fs;
use std::path::Path;

use hectare_pages::{Os, PageSource};
use serde::{Deserialize, Serialize};

use crate::environment;

/// The machine, and those of its settings that affect measurements.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// Processor model.
    pub(crate) cpu: String,
    /// Logical processors online.
    pub(crate) cpus: usize,
    /// Total memory, bytes.
    pub(crate) memory_bytes: u64,
    /// Kernel release.
    pub(crate) kernel: String,
    /// C library.
    pub(crate) libc: String,
    /// Whether it runs under a hypervisor.
    pub(crate) virtualised: bool,
    /// Frequency governor, `none` when the machine shows none.
    pub(crate) governor: String,
    /// Transparent huge pages: `always`, `madvise`, `never`.
    pub(crate) thp: String,
    /// `kernel.randomize_va_space`.
    pub(crate) aslr: String,
    /// Page size, bytes.
    pub(crate) page_bytes: u64,
    /// Whether the host takes back free memory.
    #[serde(default)]
    pub(crate) takes_memory_back: bool,
}

impl Machine {
    /// Reads the machine. A field that cannot be read is empty, never guessed.
    pub(crate) fn probe() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self {
            cpu: field(&cpuinfo, "model name").unwrap_or_default(),
            // SAFETY: asks for a number of the system.
            cpus: usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) })
                .unwrap_or(0),
            memory_bytes: bytes(&meminfo, "MemTotal").unwrap_or(0),
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
            takes_memory_back: environment::takes_memory_back(&environment::system_root()),
        }
    }
}

impl Machine {
    /// The names of the fields in which two machines, or one at two times, differ so that figures
    /// of the two cannot be compared. Total memory is not the same after every boot, and older
    /// records do not say whether the host takes memory back.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let fields = |machine: &Self| match serde_json::to_value(machine) {
            Ok(serde_json::Value::Object(fields)) => fields,
            _ => serde_json::Map::new(),
        };
        let others = fields(other);
        let told = ["memory_bytes", "takes_memory_back"];
        let differ = fields(self).into_iter().filter(|(name, value)| {
            !told.contains(&name.as_str()) && others.get(name) != Some(value)
        });
        differ.map(|(name, _)| name).collect()
    }
}

/// Memory that this process may still take, bytes, according to the files below `root`: the
/// machine's available memory, or that of this process's control groups if it is less. 0 if
/// unknown.
pub(crate) fn available_bytes(root: &Path) -> u64 {
    let read = |path: &Path| fs::read_to_string(root.join(path)).ok();
    let meminfo = read(Path::new("proc/meminfo")).unwrap_or_default();
    let groups = read(Path::new("proc/self/cgroup")).unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let left_to = |group: &Path| {
        let file = |name: &str| read(&Path::new("sys/fs/cgroup").join(group).join(name));
        let figure = |name: &str| file(name)?.trim().parse::<u64>().ok();
        // Cached file content counts as used, but is dropped when memory is needed.
        let stat = file("memory.stat").unwrap_or_default();
        let cached = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
        let cached = cached.and_then(|bytes| bytes.parse::<u64>().ok()).unwrap_or(0);
        let used = figure("memory.current")?.saturating_sub(cached);
        Some(figure("memory.max")?.saturating_sub(used))
    };
    let groups = own.into_iter().flat_map(|own| Path::new(own).ancestors()).filter_map(left_to);
    groups.chain(bytes(&meminfo, "MemAvailable")).min().unwrap_or(0)
}

/// The system's page size, bytes.
pub(crate) fn page_bytes() -> u64 {
    Os.page_bytes() as u64
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

/// `name : value kB` in a `/proc` table, bytes.
pub(crate) fn bytes(table: &str, name: &str) -> Option<u64> {
    Some(field(table, name)?.strip_suffix(" kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// `name : value` in a `/proc` table.
fn field(table: &str, name: &str) -> Option<String> {
    table.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn available_is_what_the_machine_and_the_control_groups_leave() {
        let scratch = Scratch::new().unwrap();
        let root = scratch.path();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(available_bytes(root), 0);
        write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n");
        write("proc/self/cgroup", "0::/outer/inner\n");
        assert_eq!(available_bytes(root), 8000 * 1024);
        write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
        write("sys/fs/cgroup/outer/inner/memory.current", "1000\n");
        assert_eq!(available_bytes(root), 8000 * 1024);
        write("sys/fs/cgroup/outer/memory.max", "50000\n");
        write("sys/fs/cgroup/outer/memory.current", "20000\n");
        assert_eq!(available_bytes(root), 30_000);
        write("sys/fs/cgroup/outer/memory.stat", "anon 5000\ninactive_file 12000\n");
        assert_eq!(available_bytes(root), 42_000);
    }
}
