//! Exact instruction counts of the hit paths in a Rust program: in this one.

use std::env;
use std::hint::black_box;
use std::path::Path;
use std::process::{Command, ExitCode, id};

use hectare_check::{Suite, instructions_per_call};

#[global_allocator]
static GLOBAL: hectare::Malloc = hectare::Malloc;

/// If this is the first argument, the program does not test. It calls the function that the second
/// argument names, as many times as the third says.
const PAIRS: &str = "pairs";

/// Functions of the global allocator, and how many instructions each may take if the thread's list
/// serves it.
const MOST: [(&str, u64); 3] = [("malloc", 23), ("malloc_aligned", 31), ("free", 32)];

/// A cache line.
#[derive(Default)]
#[repr(align(64))]
struct Line {
    _words: [u64; 8],
}

fn make_pairs(function: &str, calls: u64) {
    for _ in 0..calls {
        if function == "malloc_aligned" {
            black_box(Box::<Line>::default());
        } else {
            black_box(Box::new([0_u64; 8]));
        }
    }
}

fn the_hit_paths_of_a_rust_program() -> Result<(), String> {
    let this = env::current_exe().map_err(|error| error.to_string())?;
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("instructions-{}", id()));
    for (function, most) in MOST {
        let name = format!("hectare::process::global::Calls<_>::{function}");
        let taken = instructions_per_call(&[&name], &out, |arguments, calls| {
            let mut valgrind = Command::new("valgrind");
            valgrind.args(arguments).arg(&this).args([PAIRS, function, &calls.to_string()]);
            let status = valgrind.status().map_err(|error| error.to_string())?;
            if status.success() { Ok(()) } else { Err(format!("{valgrind:?}: {status}")) }
        })?;
        println!("instructions for a Box of 64 bytes: {function} {taken}");
        if taken > most {
            return Err(format!("{function} takes {taken} instructions, not {most}"));
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    if arguments.next().as_deref() == Some(PAIRS) {
        let function = arguments.next().expect("a function");
        let calls = arguments.next().and_then(|calls| calls.parse().ok()).expect("how many calls");
        make_pairs(&function, calls);
        return ExitCode::SUCCESS;
    }
    let mut suite = Suite::new();
    let name = "the_hit_paths_of_a_rust_program";
    if cfg!(debug_assertions) {
        suite.skip(name, "needs a release build: cargo test --release -p hectare -- instructions");
    } else {
        suite.test_with(name, &["valgrind"], the_hit_paths_of_a_rust_program);
    }
    suite.run()
}
