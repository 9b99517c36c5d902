//! Counts instructions exactly: a child marks the calls with breakpoints, and the parent
//! single-steps it from mark to mark. Needs neither hardware counters nor a simulator.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{bail, ensure};
use rustc_hash::FxHashSet;

/// What the child has just done, as an index that the caller chose. Read from the child's memory.
static LABEL: AtomicUsize = AtomicUsize::new(0);

/// The instruction that is a mark.
const BREAKPOINT: u8 = 0xcc;

/// No call of a constant-time allocator takes nearly as many; more means a loop.
const MAX_STEPS: u64 = 1_000_000;

/// Marks the calls to be counted; exists in the child only.
pub(super) struct Marker(());

impl Marker {
    /// Does `call`, whose instructions are counted under `label`.
    #[inline(always)]
    pub(super) fn count<T>(&self, label: usize, call: impl FnOnce() -> T) -> T {
        self.count_by(|_| label, call)
    }

    /// Does `call`, whose instructions are counted under the label that `label` gives to its result.
    #[inline(always)]
    pub(super) fn count_by<T>(
        &self,
        label: impl FnOnce(&T) -> usize,
        call: impl FnOnce() -> T,
    ) -> T {
        breakpoint();
        let result = call();
        breakpoint();
        LABEL.store(label(&result), Ordering::SeqCst);
        breakpoint();
        result
    }
}

#[inline(always)]
fn breakpoint() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the parent traces this process and continues it.
    unsafe {
        std::arch::asm!("int3");
    }
}

/// The most instructions of any call, and how many calls there were.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Count {
    pub(super) most: u64,
    pub(super) calls: u64,
}

/// Runs `work` in a child and counts the calls that it marks, by label.
///
/// # Errors
/// When the machine does not let a process trace its child, or the child fails.
pub(super) fn count(work: impl FnOnce(&Marker)) -> anyhow::Result<BTreeMap<usize, Count>> {
    ensure!(cfg!(target_arch = "x86_64"), "counting by single steps needs an x86-64 processor");
    // SAFETY: this process has one thread, so the child may do whatever its parent could.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: asks to be traced by the parent, which expects it.
        let traced = unsafe { libc::ptrace(libc::PTRACE_TRACEME) };
        let done = traced == 0
            && std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&Marker(())))).is_ok();
        // SAFETY: ends the child without running the parent's destructors.
        unsafe { libc::_exit(if done { 0 } else { 1 }) };
    }
    ensure!(child > 0, "fork: {}", std::io::Error::last_os_error());
    let mut tracee =
        Tracee { pid: child, unmarked: FxHashSet::default(), resumed: libc::PTRACE_CONT };
    let counts = tracee.follow();
    if counts.is_err() {
        // SAFETY: our own child.
        unsafe { libc::kill(child, libc::SIGKILL) };
    }
    counts
}

/// The child as its tracer sees it.
struct Tracee {
    pid: libc::pid_t,
    /// Addresses whose instruction is known not to be a mark. Code does not change, so one look is
    /// enough; a look costs a system call.
    unmarked: FxHashSet<usize>,
    /// How the child was last resumed.
    resumed: libc::c_uint,
}

/// Signals that come to any process with a terminal or a stopped job, and mean nothing to the
/// child. A traced process stops for each, even for those that it would ignore.
const MEANINGLESS: [libc::c_int; 4] = [libc::SIGWINCH, libc::SIGSTOP, libc::SIGTSTP, libc::SIGCONT];

impl Tracee {
    fn follow(&mut self) -> anyhow::Result<BTreeMap<usize, Count>> {
        let mut counts: BTreeMap<usize, Count> = BTreeMap::new();
        while self.wait()? {
            let mut steps = 0;
            while !self.is_at_mark()? {
                self.resume(libc::PTRACE_SINGLESTEP)?;
                ensure!(self.wait()?, "the traced child ended within a call");
                steps += 1;
                ensure!(steps < MAX_STEPS, "the traced call does not end");
            }
            // Continue over the mark after the call, to the mark after the label is written.
            for _ in 0..2 {
                self.resume(libc::PTRACE_CONT)?;
                ensure!(self.wait()?, "the traced child ended within a call");
            }
            let count = counts.entry(self.peek((&raw const LABEL).addr())?).or_default();
            count.most = count.most.max(steps);
            count.calls += 1;
            self.resume(libc::PTRACE_CONT)?;
        }
        Ok(counts)
    }

    fn is_at_mark(&mut self) -> anyhow::Result<bool> {
        let address = self.instruction_pointer()?;
        if self.unmarked.contains(&address) {
            return Ok(false);
        }
        let is_mark = self.peek(address)? as u8 == BREAKPOINT;
        if !is_mark {
            self.unmarked.insert(address);
        }
        Ok(is_mark)
    }

    /// Waits for the child: `true` if it stopped at a mark or after a step, `false` if it is done.
    fn wait(&mut self) -> anyhow::Result<bool> {
        loop {
            let mut status = 0;
            // SAFETY: `status` is valid for writing.
            let waited = unsafe { libc::waitpid(self.pid, &mut status, 0) };
            ensure!(waited == self.pid, "waitpid: {}", std::io::Error::last_os_error());
            if libc::WIFEXITED(status) {
                let code = libc::WEXITSTATUS(status);
                ensure!(code == 0, "the traced child failed (is ptrace allowed here?)");
                return Ok(false);
            }
            ensure!(
                libc::WIFSTOPPED(status),
                "the traced child was killed by signal {}",
                libc::WTERMSIG(status)
            );
            match libc::WSTOPSIG(status) {
                libc::SIGTRAP => return Ok(true),
                // The child stopped before its next instruction.
                signal if MEANINGLESS.contains(&signal) => self.resume(self.resumed)?,
                signal => bail!("the traced child got signal {signal}"),
            }
        }
    }

    fn resume(&mut self, how: libc::c_uint) -> anyhow::Result<()> {
        self.resumed = how;
        let nothing = std::ptr::null_mut::<c_void>();
        // SAFETY: the child is stopped, and gets no signal.
        let done = unsafe { libc::ptrace(how, self.pid, nothing, nothing) };
        ensure!(done == 0, "ptrace: {}", std::io::Error::last_os_error());
        Ok(())
    }

    /// The word at `address` of the child's memory.
    fn peek(&self, address: usize) -> anyhow::Result<usize> {
        self.read(libc::PTRACE_PEEKDATA, address)
    }

    #[cfg(target_arch = "x86_64")]
    fn instruction_pointer(&self) -> anyhow::Result<usize> {
        self.read(libc::PTRACE_PEEKUSER, std::mem::offset_of!(libc::user, regs.rip))
    }

    fn read(&self, what: libc::c_uint, place: usize) -> anyhow::Result<usize> {
        let place = std::ptr::without_provenance_mut::<c_void>(place);
        let nothing = std::ptr::null_mut::<c_void>();
        // -1 is a valid word; only errno shows whether it is an error.
        // SAFETY: gives the place of this thread's own.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        unsafe { *errno = 0 };
        // SAFETY: reads the stopped child's memory or registers; a wrong address gives an error.
        let word = unsafe { libc::ptrace(what, self.pid, place, nothing) };
        let error = std::io::Error::last_os_error();
        ensure!(word != -1 || error.raw_os_error() == Some(0), "reading the traced child: {error}");
        Ok(word as usize)
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn instruction_pointer(&self) -> anyhow::Result<usize> {
        bail!("counting by single steps needs an x86-64 processor")
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn a_loop_takes_its_instructions_and_nothing_takes_none() {
        let looped = |rounds: u64| {
            // SAFETY: counts a register down.
            unsafe {
                std::arch::asm!("2: dec {0}", "jnz 2b", inout(reg) rounds => _, options(nomem));
            }
        };
        let counts = count(|marker| {
            marker.count(0, || ());
            marker.count(1, || looped(100));
            marker.count(1, || looped(10));
        })
        .expect("a child that may be traced");
        assert_eq!((counts[&0].most, counts[&0].calls), (0, 1));
        // One instruction may load the number of rounds.
        assert!((200..=201).contains(&counts[&1].most), "{counts:?}");
        assert_eq!(counts[&1].calls, 2);
    }

    #[test]
    fn a_terminal_that_changes_its_size_disturbs_no_count() {
        let counts = count(|marker| {
            let winch = || {
                // SAFETY: a signal that does nothing, to this process.
                assert_eq!(unsafe { libc::raise(libc::SIGWINCH) }, 0);
            };
            winch();
            marker.count(0, winch);
            marker.count(1, || ());
        });
        assert_eq!(counts.expect("a count")[&1].most, 0);
    }

    #[test]
    fn a_child_that_is_killed_is_told_with_the_signal() {
        let error = count(|_| {
            // SAFETY: ends this process, a child.
            unsafe { libc::raise(libc::SIGKILL) };
        });
        let message = error.expect_err("a killed child").to_string();
        assert!(message.contains("killed by signal 9"), "{message}");
    }
}
