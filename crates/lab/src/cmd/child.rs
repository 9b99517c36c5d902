//! `hectare child`: one measured thing in a fresh process, the subject preloaded by the parent.
//!
//! Writes exactly one line of JSON to the descriptor given and nothing else anywhere.

use std::fs::File;
use std::io::Write;
use std::os::fd::FromRawFd;
use std::path::PathBuf;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::bench::{self, Entry, Outcome, Parameters};
use crate::replay::{self, Mode, Touch};

/// What `hectare child` is given by the runner.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Descriptor for the record.
    #[arg(long)]
    fd: i32,
    #[command(subcommand)]
    task: Task,
}

/// What is measured.
#[derive(clap::Subcommand)]
enum Task {
    /// A workload by name with its parameters as JSON.
    Bench {
        /// Name in the list of workloads.
        name: String,
        /// [`Parameters`] as JSON.
        parameters: String,
        /// Known slowness per operation, ns (the planted control).
        #[arg(long, default_value_t = 0)]
        planted_ns: u64,
    },
    /// A trace.
    Replay {
        /// The trace file.
        trace: PathBuf,
        /// Order and pace.
        #[arg(long, value_enum, default_value = "speed")]
        mode: Mode,
        /// Touching of memory.
        #[arg(long, value_enum, default_value = "line")]
        touch: Touch,
        /// Known slowness per operation, ns (the planted control).
        #[arg(long, default_value_t = 0)]
        planted_ns: u64,
        /// Time every operation.
        #[arg(long)]
        latency: bool,
    },
}

/// The line that a child writes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ChildRecord {
    /// It ran.
    Done(Box<Outcome>),
    /// It did not; why.
    Failed(String),
}

/// Runs the task and writes its record.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    // SAFETY: the runner passes a descriptor that this process alone owns from here on.
    let mut pipe = unsafe { File::from_raw_fd(args.fd) };
    let record = match outcome(args.task) {
        Ok(outcome) => ChildRecord::Done(Box::new(outcome)),
        Err(error) => ChildRecord::Failed(format!("{error:#}")),
    };
    let mut line = serde_json::to_vec(&record)?;
    line.push(b'\n');
    pipe.write_all(&line).context("writing the record to the parent")
}

fn outcome(task: Task) -> anyhow::Result<Outcome> {
    match task {
        Task::Bench { name, parameters, planted_ns } => {
            let parameters: Parameters =
                serde_json::from_str(&parameters).context("reading the parameters")?;
            let Entry::Workload(workload) = bench::find(&name)? else {
                anyhow::bail!("`{name}` brings its own subjects and does not run in a child");
            };
            let mut outcome = workload.run(&parameters)?;
            outcome.ns += outcome.ops * planted_ns;
            Ok(outcome)
        }
        Task::Replay { trace, mode, touch, planted_ns, latency } => {
            replay::run(&trace, replay::Options { mode, touch, planted_ns, latency })
        }
    }
}
