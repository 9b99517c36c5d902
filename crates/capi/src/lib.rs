//! The hectare allocators for C programs, under names that such programs already use.
//!
//! | Header | Names of |
//! |---|---|
//! | `include/tlsf.h` | Matthew Conte's TLSF 3.1: a program written for it links unchanged |
//! | `include/hectare_store.h` | our own: a compressed page store |
//!
//! The heap calls no allocator of its own; the store calls the program's. The library prints
//! nothing, except for `tlsf_walk_pool` without a walker and for a misuse of the heap, after which
//! it aborts.

pub mod store;
pub mod tlsf;
