//! Exact instruction counts, by valgrind's callgrind.

use std::fs;
use std::path::Path;

/// Two starts differ by up to this many instructions: what is drawn at the first call depends on a
/// secret of the process. Beside [`CALLS`] that is nothing.
const CHANCE: u64 = 50;

const CALLS: u64 = 10_000;
const SHORT_RUN_CALLS: u64 = 1000;

/// The instructions that one call of a function takes. Callgrind knows the function by one of
/// `names`. The count is that of a long run less that of a short one, so that start, end and other
/// callers do not count.
///
/// `run` must run valgrind with the given arguments, on a program that makes as many calls as `run`
/// is told. `out` is a file that `run` may write to. It is removed.
///
/// # Errors
/// The error of `run`, or that nothing was counted.
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
    // The least of five runs: on a busy machine the clock may make something due in a slow path.
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

/// The total in the file that callgrind wrote to `out`. Removes the file.
fn total(out: &Path) -> Result<u64, String> {
    let failed = |error| format!("{}: {error}", out.display());
    let text = fs::read_to_string(out).map_err(failed)?;
    fs::remove_file(out).map_err(failed)?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
    total.and_then(|total| total.trim().parse().ok()).ok_or(format!("no totals in\n{text}"))
}
