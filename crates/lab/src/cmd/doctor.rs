//! `hectare doctor`: which settings of this machine affect measurements, which can be controlled,
//! and which cannot.
//!
//! `--set` sets them until `--restore`, or, with a command after `--`, while that command runs. The
//! measuring verbs do the same with `--control`.

use std::ffi::OsString;
use std::fs;
use std::ops::RangeInclusive;

use anyhow::Context;

use crate::environment::{self, Control, Knob};
use crate::machine::Machine;
use crate::{runner, subject};

/// The arguments of `hectare doctor`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Set the settings that affect measurements, as far as permitted, for the command or until
    /// --restore
    #[arg(long, conflicts_with = "restore")]
    set: bool,
    /// Restore what was set
    #[arg(long)]
    restore: bool,
    /// A command to run with --set: when it ends, the settings are restored
    #[arg(last = true, value_name = "CMD", requires = "set", conflicts_with = "restore")]
    command: Vec<OsString>,
}

/// A setting of the machine as it was found.
struct Finding {
    name: String,
    found: String,
    /// What to do; `None` when it is as it should be.
    advice: Option<&'static str>,
}

/// Runs the verb.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let restored = environment::restore(args.restore)?;
    restored.iter().flatten().for_each(|note| println!("{note}"));
    if args.restore {
        let restored =
            restored.context("another command has set the machine, and restores it at its end")?;
        if restored.is_empty() {
            println!("nothing was set");
        }
        return Ok(());
    }
    if args.set {
        return set(&args.command);
    }
    let machine = Machine::probe();
    println!("{} × {}, Linux {}, {}", machine.cpus, machine.cpu, machine.kernel, machine.libc);
    for finding in findings(&machine, &environment::knobs(), round_trip_ns()) {
        let mark = if finding.advice.is_some() { '!' } else { ' ' };
        println!("{mark} {:<30} {}", finding.name, finding.found);
        if let Some(advice) = finding.advice {
            println!("  {:<30} → {advice}", "");
        }
    }
    println!();
    println!("allocators found");
    for subject in subject::found() {
        let place = subject.library.map_or("the C library".to_owned(), |p| p.display().to_string());
        println!("  {:<30} {place}", subject.name);
    }
    Ok(())
}

/// Sets the machine, for the duration of `command` if there is one.
fn set(command: &[OsString]) -> anyhow::Result<()> {
    if let Some(program) = command.first() {
        subject::program::resolve(program)?;
    }
    let flag = runner::interrupted();
    let control = Control::take(command.is_empty())?;
    control.notes.iter().for_each(|note| eprintln!("{note}"));
    let Some((program, arguments)) = command.split_first() else {
        if control.notes.iter().any(|note| note.starts_with("controlled")) {
            eprintln!("`hectare doctor --restore` takes it back");
        }
        return Ok(());
    };
    let mut child = std::process::Command::new(program)
        .args(arguments)
        .spawn()
        .with_context(|| format!("cannot start `{}`", program.display()))?;
    // Ctrl-C reaches the command from the terminal. A signal to us alone is passed on, once.
    let mut is_told = false;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if !is_told && flag.load(std::sync::atomic::Ordering::Relaxed) {
            runner::pass_on(&child);
            is_told = true;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    drop(control);
    super::pass_on_failure(&format!("`{}`", program.display()), status)
}

/// How far apart the first two processors that this process may run on are, if there are two.
fn round_trip_ns() -> Option<anyhow::Result<RangeInclusive<u64>>> {
    let cpus = runner::affinity().ok()?;
    Some(environment::round_trip_ns(*cpus.first()?, *cpus.get(1)?))
}

fn findings(
    machine: &Machine,
    knobs: &[Knob],
    round_trip_ns: Option<anyhow::Result<RangeInclusive<u64>>>,
) -> Vec<Finding> {
    let finding = |name: &str, found: String, advice| Finding { name: name.into(), found, advice };
    let read = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let smt = read("/sys/devices/system/cpu/smt/active");
    let load = read("/proc/loadavg").unwrap_or_default();
    let busy = load.split(' ').next().and_then(|one| one.parse::<f64>().ok()).unwrap_or(0.0);
    let clear = fs::write("/proc/self/clear_refs", "5").is_ok();
    let mut findings: Vec<Finding> = knobs
        .iter()
        .map(|knob| {
            let now = knob.now();
            let may_be_set = || fs::OpenOptions::new().write(true).open(&knob.path).is_ok();
            let advice = match &now {
                None => Some("cannot be controlled here"),
                Some(now) if now == knob.wanted => None,
                Some(_) if may_be_set() => {
                    Some("--control sets it while measuring, --set until --restore")
                }
                Some(_) => Some("may not be set by you: run as root, or have it set"),
            };
            finding(&knob.name, now.unwrap_or_else(|| "not visible".to_owned()), advice)
        })
        .collect();
    findings.extend([
        finding(
            "SMT",
            smt.clone().unwrap_or_else(|| "not visible".to_owned()),
            (smt.as_deref() == Some("1"))
                .then_some("siblings share a core: --pin to one of each pair, or expect noise"),
        ),
        finding(
            "ASLR",
            machine.aslr.clone(),
            (machine.aslr != "0").then_some(
                "left on, on purpose: addresses differ from round to round, so that none favours an \
                 allocator throughout; --no-aslr gives all runs the same",
            ),
        ),
        finding("huge pages", machine.thp.clone(), None),
        finding(
            "processors for measuring",
            runner::affinity()
                .map_or_else(|_| "not visible".to_owned(), |cpus| runner::listed(&cpus)),
            Some("--pin 1 keeps the measured processes on one, the harness on the others"),
        ),
        distance(round_trip_ns),
        finding(
            "virtual machine",
            machine.virtualised.to_string(),
            machine.virtualised.then_some("neighbours take time: watch the steal note of reports"),
        ),
        finding(
            "free memory",
            if machine.takes_memory_back { "the host takes it back" } else { "stays" }.to_owned(),
            machine.takes_memory_back.then_some(
                "its first touch then costs up to 60 times as much (5.3 ms for 2 MiB in place of 0.09): \
                 --warm-memory keeps that out of contests, other figures contain it",
            ),
        ),
        finding(
            "load",
            load,
            (busy > 0.5 * machine.cpus as f64)
                .then_some("something else runs: wait until it has ended"),
        ),
        finding(
            "peak can be reset",
            clear.to_string(),
            (!clear).then_some("peaks are those of whole processes, the harness included"),
        ),
    ]);
    findings
}

/// What the round trip of a cache line from one processor to the next means. The setting is
/// reported if the trip takes twice as long at one moment as at another.
fn distance(round_trip_ns: Option<anyhow::Result<RangeInclusive<u64>>>) -> Finding {
    let (found, changes) = match round_trip_ns {
        None => ("a single processor".to_owned(), false),
        Some(Err(error)) => (format!("not measured: {error:#}"), false),
        Some(Ok(ns)) => (format!("{} to {} ns", ns.start(), ns.end()), *ns.end() > 2 * *ns.start()),
    };
    Finding {
        name: "a line to the next CPU and back".to_owned(),
        found,
        advice: changes.then_some(
            "the host moves the processors: programs whose threads share lines take several times as long \
             by chance, so compare them with many rounds",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distance_that_changes_is_told() {
        let advice = |range| distance(range).advice.is_some();
        assert!(!advice(None) && !advice(Some(Err(anyhow::anyhow!("refused")))));
        assert!(!advice(Some(Ok(80..=160))) && advice(Some(Ok(80..=400))));
        assert_eq!(distance(Some(Ok(80..=400))).found, "80 to 400 ns");
    }

    #[test]
    fn trouble_carries_advice() {
        let machine = Machine {
            aslr: "0".to_owned(),
            takes_memory_back: true,
            virtualised: true,
            cpus: 1,
            ..Machine::default()
        };
        let knobs = [Knob {
            name: "governor".to_owned(),
            path: "/no/such/file".into(),
            wanted: "performance",
        }];
        let findings = findings(&machine, &knobs, None);
        let advice = |name| findings.iter().find(|f| f.name == name).unwrap().advice;
        assert!(advice("governor").unwrap().contains("cannot be controlled"));
        assert!(advice("virtual machine").is_some());
        assert!(advice("free memory").unwrap().contains("--warm-memory"));
        assert!(advice("ASLR").is_none());
    }
}
