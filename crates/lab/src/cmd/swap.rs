//! `hectare swap`: recorded swap traffic, replayed on the pools for compressed data.
//!
//! A file holds one event per line: a page's number and its compressed length. An event frees the
//! page's old object and stores a new one. Length 0 stores nothing: the page is gone, or filled
//! with one word.
//!
//! ```text
//!   hectare-swap 1
//!   # how it was made
//!   94036 1822
//!   94037 0
//! ```

mod record;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use hectare_pool::{Handle, Pool};

use super::Exit;
use super::record::shortened;
use crate::output::Outputs;
use crate::pools;
use crate::report::{Report, Row, Series};
use crate::say::counted;

/// The first line of a file of events.
const MAGIC: &str = "hectare-swap 1";
const SAMPLES: usize = 400;

/// The arguments of `hectare swap`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    replay: Replay,
}

#[derive(clap::Subcommand)]
enum What {
    /// Watch the pages of a running process and write what swapping them would do
    Record(record::Args),
}

#[derive(clap::Args)]
struct Replay {
    /// A file of events
    file: Option<PathBuf>,
    /// Pools to replay on, separated by commas
    #[arg(long, value_name = "POOL,…", default_value = "xv,zs,dense")]
    pools: Vec<String>,
    #[command(flatten)]
    outputs: Outputs,
}

/// One line of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Event {
    page: u64,
    length_bytes: u32,
}

/// What a file holds.
struct Recorded {
    /// Its comments: what it was made from, how, and with which compressor.
    made: String,
    events: Vec<Event>,
}

/// Runs the verb.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    if let Some(What::Record(args)) = args.what {
        return record::run(&args);
    }
    let replay = args.replay;
    let file = replay.file.context(Exit::misused(
        "which file of events? `hectare swap FILE` replays one, `hectare swap record --pid N` \
         makes one",
    ))?;
    let pools = pools::asked(&replay.pools)?;
    let Recorded { made, events } = read(&file)?;
    let mut report = Report::new("swap");
    report.parameter("file", file.display().to_string());
    report.parameter("made", made);
    report.parameter("events", events.len());
    let workload = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for (at, spec) in pools.iter().enumerate() {
        let run = replay_on(pools::make(spec)?.as_ref(), &events)?;
        report.rows.push(run.row(spec, &workload));
        let mut plot = |subject: &str, points: Vec<[f64; 2]>| {
            report.series.push(Series {
                plot: "footprint over events".to_owned(),
                subject: subject.to_owned(),
                workload: workload.clone(),
                x_name: "events".to_owned(),
                y_name: "footprint_bytes".to_owned(),
                points,
            });
        };
        if at == 0 {
            plot("ideal", run.ideal);
        }
        plot(spec, run.footprint);
    }
    report.notes.push(
        "footprints count pages, handle cells and descriptors; half: after half of the objects, \
         drawn at random, are freed, before and after compaction; times include reading the clock"
            .to_owned(),
    );
    replay.outputs.deliver(&report)
}

/// Reads a file of events.
fn read(path: &Path) -> anyhow::Result<Recorded> {
    let text = crate::input::whole(path)?;
    parse(&String::from_utf8_lossy(&text)).with_context(|| format!("reading {}", path.display()))
}

fn parse(text: &str) -> anyhow::Result<Recorded> {
    let mut lines = text.lines().zip(1..);
    match lines.next() {
        Some((MAGIC, _)) => {}
        _ => bail!("this is no file of swap events: its first line is not `{MAGIC}`"),
    }
    ensure!(text.ends_with('\n'), "it is cut: its last line has no end");
    let (mut made, mut events) = (Vec::new(), Vec::new());
    for (line, number) in lines {
        if let Some(comment) = line.strip_prefix('#') {
            made.push(comment.trim());
            continue;
        }
        if line.is_empty() {
            continue;
        }
        let event = line.split_once(' ').and_then(|(page, length)| {
            Some(Event { page: page.parse().ok()?, length_bytes: length.parse().ok()? })
        });
        let event = event.with_context(|| {
            format!(
                "line {number} is `{}`, not a page and a length ({} before it)",
                shortened(line),
                counted(events.len(), "good event")
            )
        })?;
        events.push(event);
    }
    ensure!(!events.is_empty(), "the file has no events");
    Ok(Recorded { made: made.join("; "), events })
}

/// Calls of one kind.
#[derive(Default)]
struct Calls {
    count: u64,
    ns: u64,
    most_ns: u64,
}

impl Calls {
    fn time<R>(&mut self, call: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = call();
        let ns = start.elapsed().as_nanos() as u64;
        self.ns += ns;
        self.most_ns = self.most_ns.max(ns);
        self.count += 1;
        result
    }

    fn mean_ns(&self) -> f64 {
        (self.ns as f64 / self.count.max(1) as f64 * 10.0).round() / 10.0
    }
}

#[derive(Default)]
struct Outcome {
    alloc: Calls,
    free: Calls,
    /// Frees of the half that is freed at the end.
    half_free: Calls,
    failed: u64,
    end_bytes: usize,
    end_live_bytes: usize,
    peak_bytes: usize,
    peak_live_bytes: usize,
    pages_taken: u64,
    pages_returned: u64,
    half_live_bytes: usize,
    half_bytes: usize,
    half_compacted_bytes: usize,
    compact_ns: u64,
    footprint: Vec<[f64; 2]>,
    ideal: Vec<[f64; 2]>,
}

fn replay_on(pool: &dyn Pool, events: &[Event]) -> anyhow::Result<Outcome> {
    let mut stored: HashMap<u64, (Handle, usize)> = HashMap::new();
    let mut result = Outcome::default();
    let content = vec![0x5A; pool.max_size_bytes()];
    let step = (events.len() / SAMPLES).max(1);
    let mut live_bytes = 0;
    for (number, event) in events.iter().enumerate() {
        if let Some((handle, length)) = stored.remove(&event.page) {
            // SAFETY: stored by an earlier event and forgotten now.
            result.free.time(|| unsafe { pool.free(handle) });
            live_bytes -= length;
        }
        if event.length_bytes > 0 {
            let length = event.length_bytes as usize;
            match result.alloc.time(|| pool.alloc(length)) {
                Ok(handle) => {
                    // SAFETY: just allocated with that length.
                    unsafe { pool.write(handle, &content[..length]) };
                    stored.insert(event.page, (handle, length));
                    live_bytes += length;
                }
                Err(_) => result.failed += 1,
            }
        }
        let footprint = pool.stats().footprint_bytes();
        result.peak_bytes = result.peak_bytes.max(footprint);
        result.peak_live_bytes = result.peak_live_bytes.max(live_bytes);
        if number % step == 0 || number + 1 == events.len() {
            result.footprint.push([number as f64, footprint as f64]);
            result.ideal.push([number as f64, live_bytes as f64]);
        }
    }
    let stats = pool.stats();
    (result.pages_taken, result.pages_returned) = (stats.pages_taken, stats.pages_returned);
    (result.end_bytes, result.end_live_bytes) = (stats.footprint_bytes(), live_bytes);
    let mut left: Vec<_> = stored.into_iter().collect();
    left.sort_by_key(|&(page, _)| page);
    fastrand::Rng::with_seed(1).shuffle(&mut left);
    for (_, (handle, length)) in left.drain(left.len() / 2..) {
        // SAFETY: stored, and forgotten now.
        result.half_free.time(|| unsafe { pool.free(handle) });
        live_bytes -= length;
    }
    result.half_live_bytes = live_bytes;
    result.half_bytes = pool.stats().footprint_bytes();
    let start = Instant::now();
    pool.compact();
    result.compact_ns = start.elapsed().as_nanos() as u64;
    result.half_compacted_bytes = pool.stats().footprint_bytes();
    for (_, (handle, _)) in left {
        // SAFETY: as above.
        unsafe { pool.free(handle) };
    }
    Ok(result)
}

/// Overhead in percent, to two places.
pub(super) fn overhead_percent(footprint_bytes: usize, live_bytes: usize) -> f64 {
    ((footprint_bytes as f64 / live_bytes as f64 - 1.0) * 1e4).round() / 1e2
}

impl Outcome {
    fn row(&self, spec: &str, workload: &str) -> Row {
        Row::new(spec, workload)
            .with("live_bytes", self.end_live_bytes)
            .with("footprint_bytes", self.end_bytes)
            .with("overhead_percent", overhead_percent(self.end_bytes, self.end_live_bytes))
            .with("peak_bytes", self.peak_bytes)
            .with("ideal_peak_bytes", self.peak_live_bytes)
            .with("half_percent", overhead_percent(self.half_bytes, self.half_live_bytes))
            .with(
                "half_compacted_percent",
                overhead_percent(self.half_compacted_bytes, self.half_live_bytes),
            )
            .with("compact_ns", self.compact_ns)
            .with("alloc_calls", self.alloc.count)
            .with("alloc_ns", self.alloc.mean_ns())
            .with("free_calls", self.free.count)
            .with("free_ns", self.free.mean_ns())
            .with("half_free_ns", self.half_free.mean_ns())
            .with("half_most_free_ns", self.half_free.most_ns)
            .with("pages_taken", self.pages_taken)
            .with("pages_returned", self.pages_returned)
            .with("failed_allocations", self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_and_damage_is_told() {
        let good = "hectare-swap 1\n# of a test\n7 100\n7 0\n";
        let recorded = parse(good).expect("a good file");
        assert_eq!(recorded.made, "of a test");
        assert_eq!(recorded.events[1], Event { page: 7, length_bytes: 0 });
        for other in ["7 100\n", "", "HECTRACE"] {
            let error = parse(other).err().expect("another file").to_string();
            assert!(error.contains("no file of swap events"), "{other}: {error}");
        }
        let cut = parse("hectare-swap 1\n7 100\n7 20").err().expect("a length without its end");
        assert!(cut.to_string().contains("its last line has no end"), "{cut}");
        let bad = parse("hectare-swap 1\n7 100\n7 1o0\n");
        let error = bad.err().expect("a bad length");
        assert!(error.to_string().contains("line 3"), "{error}");
        assert!(error.to_string().contains("(1 good event before it)"), "{error}");
        let endless = parse(&format!("hectare-swap 1\n{}\n", "7 1o0 ".repeat(1000)));
        let error = endless.err().expect("no page and length").to_string();
        assert!(error.contains("line 2") && error.chars().count() < 200, "{error}");
    }

    #[test]
    fn the_bundled_file_replays_on_every_pool() {
        let bundled = concat!(env!("CARGO_MANIFEST_DIR"), "/swap/python.swap");
        let Recorded { events, .. } = read(Path::new(bundled)).expect("the bundled file");
        for spec in ["xv", "zs", "dense"] {
            let pool = pools::make(spec).expect("a pool");
            let outcome = replay_on(pool.as_ref(), &events).expect("a replay");
            // A page that does not compress is longer than xv's longest object.
            assert!(outcome.failed == 0 || spec == "xv", "{spec}");
            assert!(outcome.half_compacted_bytes <= outcome.half_bytes);
            assert_eq!(pool.stats().objects, 0);
        }
    }
}
