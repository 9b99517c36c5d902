//! Each kind of misuse ends the process with one line that names the call, the address and the
//! cause.

use crate::harness::{Ended, Outcome, Suite, ensure, preloaded, program, run};

/// A case of `misuse.c`, the call that the line must name, and what it must say of the cause.
pub(crate) const CASES: &[(&str, &str, &str)] = &[
    ("double_free_at_once", "free", "double free"),
    ("double_free_late", "free", "double free"),
    ("double_free_other_thread", "free", "double free"),
    ("double_free_while_cancelled", "free", "double free"),
    ("double_free_of_written", "free", "double free"),
    ("double_free_large", "free", "double free"),
    ("double_free_huge", "free", "double free"),
    ("interior_small", "free", "interior pointer"),
    ("interior_of_freed", "free", "nothing is allocated there"),
    ("interior_large", "free", "interior pointer"),
    ("interior_huge", "free", "interior pointer"),
    ("foreign_stack", "free", "foreign pointer"),
    ("foreign_static", "free", "foreign pointer"),
    ("foreign_mapping", "free", "foreign pointer"),
    ("misaligned", "free", "misaligned pointer"),
    ("never_allocated", "free", "nothing is allocated there"),
    ("never_reached", "free", "foreign pointer"),
    ("realloc_freed", "realloc", "double free"),
    ("realloc_interior", "realloc", "interior pointer"),
    ("realloc_foreign", "realloc", "foreign pointer"),
    ("usable_size_freed", "malloc_usable_size", "double free"),
    ("usable_size_interior", "malloc_usable_size", "interior pointer"),
    ("corrupted_free_list", "malloc", "corrupted free list"),
];

const SIGABRT: i32 = 6;

pub(crate) fn add(suite: &mut Suite) {
    for &(case, call, cause) in CASES {
        suite.test_with(format!("misuse::{case}"), &["cc"], move || {
            let ended = run(preloaded(program("misuse.c")?).arg(case))?;
            check(&ended, call, cause)
        });
    }
}

pub(crate) fn check(ended: &Ended, call: &str, cause: &str) -> Outcome {
    ensure(ended.signalled(SIGABRT), || ended.describe("not aborted"))?;
    let address = ended.stdout.trim();
    let start = format!("hectare: {call}({address}): ");
    let told = ended.stderr.starts_with(&start)
        && ended.stderr.contains(cause)
        && ended.stderr.matches('\n').count() == 1
        && ended.stderr.ends_with('\n');
    ensure(told, || ended.describe(&format!("not one line `{start}…{cause}…`")))
}
