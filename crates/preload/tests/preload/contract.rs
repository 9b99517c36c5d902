//! The C names and their contracts.

use std::fs;

use crate::harness::{Outcome, Suite, add_cases, preloaded, program, run, scratch};

pub(crate) const CASES: &[&str] = &[
    "names_are_ours",
    "free_keeps_errno",
    "too_large_is_enomem",
    "calloc_overflow",
    "calloc_is_zero",
    "posix_memalign_einval",
    "odd_alignments",
    "aligned",
    "least_alignment",
    "zero_bytes_unique",
    "realloc_to_zero",
    "realloc_keeps_contents",
    "realloc_huge_moves_pages",
    "untouched_contents_move",
    "reallocarray",
    "usable_size",
    "valloc_pvalloc",
    "sized_frees",
    "libc_aliases",
    "mallopt",
    "mallinfo2_is_true",
    "mallinfo2_is_exact",
    "mallinfo_agrees",
    "malloc_info_is_true",
    "malloc_stats_prints",
    "malloc_trim_gives_back",
    "a_peak_goes_back",
    "untouched_blocks_hold_nothing",
    "buffers_hold_what_is_written",
];

pub(crate) fn add(suite: &mut Suite) {
    add_cases(suite, "contract", "contract.c", CASES);
    suite.test_with("contract::wrapped_by_the_program", &["cc"], || {
        run(&mut preloaded(program("wrapped.c")?))?.well().map(drop)
    });
    let parts = "contract::parts_stay_together";
    if has_user_faults() {
        suite.test_with(parts, &["cc"], || {
            run(preloaded(program("contract.c")?).arg("parts_stay_together"))?.well().map(drop)
        });
    } else {
        suite.skip(parts, "the system lets no program serve its faults (userfaultfd) here");
    }
    for options in ["front:thread", "front:cpu", "prof:true", "guard:20", "secure:true"] {
        let name = format!("contract::statistics_of_many_threads[{options}]");
        suite.test_with(name, &["cc"], move || statistics_of_many_threads(options));
    }
}

fn has_user_faults() -> bool {
    /// `UFFD_USER_MODE_ONLY` of Linux's `userfaultfd.h`.
    const USER_MODE_ONLY: libc::c_int = 1;
    // SAFETY: makes a descriptor.
    let descriptor = unsafe { libc::syscall(libc::SYS_userfaultfd, USER_MODE_ONLY) };
    // SAFETY: just made, if it was.
    descriptor >= 0 && unsafe { libc::close(descriptor as libc::c_int) } == 0
}

/// The answers that the program gets in four ways are true of what it holds, whichever front serves
/// it.
fn statistics_of_many_threads(options: &str) -> Outcome {
    let directory = scratch(&format!("statistics-{}", options.replace(':', "-")));
    let mut command = preloaded(program("contract.c")?);
    command.arg("statistics_of_many_threads").env("TEST_PATH", directory.join("json"));
    let prefix = directory.join("heap");
    command.env("HECTARE_CONF", format!("{options},prof_prefix:{}", prefix.display()));
    if options == "front:thread" {
        command.env("TEST_EXACT", "1");
    }
    run(&mut command)?.well()?;
    fs::remove_dir_all(directory).map_err(|error| error.to_string())
}
