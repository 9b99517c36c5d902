//! Where the live objects lie: the share in use of the memory that an allocator holds, at a moment
//! after the peak.
//!
//! ```text
//!  live │   ╱╲ peak                 pages that held an object at some look, by address
//!       │  ╱  ╲___ half of it ──▶   ▓▓▒░▓█ ░░▒▓   resident now: the fuller, the darker
//!       └────────┴─────────────▶    (a page given back is left out)
//! ```
//!
//! The trace is replayed on one thread up to the operation after the peak at which half of the peak
//! is live, or to its end. This is the same operation for every subject. Memory that held no object
//! at any of the looks (the allocator's own) is not in the map.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use anyhow::Context;

use super::clock::Rate;
use super::engine::{Run, Table};
use super::plan::{Planner, SEGMENT_OPS, Wanted};
use super::{Mode, Options, Touch, open};
use crate::bench::Outcome;
use crate::machine::page_bytes;

/// How often the places of objects are noted, evenly over the operations.
const LOOKS: u64 = 64;

/// The most cells of a map.
const MOST_CELLS: usize = 512;

/// Bit 63 of an entry of `/proc/self/pagemap`: the page is in memory.
const PRESENT: u64 = 1 << 63;

/// Replays the trace up to that moment, writes into blocks as `touch` says, and returns the map.
///
/// # Errors
/// When the trace cannot be read or the kernel does not tell a page's state.
pub(crate) fn run(path: &Path, touch: Touch) -> anyhow::Result<Outcome> {
    let wanted = Wanted { serial: true, starts: false };
    let stop = moment(path, wanted)?;
    let trace = open(path)?;
    let mut planner = Planner::new(&trace, wanted);
    let options = Options { mode: Mode::Serial, touch, planted_ns: 0, latency: false, points: 0 };
    let rate = Rate { ns_per_tick: 1.0, cost_ns: 0.0 };
    let mut table = Table::default();
    // Page number → bytes of live objects in it at the last look.
    let mut pages: BTreeMap<usize, u64> = BTreeMap::new();
    let step = stop.div_ceil(LOOKS).max(1);
    while planner.totals().ops < stop {
        let most = step.min(stop - planner.totals().ops).min(SEGMENT_OPS);
        let Some(segment) = planner.segment(most)? else { break };
        table.grow(segment.slots);
        Run::new(&segment, &table, options, false, rate).execute()?;
        look(&planner, &table, &mut pages);
    }
    let mut outcome = Outcome { ops: planner.totals().ops, ns: 1, ..Outcome::default() };
    outcome.checksum = planner.totals().hash;
    outcome.map = cells(&pages)?;
    Ok(outcome)
}

/// The operation after which the map is drawn.
fn moment(path: &Path, wanted: Wanted) -> anyhow::Result<u64> {
    let trace = open(path)?;
    let mut planner = Planner::new(&trace, wanted);
    let (mut peak_bytes, mut half) = (0, None);
    while planner.segment(1024)?.is_some() {
        let (ops, live_bytes) = (planner.totals().ops, planner.live_bytes());
        if live_bytes > peak_bytes {
            (peak_bytes, half) = (live_bytes, None);
        } else if live_bytes <= peak_bytes / 2 && half.is_none() {
            half = Some(ops);
        }
    }
    Ok(half.unwrap_or(planner.totals().ops))
}

fn look(planner: &Planner<'_>, table: &Table, pages: &mut BTreeMap<usize, u64>) {
    pages.values_mut().for_each(|bytes| *bytes = 0);
    let page_bytes = page_bytes() as usize;
    for (slot, bytes) in planner.live() {
        let start = table.pointer(slot, Ordering::Relaxed).addr();
        if start < page_bytes {
            // The allocation failed.
            continue;
        }
        let end = start + bytes as usize;
        let mut at = start;
        while at < end {
            let next = (at / page_bytes + 1) * page_bytes;
            *pages.entry(at / page_bytes).or_default() += (next.min(end) - at) as u64;
            at = next;
        }
    }
}

/// Stretches of resident pages with their share in use: number of the first page, share.
fn cells(pages: &BTreeMap<usize, u64>) -> anyhow::Result<Vec<[f64; 2]>> {
    let pagemap = File::open("/proc/self/pagemap").context("opening /proc/self/pagemap")?;
    let mut resident = Vec::new();
    for (&page, &bytes) in pages {
        let mut entry = [0; 8];
        pagemap.read_exact_at(&mut entry, page as u64 * 8).context("reading /proc/self/pagemap")?;
        if u64::from_ne_bytes(entry) & PRESENT != 0 {
            resident.push((page, bytes));
        }
    }
    let page_bytes = page_bytes() as f64;
    let cell = |stretch: &[(usize, u64)]| {
        let used: u64 = stretch.iter().map(|&(_, bytes)| bytes).sum();
        [stretch[0].0 as f64, used as f64 / (page_bytes * stretch.len() as f64)]
    };
    Ok(resident.chunks(resident.len().div_ceil(MOST_CELLS).max(1)).map(cell).collect())
}
