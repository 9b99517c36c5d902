//! The hardened front: each protection is tested by a program that runs into it.

use std::process::Command;

use crate::harness::{Outcome, Suite, compile, ensure, preloaded, program, run};

/// A case of `secure.c`, the call that the line must name, and what it must say of the cause.
const TOLD: &[(&str, &str, &str)] = &[
    ("write_after_free", "free", "a freed object was written to"),
    ("overwritten_link", "free", "a freed object was written to"),
    ("overwritten_mark", "free", "a freed object was written to"),
    ("double_free_at_once", "free", "double free"),
    ("double_free_of_written", "free", "double free"),
    ("double_free_after_quarantine", "free", "double free"),
    ("double_free_large", "free", "double free"),
    ("double_free_huge", "free", "double free"),
    ("never_handed_out", "free", "double free"),
    ("free_of_tail", "free", "nothing is allocated there"),
    ("realloc_of_tail", "realloc", "nothing is allocated there"),
    ("size_of_tail", "malloc_usable_size", "nothing is allocated there"),
    ("interior", "free", "interior pointer"),
    ("foreign", "free", "foreign pointer"),
    ("wrong_size", "free", "wrong size"),
    ("wrong_size_large", "free", "wrong size"),
    ("wrong_alignment_large", "free", "wrong size"),
    ("wrong_size_of_aligned", "free", "wrong size"),
    ("wrong_size_beside_room", "free", "wrong size"),
];

/// Cases that end by a fault at the memory itself.
const FAULTS: &[&str] =
    &["overflow_large", "overflow_huge", "overflow_slab", "read_after_free_large"];

const PROPERTIES: &[&str] = &[
    "is_zero_when_freed",
    "is_zero_behind_the_quarantine",
    "is_quarantined",
    "is_random",
    "is_random_in_each_child",
    "is_random_in_each_raw_child",
    "is_sound_with_sizes",
    "is_sound_with_kept_sizes",
    "is_quick_to_grow",
    "is_frugal_with_mappings",
    "is_frugal_with_zeros",
    "is_told_in_numbers",
    "is_sound_as_it_shrinks",
    "is_sound_at_its_limit",
    "is_sound",
];

const SIGABRT: i32 = 6;
const SIGSEGV: i32 = 11;

pub(crate) fn add(suite: &mut Suite) {
    for &(case, call, cause) in TOLD {
        suite.test_with(format!("secure::{case}"), &["cc"], move || told(case, call, cause));
    }
    for &case in FAULTS {
        suite.test_with(format!("secure::{case}"), &["cc"], move || {
            let ended = run(hardened("secure.c")?.arg(case))?;
            ensure(ended.signalled(SIGSEGV), || ended.describe("no fault"))
        });
    }
    for &case in PROPERTIES {
        suite.test_with(format!("secure::{case}"), &["cc"], move || {
            run(hardened("secure.c")?.arg(case))?.well().map(drop)
        });
    }
    // This front promises what the plain one does, too.
    for case in [
        "names_are_ours",
        "free_keeps_errno",
        "calloc_is_zero",
        "aligned",
        "least_alignment",
        "zero_bytes_unique",
        "realloc_keeps_contents",
        "reallocarray",
        "usable_size",
        "valloc_pvalloc",
        "sized_frees",
        "libc_aliases",
        "malloc_trim_gives_back",
        "a_peak_goes_back",
    ] {
        suite.test_with(format!("secure::contract::{case}"), &["cc"], move || {
            run(hardened("contract.c")?.arg(case))?.well().map(drop)
        });
    }
    for case in
        ["preinit_allocates", "thread_destructors_after_ours", "fork_while_threads_allocate"]
    {
        suite.test_with(format!("secure::lifecycle::{case}"), &["cc"], move || {
            run(hardened("lifecycle.c")?.arg(case))?.well().map(drop)
        });
    }
    suite.test_with("secure::operators", &["c++"], || {
        run(hardened("operators.cpp")?.arg("every_form"))?.well()?;
        run(hardened("operators.cpp")?.arg("containers"))?.well().map(drop)
    });
    suite.test_with("secure::wrong_size_of_delete", &["c++"], || {
        let program = compile("sized_delete.cpp", &["-fsized-deallocation"], "")?;
        let ended = run(preloaded(program).env("HECTARE_CONF", "secure:true"))?;
        let told = ended.signalled(SIGABRT) && ended.stderr.contains("wrong size");
        ensure(told, || ended.describe("not told"))
    });
    suite.test_with("secure::not_with_the_watched_front", &["cc"], || {
        let mut command = preloaded(program("plain.c")?);
        let ended =
            run(command.env("HECTARE_CONF", "secure:true,guard:3,prof:true,hugetlb:131072"))?
                .well()?;
        let line = "hectare: HECTARE_CONF: secure is true: prof, guard and hugetlb are ignored\n";
        ensure(ended.stderr == line, || ended.describe("not told"))
    });
}

fn hardened(source: &'static str) -> Result<Command, String> {
    let mut command = preloaded(program(source)?);
    command.env("HECTARE_CONF", "secure:true");
    Ok(command)
}

fn told(case: &str, call: &str, cause: &str) -> Outcome {
    let ended = run(hardened("secure.c")?.arg(case))?;
    ensure(ended.signalled(SIGABRT), || ended.describe("not aborted"))?;
    let start = format!("hectare: {call}({}): ", ended.stdout.trim());
    let told = ended.stderr.starts_with(&start)
        && ended.stderr.contains(cause)
        && ended.stderr.matches('\n').count() == 1;
    ensure(told, || ended.describe(&format!("not one line `{start}…{cause}…`")))
}
