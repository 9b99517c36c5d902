//! What a heap needs of Linux besides memory: clocks, the number of the CPU, a secret, and the futex
//! that [`hectare_base::sync::Lock`] parks on.

use core::ptr;
use core::sync::atomic::AtomicU32;

use hectare_base::sync::Park;

use super::{Os, PAGE_BYTES, keep_errno};
use crate::System;

/// Reads one of the clocks that exist on every Linux. (One copy in the text: an inlined one would
/// be longer than each of its callers.)
#[inline(never)]
fn now_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // A filter (seccomp) can refuse the clocks that take a system call.
    // SAFETY: `now` is a valid place for the answer.
    keep_errno(|| unsafe { libc::clock_gettime(clock, &raw mut now) });
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

impl System for Os {
    type Park = FutexPark;

    #[inline]
    fn cpu(&self) -> usize {
        // SAFETY: no preconditions. Usually no system call; -1, if it is refused, becomes some CPU.
        keep_errno(|| unsafe { libc::sched_getcpu() }).unsigned_abs() as usize
    }

    fn now_ms(&self) -> u64 {
        now_ns(libc::CLOCK_MONOTONIC_COARSE) / 1_000_000
    }

    fn now_ns(&self) -> u64 {
        now_ns(libc::CLOCK_MONOTONIC)
    }

    /// The wall's time if only plain calls may be made. The kernel is always asked for a thread's
    /// own time, and a filter may not allow that, since most programs read the time without the
    /// kernel.
    fn thread_us(&self) -> u64 {
        let plain = self.keeps_to_plain_calls();
        now_ns(if plain { libc::CLOCK_MONOTONIC } else { libc::CLOCK_THREAD_CPUTIME_ID }) / 1000
    }

    fn secret(&self) -> usize {
        // SAFETY: no preconditions; the kernel gives each process 16 random bytes, or 0 if not.
        let bytes = keep_errno(|| unsafe { libc::getauxval(libc::AT_RANDOM) }) as *const usize;
        if bytes.is_null() {
            return (&raw const PAGE_BYTES).addr() ^ self.now_ms() as usize;
        }
        // SAFETY: AT_RANDOM names 16 bytes that live as long as the process.
        let words = unsafe { bytes.cast::<[usize; 2]>().read_unaligned() };
        // The C library makes its stack and pointer guards from the same words. A value made of
        // both words, half as long, gives away neither guard.
        words.into_iter().fold(0, |secret, word| {
            let mixed = (secret ^ word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) ^ (mixed >> 31)
        })
    }

    /// The machine's memory and swap, or the limit on writable memory (`RLIMIT_DATA`).
    fn memory_bytes(&self) -> usize {
        if self.keeps_to_plain_calls() {
            return usize::MAX;
        }
        // SAFETY: zeros are a value of both.
        let (mut machine, mut limit): (libc::sysinfo, libc::rlimit) =
            unsafe { core::mem::zeroed() };
        // By number: the functions lie on pages of the C library that nothing else here touches.
        let machine_at = &raw mut machine;
        // SAFETY: a valid place for the answer.
        let is_told = keep_errno(|| unsafe { libc::syscall(libc::SYS_sysinfo, machine_at) }) == 0;
        let (process, none, limit_at) = (0, ptr::null::<libc::rlimit>(), &raw mut limit);
        // SAFETY: as above; nothing is set.
        let is_limited = keep_errno(|| unsafe {
            libc::syscall(libc::SYS_prlimit64, process, libc::RLIMIT_DATA, none, limit_at)
        }) == 0;
        let units = machine.totalram.saturating_add(machine.totalswap);
        let of_machine = units.saturating_mul(u64::from(machine.mem_unit)) as usize;
        let of_machine = if is_told { of_machine } else { usize::MAX };
        if is_limited { of_machine.min(limit.rlim_cur as usize) } else { of_machine }
    }

    fn fatal(&self, line: &[u8]) -> ! {
        // By number, since `write` is a cancellation point: a thread that is being cancelled would
        // end there.
        // SAFETY: the line is readable as long as it is said to be.
        unsafe { libc::syscall(libc::SYS_write, libc::STDERR_FILENO, line.as_ptr(), line.len()) };
        // SAFETY: no preconditions.
        unsafe { libc::abort() }
    }
}

/// Parks on Linux's futex.
#[derive(Debug, Clone, Copy)]
pub struct FutexPark;

impl Park for FutexPark {
    fn wait(word: &AtomicU32, expected: u32) {
        let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: `word` lives through the call; a null timeout waits without limit.
        keep_errno(|| unsafe {
            libc::syscall(
                libc::SYS_futex,
                word.as_ptr(),
                operation,
                expected,
                ptr::null::<libc::timespec>(),
            )
        });
    }

    fn wake_one(word: &AtomicU32) {
        let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: waking touches no memory of ours; a word that is gone wakes nobody.
        keep_errno(|| unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, 1) });
    }

    fn give_way() {
        if Os.keeps_to_plain_calls() {
            core::hint::spin_loop();
        } else {
            // SAFETY: no preconditions.
            keep_errno(|| unsafe { libc::sched_yield() });
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use core::sync::atomic::Ordering::Relaxed;

    #[test]
    fn a_pinned_thread_runs_on_its_cpu() {
        // SAFETY: sets of CPUs are plain numbers; the calls write them, and concern this thread
        // alone.
        unsafe {
            let (mut allowed, bytes) = (core::mem::zeroed(), size_of::<libc::cpu_set_t>());
            assert_eq!(libc::sched_getaffinity(0, bytes, &raw mut allowed), 0);
            let is_allowed = |&cpu: &usize| libc::CPU_ISSET(cpu, &allowed);
            for cpu in (0..libc::CPU_SETSIZE as usize).filter(is_allowed).take(8) {
                let mut only: libc::cpu_set_t = core::mem::zeroed();
                libc::CPU_SET(cpu, &mut only);
                assert_eq!(libc::sched_setaffinity(0, bytes, &raw const only), 0);
                assert_eq!(Os.cpu(), cpu);
            }
        }
    }

    /// All threads of a process draw the same number; each process draws another.
    #[test]
    fn a_secret_is_the_process_s_own() {
        const CHILD: &str = "HECTARE_TEST_SECRET";
        let secret = Os.secret();
        if std::env::var_os(CHILD).is_some() {
            std::println!("secret {secret} told");
            return;
        }
        assert_eq!(std::thread::spawn(|| Os.secret()).join().expect("a thread"), secret);
        let mut secrets = std::vec![std::format!("{secret}")];
        for _ in 0..6 {
            let program = std::env::current_exe().expect("this test");
            let mut child = std::process::Command::new(program);
            child.args([
                "--exact",
                "os::system::tests::a_secret_is_the_process_s_own",
                "--nocapture",
            ]);
            let told = child.env(CHILD, "1").output().expect("a process").stdout;
            let told = std::string::String::from_utf8(told).expect("text");
            let secret = told.split("secret ").nth(1).and_then(|rest| rest.split(' ').next());
            secrets.push(secret.expect("a secret").into());
        }
        secrets.sort();
        secrets.dedup();
        assert_eq!(secrets.len(), 7, "{secrets:?}");
    }

    #[test]
    fn the_clock_counts_milliseconds() {
        let system_ms = || now_ns(libc::CLOCK_MONOTONIC) / 1_000_000;
        let (before, told, after) = (system_ms(), Os.now_ms(), system_ms());
        assert!(told <= after, "{told} after {after}");
        // The clock lags by a tick, which may be late if the machine is a virtual one.
        assert!(told + 10_000 >= before, "{told} before {before}");
    }

    /// The limit is that of the whole process; other tests use nothing near it.
    #[test]
    fn there_is_as_much_memory_as_the_machine_has_or_the_limit_allows() {
        let limit_to = |bytes: usize| {
            // SAFETY: zeros are a value of it.
            let mut limit: libc::rlimit = unsafe { core::mem::zeroed() };
            // SAFETY: a valid place for the answer.
            unsafe { libc::getrlimit(libc::RLIMIT_DATA, &raw mut limit) };
            let before_bytes = limit.rlim_cur as usize;
            limit.rlim_cur = limit.rlim_max.min(bytes as libc::rlim_t);
            // SAFETY: a valid limit.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const limit) }, 0);
            (before_bytes, limit.rlim_cur as usize)
        };
        let machine_bytes = || {
            // SAFETY: zeros are a value of it.
            let mut machine: libc::sysinfo = unsafe { core::mem::zeroed() };
            // SAFETY: a valid place for the answer.
            assert_eq!(unsafe { libc::sysinfo(&raw mut machine) }, 0);
            (machine.totalram + machine.totalswap) as usize * machine.mem_unit as usize
        };
        // A virtual machine may be given more memory, or less, at any time.
        let told = || loop {
            let (before, told, after) = (machine_bytes(), Os.memory_bytes(), machine_bytes());
            if before == after {
                break (told, after);
            }
        };
        let (usual_bytes, most_bytes) = limit_to(usize::MAX);
        let (told_bytes, machine_bytes) = told();
        assert_eq!(told_bytes, machine_bytes.min(most_bytes));
        let (_, few_bytes) = limit_to(told_bytes / 2);
        let (limited_bytes, _) = told();
        limit_to(usual_bytes);
        assert_eq!(limited_bytes, few_bytes);
    }

    /// How many threads sleep on a word. The kernel counts the threads that it moves from the word,
    /// here to the same word.
    fn sleepers(word: &AtomicU32) -> libc::c_long {
        let operation = libc::FUTEX_REQUEUE | libc::FUTEX_PRIVATE_FLAG;
        let (word, none, all) = (word.as_ptr(), 0_usize, i32::MAX);
        // SAFETY: nobody is woken, and the word lives through the call.
        unsafe { libc::syscall(libc::SYS_futex, word, operation, none, all, word) }
    }

    #[test]
    fn whoever_sleeps_on_a_futex_is_woken() {
        use std::time::{Duration, Instant};
        const LONG: Duration = Duration::from_secs(30);
        static WORD: AtomicU32 = AtomicU32::new(2);
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            while WORD.load(Relaxed) == 2 {
                FutexPark::wait(&WORD, 2);
            }
            tell.send(())
        });
        let start = Instant::now();
        while sleepers(&WORD) != 1 {
            assert!(start.elapsed() < LONG, "it does not sleep");
            std::thread::yield_now();
        }
        WORD.store(0, Relaxed);
        FutexPark::wake_one(&WORD);
        told.recv_timeout(LONG).expect("it is woken");
        // Nobody sleeps on a word that has changed.
        FutexPark::wait(&WORD, 2);
    }
}
