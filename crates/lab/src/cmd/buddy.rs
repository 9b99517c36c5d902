//! `hectare buddy`: the demo of the page-frame allocators, and measurements of them.
//!
//! | File | What |
//! |---|---|
//! | `subjects` | every allocator behind one trait: ours, and peers from crates.io |
//! | `demo` | blocks one by one, in batches, by several threads |
//! | `growth` | time over block count: the complexity made visible |
//! | `fragment` | random reallocation at a load, and how many huge frames stay whole |
//! | `runs` | the requests of a heap: slabs and runs of any length |
//! | `picture` | the occupancy of the frames and the curves as one HTML page |

mod demo;
mod fragment;
mod growth;
mod picture;
mod runs;
mod subjects;

use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use hectare_buddy::{MAX_ORDER, Order};

use super::{Exit, OrMisused};
use crate::output::place::{self, Kind};
use crate::output::{self, export};
use crate::report::Report;

/// The arguments of `hectare buddy`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    demo: demo::Args,
}

#[derive(clap::Subcommand)]
enum What {
    /// Time over block count, for every demo: shows the complexity of each
    Growth(growth::Args),
    /// Random reallocation at several loads: how much free memory stays in whole huge frames
    Fragment(fragment::Args),
    /// What a heap asks for, slabs and runs of any length, on each allocator that can serve as its
    /// backend
    Runs(runs::Args),
}

/// Which allocators, and where the record goes; common to all measurements.
#[derive(clap::Args)]
struct Common {
    /// The allocator to demonstrate; may be given several times [default: all]
    #[arg(short, long = "demo", value_name = "NAME")]
    demos: Vec<String>,
    /// Write the record as JSON (`-` is standard output)
    #[arg(long, value_name = "FILE", value_parser = place::writable(Kind::Json))]
    json: Option<PathBuf>,
    /// Write an HTML page with the plots, or the first plot alone if the name ends in `.svg`
    #[arg(long, value_name = "FILE", value_parser = place::writable(Kind::Html))]
    report: Option<PathBuf>,
}

impl Common {
    /// The allocators asked for, in the order of the table.
    fn subjects(&self) -> anyhow::Result<Vec<&'static subjects::Listed>> {
        ensure!(
            self.json.is_none() || self.json != self.report,
            Exit::misused(
                "--json and --report cannot both be written to one place: give one a file"
            )
        );
        for name in &self.demos {
            if !subjects::ALL.iter().any(|subject| subject.name == name) {
                let names: Vec<&str> = subjects::ALL.iter().map(|subject| subject.name).collect();
                let names = names.join(", ");
                bail!(Exit::misused(format!("there is no demo `{name}`; there are: {names}")));
            }
        }
        let asked = |name: &str| self.demos.is_empty() || self.demos.iter().any(|n| n == name);
        Ok(subjects::ALL.iter().filter(|subject| asked(subject.name)).collect())
    }

    /// Writes the record to the places asked for.
    fn finish(&self, report: &Report, pictures: &[picture::Occupancy]) -> anyhow::Result<()> {
        if let Some(path) = &self.json {
            output::put(path, export::json(report)?.as_bytes())?;
        }
        if let Some(path) = &self.report {
            let is_svg = path.extension().is_some_and(|extension| extension == "svg");
            let page = if is_svg { picture::svg(report) } else { picture::page(report, pictures) };
            output::put(path, page.as_bytes())?;
        }
        Ok(())
    }

    /// Whether the table goes to standard output, which it does unless the record does.
    fn prints_table(&self) -> bool {
        self.json.as_ref().is_none_or(|path| !place::is_standard_output(path))
    }
}

/// An order from the command line.
fn order(given: u8) -> anyhow::Result<Order> {
    Order::new(given)
        .with_context(|| {
            format!("order {given} is too large: the largest is {MAX_ORDER}, 1 GiB of 4 KiB frames")
        })
        .or_misused()
}

/// The number of frames in `blocks` blocks of an order, if it is sensible.
fn frames(blocks: usize, order: Order) -> anyhow::Result<usize> {
    const LARGEST: usize = 1 << 28;
    ensure!(blocks > 0, Exit::misused("0 blocks were asked for: there must be at least one"));
    match blocks.checked_mul(order.frames()) {
        Some(frames) if frames <= LARGEST => Ok(frames),
        _ => bail!(Exit::misused(format!(
            "{blocks} blocks of order {} are more than {LARGEST} frames (1 TiB): give fewer",
            order.get()
        ))),
    }
}

/// Runs the verb.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match args.what {
        None => demo::run(&args.demo),
        Some(What::Growth(args)) => growth::run(&args),
        Some(What::Fragment(args)) => fragment::run(&args),
        Some(What::Runs(args)) => runs::run(&args),
    }
}
