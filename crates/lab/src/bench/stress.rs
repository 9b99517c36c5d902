//! `hectare bench stress`.

use super::Study;
use crate::report::Report;

/// The study behind `hectare bench stress`.
pub(crate) struct Stress;

impl Study for Stress {
    fn name(&self) -> &'static str {
        "stress"
    }

    fn about(&self) -> &'static str {
        "not built yet"
    }

    fn source(&self) -> &'static str {
        "not built yet"
    }

    fn run(&self, _args: &[String]) -> anyhow::Result<Report> {
        anyhow::bail!("the benchmark `stress` is not built yet")
    }
}
