//! Which mode the library is in, as text, for the statistics and `hectare_mode`.

use core::ffi::c_char;
use core::str;

use hectare::Front;

use crate::HEAP;
use crate::config::Config;
use crate::once::Once;
use crate::output::decimal;

/// All options at their longest, and the null.
const MODE_BYTES: usize = 336;

/// The text, with a null behind it.
struct Mode {
    bytes: [u8; MODE_BYTES],
    len: usize,
}

static MODE: Once<Mode> = Once::new();

/// The mode once the program has confined itself.
static CONFINED_MODE: Once<Mode> = Once::new();

impl Mode {
    /// Appends `text`; `None`, and nothing has changed, if there is no room.
    fn push(&mut self, text: &[u8]) -> Option<()> {
        let end = self.len + text.len();
        // The last byte stays the null.
        let room = self.bytes.get_mut(self.len..end).filter(|_| end < MODE_BYTES)?;
        room.copy_from_slice(text);
        self.len = end;
        Some(())
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

/// Notes the mode for as long as the program does not confine itself.
pub(crate) fn note(config: &Config) {
    MODE.set(composed(config));
}

/// Notes the mode for good, since the program has confined itself.
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

fn write_mode(out: &mut Mode, config: &Config) -> Option<()> {
    out.push(b"front:")?;
    out.push(front_of(config).as_bytes())?;
    flag(out, b",secure:true", config.secure)?;
    flag(out, b",background:true", config.background)?;
    flag(out, b",sandbox:true", HEAP.keeps_to_plain_calls())?;
    flag(out, b",huge_pages:false", !config.huge_pages)?;
    number(out, b",hugetlb:", config.hugetlb_mib)?;
    number(out, b",reserve:", config.reserve_mib)?;
    if config.prof {
        number(out, b",prof:true,prof_sample:", config.prof_sample_bytes)?;
        flag(out, b",prof_unwind:frames", config.prof_by_frames)?;
    }
    number(out, b",guard:", config.guard_one_in)?;
    number(out, b",prof_signal:", config.prof_signal.unwrap_or(0) as usize)?;
    number(out, b",stats_signal:", config.stats_signal.unwrap_or(0) as usize)
}

/// An option that is on or off.
fn flag(out: &mut Mode, text: &[u8], is_on: bool) -> Option<()> {
    if is_on { out.push(text) } else { Some(()) }
}

/// An option that has a number; 0 stands for none.
#[inline(always)]
fn number(out: &mut Mode, name: &[u8], number: usize) -> Option<()> {
    if number > 0 { push_number(out, name, number) } else { Some(()) }
}

#[inline(never)] // Few programs come by here (`cold.ld`).
fn push_number(out: &mut Mode, name: &[u8], number: usize) -> Option<()> {
    out.push(name)?;
    out.push(decimal(number as u64, &mut [0; 20]))
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
