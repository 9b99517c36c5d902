//! Touches memory that the host would otherwise have to find when a measured process needs it.
//!
//! If the host of a virtual machine takes free memory back ([`environment::takes_memory_back`]),
//! the first touch of it costs many times as much as usual, and the contestant that is measured
//! after a pause pays. So before each run a separate process ([`Held`]) touches as much memory as
//! the run will need, and ends:
//!
//! ```text
//!  touch ──► wait for the end of the host's pass ──► free ──► measured process
//!             └ unless the run ends before the next one begins
//! ```
//!
//! 1. Memory that is freed last is allocated first, so the measured process gets the touched
//!    memory.
//! 2. At least [`PEACE`] lies between the end of a pass and the beginning of the next. Memory that
//!    is held during a pass is not free, and so is not taken.
//! 3. All this is over before the measured process is started: none of its clocks and counters runs
//!    yet.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::held::Held;
use super::interrupted;
use crate::environment;
use crate::machine;

/// The least that is warmed, bytes. It takes 13 ms when already warm, and most workloads need less.
const LEAST_BYTES: u64 = 256 << 20;

/// Warmed in addition to what runs needed and a quarter of that: the harness's processor keeps some
/// of the freed memory for itself. Of 256 MiB freed on one processor, another found 220 MiB.
const KEPT_BY_PROCESSORS_BYTES: u64 = 64 << 20;

/// At most one part in this many of the available memory is touched. More would push other
/// processes out.
const SHARE_OF_AVAILABLE: u64 = 4;

/// How long after a pass Linux waits before it begins another (`PAGE_REPORTING_DELAY`).
const PEACE: Duration = Duration::from_secs(2);

/// A pass is over when the host has answered nothing for this long. Within a pass its answers are
/// some 30 ms apart.
const PASS_IS_OVER: Duration = Duration::from_millis(100);

/// If no pass has begun after this long, none was due: the next comes [`PEACE`] after the next
/// free.
const NO_PASS_DUE: Duration = Duration::from_millis(2300);

/// When memory is warmed before each run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WarmMemory {
    /// If the host takes back free memory
    #[default]
    Auto,
    /// On every machine
    Always,
    /// Never: touching free memory costs whatever the host makes it cost
    Never,
}

/// The most that runs of one case have taken so far.
#[derive(Clone, Copy, Debug, Default)]
struct Need {
    bytes: u64,
    time: Duration,
}

/// A time without a pass.
#[derive(Clone, Copy, Debug)]
struct Peace {
    until: Instant,
    /// The host's count of answers when the peace began. The peace is over when the count changes.
    answered: u64,
}

/// Warms memory, as much of it and at such moments as the runs so far suggest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Warmth {
    /// Whether it warms at all.
    on: bool,
    /// Whether the host takes free memory back.
    taken_back: bool,
    /// The folder used in place of `/`.
    root: PathBuf,
    /// Indexed by case.
    needs: Vec<Need>,
    peace: Option<Peace>,
    /// The most that was warmed before one run, bytes.
    pub(crate) most_bytes: u64,
}

impl Warmth {
    /// Warmth for `cases` cases, on the machine whose files are below `root`.
    pub(crate) fn new(asked: WarmMemory, cases: usize, root: PathBuf) -> Self {
        let taken_back = environment::takes_memory_back(&root);
        let on = match asked {
            WarmMemory::Auto => taken_back,
            WarmMemory::Always => true,
            WarmMemory::Never => false,
        };
        Self { on, taken_back, root, needs: vec![Need::default(); cases], ..Self::default() }
    }

    /// Notes what a run of a case took.
    pub(crate) fn learn(&mut self, case: usize, bytes: u64, time: Duration) {
        let need = &mut self.needs[case];
        *need = Need { bytes: need.bytes.max(bytes), time: need.time.max(time) };
    }

    /// Warms memory for a run of a case that needs `known_bytes` at least.
    ///
    /// # Errors
    /// When no process can be started.
    pub(crate) fn warm(&mut self, case: usize, known_bytes: u64) -> anyhow::Result<()> {
        if !self.on {
            return Ok(());
        }
        let need = self.needs[case];
        let bytes = amount(need.bytes.max(known_bytes), machine::available_bytes(&self.root));
        if bytes == 0 {
            return Ok(());
        }
        let held = Held::start(bytes)?;
        self.most_bytes = self.most_bytes.max(held.bytes);
        // A run that is longer than any peace should at least begin with one.
        self.wait_for_peace(need.time.min(PEACE - 2 * PASS_IS_OVER));
        drop(held);
        Ok(())
    }

    /// Waits until no pass is to be expected for `lasting`, if passes can be observed. Does not
    /// sleep: a processor that has rested runs at a different speed for a while.
    fn wait_for_peace(&mut self, lasting: Duration) {
        let Some(mut answered) = environment::reports_answered(&self.root) else { return };
        let begun = Instant::now();
        if self.peace.is_some_and(|p| p.answered == answered && begun + lasting < p.until) {
            return;
        }
        let mut last_answer = None;
        while !interrupted().load(Ordering::Relaxed) {
            let now = environment::reports_answered(&self.root).unwrap_or(answered);
            if now != answered {
                (answered, last_answer) = (now, Some(Instant::now()));
            }
            let over = match last_answer {
                Some(last) => last.elapsed() > PASS_IS_OVER,
                None => begun.elapsed() > NO_PASS_DUE,
            };
            if over {
                break;
            }
        }
        let since = last_answer.unwrap_or_else(Instant::now);
        self.peace = Some(Peace { until: since + PEACE, answered });
    }

    /// What was done, for people; `None` if nothing was done and nothing was needed.
    pub(crate) fn note(&self) -> Option<String> {
        let warmed = format!("{} MiB", self.most_bytes >> 20);
        match (self.taken_back, self.most_bytes) {
            (false, 0) => None,
            (true, 0) => Some(
                "the host takes free memory back, and none was warmed: who touches it first pays"
                    .to_owned(),
            ),
            (true, _) => Some(format!(
                "the host takes free memory back: up to {warmed} were warmed before each run"
            )),
            (false, _) => Some(format!("up to {warmed} of memory were warmed before each run")),
        }
    }
}

/// How much to warm for runs that need `needed_bytes`, bytes.
fn amount(needed_bytes: u64, available_bytes: u64) -> u64 {
    let wanted = needed_bytes.saturating_add(needed_bytes / 4 + KEPT_BY_PROCESSORS_BYTES);
    wanted.max(LEAST_BYTES).min(available_bytes / SHARE_OF_AVAILABLE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_amount_follows_the_need_within_bounds() {
        assert_eq!(amount(0, 64_000 * MIB), 256 * MIB);
        assert_eq!(amount(400 * MIB, 64_000 * MIB), 564 * MIB);
        assert_eq!(amount(400 * MIB, 1000 * MIB), 250 * MIB);
        assert_eq!(amount(u64::MAX, 1000 * MIB), 250 * MIB);
        assert_eq!(amount(400 * MIB, 0), 0);
    }

    #[test]
    fn a_run_waits_for_the_end_of_a_pass_unless_it_ends_before_the_next() {
        let scratch = Scratch::new().unwrap();
        let root = scratch.path().to_owned();
        std::fs::create_dir(root.join("proc")).unwrap();
        let interrupts = root.join("proc/interrupts");
        let answer = move |count: u64| {
            std::fs::write(&interrupts, format!("32: {count} edge virtio0-reporting_vq\n"))
                .unwrap();
        };
        answer(1);
        let mut warmth = Warmth { root, ..Warmth::default() };
        let mut waited = || {
            let begun = Instant::now();
            warmth.wait_for_peace(PEACE / 2);
            begun.elapsed()
        };
        let host = std::thread::spawn(move || {
            std::thread::sleep(PASS_IS_OVER);
            answer(2);
            answer
        });
        let for_the_pass = waited();
        assert!((2 * PASS_IS_OVER..NO_PASS_DUE).contains(&for_the_pass), "{for_the_pass:?}");
        let in_peace = waited();
        assert!(in_peace < PASS_IS_OVER, "{in_peace:?}");
        // If nobody saw the pass begin, it is not known when the next one comes.
        host.join().unwrap()(3);
        let for_nothing = waited();
        assert!(for_nothing > NO_PASS_DUE, "{for_nothing:?}");
    }

    #[test]
    fn it_is_told_what_was_done() {
        let told = |taken_back, most_bytes| {
            Warmth { taken_back, most_bytes, ..Warmth::default() }.note().unwrap_or_default()
        };
        assert_eq!(told(false, 0), "");
        assert!(told(true, 0).contains("none was warmed"));
        assert!(told(true, 256 * MIB).contains("up to 256 MiB were warmed"));
        assert!(told(false, 256 * MIB).contains("256 MiB"));
    }
}
