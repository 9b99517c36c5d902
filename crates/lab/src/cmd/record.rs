//! `hectare record`: runs a program under the recorder and seals the recording.
//!
//! ```text
//!  hectare record -o F.hxt -- CMD
//!     │ LD_PRELOAD=libhectare_recorder.so HECTARE_TRACE=F.hxt.raw
//!     ├──▶ CMD ──▶ F.hxt.raw.<pid>.<n>   one for every program image of every process
//!     └── seal the one that did the work ──▶ F.hxt     the others with --all ──▶ F.<pid>.<n>.hxt
//! ```
//!
//! The command ends as the program did, even by the same signal. SIGINT and SIGTERM go to the
//! program; what it recorded until its end is kept.

mod claim;
mod cost;
pub(crate) mod images;
mod signals;
mod unreached;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use hectare_trace::seal::{SealOptions, Sealed, seal};
use hectare_trace::{FileHeader, RECORDER_CLOCK_SHIFT, Trace};

use super::{Exit, pass_on_failure};
use crate::output::place::{self, Kind};
use crate::replay::clock;
use crate::say::counted;
use crate::subject::{self, program};
use crate::within::within;
use claim::Claim;
use images::Image;
use signals::Signals;
use unreached::Lookout;
pub(crate) use unreached::{Silent, Unreached};

/// The arguments of `hectare record`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The trace to write
    #[arg(short, long, value_name = "F.hxt", value_parser = place::writable(Kind::Trace))]
    output: PathBuf,
    /// Keep the traces of all processes that the program starts, not only that of the one that did
    /// the work
    #[arg(long)]
    all: bool,
    /// Resolution of the times kept, ns; coarser times make smaller files
    #[arg(long, value_name = "NS", default_value_t = 100, value_parser = within(1_u64, 1_000_000_000))]
    tick_ns: u64,
    /// The program with its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the verb.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let options = Options { all: args.all, tick_ns: args.tick_ns, of: None, stays: true };
    let recorded = record(&args.output, &args.command, options)?;
    recorded.tell(true);
    if let Some(note) = args.command.first().and_then(|program| program::beside_malloc(program)) {
        eprintln!("note: {note}");
    }
    pass_on_failure(&format!("`{}`", shortened(&words(&args.command))), recorded.status)?;
    let is_whole = |kept: &Kept| kept.header.lost_events == 0 && !kept.sealed.damage.any();
    ensure!(recorded.kept.iter().all(is_whole), "a trace is incomplete, as told above");
    Ok(())
}

/// Runs the hidden verb that measures the recorder's cost, in a process that may be recorded.
pub(crate) fn run_cost_loop() -> anyhow::Result<()> {
    println!("{}", cost::cost_loop_ns());
    Ok(())
}

/// Sealing more than this takes seconds, so it is announced.
const LONG_ROWS: u64 = 50_000_000;

/// How to record.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Keep every process.
    pub(crate) all: bool,
    /// Resolution of the times kept, ns.
    pub(crate) tick_ns: u64,
    /// The process whose command line contains this comes first, instead of the one that did the
    /// work.
    pub(crate) of: Option<String>,
    /// Whether the recordings stay when the command has ended.
    pub(crate) stays: bool,
}

/// One sealed trace.
#[derive(Debug)]
pub(crate) struct Kept {
    /// What happened at its place: `wrote` or `replaced`.
    pub(crate) done: &'static str,
    /// Where it is.
    pub(crate) path: PathBuf,
    /// Its header.
    pub(crate) header: FileHeader,
    /// What sealing found.
    pub(crate) sealed: Sealed,
    /// Whether its process went on after the command had ended, as daemons do.
    pub(crate) still_runs: bool,
}

/// The result of a recording.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// The one that did the work comes first; the others only if asked for.
    pub(crate) kept: Vec<Kept>,
    /// The images whose traces were not kept.
    pub(crate) dropped: Vec<Image>,
    /// Those images whose processes were still running: process numbers and command lines.
    pub(crate) left: Vec<(u32, String)>,
    /// The programs that it ran and that could not be recorded.
    pub(crate) unreached: Vec<Unreached>,
    /// Processes that still run and have recorded nothing so far.
    pub(crate) silent: Vec<Silent>,
    /// How the program ended.
    pub(crate) status: ExitStatus,
    /// Whether this command passed a signal on to it.
    pub(crate) interrupted: bool,
    /// How long it ran.
    pub(crate) elapsed: Duration,
    /// Measured cost of recording, ns per event.
    pub(crate) event_cost_ns: Option<f64>,
}

/// The message about a recording that has just lost events.
pub(crate) const CUT_SHORT: &str = "the recording is cut short (its recorder has said why)";

impl Recorded {
    /// Says on stderr what was recorded, and where, if it `stays` there.
    pub(crate) fn tell(&self, stays: bool) {
        for kept in &self.kept {
            let place = match stays {
                true => format!("{} {}:", kept.done, kept.path.display()),
                false => "recorded".to_owned(),
            };
            eprintln!(
                "{place} {} of `{}`, {} bytes",
                counted(kept.sealed.rows, "event"),
                shortened(&kept.header.command),
                kept.sealed.file_bytes,
            );
            if kept.header.lost_events > 0 {
                eprintln!("hectare: {CUT_SHORT}");
            }
            if kept.sealed.damage.any() {
                eprintln!("hectare: {}", kept.sealed.damage);
            }
        }
        let kept = self.kept.iter().filter(|kept| kept.still_runs);
        let kept = kept.map(|kept| (kept.header.pid, &kept.header.command));
        for (pid, command) in kept.chain(self.left.iter().map(|(pid, command)| (*pid, command))) {
            eprintln!(
                "hectare: process {pid}, `{}`, still runs: its trace ends here. What it does later is \
                 recorded when it runs in the foreground, or is ended by the command",
                shortened(command)
            );
        }
        for unreached in &self.unreached {
            eprintln!("hectare: {}", unreached.explain());
        }
        for silent in &self.silent {
            eprintln!("hectare: {}", silent.explain());
        }
        let cost = match self.event_cost_ns {
            Some(ns) => format!("recording costs {ns:.1} ns an event on this machine"),
            None => "what recording costs could not be measured".to_owned(),
        };
        eprintln!("the program ran {:.2} s; {cost}", self.elapsed.as_secs_f64());
        if !self.dropped.is_empty() {
            let count = self.dropped.len();
            eprintln!("{count} more recorded and not kept (`hectare record --all` keeps them):");
            const NAMED: usize = 5;
            for image in self.dropped.iter().take(NAMED) {
                let events = counted(image.rows, "event");
                eprintln!("  {events} of `{}`", shortened(&image.command));
            }
            if count > NAMED {
                eprintln!("  and {} more", count - NAMED);
            }
        }
    }
}

/// The words of a command line, as shown to the user.
fn words(command: &[OsString]) -> String {
    command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// The beginning of a command line.
pub(crate) fn shortened(command: &str) -> String {
    const MOST: usize = 100;
    let command = command.split_whitespace().collect::<Vec<_>>().join(" ");
    if command.chars().count() <= MOST {
        return command;
    }
    let beginning: String = command.chars().take(MOST).collect();
    beginning + " …"
}

/// Records `command` into `output`.
///
/// # Errors
/// When the recorder is missing, cannot be preloaded into the program, the program cannot be
/// started, nothing could be recorded, or the trace cannot be written.
pub(crate) fn record(
    output: &Path,
    command: &[OsString],
    options: Options,
) -> anyhow::Result<Recorded> {
    let (program, arguments) = command.split_first().context("no program given after `--`")?;
    let path = program::resolve(program)?;
    let program = program.display();
    if let Some(obstacle) = program::obstacle(&path)? {
        bail!("{}", obstacle.explain(&path));
    }
    let recorder = subject::recorder_library()?;
    let output = std::path::absolute(output).context("the output's path")?;
    let folder = output.parent().context("the output has no folder")?;
    ensure!(folder.is_dir(), "the folder {} does not exist", folder.display());
    let mut raw = output.clone().into_os_string();
    raw.push(".raw");
    let raw = PathBuf::from(raw);
    let claim = Claim::on(&raw, &output)?;
    clear_away_what_was_left(&raw)?;
    let signals = Signals::watch()?;
    let event_cost_ns = cost::event_cost_ns(&recorder, folder);
    if signals.any_came() {
        bail!(Exit::interrupted("interrupted before the program was started"));
    }
    let event_cost_ns = event_cost_ns?;

    let clock = ClockRate::start();
    let start = Instant::now();
    let child = preloaded(Command::new(&command[0]).args(arguments), &recorder, &raw)
        .spawn()
        .with_context(|| format!("cannot start `{program}`"))?;
    let mut lookout = Lookout::for_process(child.id());
    let (status, interrupted) = signals.wait(child, || lookout.look())?;
    let elapsed = start.elapsed();
    // From here on signals act as before, so that sealing can be interrupted.
    drop(signals);

    let found = what_was_recorded(&raw, folder, &command[0], status, options.of.as_deref())?;
    let silent = unreached::silent(&raw, |pid| found.iter().any(|image| image.pid == pid));
    let sealing = SealOptions {
        source_ticks_per_second: clock.ticks_per_second(),
        tick_ns: options.tick_ns,
        event_cost_ps: event_cost_ns.map_or(0, |ns| (ns * 1000.0) as u64),
    };
    let (kept, dropped) = seal_all(found, &output, &options, sealing)?;
    let left = dropped.iter().filter(|image| image.still_runs());
    let left = left.map(|image| (image.pid, image.command.clone())).collect();
    images::remove(&raw)?;
    // From here on no process begins a file. A process that a daemon started may have begun one
    // since the removal above.
    drop(claim);
    images::remove(&raw)?;
    Ok(Recorded {
        kept,
        dropped,
        left,
        unreached: lookout.unreached(),
        silent,
        status,
        interrupted,
        elapsed,
        event_cost_ns,
    })
}

/// Removes the files named `raw`.PID.N that a killed recording left.
///
/// # Errors
/// When one of them has events, which could be rescued, or cannot be removed.
fn clear_away_what_was_left(raw: &Path) -> anyhow::Result<()> {
    if let Some(image) = images::found(raw)?.into_iter().find(|image| image.rows > 0) {
        let path = image.path.display();
        bail!(
            "{path} has {} that a killed recording left: `hectare info {path} --salvage FILE.hxt` makes a \
             trace of what is in it; then remove it, or record into another file",
            counted(image.rows, "event")
        );
    }
    for (path, ..) in images::files(raw)? {
        eprintln!("note: {}, which a killed recording had left, is removed", path.display());
    }
    images::remove(raw)
}

/// What the recorder has left in files named `raw`.PID.N of `folder`. The first image is the one
/// whose command line contains `of`, or the one that did the work.
///
/// # Errors
/// When the recorder left nothing, or no command line contains `of`. The files are then removed.
fn what_was_recorded(
    raw: &Path,
    folder: &Path,
    program: &OsStr,
    status: ExitStatus,
    of: Option<&str>,
) -> anyhow::Result<Vec<Image>> {
    let program = program.display();
    let mut found = images::found(raw)?;
    if found.is_empty() {
        let begun = !images::files(raw)?.is_empty();
        images::remove(raw)?;
        ensure!(
            !begun,
            "`{program}` ({status}) recorded nothing: its recording could not be begun in {}, as \
             on a full disk",
            folder.display()
        );
        bail!(
            "`{program}` ({status}) recorded nothing: its recorder could not begin (it says so above), \
             or it allocates nothing through malloc, goes on in the background (a daemon: record it in \
             the foreground), or executes a program that is linked statically or runs with other rights \
             (set-user-id), where preloading is ignored"
        );
    }
    if let Some(text) = of {
        let Some(place) = found.iter().position(|image| image.command.contains(text)) else {
            let all: Vec<_> = found.iter().map(|image| shortened(&image.command)).collect();
            images::remove(raw)?;
            bail!("no command line holds `{text}`; recorded were: `{}`", all.join("`, `"));
        };
        found[..=place].rotate_right(1);
    }
    Ok(found)
}

/// Seals the first image into `output` and, if `all` are wanted, the others beside it. Returns the
/// traces, and the images that were not sealed.
fn seal_all(
    found: Vec<Image>,
    output: &Path,
    options: &Options,
    sealing: SealOptions,
) -> anyhow::Result<(Vec<Kept>, Vec<Image>)> {
    let mut kept = Vec::new();
    let mut dropped = Vec::new();
    for (nth, image) in found.into_iter().enumerate() {
        if nth > 0 && !options.all {
            dropped.push(image);
            continue;
        }
        let path = if nth == 0 {
            output.to_path_buf()
        } else {
            output.with_extension(format!("{}.hxt", image.suffix()))
        };
        if image.rows > LONG_ROWS {
            eprintln!(
                "sealing {} events; until that is done they are in {}, which `hectare info \
                 --salvage` makes a trace of",
                image.rows,
                image.path.display()
            );
        }
        let done = place::done(&path);
        // The place was checked before the program ran, and the program may have made something
        // there.
        let sealed = place::check(&path, Kind::Trace)
            .map_err(anyhow::Error::msg)
            .and_then(|()| place::replace(&path, |new| Ok(seal(&image.path, new, sealing)?)));
        let sealed = sealed.with_context(|| unsealed(&image.path, &path, options.stays))?;
        let header = Trace::open(&path)?.header().clone();
        kept.push(Kept { done, path, header, sealed, still_runs: image.still_runs() });
    }
    Ok((kept, dropped))
}

/// The message if `raw` cannot be sealed.
fn unsealed(raw: &Path, path: &Path, stays: bool) -> String {
    let (raw, path) = (raw.display(), path.display());
    let advice = if stays {
        format!(
            "the first is kept: `hectare info {raw} --salvage {path}` makes the trace of it once \
             nothing is in the way"
        )
    } else {
        "neither is kept: `--keep F.hxt`, or TMPDIR, has the recording elsewhere".to_owned()
    };
    format!("sealing {raw} into {path} ({advice})")
}

fn preloaded<'a>(command: &'a mut Command, recorder: &Path, raw: &Path) -> &'a mut Command {
    let mut preload = recorder.as_os_str().to_owned();
    // The program would use an allocator that is already preloaded, so that comes next.
    if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|value| !value.is_empty()) {
        preload.push(":");
        preload.push(before);
    }
    command.env("LD_PRELOAD", preload).env(unreached::TRACE, raw)
}

/// How fast the recorder's clock runs, measured here over the time of the recording.
struct ClockRate {
    ticks: u64,
    at: Instant,
}

impl ClockRate {
    fn start() -> Self {
        Self { ticks: clock::ticks(), at: Instant::now() }
    }

    /// Ticks a second; 0 (use the recorder's own estimate) if the clock is not the processor's.
    fn ticks_per_second(&self) -> u64 {
        if !clock::IS_COUNTER {
            return 0;
        }
        let least = Duration::from_millis(20);
        std::thread::sleep(least.saturating_sub(self.at.elapsed()));
        let ticks = (clock::ticks() - self.ticks) >> RECORDER_CLOCK_SHIFT;
        (ticks as f64 / self.at.elapsed().as_secs_f64()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_afterwards_is_not_promised() {
        let told = |stays| unsealed(Path::new("F.hxt.raw.7.0"), Path::new("F.hxt"), stays);
        let kept = told(true);
        assert!(kept.contains("`hectare info F.hxt.raw.7.0 --salvage F.hxt`"), "{kept}");
        let gone = told(false);
        assert!(gone.contains("`--keep F.hxt`") && !gone.contains("salvage"), "{gone}");
    }
}
