//! `hectare_buddy.h`: the buddy allocator for one owner, [`Bitset`], over memory of a C program.

use core::ffi::{c_int, c_uint, c_void};

use hectare_buddy::{Bitset, Error, FrameAllocator, FrameId, MAX_ORDER, Order, RangeAllocator};

/// `hectare_buddy`: it lies at the front of the memory that the caller gives, its metadata behind
/// it.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct Buddy {
    frames: Bitset<'static>,
}

/// `struct hectare_buddy_stat`: see the header.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "the header has them")]
pub struct BuddyStat {
    pub frames: usize,
    pub free_frames: usize,
    pub longest_run_frames: usize,
    pub free_blocks: [usize; MAX_ORDER as usize + 1],
}

/// The negated number from `errno.h`.
const fn status(error: Error) -> c_int {
    -match error {
        Error::Exhausted | Error::MetadataTooSmall => libc::ENOMEM,
        Error::OutOfRange => libc::ERANGE,
        _ => libc::EINVAL,
    }
}

fn done(result: Result<(), Error>) -> c_int {
    result.map_or_else(status, |()| 0)
}

/// Writes the first frame of `result` to `first`, if there is one. Returns the status.
///
/// # Safety
/// `first` is the caller's to write.
unsafe fn taken(result: Result<FrameId, Error>, first: *mut usize) -> c_int {
    let told = result.map(|FrameId(frame)| {
        // SAFETY: the caller's promise.
        unsafe { first.write(frame) };
    });
    done(told)
}

fn order(order: c_uint) -> Option<Order> {
    Order::new(u8::try_from(order).ok()?)
}

/// How many bytes an allocator of `frames` frames needs; 0 if there cannot be one.
#[unsafe(no_mangle)]
pub extern "C" fn hectare_buddy_bytes(frames: usize) -> usize {
    if let Err(Error::TooManyFrames) = Bitset::over_zeroed(frames, &mut []) {
        return 0;
    }
    size_of::<Buddy>() + Bitset::metadata_bytes(frames)
}

/// Makes an allocator in `memory`; null if it is null, not aligned, or too short.
///
/// # Safety
/// `memory` has `bytes` bytes that are the allocator's as long as it is used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hectare_buddy_create(
    memory: *mut c_void,
    bytes: usize,
    frames: usize,
) -> *mut Buddy {
    let needed = hectare_buddy_bytes(frames);
    let buddy = memory.cast::<Buddy>();
    if buddy.is_null() || !buddy.is_aligned() || needed == 0 || bytes < needed {
        return core::ptr::null_mut();
    }
    // SAFETY: within the caller's bytes, which are aligned.
    let metadata = unsafe { buddy.add(1) }.cast::<u64>();
    let words = Bitset::metadata_words(frames);
    // SAFETY: as above.
    unsafe { metadata.write_bytes(0, words) };
    // SAFETY: as above; the words were just written, and are the allocator's alone.
    let metadata = unsafe { core::slice::from_raw_parts_mut(metadata, words) };
    let Ok(frames) = Bitset::over_zeroed(frames, metadata) else { return core::ptr::null_mut() };
    // SAFETY: as above.
    unsafe { buddy.write(Buddy { frames }) };
    buddy
}

/// Takes a block.
///
/// # Safety
/// `buddy` came from [`hectare_buddy_create`], and no other thread uses it; `frame` is the caller's
/// to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hectare_buddy_alloc(
    buddy: *mut Buddy,
    order: c_uint,
    frame: *mut usize,
) -> c_int {
    let Some(order) = self::order(order) else { return -libc::EINVAL };
    // SAFETY: the caller's promise.
    let result = unsafe { &mut *buddy }.frames.alloc(order);
    // SAFETY: as above.
    unsafe { taken(result, frame) }
}

/// Gives a block back.
///
/// # Safety
/// `buddy` as for [`hectare_buddy_alloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hectare_buddy_free(
    buddy: *mut Buddy,
    frame: usize,
    order: c_uint,
) -> c_int {
    let Some(order) = self::order(order) else { return -libc::EINVAL };
    // SAFETY: the caller's promise.
    done(unsafe { &mut *buddy }.frames.free(FrameId(frame), order))
}

/// Takes a range of any length.
///
/// # Safety
/// As for [`hectare_buddy_alloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hectare_buddy_alloc_range(
    buddy: *mut Buddy,
    frames: usize,
    align: usize,
    limit: usize,
    first: *mut usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { &mut *buddy }.frames.alloc_range(frames, align, limit);
    // SAFETY: as above.
    unsafe { taken(result, first) }
}

/// Takes exactly these frames.
///
/// # Safety
/// `buddy` as for [`hectare_buddy_alloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hectare_buddy_reserve(
    buddy: *mut Buddy,
    first: usize,
    frames: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    done(unsafe { &mut *buddy }.frames.reserve(FrameId(first), frames))
}

/// Gives these frames back.
///
/// # Safety
/// `buddy` as for [`hectare_buddy_alloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hectare_buddy_free_range(
    buddy: *mut Buddy,
    first: usize,
    frames: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    done(unsafe { &mut *buddy }.frames.free_range(FrameId(first), frames))
}

/// How many frames are free.
///
/// # Safety
/// `buddy` as for [`hectare_buddy_alloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hectare_buddy_free_frames(buddy: *const Buddy) -> usize {
    // SAFETY: the caller's promise.
    unsafe { &*buddy }.frames.free_frames()
}

/// Writes to `stat` how the free frames are laid out.
///
/// # Safety
/// `buddy` as for [`hectare_buddy_alloc`]; `stat` is the caller's to write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hectare_buddy_stat(buddy: *const Buddy, stat: *mut BuddyStat) {
    // SAFETY: the caller's promise.
    let stats = unsafe { &*buddy }.frames.stats();
    let told = BuddyStat {
        frames: stats.frames,
        free_frames: stats.free_frames,
        longest_run_frames: stats.longest_run_frames,
        free_blocks: stats.free_blocks,
    };
    // SAFETY: as above.
    unsafe { stat.write(told) };
}
