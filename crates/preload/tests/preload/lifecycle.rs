//! Early and late calls, forks, signals, libraries that come and go.

use std::env;

use crate::harness::{
    Outcome, Suite, add_cases, compile, ensure, library, plain, preloaded, program, run,
};

pub(crate) const CASES: &[&str] = &[
    "preinit_allocates",
    "constructors_and_destructors",
    "atexit_allocates",
    "quick_exit_allocates",
    "thread_destructors_after_ours",
    "threads_do_not_leak",
    "least_stack",
    "fork_while_threads_allocate",
    "fork_handlers_allocate",
    "fork_while_handlers_are_registered",
    "fork_of_fork",
    "many_threads_fork",
    "fork_while_statistics_are_asked",
    "fork_while_streams_are_flushed",
    "fork_forgets_threads",
    "raw_fork",
    "vfork_and_spawn",
    "signals_during_malloc",
    "objects_change_hands",
];

pub(crate) fn add(suite: &mut Suite) {
    add_cases(suite, "lifecycle", "lifecycle.c", CASES);
    let name = "lifecycle::fork_of_one_thread_touches_little";
    // SAFETY: a name that ends in 0.
    if unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) }.is_null() {
        suite.skip(name, "glibc before 2.32 does not say how many threads there are");
    } else {
        suite.test_with(name, &["cc"], || {
            let mut command = preloaded(program("lifecycle.c")?);
            run(command.arg("fork_of_one_thread_touches_little"))?.well().map(drop)
        });
    }
    suite.test_with("lifecycle::a_first_allocation_touches_little", &["cc"], || {
        run(&mut preloaded(program("first.c")?))?.well().map(drop)
    });
    suite.test_with("lifecycle::little_of_the_state_is_touched", &["cc"], || {
        let mut command = preloaded(program("lifecycle.c")?);
        run(command.arg("little_of_the_state_is_touched"))?.well().map(drop)
    });
    suite.test_with("lifecycle::fork_forgets_loans", &["cc"], || {
        let mut command = preloaded(program("lifecycle.c")?);
        command.arg("fork_forgets_loans").env("HECTARE_CONF", "front:thread");
        run(&mut command)?.well().map(drop)
    });
    for case in ["nothing_is_lost", "asked_again"] {
        // By threads' caches, and by the caches of a front that sees every call.
        for front in ["front:thread", "guard:1000"] {
            let name = format!("lifecycle::unseen_end::{case}[{front}]");
            suite.test_with(name, &["cc"], move || unseen_end(case, front));
        }
    }
    suite.test_with("lifecycle::unseen_end::forks_are_seen_to_later", &["cc"], || {
        unseen_end("forks_are_seen_to_later", "front:thread")
    });
    let can_step = can_step();
    for case in ["free_to_a_full_list", "confinement"] {
        let name = format!("lifecycle::interrupted_after_each_instruction::{case}");
        if can_step {
            suite.test_with(name, &["cc"], move || stepped(case));
        } else {
            suite.skip(name, "no program may be run step by step (ptrace) here");
        }
    }
    suite.test_with("lifecycle::constructor_before_ours", &["cc"], || guest_preloaded(true));
    suite.test_with("lifecycle::constructor_after_ours", &["cc"], || guest_preloaded(false));
    suite.test_with("lifecycle::dlopen_dlclose", &["cc"], dlopen_dlclose);
    suite.test_with("lifecycle::dlopen_deepbind", &["cc"], dlopen_deepbind);
    suite.test_with("lifecycle::namespace_of_its_own", &["cc"], || {
        let mut command = preloaded(program("loader.c")?);
        run(command.arg("apart").arg(guest()?))?.well().map(drop)
    });
    suite.test_with("lifecycle::loaded_by_dlopen", &["cc"], loaded_by_dlopen);
}

/// Libraries call the program's own functions, which refuse.
fn unseen_end(case: &str, front: &str) -> Outcome {
    let mut command = preloaded(compile("unseen.c", &["-rdynamic"], "")?);
    run(command.arg(case).env("HECTARE_CONF", front))?.well().map(drop)
}

fn stepped(case: &str) -> Outcome {
    let mut command = preloaded(program("stepped.c")?);
    run(command.arg(case).env("HECTARE_CONF", "stats_signal:10"))?.well().map(drop)
}

/// Whether a program may be traced here. If it cannot be built, the tests report that.
fn can_step() -> bool {
    let Ok(program) = program("stepped.c") else { return true };
    run(plain(program).arg("can_be")).is_ok_and(|ended| ended.well().is_ok())
}

fn guest() -> Result<std::path::PathBuf, String> {
    compile("guest.c", &["-shared", "-fPIC"], "-shared")
}

/// A library whose constructor allocates and registers fork handlers that do, before or behind
/// ours.
fn guest_preloaded(first: bool) -> Outcome {
    let guest = guest()?;
    let (guest, ours) = (guest.display(), library().display());
    let list = if first { format!("{guest}:{ours}") } else { format!("{ours}:{guest}") };
    let mut command = plain(program("lifecycle.c")?);
    run(command.env("LD_PRELOAD", list).arg("fork_while_threads_allocate"))?.well().map(drop)
}

fn dlopen_dlclose() -> Outcome {
    let mut command = preloaded(program("loader.c")?);
    run(command.arg("cycle").arg(guest()?))?.well().map(drop)
}

/// The guest is named without its folder, which only the program's RUNPATH gives. So the linker
/// must still see who calls.
fn dlopen_deepbind() -> Outcome {
    let guest = guest()?;
    let name = guest.file_name().ok_or("the guest has no name")?;
    let runpath = ["-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN"];
    let mut command = preloaded(compile("loader.c", &runpath, "-runpath")?);
    run(command.arg("deep").arg(name))?.well().map(drop)
}

/// The library is not preloaded: a running program opens it, and uses its names.
fn loaded_by_dlopen() -> Outcome {
    let mut command = plain(program("loader.c")?);
    let ended = run(command.arg("borrow").arg(library()))?.well()?;
    ensure(env::var_os("LD_PRELOAD").is_none(), || ended.describe("preloaded after all"))
}
