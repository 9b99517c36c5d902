//! `hectare bench tlsf`.

use super::Study;
use crate::report::Report;

/// The study behind `hectare bench tlsf`.
pub(crate) struct Tlsf;

impl Study for Tlsf {
    fn name(&self) -> &'static str {
        "tlsf"
    }

    fn about(&self) -> &'static str {
        "not built yet"
    }

    fn source(&self) -> &'static str {
        "not built yet"
    }

    fn run(&self, _args: &[String]) -> anyhow::Result<Report> {
        anyhow::bail!("the benchmark `tlsf` is not built yet")
    }
}
