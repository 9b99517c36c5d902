//! `libhectare.a`, linked into a program: what holds where the library is preloaded holds there, too.

use std::process::Command;

use crate::harness::{Suite, add_cases_of, compile, library, plain};
use crate::{contract, cxx, lifecycle};

/// Ends the name of a program that the archive is linked into.
const LINKED: &str = "-archive";

pub(crate) fn add(suite: &mut Suite) {
    add_cases_of(suite, "archive::contract", "contract.c", contract::CASES, linked);
    add_cases_of(suite, "archive::cxx", "operators.cpp", cxx::CASES, linked);
    add_cases_of(suite, "archive::lifecycle", "lifecycle.c", lifecycle::CASES, linked);
}

fn linked(source: &'static str) -> Result<Command, String> {
    let archive = library().with_extension("a").display().to_string();
    // The cases look names up; the archive's are the program's own.
    let mut command = plain(compile(source, &[&archive, "-rdynamic"], LINKED)?);
    command.env("TEST_FILE", LINKED);
    Ok(command)
}
