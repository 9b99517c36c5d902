//! `hectare doctor`: what of this machine moves measurements, and what to do about it. It reads
//! only; nothing is set.

use std::fs;

use crate::machine::Machine;
use crate::subject;

/// What `hectare doctor` can be given.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// A setting of the machine as it was found.
struct Finding {
    name: &'static str,
    found: String,
    /// What to do; `None` when it is as it should be.
    advice: Option<&'static str>,
}

/// Runs the verb.
pub(crate) fn run(_args: Args) -> anyhow::Result<()> {
    let machine = Machine::probe();
    println!("{} × {}, Linux {}, {}", machine.cpus, machine.cpu, machine.kernel, machine.libc);
    for finding in findings(&machine) {
        let mark = if finding.advice.is_some() { '!' } else { ' ' };
        println!("{mark} {:<22} {}", finding.name, finding.found);
        if let Some(advice) = finding.advice {
            println!("  {:<22} → {advice}", "");
        }
    }
    println!("\nallocators found");
    for subject in subject::found() {
        let place = subject.library.map_or("the C library".to_owned(), |p| p.display().to_string());
        println!("  {:<22} {place}", subject.name);
    }
    Ok(())
}

fn findings(machine: &Machine) -> Vec<Finding> {
    let finding = |name, found: String, advice| Finding { name, found, advice };
    let read = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let governor = match machine.governor.as_str() {
        "none" => Some("not visible here: frequency cannot be controlled"),
        "performance" => None,
        _ => Some("`cpupower frequency-set -g performance`"),
    };
    let boost = read("/sys/devices/system/cpu/intel_pstate/no_turbo")
        .map(|off| off == "1")
        .or_else(|| read("/sys/devices/system/cpu/cpufreq/boost").map(|on| on == "0"));
    let smt = read("/sys/devices/system/cpu/smt/active");
    let load = read("/proc/loadavg").unwrap_or_default();
    let busy = load.split(' ').next().and_then(|one| one.parse::<f64>().ok()).unwrap_or(0.0);
    let clear = fs::write("/proc/self/clear_refs", "5").is_ok();
    vec![
        finding("governor", machine.governor.clone(), governor),
        finding(
            "turbo",
            boost.map_or("not visible", |off| if off { "off" } else { "on" }).to_owned(),
            match boost {
                Some(true) => None,
                Some(false) => Some("switch it off: clocks wander with temperature"),
                None => Some("not visible here: cannot be controlled"),
            },
        ),
        finding(
            "SMT",
            smt.clone().unwrap_or_else(|| "not visible".to_owned()),
            (smt.as_deref() == Some("1"))
                .then_some("siblings share a core: with threads, expect noise"),
        ),
        finding(
            "ASLR",
            machine.aslr.clone(),
            (machine.aslr != "0").then_some(
                "left on on purpose: it is randomised over in the rounds, not frozen into a bias",
            ),
        ),
        finding("huge pages", machine.thp.clone(), None),
        finding(
            "virtual machine",
            machine.virtualised.to_string(),
            machine.virtualised.then_some("neighbours take time: watch the steal note of reports"),
        ),
        finding(
            "load",
            load,
            (busy > 0.5 * machine.cpus as f64)
                .then_some("something else runs: wait until it ended"),
        ),
        finding(
            "peak can be reset",
            clear.to_string(),
            (!clear).then_some("peaks are those of whole processes, the harness included"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_carries_advice() {
        let machine = Machine {
            governor: "powersave".to_owned(),
            aslr: "0".to_owned(),
            virtualised: true,
            cpus: 1,
            ..Machine::default()
        };
        let findings = findings(&machine);
        let advice = |name| findings.iter().find(|f| f.name == name).unwrap().advice;
        assert!(advice("governor").unwrap().contains("performance"));
        assert!(advice("virtual machine").is_some());
        assert!(advice("ASLR").is_none());
    }
}
