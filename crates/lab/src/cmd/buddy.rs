//! `hectare buddy`.

/// What `hectare buddy` can be given.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Runs the verb.
pub(crate) fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("the verb `buddy` is not built yet")
}
