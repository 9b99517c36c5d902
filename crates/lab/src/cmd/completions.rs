//! `hectare completions`: what a shell needs to complete verbs and options.

use clap::Command;
use clap_complete::{Shell, generate};

/// What `hectare completions` can be given.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The shell that is to complete, as in `hectare completions bash > FILE` in its folder of completions
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// What is typed to run the command.
const NAME: &str = env!("CARGO_BIN_NAME");

/// Runs the verb, for the command line that `command` describes. Scripts would complete hidden verbs, too,
/// so they are made of those that can be seen.
pub(crate) fn run(args: Args, command: &Command) -> anyhow::Result<()> {
    let seen = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    let mut shown =
        Command::new(NAME).args(command.get_arguments().cloned()).subcommands(seen.cloned());
    // The generator panics where it cannot write.
    let mut script = Vec::new();
    generate(args.shell, &mut shown, NAME, &mut script);
    print!("{}", String::from_utf8(script)?);
    Ok(())
}
