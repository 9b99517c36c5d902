//! What the tests of every general-purpose allocator here share. Only a dev-dependency.
//!
//! ```text
//!   Seed ─▶ Random ─▶ Swarm ──draws──▶ Operation ──▶ Driver ──calls──▶ Subject (under test)
//!                                                      │ after each      │
//!                                                      ▼                 ▼
//!                                                   Shadow ◀──compares── memory
//! ```
//! A [`Driver`] draws an [`Operation`] from the weights of a [`Swarm`], has the [`Subject`] carry
//! it out, and compares the result with its [`Shadow`], which knows each live object's place, size
//! and contents. The model is naive on purpose: an interval map, and one byte pattern per object.
//!
//! It finds objects that overlap (on one thread at once; across threads by [`assert_disjoint`] and
//! by the contents, which no two objects share), misaligned objects, `calloc` that is not zero,
//! `realloc` that loses bytes, a refused call that changed something, and contents that change
//! without the program.
//!
//! In addition, [`Suite`] lists by name the tests that cannot run on this machine, and
//! [`instructions_per_call`] counts the instructions that a function takes.
//!
//! A failing run names its seed and step; `HECTARE_SEED` runs it again.
#![cfg_attr(test, allow(clippy::multiple_unsafe_ops_per_block, reason = "tests read better whole"))]

mod callgrind;
mod driver;
mod operation;
mod payload;
mod random;
mod shadow;
mod subject;
mod suite;
mod swarm;

pub use callgrind::instructions_per_call;
pub use driver::{Driver, Tally};
pub use operation::Operation;
pub use payload::Payload;
pub use random::{Random, seed, soak_operations};
pub use shadow::{Object, Shadow, assert_disjoint};
pub use subject::Subject;
pub use suite::{Suite, find_tool};
pub use swarm::{Limits, Swarm};
