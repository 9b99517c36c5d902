//! How a report leaves the command: table, JSON, CSV, Markdown, HTML.

pub(crate) mod export;
pub(crate) mod html;
pub(crate) mod place;
pub(crate) mod table;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::report::Report;
use place::Kind;

/// Where a measuring verb writes what it measured, beside the table. A file named `-` is the standard
/// output, and the table goes to the error output then.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Outputs {
    /// Write the record as JSON (schema 1; `-` is standard output, as for the others)
    #[arg(long, value_name = "FILE", value_parser = place::writable(Kind::Json))]
    pub(crate) json: Option<PathBuf>,
    /// Write the rows as CSV
    #[arg(long, value_name = "FILE", value_parser = place::writable(Kind::Csv))]
    pub(crate) csv: Option<PathBuf>,
    /// Write the table as Markdown
    #[arg(long, value_name = "FILE", value_parser = place::writable(Kind::Markdown))]
    pub(crate) markdown: Option<PathBuf>,
    /// Write an HTML report (one file, works offline)
    #[arg(long, value_name = "FILE", value_parser = place::writable(Kind::Html))]
    pub(crate) report: Option<PathBuf>,
}

impl Outputs {
    /// Writes every file asked for and prints the table of `report`, in this order: a reader that
    /// closes the pipe after a few lines must not cost the files.
    ///
    /// # Errors
    /// When a file cannot be written; its name is in the message.
    pub(crate) fn deliver(&self, report: &Report) -> anyhow::Result<()> {
        self.write(report)?;
        self.tell(&table::text(report));
        Ok(())
    }

    /// Prints what is for people.
    pub(crate) fn tell(&self, text: &str) {
        let files = [&self.json, &self.csv, &self.markdown, &self.report];
        if files.into_iter().flatten().any(|path| place::is_standard_output(path)) {
            eprint!("{text}");
        } else {
            print!("{text}");
        }
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
    put(path, text()?.as_bytes())
}

/// Writes a file and says so.
///
/// # Errors
/// When it cannot be written; its name is in the message.
pub(crate) fn put(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    if place::is_standard_output(path) {
        let mut out = std::io::stdout().lock();
        let written = out.write_all(content).and_then(|()| out.flush());
        return written.context("writing to the standard output");
    }
    let done = if path.is_file() { "replaced" } else { "wrote" };
    std::fs::write(path, content).with_context(|| format!("writing {}", path.display()))?;
    eprintln!("{done} {}", path.display());
    Ok(())
}
