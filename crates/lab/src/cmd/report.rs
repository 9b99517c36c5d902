//! `hectare report`: an HTML page (and the other forms) from stored records.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::input;
use crate::output::place::{self, Kind};
use crate::output::{self, html};
use crate::report::{Report, SCHEMA};

/// What `hectare report` can be given.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to write the page
    #[arg(short, long, value_name = "FILE.html", default_value = "hectare-report.html",
        value_parser = place::writable(Kind::Html))]
    output: PathBuf,
    /// Records written by --json
    #[arg(required = true, value_name = "FILE.json")]
    records: Vec<PathBuf>,
}

/// Runs the verb.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let reports = args.records.iter().map(|path| read(path)).collect::<anyhow::Result<Vec<_>>>()?;
    output::put(&args.output, html::page(&reports)?.as_bytes())
}

fn read(path: &Path) -> anyhow::Result<Report> {
    let name = path.display();
    let text = input::whole(path)?;
    let value: serde_json::Value = serde_json::from_slice(&text)
        .with_context(|| format!("{name} is not JSON (`--json` of a measuring verb writes it)"))?;
    match value.get("schema").and_then(serde_json::Value::as_u64) {
        Some(schema) if schema == u64::from(SCHEMA) => {}
        Some(schema) => bail!("{name} has schema {schema}; this command reads schema {SCHEMA}"),
        None => bail!("{name} is no record of hectare: it has no `schema`"),
    }
    serde_json::from_value(value).with_context(|| format!("{name} is not a whole record"))
}
