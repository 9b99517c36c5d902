//! Pages set aside for a process: hugetlbfs behind part of a reservation.
//!
//! ```text
//!   reservation:   … │ ordinary │ pool: committed once and for good │ ordinary …
//! ```
//! The administrator sets huge pages aside (`vm.nr_hugepages`). A process that takes them keeps
//! them whatever else the machine does, and pays neither for faults nor for the TLB misses of small
//! pages. They cannot be given back in parts, so `decommit` clears memory in the pool.
//! [`Os`](crate::Os) leaves ranges in the pool to this file, and all others to the system.
//!
//! Invariants
//! 1. A process has at most one pool. Its start is published before its size (release, acquire).
//! 2. Each of its pages was allocated before it was published, so no touch finds the pages used up,
//!    which would raise SIGBUS. This does not hold for a forked child, whose writes take new pages.

use core::ptr::{self, NonNull};
use core::sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::SourceError;
use crate::os::keep_errno;

/// The size of the pages in bytes. If the system has no pages of this size there is no pool.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

static START: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// The parts of a range before, in and after the pool; any of them may be empty.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts {
    pub(crate) ordinary: [(NonNull<u8>, usize); 2],
    pub(crate) pooled: (NonNull<u8>, usize),
}

/// Divides a range at the pool's bounds.
pub(crate) fn divide(start: NonNull<u8>, bytes: usize) -> Parts {
    let pool_bytes = BYTES.load(Acquire);
    divide_at(START.load(Relaxed), pool_bytes, start, bytes)
}

/// Divides a range at the bounds of a pool of that many bytes; 0 if there is none.
fn divide_at(pool: usize, pool_bytes: usize, start: NonNull<u8>, bytes: usize) -> Parts {
    let before = if pool_bytes == 0 { bytes } else { pool.saturating_sub(start.addr().get()) };
    let before = before.min(bytes);
    let beyond = (pool + pool_bytes).saturating_sub(start.addr().get()).clamp(before, bytes);
    // SAFETY: at most `bytes`: within the range, or at its end.
    let at = |offset: usize| unsafe { start.add(offset) };
    Parts {
        ordinary: [(start, before), (at(beyond), bytes - beyond)],
        pooled: (at(before), beyond - before),
    }
}

/// Whether any part of a range lies in the pool.
pub(crate) fn touches(start: NonNull<u8>, bytes: usize) -> bool {
    divide(start, bytes).pooled.1 > 0
}

/// Puts `bytes` of huge pages behind the address space at `start`, for good.
///
/// # Errors
/// [`SourceError::Exhausted`] if not that many are free; [`SourceError::Unsupported`] if there is a
/// pool already, the range is not whole huge pages, or the system is too old (Linux 5.16).
///
/// # Safety
/// The range lies within one reservation, and none of it was ever committed. No other thread maps
/// memory during the call.
pub(crate) unsafe fn set_aside(start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
    let is_whole = (start.addr().get() | bytes).is_multiple_of(HUGE_PAGE_BYTES);
    if BYTES.load(Relaxed) > 0 || bytes == 0 || !is_whole {
        return Err(SourceError::Unsupported);
    }
    // The pages are taken elsewhere first, so that a refusal leaves the reservation as it is.
    let pages = keep_errno(|| take(bytes))?;
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the caller gives up the range; the pages are this call's own.
    let moved = keep_errno(|| unsafe { libc::mremap(pages, bytes, bytes, flags, start.as_ptr()) });
    if moved == libc::MAP_FAILED {
        // SAFETY: as above.
        keep_errno(|| unsafe { libc::munmap(pages, bytes) });
        keep_errno(|| reserve_again(start, bytes));
        return Err(SourceError::Unsupported);
    }
    START.store(start.addr().get(), Relaxed);
    BYTES.store(bytes, Release);
    Ok(())
}

/// Maps huge pages, and makes sure that each is allocated.
fn take(bytes: usize) -> Result<*mut libc::c_void, SourceError> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
    let pages = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, -1, 0) };
    if pages == libc::MAP_FAILED {
        return Err(SourceError::Exhausted);
    }
    // A control group may be allowed fewer pages than the machine has. Only a touch tells, and here
    // a touch does no harm.
    // SAFETY: the mapping just made.
    if unsafe { libc::madvise(pages, bytes, libc::MADV_POPULATE_WRITE) } != 0 {
        // SAFETY: as above; nobody has seen it.
        unsafe { libc::munmap(pages, bytes) };
        return Err(SourceError::Exhausted);
    }
    Ok(pages)
}

/// Reserves again the part of a range that a failed move may have unmapped.
fn reserve_again(start: NonNull<u8>, bytes: usize) {
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: what is mapped there stays; what is not is the reservation's.
    unsafe { libc::mmap(start.as_ptr().cast(), bytes, libc::PROT_NONE, flags, -1, 0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_divided_at_the_bounds_of_the_pool() {
        let memory = [0_u8; 64];
        let first = NonNull::from(&memory).cast::<u8>();
        let at = |byte: usize| first.addr().get() + byte;
        // The start of no pool is 0.
        for (pool, pool_start) in [(16..32, at(16)), (0..64, at(0)), (0..0, 0)] {
            let ranges = (0..64).flat_map(|start| (start..=64).map(move |end| (start, end)));
            for (start, end) in ranges {
                // SAFETY: within the memory.
                let from = unsafe { first.add(start) };
                let Parts { ordinary: [before, after], pooled } =
                    divide_at(pool_start, pool.len(), from, end - start);
                let mut next = at(start);
                for (part, bytes) in [before, pooled, after] {
                    assert_eq!(part.addr().get(), next, "{start}..{end}: a gap");
                    next += bytes;
                }
                assert_eq!(next, at(end));
                let expected = (start..end).filter(|byte| pool.contains(byte));
                assert_eq!(pooled.1, expected.clone().count(), "{start}..{end}");
                let first_pooled = expected.map(at).next();
                assert!(first_pooled.is_none_or(|byte| pooled.0.addr().get() == byte));
            }
        }
    }
}
