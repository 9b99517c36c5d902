//! Tests, some of which need things that not every machine has.
//!
//! The standard harness knows only tests that pass and tests that fail, so a test that lacks
//! something on its machine would have to pass without checking anything. A suite is for a test
//! target with `harness = false`.

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

/// The tests to run, and those that cannot run here. The latter are listed as ignored, each with
/// its name and the reason, and never counted as passed.
#[derive(Debug, Default)]
pub struct Suite {
    trials: Vec<Trial>,
    skipped: Vec<(String, String)>,
}

impl Suite {
    /// A suite without tests.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a test, which fails by returning an error or by a panic.
    pub fn test(
        &mut self,
        name: impl Into<String>,
        body: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) {
        self.trials.push(Trial::test(name, move || body().map_err(Failed::from)));
    }

    /// Adds a test that fails only by a panic.
    pub fn check(&mut self, name: impl Into<String>, body: fn()) {
        self.test(name, move || {
            body();
            Ok(())
        });
    }

    /// Adds a test that cannot run here, for `reason`.
    pub fn skip(&mut self, name: impl Into<String>, reason: impl Into<String>) {
        let (name, reason) = (name.into(), reason.into());
        let full = format!("{name} (skipped: {reason})");
        // A forced run (`--ignored`) fails: nothing has been shown.
        let failure = Failed::from(format!("cannot run here: {reason}"));
        self.trials.push(Trial::test(full, move || Err(failure)).with_ignored_flag(true));
        self.skipped.push((name, reason));
    }

    /// Adds a test that needs the commands `needs`. If one is missing, the test is skipped.
    pub fn test_with(
        &mut self,
        name: impl Into<String>,
        needs: &[&str],
        body: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) {
        match needs.iter().find(|tool| find_tool(tool).is_none()) {
            Some(missing) => self.skip(name, format!("no {missing} here")),
            None => self.test(name, body),
        }
    }

    /// Runs what the command line asks for and prints a summary of what was skipped.
    #[must_use]
    pub fn run(self) -> ExitCode {
        let arguments = Arguments::from_args();
        let listing = arguments.list;
        let conclusion = libtest_mimic::run(&arguments, self.trials);
        if !listing && !self.skipped.is_empty() {
            println!("skipped, {} in all:", self.skipped.len());
            for (name, reason) in &self.skipped {
                println!("    {name}: {reason}");
            }
        }
        conclusion.exit_code()
    }
}

/// Where a command of this name is.
#[must_use]
pub fn find_tool(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}
