//! The analysis on runs whose truth is known.

use super::*;
use crate::contest::{Broken, Looks, Rounds, Work};
use crate::machine::Machine;
use crate::replay::Ideal;
use crate::subject::Subject;

fn contest(cases: usize) -> Contest {
    let fast = Subject { name: "fast".to_owned(), library: Some("/x/libfast.so".into()) };
    let ideal = Ideal { live_bytes: 1000, rounded16_bytes: 1100, pages_bytes: 4096 };
    Contest {
        cases: (0..cases)
            .map(|index| Case {
                ideal: Some(ideal),
                ..Case::new(format!("case{index}"), Work::Program(Vec::new()))
            })
            .collect(),
        contestants: Contest::contestants(&[Subject::system(), fast], &Subject::system()),
        rounds: Rounds::Exactly(8),
        seed: 1,
        looks: Looks::default(),
        ignore_failure: false,
        timeout: None,
        warm_memory: crate::runner::WarmMemory::Never,
    }
}

fn run(case: usize, contestant: usize, round: usize, time_ns: f64, peak_bytes: f64) -> Run {
    Run {
        case,
        contestant,
        round,
        ops: 10,
        time_ns,
        cpu_ns: time_ns,
        peak_bytes,
        memory: peak_bytes,
        faults: 1,
        lived_ns: time_ns as u64,
        checksum: 7,
        ..Run::default()
    }
}

/// Eight rounds on a machine that slows down to half its speed in the middle. The pairs must not be
/// affected.
fn results(cases: usize, again: f64, planted: f64) -> Results {
    let mut results = Results { rounds: 8, planted_ns: vec![10.0; cases], ..Results::default() };
    for case in 0..cases {
        for round in 0..8 {
            let machine = if (3..6).contains(&round) { 2.0 } else { 1.0 };
            let jitter = 1.0 + 0.002 * round as f64;
            for (contestant, factor) in
                [(0, 1.0), (1, 0.5 * jitter), (2, again), (3, planted * jitter)]
            {
                results.runs.push(run(case, contestant, round, 100.0 * machine * factor, 2000.0));
            }
        }
    }
    results
}

fn report(contest: &Contest, results: &Results) -> Report {
    let mut report = Report::new("test");
    Analysis::new(contest, results).fill(&mut report);
    report
}

#[test]
fn paired_ratios_cancel_what_slows_the_machine() {
    let (contest, results) = (contest(2), results(2, 1.0, 1.1));
    let report = report(&contest, &results);
    let all =
        |name: &str| report.rows.iter().find(|r| r.subject == name && r.workload == "all").unwrap();
    let ratio = all("fast").number("time_ratio").unwrap();
    assert!((0.5..0.51).contains(&ratio), "{ratio}");
    assert_eq!(all("fast").figures["time_verdict"], "less");
    assert_eq!(all("fast").figures["peak_verdict"], "same");
    assert!((all("fast").number("overhead_ratio").unwrap() - 1.0).abs() < 1e-9);
    assert_eq!(all("system").figures["time_verdict"], "reference");
}

#[test]
fn the_planted_slowness_is_told_seen_or_not_seen() {
    let contest = contest(1);
    let seen = report(&contest, &results(1, 1.0, 1.1));
    assert!(seen.notes.iter().any(|note| note.starts_with("planted slowness seen")));
    // No slowness shows where one was planted: the report must not stay quiet.
    let unseen = report(&contest, &results(1, 1.0, 0.99));
    assert!(unseen.notes.iter().any(|note| note.starts_with("planted slowness NOT SEEN")));
    // A bias of the reference against itself, as large as the effect, hides it, too.
    let biased = report(&contest, &results(1, 1.2, 1.1));
    assert!(biased.notes.iter().any(|note| note.starts_with("planted slowness NOT SEEN")));
}

#[test]
fn a_round_that_was_cut_decides_nothing() {
    let contest = contest(2);
    let mut results = results(2, 1.0, 1.1);
    results.runs.retain(|run| run.round < 2 || run.round == 2 && run.case == 0);
    (results.rounds, results.interrupted) = (2, true);
    results.drop_incomplete_round();
    let cut = report(&contest, &results);
    assert!(
        cut.notes.iter().any(|note| note.starts_with("complete rounds: 2;")),
        "{:?}",
        cut.notes
    );
    for row in cut.rows.iter().filter(|row| row.subject == "fast") {
        assert_eq!(row.figures["time_verdict"], "undecided", "{}", row.workload);
    }
    // The report tells what there is of a first round.
    results.runs.retain(|run| run.round == 0 && run.case == 0);
    results.rounds = 0;
    results.drop_incomplete_round();
    let first = report(&contest, &results);
    assert!(!first.rows.is_empty());
    let told = |report: &Report, what| report.notes.iter().any(|note| note == what);
    assert!(told(&first, "interrupted: the figures are those of the runs measured"));
    results.runs.clear();
    let nothing = report(&contest, &results);
    assert!(!nothing.notes.iter().any(|note| note.starts_with("interrupted")), "{nothing:?}");
}

#[test]
fn what_was_planted_is_told_of_the_cases_that_ran() {
    let contest = contest(2);
    let mut results = results(2, 1.0, 1.1);
    results.runs.retain(|run| run.case == 0);
    results.planted_ns[1] = 0.0;
    let report = report(&contest, &results);
    let note = report.notes.iter().find(|note| note.starts_with("planted slowness")).unwrap();
    assert!(note.ends_with("1.100 planted"), "{note}");
    // A disturbed warm-up made the slowness larger than intended.
    results.planted_ns[0] = 30.0;
    let report = self::report(&contest, &results);
    let note = report.notes.iter().find(|note| note.starts_with("planted slowness")).unwrap();
    assert!(note.contains("1.300 planted"), "{note}");
    // Seeing it says nothing about the size that was intended.
    assert!(note.contains("seen: ") && note.contains("smaller differences may go"), "{note}");
}

#[test]
fn a_replay_is_slowed_by_a_share_of_what_its_threads_work() {
    use crate::replay::{Mode, Touch};
    let work = |busy_ns: f64, cpu_ns: f64, of: Work| {
        let mut run = run(0, 0, 0, 100.0, 1.0);
        run.cpu_ns = cpu_ns;
        run.more.insert("busy_ns".to_owned(), busy_ns);
        Case { work: of, ..contest(1).cases.remove(0) }.work_ns(&run)
    };
    let trace =
        || Work::Trace { path: "x.hxt".into(), mode: Mode::Speed, touch: Touch::Page, points: 0 };
    assert_eq!(work(190.0, 200.0, trace()), 190.0, "two side by side, which hardly wait");
    assert_eq!(work(400.0, 195.0, trace()), 195.0, "four on two processors");
    assert_eq!(work(90.0, 180.0, trace()), 100.0, "two that take turns");
    assert_eq!(work(190.0, 200.0, Work::Program(Vec::new())), 100.0, "one wait");
}

#[test]
fn broken_contestants_and_other_work_are_named() {
    let contest = contest(1);
    let mut results = results(1, 1.0, 1.1);
    results.runs.retain(|run| run.contestant != 1);
    let why = "killed by SIGSEGV".to_owned();
    results.broken.push(Broken { case: 0, contestant: 1, why, by_exit: true });
    results.runs.last_mut().unwrap().checksum = 8;
    let report = report(&contest, &results);
    assert!(report.notes.iter().any(|note| note == "fast broke in case0: killed by SIGSEGV"));
    assert!(report.notes.iter().any(|note| note.contains("did other work")));
    let row = report.rows.iter().find(|row| row.subject == "fast").unwrap();
    assert_eq!(row.figures["broken"], "killed by SIGSEGV");
    let other = report.rows.iter().find(|row| row.figures["role"] == "planted").unwrap();
    assert_eq!(other.figures["other_work"], "checksum or exit code differs");
}

#[test]
fn who_allocated_less_is_neither_faster_nor_leaner() {
    use crate::contest::assertion::{Claim, Decision};
    let contest = contest(2);
    for spare in [|run: &mut Run| run.failed_allocations = 5, |run: &mut Run| run.checksum = 8] {
        let mut results = results(2, 1.0, 1.1);
        let mut of_fast =
            results.runs.iter_mut().filter(|run| run.contestant == 1 && run.case == 1);
        spare(of_fast.next().unwrap());
        let analysis = Analysis::new(&contest, &results);
        let report = report(&contest, &results);
        let verdict = |workload: &str| {
            let mut rows = report.rows.iter();
            let row = rows.find(|r| r.subject == "fast" && r.workload == workload).unwrap();
            row.figures["time_verdict"].as_str().unwrap().to_owned()
        };
        assert_eq!(["case0", "case1", "all"].map(verdict), ["less", "undecided", "undecided"]);
        let decided = |text: &str| {
            let claim: Claim = text.parse().unwrap();
            claim.decide(&contest, &analysis).unwrap().map(|(decision, _)| decision)
        };
        assert_eq!(decided("time(fast, case0) < time(system, case0)"), Some(Decision::Holds));
        assert_eq!(decided("time(fast, case1) < time(system, case1)"), None);
        assert_eq!(decided("time(fast) < time(system)"), None);
    }
}

/// The second subject breaks in the second of two cases, after three rounds in which it was fast.
fn flaky() -> (Contest, Results) {
    let (contest, mut results) = (contest(2), results(2, 1.0, 1.1));
    results.runs.retain(|run| run.contestant != 1 || run.case == 0 || run.round < 3);
    let why = "killed by SIGSEGV".to_owned();
    results.broken.push(Broken { case: 1, contestant: 1, why, by_exit: false });
    (contest, results)
}

#[test]
fn who_breaks_wins_nothing_by_the_rounds_before() {
    let (contest, results) = flaky();
    let report = report(&contest, &results);
    let row = |workload: &str| {
        report.rows.iter().find(|r| r.subject == "fast" && r.workload == workload).unwrap()
    };
    assert_eq!(row("case0").figures["time_verdict"], "less");
    assert_eq!(row("case1").figures["broken"], "killed by SIGSEGV");
    assert_eq!(row("case1").figures["time_ns_runs"].as_array().unwrap().len(), 3);
    assert_eq!(row("all").figures["broken"], "in 1 of 2 cases");
    for workload in ["case1", "all"] {
        assert_eq!(row(workload).number("time_ratio"), None, "{workload}");
    }
    assert_eq!(row("all").number("overhead_ratio"), None);
}

#[test]
fn who_has_no_run_where_the_reference_has_one_has_no_ratio_over_all() {
    let (contest, mut results) = (contest(2), results(2, 1.0, 1.1));
    results.runs.retain(|run| run.contestant != 1 || run.case == 0);
    let analysis = Analysis::new(&contest, &results);
    assert_eq!(analysis.ratios(Metric::Time, None, 1, 0), Vec::<f64>::new());
    // In a case without runs of the reference there is nothing to compare with.
    results.runs.retain(|run| run.contestant != 0 || run.case == 0);
    let analysis = Analysis::new(&contest, &results);
    assert_eq!(analysis.ratios(Metric::Time, None, 1, 0).len(), 8);
}

#[test]
fn a_claim_about_who_broke_is_undecided() {
    use crate::contest::assertion::Claim;
    let (contest, results) = flaky();
    let analysis = Analysis::new(&contest, &results);
    for (text, broke) in [
        ("time(fast) < time(system)", true),
        ("time(fast) < 1 s", true),
        ("1 s > time(fast, case1)", true),
        ("time(fast, case0) < time(system, case0)", false),
    ] {
        let claim: Claim = text.parse().unwrap();
        let why = claim.obstacle(&contest, &analysis).unwrap();
        assert_eq!(why.as_deref(), broke.then_some("fast broke"), "{text}");
        assert_eq!(claim.decide(&contest, &analysis).unwrap().is_none(), broke, "{text}");
    }
}

#[test]
fn no_faults_at_all_are_a_figure() {
    use crate::contest::assertion::{Claim, Decision};
    let contest = contest(1);
    let mut results = results(1, 1.0, 1.1);
    let mine = results.runs.iter_mut().filter(|run| run.contestant == 1);
    mine.for_each(|run| run.faults = if run.round < 3 { 7 } else { 0 });
    results.runs.iter_mut().filter(|run| run.contestant != 1).for_each(|run| run.faults = 7);
    let row = |report: &Report, name: &str| {
        report.rows.iter().find(|row| row.subject == name).unwrap().clone()
    };
    let fast = row(&report(&contest, &results), "fast");
    assert_eq!(
        fast.number("faults"),
        Some(0.0),
        "the median of all runs, not of those with faults"
    );
    assert_eq!(fast.number("faults_ratio"), Some(0.0), "of all rounds, not of those with faults");
    assert_ne!(fast.figures["faults_verdict"], "same");
    let decided = |results: &Results, text: &str| {
        let claim: Claim = text.parse().unwrap();
        let decided = claim.decide(&contest, &Analysis::new(&contest, results)).unwrap();
        decided.map(|(decision, _)| decision)
    };
    for (text, expected) in [
        ("faults(fast) < 8", Decision::Holds),
        ("faults(fast) < 5", Decision::Undecided),
        ("faults(fast) <= faults(system)", Decision::Holds),
        // Exactly seven, which the logarithm of a geometric mean would round.
        ("faults(system) >= 7", Decision::Holds),
        ("faults(system) < 7", Decision::Fails),
    ] {
        assert_eq!(decided(&results, text), Some(expected), "{text}");
    }
    // Nothing is a multiple of zero.
    results.runs.iter_mut().filter(|run| run.round < 5).for_each(|run| run.faults = 0);
    assert_eq!(row(&report(&contest, &results), "fast").number("faults_ratio"), None);
    assert_eq!(decided(&results, "faults(fast) < faults(system)"), None);
    assert_eq!(decided(&results, "faults(fast) < 1"), Some(Decision::Holds));
}

#[test]
fn what_was_measured_in_some_rounds_alone_has_no_ratio() {
    let contest = contest(1);
    let mut results = results(1, 1.0, 1.1);
    // Only the longest runs are sampled often enough.
    for run in results.runs.iter_mut().filter(|run| (3..6).contains(&run.round)) {
        run.mean_bytes = Some(run.peak_bytes);
    }
    let report = report(&contest, &results);
    let row = report.rows.iter().find(|row| row.subject == "fast").unwrap();
    assert_eq!(row.number("mean_bytes"), Some(2000.0));
    assert_eq!(row.number("mean_ratio"), None);
    assert!(Analysis::new(&contest, &results).values(Metric::Mean, Some(0), 1).is_empty());
}

#[test]
fn the_noise_floor_told_is_of_the_memory_that_the_table_compares() {
    let contest = contest(1);
    let mut results = results(1, 1.0, 1.1);
    // As for a workload with next to no memory of its own: the process's memory is part of the
    // ratio.
    for run in &mut results.runs {
        run.peak_bytes *= if run.contestant == 2 { 3.0 } else { 1.0 };
        run.memory = run.peak_bytes + 2_097_152.0;
        run.added_bytes = 2_097_152.0;
    }
    let report = report(&contest, &results);
    let note = report.notes.iter().find(|note| note.starts_with("noise floor, memory")).unwrap();
    let floor = "noise floor, memory: ±";
    assert!(note.starts_with(floor) && note.contains(" % by the median absolute deviation; "));
    assert!(note.contains("against itself 1.002 ["), "{note}");
}

#[test]
fn without_the_control_nothing_is_decided() {
    let contest = contest(2);
    // The control has no round in one case, and two in the other.
    let mut results = results(2, 1.0, 1.1);
    results.runs.retain(|run| run.contestant != 2 || (run.case == 1 && run.round < 2));
    let report = report(&contest, &results);
    for row in report.rows.iter().filter(|row| row.subject == "fast") {
        for metric in ["time", "peak"] {
            let verdict = &row.figures[&format!("{metric}_verdict")];
            assert_eq!(verdict, "undecided", "{}, {metric}", row.workload);
        }
    }
    let again = |row: &&Row| row.figures["role"] == "again";
    assert!(
        report.rows.iter().filter(again).all(|row| row.number("time_noise_floor_ratio").is_none())
    );
    let note = "nothing is decided in case0, case1, all of them together: system against itself has \
                too few rounds there";
    assert!(report.notes.iter().any(|told| told == note), "{:?}", report.notes);
}

#[test]
fn the_share_that_was_stolen_is_of_all_processors() {
    let contest = contest(1);
    let mut results = results(1, 1.0, 1.1);
    let cpus = Machine::probe().cpus as u64;
    for run in &mut results.runs {
        // The timed section is a hundredth of the process.
        run.lived_ns *= 100;
        run.steal_ns = run.lived_ns * cpus / 4;
    }
    let report = report(&contest, &results);
    let told = report.notes.iter().find(|note| note.starts_with("the hypervisor took")).unwrap();
    assert!(told.contains("25.0 %"), "{told}");
}

#[test]
fn incomplete_rounds_pair_only_what_was_measured() {
    let contest = contest(1);
    let mut results = results(1, 1.0, 1.1);
    results.runs.retain(|run| run.contestant != 1 || run.round < 4);
    let analysis = Analysis::new(&contest, &results);
    assert_eq!(analysis.ratios(Metric::Time, Some(0), 1, 0).len(), 4);
    assert_eq!(analysis.ratios(Metric::Mean, Some(0), 1, 0), Vec::<f64>::new());
}

#[test]
fn claims_are_decided_by_the_interval() {
    use crate::contest::assertion::{Claim, Decision};
    let (contest, results) = (contest(2), results(2, 1.0, 1.1));
    let analysis = Analysis::new(&contest, &results);
    for (text, expected) in [
        ("time(fast) < 0.9*time(system)", Decision::Holds),
        ("time(fast) > 0.9*time(system)", Decision::Fails),
        ("time(fast, case1) < 0.4*time(system, case1)", Decision::Fails),
        ("time(fast) < 0.502*time(system)", Decision::Undecided),
        ("rss(fast) < 3KiB", Decision::Holds),
        ("1000 > rss(fast)", Decision::Fails),
    ] {
        let claim: Claim = text.parse().unwrap();
        claim.check(&contest).unwrap();
        let (decision, _) = claim.decide(&contest, &analysis).unwrap().unwrap();
        assert_eq!(decision, expected, "{text}");
    }
    for unknown in ["time(slow) < 1", "time(fast, nothing) < 1"] {
        let claim: Claim = unknown.parse().unwrap();
        assert!(claim.check(&contest).is_err(), "{unknown}");
    }
}

#[test]
fn a_limit_in_bytes_is_not_one_of_a_ratio() {
    use crate::bench::Parameters;
    use crate::contest::assertion::Claim;
    let mut contest = contest(2);
    let parameters = Parameters::new(1, 1);
    // The case judges memory by the ratio of resident to live.
    contest.cases[1].work = Work::Bench { name: "phases".to_owned(), parameters };
    for (text, is_sound) in [
        ("rss(fast, case1) < 3KiB", false),
        ("3KiB > rss(fast, case1)", false),
        ("rss(fast, case1) < 1.5", true),
        ("rss(fast, case0) < 3KiB", true),
        ("peak(fast, case1) < 3KiB", true),
        ("rss(fast, case1) < rss(system, case1)", true),
        ("rss(fast) < rss(system)", true),
        ("rss(fast) < 3KiB", false),
        ("rss(fast) < 3", false),
    ] {
        let claim: Claim = text.parse().unwrap();
        assert_eq!(claim.check(&contest).is_ok(), is_sound, "{text}");
    }
}
