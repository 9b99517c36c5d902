//! What the system refuses, a program that frees an object must not see.

use std::mem::offset_of;

use hectare_pages::{Os, System};

/// Has each `clock_gettime` and `getcpu` of this thread, where they are system calls, refused.
fn refuse() -> bool {
    let statement = |code, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let is = |call: libc::c_long, jf| libc::sock_filter {
        jt: 0,
        jf,
        ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32)
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut filter = [
        statement(load, offset_of!(libc::seccomp_data, nr) as u32),
        is(libc::SYS_clock_gettime, 1),
        statement(libc::BPF_RET | libc::BPF_K, refused),
        is(libc::SYS_getcpu, 1),
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
        if !refuse() {
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
