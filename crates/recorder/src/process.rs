//! The recorder's state for the process: the file, the tapes, and what becomes of them when a
//! thread ends or the process forks. Everything here is off the hot path.
//!
//! ```text
//!  arena  ┌──────┬─────────┬──────┬──────┬─ ─     mapped with MADV_WIPEONFORK: a child finds it zeroed
//!         │ Lock │ Process │ Tape │ Tape │
//!         └──────┴─────────┴──────┴──────┴─ ─
//! ```
//!
//! 1. `Process` is used only between [`Process::lock`] and the drop of its guard; zero is the
//!    valid state of a process that has no file yet.
//! 2. A tape is used by one thread only, from [`tape_for`] to [`thread_end`]. A thread may make
//!    calls even after that. Another thread completes the tape for these calls once the first is
//!    gone.
//! 3. No descriptor is kept open: programs close descriptors that they do not know, and the numbers
//!    are reused. The file is opened by name for every new chunk.

use core::ffi::{CStr, c_void};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use hectare_base::sync::{Lock, LockGuard, Park};
use hectare_trace::header::{live, write_command};
use hectare_trace::{Event, FileHeader, HEADER_BYTES, RowState, ThreadId};

use crate::chunk::{self, Chunk};
use crate::clock;
use crate::decision;
use crate::shadow;
use crate::sys::{self, File, Grain, KeepErrno};
use crate::tape::{self, Tape};
use crate::tls::{self, Local};

/// Number of the next thread. Not wiped: a child's threads continue the numbering, so that
/// inherited objects cannot be taken for its own.
static NEXT_THREAD: AtomicU32 = AtomicU32::new(1);

/// The arena; null before recording is on. Not wiped: a child has it at the same address.
static ARENA: AtomicPtr<Arena> = AtomicPtr::new(null_mut());

/// Key whose destructor reports the end of a thread.
static END_KEY: AtomicU32 = AtomicU32::new(0);

/// A copy of the value of `HECTARE_TRACE`: programs overwrite their environment with their title.
/// Not wiped: a child derives the name of its own file from it.
static BASE_NAME: AtomicPtr<u8> = AtomicPtr::new(null_mut());

/// Address space for tapes: 400 000 threads at a time.
const ARENA_BYTES: usize = 1 << 26;

/// glibc and musl call destructors in this many rounds. The recorder's last one comes late in the
/// last round.
const DESTRUCTOR_ROUNDS: usize = 4;

const NAME_BYTES: usize = 4096;

/// Chunks kept for threads that begin: as many as threads may end at a time before others begin,
/// and no more than a mebibyte.
const MOST_LEFT: usize = 64;

/// Measuring memory takes at most one in so many parts of the time.
const MEASURING_SHARE: u64 = 100;

/// Longer than what the system tells of a process, unless that has very many groups.
const STATUS_BYTES: usize = 4096;

/// Room for what is appended to the name: two numbers, each after a dot, and the terminator.
const NUMBERS_BYTES: usize = 24;

/// The beginning of the arena; the tapes follow.
type Arena = Lock<Process, Sleep>;

/// The state under the lock.
struct Process {
    /// The mapped header of the file; null while there is none.
    header: *mut [u8; HEADER_BYTES],
    /// Threads with a lower number belong to the process that this one was forked from.
    first_thread: u32,
    epoch_ticks: u64,
    epoch_ns: u64,
    /// Whose file it is.
    pid: u32,
    /// When the memory may be measured again, ticks.
    next_measuring_ticks: u64,
    /// The most that the chunks have taken, bytes.
    most_mapped_bytes: usize,
    /// Room for what the system tells of this process.
    status: [u8; STATUS_BYTES],
    /// Tapes taken from the arena so far.
    tapes: usize,
    /// Tapes given back, linked through their first word.
    free: *mut FreeTape,
    /// Tapes of threads that made calls after their end.
    late: *mut LateTape,
    /// What ended threads have left of their chunks, for threads that begin.
    left: [Option<Chunk>; MOST_LEFT],
    /// Name of the file, null-terminated.
    name: [u8; NAME_BYTES],
}

struct FreeTape {
    next: *mut FreeTape,
}

/// The tape of a thread that makes calls after its end.
#[repr(C)]
struct LateTape {
    /// First, so that it lies where any other tape would.
    tape: Tape,
    /// Used under the lock only, while the thread uses its tape.
    link: LateLink,
}

#[derive(Clone, Copy)]
struct LateLink {
    /// The thread's number in the system.
    tid: i32,
    next: *mut LateTape,
}

impl LateTape {
    fn link(late: NonNull<Self>) -> NonNull<LateLink> {
        // SAFETY: lies inside the place in the arena, which has room for the whole.
        unsafe { late.cast::<u8>().add(core::mem::offset_of!(Self, link)) }.cast()
    }
}

/// What a tape takes in the arena, bytes.
const TAPE_BYTES: usize = 128;
const _: () = assert!(size_of::<LateTape>() <= TAPE_BYTES);

/// How threads wait for the arena.
struct Sleep;

impl Park for Sleep {
    fn wait(word: &AtomicU32, expected: u32) {
        sys::sleep_while(word, expected);
    }

    fn wake_one(word: &AtomicU32) {
        sys::wake_one(word);
    }

    fn give_way() {
        // SAFETY: has no precondition.
        unsafe { libc::sched_yield() };
    }
}

impl Process {
    fn lock() -> Option<LockGuard<'static, Self, Sleep>> {
        // SAFETY: null, or the arena, which is never unmapped; zeros are a free lock around a valid
        // process.
        let arena = unsafe { ARENA.load(Ordering::Acquire).as_ref() }?;
        Some(arena.lock())
    }
}

/// Sets up what recording needs, once: a name for the files, address space, a key for watching
/// threads.
pub(crate) fn prepare(base: &CStr) -> bool {
    let Some(name) = sys::reserve(NAME_BYTES, Grain::Page) else { return false };
    let base = base.to_bytes_with_nul();
    if base.len() + NUMBERS_BYTES > NAME_BYTES {
        return false;
    }
    // SAFETY: the mapping is new and, by the check above, longer than the name.
    unsafe { name.as_ptr().copy_from_nonoverlapping(base.as_ptr(), base.len()) };
    let Some(arena) = sys::reserve(ARENA_BYTES, Grain::Page) else { return false };
    let mut key = 0;
    // SAFETY: `key` is valid for writing; the destructor fits the signature.
    let keyed = unsafe { libc::pthread_key_create(&mut key, Some(thread_end)) } == 0;
    if !keyed || !sys::wipe_on_fork(arena, ARENA_BYTES) || !shadow::prepare() {
        return false;
    }
    END_KEY.store(key, Ordering::Release);
    BASE_NAME.store(name.as_ptr(), Ordering::Release);
    ARENA.store(arena.as_ptr().cast(), Ordering::Release);
    true
}

/// The slow path of every event: a tape with room for this thread, or `None` when the event is not
/// to be recorded.
pub(crate) fn tape_for(here: &Local) -> Option<&'static mut Tape> {
    if here.busy.get() || !decision::recording() {
        return None;
    }
    let _errno = KeepErrno::new();
    here.busy.set(true);
    let tape = ready_tape(here);
    here.busy.set(false);
    tape
}

fn ready_tape(here: &Local) -> Option<&'static mut Tape> {
    // SAFETY: null, or this thread's tape (invariant 2).
    let known = unsafe { here.tape.get().as_mut() };
    // Without a thread number the tape was wiped, so this is a forked child.
    let known = known.filter(|tape| tape.thread().0 != 0);
    if known.is_none() && here.ended.get() && !is_of_this_process(here.last.get().thread) {
        // The thread ended in the parent, which goes on numbering that thread's objects. Here it
        // begins.
        here.ended.set(false);
    }
    let begins = known.is_none() && !here.ended.get();
    let tape = match known {
        Some(tape) => {
            tape.finish_chunk();
            tape
        }
        None => {
            if begins {
                // This may allocate. `busy` is set, so that counts as the recorder's own and is not
                // recorded.
                watch_for_end(1);
            }
            new_tape(here)?
        }
    };
    if !tape.has_room()
        && let Err(stop) = tape.begin_chunk(map_chunk)
    {
        give_up(stop);
        return None;
    }
    if begins {
        tape.event(&Event::ThreadStart);
    }
    Some(tape)
}

fn is_of_this_process(thread: ThreadId) -> bool {
    let process = Process::lock();
    process.is_some_and(|it| !it.header.is_null() && thread.0 >= it.first_thread)
}

/// A tape for a thread that begins, or that makes calls after its end.
fn new_tape(here: &Local) -> Option<&'static mut Tape> {
    let mut process = Process::lock()?;
    if process.header.is_null()
        && let Err(stop) = open_file(&mut process)
    {
        drop(process);
        give_up(stop);
        return None;
    }
    let state = if here.ended.get() {
        here.last.get()
    } else {
        RowState::new(ThreadId(NEXT_THREAD.fetch_add(1, Ordering::Relaxed)))
    };
    // Without a number of its own, the thread's objects would be taken for those of an earlier
    // thread.
    let place = if state.thread.can_be() { process.take_tape() } else { None };
    let Some(place) = place else {
        drop(process);
        give_up(Stop::Threads);
        return None;
    };
    // A thread's chunks stand in the file in the thread's own order, so a late chunk goes to the
    // end.
    let left = if here.ended.get() { None } else { process.take_left() };
    // SAFETY: the place is in the arena, aligned, and nobody else's.
    unsafe { place.write(Tape::new(process.epoch_ticks, state, left)) };
    if here.ended.get() {
        process.complete_late_tapes();
        process.note_late_tape(place, here.tid.get());
    }
    here.tape.set(place.as_ptr());
    // SAFETY: written just now.
    Some(unsafe { &mut *place.as_ptr() })
}

impl Process {
    fn take_tape(&mut self) -> Option<NonNull<Tape>> {
        if let Some(free) = NonNull::new(self.free) {
            // SAFETY: linked by `give_tape` under the lock.
            self.free = unsafe { free.as_ref() }.next;
            return Some(free.cast());
        }
        let offset = size_of::<Arena>().next_multiple_of(TAPE_BYTES) + self.tapes * TAPE_BYTES;
        if offset + TAPE_BYTES > ARENA_BYTES {
            return None;
        }
        self.tapes += 1;
        let arena = NonNull::new(ARENA.load(Ordering::Acquire))?.cast::<u8>();
        // SAFETY: inside the arena by the check above.
        Some(unsafe { arena.add(offset) }.cast())
    }

    fn give_tape(&mut self, tape: NonNull<Tape>) {
        let free = tape.cast::<FreeTape>();
        // SAFETY: a tape is larger, and its thread has given it up.
        unsafe { free.write(FreeTape { next: self.free }) };
        self.free = free.as_ptr();
    }

    fn take_left(&mut self) -> Option<Chunk> {
        self.left.iter_mut().find_map(Option::take)
    }

    fn give_left(&mut self, left: Chunk) {
        match self.left.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(left),
            None => left.unmap(),
        }
    }

    fn note_late_tape(&mut self, tape: NonNull<Tape>, tid: i32) {
        let late = tape.cast::<LateTape>();
        // SAFETY: the place is this thread's, and nobody else knows it yet.
        unsafe { LateTape::link(late).write(LateLink { tid, next: self.late }) };
        self.late = late.as_ptr();
    }

    /// Completes the tapes of threads that are gone, and gives them back. Otherwise each tape would
    /// keep a mapping, and a process may have some 65 000 mappings.
    fn complete_late_tapes(&mut self) {
        let mut rest = core::mem::replace(&mut self.late, null_mut());
        while let Some(late) = NonNull::new(rest) {
            let place = LateTape::link(late);
            // SAFETY: written by `note_late_tape` under the lock, which is held.
            let link = unsafe { place.read() };
            rest = link.next;
            if is_gone(link.tid) {
                // SAFETY: its thread, which alone used it (invariant 2), makes no calls any more.
                unsafe { late.cast::<Tape>().as_mut() }.finish_chunk();
                self.give_tape(late.cast());
            } else {
                // SAFETY: as for the reading.
                unsafe { place.write(LateLink { next: self.late, ..link }) };
                self.late = late.as_ptr();
            }
        }
    }

    fn name(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.name).unwrap_or_default()
    }

    /// Notes in the file that an event is missing.
    fn count_lost(&self) {
        if let Some(lost) = self.live(live::LOST_EVENTS_AT) {
            lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A field of the mapped header that is updated while recording.
    fn live(&self, at: usize) -> Option<&AtomicU64> {
        let header = NonNull::new(self.header)?.cast::<u8>();
        // SAFETY: the fields lie inside the header at multiples of eight.
        let field = unsafe { header.add(at) }.cast::<AtomicU64>();
        // SAFETY: mapped until the process ends; accessed as an atomic only.
        Some(unsafe { field.as_ref() })
    }
}

/// Whether no thread has that number. The question is not limited to this process, which can be a
/// child that uses its parent's memory (`vfork`).
fn is_gone(tid: i32) -> bool {
    // SAFETY: signal 0 is sent to nobody; the call only asks.
    let is_there = unsafe { libc::syscall(libc::SYS_tkill, tid, 0) } == 0;
    !is_there && sys::errno() == libc::ESRCH
}

/// Makes `BASE.<pid>.<n>` with the first free `n`: programs that run one after the other in the
/// same process (`exec`) have a file each. Makes none if `BASE` itself is gone: then the recording
/// has ended, and nobody would look at the file.
fn open_file(process: &mut Process) -> Result<(), Stop> {
    let base = BASE_NAME.load(Ordering::Acquire);
    // SAFETY: null-terminated, and never unmapped: set by `prepare` before the arena.
    let base_name = unsafe { CStr::from_ptr(base.cast()) };
    let base = base_name.to_bytes();
    // SAFETY: has no precondition.
    let pid = unsafe { libc::getpid() } as u32;
    // SAFETY: has no precondition.
    let parent_pid = unsafe { libc::getppid() } as u32;
    for nth in 0..u32::MAX {
        process.name[..base.len()].copy_from_slice(base);
        let at = put_number(&mut process.name, base.len(), pid);
        let at = put_number(&mut process.name, at, nth);
        process.name[at] = 0;
        if let Some(file) = File::create_new(process.name()) {
            // Not before: if no file can be made (after chroot), the user is told.
            if File::open_to_read(base_name).is_none() && sys::errno() == libc::ENOENT {
                sys::remove(process.name());
                return Err(Stop::Ended);
            }
            return begin_file(process, &file, pid, parent_pid);
        }
        if sys::errno() != libc::EEXIST {
            break;
        }
    }
    Err(Stop::File)
}

fn begin_file(process: &mut Process, file: &File, pid: u32, parent_pid: u32) -> Result<(), Stop> {
    let header = map(file, 0, HEADER_BYTES)?;
    let page = header.cast::<[u8; HEADER_BYTES]>().as_ptr();
    // SAFETY: mapped just now and nobody else's.
    let out = unsafe { &mut *page };
    process.first_thread = NEXT_THREAD.load(Ordering::Relaxed);
    let fields = FileHeader {
        pid,
        parent_pid,
        first_thread: process.first_thread,
        start_unix_ns: clock::unix_ns(),
        process_start: process_start(),
        ..FileHeader::new()
    };
    fields.write_fields(out);
    let mut command = [0; 2048];
    if let Some(cmdline) = File::open_to_read(c"/proc/self/cmdline") {
        let length = cmdline.read(&mut command);
        let command = &mut command[..length];
        command.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b' ');
        write_command(out, command.trim_ascii_end());
    }
    process.header = page;
    process.pid = pid;
    chunk::none_is_mapped();
    process.epoch_ticks = clock::ticks();
    process.epoch_ns = clock::monotonic_ns();
    Ok(())
}

/// When this process began, in clock ticks since the system did; 0 if the system does not say.
fn process_start() -> u64 {
    // The fields behind the name of the program. The name may hold anything and ends at the last
    // parenthesis. It has at most 16 bytes, and the numbers before it at most 20.
    const FIELD: usize = 20;
    let mut text = [0; 512];
    let length = File::open_to_read(c"/proc/self/stat").map_or(0, |stat| stat.read(&mut text));
    let after_name = text[..length].rsplit(|&byte| byte == b')').next().unwrap_or_default();
    let field = after_name.split(|&byte| byte == b' ').nth(FIELD).unwrap_or_default();
    field.iter().fold(0, |number: u64, &digit| {
        number.wrapping_mul(10).wrapping_add(u64::from(digit.wrapping_sub(b'0')))
    })
}

/// Writes `.number` at `at` and returns the place after it.
fn put_number(out: &mut [u8], at: usize, number: u32) -> usize {
    let digits = number.checked_ilog10().unwrap_or(0) as usize + 1;
    out[at] = b'.';
    let mut rest = number;
    for place in (at + 1..=at + digits).rev() {
        out[place] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    at + 1 + digits
}

/// Takes space at the end of the file and maps it.
fn map_chunk(bytes: usize, state: RowState) -> Result<Chunk, Stop> {
    let mut process = Process::lock().ok_or(Stop::File)?;
    let file = File::open(process.name()).ok_or(Stop::File)?;
    let end = process.live(live::END_OFFSET_AT).ok_or(Stop::File)?;
    let offset = end.load(Ordering::Relaxed);
    let start = map(&file, offset, bytes)?;
    // SAFETY: a fresh range of the file (the lock is held), zero as in any new file.
    let chunk = unsafe { Chunk::begin(start, bytes, state) };
    // After the header: whatever lies before the end is then a chunk, whenever the program dies.
    end.store(offset + bytes as u64, Ordering::Release);
    measure_clock(&process);
    process.most_mapped_bytes = process.most_mapped_bytes.max(chunk::mapped_bytes());
    let now = clock::ticks();
    if now >= process.next_measuring_ticks {
        measure_memory(&mut process);
        let took = clock::ticks().saturating_sub(now);
        process.next_measuring_ticks = now.saturating_add(MEASURING_SHARE * took);
    }
    Ok(chunk)
}

/// Allocates a range of the file and maps it. Nothing beyond the process's file size limit is
/// requested: the kernel would end the program for that.
fn map(file: &File, offset: u64, bytes: usize) -> Result<NonNull<u8>, Stop> {
    if !sys::may_be_long(offset + bytes as u64) {
        return Err(Stop::Length);
    }
    if !file.allocate(offset, bytes) {
        return Err(Stop::Disk);
    }
    file.map(offset, bytes).ok_or(Stop::Addresses)
}

/// Notes how fast the clock has run so far.
fn measure_clock(process: &Process) {
    let elapsed_ns = clock::monotonic_ns() - process.epoch_ns;
    let elapsed_ticks = clock::ticks().saturating_sub(process.epoch_ticks);
    let Some(field) = process.live(live::TICKS_PER_SECOND_AT) else { return };
    if let Some(rate) = (u128::from(elapsed_ticks) * 1_000_000_000).checked_div(elapsed_ns.into())
        && rate > 0
    {
        field.store(rate as u64, Ordering::Relaxed);
    }
}

/// Notes the most memory that the process has held so far, without what the recorder takes. That
/// never gets less, so it was at most as much as now when the process held most. Returns whether it
/// is known.
///
/// A process that confines itself might be ended for the question about the recorder's tables, so
/// nothing is known of it from then on.
fn measure_memory(process: &mut Process) -> bool {
    let Some(status) = File::open_to_read(c"/proc/thread-self/status") else { return false };
    let length = status.read(&mut process.status);
    drop(status);
    let text = &process.status[..length];
    let is_confined = field(text, b"Seccomp:").is_some_and(|mode| mode != 0);
    let Some(peak_kib) = field(text, b"VmHWM:").filter(|_| length < STATUS_BYTES) else {
        return false;
    };
    if is_confined {
        return false;
    }
    let own = shadow::resident_bytes() + process.most_mapped_bytes;
    let held = (peak_kib * 1024).saturating_sub(own as u64);
    let Some(noted) = process.live(live::HELD_BYTES_AT) else { return false };
    noted.fetch_max(held, Ordering::Relaxed);
    true
}

/// The number that follows `name` in a text of lines.
fn field(text: &[u8], name: &[u8]) -> Option<u64> {
    let line = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name))?;
    let digits = line.trim_ascii_start().iter().take_while(|byte| byte.is_ascii_digit());
    let add = |number: u64, digit: &u8| number.wrapping_mul(10) + u64::from(digit - b'0');
    Some(digits.fold(0, add))
}

/// Runs as the process exits, after its own handlers and destructors.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = process_ends;

/// Measures the memory for the last time.
extern "C" fn process_ends() {
    let here = tls::local();
    if here.busy.get() || !decision::is_on() {
        return;
    }
    here.busy.set(true);
    // Not if a handler of a signal calls `exit` where its thread holds the lock.
    let arena = ARENA.load(Ordering::Acquire);
    // SAFETY: as in `Process::lock`.
    if let Some(mut process) = unsafe { arena.as_ref() }.and_then(|arena| arena.try_lock())
        // SAFETY: has no precondition.
        && unsafe { libc::getpid() } as u32 == process.pid
        && measure_memory(&mut process)
        && let Some(ended) = process.live(live::HELD_TO_THE_END_AT)
    {
        ended.store(1, Ordering::Relaxed);
    }
    here.busy.set(false);
}

/// Why a recording cannot be continued.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stop {
    File,
    Length,
    Disk,
    Addresses,
    Threads,
    /// The recording has ended, but not this process.
    Ended,
}

impl Stop {
    fn reason(self) -> &'static [u8] {
        match self {
            Self::File => {
                b"the program cannot open its file (after chroot, as another user, or with all \
                  descriptors in use)"
            }
            Self::Length => b"files may not be so large (ulimit -f)",
            Self::Disk => b"the disk is full",
            Self::Addresses => b"the program has no address space left (ulimit -v)",
            Self::Threads => b"the program has had 2^24 threads, or has 400 000 at a time",
            Self::Ended => b"it has ended",
        }
    }
}

/// Called when the recording cannot be continued. What has been recorded stays, and the program
/// goes on unrecorded.
#[cold]
pub(crate) fn give_up(stop: Stop) {
    if !decision::stop() || matches!(stop, Stop::Ended) {
        return;
    }
    if let Some(process) = Process::lock() {
        process.count_lost();
        let name = process.name().to_bytes();
        let reason = stop.reason();
        sys::say(&[b"hectare recorder: ", name, b": recording stops here: ", reason, b"\n"]);
    }
}

/// Counts a free of a pointer whose allocation was not seen.
#[cold]
pub(crate) fn unknown_free() {
    let here = tls::local();
    if here.busy.get() || !decision::is_on() {
        return;
    }
    if let Some(process) = Process::lock()
        && let Some(unknown) = process.live(live::UNKNOWN_FREES_AT)
    {
        unknown.fetch_add(1, Ordering::Relaxed);
    }
}

/// Arranges for [`thread_end`] to be called when this thread ends.
fn watch_for_end(round: usize) {
    let key = END_KEY.load(Ordering::Acquire);
    // SAFETY: the key exists; the value is a number, not used as a pointer.
    unsafe { libc::pthread_setspecific(key, core::ptr::without_provenance(round)) };
}

/// Destructor of the key: asks to be called again until the last round, when the other
/// destructors of the program have run, then closes the tape.
extern "C" fn thread_end(round: *mut c_void) {
    let _errno = KeepErrno::new();
    let here = tls::local();
    if round.addr() < DESTRUCTOR_ROUNDS {
        here.busy.set(true);
        watch_for_end(round.addr() + 1);
        here.busy.set(false);
        return;
    }
    tape::other(&Event::ThreadEnd);
    let Some(place) = NonNull::new(here.tape.replace(null_mut())) else { return };
    // SAFETY: this thread's tape (invariant 2), just taken out of its hands.
    let tape = unsafe { &mut *place.as_ptr() };
    let left = tape.leave_chunk();
    here.last.set(tape.state());
    here.tid.set(sys::thread_number());
    here.ended.set(true);
    if let Some(mut process) = Process::lock() {
        process.give_tape(place);
        left.into_iter().for_each(|left| process.give_left(left));
    }
}
