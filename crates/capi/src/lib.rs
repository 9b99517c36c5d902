//! The hectare allocators for C programs, under the names that such programs use already.
//!
//! | Header | Names of |
//! |---|---|
//! | `include/tlsf.h` | Matthew Conte's TLSF 3.1: a program written for it links unchanged |
//! | `include/hectare_store.h` | our own: a compressed page store |
//!
//! The heap calls no allocator of its own; the store calls the program's. The library prints nothing but what `tlsf_walk_pool` without
//! a walker and a misuse of the heap print, the latter before it aborts.

pub mod store;
pub mod tlsf;
