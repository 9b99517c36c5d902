//! What the environment asks of the library: `HECTARE_CONF=key:value,key:value`.
//!
//! Read once, in the library's constructor, and never in a set-uid program, where the environment
//! is a stranger's. Nothing here allocates. A key or a value that means nothing is reported in one
//! line on standard error and otherwise ignored: a typing error must not be silent, and must not
//! keep a program from running. File names are copied, since programs write their title over their
//! environment.
//!
//! To add a key: a field of [`Config`], a row of [`KEYS`], a [`Setting`], a line of
//! docs/malloc-configuration.md.

use core::ffi::{CStr, c_int};

use hectare::{Front, MAX_SAMPLE_MEAN};
use hectare_base::rolled;

use crate::line::Line;
use crate::once::Once;
use crate::output::Path;

/// All settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Config {
    /// Statistics as text on standard error when the process ends.
    pub(crate) stats: bool,
    /// Where to write statistics as JSON when the process ends.
    pub(crate) stats_json: Option<&'static [u8]>,
    /// The signal that asks for both kinds of statistics at any time.
    pub(crate) stats_signal: Option<c_int>,
    /// Whether a heap profile is kept.
    pub(crate) prof: bool,
    /// How the names of the profile's files begin.
    pub(crate) prof_prefix: &'static [u8],
    /// One allocated byte in this many is a sampling point.
    pub(crate) prof_sample_bytes: usize,
    /// The signal that asks for a file of the profile at any time.
    pub(crate) prof_signal: Option<c_int>,
    /// Whether callers are found by frame pointers.
    pub(crate) prof_by_frames: bool,
    /// One allocation in this many is a guarded object; 0: none.
    pub(crate) guard_one_in: usize,
    /// Whether the hardened front serves the program.
    pub(crate) secure: bool,
    /// Whether a background thread gives back idle memory.
    pub(crate) background: bool,
    /// Whether transparent huge pages are asked for.
    pub(crate) huge_pages: bool,
    /// How many MiB of the heap come from huge pages that were set aside; 0: none.
    pub(crate) hugetlb_mib: usize,
    /// How many MiB of address space the heap reserves at a time; 0: the heap decides.
    pub(crate) reserve_mib: usize,
    /// Which threads have caches of their own.
    pub(crate) front: Front,
    /// Whether the program has itself killed for system calls that are not on a list.
    pub(crate) sandbox: bool,
}

impl Config {
    /// The settings if nothing was asked for.
    pub(crate) const DEFAULT: Self = Self {
        stats: false,
        stats_json: None,
        stats_signal: None,
        prof: false,
        prof_prefix: b"hectare-heap",
        prof_sample_bytes: 2 << 20,
        prof_signal: None,
        prof_by_frames: false,
        guard_one_in: 0,
        secure: false,
        background: false,
        huge_pages: true,
        hugetlb_mib: 0,
        reserve_mib: 0,
        front: Front::Auto,
        sandbox: false,
    };

    /// Whether callers must be watched.
    pub(crate) fn watches(&self) -> bool {
        self.prof || self.guard_one_in > 0
    }

    /// Whether a front that sees every call, or a signal's handler, is asked for. Then all threads
    /// have caches of their own, or none has.
    pub(crate) fn is_special(&self) -> bool {
        self.watches() || self.secure || self.stats_signal.is_some()
    }
}

/// A key: its name, what it sets, and what its value must be.
struct Key {
    name: &'static [u8],
    setting: Setting,
    expects: &'static str,
}

impl Key {
    const fn new(name: &'static [u8], setting: Setting, expects: &'static str) -> Self {
        Self { name, setting, expects }
    }
}

const KEYS: &[Key] = &[
    Key::new(b"stats", Setting::Stats, BOOLEAN),
    Key::new(b"stats_json", Setting::StatsJson, "the path of a file"),
    Key::new(b"stats_signal", Setting::StatsSignal, SIGNAL),
    Key::new(b"prof", Setting::Prof, BOOLEAN),
    Key::new(b"prof_prefix", Setting::ProfPrefix, PREFIX),
    Key::new(b"prof_sample", Setting::ProfSample, "a number of bytes from 1 to 4294967296"),
    Key::new(b"prof_signal", Setting::ProfSignal, SIGNAL),
    Key::new(b"prof_unwind", Setting::ProfUnwind, "tables or frames"),
    Key::new(b"guard", Setting::Guard, ONE_IN),
    Key::new(b"secure", Setting::Secure, BOOLEAN),
    Key::new(b"background", Setting::Background, BOOLEAN),
    Key::new(b"huge_pages", Setting::HugePages, BOOLEAN),
    Key::new(b"hugetlb", Setting::Hugetlb, "an even number of MiB, up to 131072; 0 for none"),
    Key::new(
        b"reserve",
        Setting::Reserve,
        "a number of MiB, up to 262144; 0 for what suits the memory",
    ),
    Key::new(b"sandbox", Setting::Sandbox, BOOLEAN),
    Key::new(b"front", Setting::Front, "auto, thread or cpu"),
];

const BOOLEAN: &str = "true or false";
const PREFIX: &str = "the path of a file, as far as its names are to begin alike";
const ONE_IN: &str =
    "a number of allocations, 4294967296 at most, of which one is guarded; 0 for none";
const SIGNAL: &str = "the number of a signal that a program may use: 1, 10, 12, or 34 to 64";

/// What a key sets: one field of [`Config`].
#[derive(Debug, Clone, Copy)]
enum Setting {
    Stats,
    StatsJson,
    StatsSignal,
    Prof,
    ProfPrefix,
    ProfSample,
    ProfSignal,
    ProfUnwind,
    Guard,
    Secure,
    Background,
    HugePages,
    Hugetlb,
    Reserve,
    Sandbox,
    Front,
}

/// Applies the value of a key. `None`, and nothing has changed, if the key cannot have this value.
fn apply(config: &mut Config, setting: Setting, value: &'static [u8]) -> Option<()> {
    match setting {
        Setting::Stats => config.stats = boolean(value)?,
        Setting::StatsJson => config.stats_json = Some(path(value)?),
        Setting::StatsSignal => config.stats_signal = Some(signal(value)?),
        Setting::Prof => config.prof = boolean(value)?,
        Setting::ProfPrefix => config.prof_prefix = path(value)?,
        Setting::ProfSample => {
            config.prof_sample_bytes =
                number(value).filter(|bytes| (1..=MAX_SAMPLE_MEAN).contains(bytes))?;
        }
        Setting::ProfSignal => config.prof_signal = Some(signal(value)?),
        Setting::ProfUnwind => {
            config.prof_by_frames = match value {
                b"tables" => false,
                b"frames" => true,
                _ => return None,
            };
        }
        Setting::Guard => {
            config.guard_one_in = number(value).filter(|&one_in| one_in <= MAX_SAMPLE_MEAN)?;
        }
        Setting::Secure => config.secure = boolean(value)?,
        Setting::Background => config.background = boolean(value)?,
        Setting::HugePages => config.huge_pages = boolean(value)?,
        Setting::Hugetlb => {
            config.hugetlb_mib =
                number(value).filter(|mib| mib.is_multiple_of(2) && *mib <= 128 << 10)?;
        }
        Setting::Reserve => {
            config.reserve_mib = number(value).filter(|&mib| mib <= 256 << 10)?;
        }
        Setting::Sandbox => config.sandbox = boolean(value)?,
        Setting::Front => {
            config.front = match value {
                b"auto" => Front::Auto,
                b"thread" => Front::Thread,
                b"cpu" => Front::Cpu,
                _ => return None,
            };
        }
    }
    Some(())
}

/// SIGHUP, SIGUSR1, SIGUSR2 and the real-time signals.
fn signal(value: &[u8]) -> Option<c_int> {
    let signal = number(value).and_then(|number| c_int::try_from(number).ok())?;
    matches!(signal, libc::SIGHUP | libc::SIGUSR1 | libc::SIGUSR2 | 34..=64).then_some(signal)
}

fn path(value: &'static [u8]) -> Option<&'static [u8]> {
    Some(value).filter(|path| !path.is_empty())
}

/// A decimal number.
#[inline(never)]
fn number(value: &[u8]) -> Option<usize> {
    if value.is_empty() {
        return None;
    }
    value.iter().try_fold(0usize, |number, &digit| {
        let digit = char::from(digit).to_digit(10)?;
        number.checked_mul(10)?.checked_add(digit as usize)
    })
}

#[inline(never)]
fn boolean(value: &[u8]) -> Option<bool> {
    match value {
        b"true" | b"1" => Some(true),
        b"false" | b"0" => Some(false),
        _ => None,
    }
}

/// Why a part of the text was ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Problem {
    UnknownKey(&'static [u8]),
    BadValue {
        key: &'static [u8],
        value: &'static [u8],
        expects: &'static str,
    },
    NotWithSecure,
    /// A key of the profile, though no profile is kept.
    WithoutProfile(&'static [u8]),
    NotByCpu,
}

impl Problem {
    /// Writes one line about it to standard error.
    #[cold]
    #[inline(never)]
    fn warn(self) {
        let mut line = Line::new();
        line.push(b"hectare: HECTARE_CONF: ");
        match self {
            Self::UnknownKey(key) => {
                line.push(b"unknown key '").push(key).push(b"' is ignored; the keys are ");
                let [keys @ .., last] = keys() else { return };
                for key in keys {
                    line.push(key.name).push(b", ");
                }
                line.push(last.name);
            }
            Self::BadValue { key, value, expects } => {
                line.push(b"'").push(key).push(b":").push(value).push(b"' is ignored; ");
                line.push(key).push(b" must be ").push(expects.as_bytes());
            }
            Self::NotWithSecure => {
                line.push(b"secure is true: prof, guard and hugetlb are ignored");
            }
            Self::WithoutProfile(key) => {
                line.push(key).push(b" is ignored, since prof is not true");
            }
            Self::NotByCpu => {
                line.push(b"front is ignored: prof, guard, secure and stats_signal have their own");
            }
        }
        line.write_to_standard_error();
    }
}

/// All keys. (Each mention of a constant makes a copy of it, so only this function mentions it.)
fn keys() -> &'static [Key] {
    rolled(KEYS)
}

/// Parses `text`, and passes each part that means nothing to `problem`. A later key wins.
#[cold]
#[inline(never)]
fn parse(text: &'static [u8], mut problem: impl FnMut(Problem)) -> Config {
    let mut config = Config::DEFAULT;
    let mut of_profile = None;
    for part in text.split(|&byte| byte == b',').filter(|part| !part.is_empty()) {
        let colon = part.iter().position(|&byte| byte == b':').unwrap_or(part.len());
        let (name, value) = (&part[..colon], part.get(colon + 1..).unwrap_or_default());
        match keys().iter().find(|key| key.name == name) {
            None => problem(Problem::UnknownKey(name)),
            Some(key) => {
                if apply(&mut config, key.setting, value).is_none() {
                    let expects = key.expects;
                    problem(Problem::BadValue { key: key.name, value, expects });
                } else if key.name.starts_with(b"prof_") {
                    of_profile.get_or_insert(key.name);
                }
            }
        }
    }
    if let Some(key) = of_profile.filter(|_| !config.prof) {
        problem(Problem::WithoutProfile(key));
        config.prof_signal = None;
    }
    if config.secure && (config.prof || config.guard_one_in > 0 || config.hugetlb_mib > 0) {
        problem(Problem::NotWithSecure);
        // No page of a huge page can be sealed.
        config.hugetlb_mib = 0;
        config.prof = false;
        config.prof_signal = None;
        config.guard_one_in = 0;
    }
    if config.is_special() && config.front != Front::Auto {
        problem(Problem::NotByCpu);
        config.front = Front::Auto;
    }
    config
}

static STATS_JSON: Once<Path> = Once::new();
static PROF_PREFIX: Once<Path> = Once::new();

/// A copy of `text` in `place`. A text too long for any path stays where it is; that is reported
/// when the file is to be written.
fn copied(place: &'static Once<Path>, text: &'static [u8]) -> &'static [u8] {
    let mut path = Path::new();
    if path.push(text).is_some() {
        place.set(path);
    }
    place.get().map_or(text, Path::text)
}

/// The configuration that `environment` asks for.
///
/// # Safety
/// `environment` is null, or a null-terminated array of C strings that live as long as the
/// process.
pub(crate) unsafe fn read(environment: *const *const libc::c_char) -> Config {
    // SAFETY: no preconditions.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if secure || environment.is_null() {
        return Config::DEFAULT;
    }
    let mut place = environment;
    loop {
        // SAFETY: not behind the array's null, by the loop's condition.
        let entry = unsafe { place.read() };
        if entry.is_null() {
            return Config::DEFAULT;
        }
        // SAFETY: the caller's promise.
        let entry: &'static [u8] = unsafe { CStr::from_ptr(entry) }.to_bytes();
        if let Some(text) = entry.strip_prefix(b"HECTARE_CONF=") {
            let mut config = parse(text, Problem::warn);
            config.stats_json = config.stats_json.map(|path| copied(&STATS_JSON, path));
            if config.prof {
                config.prof_prefix = copied(&PROF_PREFIX, config.prof_prefix);
            }
            return config;
        }
        // SAFETY: the array goes on: this entry was not its null.
        place = unsafe { place.add(1) };
    }
}
