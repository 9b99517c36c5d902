//! What signals ask for (a file of the profile, the statistics), and what a fault was about.
//!
//! A handler runs wherever the thread happens to be. If that is inside the heap, whose locks the
//! thread may hold, the handler notes the wish, and the same thread meets it on its way out.
//! Otherwise the handler meets it at once. To meet a wish takes no memory of the heap, and no lock
//! but the heap's own. It runs on the stack of the interrupted thread and needs some 25 KiB of it,
//! including the kernel's frame.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;

use crate::config::Config;
use crate::once::Once;
use crate::{HEAP, errno, finding, life, profile, report};

const PROFILE: u32 = 1;
const STATISTICS: u32 = 2;

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// The action for faults before this library was loaded.
static PREVIOUS: Once<libc::sigaction> = Once::new();

/// Installs the handlers that the configuration asks for. If a program installs its own for the
/// same signal, the program's handler counts.
pub(crate) fn listen(config: &Config) {
    for signal in [config.prof_signal, config.stats_signal].into_iter().flatten() {
        install(signal, on_wish, libc::SA_RESTART);
    }
    if config.guard_one_in > 0
        && let Some(previous) = install(libc::SIGSEGV, on_fault, libc::SA_ONSTACK)
    {
        PREVIOUS.set(previous);
    }
}

/// Installs a handler, and returns the previous action.
fn install(signal: c_int, handler: Handler, flags: c_int) -> Option<libc::sigaction> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zeros are a valid value: the default action, an empty mask, no flags.
    let action = unsafe { action.assume_init_mut() };
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | flags;
    let config = life::config();
    for wish in [config.prof_signal, config.stats_signal].into_iter().flatten() {
        // SAFETY: a valid set, and a signal's number: so one wish waits while another is met.
        unsafe { libc::sigaddset(&raw mut action.sa_mask, wish) };
    }
    let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: both places are valid; the handlers below are safe at any point of a program.
    let installed = unsafe { libc::sigaction(signal, &raw const *action, previous.as_mut_ptr()) };
    // SAFETY: zeros are a valid value, and so is what the call wrote.
    (installed == 0).then(|| unsafe { previous.assume_init() })
}

extern "C" fn on_wish(signal: c_int, _info: *mut libc::siginfo_t, _context: *mut c_void) {
    let config = life::config();
    let mut wishes = 0;
    if config.prof_signal == Some(signal) {
        wishes |= PROFILE;
    }
    if config.stats_signal == Some(signal) {
        wishes |= STATISTICS;
    }
    if HEAP.interrupted(wishes) {
        act(wishes);
    }
}

/// Meets wishes, from a handler or on the way out of the heap.
pub(crate) fn act(wishes: u32) {
    let saved = errno::get();
    let config = life::config();
    if wishes & STATISTICS != 0 {
        report::print_stats();
        // A failure was reported, and changes nothing here.
        let _ = config.stats_json.map(report::export_json);
    }
    if wishes & PROFILE != 0 {
        // As above.
        let _ = profile::dump_next(config);
    }
    errno::set(saved);
}

/// Reports a fault at a guarded object, and ends the process. Any other fault is left to the
/// previous action: the instruction faults again when this returns. A signal that was sent is sent
/// once more.
extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid description.
    let info = unsafe { &*info };
    let is_sent = info.si_code <= 0;
    if !is_sent {
        // SAFETY: it describes a fault, and so has an address.
        let address = unsafe { info.si_addr() };
        if let Some(found) = HEAP.explain_fault(address.addr()) {
            finding::abort(&found);
        }
    }
    if let Some(previous) = PREVIOUS.get() {
        // SAFETY: what was installed before, as the kernel gave it.
        unsafe { libc::sigaction(signal, &raw const *previous, ptr::null_mut()) };
    }
    if is_sent {
        // SAFETY: no preconditions. The signal waits until this returns, since it is blocked
        // meanwhile.
        unsafe { libc::raise(signal) };
    }
}
