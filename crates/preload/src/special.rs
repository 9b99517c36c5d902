//! Turns on what the configuration asks for beyond the plain front.

use std::sync::OnceLock;

use hectare::{Front, Special};

use crate::config::Config;
use crate::line::Line;
use crate::{HEAP, finding, signals, unwind};

static SPECIAL: OnceLock<Special> = OnceLock::new();

/// To be called once, while the process has one thread.
pub(crate) fn begin(config: &Config) {
    if !config.is_special() {
        HEAP.choose_front(config.front);
        return;
    }
    HEAP.choose_front(Front::Thread);
    if config.watches() {
        unwind::begin(config.prof_by_frames);
    }
    let special = SPECIAL.get_or_init(|| Special {
        profile_mean_bytes: if config.prof { config.prof_sample_bytes } else { 0 },
        guard_one_in: config.guard_one_in,
        hardened: config.secure,
        capture: unwind::capture,
        report: finding::abort,
        act: signals::act,
    });
    if !HEAP.specialise(special) {
        let mut line = Line::new();
        line.push(b"hectare: HECTARE_CONF: no memory for guarded objects: there will be none");
        line.write_to_standard_error();
    }
}
