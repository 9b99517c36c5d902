//! When the system has little memory, or refuses calls.

use std::fs;

use crate::harness::{Suite, add_cases, preloaded, program, run};

const CASES: &[&str] = &[
    "address_space_limit",
    "larger_objects_after_smaller",
    "limit_leaves_room_for_others",
    "no_madvise",
    "no_rseq",
    "no_mremap",
    "few_mappings",
];

pub(crate) fn add(suite: &mut Suite) {
    add_cases(suite, "scarcity", "scarcity.c", CASES);
    let name = "scarcity::overcommit_refused";
    match fs::read_to_string("/proc/sys/vm/overcommit_memory") {
        Ok(mode) if mode.trim() == "2" => suite.test_with(name, &["cc"], || {
            run(preloaded(program("scarcity.c")?).arg("address_space_limit"))?.well().map(drop)
        }),
        // It is the whole machine's, so a test must not set it.
        Ok(mode) => suite.skip(name, format!("vm.overcommit_memory is {}, not 2", mode.trim())),
        Err(error) => suite.skip(name, format!("vm.overcommit_memory cannot be read: {error}")),
    }
}
