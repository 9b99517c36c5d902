//! `hectare buddy` from outside: what its flags do, and what it says to what it cannot do.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

/// All allocators of the table.
const DEMOS: [&str; 12] = [
    "list-vec",
    "list-linked",
    "tree-vec",
    "tree-linked",
    "bitmap-tree",
    "bitset",
    "atomic",
    "bitset-checked",
    "atomic-checked",
    "buddy_system_allocator-frames",
    "buddy_system_allocator-heap",
    "buddy-alloc",
];

fn buddy(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hectare"))
        .arg("buddy")
        .args(arguments)
        .output()
        .expect("the command starts")
}

fn text(arguments: &[&str]) -> String {
    let output = buddy(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("the table is text")
}

fn record(arguments: &[&str]) -> Value {
    let mut all = arguments.to_vec();
    all.extend(["--json", "-"]);
    serde_json::from_str(&text(&all)).expect("with `--json -` there is nothing else on the output")
}

fn rows(report: &Value) -> &Vec<Value> {
    report["rows"].as_array().expect("a record has rows")
}

fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("hectare-buddy-{}-{name}", std::process::id()))
}

#[test]
fn all_demos_run_and_each_row_has_its_figures() {
    let report = record(&["-b", "600", "--free", "--rounds", "2"]);
    let names: Vec<&str> = rows(&report).iter().filter_map(|row| row["subject"].as_str()).collect();
    assert_eq!(names, DEMOS);
    for row in rows(&report) {
        assert_eq!(row["blocks"], 600);
        for figure in ["alloc_ms", "alloc_ns", "alloc_gib_per_s", "free_ms", "free_ns"] {
            assert!(row[figure].as_f64().is_some_and(|value| value > 0.0), "{figure} of {row}");
        }
        let (ms, ns) = (row["alloc_ms"].as_f64().unwrap(), row["alloc_ns"].as_f64().unwrap());
        assert!((ms * 1e6 / 600.0 - ns).abs() < 1e-6, "{row}");
        // The median of two rounds lies in the middle between them.
        let ends = ["best_alloc_ms", "worst_alloc_ms"].map(|name| row[name].as_f64().unwrap());
        assert!((ms - (ends[0] + ends[1]) / 2.0).abs() < 1e-9, "{row}");
    }
}

#[test]
fn the_defaults_are_the_workshops() {
    let report = record(&["-d", "bitset", "-d", "list-linked", "--rounds", "1"]);
    let blocks: Vec<&Value> = rows(&report).iter().map(|row| &row["blocks"]).collect();
    assert_eq!(report["parameters"]["blocks"], 100_000);
    assert_eq!(report["parameters"]["order"], 0);
    // The quadratic one is given fewer, and says so.
    assert_eq!(blocks, [5000, 100_000]);
    let note = rows(&report)[0]["note"].as_str().unwrap();
    assert!(note.contains("5000 of 100000 blocks"), "{note}");
    let table = text(&["-d", "list-linked", "-b", "2000", "--rounds", "1"]);
    assert!(table.contains("2000") && !table.contains("blocks:"), "{table}");
}

#[test]
fn addresses_are_printed_one_a_line() {
    let order_two = text(&["-p", "-b", "3", "-o", "2", "-d", "bitset", "--rounds", "2"]);
    let lines: Vec<&str> = order_two.lines().take(4).collect();
    assert_eq!(lines[..3], ["bitset 0x0", "bitset 0x4000", "bitset 0x8000"]);
    assert!(lines[3].starts_with("allocator"), "{order_two}");
    // A record on the standard output stands there alone, without them.
    let report = record(&["-p", "-b", "3", "-d", "bitset", "--rounds", "1"]);
    assert_eq!(rows(&report).len(), 1);
    for demo in DEMOS {
        let printed = text(&["-p", "-b", "40", "-d", demo, "--rounds", "1"]);
        let mut addresses: Vec<&str> =
            printed.lines().filter_map(|line| line.split_once(" 0x")).map(|line| line.1).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), 40, "{demo}");
    }
}

#[test]
fn whose_time_a_blocks_is_is_told_where_threads_take_them() {
    let note = "ns/block: the time for which a thread waits";
    let arguments = ["-d", "bitset", "-b", "64", "--rounds", "1"];
    let told = |threads: &str| text(&[&arguments[..], &["--threads", threads]].concat());
    assert!(!told("1").contains(note));
    assert!(told("1,2").contains(note) && told("2").contains(note));
    let report = record(&[&arguments[..], &["--threads", "2"]].concat());
    assert!(report["notes"][0].as_str().unwrap().starts_with(note), "{report}");
}

#[test]
fn blocks_are_freed_in_batches_at_random_and_by_several_threads() {
    for flags in [
        &["--free", "--batch", "100"][..],
        &["--shuffle"],
        &["--free", "--threads", "2"],
        &["--shuffle", "--threads", "3", "--batch", "7"],
    ] {
        let mut arguments = vec!["-b", "5000", "-o", "1", "--rounds", "1", "-d", "bitset"];
        arguments.extend(["-d", "atomic", "-d", "buddy-alloc", "-d", "atomic-checked"]);
        arguments.extend(flags);
        let report = record(&arguments);
        for row in rows(&report) {
            assert!(row["free_ns"].as_f64().is_some_and(|ns| ns > 0.0), "{flags:?}: {row}");
        }
    }
}

#[test]
fn several_numbers_of_threads_are_compared_beside_a_control() {
    let report = record(&["-b", "2000", "--free", "--threads", "1,2", "-d", "atomic"]);
    let lines: Vec<(&str, u64, bool)> = rows(&report)
        .iter()
        .map(|row| {
            let has_ratio = row["alloc_times_first"].is_number();
            (row["subject"].as_str().unwrap(), row["threads"].as_u64().unwrap(), has_ratio)
        })
        .collect();
    let expected =
        [("atomic", 1, false), ("atomic", 2, true), ("control", 1, false), ("control", 2, true)];
    assert_eq!(lines, expected);
    let row = &rows(&report)[1];
    let ratio = row["free_ns"].as_f64().unwrap() / rows(&report)[0]["free_ns"].as_f64().unwrap();
    assert!((row["free_times_first"].as_f64().unwrap() - ratio).abs() < 1e-9);
}

#[test]
fn blocks_of_every_order_are_aligned() {
    for order in ["1", "2", "3", "9"] {
        let report = record(&["-o", order, "-b", "3", "--rounds", "1", "--free"]);
        assert_eq!(rows(&report).len(), DEMOS.len());
        assert!(rows(&report).iter().all(|row| row["free_ms"].is_number()), "{order}");
    }
}

#[test]
fn the_largest_blocks_can_be_had() {
    // A block of the largest order is 1 GiB; those that write into it would need the memory.
    let report = record(&["-o", "18", "-b", "2", "--free", "-d", "bitset", "-d", "atomic"]);
    assert!(rows(&report).iter().all(|row| row["free_ms"].is_number()));
    let report = record(&["-o", "18", "-b", "5", "-d", "buddy-alloc", "--rounds", "1"]);
    let note = rows(&report)[0]["note"].as_str().unwrap();
    assert!(note.starts_with("left out:") && note.contains("5 GiB"), "{note}");
}

#[test]
fn growth_goes_on_to_the_block_count_or_the_end_of_patience() {
    let report = record(&["growth", "-b", "256", "-d", "bitset", "-d", "tree-vec"]);
    let counts: Vec<u64> =
        rows(&report).iter().map(|row| row["blocks"].as_u64().unwrap()).collect();
    assert_eq!(counts, [64, 128, 256, 64, 128, 256]);
    // What is left out is told, and draws no line.
    let large = ["growth", "-o", "18", "-b", "64", "-a", "buddy-alloc,bitset"];
    assert!(text(&large).contains("buddy-alloc: left out"), "{}", text(&large));
    assert_eq!(record(&large)["series"].as_array().unwrap().len(), 1);
    let impatient = ["growth", "-b", "4096", "-d", "list-linked", "--patience-ms", "0"];
    assert_eq!(rows(&record(&impatient)).len(), 1);
}

#[test]
fn fragmentation_is_told_for_every_demo_at_every_load() {
    let report = record(&["fragment", "--frames", "2048", "--rounds", "3", "--load", "50,90"]);
    assert_eq!(rows(&report).len(), 2 * DEMOS.len());
    for row in rows(&report) {
        let ratio = row["huge_ratio"].as_f64().unwrap_or_else(|| panic!("{row}"));
        assert!((0.0..=1.0).contains(&ratio), "{row}");
    }
    assert_eq!(report["series"].as_array().unwrap().len(), 2 * DEMOS.len());
    // The table has the first round, some between, and the last.
    let told =
        text(&["fragment", "--frames", "2048", "--rounds", "3", "--load", "50", "-d", "bitset"]);
    assert!(told.contains("after   1 ") && told.contains("after   3 "), "{told}");
}

#[test]
fn a_heaps_requests_are_served_by_every_candidate() {
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/lld.hxt");
    for arguments in [
        &["runs", "--ops", "4000", "--live", "2048", "--rounds", "1"][..],
        &["runs", "--trace", trace, "--rounds", "1"],
    ] {
        let report = record(arguments);
        assert_eq!(rows(&report).len(), 9, "two lists and two checked ones are left out");
        for row in rows(&report) {
            // Best fit by blocks breaks up so that the little room there is may not do.
            let is_first_fit = ["bitset", "atomic"].iter().any(|name| row["subject"] == *name);
            assert!(!is_first_fit || row["refused"] == 0, "{row}");
            let (span, touched) = (&row["span_ratio"], &row["touched_ratio"]);
            assert!(touched.as_f64().unwrap() >= 1.0 && span.as_f64() >= touched.as_f64(), "{row}");
        }
    }
}

#[test]
fn a_page_and_a_plot_are_written() {
    let (page, plot) = (temporary("page.html"), temporary("plot.svg"));
    let growth = ["growth", "-b", "128", "-d", "bitset", "--report"];
    for (file, begin) in [(&page, "<!doctype html>"), (&plot, "<!-- made by hectare -->\n<svg")] {
        let mut arguments = growth.to_vec();
        arguments.push(file.to_str().unwrap());
        text(&arguments);
        let written = std::fs::read_to_string(file).unwrap();
        std::fs::remove_file(file).unwrap();
        assert!(written.starts_with(begin), "{written:.100}");
        assert!(written.contains("bitset"));
    }
}

#[test]
fn what_cannot_be_done_is_said() {
    for (arguments, part) in [
        (&["-d", "nosuch"][..], "there is no allocator `nosuch` here; there are: list-vec, "),
        (&["-o", "19"], "order 19 is too large: the largest is 18"),
        (&["-b", "0"], "0 blocks were asked for"),
        (&["-b", "99999999999"], "give fewer"),
        (&["-b", "300", "-o", "18446744073709551615"], "invalid value"),
        (&["--threads", "1001"], "from 1 to 1000"),
        (&["--threads", "1,0"], "from 1 to 1000"),
        (&["-b", "3", "--threads", "4"], "3 blocks cannot be shared by 4 threads"),
        (&["--batch", "0"], "a batch of 0 blocks"),
        (&["--rounds", "0"], "a whole number from 1 to"),
        (&["--rounds", "18446744073709551615"], "a whole number from 1 to"),
        (&["--json", "-", "--report", "-"], "cannot both be written"),
        (&["--report", "x.svg"], "no plot to write alone"),
        (&["runs", "--report", "x.svg"], "no plot to write alone"),
        (&["runs", "-a", "list-vec,bitset-checked"], "name another, or none"),
        (&["--threads", "2,1,2"], "2 is given twice"),
        (&["-b", "9", "-d", "bitset", "--json", "/nowhere/x"], "/nowhere/x"),
        (&["-b", "9", "-d", "bitset", "--report", "/nowhere/x"], "/nowhere/x"),
        (&["growth", "-b", "0"], "0 blocks were asked for"),
        (&["growth", "-o", "40"], "order 40 is too large"),
        (&["growth", "-d", "nosuch"], "no allocator `nosuch`"),
        (&["fragment", "--frames", "1000"], "from 2048 to"),
        (&["fragment", "--frames", "3000"], "multiple of 512"),
        (&["fragment", "--frames", "5120000000000"], "from 2048 to"),
        (&["fragment", "--load", "100"], "a load of 100 %"),
        (&["fragment", "--rounds", "0"], "a whole number from 1 to"),
        (&["runs", "--live", "1"], "1 frames in use were asked for"),
        (&["runs", "--ops", "0"], "a whole number from 1 to"),
        (&["runs", "--rounds", "0"], "a whole number from 1 to"),
        (&["runs", "--trace", "/nowhere.hxt"], "/nowhere.hxt"),
    ] {
        let output = buddy(arguments);
        assert!(!output.status.success(), "{arguments:?} was accepted");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(message.contains(part), "{arguments:?}: {message}");
        assert!(!message.contains("panicked"), "{arguments:?}: {message}");
    }
}
