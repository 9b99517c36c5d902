//! Does a library really serve malloc when preloaded, and do real programs survive it?

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::compile::{cc, run, scratch_dir};

/// Programs with their arguments, and a word that their output must contain.
const PROGRAMS: &[(&str, &[&str], &str)] = &[
    ("python3", &["-c", "print(sum(len(str(i)*3) for i in range(100000)))"], "1466670"),
    (
        "perl",
        &["-e", "my %h; $h{$_} = 'x' x ($_ % 300) for 1..100000; print scalar(keys %h)"],
        "100000",
    ),
    ("git", &["--version"], "git version"),
];

/// Builds the probe once; see `probe.c`.
fn probe() -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/probe.c");
    let binary = scratch_dir("probe")?.join("probe");
    // -fno-builtin: the compiler may otherwise remove a malloc whose result only goes to free.
    run(Command::new(cc())
        .args(["-O1", "-fno-builtin", "-pthread", "-o"])
        .arg(&binary)
        .arg(source)
        .arg("-ldl"))?;
    Ok(binary)
}

/// Runs `program` with the library preloaded and returns its standard output.
fn preloaded(
    library: &Path,
    env: &[(&str, &str)],
    program: &Path,
    args: &[&str],
) -> Result<String> {
    let output = Command::new(program)
        .args(args)
        .env("LD_PRELOAD", library)
        .env("PYTHONMALLOC", "malloc")
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{} ended with {}: {}", program.display(), output.status, stderr.trim());
    }
    // The loader reports a library that it could not preload and goes on without it.
    if stderr.contains("ERROR: ld.so") {
        bail!("{}", stderr.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Checks one library; returns what was covered.
pub(crate) fn check(library: &Path, env: &[(&str, &str)]) -> Result<String> {
    let probe = probe()?;
    let expected = library.file_name().context("a library has a name")?.to_string_lossy();
    let answer = preloaded(library, env, &probe, &[])?;
    for line in answer.lines() {
        let Some((name, origin)) = line.split_once(' ') else { bail!("the probe said {line:?}") };
        if !origin.ends_with(&*expected) {
            bail!("{name} is served by {origin}, not by {expected}");
        }
    }
    let mut covered = vec![format!("{} names and threads", answer.lines().count())];

    let source = scratch_dir("probe")?.join("hello.c");
    std::fs::write(&source, "#include <stdio.h>\nint main(void){ puts(\"hello\"); return 0; }\n")?;
    let (source, object) = (source.to_string_lossy(), format!("{}.o", source.display()));
    let compiler = PathBuf::from(cc());
    preloaded(library, env, &compiler, &["-O2", "-c", &source, "-o", &object])?;
    covered.push("cc".into());
    for (program, args, word) in PROGRAMS {
        if Command::new(program).arg("--version").output().is_err() {
            covered.push(format!("{program} skipped: not installed"));
            continue;
        }
        let output = preloaded(library, env, Path::new(program), args)?;
        if !output.contains(word) {
            bail!("{program} printed {output:?}, not {word:?}");
        }
        covered.push((*program).into());
    }
    Ok(covered.join(", "))
}
