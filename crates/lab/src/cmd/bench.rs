//! `hectare bench`.

/// What `hectare bench` can be given.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Runs the verb.
pub(crate) fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("the verb `bench` is not built yet")
}
