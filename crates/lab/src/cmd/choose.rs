//! `hectare choose`: records a program, replays it on every allocator found, and says in words
//! which is faster and which leaner, by how much, and how certain that is.
//!
//! ```text
//!  CMD ──record──▶ images ──which did the work?──▶ trace ──replay on all──▶ verdict in words
//!                                                                              │ --check
//!                  CMD itself under each allocator ◀───────────────────────────┘ same direction?
//! ```

mod check;
mod verdict;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use super::compare::{program_case, trace_case};
use super::contesting::{ContestArgs, Linked};
use super::record::{self, Options, Recorded, Silent, Unreached, shortened};
use super::{BROKEN, Exit};
use crate::contest::Looks;
use crate::output::place::{self, Kind};
use crate::replay::{Mode, Touch};
use crate::runner::{self, Given};
use crate::say::counted;
use crate::scratch::Scratch;
use crate::subject::program::beside_malloc;
use verdict::{Held, Ran};

/// The arguments of `hectare choose`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    contest: ContestArgs,
    /// Advise on the process whose command line contains this text [default: the one that did most]
    #[arg(long, value_name = "TEXT")]
    of: Option<String>,
    /// Keep the trace in this file
    #[arg(long, value_name = "F.hxt", value_parser = place::writable(Kind::Trace))]
    keep: Option<PathBuf>,
    /// Then measure the program itself under the same allocators, and say where it agrees
    #[arg(long)]
    check: bool,
    /// The program with its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the verb.
pub(crate) fn run(mut args: Args) -> anyhow::Result<()> {
    let program = program_case(&args.command)?;
    args.contest.check_names()?;
    // Before the recording reads it.
    let input = Given::at_first();
    let scratch = Scratch::new()?;
    let path = args.keep.clone().unwrap_or_else(|| scratch.path().join("chosen.hxt"));
    let stays = args.keep.is_some();
    let options = Options { all: false, tick_ns: 100, of: args.of.clone(), stays };
    eprintln!("recording {} …", program.name);
    let recorded = record::record(&path, &args.command, options)?;
    recorded.tell(stays);
    if recorded.interrupted {
        bail!(Exit::interrupted("interrupted"));
    }
    if let Some(why) = runner::failure(recorded.status) {
        let name = &program.name;
        ensure!(
            args.contest.ignore_failure,
            "{name} {why} while it was recorded: advice on a failing program says little \
             (--ignore-failure gives it all the same)"
        );
    }
    let advised = recorded.kept.first().context("nothing was recorded")?;
    let is_last = |unreached: &Unreached| unreached.pids.contains(&advised.header.pid);
    // The trace is then of what the process ran before the unreached program, as `rustup` before
    // `rustc`.
    ensure!(
        args.of.is_some() || !recorded.unreached.iter().any(is_last),
        "no advice: only a launcher of `{}` was recorded, as told above (--of TEXT advises on it all the same)",
        program.name
    );
    let started_as = started_as(&advised.header.command, &args.command[0]);
    args.contest.linked = Linked::of(started_as);
    args.contest.remarks.extend(beside_malloc(started_as));
    let name = Path::new(started_as).file_name().unwrap_or(started_as);
    let name = format!("{}, replayed", name.to_string_lossy());
    let case = trace_case(&path, &name, Mode::Speed, Touch::Page)?;
    let looks = Looks { latency: false, map: true };
    let mut chosen = chosen(&recorded, args.of.is_some())?;
    let mut replayed = None;
    let held = args.contest.hold_and("choose", vec![case], looks, |report| {
        let cut_short = (advised.header.lost_events > 0).then_some(record::CUT_SHORT);
        let held = Held::by(&advised.header);
        let ran = Ran { elapsed: recorded.elapsed, held, cut_short };
        let mut lines = verdict::lines(report, ran);
        lines.append(&mut chosen);
        report.notes.splice(0..0, lines);
        replayed = Some(report.clone());
    });
    // If an allocator broke in the replay, the others are checked all the same.
    let code = held.as_ref().err().and_then(|error| error.downcast_ref::<Exit>()).map(|e| e.code);
    if args.check
        && (held.is_ok() || code == Some(BROKEN))
        && let Some(replayed) = &replayed
    {
        check::run(&args.contest, program, replayed, input)?;
    }
    held
}

/// The name by which the process with the recorded command line `line` was started: `given`, which
/// may contain blanks, or else the first word.
fn started_as<'a>(line: &'a str, given: &'a OsStr) -> &'a OsStr {
    let rest = line.strip_prefix(&*given.to_string_lossy());
    if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')) {
        given
    } else {
        OsStr::new(line.split(' ').next().unwrap_or_default())
    }
}

/// Says which process the advice is about, whether the user named it, and which processes it leaves
/// out.
fn chosen(recorded: &Recorded, is_named: bool) -> anyhow::Result<Vec<String>> {
    let kept = recorded.kept.first().context("nothing was recorded")?;
    let others = recorded.dropped.len();
    let why = if is_named { "chosen by --of from" } else { "the most of" };
    let events = counted(kept.sealed.rows, "event");
    let mut lines = vec![format!(
        "advice on process {}, `{}`: {}, {why} the {} programs recorded",
        kept.header.pid,
        shortened(&kept.header.command),
        events,
        others + 1
    )];
    if others == 0 {
        lines[0] = format!("advice on `{}`: {events}", shortened(&kept.header.command));
    }
    if kept.still_runs {
        lines.push(format!(
            "process {} still ran when the command had ended: the advice is on what it did until then",
            kept.header.pid
        ));
    }
    // The earlier programs of that process come first: a wrapper looks like that.
    let mut dropped: Vec<_> = recorded.dropped.iter().collect();
    dropped.sort_by_key(|image| (image.pid != kept.header.pid, std::cmp::Reverse(image.rows)));
    for image in dropped.into_iter().take(3) {
        lines.push(format!(
            "not on process {}, `{}`: {}{} (--of TEXT chooses by the command line)",
            image.pid,
            shortened(&image.command),
            counted(image.rows, "event"),
            if image.launched { ", before it executed another program" } else { "" }
        ));
    }
    lines.extend(recorded.unreached.iter().map(Unreached::explain));
    lines.extend(recorded.silent.iter().map(Silent::explain));
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_a_blank_in_its_name_is_known() {
        for (line, given, expected) in [
            ("./my dir/a b -x", "./my dir/a b", "./my dir/a b"),
            ("./a b", "./a b", "./a b"),
            ("sleep 1", "sh", "sleep"),
            ("shred x", "sh", "shred"),
        ] {
            assert_eq!(started_as(line, OsStr::new(given)), expected);
        }
    }
}
