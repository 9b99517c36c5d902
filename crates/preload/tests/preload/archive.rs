//! `libhectare.a`, linked into a program: all that holds for the preloaded library holds there,
//! too.

use std::process::Command;

use libc::SIGABRT;

use crate::harness::{Outcome, Suite, add_cases_of, compile, ensure, library, plain, run};
use crate::{contract, cxx, lifecycle};

/// Ends the name of a program that the archive is linked into.
const LINKED: &str = "-archive";

pub(crate) fn add(suite: &mut Suite) {
    add_cases_of(suite, "archive::contract", "contract.c", contract::CASES, linked);
    add_cases_of(suite, "archive::cxx", "operators.cpp", cxx::CASES, linked);
    add_cases_of(suite, "archive::lifecycle", "lifecycle.c", lifecycle::CASES, linked);
    let name = "archive::linked_statically";
    if cxx::has_static("libc.a") {
        suite.test_with(name, &["cc"], linked_statically);
    } else {
        suite.skip(name, "no C library to link statically here");
    }
}

/// A statically linked program would lack something, and is told so at once.
fn linked_statically() -> Outcome {
    let archive = library().with_extension("a").display().to_string();
    let ended = run(&mut plain(compile("pairs.c", &[&archive, "-static"], "-static")?))?;
    let is_told =
        ended.signalled(SIGABRT) && ended.stderr.contains("cannot be linked with -static");
    ensure(is_told, || ended.describe("it was not told"))
}

fn linked(source: &'static str) -> Result<Command, String> {
    let archive = library().with_extension("a").display().to_string();
    // The cases look names up; the archive's names are the program's own.
    let mut command = plain(compile(source, &[&archive, "-rdynamic"], LINKED)?);
    command.env("TEST_FILE", LINKED);
    Ok(command)
}
