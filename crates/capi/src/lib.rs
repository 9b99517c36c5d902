//! The hectare allocators for C programs, under the names that such programs use already.
//!
//! | Header | Names of |
//! |---|---|
//! | `include/tlsf.h` | Matthew Conte's TLSF 3.1: a program written for it links unchanged |
//!
//! The library calls no allocator of its own and prints nothing but what `tlsf_walk_pool` without
//! a walker and a misuse of the heap print, the latter before it aborts.

pub mod tlsf;
