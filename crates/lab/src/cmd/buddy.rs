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

use std::path::Path;

use anyhow::{Context, bail, ensure};
use hectare_buddy::{MAX_ORDER, Order};

use super::{Exit, OrMisused};
use crate::output::{self, Outputs};
use crate::report::Report;
use crate::say::counted;

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
    /// Time over block count: shows the complexity of each allocator
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
    /// Allocators, separated by commas [default: all]
    #[arg(
        short,
        long,
        visible_short_alias = 'd',
        alias = "demo",
        value_name = "A,B,…",
        value_delimiter = ','
    )]
    allocators: Vec<String>,
    /// Where to write what was measured.
    #[command(flatten)]
    outputs: Outputs,
}

/// The help of measurements that have plots.
const PLOT_ALONE: &str = "A --report whose name ends in `.svg` is the first plot alone.";

impl Common {
    /// The allocators asked for, in the order of the table.
    fn subjects(&self) -> anyhow::Result<Vec<&'static subjects::Listed>> {
        for name in &self.allocators {
            if !subjects::ALL.iter().any(|subject| subject.name == name) {
                let names: Vec<&str> = subjects::ALL.iter().map(|subject| subject.name).collect();
                let names = names.join(", ");
                bail!(Exit::misused(format!(
                    "there is no allocator `{name}` here; there are: {names}"
                )));
            }
        }
        let asked = |name: &str| self.allocators.is_empty() || self.names(name);
        Ok(subjects::ALL.iter().filter(|subject| asked(subject.name)).collect())
    }

    /// Whether the user asked for the allocator `name` by its name.
    fn names(&self, name: &str) -> bool {
        self.allocators.iter().any(|asked| asked == name)
    }

    /// Refuses a plot alone, for a measurement that has no plots.
    fn refuse_plot_alone(&self) -> anyhow::Result<()> {
        let asked = self.outputs.files.report.as_deref().is_some_and(is_plot_alone);
        let message =
            "there is no plot to write alone: give --report a name that does not end in `.svg`";
        ensure!(!asked, Exit::misused(message));
        Ok(())
    }

    /// Prints text for people.
    fn tell(&self, text: &str) {
        self.outputs.tell(text);
    }

    /// Writes the record to the places asked for. The HTML page has a form of its own.
    fn finish(&self, report: &Report, pictures: &[picture::Occupancy]) -> anyhow::Result<()> {
        let mut others = self.outputs.clone();
        let page = others.files.report.take();
        let written = others.write(report);
        if let Some(path) = page {
            let page = match is_plot_alone(&path) {
                true => picture::svg(report),
                false => picture::page(report, pictures),
            };
            output::put(&path, page.as_bytes())?;
        }
        written
    }
}

/// Whether the report's name asks for the first plot alone.
fn is_plot_alone(report: &Path) -> bool {
    report.extension().is_some_and(|extension| extension == "svg")
}

/// The most frames that blocks may have in all: 1 TiB.
const MOST_FRAMES: usize = 1 << 28;

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
    ensure!(blocks > 0, Exit::misused("0 blocks were asked for: there must be at least one"));
    match blocks.checked_mul(order.frames()) {
        Some(frames) if frames <= MOST_FRAMES => Ok(frames),
        _ => bail!(Exit::misused(format!(
            "{} of order {}: more than {MOST_FRAMES} frames (1 TiB); give fewer",
            counted(blocks, "block"),
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
