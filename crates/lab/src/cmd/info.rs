//! `hectare info`: what a trace holds.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use hectare_trace::seal::{SealOptions, seal};
use hectare_trace::{Histogram, Summary, ThreadId, ThreadSummary, Trace};
use serde_json::Value;

use super::Exit;
use crate::output::place::{self, Kind};
use crate::output::{Files, Outputs, table};
use crate::report::{Report, Row};
use crate::say::{counted, in_one_line};

/// The arguments of `hectare info`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The trace
    #[arg(value_name = "FILE.hxt")]
    trace: PathBuf,
    /// Write the good part of a damaged or unsealed trace as a new one
    #[arg(long, value_name = "FILE.hxt", value_parser = place::writable(Kind::Trace))]
    salvage: Option<PathBuf>,
    /// Write the figures as JSON (schema 1; `-` is standard output)
    #[arg(long, value_name = "FILE", value_parser = place::writable(Kind::Json))]
    json: Option<PathBuf>,
}

/// What is said of a recording that lost events. Its recorder said which of these it was.
const CUT_SHORT: &str = "the recording is cut short: for want of disk space, length of files (`ulimit -f`), \
                         address space (`ulimit -v`), numbers of threads, or the right to open the file again";

/// Bars of the histograms, characters.
const BAR: usize = 40;

/// Threads shown.
const THREADS: usize = 12;

/// Runs the verb. A damaged trace is first described in full, then reported as an error.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let name = args.trace.display().to_string();
    if let (Some(copy), Some(json)) = (&args.salvage, &args.json)
        && place::resolved(copy) == place::resolved(json)
    {
        let place = json.display();
        bail!(Exit::misused(format!(
            "--salvage and --json cannot both be written to {place}: give each a file"
        )));
    }
    let trace = Trace::open(&args.trace).with_context(|| name.clone())?;
    let summary = Summary::of(&trace).with_context(|| name.clone())?;
    let outputs = Outputs { files: Files { json: args.json, ..Files::default() } };
    outputs.tell(&describe(&name, &trace, &summary));
    let written = outputs.write(&report(&name, &trace, &summary));
    if let Some(target) = &args.salvage {
        let message = salvage(&args.trace, target, &summary)?;
        outputs.tell(&message);
        return written;
    }
    written?;
    trace.check().with_context(|| name)
}

/// Writes the good part of a trace, which must not be empty. Returns what to tell the user.
fn salvage(source: &Path, target: &Path, good: &Summary) -> anyhow::Result<String> {
    ensure!(
        good.rows() > 0,
        "{}: not one event is readable, nothing is salvaged",
        source.display()
    );
    let same = target.canonicalize().ok() == source.canonicalize().ok();
    ensure!(
        !same,
        Exit::misused(format!(
            "--salvage {}: the trace itself is given as its own copy",
            target.display()
        ))
    );
    let done = place::done(target);
    place::replace(target, |new| {
        seal(source, new, SealOptions::default())?;
        verify(new, good).context("what was written does not read back, and is not kept")
    })
    .with_context(|| format!("writing {}", target.display()))?;
    Ok(format!(
        "{done} {}: {}\n",
        in_one_line(&target.to_string_lossy()),
        counted(good.rows(), "event")
    ))
}

/// Reads a copy to its end. It must be whole, and hold the `good` part of its source.
fn verify(copy: &Path, good: &Summary) -> anyhow::Result<()> {
    let trace = Trace::open(copy)?;
    let written = Summary::of(&trace)?;
    trace.check()?;
    let (found, wanted) = (written.rows(), good.rows());
    ensure!(found == wanted, "it holds {}, not {wanted}", counted(found, "event"));
    let rows = |summary: &Summary| -> Vec<_> {
        summary.threads.iter().map(|(&id, thread)| (id, thread.rows, thread.made)).collect()
    };
    let same = written.calls == good.calls && rows(&written) == rows(good);
    ensure!(same, "its events are not those that were read");
    Ok(())
}

/// Length of the recording, s.
fn seconds(trace: &Trace, summary: &Summary) -> f64 {
    summary.end_ticks as f64 / trace.header().ticks_per_second as f64
}

/// What the trace lacks because its process inherited it, if it lacks anything.
fn inherited(trace: &Trace) -> Option<String> {
    let header = trace.header();
    let parent = header.parent_pid;
    let what = || format!("what process {parent} had live at the fork: not in this trace");
    header.is_forked().then(what)
}

fn describe(name: &str, trace: &Trace, summary: &Summary) -> String {
    let bytes = |count: u64| table::bytes(count as f64);
    let header = trace.header();
    let mut text = String::new();
    // Writing to a string cannot fail.
    let mut line = |key: &str, value: String| {
        let _ = writeln!(text, "{key:<22} {}", in_one_line(&value));
    };
    line("trace", name.to_owned());
    line("command", header.command.clone());
    let kind = match (header.sealed, trace.damage().any()) {
        (true, false) => "sealed",
        (true, true) => "sealed, and damaged since",
        (false, _) => "as its recorder left it",
    };
    line("file", format!("{} ({kind}), process {}", bytes(trace.file_bytes()), header.pid));
    let per_event = trace.file_bytes() as f64 / summary.rows() as f64;
    // The rest of a damaged file is not the good events'.
    let each = match summary.rows() {
        1.. if !trace.damage().any() => format!(" ({per_event:.2} bytes each)"),
        _ => String::new(),
    };
    line("events", format!("{}{each}", summary.rows()));
    line("recorded for", format!("{:.3} s", seconds(trace, summary)));
    let cost = match header.event_cost_ps {
        0 => "not measured".to_owned(),
        cost => format!("{:.1} ns an event", cost as f64 / 1000.0),
    };
    line("cost of recording", cost);
    if let held @ 1.. = header.held_bytes {
        let most = if header.held_to_the_end { "at most" } else { "or more" };
        line("memory held", format!("{} {most}, without the recorder's", bytes(held)));
    }
    line("threads", summary.threads.len().to_string());
    line("objects", format!("{} ({} asked for)", summary.objects, bytes(summary.asked_bytes)));
    let share = 100.0 * summary.crossing as f64 / summary.objects.max(1) as f64;
    line(
        "change hands",
        format!("{} ({share:.1} % are freed by another thread)", summary.crossing),
    );
    let rounded = summary.peak_rounded_bytes;
    let of_16 = match summary.peak_bytes {
        0 => 0.0,
        peak => 100.0 * (rounded as f64 / peak as f64 - 1.0),
    };
    line(
        "Ideal (live peak)",
        format!("{} in {}", bytes(summary.peak_bytes), counted(summary.peak_objects, "object")),
    );
    line("  in steps of 16", format!("{} (+{of_16:.1} %)", bytes(rounded)));
    line(
        "live at the end",
        format!("{} in {}", bytes(summary.end_bytes), counted(summary.end_objects, "object")),
    );
    if let Some(what) = inherited(trace) {
        line("inherited", what);
    }
    for (key, count) in [
        ("failed when recorded", summary.failed),
        ("unknown objects", summary.unknown_objects),
        ("unknown pointers freed", header.unknown_frees),
    ] {
        if count > 0 {
            line(key, count.to_string());
        }
    }
    if header.lost_events > 0 {
        line("incomplete", CUT_SHORT.to_owned());
    }
    let _ = writeln!(text, "\ncalls");
    for (call, count) in &summary.calls {
        let _ = writeln!(text, "  {call:<20} {count:>12}");
    }
    let _ = writeln!(text, "\nsizes, bytes");
    histogram(&mut text, &summary.sizes);
    let _ = writeln!(text, "\nlifetimes, ns");
    histogram(&mut text, &summary.lifetimes_ns);
    threads(&mut text, summary);
    text
}

/// One line for each power of two that holds anything, and the quantiles.
fn histogram(text: &mut String, histogram: &Histogram) {
    let mut powers: Vec<(u64, u64)> = Vec::new();
    for (lower, count) in histogram.buckets() {
        let power = if lower == 0 { 0 } else { 1 << lower.ilog2() };
        match powers.last_mut() {
            Some(last) if last.0 == power => last.1 += count,
            _ => powers.push((power, count)),
        }
    }
    let most = powers.iter().map(|&(_, count)| count).max().unwrap_or(1);
    for (power, count) in powers {
        let length = (count as f64 / most as f64 * BAR as f64).ceil() as usize;
        let _ = writeln!(text, "  ≥ {power:<18} {count:>12}  {}", "█".repeat(length));
    }
    if histogram.total() > 0 {
        let of = |share| histogram.quantile(share);
        let (p50, p90, p99) = (of(0.5), of(0.9), of(0.99));
        let _ = writeln!(text, "  half ≤ {p50}, 90 % ≤ {p90}, 99 % ≤ {p99}");
    }
}

fn threads(text: &mut String, summary: &Summary) {
    if summary.threads.len() < 2 {
        return;
    }
    let _ = writeln!(
        text,
        "\n{:>8} {:>12} {:>12} {:>12} {:>14}",
        "thread", "events", "made", "freed", "of others'"
    );
    for (id, thread) in summary.threads.iter().take(THREADS) {
        let _ = writeln!(
            text,
            "{:>8} {:>12} {:>12} {:>12} {:>14}",
            id.0, thread.rows, thread.made, thread.ended, thread.ended_foreign
        );
    }
    if summary.threads.len() > THREADS {
        let _ = writeln!(text, "{:>8} and {} more", "", summary.threads.len() - THREADS);
    }
}

fn report(name: &str, trace: &Trace, summary: &Summary) -> Report {
    let mut report = Report::new("info");
    report.parameter("trace", name);
    report.parameter("recorded_command", trace.header().command.clone());
    report.parameter("recorded_pid", trace.header().pid);
    let pairs = |histogram: &Histogram| -> Value {
        histogram.buckets().map(|(lower, count)| Value::from(vec![lower, count])).collect()
    };
    let calls: serde_json::Map<String, Value> =
        summary.calls.iter().map(|(&call, &count)| (call.to_owned(), count.into())).collect();
    let threads: Vec<Value> = summary.threads.iter().map(of_thread).collect();
    let mut row = Row::new("ideal", name)
        .with("file_bytes", trace.file_bytes())
        .with("events_count", summary.rows())
        .with("calls_count", calls)
        .with("threads_count", summary.threads.len())
        .with("duration_s", seconds(trace, summary))
        .with("objects_count", summary.objects)
        .with("crossing_objects_count", summary.crossing)
        .with("asked_bytes", summary.asked_bytes)
        .with("peak_bytes", summary.peak_bytes)
        .with("peak_rounded16_bytes", summary.peak_rounded_bytes)
        .with("peak_objects_count", summary.peak_objects)
        .with("end_bytes", summary.end_bytes)
        .with("end_objects_count", summary.end_objects)
        .with("failed_count", summary.failed)
        .with("unknown_objects_count", summary.unknown_objects)
        .with("unknown_frees_count", trace.header().unknown_frees)
        .with("sizes_bytes", pairs(&summary.sizes))
        .with("lifetimes_ns", pairs(&summary.lifetimes_ns))
        .with("threads", threads);
    // Zero in the header means that the cost is not known.
    if let cost @ 1.. = trace.header().event_cost_ps {
        row = row.with("event_cost_ns", cost as f64 / 1000.0);
    }
    if let held @ 1.. = trace.header().held_bytes {
        row = row.with("held_bytes", held).with("held_to_the_end", trace.header().held_to_the_end);
    }
    report.rows.push(row);
    if let Some(what) = inherited(trace) {
        report.notes.push(format!("inherited: {what}"));
    }
    if trace.header().lost_events > 0 {
        report.notes.push(CUT_SHORT.to_owned());
    }
    if trace.damage().any() {
        report.notes.push(trace.damage().to_string());
    }
    report
}

/// A thread's entry in the record, which lists every thread and not only the first ones.
fn of_thread((id, thread): (&ThreadId, &ThreadSummary)) -> Value {
    serde_json::json!({
        "thread": id.0,
        "events_count": thread.rows,
        "made_count": thread.made,
        "freed_count": thread.ended,
        "freed_of_others_count": thread.ended_foreign,
    })
}

#[cfg(test)]
mod tests {
    use hectare_trace::{Event, FileHeader, Writer};

    use super::*;
    use crate::scratch::Scratch;

    fn trace_of(path: &Path, events: &[(u32, Event)]) -> Summary {
        trace_with(FileHeader::new(), path, events)
    }

    fn trace_with(header: FileHeader, path: &Path, events: &[(u32, Event)]) -> Summary {
        let mut writer = Writer::new(std::fs::File::create(path).unwrap(), header).unwrap();
        for &(thread, event) in events {
            writer.event(ThreadId(thread), 1, &event, false).unwrap();
        }
        writer.finish().unwrap();
        Summary::of(&Trace::open(path).unwrap()).unwrap()
    }

    #[test]
    fn a_copy_is_kept_only_if_it_holds_what_was_read() {
        let scratch = Scratch::new().unwrap();
        let (source, copy) = (scratch.path().join("s.hxt"), scratch.path().join("c.hxt"));
        let (malloc, calloc) = (Event::Malloc { size_bytes: 8 }, Event::Calloc { size_bytes: 8 });
        let good = trace_of(&source, &[(1, malloc), (1, calloc)]);
        for other in [
            &[(1, malloc)][..],
            &[(1, malloc), (1, malloc)],
            &[(1, malloc), (2, calloc)],
            &[(1, malloc), (1, calloc), (1, calloc)],
        ] {
            trace_of(&copy, other);
            verify(&copy, &good).expect_err("a copy of something else");
        }
        let message = salvage(&source, &copy, &good).unwrap();
        assert!(message.ends_with(": 2 events\n"), "{message}");
        verify(&copy, &good).unwrap();
        // The source has changed since it was read.
        let before = std::fs::read(&copy).unwrap();
        trace_of(&source, &[(1, malloc)]);
        let error = format!("{:#}", salvage(&source, &copy, &good).unwrap_err());
        assert!(error.contains("c.hxt") && error.contains("is not kept"), "{error}");
        assert_eq!(std::fs::read(&copy).unwrap(), before, "what was good is gone");
        let cut = std::fs::OpenOptions::new().write(true).open(&copy).unwrap();
        cut.set_len(before.len() as u64 - 1).unwrap();
        verify(&copy, &good).expect_err("a copy that was cut");
    }

    #[test]
    fn the_record_has_what_the_text_tells() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().join("t.hxt");
        let (malloc, calloc) = (Event::Malloc { size_bytes: 8 }, Event::Calloc { size_bytes: 8 });
        let events = [(3, malloc), (4, calloc), (4, malloc)];
        let told = |header: FileHeader| {
            let summary = trace_with(header, &path, &events);
            let trace = Trace::open(&path).unwrap();
            (describe("t", &trace, &summary), report("t", &trace, &summary))
        };
        let (text, record) =
            told(FileHeader { pid: 7, event_cost_ps: 29_500, ..FileHeader::new() });
        assert!(text.contains("process 7") && text.contains("29.5 ns an event"), "{text}");
        assert_eq!(record.parameters["recorded_pid"], 7);
        let figures = &record.rows[0].figures;
        assert_eq!(figures["event_cost_ns"], 29.5);
        assert_eq!(figures["file_bytes"], std::fs::metadata(&path).unwrap().len());
        let made: Vec<_> = (figures["threads"].as_array().unwrap().iter())
            .map(|thread| (thread["thread"].as_u64(), thread["made_count"].as_u64()))
            .collect();
        assert_eq!(made, [(Some(3), Some(1)), (Some(4), Some(2))]);
        assert!(record.notes.is_empty());
        // An unknown cost is not zero, and the trace lacks what a child has from its parent.
        let (text, record) =
            told(FileHeader { parent_pid: 6, first_thread: 3, ..FileHeader::new() });
        assert!(text.contains("not measured") && text.contains("what process 6 had"), "{text}");
        assert!(!record.rows[0].figures.contains_key("event_cost_ns"));
        assert!(record.notes[0].contains("what process 6 had live at the fork"));
    }
}
