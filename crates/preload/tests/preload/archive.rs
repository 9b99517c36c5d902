//! `libhectare.a`, linked into a program: what holds where the library is preloaded holds there, too.

use crate::harness::{Outcome, Suite, compile, library, plain, run};
use crate::{contract, cxx, lifecycle};

const THEMES: [(&str, &str, &[&str]); 3] = [
    ("contract", "contract.c", contract::CASES),
    ("cxx", "operators.cpp", cxx::CASES),
    ("lifecycle", "lifecycle.c", lifecycle::CASES),
];

/// Ends the name of a program that the archive is linked into.
const LINKED: &str = "-archive";

pub(crate) fn add(suite: &mut Suite) {
    for (theme, source, cases) in THEMES {
        let compiler = if source.ends_with(".cpp") { "c++" } else { "cc" };
        for &case in cases {
            let name = format!("archive::{theme}::{case}");
            suite.test_with(name, &[compiler], move || linked_well(source, case));
        }
    }
}

fn linked_well(source: &'static str, case: &str) -> Outcome {
    let archive = library().with_extension("a").display().to_string();
    // The cases look names up; the archive's are the program's own.
    let program = compile(source, &[&archive, "-rdynamic"], LINKED)?;
    run(plain(program).arg(case).env("TEST_FILE", LINKED))?.well().map(drop)
}
