//! Buddy allocators of page frames.
//!
//! They hand out frame *numbers* and never touch the frames: a frame may be a page of RAM, of a GPU
//! or of a file. All implement [`FrameAllocator`] and are tested against the same shadow.
//!
//! | Row | Type | A block costs | Metadata |
//! |---|---|---|---|
//! | `list-vec`, `list-linked` | `Lists` | linear | on the heap (feature `alloc`) |
//! | `tree-vec`, `tree-linked` | `Tree` | logarithmic to take, linear at worst to merge | on the heap (feature `alloc`) |
//! | `bitmap-tree` | [`BitmapTree`] | logarithmic | 512 KiB a GiB, the caller's |
//! | `bitset` | [`Bitset`] | constant, amortised | 36 KiB a GiB, the caller's |
//! | `atomic` | [`Atomic`] | constant mostly, linear in the metadata at worst; lock-free | 36 KiB a GiB, the caller's |
//!
//! Use [`Bitset`] for a single owner and [`Atomic`] for many; the others show why. All track
//! frames, not allocations. [`Checked`] around any of them refuses to free anything but exactly
//! what was allocated, for another 32 KiB a GiB. [`Atomic`] and [`Checked`] need a processor with
//! atomic instructions on 64 bits; the others exist everywhere.
#![no_std]

#[cfg(any(test, feature = "alloc"))]
extern crate alloc;

#[cfg(target_has_atomic = "64")]
mod atomic;
mod bitmap_tree;
mod bits;
mod bitset;
#[cfg(target_has_atomic = "64")]
mod checked;
mod frame;
#[cfg(any(test, feature = "alloc"))]
mod list;
#[cfg(all(test, not(loom)))]
mod shadow;
mod stats;
#[cfg(any(test, feature = "alloc"))]
mod tree;

#[cfg(target_has_atomic = "64")]
pub use atomic::{Atomic, Local};
pub use bitmap_tree::BitmapTree;
pub use bitset::Bitset;
#[cfg(target_has_atomic = "64")]
pub use checked::{Checked, Extents};
pub use frame::{Error, FrameAllocator, FrameId, Invalid, MAX_ORDER, Order, RangeAllocator};
#[cfg(any(test, feature = "alloc"))]
pub use list::{Block, BlockList, DoublyLinked, ListLinked, ListVec, Lists, State};
pub use stats::{HUGE_ORDER, Stats};
#[cfg(any(test, feature = "alloc"))]
pub use tree::{FreeList, SinglyLinked, Tree, TreeLinked, TreeVec};

/// Runs the README's examples as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
