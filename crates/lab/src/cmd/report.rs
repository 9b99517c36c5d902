//! `hectare report`: an HTML page (and the other forms) from stored records.

use std::path::PathBuf;

use crate::list;
use crate::output::place::{self, Kind};
use crate::output::{self, html};
use crate::report::Report;

/// The arguments of `hectare report`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to write the page
    #[arg(short, long, value_name = "FILE.html", default_value = "hectare-report.html",
        value_parser = place::writable(Kind::Html))]
    output: PathBuf,
    /// Records written by --json; `-` is the standard input
    #[arg(required = true, value_name = "FILE.json")]
    records: Vec<PathBuf>,
}

/// Runs the verb.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    list::refuse_same_files(&args.records)?;
    let reports =
        args.records.iter().map(|path| Report::read(path)).collect::<anyhow::Result<Vec<_>>>()?;
    output::put(&args.output, html::page(&reports)?.as_bytes())
}
