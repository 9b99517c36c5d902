//! Files written without a heap: descriptors, paths with `%p`, and a buffer before them.

use core::ffi::c_int;
use core::fmt::{self, Write};
use core::mem::MaybeUninit;
use core::ptr;

use crate::line::Line;
use crate::{HEAP, errno};

/// As in `pthread.h`: a thread that is to be cancelled goes on.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, former: *mut c_int) -> c_int;
}

/// While it lives, no call is a cancellation point: a thread that is being cancelled ends where the
/// program says, not in here.
pub(crate) struct Uncancelled(c_int);

impl Uncancelled {
    pub(crate) fn begin() -> Self {
        let mut former = 0;
        // SAFETY: writes to `former`.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut former) };
        Self(former)
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state that was before.
        unsafe { pthread_setcancelstate(self.0, ptr::null_mut()) };
    }
}

/// While it lives, a write that the system refuses raises no signal, which would end the program. A
/// program that has confined itself might be killed for taking the signal out of the queue. There
/// the signal stays, blocked for good in this thread.
struct Unsignalled {
    former: u64,
    is_refused: bool,
}

impl Unsignalled {
    /// For a pipe that nobody reads, and for the limit on files' lengths.
    const SIGNALS: u64 = 1 << (libc::SIGPIPE - 1) | 1 << (libc::SIGXFSZ - 1);

    #[inline(never)]
    fn begin() -> Self {
        let (how, signals, mut former) = (libc::SIG_BLOCK, Self::SIGNALS, 0_u64);
        // By number, as in `claim`.
        // SAFETY: the kernel's sets of signals are words of this size.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigprocmask,
                how,
                &raw const signals,
                &raw mut former,
                size_of_val(&signals),
            )
        };
        Self { former, is_refused: false }
    }
}

impl Drop for Unsignalled {
    #[inline(never)]
    fn drop(&mut self) {
        if self.is_refused && HEAP.keeps_to_plain_calls() {
            return;
        }
        let refusal = errno::get();
        // A signal that the program itself has blocked may have waited before.
        let raised = Self::SIGNALS & !self.former;
        let (at_once, none) = (libc::timespec { tv_sec: 0, tv_nsec: 0 }, ptr::null_mut::<u64>());
        if self.is_refused {
            // SAFETY: as in `begin`; the signal was sent to this thread, by its own call.
            unsafe {
                libc::syscall(
                    libc::SYS_rt_sigtimedwait,
                    &raw const raised,
                    none,
                    &raw const at_once,
                    size_of_val(&raised),
                )
            };
        }
        let (how, former) = (libc::SIG_SETMASK, &raw const self.former);
        // SAFETY: as in `begin`; the mask that was before.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, former, none, size_of::<u64>()) };
        errno::set(refusal);
    }
}

/// Where bytes go.
pub(crate) trait Sink {
    /// Takes all of `bytes`; `None` if the system did not.
    fn put(&mut self, bytes: &[u8]) -> Option<()>;
}

/// An open file.
pub(crate) struct Descriptor(pub(crate) c_int);

impl Sink for Descriptor {
    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        let _uncancelled = Uncancelled::begin();
        let mut unsignalled = Unsignalled::begin();
        let mut rest = bytes;
        while !rest.is_empty() {
            // SAFETY: the bytes are readable for their length.
            let written = unsafe { libc::write(self.0, rest.as_ptr().cast(), rest.len()) };
            match usize::try_from(written) {
                Ok(written) if written > 0 => rest = &rest[written..],
                Err(_) if errno::get() == libc::EINTR => {}
                _ => {
                    unsignalled.is_refused = true;
                    return None;
                }
            }
        }
        Some(())
    }
}

/// Formatted text on its way to a sink. (Each type that is written to has its own copy of what
/// Rust's formatting needs.)
pub(crate) struct Text<'a>(pub(crate) &'a mut dyn Sink);

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.put(text.as_bytes()).ok_or(fmt::Error)
    }
}

/// A path with its null, on the stack.
pub(crate) struct Path {
    bytes: [u8; libc::PATH_MAX as usize],
    len: usize,
}

impl Path {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; libc::PATH_MAX as usize], len: 0 }
    }

    /// Appends `text`; `None`, and nothing has changed, if it is too long for a path.
    #[cold] // As `Line::push`.
    pub(crate) fn push(&mut self, text: &[u8]) -> Option<&mut Self> {
        let end = self.len + text.len();
        // The last byte stays the null.
        let room = self.bytes.get_mut(self.len..end).filter(|_| end < libc::PATH_MAX as usize)?;
        room.copy_from_slice(text);
        self.len = end;
        Some(self)
    }

    /// Appends a number in decimal.
    #[inline(never)] // As `push`.
    pub(crate) fn push_number(&mut self, number: u64) -> Option<&mut Self> {
        self.push(decimal(number, &mut [0; 20]))
    }

    /// Appends `text` with the process number for each `%p`.
    pub(crate) fn push_expanded(&mut self, text: &[u8]) -> Option<&mut Self> {
        let mut rest = text;
        while let Some((&byte, tail)) = rest.split_first() {
            if rest.starts_with(b"%p") {
                self.push_number(process_number())?;
                rest = &rest[2..];
            } else {
                self.push(&[byte])?;
                rest = tail;
            }
        }
        Some(self)
    }

    /// The path without its null.
    pub(crate) fn text(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The digits of `number` in decimal, in `digits`.
#[inline(never)]
pub(crate) fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut first = digits.len();
    for (at, digit) in digits.iter_mut().enumerate().rev() {
        (*digit, first) = (b'0' + (number % 10) as u8, at);
        number /= 10;
        if number == 0 {
            break;
        }
    }
    digits.get(first..).unwrap_or_default()
}

pub(crate) fn process_number() -> u64 {
    // SAFETY: no preconditions.
    unsafe { libc::getpid() }.unsigned_abs().into()
}

/// Writes a new file by `write`.
///
/// # Errors
/// The system's error number if anything failed. `EBUSY` while another thread writes this file, or
/// while this one does and a signal has interrupted it: so nothing waits.
pub(crate) fn write_file(
    path: &Path,
    write: impl FnOnce(&mut Descriptor) -> Option<()>,
) -> Result<(), c_int> {
    let _uncancelled = Uncancelled::begin();
    let mut file = Descriptor(open_alone(path)?);
    let written = write(&mut file).ok_or_else(errno::get);
    let closed = close_alone(file.0);
    written.and(closed)
}

/// Opens and empties a file that nobody else writes by [`write_file`].
#[inline(never)]
fn open_alone(path: &Path) -> Result<c_int, c_int> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_CLOEXEC;
    // SAFETY: the path ends in a null byte: `push` leaves the last one alone.
    let file = unsafe { libc::open(path.bytes.as_ptr().cast(), flags, 0o644) };
    if file < 0 {
        return Err(errno::get());
    }
    if let Err(error) = claim(file) {
        // SAFETY: opened above, and used no more.
        unsafe { libc::close(file) };
        return Err(error);
    }
    Ok(file)
}

#[inline(never)]
fn close_alone(file: c_int) -> Result<(), c_int> {
    // Not left to `close`: a child forked meanwhile has the file open, too.
    lock_file(file, libc::LOCK_UN);
    // SAFETY: `open_alone` opened it, and it is used no more.
    let closed = unsafe { libc::close(file) };
    if closed == 0 { Ok(()) } else { Err(errno::get()) }
}

/// Locks and empties a file that was opened for writing. A file that allows neither, such as a
/// pipe, is written to all the same, even while others write to it.
fn claim(file: c_int) -> Result<(), c_int> {
    let is_locked =
        lock_file(file, libc::LOCK_EX | libc::LOCK_NB) || errno::get() != libc::EWOULDBLOCK;
    if !is_locked && is_regular(file) {
        return Err(libc::EBUSY);
    }
    // All by number: further names bound when the library is loaded would take a page of every
    // process.
    // SAFETY: an open file.
    let emptied = unsafe { libc::syscall(libc::SYS_ftruncate, file, 0_i64) } == 0;
    if emptied || errno::get() == libc::EINVAL { Ok(()) } else { Err(errno::get()) }
}

fn lock_file(file: c_int, operation: c_int) -> bool {
    // SAFETY: an open file.
    unsafe { libc::syscall(libc::SYS_flock, file, operation) == 0 }
}

#[cold]
fn is_regular(file: c_int) -> bool {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: an open file, and room for what the system says of it.
    let told = unsafe { libc::syscall(libc::SYS_fstat, file, status.as_mut_ptr()) } == 0;
    // SAFETY: zeros, or what the system wrote.
    let mode = unsafe { status.assume_init() }.st_mode;
    told && mode & libc::S_IFMT == libc::S_IFREG
}

/// Reports on standard error that `what` could not be written to `path`, and why.
pub(crate) fn tell_unwritable(what: &[u8], path: &[u8], error: c_int) {
    let mut line = Line::new();
    line.push(b"hectare: cannot write ").push(what).push(b" to '").push(path).push(b"': ");
    line.push(describe(error).as_bytes());
    line.write_to_standard_error();
}

/// What the system says of a path that it refuses. (`strerror` may allocate.)
fn describe(error: c_int) -> &'static str {
    match error {
        libc::ENOENT => "no such directory",
        libc::EISDIR => "it is a directory",
        libc::EACCES | libc::EPERM => "permission denied",
        libc::EROFS => "the file system is read-only",
        libc::ENOSPC => "no space is left there",
        libc::EBUSY => "it is being written",
        libc::EMFILE | libc::ENFILE => "too many files are open",
        _ => "the system refuses",
    }
}
