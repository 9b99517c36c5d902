//! The foundation of every hectare allocator: alignment arithmetic and synchronisation cells.
//!
//! This crate knows no operating system and allocates nothing.
#![no_std]

pub mod align;
mod prefetch;
pub mod sync;

pub use prefetch::prefetch;
