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

/// Runs the verb for the command line that `command` describes. Scripts would complete hidden
/// verbs, too, so they are generated from the visible ones.
pub(crate) fn run(args: Args, command: &Command) -> anyhow::Result<()> {
    let seen = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    let mut shown =
        Command::new(NAME).args(command.get_arguments().cloned()).subcommands(seen.cloned());
    // The generator panics when it cannot write.
    let mut script = Vec::new();
    generate(args.shell, &mut shown, NAME, &mut script);
    print!("{}", String::from_utf8(script)?);
    Ok(())
}
