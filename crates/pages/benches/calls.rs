//! What the system's calls cost for a page: faults against populating ahead, single give-backs
//! against many in a call. `cargo bench -p hectare-pages --features os --bench calls`

use std::ptr::NonNull;
use std::time::Instant;

use hectare_pages::{Os, PageRange, PageSource};

const PAGES: usize = 1 << 14;
const ROUNDS: usize = 7;

/// The median time of `act` on fresh committed memory that `prepare` has seen, ns for each of
/// `count` pages.
fn median_ns(count: usize, prepare: impl Fn(NonNull<u8>), act: impl Fn(NonNull<u8>)) -> f64 {
    let bytes = PAGES * Os.page_bytes();
    let mut times: Vec<u128> = (0..ROUNDS)
        .map(|_| {
            let memory = Os.get(bytes, Os.page_bytes()).expect("memory");
            prepare(memory);
            let start = Instant::now();
            act(memory);
            let elapsed = start.elapsed().as_nanos();
            // SAFETY: the whole of what was just taken.
            unsafe { Os.release(memory, bytes) };
            elapsed
        })
        .collect();
    times.sort_unstable();
    times[ROUNDS / 2] as f64 / count as f64
}

fn page(memory: NonNull<u8>, index: usize) -> NonNull<u8> {
    // SAFETY: callers pass indices below PAGES.
    unsafe { memory.add(index * Os.page_bytes()) }
}

fn touch(memory: NonNull<u8>) {
    for index in 0..PAGES {
        // SAFETY: committed memory of this bench alone.
        unsafe { page(memory, index).write(1) };
    }
}

fn populate_by(pages: usize) -> f64 {
    median_ns(
        PAGES,
        |_| {},
        |memory| {
            for first in (0..PAGES).step_by(pages) {
                // SAFETY: committed; PAGES is a multiple of `pages`.
                unsafe { Os.populate(page(memory, first), pages * Os.page_bytes()) };
            }
            touch(memory);
        },
    )
}

/// Gives back every other page, `ranges` in a call.
fn decommit_by(ranges: usize) -> f64 {
    median_ns(PAGES / 2, touch, |memory| {
        let odd = |index| PageRange { start: page(memory, 2 * index + 1), bytes: Os.page_bytes() };
        let all: Vec<PageRange> = (0..PAGES / 2).map(odd).collect();
        for some in all.chunks(ranges) {
            // SAFETY: committed, and nothing in it is used any more.
            unsafe { Os.decommit_all(some) };
        }
    })
}

fn main() {
    println!("a page taken by a fault          {:7.0} ns", median_ns(PAGES, |_| {}, touch));
    for pages in [2, 4, 16] {
        println!("populated by {pages:2} in a row        {:7.0} ns", populate_by(pages));
    }
    for ranges in [1, 64] {
        println!("given back, {ranges:2} single pages a call {:5.0} ns", decommit_by(ranges));
    }
}
