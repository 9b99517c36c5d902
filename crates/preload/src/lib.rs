//! `libhectare.so` and `libhectare.a`: the malloc family of names, in C and C++, over the hectare
//! heap.
//!
//! Preloaded or linked, it serves a whole program. This crate gives the names, their contracts
//! (errno, null, alignment) and the configuration; the heap is [`hectare`].
//!
//! The crate does without Rust's standard library, whose printing of panics is 200 KB of text, part
//! of it resident in each process, and needs libgcc_s. So a panic must abort (`panic = "abort"` in
//! the workspace's profiles): unwinding needs the standard library.

#![no_std]

use hectare::Process;

/// The heap of this process.
static HEAP: Process = Process::new();

mod abi;
mod background;
mod config;
mod confined;
mod cxx;
mod dlopen;
mod errno;
mod finding;
mod gzip;
mod life;
mod limits;
mod line;
mod maps;
mod mode;
mod once;
mod output;
mod personality;
mod pprof;
mod profile;
mod registering;
mod report;
// A harness, which Clippy builds with all targets, has the standard library.
#[cfg(not(test))]
mod runtime;
mod signals;
mod special;
mod unwind;
