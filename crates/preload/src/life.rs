//! The library's life in a process: its start before everybody else's, forks, and the end.
//!
//! ```text
//!   loaded ──at_load──▶ configured, forks seen to ──…──at_exit──▶ statistics written
//! ```
//! The library is linked with `-z initfirst`: `at_load` runs ahead of every other constructor, so
//! the heap's fork handlers are the first to be registered. The C library's own constructor may not
//! have run by then. So `at_load` uses nothing that needs it, and takes the environment from its
//! arguments.

use core::ffi::{c_char, c_int};

use hectare::Front;

use crate::HEAP;
use crate::config::{self, Config};
use crate::once::Once;
use crate::{background, dlopen, mode, report, signals, special};

static CONFIG: Once<Config> = Once::new();

/// The configuration; the default until it has been read.
pub(crate) fn config() -> &'static Config {
    CONFIG.get().unwrap_or(&Config::DEFAULT)
}

extern "C" fn at_load(
    _count: c_int,
    _arguments: *const *const c_char,
    environment: *const *const c_char,
) {
    HEAP.see_to_forks();
    dlopen::find_next();
    // SAFETY: glibc passes the process's environment to constructors.
    let mut config = unsafe { config::read(environment) };
    if config.reserve_mib > 0 {
        HEAP.reserve_at_most(config.reserve_mib << 20);
    }
    if config.hugetlb_mib > 0 {
        // SAFETY: this library is loaded before others can begin a thread.
        unsafe { special::set_aside(&mut config.hugetlb_mib) };
    }
    if !config.huge_pages {
        HEAP.forgo_huge_pages();
    }
    if config.sandbox {
        HEAP.keep_to_plain_calls();
        config.front = Front::Thread;
    }
    CONFIG.set(config);
    // A plain process calls nothing of `special` and `signals`, which lie apart (`cold.ld`).
    if config.is_special() {
        special::begin(&config);
    } else {
        HEAP.choose_front(config.front);
    }
    mode::note(&config);
    if config.is_special() {
        signals::listen(&config);
    }
    if config.background {
        background::begin();
    }
}

/// Runs after the program's `atexit` functions and destructors, unless the program ends by `_exit`.
extern "C" fn at_exit() {
    let config = config();
    if config.stats || config.stats_json.is_some() || config.prof {
        report::at_exit(config);
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = at_load;

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
