//! `hectare swap record`: what swapping a running process would store.
//!
//! The process's private pages are read at intervals. A page whose content has changed since the
//! last look is an event, with its length after LZ4 compression. A page that is gone, or filled
//! with one word, is an event of length 0.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use super::{Event, MAGIC};
use crate::cmd::Exit;
use crate::machine::page_bytes;
use crate::output;
use crate::output::place::{self, Kind};
use crate::pools::process;
use crate::runner;
use crate::say::{counted, in_one_line};
use crate::within::{MOST_PID, within};

/// The compressor; lengths depend on its version.
const COMPRESSOR: &str = "LZ4 by lz4_flex 0.11.6";

/// The arguments of `hectare swap record`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The process to watch
    #[arg(long, value_parser = within(1, MOST_PID))]
    pid: u32,
    /// Where to write the events
    #[arg(short, long, value_name = "FILE", value_parser = place::writable(Kind::Swap))]
    output: PathBuf,
    /// How often to look
    #[arg(long, default_value_t = 10, value_parser = within(1_u32, 1_000_000))]
    samples: u32,
    /// Milliseconds between two looks
    #[arg(long, default_value_t = 500, value_parser = within(1_u64, 3_600_000))]
    every_ms: u64,
}

/// Runs the verb. If the process ends early, or an interrupt comes, the events up to then are kept.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let interrupted = runner::interrupted();
    let mut seen = HashMap::new();
    let mut events = Vec::new();
    let mut looks = 0;
    for sample in 0..args.samples {
        if sample > 0 {
            wait(Duration::from_millis(args.every_ms), interrupted);
        }
        if interrupted.load(Ordering::Relaxed) {
            break;
        }
        match look(args.pid, &mut seen, sample, &mut events) {
            Ok(()) => looks += 1,
            Err(error) if sample == 0 => return Err(error),
            Err(_) => break,
        }
    }
    ensure!(!events.is_empty(), "process {} has no private pages", args.pid);
    let name = std::fs::read_to_string(format!("/proc/{}/comm", args.pid)).unwrap_or_default();
    let mut text = format!(
        "{MAGIC}\n# private pages of `{}`, {} {} ms apart, {} bytes a page, {COMPRESSOR}\n",
        in_one_line(name.trim()),
        counted(looks, "look"),
        args.every_ms,
        page_bytes(),
    );
    for event in &events {
        writeln!(text, "{} {}", event.page, event.length_bytes).context("formatting")?;
    }
    output::put(&args.output, text.as_bytes())?;
    eprintln!("{} in {}", counted(events.len(), "event"), counted(looks, "look"));
    if interrupted.load(Ordering::Relaxed) {
        bail!(Exit::interrupted("interrupted"));
    }
    Ok(())
}

/// Sleeps for `time`, or until an interrupt.
fn wait(time: Duration, interrupted: &AtomicBool) {
    const LOOK_EVERY: Duration = Duration::from_millis(20);
    let since = Instant::now();
    while !interrupted.load(Ordering::Relaxed) {
        let left = time.saturating_sub(since.elapsed());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(LOOK_EVERY));
    }
}

/// Reads the process once and adds the pages that have changed. `seen` has each page's number as
/// written (counted from the first page seen), its hash, and the look that saw it last.
fn look(
    pid: u32,
    seen: &mut HashMap<u64, (u64, u64, u32)>,
    sample: u32,
    events: &mut Vec<Event>,
) -> anyhow::Result<()> {
    process::for_each_page(pid, |address, page| {
        let mut hasher = DefaultHasher::new();
        page.hash(&mut hasher);
        let hash = hasher.finish();
        let next = seen.len() as u64;
        let known = seen.get(&address).copied();
        let number = known.map_or(next, |(number, ..)| number);
        seen.insert(address, (number, hash, sample));
        if known.is_none_or(|(_, old, _)| old != hash) {
            events.push(Event { page: number, length_bytes: compressed_bytes(page) });
        }
        Ok(())
    })?;
    for (number, hash, last) in seen.values_mut() {
        if *last != sample && *hash != 0 {
            *hash = 0;
            events.push(Event { page: *number, length_bytes: 0 });
        }
    }
    Ok(())
}

/// What storing the page takes: nothing if one word fills it, a whole page if compression does not
/// make it smaller.
fn compressed_bytes(page: &[u8]) -> u32 {
    if process::is_same_filled(page) {
        return 0;
    }
    lz4_flex::block::compress(page).len().min(page.len()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compressor_is_told_as_it_is_locked() {
        let lock = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock"));
        let mut packages = lock.split("[[package]]");
        let package = packages.find(|package| package.contains("name = \"lz4_flex\""));
        let version = COMPRESSOR.rsplit(' ').next().expect("a version");
        let line = format!("version = \"{version}\"");
        assert!(package.is_some_and(|package| package.contains(&line)), "not `{COMPRESSOR}`");
    }
}
