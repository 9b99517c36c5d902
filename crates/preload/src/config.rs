//! What the environment asks of the library: `HECTARE_CONF=key:value,key:value`.
//!
//! Read once, in the library's constructor, and never in a set-uid program, where the environment
//! is a stranger's. Nothing here allocates. A key or a value that means nothing is told in one
//! line on standard error and otherwise ignored: a typing error must not be silent, and must not
//! keep a program from running.
//!
//! To add a key: a field of [`Config`], a row of [`KEYS`], a line of docs/malloc-configuration.md.

use core::ffi::CStr;

use crate::line::Line;

/// Everything that can be configured, as it stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Config {
    /// Statistics as text on standard error when the process ends.
    pub(crate) stats: bool,
    /// Where to write statistics as JSON when the process ends.
    pub(crate) stats_json: Option<&'static [u8]>,
}

/// A key: its name, what its value must be, and how that is taken over. `None`: a bad value.
struct Key {
    name: &'static [u8],
    expects: &'static str,
    apply: fn(&mut Config, &'static [u8]) -> Option<()>,
}

const KEYS: &[Key] = &[
    Key {
        name: b"stats",
        expects: "true or false",
        apply: |config, value| {
            config.stats = boolean(value)?;
            Some(())
        },
    },
    Key {
        name: b"stats_json",
        expects: "the path of a file",
        apply: |config, value| {
            config.stats_json = Some(value).filter(|path| !path.is_empty());
            config.stats_json.map(drop)
        },
    },
];

fn boolean(value: &[u8]) -> Option<bool> {
    match value {
        b"true" | b"1" => Some(true),
        b"false" | b"0" => Some(false),
        _ => None,
    }
}

/// Why a part of the text was ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Problem {
    UnknownKey(&'static [u8]),
    BadValue { key: &'static [u8], value: &'static [u8], expects: &'static str },
}

impl Problem {
    /// Writes one line about it to standard error.
    fn warn(self) {
        let mut line = Line::new();
        line.push(b"hectare: HECTARE_CONF: ");
        match self {
            Self::UnknownKey(key) => {
                line.push(b"unknown key '").push(key).push(b"' is ignored; the keys are ");
                for (i, key) in KEYS.iter().enumerate() {
                    line.push(if i == 0 { b"" } else { b", " }).push(key.name);
                }
            }
            Self::BadValue { key, value, expects } => {
                line.push(b"'").push(key).push(b":").push(value).push(b"' is ignored; ");
                line.push(key).push(b" must be ").push(expects.as_bytes());
            }
        }
        line.write_to_standard_error();
    }
}

/// Parses `text`; each part that means nothing is passed to `problem`. A later key wins.
pub(crate) fn parse(text: &'static [u8], mut problem: impl FnMut(Problem)) -> Config {
    let mut config = Config::default();
    for part in text.split(|&byte| byte == b',').filter(|part| !part.is_empty()) {
        let colon = part.iter().position(|&byte| byte == b':').unwrap_or(part.len());
        let (name, value) = (&part[..colon], part.get(colon + 1..).unwrap_or_default());
        match KEYS.iter().find(|key| key.name == name) {
            None => problem(Problem::UnknownKey(name)),
            Some(key) => {
                if (key.apply)(&mut config, value).is_none() {
                    let expects = key.expects;
                    problem(Problem::BadValue { key: key.name, value, expects });
                }
            }
        }
    }
    config
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
        return Config::default();
    }
    let mut place = environment;
    loop {
        // SAFETY: not behind the array's null, by the loop's condition.
        let entry = unsafe { place.read() };
        if entry.is_null() {
            return Config::default();
        }
        // SAFETY: the caller's promise.
        let entry: &'static [u8] = unsafe { CStr::from_ptr(entry) }.to_bytes();
        if let Some(text) = entry.strip_prefix(b"HECTARE_CONF=") {
            return parse(text, Problem::warn);
        }
        // SAFETY: the array goes on: this entry was not its null.
        place = unsafe { place.add(1) };
    }
}
