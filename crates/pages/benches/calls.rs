//! What the system's calls cost for each page: faults against populating ahead, single give-backs
//! against many in a call, moving pages against taking new ones. `cargo bench -p hectare-pages
//! --features os --bench calls`

use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use hectare_pages::{Os, PageRange, PageSource};

const PAGES: usize = 1 << 14;
const ROUNDS: usize = 7;
/// Pages of a huge page.
const UNIT: usize = 512;

/// The median time of `act` on fresh committed memory that `prepare` has seen, ns for each of
/// `count` pages.
fn median_ns(count: usize, prepare: impl Fn(NonNull<u8>), act: impl Fn(NonNull<u8>)) -> f64 {
    let bytes = PAGES * Os.page_bytes();
    let mut times: Vec<u128> = (0..ROUNDS)
        .map(|_| {
            let memory = Os.get(bytes, UNIT * Os.page_bytes()).expect("memory");
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
    touch_first(PAGES, memory);
}

fn touch_first(count: usize, memory: NonNull<u8>) {
    for index in 0..count {
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

/// A page of a huge page, whose memory comes at its first touch.
fn huge_page() -> f64 {
    median_ns(
        PAGES,
        // SAFETY: the whole of what was just taken.
        |memory| unsafe { Os.advise_huge(memory, PAGES * Os.page_bytes(), true) },
        |memory| {
            for index in (0..PAGES).step_by(UNIT) {
                // SAFETY: committed memory of this bench alone.
                unsafe { page(memory, index).write(1) };
            }
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

/// What `measure` finds while another thread runs. Each call interrupts that thread if it has a
/// processor of its own.
fn beside_another_thread(measure: impl FnOnce() -> f64) -> f64 {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Relaxed) {
                std::hint::spin_loop();
            }
        });
        let ns = measure();
        is_done.store(true, Relaxed);
        ns
    })
}

/// Moves the first half of the pages to the places of the second half, `UNIT` at a time.
fn move_by_units() -> f64 {
    let first_half = |memory| touch_first(PAGES / 2, memory);
    median_ns(PAGES / 2, first_half, |memory| {
        for first in (0..PAGES / 2).step_by(UNIT) {
            let (from, to) = (page(memory, first), page(memory, PAGES / 2 + first));
            // SAFETY: committed, disjoint, and this bench's alone.
            let moved = unsafe { Os.move_pages(from, to, UNIT * Os.page_bytes()) };
            assert_eq!(moved, Ok(()), "the system does not move pages");
        }
    })
}

fn main() {
    println!("a page taken by a fault          {:7.0} ns", median_ns(PAGES, |_| {}, touch));
    for pages in [2, 4, 16] {
        println!("populated by {pages:2} in a row        {:7.0} ns", populate_by(pages));
    }
    println!("a huge page's, by a fault         {:6.0} ns", huge_page());
    println!("moved by {UNIT} in a row           {:6.1} ns", move_by_units());
    for ranges in [1, 64, 256, 1024] {
        println!("given back, {ranges:4} single pages a call {:5.0} ns", decommit_by(ranges));
    }
    for ranges in [1, 64, 256, 1024] {
        let ns = beside_another_thread(|| decommit_by(ranges));
        println!("  while another thread runs, {ranges:4} {ns:10.0} ns");
    }
}
