//! Allocators under measurement: their names, their libraries, and whether a program can be run on
//! them at all.
//!
//! | name | what it is |
//! |---|---|
//! | `system` | the C library's own, nothing preloaded |
//! | `hectare` | `libhectare.so` beside this executable |
//! | a name from `peers/` | `peers/target/release/lib<name>.so`, built by `cargo build --release` there |
//! | `jemalloc`, `tcmalloc`, … | a library that the system brings |
//! | `NAME=/path/lib.so` | any library |

pub(crate) mod program;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Libraries that distributions ship, under the names users know them by.
///
/// A name that `peers/` also has is offered from there, and the system's library gets the suffix
/// `-system`. The two are different versions, and both are worth seeing.
const SYSTEM_LIBRARIES: &[(&str, &str)] = &[
    ("jemalloc", "libjemalloc.so.2"),
    ("tcmalloc-gperftools", "libtcmalloc_minimal.so.4"),
    ("mimalloc", "libmimalloc.so.2"),
    ("mimalloc3", "libmimalloc.so.3"),
    ("tbbmalloc", "libtbbmalloc_proxy.so.2"),
    ("snmalloc", "libsnmallocshim.so"),
    ("rpmalloc", "librpmalloc.so"),
    ("hoard", "libhoard.so"),
    ("scudo", "libscudo.so"),
];

/// The folders in which distributions put them.
const LIBRARY_FOLDERS: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/lib64",
];

/// The name of the subject without a preloaded library.
const SYSTEM: &str = "system";

/// One allocator under measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    /// The name in tables.
    pub(crate) name: String,
    /// The library to preload; `None` for the C library's own allocator.
    pub(crate) library: Option<PathBuf>,
}

impl Subject {
    /// The C library's allocator.
    pub(crate) fn system() -> Self {
        Self { name: SYSTEM.to_owned(), library: None }
    }

    /// Our own allocator, if its library is beside this executable.
    pub(crate) fn hectare() -> Option<Self> {
        let library = beside_executable("libhectare.so")?;
        Some(Self { name: "hectare".to_owned(), library: Some(library) })
    }

    /// Environment variables that its processes need: those that the `.env` file beside its
    /// library sets, if there is one.
    ///
    /// # Errors
    /// When the file cannot be read, or has a line that sets no variable.
    pub(crate) fn environment(&self) -> anyhow::Result<Vec<(String, String)>> {
        let Some(library) = &self.library else { return Ok(Vec::new()) };
        let file = library.with_extension("env");
        let text = match std::fs::read_to_string(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            read => read.with_context(|| file.display().to_string())?,
        };
        variables(&text).with_context(|| file.display().to_string())
    }

    /// The subject that `text` names.
    ///
    /// # Errors
    /// When the name is unknown or its library is missing; the message lists what was found.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        if let Some((name, path)) = text.split_once('=') {
            anyhow::ensure!(!name.is_empty(), "`{text}` has no name before the `=`");
            anyhow::ensure!(
                name != SYSTEM,
                "`{text}`: `{SYSTEM}` is the program as it is: give the library another name"
            );
            anyhow::ensure!(
                !path.is_empty(),
                "`{text}` has no path after the `=`: give it as NAME=/path/lib.so"
            );
            return Self::of_library(name, Path::new(path));
        }
        if text.contains('/') {
            let path = Path::new(text);
            return Self::of_library(&library_name(path), path);
        }
        let found = found();
        if let Some(subject) = found.iter().find(|subject| subject.name == text) {
            subject.check()?;
            return Ok(subject.clone());
        }
        if text == "hectare" {
            bail!(
                "libhectare.so is not beside this executable; build it with `cargo build --release`"
            );
        }
        let names: Vec<_> = found.into_iter().map(|subject| subject.name).collect();
        bail!(
            "no allocator is called `{text}`; found: {}. Others are given as NAME=/path/lib.so",
            names.join(", ")
        )
    }

    /// Several subjects, separated by commas.
    ///
    /// # Errors
    /// As [`Subject::parse`], and when a name occurs twice.
    pub(crate) fn parse_list(text: &str) -> anyhow::Result<Vec<Self>> {
        let mut subjects: Vec<Self> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let subject = Self::parse(part)?;
            if subjects.iter().any(|known| known.name == subject.name) {
                bail!("the allocator `{}` is given twice", subject.name);
            }
            subjects.push(subject);
        }
        anyhow::ensure!(!subjects.is_empty(), "no allocator is given");
        Ok(subjects)
    }

    fn of_library(name: &str, path: &Path) -> anyhow::Result<Self> {
        let library = path
            .canonicalize()
            .with_context(|| format!("the library of `{name}`, {}", path.display()))?;
        program::check_library(&library)?;
        let subject = Self { name: name.to_owned(), library: Some(library) };
        subject.check()?;
        Ok(subject)
    }

    /// Checks that the subject's library can be preloaded from where it is, and that it is known
    /// which variables its processes need.
    ///
    /// # Errors
    /// When it cannot: its processes would run on the C library's allocator. As
    /// [`Subject::environment`].
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.library.as_deref().map_or(Ok(()), undivided)?;
        self.environment().map(drop)
    }
}

/// The variables that a text of `KEY=VALUE` lines sets. Empty lines and those that begin with `#`
/// are passed over.
///
/// # Errors
/// When a line is something else.
fn variables(text: &str) -> anyhow::Result<Vec<(String, String)>> {
    let lines = (1..).zip(text.lines().map(str::trim));
    let set = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let variable = |(number, line): (usize, &str)| {
        let is_name = |key: &str| {
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            !key.is_empty() && key.bytes().all(is_part) && !key.as_bytes()[0].is_ascii_digit()
        };
        let pair = line.split_once('=').filter(|(key, _)| is_name(key.trim_end()));
        let (key, value) = pair.with_context(|| format!("line {number} is not KEY=VALUE"))?;
        Ok((key.trim_end().to_owned(), value.trim_start().to_owned()))
    };
    set.map(variable).collect()
}

/// Checks that the dynamic loader takes `library` for a single path.
///
/// # Errors
/// When the loader would take it for several.
fn undivided(library: &Path) -> anyhow::Result<()> {
    let divided = library.as_os_str().as_encoded_bytes().iter().any(|byte| b" :".contains(byte));
    anyhow::ensure!(
        !divided,
        "{}: the loader divides LD_PRELOAD at spaces and colons, so nothing can be preloaded from \
         there: move it to a path without",
        library.display()
    );
    Ok(())
}

/// Every allocator that this machine has, `hectare` and `system` first.
pub(crate) fn found() -> Vec<Subject> {
    let mut subjects: Vec<Subject> = Subject::hectare().into_iter().collect();
    subjects.push(Subject::system());
    let mut libraries: Vec<PathBuf> = peer_folders()
        .iter()
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flat_map(|entries| entries.flatten().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "so"))
        .filter_map(|path| path.canonicalize().ok())
        .collect();
    libraries.sort();
    for library in libraries {
        let name = library_name(&library);
        if subjects.iter().all(|known| known.name != name)
            && program::check_library(&library).is_ok()
        {
            subjects.push(Subject { name, library: Some(library) });
        }
    }
    for (name, file) in SYSTEM_LIBRARIES {
        let path = LIBRARY_FOLDERS
            .iter()
            .map(|folder| Path::new(folder).join(file))
            .find_map(|path| path.canonicalize().ok());
        let Some(path) = path.filter(|path| program::check_library(path).is_ok()) else {
            continue;
        };
        let taken = subjects.iter().any(|known| known.name == *name);
        let name = if taken { format!("{name}-system") } else { (*name).to_owned() };
        subjects.push(Subject { name, library: Some(path) });
    }
    subjects
}

/// The file that holds the recorder.
pub(crate) const RECORDER: &str = "libhectare_recorder.so";

/// The recorder's library beside this executable.
///
/// # Errors
/// When the library is not there, or cannot be preloaded from there.
pub(crate) fn recorder_library() -> anyhow::Result<PathBuf> {
    let library = beside_executable(RECORDER).with_context(|| {
        format!("{RECORDER} is not beside this executable; build it with `cargo build --release`")
    })?;
    undivided(&library)?;
    Ok(library)
}

/// The repository's folder `name` (`traces`, …): in the current folder, above the executable, or
/// where this command was built.
pub(crate) fn repository_folder(name: &str) -> Option<PathBuf> {
    let mut places = Vec::new();
    if let Ok(here) = std::env::current_dir() {
        places.push(here.join(name));
    }
    if let Ok(executable) = std::env::current_exe() {
        places.extend(executable.ancestors().skip(1).take(4).map(|above| above.join(name)));
    }
    places.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name));
    places.into_iter().filter_map(|place| place.canonicalize().ok()).find(|place| place.is_dir())
}

/// Folders that hold peers' libraries: `HECTARE_PEERS`, else those of the workspace `peers/`.
fn peer_folders() -> Vec<PathBuf> {
    if let Some(folder) = std::env::var_os("HECTARE_PEERS") {
        return vec![PathBuf::from(folder)];
    }
    repository_folder("peers").map(|peers| peers.join("target/release")).into_iter().collect()
}

fn beside_executable(file: &str) -> Option<PathBuf> {
    let executable = std::env::current_exe().ok()?;
    // Test binaries live one folder deeper, in `deps`.
    executable.ancestors().skip(1).take(2).find_map(|folder| folder.join(file).canonicalize().ok())
}

/// `/x/libpeer_jemalloc.so.2` is `jemalloc`.
fn library_name(path: &Path) -> String {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let stem = file.split(".so").next().unwrap_or_default();
    let stem = stem.strip_prefix("lib").unwrap_or(stem);
    let stem = stem.strip_prefix("peer_").unwrap_or(stem);
    stem.replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_file_names() {
        for (path, name) in [
            ("/x/libjemalloc.so.2", "jemalloc"),
            ("/x/libpeer_mimalloc3.so", "mimalloc3"),
            ("/x/libtbbmalloc_proxy.so.2.8", "tbbmalloc-proxy"),
            ("odd.so", "odd"),
        ] {
            assert_eq!(library_name(Path::new(path)), name);
        }
    }

    #[test]
    fn the_system_is_always_found() {
        assert!(found().contains(&Subject::system()));
        assert_eq!(Subject::parse("system").unwrap(), Subject::system());
    }

    #[test]
    fn wrong_names_are_told_with_what_there_is() {
        let message = Subject::parse("nosuch").unwrap_err().to_string();
        assert!(message.contains("`nosuch`") && message.contains("system"), "{message}");
        let message = format!("{:#}", Subject::parse("x=/nowhere/libx.so").unwrap_err());
        assert!(message.contains("/nowhere/libx.so"), "{message}");
        for (text, part) in [("x=", "no path after the `=`"), ("=/lib/libx.so", "no name before")] {
            let message = format!("{:#}", Subject::parse(text).unwrap_err());
            assert!(message.contains(part), "{text}: {message}");
        }
        assert!(Subject::parse_list("system,system").is_err());
        let message = Subject::parse("system=/lib/libx.so").unwrap_err().to_string();
        assert!(message.contains("another name"), "{message}");
        assert!(Subject::parse_list(" , ").is_err());
    }

    #[test]
    fn a_path_that_the_loader_would_divide_is_refused() {
        for path in ["/my heaps/libx.so", "/heaps:2/libx.so"] {
            let subject = Subject { name: "x".to_owned(), library: Some(path.into()) };
            let message = subject.check().unwrap_err().to_string();
            assert!(message.contains(path) && message.contains("LD_PRELOAD"), "{message}");
        }
        let subject = Subject { name: "x".to_owned(), library: Some("/heaps/libx.so".into()) };
        assert!(subject.check().is_ok() && Subject::system().check().is_ok());
    }

    #[test]
    fn a_file_of_variables_is_read_line_by_line() {
        let pairs = |text: &str| {
            variables(text).map_err(|error| error.to_string()).map(|set| {
                set.iter().map(|(key, value)| format!("{key}:{value}")).collect::<Vec<_>>()
            })
        };
        let good = "# of the library\n\n  HECTARE_CONF = secure:true\nA=\n_b2=c=d # e\n";
        let expected = ["HECTARE_CONF:secure:true", "A:", "_b2:c=d # e"].map(str::to_owned);
        assert_eq!(pairs(good).unwrap(), expected);
        assert_eq!(pairs("").unwrap(), [""; 0]);
        for wrong in ["garbage", "export X=1", "=3", "2A=1", "A-B=1"] {
            let text = format!("# x\n{wrong}\nC=1\n");
            assert_eq!(pairs(&text).unwrap_err(), "line 2 is not KEY=VALUE", "{wrong}");
        }
    }
}
