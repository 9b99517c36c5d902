//! What `compare`, `bench` and `replay` have in common: which allocators, how many rounds, which
//! claims, where the report goes.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use hectare_trace::{FileHeader, Trace};

use super::{BROKEN, Exit, OrMisused};
use crate::bench::best_peer;
use crate::contest::analysis::{ALL_CASES, Analysis};
use crate::contest::assertion::{self, Claim, Decision};
use crate::contest::{Case, Contest, LEAST_ROUNDS, Looks, Results, Rounds, SAMPLE_EVERY, Work};
use crate::environment::{self, Control};
use crate::output::Outputs;
use crate::replay::Touch;
use crate::report::{Report, Row};
use crate::runner::{self, Given, Processors, WarmMemory};
use crate::subject::{self, Subject, program};
use crate::within::within;

/// The reference if none is given.
const REFERENCE: &str = "system";

/// Time for the rounds if none is given, s.
const SECONDS: u64 = 110;

/// The seed of the shuffles if none is given.
const SEED: u64 = 1;

/// Ten years: longer than anybody measures. No sum of such times overflows.
const LONGEST_S: u64 = 10 * 366 * 24 * 3600;

/// Arguments of every verb that holds a contest.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ContestArgs {
    /// Allocators, separated by commas: names, or NAME=/path/lib.so [default: all that are found]
    #[arg(short, long, value_name = "A,B,…")]
    pub(crate) allocators: Vec<String>,
    /// The allocator that the others are compared with
    #[arg(long, value_name = "NAME", default_value = REFERENCE)]
    pub(crate) reference: String,
    /// Complete rounds [default: as many as fit into --seconds, at least 3, and 5 with --assert]
    #[arg(short, long, value_name = "N", value_parser = within(1_u16, 1000))]
    pub(crate) rounds: Option<u16>,
    /// Time to spend on rounds, s
    #[arg(long, value_name = "S", default_value_t = SECONDS, value_parser = within(0_u64, LONGEST_S))]
    pub(crate) seconds: u64,
    /// Claim to be decided, like 'rss(hectare) < 0.9*rss(system)'; exit code 3 when it fails, 4
    /// when the noise exceeds the margin or there are fewer than 5 rounds. Can be given several
    /// times
    #[arg(long = "assert", value_name = "EXPR", value_parser = claim)]
    pub(crate) claims: Vec<Claim>,
    /// Measure a program even if it fails (ends with an exit code other than 0)
    #[arg(long)]
    pub(crate) ignore_failure: bool,
    /// The longest that one measured process may take, s [default: 300, or 20 times what the
    /// reference took if that is longer]
    #[arg(long, value_name = "S", value_parser = within(1_u64, u64::MAX))]
    pub(crate) timeout: Option<u64>,
    /// Set the settings of the machine that affect measurements, as far as permitted, and restore
    /// them afterwards (`hectare doctor` shows them)
    #[arg(long)]
    pub(crate) control: bool,
    /// Processors for the measured processes, like 1 or 2-5,7; the harness uses the others
    #[arg(long, value_name = "CPUS", value_parser = runner::parse_processors)]
    pub(crate) pin: Option<Processors>,
    /// Give every measured process the same addresses
    #[arg(long)]
    pub(crate) no_aslr: bool,
    /// Before each run, touch as much memory as the run needs, and free it: memory that the host of
    /// a virtual machine has taken back costs many times as much to touch. No figure includes this
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = WarmMemory::Auto)]
    pub(crate) warm_memory: WarmMemory,
    /// Seed of the shuffles
    #[arg(long, value_name = "N", default_value_t = SEED, value_parser = within(0_u64, u64::MAX))]
    pub(crate) seed: u64,
    /// Where to write what was measured.
    #[command(flatten)]
    pub(crate) outputs: Outputs,
    /// The allocator that the program links, which it runs on under `system`.
    #[arg(skip)]
    pub(crate) linked: Option<Linked>,
    /// What to know about the programs, before their figures.
    #[arg(skip)]
    pub(crate) remarks: Vec<String>,
}

/// An allocator besides the C library's that a program links.
#[derive(Clone, Debug)]
pub(crate) struct Linked {
    program: String,
    library: PathBuf,
}

impl Linked {
    /// The library of the program started by `name`, if it links one.
    pub(crate) fn of(name: &OsStr) -> Option<Self> {
        let path = program::resolve(name).ok()?;
        if program::obstacle(&path).ok()?.is_some() {
            return None;
        }
        let program = Path::new(name).file_name()?.to_string_lossy().into_owned();
        Some(Self { library: program::linked_allocator(&path)?, program })
    }

    /// The library's name.
    pub(crate) fn name(&self) -> String {
        self.library.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// What a reader must know.
    pub(crate) fn note(&self) -> String {
        format!(
            "{} links {}: that is what `system`, the program as it is, runs on",
            self.program,
            self.name()
        )
    }
}

impl ContestArgs {
    /// The first option given that only a contest can honour.
    pub(crate) fn of_a_contest(&self) -> Option<&'static str> {
        first_given([
            ("--reference", self.reference != REFERENCE),
            ("--rounds", self.rounds.is_some()),
            ("--seconds", self.seconds != SECONDS),
            ("--assert", !self.claims.is_empty()),
            ("--ignore-failure", self.ignore_failure),
            ("--timeout", self.timeout.is_some()),
            ("--control", self.control),
            ("--pin", self.pin.is_some()),
            ("--no-aslr", self.no_aslr),
            ("--warm-memory", self.warm_memory != WarmMemory::Auto),
            ("--seed", self.seed != SEED),
        ])
    }

    /// The first option given that is none of the outputs.
    pub(crate) fn given(&self) -> Option<&'static str> {
        first_given([("--allocators", !self.allocators.is_empty())]).or_else(|| self.of_a_contest())
    }

    /// Refuses `--ignore-failure` for contests of traces and workloads: one that fails has no
    /// figures to keep.
    ///
    /// # Errors
    /// When the option is given.
    pub(crate) fn refuse_ignore_failure(&self) -> anyhow::Result<()> {
        let message =
            "--ignore-failure is for programs: a trace or workload that fails has no figures";
        ensure!(!self.ignore_failure, Exit::misused(message));
        Ok(())
    }

    /// The allocators asked for: all that are found by default.
    ///
    /// # Errors
    /// When one is unknown, or cannot be preloaded from where it is.
    pub(crate) fn chosen(&self) -> anyhow::Result<Vec<Subject>> {
        if !self.allocators.is_empty() {
            return Subject::parse_list(&self.allocators.join(",")).or_misused();
        }
        let found = subject::found();
        found.iter().try_for_each(Subject::check)?;
        Ok(found)
    }

    /// The subjects and the reference, as a contest takes them.
    fn subjects(&self) -> anyhow::Result<(Vec<Subject>, Subject)> {
        let subjects = self.chosen()?;
        let named = subjects.iter().find(|subject| subject.name == self.reference);
        let reference = match named {
            Some(reference) => reference.clone(),
            None => Subject::parse(&self.reference).context("the reference").or_misused()?,
        };
        let controls = Contest::contestants(&[], &reference).split_off(1);
        if let Some(control) =
            controls.iter().find(|control| subjects.iter().any(|s| s.name == control.name))
        {
            bail!(Exit::misused(format!(
                "the control that measures the noise is called `{}`: give the library another name",
                control.name
            )));
        }
        Ok((subjects, reference))
    }

    /// Checks the names of allocators, for verbs that work before the contest.
    ///
    /// # Errors
    /// When one is unknown.
    pub(crate) fn check_names(&self) -> anyhow::Result<()> {
        self.subjects().map(drop)
    }

    /// Holds the contest over `cases`, prints the table, writes the files and decides the claims.
    ///
    /// # Errors
    /// When nothing could be measured, and with [`Exit`] when claims fail or Ctrl-C came.
    pub(crate) fn hold(&self, verb: &str, cases: Vec<Case>, looks: Looks) -> anyhow::Result<()> {
        self.hold_and(verb, cases, looks, |_| ())
    }

    /// As [`ContestArgs::hold`], and compares every subject with the best peer of each case.
    ///
    /// # Errors
    /// As [`ContestArgs::hold`].
    pub(crate) fn hold_to_best_peer(&self, verb: &str, cases: Vec<Case>) -> anyhow::Result<()> {
        let mut tables = String::new();
        let done = self.hold_and(verb, cases, Looks::default(), |report| {
            best_peer::judge(report);
            tables = best_peer::tables(report);
        });
        self.outputs.tell(&tables);
        done
    }

    /// As [`ContestArgs::hold`], but `finish` changes the report before it is printed.
    ///
    /// # Errors
    /// As [`ContestArgs::hold`].
    pub(crate) fn hold_and(
        &self,
        verb: &str,
        cases: Vec<Case>,
        looks: Looks,
        finish: impl FnOnce(&mut Report),
    ) -> anyhow::Result<()> {
        runner::interrupted();
        let contest = self.contest(cases, looks)?;
        for claim in &self.claims {
            claim.check(&contest).or_misused()?;
        }
        environment::restore(false)?.iter().flatten().for_each(|note| eprintln!("{note}"));
        runner::set_surroundings(runner::Surroundings {
            pin: self.pin.clone(),
            no_aslr: self.no_aslr,
        })
        .or_misused()?;
        let control = if self.control { Some(Control::take(false)?) } else { None };
        let measured = contest.run();
        let control_notes = control.map(|control| control.notes.clone()).unwrap_or_default();
        let results = measured?;
        let mut report = Report::new(verb);
        let analysis = Analysis::new(&contest, &results);
        analysis.fill(&mut report);
        self.tell_linked(&contest, &mut report);
        self.tell_circumstances(&contest, &results, &mut report, control_notes)?;
        let verdicts = self.decide(&contest, &analysis, &mut report)?;
        finish(&mut report);
        if results.interrupted && results.rounds == 0 {
            // No round is complete: an earlier record at the same place says more.
            report.rows.retain(|row| row.figures.keys().any(|name| name != "role"));
            self.outputs.tell(&crate::output::table::text(&report));
            bail!(Exit::interrupted(runner::NOTHING_YET));
        }
        self.outputs.deliver(&report)?;
        if results.interrupted {
            bail!(Exit::interrupted("interrupted"));
        }
        if let Some(failed) = what_failed(&contest, &results) {
            bail!(Exit { code: BROKEN, message: failed });
        }
        if verdicts.contains(&Decision::Fails) {
            bail!(Exit { code: 3, message: "an assertion fails".to_owned() });
        }
        if verdicts.contains(&Decision::Undecided) {
            bail!(Exit { code: 4, message: "an assertion is undecided".to_owned() });
        }
        Ok(())
    }

    /// The contest that the arguments ask for.
    fn contest(&self, cases: Vec<Case>, looks: Looks) -> anyhow::Result<Contest> {
        let (mut subjects, mut reference) = self.subjects()?;
        if let Some(linked) = &self.linked
            && cases.iter().all(|case| matches!(case.work, Work::Trace { .. }))
        {
            // The program links this library itself; its replay does not.
            for subject in subjects.iter_mut().chain([&mut reference]) {
                if *subject == Subject::system() {
                    subject.library = Some(linked.library.clone());
                }
            }
        }
        if subjects.iter().all(|subject| *subject == reference) {
            eprintln!("note: {} is compared with nothing but itself", reference.name);
        }
        Ok(Contest {
            cases,
            contestants: Contest::contestants(&subjects, &reference),
            rounds: match self.rounds {
                Some(rounds) => Rounds::Exactly(usize::from(rounds)),
                None => Rounds::Within(
                    Duration::from_secs(self.seconds),
                    if self.claims.is_empty() { LEAST_ROUNDS } else { assertion::LEAST_ROUNDS },
                ),
            },
            seed: self.seed,
            looks,
            ignore_failure: self.ignore_failure,
            timeout: self.timeout.map(Duration::from_secs),
            warm_memory: self.warm_memory,
        })
    }

    /// Says in the report which allocator `system` is, and which linked allocator no preloaded
    /// library replaces.
    fn tell_linked(&self, contest: &Contest, report: &mut Report) {
        if let Some(linked) = &self.linked {
            let on_system = |row: &&mut Row| {
                let mut contestants = contest.contestants.iter();
                contestants.any(|who| who.name == row.subject && who.subject.name == "system")
            };
            for row in report.rows.iter_mut().filter(on_system) {
                row.figures.insert("allocator".to_owned(), linked.name().into());
            }
            report.notes.insert(0, linked.note());
        }
        report.notes.splice(0..0, self.remarks.iter().cloned());
    }

    /// Adds to the report the libraries and settings it was measured with, and what to know of
    /// them.
    fn tell_circumstances(
        &self,
        contest: &Contest,
        results: &Results,
        report: &mut Report,
        control_notes: Vec<String>,
    ) -> anyhow::Result<()> {
        let libraries = contest.contestants.iter().filter_map(|contestant| {
            let library = contestant.subject.library.as_ref()?;
            Some((contestant.name.clone(), library.display().to_string().into()))
        });
        report
            .parameters
            .insert("libraries".to_owned(), serde_json::Value::Object(libraries.collect()));
        let subjects = contest.contestants.iter().filter(|contestant| !contestant.is_control());
        tell_environments(report, subjects.map(|contestant| &contestant.subject))?;
        report.notes.extend(control_notes);
        report.notes.extend(results.warmth.note());
        report.parameter("warmed_bytes", results.warmth.most_bytes);
        if let Some(pin) = &self.pin {
            report.parameter("pin", pin.0.clone());
        }
        report.parameter("no_aslr", self.no_aslr);
        report.notes.extend(environment_notes());
        report.notes.extend(input_note(&contest.cases));
        report.notes.extend(below_ideal(report, &contest.cases));
        report.notes.extend(forked(report, &contest.cases));
        report.notes.extend(cut_short(&contest.cases));
        Ok(())
    }

    /// Decides the claims. The report says how each was decided and why.
    fn decide(
        &self,
        contest: &Contest,
        analysis: &Analysis<'_>,
        report: &mut Report,
    ) -> anyhow::Result<Vec<Decision>> {
        let mut verdicts = Vec::new();
        for claim in &self.claims {
            let Some((decision, ratio)) = claim.decide(contest, analysis)? else {
                let why = claim.obstacle(contest, analysis)?.unwrap_or_else(|| {
                    format!(
                        "it was not measured in every round (what ends soon is not looked at often enough \
                         while it runs, every {} ms), or is zero where another is a multiple of it",
                        SAMPLE_EVERY.as_millis()
                    )
                });
                report.notes.push(format!("`{claim}` is UNDECIDED: {why}"));
                verdicts.push(Decision::Undecided);
                continue;
            };
            let word = match decision {
                Decision::Holds => "holds",
                Decision::Fails => "FAILS",
                Decision::Undecided if ratio.rounds < assertion::LEAST_ROUNDS => {
                    "is UNDECIDED: that takes five rounds (--rounds)"
                }
                Decision::Undecided => "is UNDECIDED at this noise (raise --rounds)",
            };
            report.notes.push(format!(
                "`{claim}` {word}: left/right {:.3} [{:.3}, {:.3}]",
                ratio.value, ratio.low, ratio.high
            ));
            verdicts.push(decision);
        }
        Ok(verdicts)
    }
}

/// The first of the `options` that is given.
pub(crate) fn first_given<const N: usize>(
    options: [(&'static str, bool); N],
) -> Option<&'static str> {
    options.into_iter().find_map(|(name, is_given)| is_given.then_some(name))
}

/// Parses a claim of the command line, or says everything that is wrong with it.
fn claim(text: &str) -> Result<Claim, String> {
    text.parse().map_err(|error: anyhow::Error| format!("{error:#}"))
}

/// The variable that holds hectare's settings.
const OUR_SETTINGS: &str = "HECTARE_CONF";

/// The prefixes of variables that hold other allocators' settings.
const SETTINGS: [&str; 6] =
    ["GLIBC_TUNABLES", "MALLOC_", "MIMALLOC_", "TCMALLOC_", "SNMALLOC_", "TBB_MALLOC_"];

/// Adds to the report the variables that are set for single allocators.
///
/// # Errors
/// As [`Subject::environment`].
pub(crate) fn tell_environments<'a>(
    report: &mut Report,
    subjects: impl Iterator<Item = &'a Subject>,
) -> anyhow::Result<()> {
    let mut environments = serde_json::Map::new();
    for subject in subjects {
        let set = subject.environment()?;
        if set.is_empty() {
            continue;
        }
        let words: Vec<String> = set.iter().map(|(key, value)| format!("{key}={value}")).collect();
        report.notes.push(format!("{} was set for {}", words.join(" "), subject.name));
        let set = set.into_iter().map(|(key, value)| (key, value.into()));
        environments.insert(subject.name.clone(), serde_json::Value::Object(set.collect()));
    }
    if !environments.is_empty() {
        report.parameters.insert("environments".to_owned(), environments.into());
    }
    Ok(())
}

/// What to know of variables that this command has passed on to the measured processes.
pub(crate) fn environment_notes() -> impl Iterator<Item = String> {
    let names = std::env::vars_os().map(|(name, _)| name);
    settings_note(std::env::vars_os()).into_iter().chain(misspelt_note(names))
}

/// Says which settings of allocators this command has passed on to the measured processes.
fn settings_note(variables: impl Iterator<Item = (OsString, OsString)>) -> Option<String> {
    let sets = |name: &str| {
        name == OUR_SETTINGS || SETTINGS.iter().any(|beginning| name.starts_with(beginning))
    };
    let mut set: Vec<_> = variables
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, value)| sets(name) && !value.is_empty())
        .map(|(name, value)| format!("{name}={}", value.display()))
        .collect();
    set.sort();
    (!set.is_empty()).then(|| {
        format!(
            "{} of the environment was set for all that was measured (a file NAME.env beside NAME.so sets \
             variables for that allocator alone)",
            set.join(" ")
        )
    })
}

/// Says which variables have almost the name of hectare's, and so set nothing.
fn misspelt_note(names: impl Iterator<Item = OsString>) -> Option<String> {
    let mut misspelt: Vec<_> = names
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name.starts_with(OUR_SETTINGS) && name != OUR_SETTINGS)
        .collect();
    misspelt.sort();
    (!misspelt.is_empty()).then(|| {
        format!(
            "{} of the environment set nothing: hectare reads {OUR_SETTINGS}",
            misspelt.join(", ")
        )
    })
}

/// Says that the programs did not get the content of the pipe that this command was given.
fn input_note(cases: &[Case]) -> Option<String> {
    let is_program = |case: &Case| matches!(case.work, Work::Program(_));
    (cases.iter().any(is_program) && Given::at_first().has_unread()).then(|| {
        "the standard input is a pipe, which one run alone could read: no run had it (a file can be read by \
         all: `< FILE`)"
            .to_owned()
    })
}

/// A peak further below Ideal's than this is not due to rounding.
const BELOW_IDEAL: f64 = -0.01;

/// Says where a subject held less memory than Ideal has live, and why.
fn below_ideal(report: &Report, cases: &[Case]) -> Vec<String> {
    let overlaps_nothing = |name: &str| {
        let by_itself = |case: &Case| match &case.work {
            Work::Trace { touch, .. } => *touch == Touch::None,
            Work::Bench { parameters, .. } => parameters.threads == 1,
            Work::Program(_) => false,
        };
        cases.iter().any(|case| case.name == name && by_itself(case))
    };
    let (mut of_one, mut of_many): (Vec<&str>, Vec<&str>) = Default::default();
    for row in &report.rows {
        let is_below = row.number("overhead_ratio").is_some_and(|over| over < BELOW_IDEAL);
        if !is_below || row.workload == ALL_CASES {
            continue;
        }
        let is_of_one = row.number("threads_count") == Some(1.0) || overlaps_nothing(&row.workload);
        let named = if is_of_one { &mut of_one } else { &mut of_many };
        if !named.contains(&row.workload.as_str()) {
            named.push(&row.workload);
        }
    }
    let told = |cases: Vec<&str>, why: &str| {
        (!cases.is_empty())
            .then(|| format!("{}: peaks below what is live in Ideal. {why}", cases.join("; ")))
    };
    let unwritten =
        "What is asked for but not written (in a replay: --touch), or refused, takes no memory";
    let overlapping = "The quicker threads are done, the fewer overlap, and the less is live at once: so the \
                       allocators held unlike amounts, and their memory says little (a replay with `--mode \
                       serial` has the same live for all)";
    told(of_one, unwritten).into_iter().chain(told(of_many, overlapping)).collect()
}

/// The cases that are traces of which `is_such` is true.
fn traces(cases: &[Case], is_such: impl Fn(&FileHeader) -> bool) -> impl Iterator<Item = &Case> {
    cases.iter().filter(move |case| match &case.work {
        Work::Trace { path, .. } => Trace::open(path).is_ok_and(|trace| is_such(trace.header())),
        _ => false,
    })
}

/// Says which traces are of recordings that stopped before their program did.
fn cut_short(cases: &[Case]) -> Option<String> {
    let names: Vec<&str> =
        traces(cases, |header| header.lost_events > 0).map(|case| case.name.as_str()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "{}: the recording is cut short, so what is replayed is only what the program did until then",
            names.join("; ")
        )
    })
}

/// Says which traces are from forked children. Their replay begins with an empty heap.
fn forked(report: &Report, cases: &[Case]) -> Option<String> {
    let name = |case: &Case| {
        let mut rows = report.rows.iter().filter(|row| row.workload == case.name);
        match rows.find_map(|row| row.number("skipped_ops_count")) {
            Some(calls) => format!("{} ({calls:.0} calls on what it inherited)", case.name),
            None => case.name.clone(),
        }
    };
    let names: Vec<String> = traces(cases, FileHeader::is_forked).map(name).collect();
    (!names.is_empty()).then(|| {
        format!(
            "{}: recorded of a forked child. What it inherited from its parent is not in the trace, so it is \
             replayed without, in a heap that is empty at first (`hectare compare -- CMD` measures the whole)",
            names.join("; ")
        )
    })
}

/// What failed under some allocator, in words: a table with missing cells is no success.
fn what_failed(contest: &Contest, results: &Results) -> Option<String> {
    results.broken.first()?;
    let told: Vec<_> = results
        .broken
        .iter()
        .map(|broken| {
            let case = &contest.cases[broken.case].name;
            let subject = &contest.contestants[broken.contestant].name;
            format!("{case} failed under {subject}: {}", broken.why)
        })
        .collect();
    // Only programs end by an exit code or a signal of their own.
    let advice = match results.broken.iter().any(|broken| broken.by_exit) {
        true => " (`hectare run` shows what it writes, --ignore-failure measures it)",
        false => "",
    };
    Some(told.join("; ") + advice)
}

#[cfg(test)]
mod tests {
    use hectare_trace::Writer;

    use super::*;
    use crate::bench::Parameters;
    use crate::replay::Mode;

    /// A trace without events.
    fn empty_trace(path: PathBuf, header: FileHeader) -> Case {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let file = std::fs::File::create(&path).unwrap();
        Writer::new(file, header).unwrap().finish().unwrap();
        let work = Work::Trace { path, mode: Mode::Speed, touch: Touch::None, points: 0 };
        Case::new(name, work)
    }

    #[test]
    fn a_trace_that_is_cut_short_is_told() {
        let scratch = crate::scratch::Scratch::new().unwrap();
        let case = |name: &str, lost_events| {
            let header = FileHeader { lost_events, ..FileHeader::new() };
            empty_trace(scratch.path().join(name), header)
        };
        assert_eq!(cut_short(&[case("whole", 0)]), None);
        let told = cut_short(&[case("whole", 0), case("cut", 1)]).unwrap();
        assert!(told.starts_with("cut: the recording is cut short"), "{told}");
    }

    #[test]
    fn a_trace_of_a_forked_child_is_told() {
        let scratch = crate::scratch::Scratch::new().unwrap();
        let case = |name: &str, first_thread| {
            let header = FileHeader { first_thread, ..FileHeader::new() };
            empty_trace(scratch.path().join(name), header)
        };
        let mut report = Report::new("replay");
        assert_eq!(forked(&report, &[case("first", 1)]), None);
        let cases = [case("first", 1), case("child", 2)];
        let told = forked(&report, &cases).unwrap();
        assert!(told.starts_with("child: recorded of a forked child"), "{told}");
        let row = Row::new("system", "child").with("skipped_ops_count", 30);
        report.rows.push(row);
        let told = forked(&report, &cases).unwrap();
        assert!(told.starts_with("child (30 calls on what it inherited): recorded of"), "{told}");
        assert!(!told.contains("  "), "{told}");
    }

    #[test]
    fn settings_of_allocators_are_told() {
        let of = |variables: &[(&str, &str)]| {
            settings_note(variables.iter().map(|&(name, value)| (name.into(), value.into())))
        };
        assert_eq!(of(&[("PATH", "/bin"), ("HECTARE_CONF", ""), ("MALLOCS", "1")]), None);
        let told = of(&[("MALLOC_CONF", "thp:always"), ("HECTARE_CONF", "secure:true")]).unwrap();
        assert!(
            told.starts_with("HECTARE_CONF=secure:true MALLOC_CONF=thp:always of the"),
            "{told}"
        );
    }

    #[test]
    fn a_variable_called_almost_like_ours_is_told_as_what_it_is() {
        let misspelt = ["PATH", "HECTARE_CONFIG", "HECTARE_CONF"];
        let told = misspelt_note(misspelt.iter().map(OsString::from)).unwrap();
        assert!(told.starts_with("HECTARE_CONFIG of the environment set nothing"), "{told}");
        assert_eq!(misspelt_note(["HECTARE_CONF", "PATH"].iter().map(OsString::from)), None);
        let settings = [("HECTARE_CONFIG".into(), "secure:true".into())];
        assert_eq!(settings_note(settings.into_iter()), None);
    }

    #[test]
    fn peaks_below_ideal_are_told_once_a_case() {
        let row = |case: &str, over: f64| Row::new("x", case).with("overhead_ratio", over);
        let mut report = Report::new("x");
        report.rows = vec![row("fine", -0.004), row("all", -0.2)];
        assert!(below_ideal(&report, &[]).is_empty());
        report.rows.extend([row("node", -0.1), row("node", -0.2), row("larson", -0.3)]);
        let told = below_ideal(&report, &[]);
        assert!(told.len() == 1 && told[0].starts_with("node; larson: peaks below"), "{told:?}");
        // Nothing overlaps in a single thread.
        report.rows.push(row("cc1", -0.9).with("threads_count", 1));
        let told = below_ideal(&report, &[]);
        assert!(told[0].starts_with("cc1: ") && !told[0].contains("threads"), "{told:?}");
        let work = Work::Trace {
            path: "node.hxt".into(),
            mode: Mode::Speed,
            touch: Touch::None,
            points: 0,
        };
        assert!(below_ideal(&report, &[Case::new("node", work)])[0].starts_with("node; cc1: "));
        let work = Work::Bench { name: "larson".to_owned(), parameters: Parameters::new(1, 1) };
        assert!(below_ideal(&report, &[Case::new("larson", work)])[0].starts_with("larson; cc1: "));
    }
}
