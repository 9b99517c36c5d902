//! How a report leaves the command: table, JSON, CSV, Markdown, HTML.

pub(crate) mod export;
pub(crate) mod html;
pub(crate) mod table;

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::report::Report;

/// Where a measuring verb writes what it measured, beside the table.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Outputs {
    /// Write the record as JSON (schema 1)
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the rows as CSV
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Write the table as Markdown
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
    /// Write an HTML report (one file, works offline)
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

impl Outputs {
    /// Prints the table of `report` and writes every file asked for.
    ///
    /// # Errors
    /// When a file cannot be written; its name is in the message.
    pub(crate) fn deliver(&self, report: &Report) -> anyhow::Result<()> {
        print!("{}", table::text(report));
        self.write(report)
    }

    /// Writes every file asked for.
    ///
    /// # Errors
    /// When a file cannot be written; its name is in the message.
    pub(crate) fn write(&self, report: &Report) -> anyhow::Result<()> {
        write_file(self.json.as_deref(), || export::json(report))?;
        write_file(self.csv.as_deref(), || Ok(export::csv(report)))?;
        write_file(self.markdown.as_deref(), || Ok(table::markdown(report)))?;
        write_file(self.report.as_deref(), || html::page(std::slice::from_ref(report)))
    }
}

fn write_file(
    path: Option<&Path>,
    text: impl FnOnce() -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, text()?).with_context(|| format!("writing {}", path.display()))?;
    eprintln!("wrote {}", path.display());
    Ok(())
}
