//! Two-level segregated fit: a heap whose every operation takes constant time, over memory that the
//! caller owns. It needs no operating system, no other allocator and no threads.
//!
//! ```text
//!   Sharded ─▶ Locked ─▶ Growing ─▶ Tlsf ─▶ lists ─▶ bin, table: which list has a block of that size?
//!   one a CPU  a lock    regions     │ ▲          ─▶ block: headers, neighbours, links
//!                        from a      │ └── pool: memory added and taken back
//!                        PageSource  └──── resize: aligned, realloc; stats; validate
//! ```
//!
//! Start with [`Tlsf`]. Its type parameter chooses the index width, the alignment, and the fineness
//! of the lists. [`Tlsf`] by default manages pools within 32 GiB of the first with 4 bytes of
//! overhead a block, [`WideTlsf`] pools anywhere with 8 bytes, [`TinyTlsf`] pools of up to 256 KiB
//! with 2 bytes.
//!
//! With the feature `allocator-api2`, `&Locked` and `Sharded::on` are allocators of collections, on
//! stable Rust: `Vec::new_in(&heap)`, which grows in place if possible.
//!
//! Processors that cannot swap a word atomically (Cortex-M0) have everything but [`Locked`] and
//! [`Sharded`].
#![no_std]

#[cfg(all(feature = "allocator-api2", target_has_atomic = "32"))]
mod allocator;
mod bin;
mod block;
mod error;
mod growing;
mod heap;
mod in_place;
mod lists;
#[cfg(target_has_atomic = "32")]
mod locked;
mod pool;
mod resize;
#[cfg(target_has_atomic = "32")]
mod sharded;
mod stats;
mod table;
mod validate;
mod word;

#[cfg(all(feature = "allocator-api2", target_has_atomic = "32"))]
pub use allocator::OnCpu;
pub use error::{Corruption, Failure, Misuse, PoolError};
pub use growing::{Growing, GrowthCounts, GrowthPolicy};
pub use heap::Tlsf;
#[cfg(target_has_atomic = "32")]
pub use locked::{Heap, Locked};
pub use pool::{BlockInfo, Blocks, Pool, Pools};
#[cfg(target_has_atomic = "32")]
pub use sharded::{ChunkSet, Sharded};
pub use stats::Stats;
pub use table::{Row, Rows, Shape};
pub use word::Word;

/// A heap whose pools may lie anywhere; 8 bytes of overhead a block.
pub type WideTlsf = Tlsf<[Row<usize, 32>; 32]>;

/// A heap for pools of up to 256 KiB each, within 512 KiB of the middle of the first; 2 bytes of
/// overhead a block.
pub type TinyTlsf = Tlsf<[Row<u16, 4>; 13]>;

/// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(all(test, not(loom)))]
#[expect(
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "every test owns its pools, and its shadow knows which blocks are live"
)]
mod tests;
