//! Starts measured processes and watches them.
//!
//! ```text
//!  runner ──spawn──► hectare hold            (where memory is warmed: it ends before the next begins)
//!    ├─────spawn──► hectare child …         (own heap mapped, subject preloaded; or a launcher)
//!    │                    └ lines of JSON on a pipe
//!    │  poll: process ended? record on the pipe? else sample /proc/PID every few ms
//!    └──wait4──► rusage
//! ```
//!
//! 1. One measured process at a time; the runner itself sleeps in `poll` between samples.
//! 2. The write end of the pipe is inheritable only while the child is being started, by the one
//!    thread that starts children.
//! 3. A process that is interrupted by the user, hangs or crashes gives a [`Failure`], never a
//!    figure.
//! 4. A measured process leads a group of its own. One that is ended early is ended as a group,
//!    along with what the program started.

mod early;
mod given;
mod held;
mod sample;
mod served;
mod surroundings;
mod warmth;
mod watch;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::bench::Outcome;
use crate::cmd::Exit;
use crate::cmd::child::ChildRecord;
use crate::measure::{Usage, monotonic_ns};
use crate::subject::Subject;
pub(crate) use early::{NOTHING_YET, tell_early_end};
pub(crate) use given::Given;
pub(crate) use held::hold;
use sample::Tree;
pub(crate) use sample::{Sample, all_processes, descendants, mean_bytes};
use served::Lookout;
pub(crate) use served::{Lacking, Served, Shortfall, still_runs};
pub(crate) use surroundings::{
    Processors, Surroundings, affinity, listed, parse_processors, pin_to, set_surroundings,
};
pub(crate) use warmth::{WarmMemory, Warmth};
use watch::Watch;

/// What a run does.
#[derive(Clone, Debug)]
pub(crate) enum Job {
    /// `hectare child` with these arguments. Gives an [`Outcome`].
    Child(Vec<OsString>),
    /// A user's program.
    Program {
        /// Program and arguments.
        command: Vec<OsString>,
        /// Known slowness before it starts, ns (the planted control).
        planted_ns: u64,
        /// Whether the program has the command's streams: its output is shown, and it reads the
        /// command's input. (Not a terminal, which would stop a process of another group that
        /// reads.)
        has_streams: bool,
    },
}

/// The result of one run.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    /// From start to end, ns; for a program, from just before it was executed.
    pub(crate) wall_ns: u64,
    /// The kernel's account of the process and the children it waited for.
    pub(crate) usage: Usage,
    /// Peak of resident memory: the largest process's high-water mark or the largest sampled sum
    /// over the tree of processes, bytes.
    pub(crate) peak_bytes: u64,
    /// Resident memory over time.
    pub(crate) samples: Vec<Sample>,
    /// Time stolen by the hypervisor meanwhile, over all processors, ns.
    pub(crate) steal_ns: u64,
    /// How long the child lived, ns: the period in which time could be stolen.
    pub(crate) lived_ns: u64,
    /// What the child reported, for [`Job::Child`].
    pub(crate) outcome: Option<Outcome>,
    /// How the child ended; for a program, how the program itself ended. A failing program has
    /// still been measured.
    pub(crate) status: ExitStatus,
    /// Whether a program's processes had the subject's library. A child reports that itself.
    pub(crate) served: Served,
}

/// Why a run has no figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The user pressed Ctrl-C.
    Interrupted,
    /// It crashed, hung or reported an error.
    Broken(String),
}

/// The flag that SIGINT, SIGTERM and SIGHUP set, so that the measurements so far are kept even when
/// the terminal goes away. A signal that the command was started ignoring stays ignored. The
/// handlers are installed on first use.
pub(crate) fn interrupted() -> &'static Arc<AtomicBool> {
    FLAG.get_or_init(|| {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in ending() {
            // A second Ctrl-C ends the command at once, as users expect.
            let _ = signal_hook::flag::register_conditional_shutdown(signal, 130, flag.clone());
            let _ = signal_hook::flag::register_usize(
                signal,
                ASKED_BY.get_or_init(Arc::default).clone(),
                signal as usize,
            );
            let _ = signal_hook::flag::register(signal, flag.clone());
        }
        flag
    })
}

/// The flag of [`interrupted`], once somebody has asked for it.
static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// The signals that end the command.
fn ending() -> impl Iterator<Item = libc::c_int> {
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].into_iter().filter(|&signal| !is_ignored(signal))
}

/// The signal that set the flag of [`interrupted`].
static ASKED_BY: OnceLock<Arc<AtomicUsize>> = OnceLock::new();

/// Called between the steps of a verb that works in this process. Returns an error when the user
/// has asked to end, so that the verb takes down what it has set up.
///
/// # Errors
/// With [`Exit`], after SIGINT, SIGTERM or SIGHUP.
pub(crate) fn go_on() -> anyhow::Result<()> {
    if interrupted().load(Ordering::Relaxed) {
        bail!(Exit::interrupted("interrupted"));
    }
    Ok(())
}

/// Whether the process was started with a signal ignored, as by `nohup` or by a shell in the
/// background.
pub(crate) fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: an action may be all zeros; with no new one the call only queries.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let told = unsafe { libc::sigaction(signal, std::ptr::null(), &mut action) } == 0;
    told && action.sa_sigaction == libc::SIG_IGN
}

/// Passes the user's signal on to a child.
pub(crate) fn pass_on(child: &std::process::Child) {
    signal(child.id() as i32, asked_by());
}

/// Sends `signal` to a process or, if `whom` is negative, to a group. The process must not have
/// been waited for, so that the number is still its own. A stopped process is continued, since it
/// could not heed the signal otherwise.
pub(crate) fn signal(whom: i32, signal: libc::c_int) {
    for signal in [signal, libc::SIGCONT] {
        // SAFETY: a signal changes nothing of this process.
        unsafe { libc::kill(whom, signal) };
    }
}

/// The signal that the user has sent.
fn asked_by() -> libc::c_int {
    ASKED_BY.get().map_or(0, |asked| asked.load(Ordering::Relaxed)) as libc::c_int
}

/// Passes the user's signal on to the program `program`. A signal from the terminal's keys goes to
/// the whole group of `leader`, as the terminal would send it.
fn pass_on_to_program(leader: i32, program: i32) {
    let signal = asked_by();
    // The leader has not been waited for, so the group is still its own, and the program is in it.
    self::signal(if signal == libc::SIGINT { -leader } else { program }, signal);
}

/// Runs `job` on `subject`, for at most `patience`, and samples at intervals of `every`.
///
/// # Errors
/// The outer error is the harness's own (nothing can be started at all); the inner one belongs to
/// this run.
pub(crate) fn execute(
    subject: &Subject,
    job: &Job,
    every: Duration,
    patience: Duration,
) -> anyhow::Result<Result<Measured, Failure>> {
    let flag = interrupted();
    if flag.load(Ordering::Relaxed) {
        return Ok(Err(Failure::Interrupted));
    }
    tell_what_is_left_out();
    let (pipe, write_end) = watch::pipe()?;
    let mut command = self::command(subject, job, write_end.as_raw_fd())?;
    let steal_before = sample::steal_ns();
    let start_ns = monotonic_ns();
    watch::set_inheritable(&write_end)?;
    let child = surroundings::spawn(&mut command)?;
    drop(write_end);

    let leader = child.id() as i32;
    let is_program = matches!(job, Job::Program { .. });
    let mut watch = Watch {
        pid: leader,
        tree: Tree::of(leader, None),
        process: watch::pid_descriptor(leader)?,
        pipe,
        line: Vec::new(),
        samples: Vec::new(),
        launching: is_program,
        lookout: is_program.then(|| Lookout::for_library(subject.library.as_deref())),
    };
    let mut stop = watch.until_end(every, start_ns, patience, flag);
    // A program with the user's streams ends as it would without the harness, and the processes
    // that it leaves running stay. In a contest such processes would take time and memory from the
    // next run.
    let has_streams = matches!(job, Job::Program { has_streams: true, .. });
    let is_asked = has_streams && matches!(stop, Some(Failure::Interrupted)) && !watch.launching;
    if is_asked {
        pass_on_to_program(leader, watch.pid);
        stop = watch.until_end(every, start_ns, patience, &AtomicBool::new(false));
    }
    if stop.is_some() {
        // Processes that have left the group, as daemons do, come first: they can be found only
        // while the launcher lives.
        for pid in sample::descendants(leader) {
            // SAFETY: a signal to a process just seen below our own child.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
    if stop.is_some() || is_asked || !has_streams {
        // SAFETY: the leader has not been waited for, so the group is still its own.
        unsafe { libc::kill(-leader, libc::SIGKILL) };
    }
    let (_, status, usage) = wait(leader)?;
    let status = ExitStatus::from_raw(status);
    let end_ns = monotonic_ns();
    watch.read_pipe_to_end();
    if let Some(failure) = stop {
        return Ok(Err(failure));
    }
    if flag.load(Ordering::Relaxed) && !is_asked {
        return Ok(Err(Failure::Interrupted));
    }
    let lived_ns = end_ns - start_ns;
    let read = match job {
        Job::Child(_) => outcome(&watch.line, status, subject)
            .map(|outcome| (lived_ns, status, usage, Some(outcome))),
        Job::Program { .. } => launched(&watch.line, status)
            .map(|(wall_ns, status, usage)| (wall_ns, status, usage, None)),
    };
    let (wall_ns, status, usage, outcome) = match read {
        Ok(read) => read,
        Err(error) => return Ok(Err(Failure::Broken(format!("{error:#}")))),
    };
    let samples_bytes = watch.samples.iter().map(|sample| sample.bytes).max().unwrap_or(0);
    Ok(Ok(Measured {
        wall_ns,
        lived_ns,
        peak_bytes: usage.peak_bytes.max(samples_bytes),
        usage,
        steal_ns: sample::steal_ns().saturating_sub(steal_before),
        outcome,
        status,
        served: watch.tree.served(),
        samples: watch.samples,
    }))
}

/// Says once that the libraries preloaded into this command are not measured.
fn tell_what_is_left_out() {
    static TOLD: std::sync::Once = std::sync::Once::new();
    let preloaded = std::env::var_os("LD_PRELOAD").filter(|libraries| !libraries.is_empty());
    if let Some(libraries) = preloaded {
        TOLD.call_once(|| {
            let libraries = libraries.display();
            eprintln!(
                "note: LD_PRELOAD={libraries} is not passed on to what is measured; -a \
                 NAME=/path/lib.so measures a library"
            );
        });
    }
}

/// The program's time, status and usage from the launcher's records; `status` is the launcher's
/// own.
fn launched(lines: &[u8], status: ExitStatus) -> anyhow::Result<(u64, ExitStatus, Usage)> {
    for record in serde_json::Deserializer::from_slice(lines).into_iter() {
        match record.context("reading the launcher's record")? {
            ChildRecord::Started { .. } => {}
            ChildRecord::Ended { started_ns, ended_ns, status, usage } => {
                return Ok((ended_ns - started_ns, ExitStatus::from_raw(status), usage));
            }
            ChildRecord::Failed(why) => bail!("{why}"),
            ChildRecord::Done { .. } => bail!("a launcher gave a workload's record"),
        }
    }
    bail!("its launcher ended without a record ({status})")
}

/// The exit code as in a shell: 128 plus the signal for a process ended by one.
pub(crate) fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// How a program failed, in words; `None` if it did not fail. The status decides and not
/// [`exit_code`], since a program may itself exit with a code above 128.
pub(crate) fn failure(status: ExitStatus) -> Option<String> {
    match status.signal() {
        Some(signal) => Some(format!("was killed by {}", signal_name(signal))),
        None if status.success() => None,
        None => Some(format!("ended with exit code {}", exit_code(status))),
    }
}

/// The process that does `job` with `subject` preloaded.
///
/// `hectare child launch` starts a user's program, plants the control's slowness, and reports when
/// the program started and ended. The launcher's own time is charged to nobody.
fn command(subject: &Subject, job: &Job, fd: RawFd) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("finding this executable")?);
    command.arg("child").arg("--fd").arg(fd.to_string());
    command.stdin(Stdio::null()).env_remove("LD_PRELOAD").envs(subject.environment()?);
    match job {
        Job::Child(arguments) => {
            command.args(arguments);
            command.stdout(Stdio::null());
            if let Some(library) = &subject.library {
                command.env("LD_PRELOAD", library);
            }
        }
        Job::Program { command: program, planted_ns, has_streams } => {
            command.arg("launch").arg("--planted-ns").arg(planted_ns.to_string());
            if let Some(library) = &subject.library {
                command.arg("--preload").arg(library);
            }
            if !has_streams {
                command.arg("--end-all");
            }
            command.arg("--").args(program);
            if !has_streams {
                let input =
                    Given::at_first().for_a_run().context("opening the standard input again")?;
                command.stdin(input).stdout(Stdio::null()).stderr(Stdio::null());
            } else if !std::io::stdin().is_terminal() {
                command.stdin(Stdio::inherit());
            }
        }
    }
    // A group of its own, so that Ctrl-C reaches the harness, which ends the child and keeps its
    // results.
    command.process_group(0);
    Ok(command)
}

/// The child's record. Refused if `malloc` was not the subject's.
fn outcome(line: &[u8], status: ExitStatus, subject: &Subject) -> anyhow::Result<Outcome> {
    if let Some(signal) = status.signal() {
        bail!("killed by {}", signal_name(signal));
    }
    if line.is_empty() {
        bail!("ended without a record ({status})");
    }
    let (outcome, malloc_from) = ChildRecord::done(line)?;
    if let Some(library) = &subject.library
        && malloc_from.canonicalize().ok().as_deref() != Some(library)
    {
        bail!(
            "`malloc` came from {}, not from {}: the library was not preloaded",
            malloc_from.display(),
            library.display()
        );
    }
    Ok(outcome)
}

/// Waits for a child, for any child if `pid` is -1. Returns its number, its status, and the
/// kernel's account of it.
///
/// # Errors
/// When there is no such child of this process.
pub(crate) fn wait(pid: i32) -> anyhow::Result<(i32, i32, Usage)> {
    let mut status = 0;
    // SAFETY: all-zero is a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both out-parameters are valid for writing.
        let waited = unsafe { libc::wait4(pid, &mut status, 0, &mut usage) };
        if waited > 0 {
            return Ok((waited, status, Usage::from_rusage(&usage)));
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error).context("waiting for the measured process");
        }
    }
}

fn signal_name(signal: i32) -> String {
    signal_hook::low_level::signal_name(signal)
        .map_or_else(|| format!("signal {signal}"), str::to_owned)
}
