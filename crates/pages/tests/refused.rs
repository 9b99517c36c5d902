//! What the system refuses: a program that frees an object must not see it, nor lose memory by it.

use std::mem::offset_of;

use hectare_pages::{Os, PageSource, System};

/// Has each of two system calls of this thread refused with that error. Whether they are.
fn refuse(calls: [libc::c_long; 2], error: libc::c_int) -> bool {
    let statement = |code, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let is = |call: libc::c_long, jf| libc::sock_filter {
        jt: 0,
        jf,
        ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32)
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let refused = libc::SECCOMP_RET_ERRNO | error as u32;
    let mut filter = [
        statement(load, offset_of!(libc::seccomp_data, nr) as u32),
        is(calls[0], 1),
        statement(libc::BPF_RET | libc::BPF_K, refused),
        is(calls[1], 1),
        statement(libc::BPF_RET | libc::BPF_K, refused),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
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

/// So it is where a process has as many mappings as it may, and to unmap a part of one would make one more.
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
