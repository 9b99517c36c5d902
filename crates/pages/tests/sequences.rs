//! Restartable sequences, where the kernel and the C library have them.

use std::process::ExitCode;

use hectare_check::Suite;
use hectare_pages::rseq::{announce_restarts, area_offset, cpu, cpus, restart_all};

fn main() -> ExitCode {
    let mut suite = Suite::new();
    let name = "the_area_names_a_cpu_of_this_machine";
    match area_offset() {
        Some(offset) => suite.test(name, move || names_a_cpu(offset)),
        None => suite.skip(name, "the C library registers no area for sequences"),
    }
    let name = "restarts_once_announced";
    if announce_restarts() {
        suite.test(name, || restart_all().then_some(()).ok_or("announced, and refused".into()));
    } else {
        suite.skip(name, "the kernel restarts no sequences of other threads");
    }
    suite.run()
}

/// The number is that of a CPU which this thread may run on.
fn names_a_cpu(offset: isize) -> Result<(), String> {
    // SAFETY: zeroed, the set is empty.
    let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: a valid place of the size given.
    unsafe { libc::sched_getaffinity(0, size_of_val(&allowed), &raw mut allowed) };
    // SAFETY: the offset that `area_offset` has told.
    let cpu = unsafe { cpu(offset) }.ok_or("the C library has not registered this thread")?;
    // SAFETY: a set; a number too large for it is looked for nowhere.
    let may_run = cpu < libc::CPU_SETSIZE as usize && unsafe { libc::CPU_ISSET(cpu, &allowed) };
    may_run.then_some(()).ok_or(format!("CPU {cpu}, where this thread may not run"))?;
    // SAFETY: a set, which the system has filled.
    let count = unsafe { libc::CPU_COUNT(&allowed) };
    (usize::try_from(count) == Ok(cpus()))
        .then_some(())
        .ok_or(format!("{count} CPUs, not {}", cpus()))
}
