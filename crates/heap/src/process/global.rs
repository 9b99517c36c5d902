//! The heap as the global allocator of a Rust program.

use core::alloc::{GlobalAlloc, Layout};
use core::arch::asm;
use core::ptr::NonNull;

use super::Process;
use crate::class::{MAX_SMALL_BYTES, MIN_ALIGN};
use crate::heap::move_to;
use crate::stats::Stats;

/// The heap as a Rust program's global allocator.
///
/// ```
/// #[global_allocator]
/// static GLOBAL: hectare::Malloc = hectare::Malloc;
/// ```
///
/// A child that `fork` makes while other threads allocate may allocate too, as in C: handlers of
/// `pthread_atfork` are registered when the program is loaded. A library that has this allocator
/// stays loaded, whoever closes it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Malloc;

static PROCESS: Process = Process::new();

impl Malloc {
    /// Gives up address space that the heap has reserved (up to 256 GiB) and not used, until others
    /// have room. To be called when the program has limited its own address space (`setrlimit` of
    /// `RLIMIT_AS`): what is reserved counts, so nothing more could be mapped. Objects stay where
    /// they are.
    pub fn leave_room(&self) {
        PROCESS.leave_room();
    }

    /// Gives what is free back to the system, except for `keep_bytes`. Returns how many bytes went.
    /// What other threads' caches hold stays: some KiB of each size that they use. Takes some 0.2
    /// to 0.4 µs for each page that goes.
    pub fn trim(&self, keep_bytes: usize) -> usize {
        PROCESS.trim(keep_bytes)
    }

    /// Gives back what has lain idle for about a second, little by little. Returns how many bytes
    /// went. Calls that allocate and free do this by themselves. A program that may make none for
    /// long holds little if one of its threads calls this some times a second.
    pub fn tend(&self) -> usize {
        PROCESS.tend()
    }

    /// What the heap holds.
    pub fn stats(&self) -> Stats {
        PROCESS.stats()
    }
}

/// Whether an object for `bytes` is aligned to `align` wherever it lies, without being asked for:
/// objects above the size classes begin at a page.
#[inline]
fn is_aligned_anyway(bytes: usize, align: usize) -> bool {
    align <= MIN_ALIGN || bytes > MAX_SMALL_BYTES && align <= PROCESS.page_bytes()
}

/// The calls as functions of their own. A compiler that sees them at each place where something is
/// freed makes a program slower, not faster: the program's own code then has fewer registers, and
/// fewer of its functions are joined. (`extern "C"` cannot unwind, so a slower path is a tail
/// call.)
///
/// The parameter has them compiled with the program that calls them. Linkers keep code that can be
/// restarted on its CPU, whoever refers to it, so otherwise it would be part of `libhectare.so`,
/// too.
struct Calls<const OF_A_PROGRAM: bool>;

type ProgramCalls = Calls<true>;

impl<const OF_A_PROGRAM: bool> Calls<OF_A_PROGRAM> {
    #[cold]
    extern "C" fn at_load() {
        PROCESS.at_load();
    }

    /// 23 instructions if the thread's list has an object.
    #[inline(never)]
    extern "C" fn malloc(bytes: usize) -> *mut u8 {
        match PROCESS.malloc_fast(bytes) {
            Some(object) => object.as_ptr(),
            None => Self::malloc_slow(bytes),
        }
    }

    #[cold]
    #[inline(never)]
    extern "C" fn malloc_slow(bytes: usize) -> *mut u8 {
        // Here, so that only a program or a library with these calls has it: the section keeps
        // entries that nobody refers to.
        // SAFETY: no instructions; a constructor of the program or the library.
        unsafe {
            asm!(
                ".pushsection .init_array, \"aw\"",
                ".balign 8",
                ".8byte {at_load}",
                ".popsection",
                at_load = sym Self::at_load,
                options(nomem, nostack, preserves_flags),
            );
        }
        let object = PROCESS.malloc_middle(bytes);
        if object.is_null() { PROCESS.malloc_slow(bytes) } else { object }
    }

    /// 31 instructions if the thread's list has an object.
    #[inline(never)]
    extern "C" fn malloc_aligned(bytes: usize, align: usize) -> *mut u8 {
        match PROCESS.malloc_aligned_fast(bytes, align) {
            Some(object) => object.as_ptr(),
            None => Self::malloc_aligned_slow(bytes, align),
        }
    }

    #[cold]
    #[inline(never)]
    extern "C" fn malloc_aligned_slow(bytes: usize, align: usize) -> *mut u8 {
        PROCESS.malloc_aligned(bytes, align)
    }

    /// 32 instructions if the thread's list has room.
    ///
    /// # Safety
    /// As [`Process::free`].
    #[inline(never)]
    unsafe extern "C" fn free(object: *mut u8) {
        // SAFETY: the caller's promise, passed on.
        if !unsafe { PROCESS.free_fast(object) } {
            // SAFETY: the caller's promise, passed on.
            unsafe { Self::free_slow(object) };
        }
    }

    /// # Safety
    /// As [`Process::free`].
    #[cold]
    #[inline(never)]
    unsafe extern "C" fn free_slow(object: *mut u8) {
        // SAFETY: the caller's promise, passed on.
        if !unsafe { PROCESS.free_middle(object) } {
            // SAFETY: the caller's promise, passed on.
            unsafe { PROCESS.free_slow(object) };
        }
    }

    #[inline(never)]
    fn malloc_zeroed(layout: Layout) -> *mut u8 {
        let (bytes, align) = (layout.size(), layout.align());
        if is_aligned_anyway(bytes, align) {
            PROCESS.malloc_zeroed(bytes)
        } else {
            PROCESS.malloc_zeroed_aligned(bytes, align)
        }
    }

    /// # Safety
    /// As [`GlobalAlloc::realloc`].
    #[inline(never)]
    unsafe fn realloc(object: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: an object of this allocator, by the caller's promise, and none lies at 0.
        let object = unsafe { NonNull::new_unchecked(object) };
        if is_aligned_anyway(bytes, layout.align()) {
            // SAFETY: the caller's promise, passed on.
            return unsafe { PROCESS.realloc(object, bytes) };
        }
        if PROCESS.stays(object, bytes) {
            return object.as_ptr();
        }
        let moved = Self::malloc_aligned(bytes, layout.align());
        if moved.is_null() && bytes <= layout.size() {
            return object.as_ptr();
        }
        // SAFETY: the caller's promise, passed on.
        let free = |object| unsafe { Self::free(object) };
        // SAFETY: both have as many bytes; one was just taken.
        unsafe { move_to(moved, object, layout.size().min(bytes), free) }
    }
}

// SAFETY: objects are disjoint, of at least the size and the alignment asked for, and stay where
// they are until they are freed; no method unwinds.
unsafe impl GlobalAlloc for Malloc {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= MIN_ALIGN {
            ProgramCalls::malloc(layout.size())
        } else {
            ProgramCalls::malloc_aligned(layout.size(), layout.align())
        }
    }

    #[inline]
    unsafe fn dealloc(&self, object: *mut u8, _layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { ProgramCalls::free(object) };
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ProgramCalls::malloc_zeroed(layout)
    }

    #[inline]
    unsafe fn realloc(&self, object: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's promise, passed on.
        unsafe { ProgramCalls::realloc(object, layout, bytes) }
    }
}
