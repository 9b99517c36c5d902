//! Exact instruction counts, by valgrind's callgrind.

use std::fs;
use std::path::Path;

/// By so many instructions, and fewer, two starts differ: what is drawn at the first call depends on a secret of the
/// process. Of [`CALLS`] that is nothing.
const CHANCE: u64 = 50;

const CALLS: u64 = 10_000;
const SHORT_RUN_CALLS: u64 = 1000;

/// How many instructions one call of a function takes, to which callgrind gives one of `names`: of a long run less a
/// short one, so that start and end, and whatever else calls it, do not count.
///
/// `run` is to run valgrind with the arguments given, on a program that makes as many calls as it is told. `out` is a
/// file that it may write to; it is removed.
///
/// # Errors
/// What `run` says, or that nothing was counted.
pub fn instructions_per_call(
    names: &[&str],
    out: &Path,
    run: impl Fn(&[String], u64) -> Result<(), String>,
) -> Result<u64, String> {
    let mut arguments = vec!["-q".to_owned(), "--tool=callgrind".to_owned()];
    arguments.extend(names.iter().map(|name| format!("--toggle-collect={name}")));
    arguments.push(format!("--callgrind-out-file={}", out.display()));
    let collected = |calls| {
        run(&arguments, calls)?;
        total(out)
    };
    // The least of five runs: on a busy machine a slow path may find by the clock that something is due.
    let least = |calls| {
        let counts: Result<Vec<u64>, String> = (0..5).map(|_| collected(calls)).collect();
        counts?.into_iter().min().ok_or_else(|| "no run".to_owned())
    };
    let (short, long) = (least(SHORT_RUN_CALLS)?, least(SHORT_RUN_CALLS + CALLS)?);
    let instructions = long.checked_sub(short).ok_or("the longer run took less")?;
    match instructions.saturating_sub(CHANCE).div_ceil(CALLS) {
        0 => Err(format!("nothing counted in {}", names.join(", "))),
        per_call => Ok(per_call),
    }
}

/// The total of what callgrind wrote to `out`, which it removes.
fn total(out: &Path) -> Result<u64, String> {
    let failed = |error| format!("{}: {error}", out.display());
    let text = fs::read_to_string(out).map_err(failed)?;
    fs::remove_file(out).map_err(failed)?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
    total.and_then(|total| total.trim().parse().ok()).ok_or(format!("no totals in\n{text}"))
}
