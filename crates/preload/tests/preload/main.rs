//! `libhectare.so` under real programs: every promise of a drop-in malloc, one test each.
//!
//! The tests compile small C and C++ programs (`tests/c`) and run them with the library preloaded.
//! A program that ends with status 0 has found the promise kept. If a test needs something that
//! this machine lacks, it is listed as ignored, with its name and the reason, and never counted as
//! passed.

mod archive;
mod configuration;
mod contract;
mod cxx;
mod elf;
mod fronts;
mod guard;
mod harness;
mod instructions;
mod lifecycle;
mod misuse;
mod pprof;
mod profile;
mod programs;
mod scarcity;
mod secure;
mod suites;

use std::process::ExitCode;

use harness::Suite;

fn main() -> ExitCode {
    let mut suite = Suite::new();
    elf::add(&mut suite);
    contract::add(&mut suite);
    cxx::add(&mut suite);
    archive::add(&mut suite);
    misuse::add(&mut suite);
    lifecycle::add(&mut suite);
    fronts::add(&mut suite);
    secure::add(&mut suite);
    scarcity::add(&mut suite);
    configuration::add(&mut suite);
    guard::add(&mut suite);
    profile::add(&mut suite);
    programs::add(&mut suite);
    suites::add(&mut suite);
    instructions::add(&mut suite);
    suite.run()
}
