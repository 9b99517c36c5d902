//! A compressed page store over any [pool](hectare_pool): what users of the kernel's zram rely on,
//! in a library.
//!
//! ```text
//!  put ─▶ one word fills it? ─▶ known already? ─▶ codec ─▶ smaller? ─▶ object in the pool
//!          the word alone       the same object            else raw
//!
//!  key ─▶ slot ─▶ nothing │ a word │ an object │ an object that others share │ a block of a file
//!                                     ▲ │                                         ▲
//!                 a stronger codec ───┘ └── idle, incompressible, or under ───────┘
//!                 for what is idle          pressure: written back
//! ```
//!
//! A [`Store`] has a slot for each key, and each slot has its own lock. So reading a page takes no
//! lock that the writer of another page can hold, unless [`Config::dedup`] finds the two equal.
//!
//! A pool says how its threads wait for each other. By default they spin, which needs no operating
//! system; on Linux give it `FutexPark`, as below.
//!
//! [`Store::tend`] does the work that time and pressure call for, as [`Policy`] says. Statistics
//! come in the kernel's columns ([`Stats::mm_stat`]).
//!
//! ```
//! use hectare_pages::{FutexPark, Os};
//! use hectare_pool::Dense;
//! use hectare_store::{Config, Store};
//!
//! let pool: Dense<Os, FutexPark> = Dense::new(Os);
//! let store = Store::new(pool, Config::new(1000))?;
//! let mut page = vec![0; 4096];
//! page[..5].copy_from_slice(b"hello");
//! store.put(7, &page)?;
//! let mut read = vec![1; 4096];
//! assert!(store.get(7, &mut read)?);
//! assert_eq!(read, page);
//! assert!(store.stats().pool_bytes < 4 * 4096);
//! # Ok::<(), hectare_store::StoreError>(())
//! ```

mod backing;
mod buffer;
mod codec;
mod config;
mod dedup;
mod error;
mod objects;
mod relief;
mod slot;
mod state;
mod stats;
mod store;
mod tend;
#[cfg(test)]
mod tests;

pub use codec::{Codec, Lz4, Zstd};
pub use config::{Config, Evict};
pub use error::StoreError;
pub use state::{PageKind, PageState};
pub use stats::Stats;
pub use store::Store;
pub use tend::{Policy, Select, Tended};

/// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
