//! Buddy allocators of page frames.
//!
//! They hand out frame *numbers* and never touch the frames: a frame may be a page of RAM, of a
//! GPU, of a file. All meet [`FrameAllocator`]; [`Bitset`] is the one for a single owner.
#![no_std]

mod bits;
mod bitset;
mod frame;
mod stats;

pub use bitset::Bitset;
pub use frame::{Error, FrameAllocator, FrameId, Invalid, MAX_ORDER, Order, RangeAllocator};
pub use stats::{HUGE_ORDER, Stats};
