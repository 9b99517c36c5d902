//! What a measured process records about itself: the window of measurement.
//!
//! [`Window::open`] comes after everything the harness needs is allocated and touched. It resets
//! the kernel's high-water mark of resident memory and notes the memory already resident, so that
//! the peak belongs to the workload alone.

use std::fmt::Display;
use std::fs;
use std::sync::OnceLock;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::machine;

/// An open window. [`Window::close`] returns the record.
pub(crate) struct Window {
    start_ns: u64,
    baseline_bytes: u64,
    threads_bytes: u64,
    before: Usage,
}

/// Resources used inside a window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct WindowRecord {
    /// `CLOCK_MONOTONIC` at opening, ns: used to place the parent's samples in the window.
    pub(crate) start_ns: u64,
    /// `CLOCK_MONOTONIC` at closing, ns.
    pub(crate) end_ns: u64,
    /// Resident before the workload began (harness, loaded libraries), bytes.
    pub(crate) baseline_bytes: u64,
    /// Resident when the process began and the subject had served one object, bytes: the subject's
    /// own start, before the harness took anything. Memory that became resident while the
    /// workload's threads were started is added.
    #[serde(default)]
    pub(crate) start_bytes: u64,
    /// Peak of resident memory above the baseline, bytes.
    pub(crate) peak_bytes: u64,
    /// Processor time, ns.
    pub(crate) cpu_ns: u64,
    /// Page faults, minor and major.
    pub(crate) faults: u64,
    /// Context switches, voluntary and not.
    pub(crate) switches: u64,
    /// The window's stretches, if it consists of several with something else between them. Empty if
    /// it is a single one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) stretches: Vec<Stretch>,
}

/// Part of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stretch {
    /// `CLOCK_MONOTONIC` at its beginning, ns.
    pub(crate) start_ns: u64,
    /// `CLOCK_MONOTONIC` at its end, ns.
    pub(crate) end_ns: u64,
    /// The part of the resident memory that is not the workload's at that time, bytes.
    pub(crate) baseline_bytes: u64,
}

static START_BYTES: OnceLock<u64> = OnceLock::new();

/// Notes the memory resident as the process begins. Must be called before the harness takes memory.
///
/// # Errors
/// When `/proc/self/statm` cannot be read.
pub(crate) fn note_start() -> anyhow::Result<()> {
    // A first object makes the subject take the memory that it takes in advance.
    // SAFETY: any size may be asked for.
    let object = std::hint::black_box(unsafe { libc::malloc(64) });
    // SAFETY: null, or the object just taken.
    unsafe { libc::free(object) };
    let bytes = resident_bytes()?;
    START_BYTES.get_or_init(|| bytes);
    Ok(())
}

impl Window {
    /// Opens the window.
    ///
    /// # Errors
    /// When `/proc/self/statm` cannot be read.
    pub(crate) fn open() -> anyhow::Result<Self> {
        // "5" resets VmHWM. If the kernel refuses, which `hectare doctor` tells, the peak is that of
        // the whole process.
        let _ = fs::write("/proc/self/clear_refs", "5");
        let baseline_bytes = resident_bytes()?;
        let (before, start_ns) = (Usage::now(), monotonic_ns());
        Ok(Self { baseline_bytes, threads_bytes: 0, before, start_ns })
    }

    /// Opens the window of threads that have been started and wait. `before_bytes` were resident
    /// before the first of them. Memory that has become resident since is part of the start: a heap
    /// may take memory for a thread that has hardly begun (the start of a thread allocates).
    ///
    /// # Errors
    /// As [`Window::open`].
    pub(crate) fn open_for_threads(before_bytes: u64) -> anyhow::Result<Self> {
        let window = Self::open()?;
        let threads_bytes = window.baseline_bytes.saturating_sub(before_bytes);
        Ok(Self { threads_bytes, ..window })
    }

    /// Closes the window.
    ///
    /// # Errors
    /// When `/proc/self/status` cannot be read.
    pub(crate) fn close(self) -> anyhow::Result<WindowRecord> {
        let end_ns = monotonic_ns();
        let after = Usage::now();
        let peak = high_water_bytes()?;
        Ok(WindowRecord {
            start_ns: self.start_ns,
            end_ns,
            baseline_bytes: self.baseline_bytes,
            start_bytes: START_BYTES.get().copied().unwrap_or(self.baseline_bytes)
                + self.threads_bytes,
            peak_bytes: peak.saturating_sub(self.baseline_bytes),
            cpu_ns: after.cpu_ns() - self.before.cpu_ns(),
            faults: after.faults() - self.before.faults(),
            switches: after.switches() - self.before.switches(),
            stretches: Vec::new(),
        })
    }
}

/// `CLOCK_MONOTONIC`, ns: the same clock in parent and child.
pub(crate) fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// The processor time of this thread alone, ns: other work of the machine does not count.
pub(crate) fn thread_time_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The resident memory of this process now, bytes.
///
/// # Errors
/// When `/proc/self/statm` cannot be read.
pub(crate) fn resident_bytes() -> anyhow::Result<u64> {
    resident_bytes_of("self").context("/proc/self/statm does not tell what is resident")
}

/// The resident memory of a process now, bytes; `None` if there is no such process.
pub(crate) fn resident_bytes_of(pid: impl Display) -> Option<u64> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages = statm.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()?;
    Some(pages * machine::page_bytes())
}

/// The most that was resident since the mark was reset, bytes.
fn high_water_bytes() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("reading /proc/self/status")?;
    machine::bytes(&status, "VmHWM").context("/proc/self/status has no `VmHWM` in kB")
}

/// `getrusage` in our units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Usage {
    pub(crate) user_ns: u64,
    pub(crate) system_ns: u64,
    pub(crate) minor_faults: u64,
    pub(crate) major_faults: u64,
    pub(crate) voluntary_switches: u64,
    pub(crate) involuntary_switches: u64,
    pub(crate) peak_bytes: u64,
}

impl Usage {
    /// The resources used by this process so far.
    pub(crate) fn now() -> Self {
        Self::of(libc::RUSAGE_SELF)
    }

    fn of(whom: libc::c_int) -> Self {
        // SAFETY: all-zero is a valid `rusage`.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: `usage` is valid for writing.
        unsafe { libc::getrusage(whom, &mut usage) };
        Self::from_rusage(&usage)
    }

    /// Processor time, ns.
    pub(crate) fn cpu_ns(&self) -> u64 {
        self.user_ns + self.system_ns
    }

    /// Page faults, minor and major.
    pub(crate) fn faults(&self) -> u64 {
        self.minor_faults + self.major_faults
    }

    /// Context switches, voluntary and not.
    pub(crate) fn switches(&self) -> u64 {
        self.voluntary_switches + self.involuntary_switches
    }

    /// Converts the kernel's record.
    pub(crate) fn from_rusage(usage: &libc::rusage) -> Self {
        let ns =
            |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
        Self {
            user_ns: ns(usage.ru_utime),
            system_ns: ns(usage.ru_stime),
            minor_faults: usage.ru_minflt as u64,
            major_faults: usage.ru_majflt as u64,
            voluntary_switches: usage.ru_nvcsw as u64,
            involuntary_switches: usage.ru_nivcsw as u64,
            peak_bytes: usage.ru_maxrss as u64 * 1024,
        }
    }
}
