//! What each parameter of a workload may be. It is checked before any process is started.
//!
//! A workload writes down its operations beforehand. Absurd parameters would not make the run slow
//! but get the process killed for its memory use, with no hint as to which parameter was to blame.

use std::fmt;

use anyhow::{bail, ensure};

use super::{Parameters, Workload};

/// Values that make sense for a parameter, both ends included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Domain {
    /// Whole numbers.
    Whole(u64, u64),
    /// Numbers.
    Number(f64, f64),
    /// Names.
    Words(&'static [&'static str]),
}

/// One parameter's name and values.
pub(crate) type Domains = &'static [(&'static str, Domain)];

/// Seeds of every workload.
pub(crate) const SEED: Domain = Domain::Whole(0, u64::MAX);

/// Threads, unless the workload says otherwise.
const THREADS: Domain = Domain::Whole(1, 10_000);

/// Operations of each thread, unless the workload says otherwise.
const OPS: Domain = Domain::Whole(1, 1_000_000_000_000);

impl Domain {
    /// Whether `text` is one of the values.
    fn holds(self, text: &str) -> bool {
        match self {
            Self::Whole(low, high) => {
                text.parse::<u64>().is_ok_and(|value| (low..=high).contains(&value))
            }
            Self::Number(low, high) => {
                text.parse::<f64>().is_ok_and(|value| (low..=high).contains(&value))
            }
            Self::Words(words) => words.contains(&text),
        }
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(low, high) if low == high => write!(f, "{low}"),
            Self::Whole(low, high) => write!(f, "a whole number from {low} to {high}"),
            Self::Number(low, high) => write!(f, "a number from {low} to {high}"),
            Self::Words(words) => f.write_str(&words.join(", ")),
        }
    }
}

/// Whether a workload can be run with these parameters on a machine of `memory_bytes` (0: unknown).
///
/// # Errors
/// Names the parameter, its value and the values that it may have.
pub(crate) fn check(
    workload: &dyn Workload,
    parameters: &Parameters,
    memory_bytes: u64,
) -> anyhow::Result<()> {
    let name = workload.name();
    let of = |wanted: &str, general: Domain| {
        let own = workload.domains().iter().find(|(name, _)| *name == wanted);
        own.map_or(general, |(_, domain)| *domain)
    };
    let common = [
        ("--threads ", "threads", parameters.threads as u64, THREADS),
        ("--ops ", "ops", parameters.ops, OPS),
    ];
    for (option, parameter, value, general) in common {
        let domain = of(parameter, general);
        ensure!(
            domain.holds(&value.to_string()),
            "{option}{value}: {parameter} of {name} can be {domain}"
        );
    }
    for (parameter, value) in &parameters.more {
        let Some((_, domain)) = workload.domains().iter().find(|(name, _)| name == parameter)
        else {
            bail!("{name} does not say what its parameter {parameter} can be");
        };
        ensure!(
            domain.holds(value),
            "--set {parameter}={value}: {parameter} of {name} can be {domain}"
        );
    }
    let written_bytes = workload.written_bytes(parameters)?;
    if memory_bytes > 0 && written_bytes > memory_bytes as f64 / 2.0 {
        let mut given = format!("--threads {} --ops {}", parameters.threads, parameters.ops);
        for (parameter, value) in &parameters.more {
            given.push_str(&format!(" --set {parameter}={value}"));
        }
        bail!(
            "{name} writes its operations down before it measures: with {given} they take {:.1} \
             GiB, more than half of this machine's {:.1} GiB of memory; give less of them",
            written_bytes / f64::from(1 << 30),
            memory_bytes as f64 / f64::from(1 << 30)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Table, workloads};

    const MEMORY_BYTES: u64 = 16 << 30;

    #[test]
    fn what_the_workloads_run_with_is_within_their_domains() {
        for workload in workloads() {
            let rows = Table::EACH.iter().flat_map(|table| table.rows(workload));
            for parameters in rows.chain([workload.defaults()]) {
                check(workload, &parameters, MEMORY_BYTES).unwrap();
            }
        }
    }

    #[test]
    fn absurd_values_of_each_parameter_are_refused_by_name() {
        for workload in workloads() {
            for (parameter, domain) in workload.domains() {
                for value in ["18446744073709551615", "1e99", "-1", "x", ""] {
                    if !workload.defaults().more.contains_key(*parameter) {
                        continue;
                    }
                    let parameters = workload.defaults().with(parameter, value);
                    let message =
                        check(workload, &parameters, MEMORY_BYTES).unwrap_err().to_string();
                    for part in [format!("{parameter}={value}"), domain.to_string()] {
                        assert!(message.contains(&part), "{message} lacks {part}");
                    }
                }
            }
            for absurd in [
                Parameters { threads: usize::MAX, ..workload.defaults() },
                Parameters { ops: u64::MAX, ..workload.defaults() },
            ] {
                let message = check(workload, &absurd, MEMORY_BYTES).unwrap_err().to_string();
                assert!(message.contains("18446744073709551615"), "{message}");
            }
        }
    }

    /// Even with all parameters at the ends of their domains the memory can be computed.
    #[test]
    fn what_would_not_fit_into_memory_is_refused() {
        for workload in workloads() {
            let mut largest = workload.defaults();
            for (parameter, domain) in workload.domains() {
                match domain {
                    Domain::Whole(_, high) if *parameter == "threads" => {
                        largest.threads = *high as usize;
                    }
                    Domain::Whole(_, high) if *parameter == "ops" => largest.ops = *high,
                    Domain::Whole(_, high) => largest = largest.with(parameter, high),
                    Domain::Number(_, high) => largest = largest.with(parameter, high),
                    Domain::Words(_) => {}
                }
            }
            let written_bytes = workload.written_bytes(&largest).unwrap();
            assert!(written_bytes.is_finite() && written_bytes >= 0.0, "{}", workload.name());
        }
        let churn = workloads().find(|workload| workload.name() == "churn").unwrap();
        let parameters = Parameters { ops: 1 << 35, ..churn.defaults() };
        let message = check(churn, &parameters, MEMORY_BYTES).unwrap_err().to_string();
        assert!(message.contains("--ops 34359738368") && message.contains("GiB"), "{message}");
    }
}
