//! The foundation of every hectare allocator: alignment arithmetic, synchronisation cells, and
//! hints to processor and compiler.
//!
//! This crate knows no operating system and allocates nothing.
#![no_std]

pub mod align;
mod prefetch;
mod rolled;
pub mod sync;

pub use prefetch::prefetch;
pub use rolled::rolled;
