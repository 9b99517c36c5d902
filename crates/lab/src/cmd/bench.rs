//! `hectare bench`: a named workload on every allocator, or a study with subjects of its own.

mod seeds;

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use indexmap::IndexMap;

use super::compare::{bundled_traces, trace_case};
use super::contesting::{ContestArgs, first_given};
use super::{Exit, OrMisused};
use crate::bench::{self, Entry, Parameters, Table, Workload, best_peer, callgrind, domain, flame};
use crate::contest::{Case, Looks, Work};
use crate::list;
use crate::machine::Machine;
use crate::output::table;
use crate::replay::{Mode, Touch};
use crate::report::{Report, Row};
use crate::say::counted;
use crate::within::within;
use seeds::Seeds;

/// The arguments of `hectare bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The workload or study; `published` is known benchmarks on 1, 2 and 8 threads, `all` is every
    /// workload but those that only `published` has, `random-phases`, `server` and `misuse`
    name: Option<String>,
    /// Explain every workload and study, with its source and parameters
    #[arg(long, exclusive = true)]
    list: bool,
    #[command(flatten)]
    contest: ContestArgs,
    /// Numbers of threads, separated by commas: one case each
    #[arg(long, value_name = "N,…", value_delimiter = ',',
        value_parser = within(NonZeroUsize::MIN, NonZeroUsize::MAX))]
    threads: Vec<NonZeroUsize>,
    /// Seeds for what the workload draws, like 1-20 or 3,7: one case each
    #[arg(long, value_name = "SEEDS", value_parser = seeds::parse)]
    seeds: Option<Seeds>,
    /// Operations of each thread
    #[arg(long, value_name = "N", value_parser = within(NonZeroU64::MIN, NonZeroU64::MAX))]
    ops: Option<NonZeroU64>,
    /// With `all` and `published`: only the rows of these workloads and bundled traces, separated by
    /// commas
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    only: Vec<String>,
    /// With `all`: the bundled traces are rows of the same run
    #[arg(long)]
    with_traces: bool,
    /// With `all` and `published`: nothing is measured, the rows come from these records of the same
    /// verb (`bench all --json`), separated by commas
    #[arg(long, value_name = "F.json,…")]
    from: Vec<PathBuf>,
    /// Count instructions and simulated cache misses with valgrind instead of measuring time
    #[arg(long)]
    callgrind: bool,
    /// Draw a flame graph for each allocator into this folder, with perf, instead of measuring time
    #[arg(long, value_name = "FOLDER", conflicts_with = "callgrind")]
    flame: Option<PathBuf>,
    /// Other parameters of the workload, separated by commas
    #[arg(short, long = "set", value_name = "NAME=VALUE,…", value_delimiter = ',')]
    set: Vec<String>,
    /// Arguments of a study (see `hectare bench NAME -- --help`)
    #[arg(last = true)]
    study: Vec<String>,
}

/// What the name on the command line names.
enum Chosen {
    Table(Table),
    Entry(Entry),
}

impl Args {
    /// The first option given that only a single workload takes.
    fn of_one_workload(&self) -> Option<&'static str> {
        first_given([
            ("--threads", !self.threads.is_empty()),
            ("--seeds", self.seeds.is_some()),
            ("--ops", self.ops.is_some()),
            ("--callgrind", self.callgrind),
            ("--flame", self.flame.is_some()),
            ("--set", !self.set.is_empty()),
        ])
    }

    /// The first option given that chooses among the rows of a table.
    fn of_rows(&self) -> Option<&'static str> {
        first_given([("--only", !self.only.is_empty()), ("--with-traces", self.with_traces)])
    }

    /// What to run.
    fn chosen(&self) -> anyhow::Result<Chosen> {
        let name = self.name.as_deref().context("which one? `hectare bench --list` tells")?;
        if let Some(&table) = Table::EACH.iter().find(|table| table.name() == name) {
            if let Some(option) = self.of_one_workload() {
                bail!(
                    "{option}: `bench {name}` runs every workload with its own parameters; give the name of \
                     a workload to change them"
                );
            }
            anyhow::ensure!(
                !self.with_traces || table == Table::All,
                "--with-traces is for `hectare bench all`"
            );
            if !self.from.is_empty()
                && let Some(option) = self.contest.given().or_else(|| self.of_rows())
            {
                bail!(
                    "{option}: --from reads records and measures nothing: only --json, --csv, --markdown and \
                     --report go with it"
                );
            }
            return Ok(Chosen::Table(table));
        }
        anyhow::ensure!(
            self.only.is_empty() && !self.with_traces && self.from.is_empty(),
            "--only and --from are for `hectare bench all` and `published`, --with-traces is for `all`"
        );
        let entry = bench::find(name)?;
        match entry {
            Entry::Study(_) => {
                if let Some(option) = self.contest.given().or_else(|| self.of_one_workload()) {
                    bail!(
                        "{option}: `{name}` has subjects and options of its own: `hectare bench {name} -- \
                         --help`"
                    );
                }
            }
            Entry::Workload(_) => anyhow::ensure!(
                self.study.is_empty(),
                "`{name}` takes no arguments after `--`; its parameters are given by --set"
            ),
        }
        Ok(Chosen::Entry(entry))
    }

    /// The parameters of every case of a workload, checked against what it can take.
    fn cases_of(&self, workload: &dyn Workload) -> anyhow::Result<Vec<Parameters>> {
        let name = workload.name();
        let mut parameters = workload.defaults();
        parameters.ops = self.ops.map_or(parameters.ops, NonZeroU64::get);
        let mut given = Vec::new();
        for setting in &self.set {
            let Some((key, value)) = setting.split_once('=') else {
                bail!("--set `{setting}`: write it as NAME=VALUE");
            };
            anyhow::ensure!(!given.contains(&key), "--set {key}: it is given twice");
            given.push(key);
            let known: Vec<_> = parameters.more.keys().cloned().collect();
            match key {
                "seed" => {
                    anyhow::ensure!(
                        self.seeds.is_none(),
                        "--set {setting}: --seeds gives the seeds"
                    );
                    parameters.seed = value.parse().map_err(|_| {
                        anyhow!("--set {setting}: seed of {name} can be {}", domain::SEED)
                    })?;
                }
                _ => {
                    let slot = parameters.more.get_mut(key).with_context(|| {
                        format!("`{name}` has no parameter `{key}`; it has: {}", known.join(", "))
                    })?;
                    value.clone_into(slot);
                }
            }
        }
        let cases = self.cases(&parameters)?;
        let memory_bytes = Machine::probe().memory_bytes;
        cases.iter().try_for_each(|case| domain::check(workload, case, memory_bytes))?;
        Ok(cases)
    }

    /// The only case, for options that look at a single run.
    fn one_run<'a>(&self, cases: &'a [Parameters]) -> anyhow::Result<&'a Parameters> {
        let looks = if self.callgrind { "--callgrind" } else { "--flame" };
        if let Some(option) = self.contest.of_a_contest() {
            bail!(
                "{option} cannot be used with {looks}, which looks at one run: leave it out (--allocators can \
                 be used)"
            );
        }
        let [parameters] = cases else {
            let option = if self.threads.len() > 1 { "--threads" } else { "--seeds" };
            bail!("{option} asks for several cases, and {looks} looks at one run: give one number");
        };
        if self.flame.is_some()
            && let Some(option) = self.contest.outputs.first()
        {
            bail!("{option} cannot be used with --flame, which draws graphs and makes no record");
        }
        Ok(parameters)
    }

    /// The parameters of every case: each seed with each number of threads.
    fn cases(&self, parameters: &Parameters) -> anyhow::Result<Vec<Parameters>> {
        let mut threads: Vec<usize> = self.threads.iter().map(|number| number.get()).collect();
        if threads.is_empty() {
            threads.push(parameters.threads);
        }
        list::refuse_twice("--threads", &threads)?;
        let seeds = self.seeds.as_ref().map_or(vec![parameters.seed], |seeds| seeds.0.clone());
        let case = |seed, threads| Parameters { threads, seed, ..parameters.clone() };
        let of_seed = |&seed: &u64| threads.iter().map(move |&threads| case(seed, threads));
        Ok(seeds.iter().flat_map(of_seed).collect())
    }
}

/// Runs the verb.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    if args.list {
        list();
        return Ok(());
    }
    match args.chosen().or_misused()? {
        Chosen::Table(table) => all(&args, table),
        Chosen::Entry(Entry::Study(study)) => {
            args.contest.outputs.deliver(&study.run(&args.study)?)
        }
        Chosen::Entry(Entry::Workload(workload)) => {
            let cases = args.cases_of(workload).or_misused()?;
            if args.callgrind || args.flame.is_some() {
                let parameters = args.one_run(&cases).or_misused()?;
                return match &args.flame {
                    Some(folder) => flame(&args, workload.name(), parameters, folder),
                    None => count(&args, workload.name(), parameters),
                };
            }
            contest(&args, workload, cases)
        }
    }
}

/// One workload on every subject, with each of the parameters.
fn contest(
    args: &Args,
    workload: &dyn Workload,
    parameters: Vec<Parameters>,
) -> anyhow::Result<()> {
    args.contest.refuse_ignore_failure()?;
    let name = workload.name();
    let parts = match &parameters[..] {
        [alone] => workload.parts(alone)?,
        _ => IndexMap::new(),
    };
    let case = |parameters: Parameters| {
        let seed = parameters.seed;
        let mut case = case(name, parameters, &[]);
        if args.seeds.is_some() {
            case.name.push_str(&format!(", seed {seed}"));
        }
        case
    };
    let cases = parameters.into_iter().map(case).collect();
    let tell = |report: &mut Report| tell_parts(report, &parts);
    args.contest.hold_and(&format!("bench {name}"), cases, Looks::default(), tell)
}

/// Adds a note for each part of a workload: what it is, and the time that every subject took for
/// it.
fn tell_parts(report: &mut Report, parts: &IndexMap<String, String>) {
    for (figure, words) in parts {
        let is_measured = |row: &&Row| !row.is_control() && !row.is_broken();
        let times = report.rows.iter().filter(is_measured).filter_map(|row| {
            Some(format!("{} {}", row.subject, table::figure(figure, row.number(figure)?)))
        });
        let times: Vec<String> = times.collect();
        report.notes.push(format!("{words}: {}", times.join(", ")));
    }
}

/// Instructions of one workload on every subject.
fn count(args: &Args, name: &str, parameters: &Parameters) -> anyhow::Result<()> {
    anyhow::ensure!(
        bench::is_installed("valgrind"),
        "--callgrind needs valgrind, which is not installed"
    );
    let subjects = args.contest.chosen()?;
    args.contest.outputs.deliver(&callgrind::count(name, parameters, &subjects)?)
}

/// A flame graph of one workload for every subject.
fn flame(args: &Args, name: &str, parameters: &Parameters, folder: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(bench::is_installed("perf"), "--flame needs perf, which is not installed");
    std::fs::create_dir_all(folder)
        .with_context(|| format!("--flame {}: it must be a folder", folder.display()))
        .or_misused()?;
    let subjects = args.contest.chosen()?;
    let places = subjects.iter().map(|subject| flame::place_in(folder, name, subject));
    let places: Vec<PathBuf> = places.collect::<anyhow::Result<_>>().or_misused()?;
    for (subject, path) in subjects.iter().zip(&places) {
        flame::draw(name, parameters, subject, path)?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Every workload's rows in a table, and the tables against the best peer of each.
fn all(args: &Args, table: Table) -> anyhow::Result<()> {
    let verb = format!("bench {}", table.name());
    if !args.from.is_empty() {
        let files = list::files(&args.from);
        list::refuse_same_files(&files)?;
        let mut report = best_peer::merged(&verb, &files)?;
        best_peer::judge(&mut report);
        args.contest.outputs.tell(&best_peer::tables(&report));
        return args.contest.outputs.write(&report);
    }
    args.contest.refuse_ignore_failure()?;
    let mut cases = every_row(table);
    if args.with_traces {
        cases.extend(every_trace()?);
    }
    let group = |case: &Case| match &case.work {
        Work::Bench { name, .. } => name.clone(),
        Work::Trace { path, .. } => path.file_stem().unwrap_or_default().display().to_string(),
        Work::Program(_) => case.name.clone(),
    };
    for name in &args.only {
        if !cases.iter().any(|case| group(case) == *name) {
            let adds = table == Table::All && !args.with_traces;
            let traces = if adds { " (--with-traces adds the traces)" } else { "" };
            bail!(Exit::misused(format!(
                "`{name}` has no rows in the table{traces}; `hectare bench --list` tells the names"
            )));
        }
    }
    cases.retain(|case| args.only.is_empty() || args.only.contains(&group(case)));
    args.contest.hold_to_best_peer(&verb, cases)
}

/// The case of a workload. Its name shows the parameters in `telling`.
fn case(name: &str, parameters: Parameters, telling: &[String]) -> Case {
    let mut title = format!("{name}, {}", counted(parameters.threads, "thread"));
    for key in telling {
        title.push_str(&format!(", {key}={}", parameters.more[key]));
    }
    Case::new(title, Work::Bench { name: name.to_owned(), parameters })
}

/// The rows of a table: those of every workload, distinguished by what differs.
fn every_row(table: Table) -> Vec<Case> {
    let mut cases = Vec::new();
    for workload in bench::workloads() {
        let rows = table.rows(workload);
        let differs =
            |key: &&String| rows.iter().any(|row| row.more.get(*key) != rows[0].more.get(*key));
        for row in &rows {
            let telling: Vec<String> = row.more.keys().filter(differs).cloned().collect();
            cases.push(case(workload.name(), row.clone(), &telling));
        }
    }
    cases
}

/// The bundled traces, replayed as `hectare compare` does.
fn every_trace() -> anyhow::Result<Vec<Case>> {
    let trace = |path: &PathBuf| {
        let name = format!("trace {}", path.file_stem().unwrap_or_default().display());
        trace_case(path, &name, Mode::Speed, Touch::Page)
    };
    bundled_traces()?.iter().map(trace).collect()
}

fn list() {
    for entry in bench::ENTRIES {
        let mut tables = Vec::new();
        let (about, source, call) = match entry {
            Entry::Workload(workload) => {
                let defaults = workload.defaults();
                let mut call = format!(
                    "hectare bench {} --threads {} --ops {}",
                    workload.name(),
                    defaults.threads,
                    defaults.ops
                );
                let seed = ("seed".to_owned(), defaults.seed.to_string());
                for (name, value) in defaults.more.iter().chain([(&seed.0, &seed.1)]) {
                    call.push_str(&format!(" --set {name}={value}"));
                }
                let has_rows = |table: &&Table| !table.rows(*workload).is_empty();
                let names = Table::EACH.iter().filter(has_rows).map(|table| table.name());
                tables.extend(names.map(|name| format!("`bench {name}`")));
                (workload.about(), workload.source(), call)
            }
            Entry::Study(study) => {
                let call = format!("hectare bench {} -- --help", study.name());
                (study.about(), study.source(), call)
            }
        };
        println!("{}", entry.name());
        print!("{}", table::paragraph("    ", about));
        print!("{}", table::paragraph("    ", &format!("source: {source}")));
        if !tables.is_empty() {
            println!("    part of {}", tables.join(" and "));
        }
        // In one line, for copying.
        println!("    {call}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        _args: Args,
    }

    #[test]
    fn the_help_names_the_workloads_that_all_leaves_out() {
        let help = Command::command().render_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let has_no_rows = |workload: &&dyn Workload| {
            Table::EACH.iter().all(|table| table.rows(*workload).is_empty())
        };
        let left_out = bench::workloads().filter(has_no_rows);
        let left_out: Vec<_> = left_out.map(|workload| format!("`{}`", workload.name())).collect();
        let [first @ .., last] = &left_out[..] else { panic!("none is left out") };
        let named = format!(
            "every workload but those that only `published` has, {} and {last}",
            first.join(", ")
        );
        assert!(help.contains(&named), "{named}: {help}");
    }

    #[test]
    fn no_row_of_a_table_has_the_name_of_another() {
        for table in Table::EACH {
            let mut names: Vec<_> = every_row(table).into_iter().map(|case| case.name).collect();
            let count = names.len();
            names.sort();
            names.dedup();
            assert!(names.len() == count && count > 10, "{names:?}");
            assert!(bench::find(table.name()).is_err(), "a workload has the name of a table");
        }
    }
}
