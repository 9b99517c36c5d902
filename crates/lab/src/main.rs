//! The `hectare` command: records, replays, compares and reports memory allocators.
//!
//! ```text
//!  cmd/compare ──► contest (complete shuffled rounds) ──► runner ──► child process per run
//!                                                                      │ LD_PRELOAD = subject
//!                                                                      │ cmd/child: one workload
//!  output ◄── report ◄── contest/analysis (ratios, by stats) ◄─────────┘ one record on a pipe
//!    table, JSON, CSV, Markdown, HTML
//! ```
//!
//! One file per verb under [`cmd`]. Verbs pass each other flat records ([`report`]), never live
//! objects, so every figure can be stored, merged and printed again later.
//!
//! 1. The command's own memory never comes from the measured heap: its global allocator maps
//!    memory itself, so `malloc` in a child process belongs to the workload alone.
//! 2. One measurement is one fresh process.
//! 3. Nothing is printed that was not measured in this run or read from a record.

#[macro_use]
mod say;

mod bench;
mod cmd;
mod contest;
mod environment;
mod input;
mod list;
mod machine;
mod measure;
mod output;
mod parser;
mod pools;
mod programs;
mod progress;
mod replay;
mod report;
mod runner;
mod scratch;
mod stats;
mod subject;
mod threads;
mod within;

use std::sync::Arc;

use clap::{Parser, Subcommand};

/// Invariant 1: harness memory is mapped here, measured memory comes from `malloc`.
#[global_allocator]
static HARNESS: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

/// What a first-time user wants to do. Lines of at most 80 columns; the parser wraps text that has
/// no line breaks.
const FIRST_STEPS: &str = "\
Begin with:
  hectare choose -- CMD          which allocator should CMD use? Records it and
                                 replays it on all
  hectare choose --check -- CMD  and measures CMD itself afterwards, to see
                                 where both agree
  hectare compare -- CMD         CMD itself under every allocator found
  hectare                        eight real programs' traces on every allocator
                                 found, in under three minutes; leaves
                                 hectare-report.json and hectare-report.html
  hectare doctor                 what can be measured well on this machine, and
                                 what is found

Exit codes: 0 done · 1 could not be done · 2 wrong arguments · 3 an --assert fails, or --check \
contradicts the advice · 4 an --assert cannot be decided at this noise · 5 the program failed under \
some allocator · 130 interrupted (what was measured is kept). `run` and `record` end as the program \
did.";

/// Measures memory allocators with real programs, real traces and known workloads.
///
/// Without a verb: compares every allocator found over the bundled real traces.
#[derive(Parser)]
#[command(name = "hectare", version, args_conflicts_with_subcommands = true, after_help = FIRST_STEPS)]
struct Cli {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    compare: cmd::compare::Args,
}

#[derive(Subcommand)]
enum Verb {
    /// Run one program under one allocator: time, peak and mean resident memory, faults
    Run(cmd::run::Args),
    /// Compare allocators over the bundled traces, or over a program given after `--`
    Compare(cmd::compare::Args),
    /// Record a program, replay it on every allocator found, and say which suits it
    Choose(cmd::choose::Args),
    /// Record the allocations of a program into a trace
    Record(cmd::record::Args),
    /// Show what a trace holds
    Info(cmd::info::Args),
    /// Replay a trace on the allocators
    Replay(cmd::replay::Args),
    /// Run a named workload on the allocators (`--list` explains each)
    Bench(cmd::bench::Args),
    /// The buddy allocators: time, growth, fragmentation, and what a heap asks for
    Buddy(cmd::buddy::Args),
    /// TLSF: worst-case instruction counts, regions taken and given back, space beside peers
    Tlsf(cmd::tlsf::Args),
    /// Replay recorded swap traffic on the pools for compressed data
    Swap(cmd::swap::Args),
    /// Store real pages compressed: density and speed, beside the kernel's zram
    Store(cmd::store::Args),
    /// Compare the pools with the kernel's zsmalloc through /dev/zram0
    Zram(cmd::zram::Args),
    /// Make an HTML report from stored JSON records
    Report(cmd::report::Args),
    /// Show which settings of this machine affect measurements, and which of them can be controlled
    Doctor(cmd::doctor::Args),
    /// Write the script that a shell needs to complete verbs and options
    Completions(cmd::completions::Args),
    /// Restores the machine's settings when the command that started it ends
    #[command(hide = true)]
    Keeper,
    /// Holds that many bytes of touched memory until the end of its standard input
    #[command(hide = true)]
    Hold { bytes: usize },
    /// The loop that measures the recorder's cost; prints its ns per event
    #[command(hide = true)]
    CostLoop,
    /// One measured thing in a fresh process (started by the other verbs)
    #[command(hide = true)]
    Child(cmd::child::Args),
}

fn main() -> std::process::ExitCode {
    // `hectare … | head` ends as other commands do, without a panic about the closed pipe.
    // SAFETY: no other thread runs yet, and the default action needs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    // A parent that ignores SIGCHLD passes that on to this process, which then could not wait for
    // its own children.
    // SAFETY: as above.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    // At the limit on a file's size a write must fail, as on a full disk. A handler does that;
    // ignoring the signal would too, but the programs that are started would inherit it.
    if !runner::is_ignored(libc::SIGXFSZ) {
        let _ = signal_hook::flag::register(libc::SIGXFSZ, Arc::default());
    }
    let cli = parser::parsed().unwrap_or_else(|error| say::parsers(&error));
    let done = match cli.verb {
        None => cmd::compare::run(cli.compare),
        Some(Verb::Run(args)) => cmd::run::run(args),
        Some(Verb::Compare(args)) => cmd::compare::run(args),
        Some(Verb::Choose(args)) => cmd::choose::run(args),
        Some(Verb::Record(args)) => cmd::record::run(args),
        Some(Verb::Info(args)) => cmd::info::run(args),
        Some(Verb::Replay(args)) => cmd::replay::run(args),
        Some(Verb::Bench(args)) => cmd::bench::run(args),
        Some(Verb::Buddy(args)) => cmd::buddy::run(args),
        Some(Verb::Tlsf(args)) => cmd::tlsf::run(args),
        Some(Verb::Swap(args)) => cmd::swap::run(args),
        Some(Verb::Store(args)) => cmd::store::run(args),
        Some(Verb::Zram(args)) => cmd::zram::run(args),
        Some(Verb::Report(args)) => cmd::report::run(args),
        Some(Verb::Doctor(args)) => cmd::doctor::run(args),
        Some(Verb::Completions(args)) => cmd::completions::run(args, parser::shown()),
        Some(Verb::Keeper) => environment::keep_watch(),
        Some(Verb::Hold { bytes }) => runner::hold(bytes),
        Some(Verb::CostLoop) => cmd::record::run_cost_loop(),
        Some(Verb::Child(args)) => cmd::child::run(args),
    };
    say::finish();
    match done {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => cmd::fail(&error),
    }
}
