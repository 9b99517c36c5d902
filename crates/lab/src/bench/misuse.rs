//! Ten kinds of misuse: which of them does the heap detect?
//!
//! Each kind runs in a forked child. Misuse is **seen** if the child ended by `abort` (or a trap),
//! or printed a line on its standard error. A child that ended by another signal only **crashed**:
//! later, elsewhere, or by luck. If the child went on to its end, the misuse is **unnoticed**.

use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Instant;

use super::{Domain, Domains, Outcome, Parameters, Workload};
use crate::measure::Window;

/// The workload.
pub(crate) struct Misuse;

/// The kinds of misuse, and the name under which each is reported.
const KINDS: [(&str, fn()); 10] = [
    ("double_free_at_once", double_free_at_once),
    ("double_free_late", double_free_late),
    ("double_free_other_thread", double_free_other_thread),
    ("double_free_large", double_free_large),
    ("free_interior", free_interior),
    ("free_interior_large", free_interior_large),
    ("free_foreign", free_foreign),
    ("free_misaligned", free_misaligned),
    ("realloc_freed", realloc_freed),
    ("usable_size_freed", usable_size_freed),
];

impl Workload for Misuse {
    fn name(&self) -> &'static str {
        "misuse"
    }

    fn about(&self) -> &'static str {
        "ten kinds of misuse, each in a forked child: double free at once, late, on another \
         thread, of a large block; free of an interior (small, large), foreign and misaligned \
         pointer; realloc and malloc_usable_size of a freed object; `…_seen` 1 means that the heap \
         said so, `…_crashed` 1 that the process died otherwise; not part of `bench all`"
    }

    fn source(&self) -> &'static str {
        "hectare; kinds after the checks of glibc's malloc and of Scudo"
    }

    fn defaults(&self) -> Parameters {
        Parameters::new(1, KINDS.len() as u64)
    }

    fn rows(&self) -> Vec<Parameters> {
        Vec::new()
    }

    fn domains(&self) -> Domains {
        const COUNT: u64 = KINDS.len() as u64;
        &[("threads", Domain::Whole(1, 1)), ("ops", Domain::Whole(COUNT, COUNT))]
    }

    fn run(&self, _parameters: &Parameters) -> anyhow::Result<Outcome> {
        let window = Window::open()?;
        let start = Instant::now();
        let mut outcome = Outcome { ops: KINDS.len() as u64, ..Outcome::default() };
        let mut seen_kinds = 0.0;
        for (name, kind) in KINDS {
            let verdict = try_in_child(kind)?;
            let flag = |is: bool| f64::from(u8::from(is));
            seen_kinds += flag(verdict == Verdict::Seen);
            outcome.more.insert(format!("{name}_seen"), flag(verdict == Verdict::Seen));
            outcome.more.insert(format!("{name}_crashed"), flag(verdict == Verdict::Crashed));
        }
        outcome.more.insert("seen_kinds".to_owned(), seen_kinds);
        outcome.ns = start.elapsed().as_nanos() as u64;
        outcome.window = Some(window.close()?);
        Ok(outcome)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    Seen,
    Crashed,
    Unnoticed,
}

/// The exit code of a child that cannot start the thread it needs.
const NO_THREAD: libc::c_int = 1;

fn try_in_child(kind: fn()) -> anyhow::Result<Verdict> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors.
    let made = unsafe { libc::pipe(ends.as_mut_ptr()) };
    anyhow::ensure!(made == 0, "pipe: {}", std::io::Error::last_os_error());
    // SAFETY: the descriptors were just made and belong to nobody else.
    let [read, write] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    // SAFETY: this process is single-threaded here; the child calls the heap and then `_exit`.
    let child = unsafe { libc::fork() };
    anyhow::ensure!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        in_child(kind, ends[1]);
    }
    drop(write);
    let mut said = String::new();
    // Output that is not UTF-8 is output all the same.
    let printed = std::fs::File::from(read).read_to_string(&mut said).is_err() || !said.is_empty();
    let mut status = 0;
    // SAFETY: our own child; `status` is valid for writing.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    anyhow::ensure!(waited == child, "waitpid: {}", std::io::Error::last_os_error());
    let has_no_thread = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == NO_THREAD;
    anyhow::ensure!(!has_no_thread, "cannot start a thread");
    let by_itself = [libc::SIGABRT, libc::SIGTRAP, libc::SIGILL];
    Ok(if printed || libc::WIFSIGNALED(status) && by_itself.contains(&libc::WTERMSIG(status)) {
        Verdict::Seen
    } else if libc::WIFSIGNALED(status) {
        Verdict::Crashed
    } else {
        Verdict::Unnoticed
    })
}

fn in_child(kind: fn(), standard_error: i32) -> ! {
    // SAFETY: a system call on descriptors of our own.
    unsafe { libc::dup2(standard_error, 2) };
    let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `no_core` is valid for reading.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &no_core) };
    // SAFETY: ends a child whose heap is in an endless loop; it counts as crashed.
    unsafe { libc::alarm(5) };
    // There is some work before, so that the heap is not in its initial state, and after, so that a
    // heap that notices late gets its chance.
    work();
    kind();
    work();
    // SAFETY: ends the child without running the parent's exit handlers.
    unsafe { libc::_exit(0) };
}

fn work() {
    let blocks: Vec<_> = (0..2000).map(|i| allocate(16 + i % 500)).collect();
    blocks.into_iter().for_each(free);
}

fn allocate(size_bytes: usize) -> *mut libc::c_void {
    // SAFETY: any size may be asked for.
    std::hint::black_box(unsafe { libc::malloc(size_bytes) })
}

fn free(address: *mut libc::c_void) {
    // SAFETY: deliberately not upheld by most callers; this process is about to end.
    unsafe { libc::free(std::hint::black_box(address)) };
}

fn double_free_at_once() {
    let address = allocate(48);
    free(address);
    free(address);
}

fn double_free_late() {
    let address = allocate(48);
    free(address);
    // Other objects are freed in between, so that the object is no longer the newest of its list.
    // None is allocated, so that the object cannot have a new owner.
    let others: Vec<_> = (0..40).map(|_| allocate(400)).collect();
    others.into_iter().for_each(free);
    let more: Vec<_> = (0..12).map(|_| allocate(200)).collect();
    more.into_iter().for_each(free);
    free(address);
}

fn double_free_other_thread() {
    let address = allocate(48).expose_provenance();
    let again = move || free(std::ptr::with_exposed_provenance_mut(address));
    // The thread is started before the first free. Otherwise its start could be given this object.
    let freed = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let other = std::thread::Builder::new().spawn_scoped(scope, || {
            freed.wait();
            again();
        });
        if other.is_err() {
            // SAFETY: as at the end of `in_child`.
            unsafe { libc::_exit(NO_THREAD) };
        }
        again();
        freed.wait();
    });
}

fn double_free_large() {
    let address = allocate(3 << 20);
    free(address);
    free(address);
}

fn free_interior() {
    free(allocate(256).wrapping_byte_add(64));
}

fn free_interior_large() {
    free(allocate(3 << 20).wrapping_byte_add(1 << 20));
}

fn free_foreign() {
    static FOREIGN: [u64; 64] = [0; 64];
    free((&raw const FOREIGN).cast_mut().wrapping_byte_add(128).cast());
}

fn free_misaligned() {
    free(allocate(256).wrapping_byte_add(3));
}

fn realloc_freed() {
    let address = allocate(48);
    free(address);
    // SAFETY: deliberately not upheld; this process is about to end.
    std::hint::black_box(unsafe { libc::realloc(std::hint::black_box(address), 4000) });
}

fn usable_size_freed() {
    let address = allocate(48);
    free(address);
    // SAFETY: deliberately not upheld; this process is about to end.
    std::hint::black_box(unsafe { libc::malloc_usable_size(std::hint::black_box(address)) });
}
