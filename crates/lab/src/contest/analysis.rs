//! From runs to rows: medians, paired ratios with intervals, and what the controls showed.

mod notes;

use serde_json::Value;

use super::{Broken, Case, Contest, Results, Role, Run};
use crate::report::{Report, Row, Series};
use crate::say::counted;
use crate::stats::{self, Ratio, Verdict};

/// The name of the rows over all cases.
pub(crate) const ALL_CASES: &str = "all";

/// How other work than the reference's shows.
const OTHER_WORK: &str = "checksum or exit code differs";

/// A figure that contestants are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metric {
    /// Time, ns.
    Time,
    /// Processor time, ns.
    Cpu,
    /// Peak resident memory, bytes.
    Peak,
    /// The figure by which the case judges memory: the peak, unless its workload names another.
    Memory,
    /// Time-weighted mean of resident memory, bytes.
    Mean,
    /// Page faults.
    Faults,
}

impl Metric {
    /// All metrics.
    pub(crate) const ALL: [Self; 6] =
        [Self::Time, Self::Cpu, Self::Peak, Self::Memory, Self::Mean, Self::Faults];

    /// The word before `_ratio` in a row.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Cpu => "cpu",
            Self::Peak => "peak",
            Self::Memory => "memory",
            Self::Mean => "mean",
            Self::Faults => "faults",
        }
    }

    /// The figure's name in a row.
    pub(crate) fn figure(self) -> &'static str {
        match self {
            Self::Time => "time_ns",
            Self::Cpu => "cpu_ns",
            Self::Peak => "peak_bytes",
            Self::Memory => "memory",
            Self::Mean => "mean_bytes",
            Self::Faults => "faults",
        }
    }

    /// The figure of a run; `None` if it was not measured.
    pub(crate) fn of(self, run: &Run) -> Option<f64> {
        match self {
            Self::Time => Some(run.time_ns),
            Self::Cpu => Some(run.cpu_ns),
            Self::Peak => Some(run.peak_bytes),
            Self::Memory => Some(run.memory),
            Self::Mean => run.mean_bytes,
            Self::Faults => Some(run.faults as f64),
        }
    }
}

/// The runs, with the contest that they belong to.
pub(crate) struct Analysis<'a> {
    contest: &'a Contest,
    results: &'a Results,
}

impl<'a> Analysis<'a> {
    /// The analysis of the results of `contest`.
    pub(crate) fn new(contest: &'a Contest, results: &'a Results) -> Self {
        Self { contest, results }
    }

    /// The runs of one contestant in one case, by round.
    fn runs(&self, case: usize, contestant: usize) -> impl Iterator<Item = &'a Run> {
        let mine = move |run: &&Run| run.case == case && run.contestant == contestant;
        self.results.runs.iter().filter(mine)
    }

    /// Why a contestant broke in a case, if it did. Its earlier runs then do not count either.
    fn broken(&self, case: usize, contestant: usize) -> Option<&'a str> {
        let mine = |broken: &&Broken| broken.case == case && broken.contestant == contestant;
        self.results.broken.iter().find(mine).map(|broken| broken.why.as_str())
    }

    /// In how many cases a contestant broke, of one case or of all.
    pub(crate) fn breaks(&self, case: Option<usize>, contestant: usize) -> usize {
        let cases = case.map_or(0..self.contest.cases.len(), |case| case..case + 1);
        cases.filter(|&case| self.broken(case, contestant).is_some()).count()
    }

    /// Per-round ratios of two contestants, none if one of them broke. When `case` is `None` they
    /// are over all cases: the geometric mean over those cases of a round that the reference did. A
    /// contestant that broke in one of them has no ratio: the rest would flatter it.
    ///
    /// There is no ratio either if some round has none, because a figure was not measured there or
    /// is a multiple of zero. Which rounds those are depends on the figure, so the others would
    /// flatter somebody, too.
    pub(crate) fn ratios(
        &self,
        metric: Metric,
        case: Option<usize>,
        above: usize,
        below: usize,
    ) -> Vec<f64> {
        let did = |case: usize, contestant: usize| {
            self.broken(case, contestant).is_none() && self.runs(case, contestant).next().is_some()
        };
        let cases: Vec<usize> = match case {
            Some(case) => vec![case],
            None => (0..self.contest.cases.len()).filter(|&case| did(case, 0)).collect(),
        };
        if !cases.iter().all(|&case| did(case, above) && did(case, below)) {
            return Vec::new();
        }
        let rounds = self.results.runs.iter().map(|run| run.round + 1).max().unwrap_or(0);
        let of_round = |round: usize| {
            self.of_round(&cases, round, |run_of| {
                let (above, below) = (run_of(above)?, run_of(below)?);
                Some(match (metric.of(above), metric.of(below)) {
                    (Some(above), Some(below)) if below > 0.0 => Some(above / below),
                    _ => None,
                })
            })
        };
        (0..rounds).filter_map(of_round).collect::<Option<_>>().unwrap_or_default()
    }

    /// Per-round values of one contestant; over all cases, the geometric mean of each round. None
    /// if the contestant broke, or was not measured in some round.
    pub(crate) fn values(&self, metric: Metric, case: Option<usize>, of: usize) -> Vec<f64> {
        if self.breaks(case, of) > 0 {
            return Vec::new();
        }
        let cases: Vec<usize> = match case {
            Some(case) => vec![case],
            None => (0..self.contest.cases.len()).collect(),
        };
        let of_round =
            |round: usize| self.of_round(&cases, round, |run_of| Some(metric.of(run_of(of)?)));
        (0..self.results.rounds).filter_map(of_round).collect::<Option<_>>().unwrap_or_default()
    }

    /// What a round shows in `cases` together: the geometric mean of what `figure` makes of the
    /// runs in each. `None` if the round is incomplete there, `Some(None)` if it shows nothing.
    fn of_round(
        &self,
        cases: &[usize],
        round: usize,
        figure: impl Fn(&dyn Fn(usize) -> Option<&'a Run>) -> Option<Option<f64>>,
    ) -> Option<Option<f64>> {
        let of_case = |&case: &usize| {
            figure(&|contestant| self.runs(case, contestant).find(|run| run.round == round))
        };
        let figures: Vec<Option<f64>> = cases.iter().map(of_case).collect::<Option<_>>()?;
        Some(match &figures[..] {
            // One value stays as it is: a logarithm would round it, and zero has none.
            [one] => *one,
            all => all
                .iter()
                .copied()
                .collect::<Option<Vec<_>>>()
                .and_then(|all| stats::geometric_mean(&all)),
        })
    }

    /// The ratio of a contestant to the reference.
    pub(crate) fn ratio(&self, metric: Metric, case: Option<usize>, of: usize) -> Option<Ratio> {
        Ratio::of(&self.ratios(metric, case, of, 0))
    }

    /// The noise floor, as printed. No verdict may rest on less. Without the control everything may
    /// be noise.
    fn noise(&self, metric: Metric, case: Option<usize>) -> f64 {
        self.of_role(Role::Again)
            .and_then(|again| self.ratio(metric, case, again))
            .map_or(f64::INFINITY, |ratio| ratio.noise_floor())
    }

    fn of_role(&self, role: Role) -> Option<usize> {
        self.contest.contestants.iter().position(|contestant| contestant.role == role)
    }

    /// Fills `report` with rows, series and notes.
    pub(crate) fn fill(&self, report: &mut Report) {
        for (index, case) in self.contest.cases.iter().enumerate() {
            for contestant in 0..self.contest.contestants.len() {
                if let Some(row) = self.row(index, case, contestant) {
                    report.rows.push(row);
                }
            }
            self.curves(index, case, report);
        }
        if self.contest.cases.len() > 1 {
            for (index, contestant) in self.contest.contestants.iter().enumerate() {
                let mut row =
                    Row::new(&contestant.name, ALL_CASES).with("role", role_name(contestant.role));
                self.add_ratios(&mut row, None, index);
                if let Some(overhead) = self.overhead_of_all(index) {
                    row = row.with("overhead_ratio", overhead);
                }
                if let broke @ 1.. = self.breaks(None, index) {
                    let cases = self.contest.cases.len();
                    row = row.with("broken", format!("in {broke} of {cases} cases"));
                }
                report.rows.push(row);
            }
        }
        report.notes.extend(self.notes(report.machine.cpus));
        report.parameter("rounds", self.results.rounds);
        report.parameter("seed", self.contest.seed);
        report.parameter("reference", self.contest.contestants[0].name.clone());
        report.parameter("confidence", stats::confidence(self.results.rounds));
    }

    fn row(&self, index: usize, case: &Case, contestant: usize) -> Option<Row> {
        let who = &self.contest.contestants[contestant];
        let mut row = Row::new(&who.name, &case.name).with("role", role_name(who.role));
        let first = self.runs(index, contestant).next();
        let broken = self.broken(index, contestant);
        if let Some(why) = broken {
            row = row.with("broken", why);
        }
        let Some(first) = first else { return broken.map(|_| row) };
        let median = |of: &dyn Fn(&Run) -> Option<f64>| {
            stats::median(&self.runs(index, contestant).filter_map(of).collect::<Vec<_>>())
        };
        for metric in Metric::ALL {
            if let Some(value) = median(&|run| metric.of(run)) {
                row = row.with(metric.figure(), value);
            }
        }
        let all = |metric: Metric| -> Value {
            self.runs(index, contestant).filter_map(|run| metric.of(run)).collect::<Vec<_>>().into()
        };
        row = row
            .with("time_ns_runs", all(Metric::Time))
            .with("peak_bytes_runs", all(Metric::Peak))
            .with("memory_runs", all(Metric::Memory));
        if let Some(name) = case.memory().name() {
            row = row.with("memory_figure", name);
        }
        if first.added_bytes > 0.0 {
            row = row.with("memory_added_bytes", first.added_bytes);
        }
        let switches = median(&|run| Some(run.switches as f64)).unwrap_or(0.0);
        let steal = median(&|run| Some(run.steal_ns as f64)).unwrap_or(0.0);
        row = row.with("switches", switches).with("steal_ns", steal);
        let ideal_bytes = match &case.ideal {
            Some(ideal) => {
                row = row
                    .with("ideal_live_bytes", ideal.live_bytes)
                    .with("ideal_rounded16_bytes", ideal.rounded16_bytes)
                    .with("ideal_pages_bytes", ideal.pages_bytes);
                ideal.live_bytes
            }
            None => first.live_peak_bytes,
        };
        if ideal_bytes > 0
            && let Some(peak) = median(&|run| Metric::Peak.of(run))
        {
            row = row.with("live_peak_bytes", ideal_bytes);
            row = row.with("overhead_ratio", peak / ideal_bytes as f64 - 1.0);
        }
        if first.ops > 0 {
            row = row
                .with("ops", first.ops)
                .with("failed_allocations", self.failed_allocations(index, contestant));
            let time = median(&|run| Metric::Time.of(run)).unwrap_or(0.0);
            row = row.with("op_ns", time / first.ops as f64);
        } else {
            row = row.with("exit_code", first.exit_code);
        }
        if self.did_other_work(index, contestant) {
            row = row.with("other_work", OTHER_WORK);
        }
        for name in first.more.keys() {
            if let Some(value) = median(&|run| run.more.get(name).copied()) {
                row = row.with(name, value);
            }
        }
        let latencies = self.results.latencies.iter();
        for latency in latencies.filter(|l| l.case == index && l.contestant == contestant) {
            let records = serde_json::to_value(&latency.records).expect("plain numbers serialise");
            row = row.with("latencies", records);
        }
        self.add_ratios(&mut row, Some(index), contestant);
        Some(row)
    }

    /// The most allocations that failed in a run.
    fn failed_allocations(&self, case: usize, contestant: usize) -> u64 {
        self.runs(case, contestant).map(|run| run.failed_allocations).max().unwrap_or(0)
    }

    /// Whether a contestant did other work than the reference.
    fn did_other_work(&self, case: usize, contestant: usize) -> bool {
        let Some(reference) = self.runs(case, 0).next() else { return false };
        self.runs(case, contestant)
            .any(|run| run.checksum != reference.checksum || run.exit_code != reference.exit_code)
    }

    /// Why the figures of a contestant, in one case or all, say nothing beside the reference's
    /// although it did not break: an allocation that failed took no time and no memory.
    pub(crate) fn incomparable(&self, case: Option<usize>, contestant: usize) -> Option<String> {
        let mut cases = case.map_or(0..self.contest.cases.len(), |case| case..case + 1);
        cases.find_map(|case| {
            let failed = self.failed_allocations(case, contestant);
            let of_reference = self.failed_allocations(case, 0);
            if self.did_other_work(case, contestant) {
                Some("did other work than the reference".to_owned())
            } else if failed > of_reference {
                Some(format!(
                    "failed in {}, the reference in {of_reference}",
                    counted(failed, "allocation")
                ))
            } else {
                None
            }
        })
    }

    /// Adds `<metric>_ratio`, its interval and its verdict.
    fn add_ratios(&self, row: &mut Row, case: Option<usize>, contestant: usize) {
        let is_comparable = self.incomparable(case, contestant).is_none();
        for metric in Metric::ALL {
            let Some(ratio) = self.ratio(metric, case, contestant) else { continue };
            let name = metric.name();
            let verdict = match ratio.verdict(self.noise(metric, case)) {
                _ if contestant == 0 => "reference",
                _ if !is_comparable => "undecided",
                Verdict::Less => "less",
                Verdict::Same => "same",
                Verdict::More => "more",
                Verdict::Undecided => "undecided",
            };
            let floor = ratio.noise_floor();
            if self.contest.contestants[contestant].role == Role::Again && floor.is_finite() {
                row.figures.insert(format!("{name}_noise_floor_ratio"), floor.into());
            }
            row.figures.extend([
                (format!("{name}_ratio"), Value::from(ratio.value)),
                (format!("{name}_ratio_low"), ratio.low.into()),
                (format!("{name}_ratio_high"), ratio.high.into()),
                (format!("{name}_verdict"), verdict.into()),
            ]);
        }
    }

    /// Geometric mean over the cases of peak over live bytes, minus one.
    fn overhead_of_all(&self, contestant: usize) -> Option<f64> {
        if self.breaks(None, contestant) > 0 {
            return None;
        }
        let mut factors = Vec::new();
        for (index, case) in self.contest.cases.iter().enumerate() {
            let peaks: Vec<f64> = self.runs(index, contestant).map(|run| run.peak_bytes).collect();
            factors.push(stats::median(&peaks)? / case.ideal?.live_bytes as f64);
        }
        Some(stats::geometric_mean(&factors)? - 1.0)
    }

    fn curves(&self, index: usize, case: &Case, report: &mut Report) {
        report.series.extend(case.known.iter().cloned());
        for (_, contestant, map) in self.results.maps.iter().filter(|(of, _, _)| *of == index) {
            report.series.push(Series {
                plot: "occupancy map".to_owned(),
                subject: self.contest.contestants[*contestant].name.clone(),
                workload: case.name.clone(),
                x_name: "page".to_owned(),
                y_name: "share in use".to_owned(),
                points: map.clone(),
            });
        }
        for latency in self.results.latencies.iter().filter(|latency| latency.case == index) {
            let subject = &self.contest.contestants[latency.contestant].name;
            report.series.extend(latency_over_time(subject, &case.name, &latency.points));
        }
        for (contestant, who) in self.contest.contestants.iter().enumerate() {
            if who.is_control() {
                continue;
            }
            let Some(run) = self.runs(index, contestant).last() else { continue };
            if run.curve.is_empty() {
                continue;
            }
            report.series.push(Series {
                plot: "resident over time".to_owned(),
                subject: who.name.clone(),
                workload: case.name.clone(),
                x_name: "share of the run".to_owned(),
                y_name: "resident_bytes".to_owned(),
                points: run.curve.clone(),
            });
        }
    }
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Reference => "reference",
        Role::Subject => "subject",
        Role::Again => "again",
        Role::Planted => "planted",
    }
}

/// The plot of the Doom 3 allocator study: a point for each operation, with its time in the
/// recording on the x axis and its latency on the y axis; one legend entry for each band of sizes.
fn latency_over_time(subject: &str, workload: &str, points: &[[f64; 3]]) -> Vec<Series> {
    const BANDS: [(&str, f64); 5] = [
        ("up to 64 B", 64.0),
        ("up to 1 KiB", 1024.0),
        ("up to 32 KiB", 32_768.0),
        ("up to 1 MiB", 1_048_576.0),
        ("above 1 MiB", f64::INFINITY),
    ];
    let mut lower = -1.0;
    let mut series = Vec::new();
    for (name, upper) in BANDS {
        let inside = |size: f64| size > lower && size <= upper;
        let points: Vec<[f64; 2]> = points
            .iter()
            .filter(|p| inside(p[2]))
            .map(|&[time, latency, _]| [time, latency])
            .collect();
        lower = upper;
        if !points.is_empty() {
            series.push(Series {
                plot: format!("latency over time, {subject}"),
                subject: name.to_owned(),
                workload: workload.to_owned(),
                x_name: "time_ms".to_owned(),
                y_name: "latency_ns".to_owned(),
                points,
            });
        }
    }
    series
}

#[cfg(test)]
mod tests;
