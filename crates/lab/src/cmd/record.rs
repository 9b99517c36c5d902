//! `hectare record`.

/// What `hectare record` can be given.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Runs the verb.
pub(crate) fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("the verb `record` is not built yet")
}
