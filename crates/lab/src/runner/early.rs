//! What the command says when the user ends a contest before it has begun.

use std::sync::Once;

use super::{FLAG, ending};

/// What an interrupted command says while no round is complete.
pub(crate) const NOTHING_YET: &str =
    "interrupted before the first round was complete: no file is written";

/// From now on SIGINT, SIGTERM and SIGHUP end the command with that message, until
/// [`super::interrupted`] is first called: reading long traces takes seconds.
pub(crate) fn tell_early_end() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for signal in ending() {
            // SAFETY: all that `end` does may be done while a signal is handled.
            let _ = unsafe { signal_hook::low_level::register(signal, end) };
        }
    });
}

fn end() {
    if FLAG.get().is_some() {
        return;
    }
    for part in ["hectare: ", NOTHING_YET, "\n"] {
        // SAFETY: the bytes of a text. If they cannot be written, nobody can be told.
        unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
    }
    // SAFETY: ends the process, whatever it holds.
    unsafe { libc::_exit(130) }
}
