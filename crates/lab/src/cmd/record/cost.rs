//! What recording costs, measured on every recording.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::Context;
use hectare_trace::Trace;

use super::{images, preloaded};
use crate::scratch::Scratch;

/// What recording costs per event on this machine, ns: the difference between the same loop with
/// and without the recorder. Each runs in processes of its own, and the best of three counts.
/// `None` if the disk had no room for the loop's recordings, since events that are not recorded
/// cost little.
pub(super) fn event_cost_ns(recorder: &Path, folder: &Path) -> anyhow::Result<Option<f64>> {
    let scratch = Scratch::inside(folder)?;
    let raw = scratch.path().join("cost");
    std::fs::write(&raw, "").with_context(|| format!("making {}", raw.display()))?;
    let mut best = [f64::INFINITY; 2];
    for _ in 0..3 {
        for (recorded, best) in best.iter_mut().enumerate() {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("cost-loop");
            if recorded == 1 {
                preloaded(&mut command, recorder, &raw);
            }
            let output = command.output().context("measuring the recorder's cost")?;
            let text = String::from_utf8_lossy(&output.stdout);
            let ns: f64 = text.trim().parse().with_context(|| {
                let told = String::from_utf8_lossy(&output.stderr);
                let (folder, status) = (folder.display(), output.status);
                format!("measuring the recorder's cost in {folder}: {status}: {}", told.trim())
            })?;
            *best = best.min(ns);
            let is_whole = recorded == 0 || is_whole(&raw)?;
            images::remove(&raw)?;
            if !is_whole {
                return Ok(None);
            }
        }
    }
    Ok(Some((best[1] - best[0]).max(0.0)))
}

/// Whether the recording at `raw` is complete.
fn is_whole(raw: &Path) -> anyhow::Result<bool> {
    let files = images::files(raw)?;
    let whole = |path| Trace::open(path).is_ok_and(|trace| trace.header().lost_events == 0);
    Ok(!files.is_empty() && files.iter().all(|(path, ..)| whole(path)))
}

/// The loop: a thousand slots, sizes up to 512 bytes, each step a free and a malloc. Returns the ns
/// per event of the best of several rounds.
pub(super) fn cost_loop_ns() -> f64 {
    const STEPS: usize = 20_000;
    let mut random = fastrand::Rng::with_seed(1);
    let steps: Vec<(usize, usize)> =
        (0..STEPS).map(|_| (random.usize(0..1000), random.usize(1..=512))).collect();
    let mut slots = vec![std::ptr::null_mut::<libc::c_void>(); 1000];
    let mut best = f64::INFINITY;
    for _ in 0..40 {
        let start = Instant::now();
        for &(slot, size) in &steps {
            // SAFETY: a slot holds null or a block that is freed only here and below.
            unsafe { libc::free(slots[slot]) };
            // SAFETY: any size may be asked for; `black_box` keeps the pair from being elided.
            slots[slot] = std::hint::black_box(unsafe { libc::malloc(size) });
        }
        best = best.min(start.elapsed().as_nanos() as f64 / (2 * STEPS) as f64);
    }
    for slot in slots {
        // SAFETY: as above; each slot is freed once.
        unsafe { libc::free(slot) };
    }
    best
}
