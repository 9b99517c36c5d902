//! Progress of long work: a bar on a terminal, otherwise a line now and then.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::say::in_one_line;
use crate::threads;

/// Time between two lines if no bar can be drawn.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Progress, shown on the error output.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// When the next line is due; `None` on a terminal.
    line_due: Option<Instant>,
    begun: Instant,
    done: u64,
    length: u64,
}

impl Progress {
    /// Nothing done yet, of an unknown length.
    pub(crate) fn new() -> Self {
        let progress = Self::of_one_thread();
        // A thread redraws the bar, if the system gives us one.
        if progress.line_due.is_none() && threads::can_start() {
            progress.bar.enable_steady_tick(Duration::from_millis(250));
        }
        progress
    }

    /// The same, but drawn only at each step. A process that forks needs this: it may have no other
    /// thread that holds a lock.
    pub(crate) fn of_one_thread() -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = if terminal { ProgressBar::new(0) } else { ProgressBar::hidden() };
        let style =
            ProgressStyle::with_template("{elapsed_precise} {bar:32} {pos}/{len} {wide_msg}")
                .expect("a valid template");
        bar.set_style(style);
        let begun = Instant::now();
        let line_due = (!terminal).then_some(begun + LINE_EVERY);
        Self { bar, line_due, begun, done: 0, length: 0 }
    }

    /// How much there is to do in all.
    pub(crate) fn set_length(&mut self, length: u64) {
        self.length = length;
        self.bar.set_length(length);
    }

    /// One step is done, and `next` begins.
    pub(crate) fn step(&mut self, next: String) {
        self.done += 1;
        self.bar.inc(1);
        self.begin(next);
    }

    /// Announces that `next` begins.
    pub(crate) fn begin(&mut self, next: String) {
        let now = Instant::now();
        if self.line_due.is_some_and(|due| now >= due) {
            let seconds = self.begun.elapsed().as_secs();
            let of = if self.length > 0 { format!(" of {}", self.length) } else { String::new() };
            eprintln!("{seconds} s: run {}{of}: {next}", self.done);
            self.line_due = Some(now + LINE_EVERY);
        }
        self.bar.set_message(in_one_line(&next).into_owned());
    }

    /// Removes the bar.
    pub(crate) fn finish(self) {
        self.bar.finish_and_clear();
    }
}
