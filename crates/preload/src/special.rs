//! Turns on what the configuration asks for beyond the plain front.

use core::fmt::Write;

use hectare::{Front, Special};

use crate::config::Config;
use crate::line::Line;
use crate::once::Once;
use crate::{HEAP, finding, signals, unwind};

static SPECIAL: Once<Special> = Once::new();

/// Has as much of the heap as is asked for come from huge pages that were set aside. If not that
/// many are free, none of it does, and that is reported.
///
/// # Safety
/// The process has one thread.
pub(crate) unsafe fn set_aside(mib: &mut usize) {
    // SAFETY: the caller's promise, passed on.
    if unsafe { HEAP.set_aside(*mib << 20) } {
        return;
    }
    let mut line = Line::new();
    // A line takes all text, or as much as it has room for.
    let _ = write!(
        line,
        "hectare: HECTARE_CONF: hugetlb:{mib} is ignored: not so many huge pages of 2 MiB are free \
         (vm.nr_hugepages sets them aside); ordinary pages serve"
    );
    line.write_to_standard_error();
    *mib = 0;
}

/// To be called once, while the process has one thread, if [`Config::is_special`].
pub(crate) fn begin(config: &Config) {
    HEAP.choose_front(Front::Thread);
    if config.watches() {
        unwind::begin(config.prof_by_frames);
    }
    SPECIAL.set(Special {
        profile_mean_bytes: if config.prof { config.prof_sample_bytes } else { 0 },
        guard_one_in: config.guard_one_in,
        hardened: config.secure,
        capture: unwind::capture,
        report: finding::abort,
        act: signals::act,
    });
    if SPECIAL.get().is_some_and(|special| !HEAP.specialise(special)) {
        let mut line = Line::new();
        line.push(b"hectare: HECTARE_CONF: no memory for guarded objects: there will be none");
        line.write_to_standard_error();
    }
}
