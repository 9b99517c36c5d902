//! Restartable sequences: what the kernel and the C library offer.
//!
//! A thread registers an area with the kernel. In it the kernel keeps the number of the CPU that
//! the thread runs on, and the thread names the sequence that it is in. If a thread is preempted,
//! migrated or interrupted by a signal inside its sequence, it is sent to the sequence's abort
//! handler. So a sequence that ends with one store is atomic against all threads on the same CPU,
//! without an atomic instruction. (Desnoyers and Watson, Linux 4.18.) Since version 2.35 glibc
//! registers each thread's area, at one offset from the thread pointer. (This is for x86-64. For
//! other processors nobody has written the sequences, and this module reports that there are none.)
//!
//! Another CPU's sequences are locked out in two steps: a store that they read tells them to leave,
//! and [`restart_all`], or [`restart_on`] for that CPU, sends those that have already read the old
//! value to their abort handlers.

use core::ffi::{CStr, c_int, c_uint};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::os::{Os, keep_errno};

/// Where the area names the CPU that the thread runs on, in bytes. Negative, as an `i32`, in a
/// thread whose area is not registered.
pub const CPU_ID_OFFSET: usize = 4;

/// Where the area names the sequence that the thread is in, in bytes.
pub const SEQUENCE_OFFSET: usize = 8;

/// The four bytes before each abort handler, as glibc has told the kernel.
pub const SIGNATURE: u32 = 0x5305_3053;

/// The smallest area that holds a CPU's number and the name of a sequence, in bytes.
const MIN_AREA_BYTES: c_uint = 20;

/// A constant of the C library; `None` before glibc 2.35, which has no such name. (A link-time
/// reference, even a weak one, would keep this object from being loaded there.)
fn constant<T: Copy>(name: &CStr) -> Option<T> {
    // SAFETY: a name that ends in 0; the first object that has it answers.
    let place = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    // SAFETY: null, or the C library's constant, set before any code of this object runs.
    unsafe { place.cast::<T>().as_ref() }.copied()
}

/// The area's offset from the thread pointer in bytes. `None` if the C library registers none, or
/// the kernel refused it. May allocate.
#[must_use]
pub fn area_offset() -> Option<isize> {
    if cfg!(not(target_arch = "x86_64")) {
        return None;
    }
    let area_bytes: c_uint = constant(c"__rseq_size")?;
    (area_bytes >= MIN_AREA_BYTES).then(|| constant(c"__rseq_offset"))?
}

/// The number of the CPU that this thread runs on. `None` if its area is not registered: the thread
/// was started without the C library, or a tool that runs the program does not support restartable
/// sequences.
///
/// # Safety
/// `area_offset` is what [`area_offset`] returned.
#[inline(always)]
#[must_use]
pub unsafe fn cpu(area_offset: isize) -> Option<usize> {
    let cpu: i32;
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = area_offset;
        cpu = -1;
    }
    // SAFETY: the caller's promise: within this thread's area.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            "mov {cpu:e}, dword ptr fs:[{area} + {field}]",
            cpu = out(reg) cpu,
            area = in(reg) area_offset,
            field = const CPU_ID_OFFSET,
            options(nostack, preserves_flags, readonly),
        );
    }
    usize::try_from(cpu).ok()
}

const MEMBARRIER_PRIVATE_EXPEDITED_RSEQ: c_int = 1 << 7;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_RSEQ: c_int = 1 << 8;

/// Whether [`restart_all`] has been announced to the kernel, as the kernel requires.
static ANNOUNCED: AtomicBool = AtomicBool::new(false);

/// Restricts a command to the CPU named.
const MEMBARRIER_FLAG_CPU: c_int = 1;

fn membarrier(command: c_int, flags: c_int, cpu: usize) -> bool {
    // SAFETY: a barrier changes no memory.
    let call = || unsafe { libc::syscall(libc::SYS_membarrier, command, flags, cpu) };
    !Os.keeps_to_plain_calls() && keep_errno(call) == 0
}

/// Announces that the process will call [`restart_all`] or [`restart_on`]. `false` if the kernel
/// does not support it (before 5.10), or must not be asked because of a sandbox
/// ([`keep_to_plain_calls`](Os::keep_to_plain_calls)).
pub fn announce_restarts() -> bool {
    if !ANNOUNCED.load(Relaxed) && membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_RSEQ, 0, 0) {
        ANNOUNCED.store(true, Relaxed);
    }
    ANNOUNCED.load(Relaxed)
}

/// Sends every thread of the process that is inside a sequence to its abort handler. A sequence
/// that begins afterwards sees what this thread stored before. Takes some microseconds. `false`,
/// with nothing guaranteed, if the kernel refuses or must not be asked.
#[must_use]
pub fn restart_all() -> bool {
    membarrier(MEMBARRIER_PRIVATE_EXPEDITED_RSEQ, 0, 0)
}

/// As [`restart_all`], for the threads that run on `cpu`.
#[must_use]
pub fn restart_on(cpu: usize) -> bool {
    membarrier(MEMBARRIER_PRIVATE_EXPEDITED_RSEQ, MEMBARRIER_FLAG_CPU, cpu)
}

/// How many CPUs this process may run on, at least one.
#[must_use]
pub fn cpus() -> usize {
    // SAFETY: zeroed, the set is empty.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: a valid place of the size given.
    keep_errno(|| unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) });
    // SAFETY: a set, filled or empty.
    let cpus = unsafe { libc::CPU_COUNT(&set) };
    usize::try_from(cpus).unwrap_or(1).max(1)
}
