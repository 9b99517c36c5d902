//! Buddy allocators of page frames.
//!
//! They hand out frame *numbers* and never touch the frames: a frame may be a page of RAM, of a
//! GPU, of a file. All meet [`FrameAllocator`] and are tested beside the same shadow.
//!
//! | Row | Type | A block costs | Metadata |
//! |---|---|---|---|
//! | `list-vec`, `list-linked` | `Lists` | linear | on the heap (feature `alloc`) |
//! | `tree-vec`, `tree-linked` | `Tree` | logarithmic to take, linear at worst to merge | on the heap (feature `alloc`) |
//! | `bitmap-tree` | [`BitmapTree`] | logarithmic | 512 KiB a GiB, the caller's |
//! | `bitset` | [`Bitset`] | constant, amortised | 36 KiB a GiB, the caller's |
//! | `atomic` | [`Atomic`] | constant mostly, linear in the metadata at worst; lock-free | 36 KiB a GiB, the caller's |
//!
//! [`Bitset`] is the one for a single owner, [`Atomic`] the one for many; the others show why. They
//! track frames, not allocations; [`Checked`] around any of them refuses a free of anything but
//! what was allocated, for 32 KiB a GiB more.
#![no_std]

#[cfg(any(test, feature = "alloc"))]
extern crate alloc;

mod atomic;
mod bitmap_tree;
mod bits;
mod bitset;
mod checked;
mod frame;
#[cfg(any(test, feature = "alloc"))]
mod list;
#[cfg(all(test, not(loom)))]
mod shadow;
mod stats;
#[cfg(any(test, feature = "alloc"))]
mod tree;

pub use atomic::{Atomic, Local};
pub use bitmap_tree::BitmapTree;
pub use bitset::Bitset;
pub use checked::{Checked, Extents};
pub use frame::{Error, FrameAllocator, FrameId, Invalid, MAX_ORDER, Order, RangeAllocator};
#[cfg(any(test, feature = "alloc"))]
pub use list::{Block, BlockList, DoublyLinked, ListLinked, ListVec, Lists, State};
pub use stats::{HUGE_ORDER, Stats};
#[cfg(any(test, feature = "alloc"))]
pub use tree::{FreeList, SinglyLinked, Tree, TreeLinked, TreeVec};

/// The README's examples are tests, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
