//! Exact instruction counts of the hit paths, taken with valgrind's callgrind.

use std::fs;

use hectare_check::instructions_per_call;

use crate::harness::{Suite, ensure, preloaded, program, run, scratch};

/// A request, and how many instructions each call for it may take.
struct Bound {
    name: &'static str,
    conf: &'static str,
    bytes: u64,
    calls: &'static [(&'static str, u64)],
}

const BOUNDS: [Bound; 6] = [
    // The thread's list has an object, and room for one.
    Bound {
        name: "instructions::of_the_hit_path",
        conf: "",
        bytes: 64,
        calls: &[("malloc", 22), ("free", 31), ("free_sized", 31), ("malloc_usable_size", 27)],
    },
    // The same while calls are counted, as for the profile and for guarded objects.
    Bound {
        name: "instructions::of_the_counted_path",
        conf: "guard:4294967296",
        bytes: 64,
        calls: &[("malloc", 27), ("free", 31)],
    },
    // As on the hit path, aligned to 64 bytes.
    Bound {
        name: "instructions::of_an_aligned_object",
        conf: "",
        bytes: 192,
        calls: &[("memalign", 30), ("posix_memalign", 34)],
    },
    // The thread keeps such a run. The count includes the clock, which is read at each 64th free.
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
        calls: &[("realloc", 83)],
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

/// How many instructions one call of `function` takes.
fn counted(function: &str, conf: &str, bytes: u64) -> Result<u64, String> {
    let directory = scratch(&format!("callgrind-{function}-{bytes}-{conf}"));
    let program = program("pairs.c")?;
    // The second is another name of the same code; callgrind may know the code by that one.
    let names = [function, "operator delete*(void*, unsigned long)"];
    let names = if function == "free_sized" { &names } else { &names[..1] };
    let taken = instructions_per_call(names, &directory.join("out"), |arguments, calls| {
        let mut command = preloaded("valgrind");
        command.env("HECTARE_CONF", conf).args(arguments).arg(&program);
        command.args([calls, bytes].map(|number| number.to_string())).arg(function);
        run(&mut command)?.well()?;
        Ok(())
    })?;
    fs::remove_dir_all(directory).map_err(|error| error.to_string())?;
    Ok(taken)
}
