//! While the program runs, signals that would end this command belong to the program.
//!
//! 1. A signal that the command was started ignoring (SIGHUP under `nohup`) stays ignored. The
//!    program inherits that.
//! 2. The kernel sends signals of a terminal (Ctrl-C, hanging up) to the whole foreground group, so
//!    the program has them already. A signal from another process is passed on.
//! 3. Once the program has ended, signals act as before: sealing a long recording takes seconds,
//!    and Ctrl-C must be able to end it.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::process::{Child, ExitStatus};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use anyhow::Context;

use crate::runner::{self, is_ignored};

const WATCHED: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// The last signal that came: negative if the program has it already, 0 for none.
static CAME: AtomicI32 = AtomicI32::new(0);

/// The signals watched, until this is dropped.
pub(super) struct Signals {
    /// The previous action of each.
    before: Vec<(libc::c_int, libc::sigaction)>,
}

impl Signals {
    pub(super) fn watch() -> anyhow::Result<Self> {
        CAME.store(0, Ordering::Relaxed);
        // SAFETY: an action may be all zeros.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        let note: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut c_void) = note;
        action.sa_sigaction = note as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        let mut signals = Self { before: Vec::new() };
        for signal in WATCHED.into_iter().filter(|&signal| !is_ignored(signal)) {
            let mut before = MaybeUninit::zeroed();
            // SAFETY: both are valid; `note` does nothing that a handler may not.
            let set = unsafe { libc::sigaction(signal, &action, before.as_mut_ptr()) };
            if set != 0 {
                return Err(std::io::Error::last_os_error()).context("watching for signals");
            }
            // SAFETY: filled by the call; zeros are an action, too.
            signals.before.push((signal, unsafe { before.assume_init() }));
        }
        Ok(signals)
    }

    pub(super) fn any_came(&self) -> bool {
        CAME.load(Ordering::Relaxed) != 0
    }

    /// Waits for the program, passes signals on to it, and calls `meanwhile` every few ms. Returns
    /// how the program ended, and whether a signal came.
    pub(super) fn wait(
        &self,
        mut child: Child,
        mut meanwhile: impl FnMut(),
    ) -> anyhow::Result<(ExitStatus, bool)> {
        const LOOK_EVERY: Duration = Duration::from_millis(5);
        let mut any = false;
        loop {
            let ended = child.try_wait().context("waiting for the program")?;
            let signal = CAME.swap(0, Ordering::Relaxed);
            any |= signal != 0;
            if let Some(status) = ended {
                return Ok((status, any));
            }
            if signal > 0 {
                runner::signal(child.id() as i32, signal);
            }
            meanwhile();
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for (signal, before) in &self.before {
            // SAFETY: restores the previous action.
            unsafe { libc::sigaction(*signal, before, null_mut()) };
        }
    }
}

extern "C" fn note(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a valid one, since the action asks for it.
    let by_kernel = unsafe { (*info).si_code } > 0;
    CAME.store(if by_kernel { -signal } else { signal }, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_do_again_what_they_did() {
        let action = || {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: with no new action the call only queries.
            unsafe { libc::sigaction(libc::SIGQUIT, std::ptr::null(), action.as_mut_ptr()) };
            // SAFETY: as in `watch`.
            unsafe { action.assume_init() }.sa_sigaction
        };
        // The parent of the tests decided this: shells make background jobs ignore the signal.
        let at_first = action();
        for before in [libc::SIG_DFL, libc::SIG_IGN] {
            // SAFETY: no handler is installed.
            unsafe { libc::signal(libc::SIGQUIT, before) };
            let signals = Signals::watch().expect("signals");
            assert_eq!(action() == before, before == libc::SIG_IGN, "what is ignored stays so");
            drop(signals);
            assert_eq!(action(), before);
        }
        // SAFETY: restores the previous action.
        unsafe { libc::signal(libc::SIGQUIT, at_first) };
    }
}
