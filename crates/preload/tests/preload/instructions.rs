//! Exact instruction counts of the hit paths, counted by valgrind's callgrind.

use std::fs;

use crate::harness::{Suite, ensure, preloaded, program, run, scratch};

/// A request, and what each call for it may take.
struct Bound {
    name: &'static str,
    conf: &'static str,
    bytes: u64,
    calls: &'static [(&'static str, u64)],
}

const BOUNDS: [Bound; 5] = [
    // The thread's list has an object, and room.
    Bound {
        name: "instructions::of_the_hit_path",
        conf: "",
        bytes: 64,
        calls: &[("malloc", 22), ("free", 31), ("free_sized", 31)],
    },
    // The same where calls are counted, as for the profile and for guarded objects.
    Bound {
        name: "instructions::of_the_counted_path",
        conf: "guard:4294967296",
        bytes: 64,
        calls: &[("malloc", 27), ("free", 31)],
    },
    // The thread keeps such a run. The clock, which is asked at each 64th free, is counted.
    Bound {
        name: "instructions::of_a_run",
        conf: "",
        bytes: 100_000,
        calls: &[("malloc", 62), ("free", 97), ("free_sized", 105)],
    },
    // The object is long enough, and not much too long.
    Bound {
        name: "instructions::of_an_object_that_stays",
        conf: "",
        bytes: 64,
        calls: &[("realloc", 41)],
    },
    Bound {
        name: "instructions::of_a_run_that_stays",
        conf: "",
        bytes: 100_000,
        calls: &[("realloc", 88)],
    },
];

pub(crate) fn add(suite: &mut Suite) {
    for Bound { name, conf, bytes, calls } in BOUNDS {
        if cfg!(debug_assertions) {
            suite.skip(name, "needs a release build: cargo test --release -p hectare-preload");
            continue;
        }
        suite.test_with(name, &["cc", "valgrind"], move || {
            for &(function, most) in calls {
                let taken = counted(function, conf, bytes)?;
                println!("instructions for {bytes} bytes: {function} {taken}");
                ensure(taken <= most, || {
                    format!("{function} of {bytes} bytes takes {taken} instructions, not {most}")
                })?;
            }
            Ok(())
        });
    }
}

/// By so many instructions, and fewer, two starts differ: what is drawn at the first call depends on a secret of the
/// process. Of 10,000 calls that is nothing.
const CHANCE: u64 = 50;

/// How many instructions one call of `function` takes: of a long run less a short one, so that
/// start and end, and whatever else calls it, do not count.
fn counted(function: &str, conf: &str, bytes: u64) -> Result<u64, String> {
    const CALLS: u64 = 10_000;
    let (short, long) =
        (least(function, conf, 1000, bytes)?, least(function, conf, 1000 + CALLS, bytes)?);
    let instructions = long.checked_sub(short).ok_or("the longer run took less")?;
    let per_call = instructions.saturating_sub(CHANCE).div_ceil(CALLS);
    ensure(per_call > 0, || format!("nothing counted in {function}")).map(|()| per_call)
}

/// The least of five runs: on a busy machine a slow path may find by the clock that something is due.
fn least(function: &str, conf: &str, calls: u64, bytes: u64) -> Result<u64, String> {
    let counts: Result<Vec<u64>, String> =
        (0..5).map(|_| collected(function, conf, calls, bytes)).collect();
    counts?.into_iter().min().ok_or("no run".into())
}

fn collected(function: &str, conf: &str, calls: u64, bytes: u64) -> Result<u64, String> {
    let directory = scratch(&format!("callgrind-{function}-{calls}-{bytes}-{conf}"));
    let out = directory.join("out");
    let mut command = preloaded("valgrind");
    command.env("HECTARE_CONF", conf);
    command.args(["-q", "--tool=callgrind"]);
    command.arg(format!("--toggle-collect={function}"));
    if function == "free_sized" {
        // Another name of the same code, by which callgrind may know it.
        command.arg("--toggle-collect=operator delete*(void*, unsigned long)");
    }
    command.arg(format!("--callgrind-out-file={}", out.display()));
    command.arg(program("pairs.c")?).args([calls, bytes].map(|number| number.to_string()));
    command.arg(function);
    run(&mut command)?.well()?;
    let text = fs::read_to_string(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    fs::remove_dir_all(directory).map_err(|error| error.to_string())?;
    let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
    total.and_then(|total| total.trim().parse().ok()).ok_or(format!("no totals in\n{text}"))
}
