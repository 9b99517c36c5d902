//! The C++ operators.

use crate::harness::{Suite, add_cases, compile, plain, preloaded, program, run};

pub(crate) const CASES: &[&str] = &[
    "every_form",
    "bad_alloc",
    "array_too_long",
    "handler_frees_memory",
    "handler_throws",
    "nothrow_is_null",
    "nothrow_calls_the_handler",
    "aligned_failure",
    "odd_alignment",
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
    let name = "cxx::plugin_with_a_library_in_itself";
    if has_static("libstdc++.a") {
        suite.test_with(name, &["cc", "c++"], || {
            let flags = ["-shared", "-fPIC", "-static-libstdc++", "-static-libgcc"];
            let plugin = compile("plugin.cpp", &flags, "-static")?;
            let mut command = preloaded(program("loader.c")?);
            run(command.arg("plugin").arg(plugin))?.well().map(drop)
        });
    } else {
        suite.skip(name, "no C++ library to link statically here");
    }
    // Here each call leaves the hit path, and every second object is a guarded one.
    for &case in CASES {
        suite.test_with(format!("cxx::watched::{case}"), &["c++"], move || {
            let mut command = preloaded(program("operators.cpp")?);
            command.arg(case).env("HECTARE_CONF", "guard:2");
            run(&mut command)?.well().map(drop)
        });
    }
}

/// Whether the compiler, asked for the library `name`, gives a path and not just the file's name.
pub(crate) fn has_static(name: &str) -> bool {
    let asked = plain("c++").arg(format!("-print-file-name={name}")).output();
    asked.is_ok_and(|answer| answer.stdout.starts_with(b"/"))
}
