//! What the heap's tests share: a front, and a system that watches the heap's calls.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(unreachable_pub, reason = "each test file is a crate of its own")]
#![allow(clippy::multiple_unsafe_ops_per_block, reason = "tests read better whole")]

pub mod aborting;
pub mod front;
pub mod system;

#[allow(unused_imports, reason = "each test file uses its part")]
pub use front::{Front, check_heap, check_released};
pub use system::Strict;

use hectare::Heap;
use hectare_pages::{Counted, Failing};

/// The source of a test's heap: it can refuse calls, counts them, and holds the heap to its
/// contract.
pub type Source = Failing<Counted<Strict>>;

/// A way to make a thread's front.
pub type Seating = for<'a> fn(&'a Heap<Source>) -> Front<'a, Source>;

/// A heap over such a source, in regions of `region_bytes` at first. When the heap is dropped, the
/// source gives back the memory that the heap took.
pub fn new_heap(region_bytes: usize) -> Box<Heap<Source>> {
    heap_over(Strict::new(), region_bytes)
}

/// As [`new_heap`], over a system of the test's own.
pub fn heap_over(system: Strict, region_bytes: usize) -> Box<Heap<Source>> {
    Box::new(Heap::new(Failing::new(Counted::new(system)), region_bytes))
}

/// The [`Strict`] of a heap.
pub fn strict(heap: &Heap<Source>) -> &Strict {
    heap.source().inner().inner()
}
