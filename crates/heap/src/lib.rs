//! A thread-safe general-purpose heap for Linux.
//!
//! Five layers, each slower and more shared than the one above it:
//!
//! | layer | of | holds | costs |
//! |---|---|---|---|
//! | [`Cache`] | a thread | lists of objects | no atomic operation |
//! | CPU's lists, of threads without a cache | a CPU | lists of objects | a restartable sequence |
//! | pool | a CPU | batches of objects | one try-lock a batch |
//! | bin | a size class | slabs | one lock a batch |
//! | backend | the process | regions, runs | one lock a slab |
//!
//! [`Malloc`] makes the heap the global allocator of a Rust program. The crate `hectare-preload`
//! gives it the C and C++ names. [`Heap`] is the heap itself, over any
//! [`System`](hectare_pages::System).
#![no_std]
// Under loom, whose atomics cannot live in a static, `tests/models.rs` includes what it models by path.
#![cfg(not(loom))]
#![cfg_attr(test, allow(clippy::multiple_unsafe_ops_per_block, reason = "tests read better whole"))]
#![expect(clippy::cast_possible_truncation, reason = "class and slab geometry fits by assertion")]

#[cfg(test)]
#[macro_use]
mod passed_on;

mod backend;
mod batch;
mod bin;
mod cache;
mod class;
mod cpu_front;
mod cpu_lists;
mod departing;
mod dirty;
mod fill;
mod gathered;
mod guard;
mod hardened;
mod heap;
mod homes;
mod huge;
mod kept;
mod leaving;
mod left;
mod misuse;
mod object;
mod own_pages;
mod own_runs;
mod pace;
mod pool;
mod process;
mod profile;
mod random;
mod region;
mod run_cache;
mod sample;
mod seat;
mod sequence;
mod slab;
mod slots;
mod special;
mod stand_in;
mod stats;
mod tls;

pub use cache::Cache;
pub use class::{ClassId, MAX_SMALL_BYTES, MIN_ALIGN, STATES};
pub use guard::{Fault, Finding, Trail};
pub use heap::Heap;
pub use misuse::Misuse;
pub use process::{HeldForks, Malloc, Process, ProcessProfile};
pub use profile::{MAX_FRAMES, Snapshot, Stack, Tally, call_of};
pub use sample::MAX_SAMPLE_MEAN;
pub use seat::{Front, Seat};
pub use special::Special;
pub use stats::{ClassStats, Stats};

/// The README's example is a test, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
