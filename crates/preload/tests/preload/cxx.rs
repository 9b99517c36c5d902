//! The C++ operators.

use crate::harness::{Suite, add_cases, compile, preloaded, program, run};

const CASES: &[&str] = &[
    "every_form",
    "bad_alloc",
    "array_too_long",
    "handler_frees_memory",
    "handler_throws",
    "nothrow_is_null",
    "nothrow_calls_the_handler",
    "aligned_failure",
    "containers",
    "thread_locals",
];

pub(crate) fn add(suite: &mut Suite) {
    add_cases(suite, "cxx", "operators.cpp", CASES);
    suite.test_with("cxx::plugin_of_a_c_program", &["cc", "c++"], || {
        let plugin = compile("plugin.cpp", &["-shared", "-fPIC"], "-shared")?;
        let mut command = preloaded(program("loader.c")?);
        run(command.arg("plugin").arg(plugin))?.well().map(drop)
    });
    // Where each call leaves the hit path, and every other is due.
    for &case in CASES {
        suite.test_with(format!("cxx::watched::{case}"), &["c++"], move || {
            let mut command = preloaded(program("operators.cpp")?);
            command.arg(case).env("HECTARE_CONF", "guard:2");
            run(&mut command)?.well().map(drop)
        });
    }
}
