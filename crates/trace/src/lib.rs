//! The hectare trace format: what a program asked of its allocator, thread by thread.
//!
//! ```text
//!  file   ┌────────┬───────┬───────┬───────┬─ ─ ─┬───────┐
//!         │ header │ chunk │ chunk │ chunk │     │ index │   index: sealed files only
//!         └────────┴───────┴───────┴───────┴─ ─ ─┴───────┘
//!  chunk  ┌──────────────┬────────────────────────────────┐
//!         │ chunk header │ rows of ONE thread, in order    │   stored plain or compressed
//!         └──────────────┴────────────────────────────────┘
//!  row    ┌─────┬───────────┬───────────┬──────┐
//!         │ tag │ time delta│ object(s) │ size │              every field a varint
//!         └─────┴───────────┴───────────┴──────┘
//! ```
//!
//! A recorder appends *open* chunks to a shared mapping of the file, so that the recorded rows
//! survive any death of the program. [`seal`](seal::seal) turns such a file into a compressed one
//! with an index. [`Trace`] reads both kinds.
//!
//! Invariants
//! 1. An object is named by [`ObjectId`]: the thread that allocated it and how many objects that
//!    thread had allocated before. Addresses are not in the file, so that their reuse cannot
//!    confuse a reader.
//! 2. Within a thread, rows are in program order. Across threads an order is defined exactly where
//!    an object changes hands: the row that names an object comes after the row that made it.
//!    [`Ordered`] merges by time under this constraint.
//! 3. Every chunk can be decoded by itself: its header carries the thread, the number of the first
//!    object and the time before the first row. A damaged chunk loses only its own rows.
//! 4. Reading needs memory for one chunk per thread that is alive at a time, and for the index.
//!
//! The byte layout is specified in `docs/trace-format.md`.
#![forbid(unsafe_code)]

mod chunk;
mod curve;
mod error;
mod event;
mod fixed;
mod frame;
pub mod header;
mod histogram;
mod order;
mod packers;
mod reader;
mod row;
pub mod seal;
mod summary;
pub mod varint;
mod writer;

pub use chunk::{CHUNK_HEADER_BYTES, ChunkHeader, ChunkState};
pub use curve::LivePoint;
pub use error::{Damage, Error};
pub use event::{Event, ObjectId, Record, ThreadId};
pub use header::{FileHeader, HEADER_BYTES, RECORDER_CLOCK_SHIFT, VERSION};
pub use histogram::Histogram;
pub use order::{Ordered, Step};
pub use reader::{ChunkPlace, ThreadRows, Trace};
pub use row::{AllocKind, MAX_ROW_BYTES, ROW_WINDOW_BYTES, RowState, RowWindow};
pub use summary::{Summary, ThreadSummary};
pub use writer::Writer;

#[cfg(test)]
mod tests;
