//! Flame graphs: where the time of a workload goes, sampled by perf and drawn by inferno.
//!
//! If the machine exposes no hardware counters, perf samples by processor time (`cpu-clock`), which
//! is all a flame graph needs. Stacks are unwound from copies of the stack, since code without
//! frame pointers cannot be unwound otherwise. Samples carry the clock of the window of
//! measurement, so that the workload's preparation before it and checks after it are left out.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow, ensure};
use inferno::collapse::Collapse;
use inferno::collapse::perf::{Folder, Options as FoldOptions};
use inferno::flamegraph::{self, Options};

use super::{Parameters, last_line};
use crate::cmd::child::ChildRecord;
use crate::output::place::{self, Kind};
use crate::say::counted;
use crate::scratch::Scratch;
use crate::subject::Subject;

/// Samples a second: enough for half a second of work, and not in step with a timer's rate.
const SAMPLES_PER_S: u32 = 1999;

/// How much timed work a graph needs, ns.
const ENOUGH_NS: u64 = 1_000_000_000;

/// A short workload is run again, but not more often than this.
const MOST_RUNS: u32 = 20;

/// The file in `folder` for the graph of a subject. A slash in the subject's name does not create a
/// folder.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn place_in(folder: &Path, name: &str, subject: &Subject) -> anyhow::Result<PathBuf> {
    let path = folder.join(format!("{name}-{}.svg", subject.name.replace('/', "-")));
    place::check(&path, Kind::Flame).map_err(|why| anyhow!("{} {why}", path.display()))?;
    Ok(path)
}

/// Runs the workload on `subject` under perf and draws the graph into the file at `path`.
///
/// # Errors
/// When perf may not sample here, or the file cannot be written.
pub(crate) fn draw(
    name: &str,
    parameters: &Parameters,
    subject: &Subject,
    path: &Path,
) -> anyhow::Result<()> {
    let (mut stacks, mut timed_ns, mut runs) = (Vec::new(), 0, 0);
    while timed_ns < ENOUGH_NS && runs < MOST_RUNS {
        timed_ns += sample(name, parameters, subject, &mut stacks)?;
        runs += 1;
    }
    let mut folded = Vec::new();
    Folder::from(FoldOptions::default())
        .collapse(&stacks[..], &mut folded)
        .context("folding the stacks")?;
    let folded = String::from_utf8_lossy(&folded).into_owned();
    ensure!(!folded.is_empty(), "perf took no sample of {name} on {}", subject.name);
    let mut options = Options::default();
    options.title = format!("{name} on {}", subject.name);
    options.subtitle = Some(format!(
        "{}, {} each, {}; processor time of the timed section alone",
        counted(parameters.threads, "thread"),
        counted(parameters.ops, "operation"),
        counted(runs, "run")
    ));
    options.count_name = "ns".to_owned();
    options.notes = place::FLAME_NOTE.to_owned();
    options.deterministic = true;
    place::replace(path, |new| {
        flamegraph::from_lines(&mut options, folded.lines(), File::create(new)?).context("drawing")
    })
    .with_context(|| format!("writing {}", path.display()))
}

/// Runs the workload once, appends the stacks sampled in its timed section, and returns that
/// section's length, ns.
fn sample(
    name: &str,
    parameters: &Parameters,
    subject: &Subject,
    stacks: &mut Vec<u8>,
) -> anyhow::Result<u64> {
    let scratch = Scratch::new()?;
    let data = scratch.path().join("perf.data");
    let mut record = Command::new("perf");
    record
        .args(["record", "--quiet", "--event", "cpu-clock", "--call-graph", "dwarf,4096"])
        .args(["--clockid", "CLOCK_MONOTONIC"])
        .args(["--freq", &SAMPLES_PER_S.to_string(), "--output"])
        .arg(&data)
        // `env` sets the preload, so that perf itself runs on the system's allocator.
        .args(["--", "env"]);
    for (key, value) in subject.environment()? {
        record.arg(format!("{key}={value}"));
    }
    if let Some(library) = &subject.library {
        record.arg(format!("LD_PRELOAD={}", library.display()));
    }
    record
        .arg(std::env::current_exe().context("finding this executable")?)
        .args(["child", "--fd", "1", "bench", name])
        .arg(serde_json::to_string(parameters)?)
        .env_remove("LD_PRELOAD");
    let output = record.stdin(Stdio::null()).output().context("starting perf")?;
    ensure!(output.status.success(), "perf record of {name}: {}", last_line(&output.stderr));
    let (outcome, _) = ChildRecord::done(&output.stdout)
        .with_context(|| format!("{} in {name} under perf", subject.name))?;
    let window = outcome.window.with_context(|| format!("{name} has no timed section"))?;
    let timed = format!("{:.9},{:.9}", window.start_ns as f64 / 1e9, window.end_ns as f64 / 1e9);
    let script = Command::new("perf")
        .args(["script", "--no-inline", "--time", &timed, "--input"])
        .arg(&data)
        .output()
        .context("starting perf script")?;
    ensure!(script.status.success(), "perf script: {}", last_line(&script.stderr));
    stacks.extend(script.stdout);
    Ok(window.end_ns - window.start_ns)
}
