//! The verdict in words. Its figures are those of the table, against the same reference.

use std::time::Duration;

use hectare_trace::FileHeader;

use crate::contest::LEAST_ROUNDS;
use crate::output::table::{bytes, time};
use crate::report::{Report, Row};
use crate::stats::{Ratio, SAME_SHARE};

/// What an allocator is judged by, and the words for it.
struct Metric {
    name: &'static str,
    runs: &'static str,
    less: &'static str,
    more: &'static str,
    even: &'static str,
}

const METRICS: [Metric; 2] = [
    Metric { name: "time", runs: "time_ns_runs", less: "faster", more: "slower", even: "as fast" },
    Metric { name: "memory", runs: "memory_runs", less: "leaner", more: "fatter", even: "as lean" },
];

/// If the replay has a smaller share than this of the program's time or memory, it is no reason to
/// choose an allocator.
const LEAST_SHARE: f64 = SAME_SHARE;

/// What the program took while it was recorded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    /// How long it ran.
    pub(super) elapsed: Duration,
    /// The most memory that the process held that the advice is about, if that is known.
    pub(super) held: Option<Held>,
    /// Why only a part of it was recorded, if so.
    pub(super) cut_short: Option<&'static str>,
}

/// The most memory that a process held at a time, without the recorder's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    bytes: f64,
    /// Whether it never held more. What does not end by `exit` may have, after it was looked at.
    is_whole: bool,
}

impl Held {
    /// What the recorder has noted.
    pub(super) fn by(header: &FileHeader) -> Option<Self> {
        let held = Self { bytes: header.held_bytes as f64, is_whole: header.held_to_the_end };
        (header.held_bytes > 0).then_some(held)
    }
}

/// A figure of the replay beside the same figure of the program.
#[derive(Clone, Copy, Debug)]
struct Part {
    of_replay: f64,
    of_program: f64,
}

impl Part {
    fn share(self) -> f64 {
        self.of_replay / self.of_program
    }
}

/// What a replay can say about the program that was recorded.
#[derive(Clone, Copy, Debug)]
struct Reach {
    time: Option<Part>,
    memory: Option<Part>,
    /// The peak of live bytes, beside what the program held.
    live: Option<Part>,
    /// Whether the program never held more than is known.
    is_whole: bool,
}

impl Reach {
    fn of(reference: Option<&Row>, ran: Ran) -> Self {
        let part = |name: &str, of_program: Option<f64>| {
            Some(Part { of_replay: reference?.number(name)?, of_program: of_program? })
        };
        let held = ran.held.map(|held| held.bytes);
        Self {
            time: part("time_ns", Some(ran.elapsed.as_nanos() as f64)),
            memory: part("peak_bytes", held),
            live: part("ideal_live_bytes", held),
            is_whole: ran.held.is_some_and(|held| held.is_whole),
        }
    }

    /// Why the replay does not show what the program does, if so: a replay writes to every page.
    fn contradiction(&self) -> Option<String> {
        let live = self.live.filter(|live| self.is_whole && live.share() > 1.0)?;
        Some(format!(
            "no advice: the program writes to only a part of the memory it asks for, but its replay to \
             every page: {} were live at once, and it held {} at most. `--check` or `hectare compare -- CMD` \
             measures the program itself",
            bytes(live.of_replay),
            bytes(live.of_program)
        ))
    }

    /// Whether the replay takes longer than the whole program did.
    fn is_longer(&self) -> bool {
        self.time.is_some_and(|time| time.share() > 1.0)
    }

    /// Whether next to nothing of the program's time is the allocator's.
    fn is_slight(&self) -> bool {
        self.time.is_some_and(|time| time.share() < LEAST_SHARE)
    }

    /// Whether next to nothing of the program's memory is the allocator's.
    fn is_small(&self) -> bool {
        self.memory.is_some_and(|memory| memory.share() < LEAST_SHARE)
    }

    /// The replay beside the program, in words.
    fn words(&self, reference: &str) -> String {
        let words = |part: Part, figure: fn(f64) -> String, under: &str, did: &str| {
            let (of_replay, of_program) = (figure(part.of_replay), figure(part.of_program));
            match 100.0 * part.share() {
                percent @ ..=100.0 => {
                    format!("{of_replay}{under}, {percent:.2} % of the {of_program} that {did}")
                }
                _ => format!("{of_replay}{under}, more than the {of_program} that {did}"),
            }
        };
        let under = format!(" under {reference}");
        let time = self.time.map(|part| words(part, time, &under, "the program ran"));
        let memory = self.memory.filter(|part| self.is_whole || part.share() <= 1.0);
        let memory = memory.map(|part| match self.is_whole {
            true => words(part, bytes, "", "the process held at most"),
            false => words(part, bytes, "", "the process held, or of more"),
        });
        let told: Vec<String> = time.into_iter().chain(memory).collect();
        let told = if told.is_empty() { String::new() } else { format!(" ({})", told.join("; ")) };
        if self.is_longer() || self.memory.is_some_and(|part| self.is_whole && part.share() > 1.0) {
            return format!(
                "a replay is not its program{told}: `--check` or `hectare compare -- CMD` measures the program \
                 itself"
            );
        }
        format!(
            "a replay has the allocator's time and memory alone{told}: the whole program gains less, `--check` \
             or `hectare compare -- CMD` measures it"
        )
    }
}

/// The verdict: the choice first, then every allocator.
pub(super) fn lines(report: &Report, ran: Ran) -> Vec<String> {
    let of_role =
        |role: &'static str| report.rows.iter().filter(move |row| row.text("role") == Some(role));
    let at_reference = of_role("reference").next();
    let unsound: Vec<(&Row, String)> =
        of_role("subject").filter_map(|row| Some((row, unsound(row, at_reference)?))).collect();
    let subjects: Vec<&Row> = of_role("subject")
        .filter(|row| row.number("time_ratio").is_some())
        .filter(|row| unsound.iter().all(|(other, _)| other.subject != row.subject))
        .collect();
    let reference = report.reference().unwrap_or("it");
    let sure = report.parameters.get("confidence").and_then(|v| v.as_f64()).unwrap_or(0.0);
    let rounds = report.parameters.get("rounds").and_then(|v| v.as_u64()).unwrap_or(u64::MAX);
    let reach = Reach::of(at_reference, ran);
    let mut lines = vec![if rounds < LEAST_ROUNDS as u64 {
        format!("no advice: it takes {LEAST_ROUNDS} complete rounds, and there are {rounds}")
    } else if let Some(why) = ran.cut_short {
        format!("no advice: {why}")
    } else {
        reach.contradiction().unwrap_or_else(|| choice(&subjects, reference, &reach))
    }];
    if reach.is_longer() {
        lines.push(
            "by time nothing is sure: the replay takes longer than the program, so it does what the program \
             does not (writes to memory that the program leaves alone, waits for other threads)"
                .to_owned(),
        );
    }
    let is_seen = |row: &Row| verdict(row, &METRICS[0]) == Some("more");
    if of_role("planted").next().is_some_and(|planted| !is_seen(planted)) {
        lines.push(
            "a difference in time as small as the slowness that was planted to test this cannot be told here: \
             it was not seen; raise --rounds"
                .to_owned(),
        );
    }
    for row in subjects {
        lines.push(format!(
            "{} against {reference}: {}; {}",
            row.subject,
            part(row, &METRICS[0], sure),
            part(row, &METRICS[1], sure)
        ));
    }
    for (row, why) in unsound {
        lines.push(format!("no advice on {}: {why}", row.subject));
    }
    lines.push(reach.words(reference));
    lines
}

/// Why an allocator's figures are no reason to choose it, good as they may be.
fn unsound(row: &Row, reference: Option<&Row>) -> Option<String> {
    let failed = |row: &Row| row.number("failed_allocations").unwrap_or(0.0);
    if let Some(why) = row.text("broken") {
        Some(format!("it broke: {why}"))
    } else if let Some(how) = row.text("other_work") {
        Some(format!("it did other work ({how})"))
    } else if failed(row) > reference.map_or(0.0, failed) {
        Some(format!("{} of its allocations failed", failed(row)))
    } else {
        None
    }
}

/// What to choose, by what the replay can say about the program.
fn choice(subjects: &[&Row], reference: &str, reach: &Reach) -> String {
    let [time, memory] = &METRICS;
    let is_slight = reach.is_slight();
    let is_small = reach.is_small();
    let fast = if is_slight || reach.is_longer() { vec![] } else { best(subjects, time) };
    let lean = if is_small { vec![] } else { best(subjects, memory) };
    match (&fast[..], &lean[..]) {
        ([], []) if is_slight => {
            format!("stay with {reference}: the program hardly uses its allocator")
        }
        ([], []) => format!("stay with {reference}: nothing better is shown"),
        (fast, []) => {
            let why = if is_small {
                "in memory it hardly matters, for the program has most of its memory from elsewhere"
                    .to_owned()
            } else {
                format!("no allocator is shown to be leaner than {reference}")
            };
            format!("choose {} for time; {why}", either(fast, Some(memory)))
        }
        ([], lean) => {
            let why = if is_slight {
                "in time it hardly matters, for the program hardly uses its allocator".to_owned()
            } else if reach.is_longer() {
                "by time nothing is sure".to_owned()
            } else {
                format!("no allocator is shown to be faster than {reference}")
            };
            format!("choose {} for memory; {why}", either(lean, Some(time)))
        }
        (fast, lean) => {
            let both: Vec<&Row> = fast
                .iter()
                .filter(|row| lean.iter().any(|l| l.subject == row.subject))
                .copied()
                .collect();
            if both.is_empty() {
                format!(
                    "choose {} for time, {} for memory",
                    either(fast, Some(memory)),
                    either(lean, Some(time))
                )
            } else {
                format!(
                    "choose {}: none is shown to be faster here, and none leaner",
                    either(&both, None)
                )
            }
        }
    }
}

/// The best by a metric, and all that cannot be distinguished from the best. Empty when none is
/// shown to be better than the reference.
fn best<'a>(subjects: &[&'a Row], metric: &Metric) -> Vec<&'a Row> {
    let ratio = |row: &Row| row.number(&format!("{}_ratio", metric.name)).unwrap_or(f64::INFINITY);
    let mut better: Vec<&Row> =
        subjects.iter().filter(|row| verdict(row, metric) == Some("less")).copied().collect();
    better.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let Some(&first) = better.first() else { return better };
    better.retain(|row| row.subject == first.subject || !is_beaten(row, first, metric));
    better
}

/// Whether `first` is shown to be below `row`, round by round.
fn is_beaten(row: &Row, first: &Row, metric: &Metric) -> bool {
    let runs = |row: &Row| -> Option<Vec<f64>> {
        row.figures.get(metric.runs)?.as_array()?.iter().map(|value| value.as_f64()).collect()
    };
    let (Some(row), Some(first)) = (runs(row), runs(first)) else { return true };
    if row.len() != first.len() {
        return true;
    }
    let ratios: Vec<f64> = row.iter().zip(&first).map(|(a, b)| a / b).collect();
    Ratio::of(&ratios).is_none_or(|ratio| ratio.low > 1.0 + SAME_SHARE / 2.0)
}

/// What the choice by one metric costs in the other.
fn cost(row: &Row, other: &Metric) -> String {
    match verdict(row, other) {
        Some("more") => format!(" ({} by {:.1} %)", other.more, percent(row, other, "")),
        _ => String::new(),
    }
}

/// What one metric shows about an allocator, with an interval of confidence `sure`.
fn part(row: &Row, metric: &Metric, sure: f64) -> String {
    let (near, far) = (percent(row, metric, "_low"), percent(row, metric, "_high"));
    let sure = sure * 100.0;
    let range = format!("{sure:.0} % sure of {:.1} to {:.1} %", near.min(far), near.max(far));
    let by = |word: &str| format!("{word} by {:.1} % ({range})", percent(row, metric, ""));
    match verdict(row, metric) {
        Some("less") => by(metric.less),
        Some("more") => by(metric.more),
        Some("same") => format!("{} within {:.0} %", metric.even, SAME_SHARE * 100.0),
        _ => format!("not shown to be {} or {}", metric.less, metric.more),
    }
}

/// How far a ratio is from one, in per cent.
fn percent(row: &Row, metric: &Metric, end: &str) -> f64 {
    let ratio = row.number(&format!("{}_ratio{end}", metric.name)).unwrap_or(1.0);
    (ratio - 1.0).abs() * 100.0
}

/// The names, each with what it costs by the `other` metric.
fn either(rows: &[&Row], other: Option<&Metric>) -> String {
    let name = |row: &&Row| {
        let cost = other.map(|other| cost(row, other)).unwrap_or_default();
        format!("{}{cost}", row.subject)
    };
    rows.iter().map(name).collect::<Vec<_>>().join(" or ")
}

fn verdict<'a>(row: &'a Row, metric: &Metric) -> Option<&'a str> {
    row.text(&format!("{}_verdict", metric.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(subject: &str, time: f64, memory: f64) -> Row {
        let mut row = Row::new(subject, "x").with("role", "subject");
        for (metric, ratio) in [("time", time), ("memory", memory)] {
            let verdict = match ratio {
                ..0.99 => "less",
                1.01.. => "more",
                _ => "same",
            };
            row = row
                .with(&format!("{metric}_ratio"), ratio)
                .with(&format!("{metric}_ratio_low"), ratio * 0.99)
                .with(&format!("{metric}_ratio_high"), ratio * 1.01)
                .with(&format!("{metric}_verdict"), verdict);
        }
        row.with("time_ns_runs", vec![time; 5]).with("memory_runs", vec![memory; 5])
    }

    fn lines_of(rows: Vec<Row>) -> Vec<String> {
        let mut report = Report::new("choose");
        report.parameter("reference", "system");
        report.parameter("confidence", 0.75);
        report.rows = rows;
        lines(&report, Ran { elapsed: Duration::from_millis(10), held: None, cut_short: None })
    }

    #[test]
    fn the_choice_follows_what_is_shown() {
        let (even, fast) = (row("even", 1.0, 1.0), row("fast", 0.8, 1.2));
        let (lean, both) = (row("lean", 1.1, 0.7), row("both", 0.5, 0.5));
        assert!(lines_of(vec![even.clone()])[0].starts_with("stay with system"));
        let told = lines_of(vec![even.clone(), fast.clone()]);
        assert_eq!(
            told[0],
            "choose fast (fatter by 20.0 %) for time; no allocator is shown to be leaner than system"
        );
        assert!(told[1].contains("as fast within 2 %; as lean within 2 %"), "{}", told[1]);
        let told = lines_of(vec![fast.clone(), lean.clone()]);
        assert_eq!(
            told[0],
            "choose fast (fatter by 20.0 %) for time, lean (slower by 10.0 %) for memory"
        );
        assert!(told[1].contains("faster by 20.0 % (75 % sure of"), "{}", told[1]);
        assert!(lines_of(vec![fast, lean, both])[0].starts_with("choose both:"));
    }

    #[test]
    fn time_is_no_reason_where_the_program_hardly_allocates() {
        let (fast, lean) = (row("fast", 0.5, 1.2), row("lean", 1.1, 0.7));
        for (ns, alone, both) in [
            (
                100_000.0,
                "stay with system: the program hardly",
                "choose lean (slower by 10.0 %) for memory; in time",
            ),
            (
                1e6,
                "choose fast (fatter by 20.0 %) for time",
                "choose fast (fatter by 20.0 %) for time, lean",
            ),
        ] {
            let reference = Row::new("system", "x").with("role", "reference").with("time_ns", ns);
            let told = lines_of(vec![reference.clone(), fast.clone()]);
            assert!(told[0].starts_with(alone), "{}", told[0]);
            let share = format!("{:.2} % of the 10.0 ms", ns / 1e5);
            assert!(told.last().unwrap().contains(&share), "{told:?}");
            let told = lines_of(vec![reference, fast.clone(), lean.clone()]);
            assert!(told[0].starts_with(both), "{}", told[0]);
        }
    }

    #[test]
    fn part_of_a_program_gives_no_advice() {
        let mut report = Report::new("choose");
        report.rows = vec![row("fast", 0.5, 0.5)];
        let elapsed = Duration::from_millis(10);
        let cut_short = Some("the recording is cut short");
        let ran = Ran { elapsed, held: None, cut_short };
        assert_eq!(lines(&report, ran)[0], "no advice: the recording is cut short");
    }

    #[test]
    fn a_replay_that_does_what_the_program_does_not_is_no_reason() {
        let (fast, lean) = (row("fast", 0.5, 1.2), row("lean", 1.1, 0.7));
        let elapsed = Duration::from_millis(10);
        let told = |ns: f64, live: f64, (held_bytes, held_to_the_end): (u64, bool)| {
            let reference = Row::new("system", "x").with("role", "reference").with("time_ns", ns);
            let reference = reference.with("peak_bytes", live).with("ideal_live_bytes", live);
            let mut report = Report::new("choose");
            report.parameter("reference", "system");
            report.rows = vec![reference, fast.clone(), lean.clone()];
            let header = FileHeader { held_bytes, held_to_the_end, ..FileHeader::new() };
            lines(&report, Ran { elapsed, held: Held::by(&header), cut_short: None })
        };
        let mib = f64::from(1 << 20);
        let usual = told(1e6, 9.0 * mib, (10 << 20, true));
        assert!(usual[0].starts_with("choose fast (fatter by 20.0 %) for time, lean"), "{usual:?}");
        let part = "10.00 % of the 10.0 ms that the program ran; 9.0 MiB, 90.00 % of the 10.0 MiB that the \
                    process held at most): the whole program gains less";
        assert!(usual.last().unwrap().contains(part), "{usual:?}");
        // The program held less than it had asked for.
        let unwritten = told(1e6, 128.0 * mib, (58 << 20, true));
        assert!(
            unwritten[0].starts_with("no advice: the program writes to only a part"),
            "{unwritten:?}"
        );
        assert!(unwritten[0].contains("128.0 MiB were live at once, and it held 58.0 MiB"));
        let more = "128.0 MiB, more than the 58.0 MiB that the process held at most";
        assert!(unwritten.last().unwrap().contains(more), "{unwritten:?}");
        let unsure = told(1e6, 128.0 * mib, (58 << 20, false));
        assert!(unsure[0].starts_with("choose fast"), "it may have held more: {unsure:?}");
        assert!(!unsure.last().unwrap().contains("58.0 MiB"), "{unsure:?}");
        let unknown = told(1e6, 128.0 * mib, (0, false));
        assert!(unknown[0].starts_with("choose fast"), "{unknown:?}");
        let least = told(1e6, 9.0 * mib, (10 << 20, false));
        let part = "90.00 % of the 10.0 MiB that the process held, or of more)";
        assert!(least.last().unwrap().contains(part), "{least:?}");
        let longer = told(11e6, 9.0 * mib, (10 << 20, true));
        assert_eq!(longer[0], "choose lean (slower by 10.0 %) for memory; by time nothing is sure");
        assert!(longer[1].starts_with("by time nothing is sure: the replay takes longer"));
        let last = longer.last().unwrap();
        assert!(last.contains("more than the 10.0 ms that the program ran; 9.0 MiB, 90.00 %"));
        assert!(!last.contains("gains less") && !last.contains("110"), "{last}");
        let elsewhere = told(1e6, mib, (100 << 20, true));
        let expected = "choose fast (fatter by 20.0 %) for time; in memory it hardly matters";
        assert!(elsewhere[0].starts_with(expected), "{elsewhere:?}");
    }

    #[test]
    fn what_is_not_seen_of_the_planted_slowness_is_told() {
        for (ratio, is_told) in [(1.1, false), (1.0, true)] {
            let planted = row("system +10 %", ratio, 1.0).with("role", "planted");
            let told = lines_of(vec![row("fast", 0.8, 1.0), planted]);
            assert_eq!(
                told[1].starts_with("a difference in time as small as"),
                is_told,
                "{told:?}"
            );
        }
    }

    #[test]
    fn those_that_cannot_be_told_apart_are_named_together() {
        let fast = row("fast", 0.80, 1.0);
        let near = row("near", 0.801, 1.0);
        let told = lines_of(vec![fast, near, row("behind", 0.9, 1.0)]);
        assert!(told[0].starts_with("choose fast or near for time"), "{}", told[0]);
        let fat = row("fat", 0.80, 1.5);
        let told = lines_of(vec![row("fast", 0.80, 1.0), fat]);
        assert!(
            told[0].starts_with("choose fast or fat (fatter by 50.0 %) for time"),
            "{}",
            told[0]
        );
    }

    #[test]
    fn who_did_not_do_the_work_is_not_advised() {
        let fast = row("fast", 0.5, 0.5);
        let reference = Row::new("system", "x").with("role", "reference");
        for (name, value, part) in [
            ("broken", "killed by SIGSEGV".into(), "it broke: killed by SIGSEGV"),
            ("other_work", "checksum differs".into(), "it did other work (checksum differs)"),
            ("failed_allocations", serde_json::Value::from(3), "3 of its allocations failed"),
        ] {
            let fast = fast.clone().with(name, value);
            let told = lines_of(vec![reference.clone(), fast]);
            assert!(told[0].starts_with("stay with system"), "{}", told[0]);
            assert_eq!(told[1], format!("no advice on fast: {part}"));
        }
        // Allocations that also fail under the reference are due to the trace, which asks for
        // memory that is not there.
        let reference = reference.with("failed_allocations", 3);
        let told = lines_of(vec![reference, fast.with("failed_allocations", 3)]);
        assert!(told[0].starts_with("choose fast:"), "{}", told[0]);
    }
}
