//! What the system refuses: a program that frees an object must neither notice a refusal nor lose
//! memory by it.

use std::mem::offset_of;

use hectare_pages::{Os, PageSource, SourceError, System};

/// Makes each of two system calls of this thread fail with that error. Returns whether they do.
fn refuse(calls: [libc::c_long; 2], error: libc::c_int) -> bool {
    refuse_flagged(calls.map(|call| (call, None)), error)
}

/// As [`refuse`], but a call with flags fails only if its fourth argument has one of them.
fn refuse_flagged(calls: [(libc::c_long, Option<libc::c_int>); 2], error: libc::c_int) -> bool {
    let statement = |code, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let load = |place: usize| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, place as u32);
    // If not, goes on that many statements further.
    let only_if = |comparison, k, jf| libc::sock_filter {
        jf,
        ..statement(libc::BPF_JMP | comparison | libc::BPF_K, k)
    };
    let refused = statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | error as u32);
    let low_half = if cfg!(target_endian = "big") { 4 } else { 0 };
    let fourth = offset_of!(libc::seccomp_data, args) + 3 * size_of::<u64>() + low_half;
    let mut filter = Vec::new();
    for (call, flags) in calls {
        filter.push(load(offset_of!(libc::seccomp_data, nr)));
        if let Some(flags) = flags {
            filter.push(only_if(libc::BPF_JEQ, call as u32, 3));
            filter.push(load(fourth));
            filter.push(only_if(libc::BPF_JSET, flags as u32, 1));
        } else {
            filter.push(only_if(libc::BPF_JEQ, call as u32, 1));
        }
        filter.push(refused);
    }
    filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: of this thread alone, which ends with the test.
    let plain = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: as above; the program lives through the call.
    plain == 0 && unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) } == 0
}

#[test]
fn a_refused_clock_leaves_errno_alone() {
    let thread = std::thread::spawn(|| {
        if !refuse([libc::SYS_clock_gettime, libc::SYS_getcpu], libc::EPERM) {
            eprintln!("skipped: a_refused_clock_leaves_errno_alone needs seccomp");
            return;
        }
        // SAFETY: gives a valid pointer to this thread's errno.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        unsafe { errno.write(77) };
        assert_eq!(Os.thread_us(), 0, "the filter refuses it");
        let _ = (Os.now_ms(), Os.cpu(), Os.secret());
        // SAFETY: as above.
        assert_eq!(unsafe { errno.read() }, 77);
    });
    thread.join().unwrap();
}

/// A process meets this when it has as many mappings as it may: to unmap part of a mapping would
/// make one more.
#[test]
fn what_cannot_be_unmapped_holds_no_memory() {
    const BYTES: usize = 1 << 20;
    let thread = std::thread::spawn(|| {
        if !refuse([libc::SYS_munmap; 2], libc::ENOMEM) {
            eprintln!("skipped: what_cannot_be_unmapped_holds_no_memory needs seccomp");
            return;
        }
        let page = Os.page_bytes();
        let start = Os.get(BYTES, page).expect("memory");
        // SAFETY: just taken.
        unsafe { start.write_bytes(1, BYTES) };
        // SAFETY: all of it, in use by nobody.
        unsafe { Os.release(start, BYTES) };
        let mut resident = vec![0; BYTES / page];
        // SAFETY: the kernel is asked about a mapping that is there; a byte for each page.
        let known = unsafe { libc::mincore(start.as_ptr().cast(), BYTES, resident.as_mut_ptr()) };
        assert_eq!(known, 0, "it is mapped still");
        assert_eq!(resident.iter().filter(|&&page| page & 1 == 1).count(), 0);
    });
    thread.join().unwrap();
}

#[test]
fn what_cannot_be_sealed_stays_committed() {
    let thread = std::thread::spawn(|| {
        if !refuse([libc::SYS_mprotect; 2], libc::ENOMEM) {
            eprintln!("skipped: what_cannot_be_sealed_stays_committed needs seccomp");
            return;
        }
        let page = Os.page_bytes();
        let start = Os.get(page, page).expect("memory");
        // SAFETY: the page just taken, in use by nobody.
        assert_eq!(unsafe { Os.seal(start, page) }, Err(SourceError::Exhausted));
        // SAFETY: committed still.
        unsafe { start.write(1) };
        // SAFETY: as above, and in use by nobody.
        unsafe { Os.release(start, page) };
    });
    thread.join().unwrap();
}

/// Memory that is short once may be plentiful later.
#[test]
fn pages_are_populated_again_after_a_refusal_for_lack_of_memory() {
    let page = Os.page_bytes();
    let start = Os.get(2 * page, page).expect("memory");
    // SAFETY: advice on the first of the two pages just taken.
    let told = unsafe { libc::madvise(start.as_ptr().cast(), page, libc::MADV_POPULATE_WRITE) };
    let thread = std::thread::spawn(move || {
        let is_refused = refuse([libc::SYS_madvise; 2], libc::ENOMEM);
        let start = Os.get(page, page).expect("memory");
        // SAFETY: the page just taken.
        unsafe { Os.populate(start, page) };
        // SAFETY: as above, in use by nobody.
        unsafe { Os.release(start, page) };
        is_refused
    });
    if !thread.join().unwrap() || told != 0 {
        eprintln!("skipped: a refused population needs seccomp and Linux 5.14");
        return;
    }
    // SAFETY: the second of the two pages.
    let second = unsafe { start.add(page) };
    // SAFETY: as above.
    unsafe { Os.populate(second, page) };
    assert_eq!(Os.is_resident(second), Some(true));
    // SAFETY: both, in use by nobody.
    unsafe { Os.release(start, 2 * page) };
}

/// Some kernels unmap `to` before they refuse a move; here nothing is mapped there before.
#[test]
fn where_nothing_could_be_moved_to_is_mapped_again_or_lost() {
    /// A hole so wide that what other threads map meanwhile does not reach its middle.
    const HOLE_BYTES: usize = 1 << 30;
    let moves = (libc::SYS_mremap, Some(libc::MREMAP_DONTUNMAP));
    for (calls, told) in [
        ([moves; 2], SourceError::Unsupported),
        ([moves, (libc::SYS_mmap, None)], SourceError::Exhausted),
    ] {
        let thread = std::thread::spawn(move || {
            let page = Os.page_bytes();
            let from = Os.get(page, page).expect("memory");
            // SAFETY: the page just taken.
            unsafe { from.write(9) };
            let hole = Os.reserve(HOLE_BYTES, page).expect("address space");
            // SAFETY: within the reservation.
            let to = unsafe { hole.add(HOLE_BYTES / 2) };
            // SAFETY: just reserved, and unused.
            unsafe { Os.release(hole, HOLE_BYTES) };
            if !refuse_flagged(calls, libc::ENOMEM) {
                eprintln!("skipped: a refused move needs seccomp");
                return;
            }
            // SAFETY: a page of the test's own; nothing is moved.
            assert_eq!(unsafe { Os.move_pages(from, to, page) }, Err(told));
            // SAFETY: it is as it was.
            assert_eq!(unsafe { from.read() }, 9);
            let is_there = Os.is_resident(to).is_some();
            assert_eq!(is_there, told == SourceError::Unsupported);
            // SAFETY: in use by nobody.
            unsafe { Os.release(from, page) };
            if is_there {
                // SAFETY: as above, mapped by the refused call.
                unsafe { Os.release(to, page) };
            }
        });
        thread.join().unwrap();
    }
}
