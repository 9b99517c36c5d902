//! Exact instruction counts of the hit path, counted by valgrind's callgrind.

use std::fs;

use crate::harness::{Suite, ensure, preloaded, program, run, scratch};

/// What `malloc` of a small size takes when the thread's list has an object.
const MALLOC_INSTRUCTIONS: u64 = 23;
/// What `free` of a small object takes when the thread's list has room.
const FREE_INSTRUCTIONS: u64 = 33;

const NAME: &str = "instructions::of_the_hit_path";

pub(crate) fn add(suite: &mut Suite) {
    if cfg!(debug_assertions) {
        suite.skip(NAME, "needs a release build: cargo test --release -p hectare-preload");
        return;
    }
    suite.test_with(NAME, &["cc", "valgrind"], || {
        let malloc = counted("malloc")?;
        let free = counted("free")?;
        println!("instructions on the hit path: malloc {malloc}, free {free}");
        ensure(malloc <= MALLOC_INSTRUCTIONS, || {
            format!("malloc takes {malloc} instructions, more than {MALLOC_INSTRUCTIONS}")
        })?;
        ensure(free <= FREE_INSTRUCTIONS, || {
            format!("free takes {free} instructions, more than {FREE_INSTRUCTIONS}")
        })
    });
}

/// How many instructions one call of `function` takes: of a long run less a short one, so that
/// start and end, and whatever else calls it, do not count.
fn counted(function: &str) -> Result<u64, String> {
    const CALLS: u64 = 10_000;
    let (short, long) = (collected(function, 1000)?, collected(function, 1000 + CALLS)?);
    let instructions = long.checked_sub(short).ok_or("the longer run took less")?;
    let per_call = instructions.div_ceil(CALLS);
    ensure(per_call > 0, || format!("nothing counted in {function}")).map(|()| per_call)
}

fn collected(function: &str, calls: u64) -> Result<u64, String> {
    let directory = scratch(&format!("callgrind-{function}-{calls}"));
    let out = directory.join("out");
    let mut command = preloaded("valgrind");
    command.args(["-q", "--tool=callgrind"]);
    command.arg(format!("--toggle-collect={function}"));
    command.arg(format!("--callgrind-out-file={}", out.display()));
    command.arg(program("pairs.c")?).arg(calls.to_string());
    run(&mut command)?.well()?;
    let text = fs::read_to_string(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    fs::remove_dir_all(directory).map_err(|error| error.to_string())?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
    total.and_then(|total| total.trim().parse().ok()).ok_or(format!("no totals in\n{text}"))
}
