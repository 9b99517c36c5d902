//! The hectare allocators for C programs, under names that such programs already use.
//!
//! | Header | Names of |
//! |---|---|
//! | `include/tlsf.h` | Matthew Conte's TLSF 3.1: a program written for it links unchanged |
//! | `include/hectare_buddy.h` | our own: a buddy allocator of page frames |
//! | `include/hectare_pool.h` | our own: a pool of compressed objects |
//! | `include/hectare_store.h` | our own: a compressed page store |
//!
//! TLSF and the buddy allocator call no allocator; the pool and the store call the program's. The
//! library prints nothing, except for `tlsf_walk_pool` without a walker and for a misuse of the
//! heap, after which it aborts.

pub mod buddy;
pub mod pool;
pub mod store;
pub mod tlsf;
