//! Where memory comes from.
//!
//! An allocator of this family never calls the operating system; it asks a [`PageSource`]. So a
//! test can count what the allocator asks for ([`Counted`]), make any call fail ([`Failing`]), or
//! give it a fixed buffer ([`Fixed`]). A program gives it the system ([`Os`], feature `os`).
//!
//! ```text
//!            reserve                 commit
//!   nothing ─────────▶ address space ─────────▶ memory on touch ◀─┐
//!      ▲                     │                        │ decommit   │
//!      └───────release───────┴────────release─────────┴────────────┘
//! ```
#![no_std]
#![cfg_attr(test, allow(clippy::multiple_unsafe_ops_per_block, reason = "tests read better whole"))]

// The smallest processors lack atomic instructions that read and write, and those of 64 bits.
#[cfg(target_has_atomic = "ptr")]
mod counted;
#[cfg(target_has_atomic = "64")]
mod failing;
#[cfg(target_has_atomic = "32")]
mod fixed;
#[cfg(feature = "os")]
mod hugetlb;
#[cfg(test)]
mod notes;
#[cfg(feature = "os")]
mod os;
#[cfg(feature = "os")]
pub mod rseq;
mod source;
#[cfg(target_has_atomic = "32")]
mod system;

#[cfg(target_has_atomic = "ptr")]
pub use counted::{Counted, Counts};
#[cfg(target_has_atomic = "64")]
pub use failing::Failing;
#[cfg(target_has_atomic = "32")]
pub use fixed::Fixed;
#[cfg(feature = "os")]
pub use os::{FutexPark, Os};
pub use source::{PageRange, PageSource, SourceError};
#[cfg(target_has_atomic = "32")]
pub use system::System;
