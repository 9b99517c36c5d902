//! Instructions and simulated cache misses per operation, counted by callgrind.
//!
//! Counts do not depend on what else the machine does, so they show small differences between fast
//! paths that times cannot. Each subject runs twice, the second time with twice the operations. The
//! difference of the counts belongs to the additional operations alone; the start of the process
//! and of the heap drops out.
//!
//! 1. *In the library*: instructions in the subject's own code (for `system` in the C library).
//! 2. *In all*: including the harness, which writes and checks the stamps and makes the list of
//!    operations. This part is the same for every subject.
//! 3. Cache misses are those in valgrind's model of this machine's first and last level, in all.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, ensure};

use super::{Outcome, Parameters, last_line};
use crate::cmd::child::ChildRecord;
use crate::report::{Report, Row};
use crate::scratch::Scratch;
use crate::subject::Subject;

/// A program takes some fifty times as long under callgrind, so this many times fewer operations
/// are done.
const FEWER: u64 = 50;

/// Counts one workload on every subject. `ops` are the operations of a timed run.
///
/// A subject that breaks under valgrind is left out, with a note.
///
/// # Errors
/// When a workload asked for twice the operations does not do more.
pub(crate) fn count(
    name: &str,
    parameters: &Parameters,
    subjects: &[Subject],
) -> anyhow::Result<Report> {
    let mut report = Report::new(&format!("bench {name} --callgrind"));
    let once = Parameters { ops: (parameters.ops / FEWER).max(1), ..parameters.clone() };
    let twice = Parameters { ops: once.ops * 2, ..once.clone() };
    report.parameter("ops", once.ops);
    report.parameter("threads", once.threads);
    for subject in subjects {
        let both = run(name, &once, subject).and_then(|few| Ok((few, run(name, &twice, subject)?)));
        let ((less, few), (more, many)) = match both {
            Ok(both) => both,
            // Some heaps do not start under valgrind. The others are counted all the same.
            Err(error) => {
                report
                    .rows
                    .push(Row::new(&subject.name, name).with("broken", format!("{error:#}")));
                report.notes.push(format!("skipped: {error:#}"));
                continue;
            }
        };
        let ops = more_ops(name, &few, &many)? as f64;
        let per_op = |count: fn(&Counts) -> u64| (count(&more) as f64 - count(&less) as f64) / ops;
        report.rows.push(
            Row::new(&subject.name, name)
                .with("library_instructions", per_op(|counts| counts.library))
                .with("all_instructions", per_op(|counts| counts.instructions))
                .with("first_level_misses", per_op(|counts| counts.first_level_misses))
                .with("last_level_misses", per_op(|counts| counts.last_level_misses)),
        );
    }
    report.notes.push(
        "per operation, by valgrind's callgrind: the difference of a run and one twice as long; \
         cache misses are simulated"
            .to_owned(),
    );
    Ok(report)
}

/// How many more operations `many` has done than `few`.
///
/// # Errors
/// When `many` has not done more.
fn more_ops(name: &str, few: &Outcome, many: &Outcome) -> anyhow::Result<u64> {
    let more = many.ops.saturating_sub(few.ops);
    ensure!(more > 0, "`{name}` does not do more when it is asked for more");
    Ok(more)
}

/// What one run counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) instructions: u64,
    library: u64,
    pub(super) first_level_misses: u64,
    pub(super) last_level_misses: u64,
}

/// Runs this command under callgrind with `options`, and with the arguments that `complete` adds.
/// Returns its output and the profile.
fn profiled(
    options: &[&str],
    complete: impl FnOnce(&mut Command),
) -> anyhow::Result<(Output, anyhow::Result<String>)> {
    let scratch = Scratch::new()?;
    let file = scratch.path().join("callgrind.out");
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--cache-sim=yes", "--compress-strings=no"])
        .args(["--compress-pos=no", "--quiet"])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .args(options)
        .arg(std::env::current_exe().context("finding this executable")?)
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null());
    complete(&mut command);
    let needed = "valgrind is needed to count instructions, and cannot be started";
    let output = command.output().context(needed)?;
    Ok((output, std::fs::read_to_string(&file).context("reading callgrind's output")))
}

/// The same for a study of `subject`, which must not fail. Returns the profile.
pub(super) fn profile_of_study(
    subject: &str,
    options: &[&str],
    complete: impl FnOnce(&mut Command),
) -> anyhow::Result<String> {
    let (output, profile) = profiled(options, complete)?;
    ensure!(
        output.status.success(),
        "{subject} under valgrind ended with {}: {}",
        output.status,
        last_line(&output.stderr)
    );
    profile
}

fn run(
    name: &str,
    parameters: &Parameters,
    subject: &Subject,
) -> anyhow::Result<(Counts, Outcome)> {
    let parameters = serde_json::to_string(parameters)?;
    let environment = subject.environment()?;
    let (output, profile) = profiled(&[], |command| {
        command.args(["child", "--fd", "1", "bench", name, &parameters]);
        command.envs(environment);
        command.envs(subject.library.as_ref().map(|library| ("LD_PRELOAD", library)));
    })?;
    let (outcome, _) = ChildRecord::done(&output.stdout).with_context(|| {
        let (status, last) = (output.status, last_line(&output.stderr));
        format!("{} in {name} under valgrind ({status}) {last}", subject.name)
    })?;
    let object = subject.library.as_deref().unwrap_or(Path::new("libc.so.6"));
    Ok((parse(&profile?, object)?, outcome))
}

/// Sums of a callgrind profile with uncompressed names and positions. `object` is the library,
/// named by its file name, whose share is reported.
///
/// A cost line is `LINE COUNT…` in the order of the `events:` header. The line after `calls=` is
/// the cost of the callee, which is counted there.
pub(super) fn parse(text: &str, object: &Path) -> anyhow::Result<Counts> {
    let file = object.file_name().context("a library has a name")?.to_string_lossy();
    let mut events: Vec<&str> = Vec::new();
    let mut counts = Counts::default();
    let (mut inside, mut is_call) = (false, false);
    for line in text.lines() {
        if let Some(names) = line.strip_prefix("events:") {
            events = names.split_whitespace().collect();
        } else if let Some(path) = line.strip_prefix("ob=") {
            inside = Path::new(path).file_name().is_some_and(|name| *name == *file);
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            if std::mem::take(&mut is_call) {
                continue;
            }
            for (event, number) in events.iter().zip(line.split_whitespace().skip(1)) {
                let number: u64 =
                    number.parse().with_context(|| format!("the cost line `{line}`"))?;
                match *event {
                    "Ir" => {
                        counts.instructions += number;
                        counts.library += if inside { number } else { 0 };
                    }
                    "I1mr" | "D1mr" | "D1mw" => counts.first_level_misses += number,
                    "ILmr" | "DLmr" | "DLmw" => counts.last_level_misses += number,
                    _ => {}
                }
            }
        }
    }
    ensure!(events.contains(&"Ir"), "callgrind's output names no events");
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_summed_without_the_cost_of_callees() {
        let text = "events: Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw\n\
                    ob=/usr/bin/hectare\nfl=a.rs\nfn=main\n10 5 1 0 1\n\
                    cob=/x/libpeer_a.so\ncfn=malloc\ncalls=2 0\n11 100 9 9 9 9 9 9 9 9\n\
                    12 7\nob=/x/libpeer_a.so\nfn=malloc\n0 100 0 0 0 3 4 0 1 2\n";
        let counts = parse(text, Path::new("/x/libpeer_a.so")).unwrap();
        assert_eq!(
            counts,
            Counts { instructions: 112, library: 100, first_level_misses: 8, last_level_misses: 3 }
        );
        assert!(parse("no profile", Path::new("/x/a.so")).is_err());
    }

    #[test]
    fn a_run_that_does_less_is_an_error() {
        let of = |ops| Outcome { ops, ..Outcome::default() };
        assert_eq!(more_ops("x", &of(3), &of(5)).unwrap(), 2);
        assert!(more_ops("x", &of(5), &of(5)).is_err());
        assert!(more_ops("x", &of(5), &of(3)).is_err());
    }
}
