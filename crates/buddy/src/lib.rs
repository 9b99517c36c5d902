//! Buddy allocators of page frames.
//!
//! They hand out frame *numbers* and never touch the frames: a frame may be a page of RAM, of a
//! GPU, of a file. All meet [`FrameAllocator`]; `bitset` is the one for a single owner.
#![no_std]

// mod bitset;
mod frame;

// pub use bitset::Bitset;
pub use frame::{Error, FrameAllocator, FrameId, MAX_ORDER, Order};
