//! `hectare completions`: what a shell needs to complete verbs and options.

use clap::Command;
use clap_complete::{Shell, generate};

/// The arguments of `hectare completions`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The shell, as in `hectare completions bash > FILE` with a file in its completions folder
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// The name typed to run the command.
const NAME: &str = env!("CARGO_BIN_NAME");

/// Runs the verb. `command` describes the command line as users are shown it: the script completes
/// all of it, even hidden parts.
pub(crate) fn run(args: Args, mut command: Command) -> anyhow::Result<()> {
    // The generator panics when it cannot write.
    let mut script = Vec::new();
    generate(args.shell, &mut command, NAME, &mut script);
    print!("{}", String::from_utf8(script)?);
    Ok(())
}
