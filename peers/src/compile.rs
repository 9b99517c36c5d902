//! Runs compilers: many objects in parallel, then one shared library.

use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Where the finished libraries go.
pub(crate) fn output_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/release")
}

/// A scratch directory of one peer; kept, so that a second build only compiles what is missing.
pub(crate) fn scratch_dir(name: &str) -> Result<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/obj").join(name);
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    Ok(dir)
}

/// The C compiler: `$CC` or `cc`.
pub(crate) fn cc() -> OsString {
    std::env::var_os("CC").unwrap_or_else(|| "cc".into())
}

/// The C++ compiler: `$CXX` or `c++`.
pub(crate) fn cxx() -> OsString {
    std::env::var_os("CXX").unwrap_or_else(|| "c++".into())
}

/// First line of `COMPILER --version`.
pub(crate) fn compiler_version(compiler: &OsString) -> Result<String> {
    let output = Command::new(compiler)
        .arg("--version")
        .output()
        .with_context(|| format!("cannot run {}", compiler.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or("").to_owned())
}

/// Runs `command`; a failure carries the end of what it printed on stderr.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let tail: Vec<_> = stderr.lines().rev().take(12).collect();
    let tail = tail.into_iter().rev().collect::<Vec<_>>().join("\n    ");
    bail!("{command:?} ended with {}\n    {tail}", output.status)
}

/// Compiles each of `sources` (paths below `base`) with `compiler flags` into `scratch` and returns
/// the objects in the order of the sources. An object newer than nothing is kept: sources in
/// cargo's registry never change.
pub(crate) fn objects(
    compiler: &OsString,
    flags: &[String],
    base: &Path,
    sources: &[PathBuf],
    scratch: &Path,
) -> Result<Vec<PathBuf>> {
    let stamp = scratch.join("flags");
    let settings = format!("{} {flags:?}", compiler.display());
    if std::fs::read_to_string(&stamp).unwrap_or_default() != settings {
        for entry in std::fs::read_dir(scratch)?.flatten() {
            if entry.path().extension().is_some_and(|e| e == "o") {
                std::fs::remove_file(entry.path())?;
            }
        }
        std::fs::write(&stamp, settings)?;
    }
    let objects: Vec<PathBuf> = sources
        .iter()
        .map(|source| {
            let flat = source.to_string_lossy().replace('/', "__");
            scratch.join(format!("{flat}.o"))
        })
        .collect();
    let todo = Mutex::new(sources.iter().zip(&objects).filter(|(_, o)| !o.exists()));
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let worker = || -> Result<()> {
            loop {
                let next = todo.lock().expect("no worker panics").next();
                let Some((source, object)) = next else { return Ok(()) };
                let partial = object.with_extension("partial");
                run(Command::new(compiler)
                    .args(flags)
                    .arg("-c")
                    .arg(base.join(source))
                    .arg("-o")
                    .arg(&partial))?;
                std::fs::rename(&partial, object)?;
            }
        };
        let handles: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        handles.into_iter().try_for_each(|h| h.join().expect("a compile worker panicked"))
    })?;
    Ok(objects)
}

/// Every file below `dir` (relative to `base`) whose path `keep` accepts, sorted.
pub(crate) fn find(base: &Path, dir: &str, keep: &dyn Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut todo = vec![PathBuf::from(dir)];
    while let Some(dir) = todo.pop() {
        let full = base.join(&dir);
        for entry in
            std::fs::read_dir(&full).with_context(|| format!("cannot list {}", full.display()))?
        {
            let entry = entry?;
            let path = dir.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                todo.push(path);
            } else if keep(&path.to_string_lossy()) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}
