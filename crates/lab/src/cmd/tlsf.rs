//! `hectare tlsf`: measurements of the two-level segregated fit heap besides its speed.
//!
//! | File | What |
//! |---|---|
//! | `step` | counts the instructions of single calls exactly, by stepping a child |
//! | `worst` | the states that make each call take its longest path |
//! | `wcet` | the bound of each call, over sizes of heap and numbers of pools, and latencies |
//! | `regions` | overhead and regions taken and given back, for several region sizes |
//! | `space` | peak footprint over Ideal on random and biased work, beside peers |

mod regions;
mod space;
mod step;
mod wcet;
mod worst;

/// The arguments of `hectare tlsf`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Instructions of each call in its worst states, for several sizes of heap
    Wcet(wcet::Args),
    /// Overhead of a growing heap, and how often it takes regions and gives them back, for several
    /// sizes of region
    Regions(regions::Args),
    /// Peak footprint over Ideal, beside rlsf, talc and others
    Space(space::Args),
}

/// Runs the verb.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match args.what {
        What::Wcet(args) => wcet::run(&args),
        What::Regions(args) => regions::run(&args),
        What::Space(args) => space::run(&args),
    }
}
