//! One file per verb: `Args` (its arguments) and `run` (what it does).

pub(crate) mod bench;
pub(crate) mod buddy;
pub(crate) mod child;
pub(crate) mod choose;
pub(crate) mod compare;
pub(crate) mod completions;
mod contesting;
pub(crate) mod doctor;
pub(crate) mod info;
pub(crate) mod record;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod store;
pub(crate) mod swap;
pub(crate) mod tlsf;
pub(crate) mod zram;

use std::fmt;
use std::process::{ExitCode, ExitStatus};

use anyhow::bail;

use crate::runner;

/// An error that asks for a certain exit code; everything else exits with 1.
///
/// | code | meaning |
/// |---|---|
/// | 0 | done; every `--assert` holds |
/// | 1 | could not be done (the message says why) |
/// | 2 | wrong arguments: the parser's errors, and those that only show in combination |
/// | 3 | measured, but an `--assert` does not hold, or the program contradicts its replay (`--check`) |
/// | 4 | measured, but an `--assert` cannot be decided at this noise |
/// | 5 | measured, but a program, trace or workload failed under some allocator |
/// | 130 | interrupted; what was measured has been printed and, after a complete round, written |
#[derive(Debug)]
pub(crate) struct Exit {
    pub(crate) code: u8,
    pub(crate) message: String,
}

/// The exit code when something was measured, but not under every allocator.
pub(crate) const BROKEN: u8 = 5;

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Exit {}

impl Exit {
    /// Wrong arguments.
    pub(crate) fn misused(message: impl Into<String>) -> Self {
        Self { code: 2, message: message.into() }
    }

    /// The user has ended the command.
    pub(crate) fn interrupted(message: impl Into<String>) -> Self {
        Self { code: 130, message: message.into() }
    }
}

/// Ends the command as the program `name` ended that it ran, if that failed.
///
/// # Errors
/// When the program failed, with its exit code.
pub(crate) fn pass_on_failure(name: &str, status: ExitStatus) -> anyhow::Result<()> {
    let Some(why) = runner::failure(status) else { return Ok(()) };
    let code = u8::try_from(runner::exit_code(status)).unwrap_or(1);
    bail!(Exit { code, message: format!("{name} {why}") })
}

/// Turns an error into one of wrong arguments.
pub(crate) trait OrMisused {
    /// The same error, with the exit code for wrong arguments.
    fn or_misused(self) -> Self;
}

impl<T> OrMisused for anyhow::Result<T> {
    fn or_misused(self) -> Self {
        self.map_err(|error| Exit::misused(format!("{error:#}")).into())
    }
}

/// Prints the error with its causes and gives the exit code it asks for.
pub(crate) fn fail(error: &anyhow::Error) -> ExitCode {
    eprintln!("hectare: {error:#}");
    ExitCode::from(error.downcast_ref::<Exit>().map_or(1, |exit| exit.code))
}
