//! When the system has little memory, or refuses calls.

use std::fs;
use std::path::{Path, PathBuf};

use crate::harness::{Outcome, Suite, add_cases, ensure, preloaded, program, run};

const CASES: &[&str] = &[
    "address_space_limit",
    "larger_objects_after_smaller",
    "commit_limit",
    "fresh_calloc_is_not_touched",
    "limit_leaves_room_for_others",
    "no_madvise",
    "no_rseq",
    "no_mremap",
    "few_mappings",
];

pub(crate) fn add(suite: &mut Suite) {
    add_cases(suite, "scarcity", "scarcity.c", CASES);
    suite_control_group(suite);
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

/// A control group of this test's own, gone when the test is over.
struct ControlGroup(PathBuf);

impl ControlGroup {
    /// `None` where this process may make none.
    fn new() -> Option<Self> {
        let name = format!("hectare-test-{}", std::process::id());
        let path = Path::new("/sys/fs/cgroup/memory").join(name);
        fs::create_dir(&path).ok()?;
        let group = Self(path);
        fs::write(group.0.join("memory.limit_in_bytes"), "96M").ok()?;
        Some(group)
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // A group that some process is still in stays: nothing else can be done about it here.
        let _ = fs::remove_dir(&self.0);
    }
}

fn suite_control_group(suite: &mut Suite) {
    let name = "scarcity::control_group";
    // One is made to see whether it can be, and goes at once: this test may not be the one to run.
    match ControlGroup::new() {
        None => suite.skip(name, "no control group (version 1) can be made here: not root?"),
        Some(_) => suite.test_with(name, &["cc"], || {
            control_group(&ControlGroup::new().ok_or("the control group cannot be made again")?)
        }),
    }
}

/// Takes 40 MB at a time, in objects of all sizes one after the other, where 96 MB may be had.
fn control_group(group: &ControlGroup) -> Outcome {
    let mut command = preloaded(program("scarcity.c")?);
    command.arg("control_group").env("TEST_CONTROL_GROUP", group.0.join("cgroup.procs"));
    let ended = run(&mut command)?.well()?;
    ensure(ended.stderr.is_empty(), || ended.describe("not quiet"))
}
