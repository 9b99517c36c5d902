//! Who called: the return addresses on the stack of this thread.
//!
//! By default the unwinder of the C compiler's library walks the stack by its unwind tables, which
//! every program for x86-64 and AArch64 has unless it was built to have none. It is right for any
//! mixture of code, and costs about a microsecond a frame. A program that was built with frame
//! pointers may ask for those (`prof_unwind:frames`): the tables then lead only out of this
//! library, to a frame whose pointer is known, and from there the chain of saved pointers as far
//! as it leads up the stack. Where that is nowhere the tables are asked after all.
//!
//! The unwinder takes no lock and no memory with the C library's `_dl_find_object` (2.35); with
//! older ones it takes the dynamic linker's lock, which is recursive. No lock of the heap is held
//! here. What it does allocate (a program with frames registered at run time) is not sampled.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use hectare::MAX_FRAMES;

/// Where this library's code lies: its own frames are nobody's callers.
static OWN_START: AtomicUsize = AtomicUsize::new(0);
static OWN_END: AtomicUsize = AtomicUsize::new(0);
static BY_FRAMES: AtomicBool = AtomicBool::new(false);

#[repr(C)]
struct Context {
    opaque: [u8; 0],
}

const NO_REASON: c_int = 0;
const NORMAL_STOP: c_int = 4;

unsafe extern "C" {
    fn _Unwind_Backtrace(
        visit: unsafe extern "C" fn(*mut Context, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(context: *mut Context) -> usize;
    fn _Unwind_GetCFA(context: *mut Context) -> usize;
    fn _Unwind_GetGR(context: *mut Context, register: c_int) -> usize;
}

/// Finds out where this library lies. To be called once, before the first capture.
pub(crate) fn begin(by_frames: bool) {
    BY_FRAMES.store(by_frames, Relaxed);
    let mut own = begin as *const () as usize;
    // SAFETY: the callback meets the function's contract; `own` lives through the call.
    unsafe { libc::dl_iterate_phdr(Some(note_own_object), (&raw mut own).cast()) };
}

/// Notes the extent of the object that holds the address at `data`.
unsafe extern "C" fn note_own_object(
    info: *mut libc::dl_phdr_info,
    _bytes: usize,
    data: *mut c_void,
) -> c_int {
    // SAFETY: the C library passes a valid description.
    let info = unsafe { &*info };
    // SAFETY: `begin` passes an address.
    let own = unsafe { data.cast::<usize>().read() };
    // SAFETY: the object's program headers, as many as it says.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let base = info.dlpi_addr as usize;
    for header in loaded {
        let start = base + header.p_vaddr as usize;
        let end = start + header.p_memsz as usize;
        if (start..end).contains(&own) {
            OWN_START.store(start, Relaxed);
            OWN_END.store(end, Relaxed);
            return 1;
        }
    }
    0
}

fn is_own(address: usize) -> bool {
    (OWN_START.load(Relaxed)..OWN_END.load(Relaxed)).contains(&address)
}

/// A walk on its way.
struct Walk<'a> {
    frames: &'a mut [usize; MAX_FRAMES],
    count: usize,
    /// Where the first frame outside this library lies, once it is known: the address of its
    /// stack's top, and its frame pointer.
    first: Option<(usize, usize)>,
    stop_at_first: bool,
}

/// Fills `frames` with the return addresses outside this library, the innermost first.
pub(crate) fn capture(frames: &mut [usize; MAX_FRAMES]) -> usize {
    if BY_FRAMES.load(Relaxed) {
        let walk = by_tables(frames, true);
        if let (count, Some((stack, pointer))) = (walk.count, walk.first) {
            let followed = follow(frames, count, stack, pointer);
            if followed > count {
                return followed;
            }
        }
    }
    by_tables(frames, false).count
}

fn by_tables(frames: &mut [usize; MAX_FRAMES], stop_at_first: bool) -> Walk<'_> {
    let mut walk = Walk { frames, count: 0, first: None, stop_at_first };
    // SAFETY: the callback gets the walk, which lives through the call.
    unsafe { _Unwind_Backtrace(visit, (&raw mut walk).cast()) };
    walk
}

/// DWARF's number of the frame pointer.
#[cfg(target_arch = "x86_64")]
const FRAME_POINTER: c_int = 6;
#[cfg(target_arch = "aarch64")]
const FRAME_POINTER: c_int = 29;

unsafe extern "C" fn visit(context: *mut Context, walk: *mut c_void) -> c_int {
    // SAFETY: `by_tables` passes a walk, which nobody else uses meanwhile.
    let walk = unsafe { &mut *walk.cast::<Walk<'_>>() };
    // SAFETY: the unwinder's own context.
    let address = unsafe { _Unwind_GetIP(context) };
    if walk.count == 0 && is_own(address) {
        return NO_REASON;
    }
    let Some(frame) = walk.frames.get_mut(walk.count).filter(|_| address != 0) else {
        return NORMAL_STOP;
    };
    *frame = address;
    walk.count += 1;
    if !walk.stop_at_first {
        return NO_REASON;
    }
    // SAFETY: as above. The registers are those of the frame that `address` lies in.
    let stack = unsafe { _Unwind_GetCFA(context) };
    // SAFETY: as above; saved by every function that uses it, so the unwinder knows it.
    let pointer = unsafe { _Unwind_GetGR(context, FRAME_POINTER) };
    walk.first = Some((stack, pointer));
    NORMAL_STOP
}

/// How far apart two frames may lie at most, in bytes.
const MAX_FRAME_BYTES: usize = 1 << 20;

/// Adds the return addresses that saved frame pointers lead to, from `pointer` on, to the `count`
/// there are. It ends with a pointer that leads anywhere but up the stack: of the outermost frame,
/// or of code that uses the register for something else. Returns how many there are then.
fn follow(
    frames: &mut [usize; MAX_FRAMES],
    mut count: usize,
    stack: usize,
    mut pointer: usize,
) -> usize {
    const WORD: usize = size_of::<usize>();
    let mut floor = stack.saturating_sub(2 * WORD);
    // The page that was last seen to be readable.
    let mut readable = usize::MAX;
    while count < MAX_FRAMES {
        let is_frame = pointer.is_multiple_of(WORD)
            && (floor..floor.saturating_add(MAX_FRAME_BYTES)).contains(&pointer);
        if !is_frame {
            break;
        }
        for word in [pointer, pointer + WORD] {
            if word / PAGE_BYTES != readable && !is_readable(word) {
                return count;
            }
            readable = word / PAGE_BYTES;
        }
        let words = core::ptr::with_exposed_provenance::<[usize; 2]>(pointer);
        // SAFETY: two words in readable memory, aligned; a stack's own thread reads them.
        let [next, address] = unsafe { words.read() };
        if address == 0 {
            break;
        }
        frames[count] = address;
        count += 1;
        floor = pointer + 2 * WORD;
        pointer = next;
    }
    count
}

/// No page of any system is smaller.
const PAGE_BYTES: usize = 4096;

/// Whether the kernel can read eight bytes at `address`: it copies the set of signals from there
/// before it finds that there is no such way to change the mask.
fn is_readable(address: usize) -> bool {
    const NO_SUCH_WAY: c_int = -1;
    let address = address & !7;
    // SAFETY: no preconditions.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the C library's pointer to this thread's errno is valid while the thread lives.
    let saved = unsafe { *errno };
    // SAFETY: the call changes nothing: the way to do so does not exist.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            NO_SUCH_WAY,
            address,
            core::ptr::null_mut::<c_void>(),
            size_of::<u64>(),
        )
    };
    // SAFETY: as above.
    let answer = unsafe { errno.replace(saved) };
    answer != libc::EFAULT
}
