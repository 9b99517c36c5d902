//! `hectare run`: one program under one allocator, measured once.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{bail, ensure};

use super::compare::program_case;
use super::contesting::{Linked, environment_notes, tell_environments};
use super::{Exit, OrMisused, pass_on_failure};
use crate::output::Outputs;
use crate::report::{Report, Row};
use crate::runner::{self, Failure, Job, Shortfall};
use crate::subject::Subject;
use crate::subject::program::beside_malloc;
use crate::within::within;

/// The arguments of `hectare run`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The allocator: a name, or NAME=/path/lib.so
    #[arg(short, long, value_name = "A", default_value = "hectare")]
    allocator: String,
    /// How long the program may take, s [default: no limit]
    #[arg(long, value_name = "S", value_parser = within(1_u64, u64::MAX))]
    timeout: Option<u64>,
    #[command(flatten)]
    outputs: Outputs,
    /// The program with its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the verb; the program's own exit code is passed on.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let is_list = args.allocator.contains(',') && !args.allocator.contains(['=', '/']);
    let message = "`run` takes one allocator; `hectare compare -a A,B -- CMD` takes several";
    ensure!(!is_list, Exit::misused(format!("--allocator {}: {message}", args.allocator)));
    let subject = Subject::parse(&args.allocator).or_misused()?;
    let case = program_case(&args.command)?;
    let program = args.command[0].clone();
    let job = Job::Program { command: args.command, planted_ns: 0, has_streams: true };
    let patience = args.timeout.map_or(Duration::MAX, Duration::from_secs);
    let measured = match runner::execute(&subject, &job, Duration::from_millis(2), patience)? {
        Ok(measured) => measured,
        Err(Failure::Interrupted) => bail!(Exit::interrupted("interrupted")),
        Err(Failure::Broken(why)) => bail!("{} under {}: {why}", case.name, subject.name),
    };
    let shortfall = measured.served.shortfall().filter(|_| subject.library.is_some());
    if let Some(Shortfall::Whole(why)) = &shortfall {
        bail!("{} under {}: {why}", case.name, subject.name);
    }
    let usage = measured.usage;
    let mut row = Row::new(&subject.name, &case.name)
        .with("time_ns", measured.wall_ns)
        .with("peak_bytes", measured.peak_bytes);
    let span = measured.samples.first().zip(measured.samples.last());
    if let Some((first, last)) = span
        && let Some(mean) = runner::mean_bytes(&measured.samples, first.at_ns, last.at_ns)
    {
        row = row.with("mean_bytes", mean);
    }
    row = row
        .with("user_ns", usage.user_ns)
        .with("system_ns", usage.system_ns)
        .with("minor_faults", usage.minor_faults)
        .with("major_faults", usage.major_faults)
        .with("voluntary_switches", usage.voluntary_switches)
        .with("involuntary_switches", usage.involuntary_switches)
        .with("steal_ns", measured.steal_ns)
        .with("exit_code", runner::exit_code(measured.status));
    if subject == Subject::system()
        && let Some(linked) = Linked::of(&program)
    {
        row = row.with("allocator", linked.name());
    }
    let mut report = Report::new("run");
    report.rows.push(row);
    report.notes.extend(beside_malloc(&program));
    tell_environments(&mut report, std::iter::once(&subject))?;
    report.notes.extend(environment_notes());
    if report.rows[0].number("mean_bytes").is_none() {
        report.notes.push("too short to see its mean resident memory".to_owned());
    }
    report.notes.extend(shortfall.map(|shortfall| match shortfall {
        Shortfall::Part(part) => {
            format!("not all that it runs had {} loaded: {part}", subject.name)
        }
        _ => "too short to see whether all that it runs loads the library".to_owned(),
    }));
    // The program's output is on stdout: the figures go to stderr.
    eprint!("{}", crate::output::table::text(&report));
    args.outputs.write(&report)?;
    pass_on_failure(&case.name, measured.status)
}
