//! Pools for compressed data: objects of any size up to a page, named by [`Handle`]s, in memory
//! that comes from a [`PageSource`](hectare_pages::PageSource).
//!
//! | Pool | Layout | Objects move | Lock |
//! |---|---|---|---|
//! | [`Dense`] | blocks of exact size in contiguous areas; objects in pieces | yes | one a shard |
//! | [`Zs`] | size classes over chains of pages (zsmalloc) | yes | one a class |
//! | [`Xv`] | variable-size blocks that never straddle a page (xvMalloc) | no | one |
//!
//! The second parameter of each says how its threads wait for each other. By default they spin,
//! which needs no operating system, but keeps a CPU from the thread that they wait for. On Linux
//! use `hectare_pages::FutexPark` (feature `os`): `Dense<Os, FutexPark>`. Then threads sleep while
//! they wait for a lock. For an object that another thread reads or writes they spin and give way
//! by turns, so a thread of a fixed priority (`SCHED_FIFO`) must not share objects with one of a
//! lower priority on its CPU.
//!
//! All pools account for everything they take: see [`PoolStats`]. [`Dense`] and [`Zs`] need a
//! processor with atomic instructions on 64 bits.
#![no_std]
#![cfg_attr(test, allow(clippy::multiple_unsafe_ops_per_block, reason = "tests read better whole"))]

#[cfg(test)]
extern crate std;

mod api;
#[cfg(target_has_atomic = "64")]
mod dense;
#[cfg(target_has_atomic = "64")]
mod pin;
#[cfg_attr(not(target_has_atomic = "64"), expect(dead_code, reason = "`Xv` needs less of it"))]
mod setting;
#[cfg_attr(not(target_has_atomic = "64"), expect(dead_code, reason = "`Xv` needs less of it"))]
mod span;
mod stats;
#[cfg(target_has_atomic = "64")]
mod table;
#[cfg(all(test, not(loom)))]
mod testing;
mod xv;
#[cfg(target_has_atomic = "64")]
mod zs;

pub use api::{Handle, NoObject, Pool, PoolError};
#[cfg(target_has_atomic = "64")]
pub use dense::{Dense, Limits};
#[cfg(target_has_atomic = "64")]
pub use setting::OutOfRange;
pub use stats::PoolStats;
pub use xv::Xv;
#[cfg(target_has_atomic = "64")]
pub use zs::{ClassStats, ClassTable, Zs, ZsConfig};

/// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
