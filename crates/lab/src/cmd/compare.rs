//! `hectare compare`: every allocator on the bundled traces, or on programs. This is the main job:
//! what `hectare` does without a verb.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use hectare_trace::{Histogram, LivePoint, Summary};

use super::Exit;
use super::contesting::{ContestArgs, Linked};
use crate::contest::analysis::ALL_CASES;
use crate::contest::{Case, Looks, Work};
use crate::environment;
use crate::list;
use crate::machine;
use crate::output::place::{self, Kind};
use crate::output::table;
use crate::programs::{self, Program};
use crate::replay::{self, Ideal, Mode, Touch};
use crate::report::Series;
use crate::runner;
use crate::subject::program::beside_malloc;
use crate::subject::{self, program};

/// The arguments of `hectare compare`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    contest: ContestArgs,
    /// Traces to replay instead of the bundled ones, separated by commas
    #[arg(long = "trace", value_name = "FILE.hxt,…")]
    traces: Vec<PathBuf>,
    /// Programs to measure instead of traces, each a row: a file with lines like `NAME: CMD…`, words
    /// divided as in a shell
    #[arg(long, value_name = "FILE", conflicts_with_all = ["traces", "command"])]
    programs: Option<PathBuf>,
    /// Order and pace of the replays
    #[arg(long, value_enum, default_value = "speed")]
    mode: Mode,
    /// What a replay writes into each block
    #[arg(long, value_enum, default_value = "page")]
    touch: Touch,
    /// A program with its arguments, measured instead of traces
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the verb.
pub(crate) fn run(mut args: Args) -> anyhow::Result<()> {
    runner::tell_early_end();
    if !args.command.is_empty() {
        if !args.traces.is_empty() {
            bail!(Exit::misused(
                "a program and --trace are given: one of them is measured at a time"
            ));
        }
        args.refuse_replays()?;
        args.contest.linked = Linked::of(&args.command[0]);
        args.contest.remarks.extend(beside_malloc(&args.command[0]));
        return args.contest.hold("compare", vec![program_case(&args.command)?], Looks::default());
    }
    ensure!(
        std::env::args_os().next_back().is_none_or(|last| last != "--"),
        Exit::misused("no program is given after `--`")
    );
    if let Some(list) = &args.programs {
        args.refuse_replays()?;
        let mut cases = Vec::new();
        for Program { name, command } in programs::read(list)? {
            let case =
                program_case(&command).with_context(|| format!("{}: {name}", list.display()))?;
            let linked = Linked::of(&command[0]).map(|linked| linked.note());
            args.contest.remarks.extend(linked.into_iter().chain(beside_malloc(&command[0])));
            cases.push(Case { name, ..case });
        }
        return args.contest.hold_to_best_peer("compare", cases);
    }
    args.contest.refuse_ignore_failure()?;
    args.traces = list::files(&args.traces);
    let bundled = args.traces.is_empty();
    if bundled {
        args.traces = bundled_traces()?;
        // The main job leaves its report behind even when no file was asked for.
        let outputs = &mut args.contest.outputs.files;
        leave(&mut outputs.json, "hectare-report.json", Kind::Json)?;
        leave(&mut outputs.report, "hectare-report.html", Kind::Html)?;
    }
    let cases = trace_cases(&args.traces, args.mode, args.touch)?;
    args.contest.hold("compare", cases, Looks { latency: true, map: false })
}

impl Args {
    /// Refuses options for replays if programs are measured.
    fn refuse_replays(&self) -> anyhow::Result<()> {
        ensure!(
            self.mode == Mode::Speed && self.touch == Touch::Page,
            Exit::misused(
                "--mode and --touch are for replays: a program runs and writes as it does"
            )
        );
        Ok(())
    }
}

/// Names a file to be written although nobody asked for one.
fn leave(file: &mut Option<PathBuf>, name: &str, kind: Kind) -> anyhow::Result<()> {
    if file.is_none() {
        *file = Some(place::by_default(name, kind, "--json and --report name other places")?);
    }
    Ok(())
}

/// The case of a user's program.
///
/// # Errors
/// When there is no such program, or when preloading cannot reach it.
pub(crate) fn program_case(command: &[OsString]) -> anyhow::Result<Case> {
    let program = command.first().context("no program is given")?;
    let path = program::resolve(program)?;
    if let Some(obstacle) = program::obstacle(&path)? {
        bail!("{}", obstacle.explain(&path));
    }
    let name = Path::new(program).file_name().unwrap_or(program).to_string_lossy();
    Ok(Case::new(name, Work::Program(command.to_vec())))
}

/// A name for each trace: that of its file, or its whole path if another file has the same name.
pub(crate) fn trace_names(paths: &[PathBuf]) -> Vec<String> {
    let name = |path: &PathBuf| {
        let stem = path.file_stem();
        let mut others = paths.iter().filter(|&other| other != path);
        let alone =
            !others.any(|other| other.file_stem() == stem) && stem != Some(ALL_CASES.as_ref());
        let name = if alone { stem.unwrap_or_default() } else { path.as_os_str() };
        name.to_string_lossy().into_owned()
    };
    paths.iter().map(name).collect()
}

/// The cases of several traces, each with a [name](trace_names) of its own.
///
/// # Errors
/// When one cannot be read, or is given twice.
pub(crate) fn trace_cases(
    paths: &[PathBuf],
    mode: Mode,
    touch: Touch,
) -> anyhow::Result<Vec<Case>> {
    let mut cases: Vec<Case> = Vec::new();
    for (path, name) in paths.iter().zip(trace_names(paths)) {
        let case = trace_case(path, &name, mode, touch)?;
        let is_same = |other: &Case| match (&other.work, &case.work) {
            (Work::Trace { path: one, .. }, Work::Trace { path: two, .. }) => one == two,
            _ => false,
        };
        ensure!(
            !cases.iter().any(is_same),
            Exit::misused(format!("{} is given twice", path.display()))
        );
        cases.push(case);
    }
    Ok(cases)
}

/// The case of a trace.
///
/// # Errors
/// When the trace cannot be read.
pub(crate) fn trace_case(
    path: &Path,
    name: &str,
    mode: Mode,
    touch: Touch,
) -> anyhow::Result<Case> {
    runner::tell_early_end();
    let summary = replay::summary(path)?;
    let available_bytes = machine::available_bytes(&environment::system_root());
    if let Some(why) = too_large(&summary, touch, available_bytes) {
        bail!("{name}: {why}");
    }
    let path = path.canonicalize().with_context(|| path.display().to_string())?;
    Ok(Case {
        name: name.to_owned(),
        known: known(&summary, name),
        ideal: Some(Ideal::of(&summary)),
        work: Work::Trace { path, mode, touch, points: 0 },
    })
}

/// Why a trace cannot be replayed here, if it cannot. A replay writes to every page of a block,
/// also to pages that the program never touched.
fn too_large(summary: &Summary, touch: Touch, available_bytes: u64) -> Option<String> {
    let is_written = touch != Touch::None && available_bytes > 0;
    (is_written && summary.peak_bytes > available_bytes).then(|| {
        format!(
            "its replay would write to {}, and {} of memory are available here. `hectare compare -- CMD` measures \
             the program itself, `hectare replay --touch none` replays it without writing",
            table::bytes(summary.peak_bytes as f64),
            table::bytes(available_bytes as f64),
        )
    })
}

/// What a trace says about itself, as plots.
fn known(summary: &Summary, workload: &str) -> Vec<Series> {
    let series = |plot: &str, subject: &str, x_name: &str, y_name: &str, points| Series {
        plot: plot.to_owned(),
        subject: subject.to_owned(),
        workload: workload.to_owned(),
        x_name: x_name.to_owned(),
        y_name: y_name.to_owned(),
        points,
    };
    let bars = |histogram: &Histogram| {
        histogram.buckets().map(|(lower, count)| [lower as f64, count as f64]).collect()
    };
    let rows = summary.live.last().map_or(1, |last| last.rows) as f64;
    let over_time = |bytes: fn(&LivePoint) -> u64| {
        summary.live.iter().map(|point| [point.rows as f64 / rows, bytes(point) as f64]).collect()
    };
    let curve = |subject: &str, points| {
        series("resident over time", subject, "share of the run", "resident_bytes", points)
    };
    vec![
        series("sizes", "ideal", "size_bytes", "objects", bars(&summary.sizes)),
        series("lifetimes", "ideal", "lifetime_ns", "objects", bars(&summary.lifetimes_ns)),
        curve("live", over_time(|point| point.live_bytes)),
        curve("ideal", over_time(|point| point.rounded_bytes)),
    ]
}

/// The traces of the repository, by name.
///
/// # Errors
/// When the repository's folder is not found.
pub(crate) fn bundled_traces() -> anyhow::Result<Vec<PathBuf>> {
    let folder = subject::repository_folder("traces")
        .context("the folder `traces` is not here; run in the repository, or give --trace FILE")?;
    let mut traces: Vec<PathBuf> = std::fs::read_dir(&folder)
        .with_context(|| folder.display().to_string())?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "hxt"))
        .collect();
    traces.sort();
    ensure!(!traces.is_empty(), "there is no trace (*.hxt) in {}", folder.display());
    Ok(traces)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use hectare_trace::{Event, FileHeader, ThreadId, Writer};

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn what_memory_cannot_hold_is_not_replayed() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().join("large.hxt");
        let mut writer = Writer::new(File::create(&path).unwrap(), FileHeader::new()).unwrap();
        for now in 0..4 {
            let half = Event::Malloc { size_bytes: 1 << 46 };
            writer.event(ThreadId(1), now, &half, false).unwrap();
        }
        writer.finish().unwrap();
        let case = |touch| trace_case(&path, "large", Mode::Speed, touch);
        let refused = case(Touch::Page).unwrap_err().to_string();
        let expected = "large: its replay would write to 262144.00 GiB, and ";
        assert!(refused.starts_with(expected), "{refused}");
        assert!(case(Touch::None).is_ok());
    }
}
