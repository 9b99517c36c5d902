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
    "any_limit_leaves_room",
    "any_limit_is_used",
    "limit_is_raised_little_by_little",
    "any_limit_leaves_memory",
    "any_size_has_room",
    "grows_where_limited",
    "limits_another_process",
    "no_madvise",
    "no_rseq",
    "no_mremap",
    "few_mappings",
    "more_than_there_can_be",
    "locked_memory_goes_back",
    "reserve_is_not_dumped",
    "small_without_huge_pages",
];

/// Every object is sampled, but the profile writes no file.
const SAMPLED: &str = "prof:true,prof_sample:1,prof_prefix:/dev/null/none";

pub(crate) fn add(suite: &mut Suite) {
    add_cases(suite, "scarcity", "scarcity.c", CASES);
    for front in ["front:thread", "front:cpu", "guard:1", SAMPLED, "secure:true"] {
        for case in [
            "shorter_where_memory_is_out",
            "regions_on_the_least_stack",
            "limited_by_itself",
            "limited_below_what_it_has",
        ] {
            suite.test_with(format!("scarcity::{case}[{front}]"), &["cc"], move || {
                let mut command = preloaded(program("scarcity.c")?);
                run(command.arg(case).env("HECTARE_CONF", front))?.well().map(drop)
            });
        }
    }
    suite.test_with("scarcity::reserves_little", &["cc"], || {
        let mut command = preloaded(program("scarcity.c")?);
        let command = command.arg("reserves_little").env("HECTARE_CONF", "reserve:1");
        run(command)?.well().map(drop)
    });
    suite.test_with("scarcity::no_huge_pages", &["cc"], || {
        let mut command = preloaded(program("scarcity.c")?);
        let command = command.arg("no_huge_pages").env("HECTARE_CONF", "huge_pages:false");
        run(command)?.well().map(drop)
    });
    suite_control_group(suite);
    suite_overcommit(suite);
    suite_hugetlb(suite);
    suite_huge_everywhere(suite);
    suite.test_with("scarcity::sandboxed[told]", &["cc"], || {
        let mut command = preloaded(program("scarcity.c")?);
        let command = command.arg("sandboxed").env("TEST_TOLD", "1");
        run(command.env("HECTARE_CONF", "sandbox:true"))?.well().map(drop)
    });
    for front in ["auto", "thread", "cpu"] {
        for case in ["sandboxed", "sandboxed_threads"] {
            suite.test_with(format!("scarcity::{case}[{front}]"), &["cc"], move || {
                let mut command = preloaded(program("scarcity.c")?);
                let command = command.arg(case).env("HECTARE_CONF", format!("front:{front}"));
                run(command)?.well().map(drop)
            });
        }
    }
}

/// The kernel's rule for promising memory: 2 promises no more than there is.
const OVERCOMMIT: &str = "/proc/sys/vm/overcommit_memory";

/// The setting is the whole machine's, so a test changes it only if it has been told that it may.
const MAY_SET: &str = "HECTARE_MACHINE_TESTS";

fn suite_overcommit(suite: &mut Suite) {
    let name = "scarcity::overcommit_refused";
    let mode = match fs::read_to_string(OVERCOMMIT) {
        Ok(mode) => mode.trim().to_owned(),
        Err(error) => return suite.skip(name, format!("{OVERCOMMIT} cannot be read: {error}")),
    };
    if mode == "2" {
        suite.test_with(name, &["cc"], overcommit_refused);
    } else if std::env::var_os(MAY_SET).is_none() {
        suite.skip(name, format!("{OVERCOMMIT} is {mode}, not 2; {MAY_SET}=1 lets root set it"));
    } else {
        suite.test_with(name, &["cc"], || {
            // Compiled beforehand, so that the machine is without overcommit for a moment only.
            program("scarcity.c")?;
            let _restored = Setting::set(OVERCOMMIT, mode, "2")?;
            overcommit_refused()
        });
    }
}

/// A setting of the machine, which is restored even if the test has failed.
struct Setting {
    path: &'static str,
    before: String,
}

impl Setting {
    fn set(path: &'static str, before: String, value: &str) -> Result<Self, String> {
        fs::write(path, value).map_err(|error| format!("{path}: {error}"))?;
        Ok(Self { path, before })
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        fs::write(self.path, &self.before).expect("what could be set can be set back");
    }
}

/// How many huge pages the machine has set aside.
const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

fn suite_hugetlb(suite: &mut Suite) {
    suite.test_with("scarcity::hugetlb_refused", &["cc"], || {
        let mut command = preloaded(program("plain.c")?);
        let ended = run(command.env("HECTARE_CONF", "hugetlb:131072"))?.well()?;
        let line = "hectare: HECTARE_CONF: hugetlb:131072 is ignored: not so many huge pages of \
                    2 MiB are free (vm.nr_hugepages sets them aside); ordinary pages serve\n";
        ensure(ended.stderr == line, || ended.describe("not told in one line"))
    });
    let name = "scarcity::hugetlb_pool";
    let before = match fs::read_to_string(HUGE_PAGES) {
        Ok(pages) => pages.trim().to_owned(),
        Err(error) => return suite.skip(name, format!("{HUGE_PAGES} cannot be read: {error}")),
    };
    if std::env::var_os(MAY_SET).is_none() {
        return suite.skip(name, format!("{MAY_SET}=1 lets root set {HUGE_PAGES}"));
    }
    suite.test_with(name, &["cc"], move || {
        let program = program("scarcity.c")?;
        // The pool's pages, and as many again for the child that writes to all of them.
        let pages = before.parse::<usize>().map_err(|_| format!("{HUGE_PAGES}: {before}"))? + 64;
        let _restored = Setting::set(HUGE_PAGES, before, &pages.to_string())?;
        let mut command = preloaded(program);
        run(command.arg("hugetlb_pool").env("HECTARE_CONF", "hugetlb:64"))?.well().map(drop)
    });
}

/// Where the machine has transparent huge pages: `always`, `madvise` or `never`. The one in
/// brackets holds.
const HUGE_WHERE: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

fn suite_huge_everywhere(suite: &mut Suite) {
    let name = "scarcity::small_without_huge_pages[everywhere]";
    let modes = match fs::read_to_string(HUGE_WHERE) {
        Ok(modes) => modes,
        Err(error) => return suite.skip(name, format!("{HUGE_WHERE} cannot be read: {error}")),
    };
    let before = modes.split(['[', ']']).nth(1).unwrap_or_default().to_owned();
    let may_set = std::env::var_os(MAY_SET).is_some();
    if before != "always" && !may_set {
        return suite.skip(
            name,
            format!("{HUGE_WHERE} is {before}, not always; {MAY_SET}=1 lets root set it"),
        );
    }
    suite.test_with(name, &["cc"], move || {
        let mut command = preloaded(program("scarcity.c")?);
        let command = command.arg("small_without_huge_pages");
        let _restored =
            (before != "always").then(|| Setting::set(HUGE_WHERE, before, "always")).transpose()?;
        run(command)?.well().map(drop)
    });
}

/// The limits of address space hold as elsewhere, and a reservation of the heap's size is not
/// refused because of the memory that it might hold.
fn overcommit_refused() -> Outcome {
    for case in ["address_space_limit", "larger_objects_after_smaller", "few_mappings"] {
        run(preloaded(program("scarcity.c")?).arg(case))?.well()?;
    }
    Ok(())
}

/// A control group of this test's own, removed when the test is over.
struct ControlGroup(PathBuf);

impl ControlGroup {
    /// `None` if this process may make none.
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
        // If a process is still in the group, it stays: nothing else can be done about it here.
        let _ = fs::remove_dir(&self.0);
    }
}

fn suite_control_group(suite: &mut Suite) {
    let name = "scarcity::control_group";
    // This makes a group to see whether that is possible, and removes it at once: this test may not
    // be the one to run.
    match ControlGroup::new() {
        None => suite.skip(name, "no control group (version 1) can be made here: not root?"),
        Some(_) => suite.test_with(name, &["cc"], || {
            control_group(&ControlGroup::new().ok_or("the control group cannot be made again")?)
        }),
    }
}

/// Takes 40 MB at a time, in objects of all sizes one after the other, where only 96 MB are
/// allowed.
fn control_group(group: &ControlGroup) -> Outcome {
    let mut command = preloaded(program("scarcity.c")?);
    command.arg("control_group").env("TEST_CONTROL_GROUP", group.0.join("cgroup.procs"));
    let ended = run(&mut command)?.well()?;
    ensure(ended.stderr.is_empty(), || ended.describe("not quiet"))
}
