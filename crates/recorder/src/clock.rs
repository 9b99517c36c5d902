//! The clock for the rows: the processor's own counter, divided down to ticks of some nanoseconds.

#[cfg(target_arch = "x86_64")]
const SHIFT: u32 = hectare_trace::RECORDER_CLOCK_SHIFT;
#[cfg(not(target_arch = "x86_64"))]
const SHIFT: u32 = 0;

/// Ticks since some point in the past.
///
/// On x86-64 the counter is read without a fence: the order across threads does not depend on it.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    counter() >> SHIFT
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn counter() -> u64 {
    // SAFETY: reading the counter has no precondition.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn counter() -> u64 {
    let counter: u64;
    // SAFETY: the virtual counter is readable in user mode on Linux; the instruction has no other
    // effect.
    unsafe {
        core::arch::asm!("mrs {}, cntvct_el0", out(reg) counter, options(nomem, nostack));
    }
    counter
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline(always)]
fn counter() -> u64 {
    monotonic_ns()
}

/// `CLOCK_MONOTONIC`, ns.
pub(crate) fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Time since 1970, ns.
pub(crate) fn unix_ns() -> u64 {
    read(libc::CLOCK_REALTIME)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
