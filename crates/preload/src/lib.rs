//! `libhectare.so`: the malloc family of names, in C and C++, over the hectare heap.
//!
//! Preloaded or linked it serves a whole program. This crate gives the names, their contracts
//! (errno, null, alignment), the configuration and the handling of fork; the heap is [`hectare`].

use hectare::Process;

/// The heap of this process.
static HEAP: Process = Process::new();

mod abi;
mod background;
mod config;
mod cxx;
mod finding;
mod gzip;
mod life;
mod line;
mod maps;
mod mode;
mod output;
mod pprof;
mod profile;
mod report;
mod signals;
mod special;
mod unwind;
