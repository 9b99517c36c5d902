//! Which mode the library is in, as text: told by the statistics and by `hectare_mode`.

use core::ffi::c_char;
use core::fmt::{self, Write};
use core::str;

use hectare::Front;

use crate::HEAP;
use crate::config::Config;
use crate::once::Once;

/// All options at their longest, and the null.
const MODE_BYTES: usize = 336;

/// The text, with a null behind it.
struct Mode {
    bytes: [u8; MODE_BYTES],
    len: usize,
}

static MODE: Once<Mode> = Once::new();

/// The mode since the program has confined itself.
static CONFINED_MODE: Once<Mode> = Once::new();

impl Mode {
    /// Appends `text`. Each process comes by here, and does without Rust's formatting unless some
    /// option is on.
    fn push(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        // The last byte stays the null.
        let room =
            self.bytes.get_mut(self.len..end).filter(|_| end < MODE_BYTES).ok_or(fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

impl Write for Mode {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text)
    }
}

/// Which front serves the program's calls.
fn front_of(config: &Config) -> &'static str {
    if config.secure {
        "hardened"
    } else if config.watches() {
        "watched"
    } else {
        match HEAP.front() {
            Front::Thread => "thread",
            Front::Cpu => "cpu",
            Front::Auto => "auto",
        }
    }
}

/// Writes the mode down, for as long as the program does not confine itself.
pub(crate) fn note(config: &Config) {
    MODE.set(composed(config));
}

/// Writes it down anew, for good: the program has confined itself.
pub(crate) fn note_confined(config: &Config) {
    CONFINED_MODE.set(composed(config));
}

fn composed(config: &Config) -> Mode {
    let mut mode = Mode { bytes: [0; MODE_BYTES], len: 0 };
    // All options at their longest fit; one too many would be cut off.
    let _ = write_mode(&mut mode, config);
    mode
}

fn current() -> Option<&'static Mode> {
    CONFINED_MODE.get().or_else(|| MODE.get())
}

fn write_mode(out: &mut Mode, config: &Config) -> fmt::Result {
    out.push("front:")?;
    out.push(front_of(config))?;
    out.push(if config.secure { ",secure:true" } else { "" })?;
    out.push(if config.background { ",background:true" } else { "" })?;
    out.push(if HEAP.keeps_to_plain_calls() { ",sandbox:true" } else { "" })?;
    number(out, "hugetlb", config.hugetlb_mib)?;
    number(out, "reserve", config.reserve_mib)?;
    if config.prof {
        number(out, "prof:true,prof_sample", config.prof_sample_bytes)?;
        out.push(if config.prof_by_frames { ",prof_unwind:frames" } else { "" })?;
    }
    number(out, "guard", config.guard_one_in)?;
    number(out, "prof_signal", config.prof_signal.unwrap_or(0) as usize)?;
    number(out, "stats_signal", config.stats_signal.unwrap_or(0) as usize)
}

/// One option, unless it is 0, which stands for none.
#[inline(never)]
fn number(out: &mut Mode, name: &str, number: usize) -> fmt::Result {
    if number > 0 { write!(out, ",{name}:{number}") } else { Ok(()) }
}

/// The front, and every option that is on.
pub(crate) fn text() -> &'static str {
    let text = current().map(|mode| &mode.bytes[..mode.len]);
    // SAFETY: only whole texts are appended. (Checked, it would take half a kilobyte of code.)
    text.map_or("front:thread", |text| unsafe { str::from_utf8_unchecked(text) })
}

/// The front alone.
pub(crate) fn front() -> &'static str {
    front_of(crate::life::config())
}

#[unsafe(no_mangle)]
extern "C" fn hectare_mode() -> *const c_char {
    current().map_or(c"front:thread".as_ptr(), |mode| mode.bytes.as_ptr().cast())
}
