//! Whether a library can be preloaded into a program. This is checked before anything is measured
//! in vain.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use object::elf;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol};
use rustix::process::{getgid, getuid};

/// Why preloading changes nothing for a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// No dynamic loader: `LD_PRELOAD` is never read.
    Static,
    /// The program defines `malloc` itself, which comes before any preloaded library. Holds the
    /// name of the allocator, if the program's symbols show it.
    OwnAllocator(Option<&'static str>),
    /// The loader ignores `LD_PRELOAD` for programs that change the user.
    SetUserId,
}

/// Symbols by which a linked allocator is recognised.
const SIGNATURES: [(&str, &str); 6] = [
    ("mallctl", "jemalloc"),
    ("je_mallctl", "jemalloc"),
    ("mi_malloc", "mimalloc"),
    ("tc_malloc", "tcmalloc"),
    ("rpmalloc", "rpmalloc"),
    ("scalable_malloc", "TBB's allocator"),
];

/// Symbols of allocators that a program calls by names of their own, as a Rust program calls its
/// global allocator.
const BESIDE: [(&str, &str); 4] = [
    ("_rjem_malloc", "jemalloc"),
    ("mi_malloc", "mimalloc"),
    ("sn_rust_alloc", "snmalloc"),
    ("rpmalloc", "rpmalloc"),
];
/// Part of the mangled name of every Rust function of ours.
const OURS: &str = "7hectare7process";

impl Obstacle {
    /// The reason in words, for `program`.
    pub(crate) fn explain(&self, program: &Path) -> String {
        let program = program.display();
        match self {
            Self::Static => format!(
                "{program} is statically linked: no library can be preloaded into it, every \
                 allocator would measure the same. Link it dynamically, or link the allocator in"
            ),
            Self::OwnAllocator(name) => format!(
                "{program} has an allocator of its own linked in (it defines `malloc`{}): a \
                 preloaded one would not be used. Build it with the system's allocator",
                name.map_or_else(String::new, |name| format!(", and has the symbols of {name}"))
            ),
            Self::SetUserId => format!(
                "{program} is set-user-id or set-group-id: the loader ignores LD_PRELOAD for it. \
                 Run a copy without that bit"
            ),
        }
    }
}

/// The file that runs when `command` is started: found in `PATH`, scripts followed to their
/// interpreter.
///
/// # Errors
/// When there is no such program.
pub(crate) fn resolve(command: &OsStr) -> anyhow::Result<PathBuf> {
    let mut path = find_in_path(command).with_context(|| missing(command))?;
    // A script's interpreter may itself be a script. The kernel follows as many.
    for _ in 0..5 {
        let Some(interpreter) = interpreter_of_script(&path)? else { break };
        path = interpreter;
    }
    ensure!(
        interpreter_of_script(&path)?.is_none(),
        "`{}` is run by a script, which is run by a script: by more of them than the kernel follows",
        command.display()
    );
    Ok(path)
}

/// What keeps a preloaded allocator from being used by the executable at `path`.
///
/// # Errors
/// When the file cannot be read or is no 64-bit ELF executable.
pub(crate) fn obstacle(path: &Path) -> anyhow::Result<Option<Obstacle>> {
    let meta = fs::metadata(path).with_context(|| path.display().to_string())?;
    let other_user = meta.mode() & libc::S_ISUID != 0 && meta.uid() != getuid().as_raw();
    let other_group = meta.mode() & libc::S_ISGID != 0 && meta.gid() != getgid().as_raw();
    if other_user || other_group {
        return Ok(Some(Obstacle::SetUserId));
    }
    let data = fs::read(path).with_context(|| path.display().to_string())?;
    let file = parse(&data).with_context(|| {
        let is_text = !data.is_empty() && !data.contains(&0);
        let shown = path.display();
        // A shell interprets a text file that `execve` refuses.
        if is_text { format!("{shown} (`sh {shown}` may run it)") } else { shown.to_string() }
    })?;
    let endian = file.endian();
    let mut headers = file.elf_program_headers().iter();
    let Some(loader) = headers.find_map(|header| header.interpreter(endian, &data[..]).transpose())
    else {
        return Ok(Some(Obstacle::Static));
    };
    let loader = loader.with_context(|| path.display().to_string())?;
    let loader = Path::new(OsStr::from_bytes(loader));
    // The kernel would say that the program itself is missing.
    ensure!(
        loader.exists(),
        "{} needs the loader `{}`, which is not there: it is built for another system",
        path.display(),
        loader.display()
    );
    let defined = |wanted: &str| {
        let mut symbols = file.dynamic_symbols().chain(file.symbols());
        symbols.any(|symbol| symbol.is_definition() && symbol.name() == Ok(wanted))
    };
    if !defined("malloc") {
        return Ok(None);
    }
    let known = SIGNATURES.iter().find(|(symbol, _)| defined(symbol));
    Ok(Some(Obstacle::OwnAllocator(known.map(|&(_, name)| name))))
}

/// What a reader must know about a program that has an allocator linked in besides `malloc`, under
/// names that nothing preloaded can replace. Only as far as its symbols show.
pub(crate) fn beside_malloc(command: &OsStr) -> Option<String> {
    let path = resolve(command).ok()?;
    let data = fs::read(&path).ok()?;
    let file = parse(&data).ok()?;
    let known = |symbol: &str| {
        let named = BESIDE.iter().find(|(name, _)| *name == symbol).map(|&(_, name)| name);
        named.or_else(|| symbol.contains(OURS).then_some("hectare"))
    };
    let symbols = file.dynamic_symbols().chain(file.symbols());
    let mut defined = symbols.filter(ObjectSymbol::is_definition);
    let name = defined.find_map(|symbol| known(symbol.name().ok()?))?;
    Some(format!(
        "{} has {name} linked in, under names of its own (as Rust's global allocator): what it takes \
         there is neither recorded nor measured under another allocator. Build it with the system's",
        path.display()
    ))
}

/// The library whose `malloc` the executable at `path` uses when nothing is preloaded, if it links
/// one besides the C library's. The loader lists what it would load, in the order in which it looks
/// for symbols.
pub(crate) fn linked_allocator(path: &Path) -> Option<PathBuf> {
    let listed = Command::new(path)
        .env("LD_TRACE_LOADED_OBJECTS", "1")
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    // `	libjemalloc.so.2 => /usr/lib/libjemalloc.so.2 (0x00007fce63200000)`, or the path alone
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut libraries = text.lines().filter_map(|line| {
        let (entry, _) = line.trim().rsplit_once(" (")?;
        Some(Path::new(entry.rsplit(" => ").next()?))
    });
    let first = libraries.find(|library| check_library(library).is_ok())?;
    let is_c_library = first.file_name()?.to_string_lossy().starts_with("libc.");
    if is_c_library { None } else { first.canonicalize().ok() }
}

/// Checks that the library at `path` can stand in for `malloc` on this machine.
///
/// # Errors
/// When it cannot. The message says why.
pub(crate) fn check_library(path: &Path) -> anyhow::Result<()> {
    let meta = fs::metadata(path).with_context(|| path.display().to_string())?;
    ensure!(meta.is_file(), "{} is no regular file, so it is no library", path.display());
    let data = fs::read(path).with_context(|| path.display().to_string())?;
    let file = parse(&data).with_context(|| path.display().to_string())?;
    let endian = file.endian();
    let native = if cfg!(target_arch = "x86_64") { elf::EM_X86_64 } else { elf::EM_AARCH64 };
    if file.elf_header().e_machine(endian) != native {
        bail!("{} is a library for another machine", path.display());
    }
    let has = |wanted: &[u8]| {
        file.dynamic_symbols()
            .any(|symbol| symbol.is_definition() && symbol.name_bytes() == Ok(wanted))
    };
    for name in ["malloc", "free"] {
        if !has(name.as_bytes()) {
            bail!("{} does not define `{name}`: preloading it changes nothing", path.display());
        }
    }
    Ok(())
}

fn parse(data: &[u8]) -> anyhow::Result<ElfFile64<'_, Endianness>> {
    match data.get(..5) {
        Some(b"\x7fELF\x01") => bail!("is a 32-bit file: nothing here is built for those"),
        Some(head) if head.starts_with(b"\x7fELF") => {}
        _ => bail!("is neither an ELF file nor a script that begins with `#!`"),
    }
    ElfFile64::parse(data).map_err(|error| anyhow::anyhow!("no 64-bit ELF file: {error}"))
}

/// Why [`find_in_path`] found nothing.
fn missing(command: &OsStr) -> String {
    let name = command.to_string_lossy();
    match fs::metadata(command) {
        _ if !is_path(command) => format!("there is no program `{name}` in PATH"),
        Err(error) => format!("there is no program `{name}`: {error}"),
        Ok(meta) if meta.is_dir() => format!("`{name}` is a folder, no program"),
        Ok(meta) if !meta.is_file() => {
            format!("`{name}` is a pipe, a socket or a device, no program")
        }
        Ok(_) => format!("`{name}` is not executable (`chmod +x` makes it so)"),
    }
}

fn is_path(command: &OsStr) -> bool {
    command.as_encoded_bytes().contains(&b'/')
}

fn find_in_path(command: &OsStr) -> Option<PathBuf> {
    let runnable = |path: &Path| {
        fs::metadata(path)
            .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    let path = Path::new(command);
    if is_path(command) {
        return runnable(path).then(|| path.canonicalize().ok())?;
    }
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(command))
        .find(|candidate| runnable(candidate))
        .and_then(|candidate| candidate.canonicalize().ok())
}

/// The program behind `#!`, with `env NAME` looked up.
fn interpreter_of_script(path: &Path) -> anyhow::Result<Option<PathBuf>> {
    let mut head = Vec::new();
    fs::File::open(path)
        .with_context(|| path.display().to_string())?
        .take(256)
        .read_to_end(&mut head)?;
    let Some(rest) = head.strip_prefix(b"#!") else { return Ok(None) };
    let line = String::from_utf8_lossy(rest.split(|&byte| byte == b'\n').next().unwrap_or(rest));
    // The kernel, too, takes a carriage return as part of the name.
    let mut words = line.split([' ', '\t']).filter(|word| !word.is_empty());
    let script = path.display();
    let interpreter =
        words.next().with_context(|| format!("{script} names no program after `#!`"))?;
    // A name without a folder means the current folder: the kernel does not search `PATH`.
    let place = Path::new(".").join(interpreter);
    let found =
        find_in_path(place.as_os_str()).with_context(|| why_not_run(path, interpreter, &place))?;
    if !interpreter.ends_with("/env") {
        return Ok(Some(found));
    }
    // Without a name, `env` would execute the script again, and the script `env`, without end.
    let name = started_by_env(words)
        .with_context(|| format!("{script} names no program after `#!{interpreter}`"))?;
    find_in_path(OsStr::new(name))
        .map(Some)
        .with_context(|| why_not_run(path, name, Path::new(name)))
}

/// The program that `env` starts, given its arguments; `None` if there are only options.
fn started_by_env<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    loop {
        let word = words.next()?;
        // The words to split may begin in the same argument.
        let split = word.strip_prefix("-S").or_else(|| word.strip_prefix("--split-string="));
        let word = split.filter(|rest| !rest.is_empty()).unwrap_or(word);
        if matches!(word, "-u" | "--unset" | "-C" | "--chdir" | "-a" | "--argv0") {
            words.next();
        } else if !word.starts_with('-') && !word.contains('=') {
            return Some(word);
        }
    }
}

/// Why the script at `path` cannot be run by `name`, which was looked for at `place`.
fn why_not_run(path: &Path, name: &str, place: &Path) -> String {
    let why = if name.ends_with('\r') {
        "which is not there: its lines end in carriage returns, as those of Windows do".to_owned()
    } else if !is_path(OsStr::new(name)) && is_path(place.as_os_str()) {
        "which is looked for in the current folder alone: `#!` takes a whole path".to_owned()
    } else if place.exists() {
        format!("but {}", missing(OsStr::new(name)))
    } else {
        "which is not there".to_owned()
    };
    format!("{} is run by `{name}`, {why}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    /// An executable file with that text.
    fn script(folder: &Scratch, name: &str, text: &str) -> PathBuf {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn an_ordinary_program_has_no_obstacle() {
        let cat = resolve(OsStr::new("cat")).unwrap();
        assert_eq!(obstacle(&cat).unwrap(), None);
    }

    #[test]
    fn a_script_is_followed_to_its_interpreter() {
        let folder = Scratch::new().unwrap();
        let text = "#!/usr/bin/env -SLANG=C -u HOME sh\necho\n";
        let found = resolve(script(&folder, "script", text).as_os_str());
        assert_eq!(found.unwrap(), resolve(OsStr::new("sh")).unwrap());
    }

    #[test]
    fn what_the_kernel_would_not_start_is_told() {
        let folder = Scratch::new().unwrap();
        let circle = format!("#!{}\n", folder.path().join("circle").display());
        for (name, text, part) in [
            ("returns", "#!/bin/sh\r\necho hi\r\n", "end in carriage returns"),
            ("circle", &circle, "more of them than the kernel follows"),
            ("plain", "echo hi\n", "plain` may run it)"),
            ("gone", "#!/no/shell -x\n", "gone is run by `/no/shell`, which is not there"),
            ("short", "#!sh\n", "run by `sh`, which is looked for in the current folder"),
            ("folder", "#!/tmp\n", "run by `/tmp`, but `/tmp` is a folder"),
            ("file", "#!/etc/passwd\n", "but `/etc/passwd` is not executable"),
            ("nobody", "#! \n", "nobody names no program after `#!`"),
            ("env", "#!/usr/bin/env -i\n", "names no program after `#!/usr/bin/env`"),
            ("no-env", "#!/no/env sh\n", "run by `/no/env`, which is not there"),
            ("in-env", "#!/usr/bin/env no-such\n", "run by `no-such`, which is not"),
        ] {
            let script = script(&folder, name, text);
            let found = resolve(script.as_os_str()).and_then(|path| obstacle(&path));
            let told = format!("{:#}", found.expect_err(name));
            assert!(told.contains(part), "{name}: {told}");
        }
        let socket = folder.path().join("socket");
        let _bound = std::os::unix::net::UnixListener::bind(&socket);
        let refused = resolve(socket.as_os_str()).unwrap_err().to_string();
        assert!(refused.ends_with("no program"), "{refused}");
    }

    #[test]
    fn scripts_are_followed_as_far_as_the_kernel_does() {
        let folder = Scratch::new().unwrap();
        let shell = resolve(OsStr::new("/bin/sh")).unwrap();
        let mut interpreter = PathBuf::from("/bin/sh");
        for nth in 0..5 {
            let text = format!("#!{}\n", interpreter.display());
            interpreter = script(&folder, &format!("script-{nth}"), &text);
            assert_eq!(resolve(interpreter.as_os_str()).unwrap(), shell);
        }
        let started = Command::new(&interpreter).status();
        assert!(started.unwrap().success(), "the kernel follows this one");
    }

    #[test]
    fn static_programs_and_own_allocators_are_told() {
        let folder = Scratch::new().unwrap();
        let source = folder.path().join("own.c");
        fs::write(
            &source,
            "#include <stddef.h>\nvoid *malloc(size_t n) { (void)n; return 0; }\nint main(void) { return malloc(1) != 0; }\n",
        )
        .unwrap();
        let build = |name: &str, flags: &[&str]| {
            let path = folder.path().join(name);
            let done = Command::new("cc")
                .args(flags)
                .arg("-fno-builtin")
                .arg(&source)
                .arg("-o")
                .arg(&path)
                .output()
                .unwrap();
            assert!(done.status.success(), "{name}: {}", String::from_utf8_lossy(&done.stderr));
            path
        };
        let own = build("own", &[]);
        assert_eq!(obstacle(&own).unwrap(), Some(Obstacle::OwnAllocator(None)));
        let called = |path: &Path| beside_malloc(path.as_os_str());
        assert_eq!(called(&own), None);
        let renamed = build("renamed", &["-Dmalloc=mi_malloc"]);
        assert_eq!(obstacle(&renamed).unwrap(), None);
        assert!(called(&renamed).is_some_and(|note| note.contains("has mimalloc linked in")));
        // Without a C library, since this machine may have no static one.
        let unlinked = build("static", &["-static", "-nostdlib", "-Wl,-e,main"]);
        assert_eq!(obstacle(&unlinked).unwrap(), Some(Obstacle::Static));
        let foreign = build("foreign", &["-Wl,--dynamic-linker=/no/loader"]);
        let told = obstacle(&foreign).unwrap_err().to_string();
        assert!(told.contains("needs the loader `/no/loader`, which is not there"), "{told}");
    }

    #[test]
    fn a_missing_program_is_told_by_name() {
        for (command, part) in [
            ("no-such-program", "no program `no-such-program` in PATH"),
            ("./no-such-program", "no program `./no-such-program`: No such file"),
            ("/", "is a folder"),
            ("/etc/passwd", "is not executable"),
        ] {
            let message = resolve(OsStr::new(command)).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn what_is_no_program_is_told() {
        for (data, part) in [
            (&b"echo hi\n"[..], "neither an ELF file nor a script"),
            (b"", "neither an ELF file"),
            (b"\x7fELF\x01\x01\x01", "32-bit"),
            (b"\x7fELF\x02\x01\x01", "no 64-bit ELF file"),
        ] {
            let message = parse(data).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
