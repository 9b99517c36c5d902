//! How a report leaves the command: table, JSON, CSV, Markdown, HTML.

pub(crate) mod export;
pub(crate) mod table;

use std::path::PathBuf;

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
        let files: [(&Option<PathBuf>, fn(&Report) -> anyhow::Result<String>); 3] = [
            (&self.json, export::json),
            (&self.csv, export::csv),
            (&self.markdown, |report| Ok(table::markdown(report))),
        ];
        for (path, export) in files {
            let Some(path) = path else { continue };
            std::fs::write(path, export(report)?)
                .with_context(|| format!("writing {}", path.display()))?;
            eprintln!("wrote {}", path.display());
        }
        Ok(())
    }
}
