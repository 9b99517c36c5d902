//! `hectare report`: an HTML page (and the other forms) from stored records.

use std::path::PathBuf;

use crate::list;
use crate::output::place::{self, Kind};
use crate::output::{self, html};
use crate::report::Report;

/// The arguments of `hectare report`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to write the page [default: hectare-report.html]
    #[arg(short, long, value_name = "FILE.html", value_parser = place::writable(Kind::Html))]
    output: Option<PathBuf>,
    /// Records written by --json; `-` is the standard input
    #[arg(required = true, value_name = "FILE.json")]
    records: Vec<PathBuf>,
}

/// The page if no place for it is given.
const PAGE: &str = "hectare-report.html";

/// Runs the verb.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let output = match args.output {
        Some(output) => output,
        None => place::by_default(PAGE, Kind::Html, "--output names another place")?,
    };
    list::refuse_same_files(&args.records)?;
    let reports =
        args.records.iter().map(|path| Report::read(path)).collect::<anyhow::Result<Vec<_>>>()?;
    output::put(&output, html::page(&reports)?.as_bytes())
}
