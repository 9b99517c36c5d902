//! `hectare bench pools`.

use super::Study;
use crate::report::Report;

/// The study behind `hectare bench pools`.
pub(crate) struct Pools;

impl Study for Pools {
    fn name(&self) -> &'static str {
        "pools"
    }

    fn about(&self) -> &'static str {
        "not built yet"
    }

    fn source(&self) -> &'static str {
        "not built yet"
    }

    fn run(&self, _args: &[String]) -> anyhow::Result<Report> {
        anyhow::bail!("the benchmark `pools` is not built yet")
    }
}
