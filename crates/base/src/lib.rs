//! What every hectare allocator stands on: alignment arithmetic and synchronisation cells.
//!
//! This crate knows no operating system and allocates nothing.
#![no_std]

pub mod align;
mod prefetch;
pub mod sync;

pub use prefetch::prefetch;
