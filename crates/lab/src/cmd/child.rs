//! `hectare child`: one measured thing in a fresh process, the subject preloaded by the parent.
//!
//! A workload or a replay writes exactly one line of JSON to the given descriptor, and nothing
//! anywhere else. `launch` starts a user's program and waits for it, in `launch.rs`.

mod launch;

use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::bench::{self, Entry, Outcome, Parameters};
use crate::measure::Usage;
use crate::replay::{self, Mode, Touch};

/// The arguments that the runner gives to `hectare child`.
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
        /// How many single operations to report.
        #[arg(long, default_value_t = 0)]
        points: usize,
    },
    /// A trace, up to the moment at which the map of its memory is drawn.
    Map {
        /// The trace file.
        trace: PathBuf,
        /// Touching of memory.
        #[arg(long, value_enum, default_value = "page")]
        touch: Touch,
    },
    /// A user's program, started and waited for.
    Launch {
        /// Library to preload into it.
        #[arg(long)]
        preload: Option<PathBuf>,
        /// Known slowness before it starts, ns (the planted control).
        #[arg(long, default_value_t = 0)]
        planted_ns: u64,
        /// End what the program leaves running.
        #[arg(long)]
        end_all: bool,
        /// Program and arguments.
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

/// The line that a child writes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ChildRecord {
    /// The workload or replay ran.
    Done {
        /// Its result.
        outcome: Box<Outcome>,
        /// The file that this process's `malloc` comes from.
        malloc_from: PathBuf,
    },
    /// A process was made that will become the program (only from `launch`).
    Started {
        /// Its number.
        pid: i32,
    },
    /// The program has ended (only from `launch`).
    Ended {
        /// When the program was about to be executed, `CLOCK_MONOTONIC`, ns.
        started_ns: u64,
        /// When waiting for it returned, ns.
        ended_ns: u64,
        /// As returned by `wait`.
        status: i32,
        /// The kernel's account of the program and of the children that it waited for.
        usage: Usage,
    },
    /// The work was not done, and why.
    Failed(String),
}

impl ChildRecord {
    /// The result of a workload or a replay, and the file that its `malloc` came from, from the line
    /// that the child wrote.
    ///
    /// # Errors
    /// When the child failed, or wrote no record.
    pub(crate) fn done(line: &[u8]) -> anyhow::Result<(Outcome, PathBuf)> {
        anyhow::ensure!(!line.is_empty(), "ended without a record");
        match serde_json::from_slice(line).context("reading the child's record")? {
            Self::Done { outcome, malloc_from } => Ok((*outcome, malloc_from)),
            Self::Failed(why) => anyhow::bail!("{why}"),
            Self::Started { .. } | Self::Ended { .. } => {
                anyhow::bail!("a workload gave a launcher's record")
            }
        }
    }
}

/// The descriptor for this process's record; negative if this process is no child.
static RECORD: AtomicI32 = AtomicI32::new(-1);

/// Ends this process, which can neither go on nor return. A child tells its parent why; the command
/// tells the user.
pub(crate) fn give_up(why: &str) -> ! {
    match RECORD.load(Ordering::Relaxed) {
        fd @ 0.. => {
            // SAFETY: open for as long as a child runs its task; not closed here either.
            let mut pipe = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
            let _ = send(&mut pipe, &ChildRecord::Failed(why.to_owned()));
        }
        _ => eprintln!("hectare: {why}"),
    }
    std::process::exit(1)
}

/// Runs the task and writes its record.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    // A measured process ends with its harness, even if that is killed.
    set_parent_process_death_signal(Some(Signal::KILL)).context("binding this to the harness")?;
    crate::measure::note_start()?;
    // SAFETY: the runner passes a descriptor that this process alone owns from here on.
    let mut pipe = unsafe { File::from_raw_fd(args.fd) };
    RECORD.store(args.fd, Ordering::Relaxed);
    let measured = match args.task {
        Task::Launch { preload, planted_ns, end_all, command } => {
            return launch::run(&mut pipe, preload, planted_ns, end_all, &command);
        }
        Task::Bench { name, parameters, planted_ns } => bench(&name, &parameters, planted_ns),
        Task::Map { trace, touch } => replay::occupancy::run(&trace, touch),
        Task::Replay { trace, mode, touch, planted_ns, latency, points } => {
            replay::run(&trace, replay::Options { mode, touch, planted_ns, latency, points })
        }
    };
    let record = match measured.and_then(|outcome| Ok((outcome, malloc_from()?))) {
        Ok((outcome, malloc_from)) => ChildRecord::Done { outcome: Box::new(outcome), malloc_from },
        Err(error) => ChildRecord::Failed(format!("{error:#}")),
    };
    send(&mut pipe, &record)
}

fn send(pipe: &mut File, record: &ChildRecord) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    pipe.write_all(&line).context("writing the record to the parent")
}

fn bench(name: &str, parameters: &str, planted_ns: u64) -> anyhow::Result<Outcome> {
    let parameters: Parameters =
        serde_json::from_str(parameters).context("reading the parameters")?;
    let Entry::Workload(workload) = bench::find(name)? else {
        anyhow::bail!("`{name}` brings its own subjects and does not run in a child");
    };
    let mut outcome = workload.run(&parameters)?;
    // The planted slowness is time really spent, as a slower allocator would spend it. It is spent
    // once, after all threads are done, so it is not divided among them.
    let planted = Instant::now();
    spin(Duration::from_nanos(outcome.ops * planted_ns));
    if planted_ns > 0 {
        outcome.ns += planted.elapsed().as_nanos() as u64;
    }
    Ok(outcome)
}

/// Keeps the processor busy for `time`.
fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// The file that this process's `malloc` comes from.
fn malloc_from() -> anyhow::Result<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `info` is valid for writing; any address may be asked about.
    let found = unsafe { libc::dladdr(libc::malloc as *const libc::c_void, info.as_mut_ptr()) };
    // SAFETY: zeroed above, which is valid for a struct of pointers, and filled when found.
    let info = unsafe { info.assume_init() };
    anyhow::ensure!(found != 0 && !info.dli_fname.is_null(), "`malloc` belongs to no known file");
    // SAFETY: the loader's own null-terminated name, which lives as long as the library.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Ok(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}
