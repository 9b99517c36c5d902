//! From a frame to its callers by saved frame pointers, none of which is trusted.

use core::ffi::{c_int, c_void};

use super::registers::Frame;

/// How far apart two frames may lie at most, in bytes.
const MAX_FRAME_BYTES: usize = 1 << 20;

/// Adds to the `count` return addresses in `frames` those that saved frame pointers lead to from a frame on, as far as
/// there is room. It ends with a pointer that leads anywhere but up the stack: that of the outermost frame, or of code
/// that uses the register for something else. Returns how many there are then.
pub(super) fn follow(from: &Frame, frames: &mut [usize], mut count: usize) -> usize {
    const WORD: usize = size_of::<usize>();
    let mut pointer = from.frame_pointer();
    let mut floor = from.stack_pointer().saturating_sub(2 * WORD);
    // The page that was last seen to be readable.
    let mut readable = usize::MAX;
    while count < frames.len() {
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
/// before it finds that the operation on the mask does not exist.
fn is_readable(address: usize) -> bool {
    const NO_SUCH_WAY: c_int = -1;
    let address = address & !7;
    // SAFETY: no preconditions.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the C library's pointer to this thread's errno is valid while the thread lives.
    let saved = unsafe { *errno };
    // SAFETY: the call changes nothing: the operation does not exist.
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
