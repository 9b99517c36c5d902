//! What the kernel does not unmap, since a process has as many mappings as it may, does not stay in
//! memory. In a process of its own, which is at that limit for a while.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "tests read better whole")]

use std::ptr;

use hectare_pages::{Os, PageSource};

const BYTES: usize = 1 << 20;

/// How many mappings a process may have.
fn most_mappings() -> usize {
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("a limit");
    most.trim().parse().expect("a number")
}

/// Splits a mapping, page by page, until there may be no more. What is given back ends them.
fn split(pages: usize) -> impl Drop {
    struct Mapping(*mut libc::c_void, usize);
    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: this test's own, and unused.
            unsafe { libc::munmap(self.0, self.1) };
        }
    }
    let (page, flags) = (Os.page_bytes(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping disturbs nothing.
    let start = unsafe { libc::mmap(ptr::null_mut(), pages * page, 0, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    let refused = (1..pages).step_by(2).any(|at| {
        // SAFETY: a page of the mapping's, which nobody uses.
        unsafe { libc::mprotect(start.byte_add(at * page), page, libc::PROT_READ) != 0 }
    });
    assert!(refused, "there may be more mappings");
    Mapping(start, pages * page)
}

#[test]
fn what_cannot_be_unmapped_goes_back() {
    let most = most_mappings();
    if most > 1 << 20 {
        eprintln!("skipped: there may be {most} mappings");
        return;
    }
    let page = Os.page_bytes();
    let start = Os.get(3 * BYTES, page).expect("memory");
    let mut resident = vec![0; BYTES / page];
    // SAFETY: all within what was just taken; the middle is looked at only as the kernel knows it.
    unsafe {
        start.write_bytes(1, 3 * BYTES);
        let middle = start.add(BYTES);
        let at_limit = split(most + 2);
        Os.release(middle, BYTES);
        let known = libc::mincore(middle.as_ptr().cast(), BYTES, resident.as_mut_ptr());
        drop(at_limit);
        assert_eq!(known, 0, "it was unmapped: the limit is no limit");
        assert_eq!(resident.iter().filter(|&&page| page & 1 == 1).count(), 0);
        assert_eq!(start.read(), 1);
        Os.release(start, 3 * BYTES);
    }
}
