//! System calls, without the standard library (which would allocate) and with `errno` preserved.
//!
//! 1. No call is a cancellation point, just as `malloc` is none: a thread that `pthread_cancel` has
//!    marked would end in the midst of the recorder, with its lock held. So the calls that the C
//!    library makes cancellation points (`open`, `close`, `read`, `write`, `fallocate`) go through
//!    `syscall`.
//! 2. A call that a signal has interrupted is made again. On a file system that lets signals
//!    interrupt it, the recording would otherwise end where the program's timer ticks.

use core::ffi::CStr;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Preserves `errno` while it lives: the program must not notice the recording.
pub(crate) struct KeepErrno(i32);

impl KeepErrno {
    pub(crate) fn new() -> Self {
        Self(errno())
    }
}

impl Drop for KeepErrno {
    fn drop(&mut self) {
        // SAFETY: gives a valid pointer to this thread's errno.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        unsafe { errno.write(self.0) };
    }
}

/// The result of `call`, which is made again as long as signals interrupt it (invariant 2).
fn uninterrupted(call: impl Fn() -> libc::c_long) -> libc::c_long {
    loop {
        let result = call();
        if result != -1 || errno() != libc::EINTR {
            return result;
        }
    }
}

/// This thread's number in the system.
pub(crate) fn thread_number() -> i32 {
    // SAFETY: has no precondition.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// This thread's `errno`.
pub(crate) fn errno() -> i32 {
    // SAFETY: gives a valid pointer to this thread's errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { errno.read() }
}

/// Sleeps until [`wake_one`] is called for `word`. Returns at once if `word` is not `value`, and
/// may return early.
pub(crate) fn sleep_while(word: &AtomicU32, value: u32) {
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let forever = core::ptr::null::<libc::timespec>();
    let _errno = KeepErrno::new();
    // SAFETY: the kernel only reads the word, which is borrowed.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, forever) };
}

/// Wakes one of the threads that sleep in [`sleep_while`] for `word`, if there are any.
pub(crate) fn wake_one(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    let _errno = KeepErrno::new();
    // SAFETY: the kernel uses no more than the word's address.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, 1) };
}

/// How much memory is taken at a time when reserved address space is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grain {
    /// A page: for space that is written sparsely.
    Page,
    /// A huge page, if the system has one: for space that is written all over, at random.
    HugePage,
}

/// Address space that costs memory only where it is written. Initially zero.
pub(crate) fn reserve(bytes: usize, grain: Grain) -> Option<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
    let mapped = unsafe { libc::mmap(null_mut(), bytes, protection, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return None;
    }
    let advice = match grain {
        Grain::Page => libc::MADV_NOHUGEPAGE,
        Grain::HugePage => libc::MADV_HUGEPAGE,
    };
    // SAFETY: the mapping was made above with this length; the advice changes no content.
    unsafe { libc::madvise(mapped, bytes, advice) };
    NonNull::new(mapped.cast())
}

/// Makes the kernel zero a mapping of [`reserve`] in every forked child.
pub(crate) fn wipe_on_fork(start: NonNull<u8>, bytes: usize) -> bool {
    // SAFETY: the caller's own anonymous mapping; the advice changes no content of this process.
    unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_WIPEONFORK) == 0 }
}

/// Ends a mapping.
///
/// # Safety
/// `start` and `bytes` are a whole mapping, and no pointer into it is used afterwards.
pub(crate) unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
}

/// How much of a mapping of [`reserve`] has memory, bytes.
pub(crate) fn resident_bytes(start: NonNull<u8>, bytes: usize) -> usize {
    // SAFETY: has no precondition.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let mut pages = [0; 1024];
    let most = pages.len() * page;
    let mut resident = 0;
    for offset in (0..bytes).step_by(most) {
        let length = most.min(bytes - offset);
        let pages = &mut pages[..length.div_ceil(page)];
        // SAFETY: inside the mapping.
        let part = unsafe { start.add(offset) }.as_ptr().cast();
        // SAFETY: there is a byte for each page.
        if unsafe { libc::mincore(part, length, pages.as_mut_ptr()) } == 0 {
            resident += pages.iter().filter(|&&page| page & 1 != 0).count();
        }
    }
    resident * page
}

/// A descriptor that is closed when dropped.
pub(crate) struct File(i32);

impl File {
    /// Makes a new file for reading and writing, now and later. `None`, with `errno` set, if that
    /// fails or the file exists.
    pub(crate) fn create_new(name: &CStr) -> Option<Self> {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
        let file = Self::open_with(name, flags)?;
        // The program's mask may deny even the owner the right to open the file again.
        let owner = libc::S_IRUSR | libc::S_IWUSR;
        if let Some(mode) = status(file.0).map(|status| status.st_mode)
            && mode & owner != owner
        {
            // SAFETY: works on the descriptor alone.
            unsafe { libc::fchmod(file.0, mode & 0o777 | owner) };
        }
        Some(file)
    }

    /// Opens an existing file for reading and writing.
    pub(crate) fn open(name: &CStr) -> Option<Self> {
        Self::open_with(name, libc::O_RDWR | libc::O_CLOEXEC)
    }

    /// Opens a file for reading only.
    pub(crate) fn open_to_read(name: &CStr) -> Option<Self> {
        Self::open_with(name, libc::O_RDONLY | libc::O_CLOEXEC)
    }

    fn open_with(name: &CStr, flags: i32) -> Option<Self> {
        let name = name.as_ptr();
        // SAFETY: `name` is a null-terminated string.
        let open =
            || unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name, flags, 0o644) };
        let fd = uninterrupted(open);
        (fd >= 0).then(|| Self(fd as i32))
    }

    /// Allocates the range in the file, so that a write to its mapping cannot fail for lack of
    /// space. The process's limit must allow a file of that length ([`may_be_long`]).
    pub(crate) fn allocate(&self, offset: u64, bytes: usize) -> bool {
        let (from, length) = (offset as i64, bytes as i64);
        // SAFETY: works on the descriptor alone.
        let allocate = || unsafe { libc::syscall(libc::SYS_fallocate, self.0, 0, from, length) };
        if uninterrupted(allocate) == 0 {
            return true;
        }
        let unsupported = errno() == libc::EOPNOTSUPP;
        // On a file system without allocation, extending the file is all that can be done.
        // SAFETY: works on the descriptor alone; the file only grows, under the caller's lock.
        unsupported && unsafe { libc::ftruncate(self.0, from + length) } == 0
    }

    /// Maps a range of the file, shared, for reading and writing.
    pub(crate) fn map(&self, offset: u64, bytes: usize) -> Option<NonNull<u8>> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let mapped = unsafe {
            libc::mmap(null_mut(), bytes, protection, libc::MAP_SHARED, self.0, offset as i64)
        };
        if mapped == libc::MAP_FAILED {
            return None;
        }
        // One call instead of all page faults. A kernel before 5.14 refuses it, and the faults then
        // come one by one.
        // SAFETY: the mapping was made above with this length; the advice changes no content.
        unsafe { libc::madvise(mapped, bytes, libc::MADV_POPULATE_WRITE) };
        NonNull::new(mapped.cast())
    }

    /// Reads from the current position; 0 at the end or on an error.
    pub(crate) fn read(&self, out: &mut [u8]) -> usize {
        let (start, length) = (out.as_mut_ptr(), out.len());
        // SAFETY: `out` is valid for writing its length.
        let read = || unsafe { libc::syscall(libc::SYS_read, self.0, start, length) };
        let got = uninterrupted(read);
        usize::try_from(got).unwrap_or(0)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor is owned.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// Removes a file.
pub(crate) fn remove(name: &CStr) {
    // SAFETY: `name` is a null-terminated string.
    unsafe { libc::unlink(name.as_ptr()) };
}

/// The file that was the error output when recording began: device and inode. Zero means none.
static ERROR_OUTPUT: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Notes what the error output is.
pub(crate) fn note_error_output() {
    if let Some(file) = error_output() {
        ERROR_OUTPUT
            .iter()
            .zip(identity(&file))
            .for_each(|(noted, part)| noted.store(part, Ordering::Relaxed));
    }
}

fn error_output() -> Option<libc::stat> {
    status(2)
}

fn status(fd: i32) -> Option<libc::stat> {
    let mut status = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `status` is valid for writing.
    if unsafe { libc::fstat(fd, status.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: filled by the call above.
    Some(unsafe { status.assume_init() })
}

fn identity(status: &libc::stat) -> [u64; 2] {
    [status.st_dev, status.st_ino]
}

/// Whether the process's limit allows a file of that many bytes. Beyond the limit the kernel ends
/// the program.
pub(crate) fn may_be_long(bytes: u64) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0;
    !known || bytes <= limit.rlim_cur
}

/// Writes a message to the error output, unless that file may not grow, or the descriptor now names
/// another file. (After a daemon has closed the error output, its descriptor may name the daemon's
/// database.)
pub(crate) fn say(parts: &[&[u8]]) {
    let Some(output) = error_output() else { return };
    if identity(&output) != ERROR_OUTPUT.each_ref().map(|part| part.load(Ordering::Relaxed)) {
        return;
    }
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    let is_file = output.st_mode & libc::S_IFMT == libc::S_IFREG;
    if is_file && !may_be_long(output.st_size as u64 + bytes as u64) {
        return;
    }
    for part in parts {
        // SAFETY: `part` is valid for reading its length.
        unsafe { libc::syscall(libc::SYS_write, 2, part.as_ptr(), part.len()) };
    }
}
