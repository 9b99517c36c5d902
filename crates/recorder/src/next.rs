//! The allocator behind the recorder: whatever the program would have used.
//!
//! Its functions are found by `dlsym(RTLD_NEXT, …)` on the first call. `dlsym` itself may allocate,
//! before there is an allocator to pass the request to. Such requests of the searching thread are
//! served from a small static arena and never freed.

use core::ffi::{CStr, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::tls;

/// A function of the next allocator, found when first called.
struct Next {
    name: &'static CStr,
    function: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self { name, function: AtomicPtr::new(null_mut()) }
    }

    #[inline(always)]
    fn get(&self) -> *mut c_void {
        let function = self.function.load(Ordering::Relaxed);
        if function.is_null() { self.find() } else { function }
    }

    /// Null when there is none, or while this very thread is searching.
    #[cold]
    fn find(&self) -> *mut c_void {
        let here = tls::local();
        if here.busy.get() {
            return null_mut();
        }
        here.busy.set(true);
        // SAFETY: the name is null-terminated.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        here.busy.set(false);
        self.function.store(found, Ordering::Relaxed);
        found
    }
}

/// Defines a function that calls the next allocator's of the same name, or does `$missing`.
macro_rules! next {
    ($name:ident, $symbol:literal, ($($arg:ident: $type:ty),*) -> $result:ty, $missing:expr) => {
        /// The next allocator's function of that name.
        ///
        /// # Safety
        /// The contract of the C function.
        #[inline(always)]
        pub(crate) unsafe fn $name($($arg: $type),*) -> $result {
            static NEXT: Next = Next::new($symbol);
            let function = NEXT.get();
            if function.is_null() {
                return $missing;
            }
            type Function = unsafe extern "C" fn($($type),*) -> $result;
            // SAFETY: the symbol has this signature by the C standard, POSIX or glibc.
            let function = unsafe { core::mem::transmute::<*mut c_void, Function>(function) };
            // SAFETY: the caller keeps the contract of the function.
            unsafe { function($($arg),*) }
        }
    };
}

next!(malloc, c"malloc", (size: usize) -> *mut u8, early(size, 16));
next!(calloc, c"calloc", (count: usize, size: usize) -> *mut u8, {
    early(count.saturating_mul(size), 16)
});
next!(realloc, c"realloc", (old: *mut u8, size: usize) -> *mut u8, {
    let _ = old;
    early(size, 16)
});
next!(free, c"free", (old: *mut u8) -> (), { let _ = old; });
next!(memalign, c"memalign", (align: usize, size: usize) -> *mut u8, early(size, align));
next!(aligned_alloc, c"aligned_alloc", (align: usize, size: usize) -> *mut u8, early(size, align));
next!(posix_memalign, c"posix_memalign", (out: *mut *mut u8, align: usize, size: usize) -> i32, {
    let _ = (out, align, size);
    libc::ENOMEM
});
next!(usable_size, c"malloc_usable_size", (old: *mut u8) -> usize, { let _ = old; 0 });
next!(fork, c"fork", () -> i32, -1);

const EARLY_BYTES: usize = 1 << 16;

#[repr(align(4096))]
struct Early {
    _bytes: [u8; EARLY_BYTES],
}

static mut EARLY: Early = Early { _bytes: [0; EARLY_BYTES] };
static EARLY_USED: AtomicUsize = AtomicUsize::new(0);

/// Memory for the search itself; zeroed, null when used up. The size is stored before each block,
/// for [`early_size`].
#[cold]
fn early(size: usize, align: usize) -> *mut u8 {
    let align = align.max(16);
    if align > 4096 || size > EARLY_BYTES {
        return null_mut();
    }
    let room = (size + 16 + align).next_multiple_of(16);
    let used = EARLY_USED.fetch_add(room, Ordering::Relaxed);
    if used + room > EARLY_BYTES {
        return null_mut();
    }
    let base = (&raw mut EARLY).cast::<u8>();
    let offset = (used + 16).next_multiple_of(align);
    // SAFETY: `offset` is at most `used + 16 + align`, inside the room taken.
    let block = unsafe { base.add(offset) };
    // SAFETY: at least 16 bytes of the room lie before the block.
    let before = unsafe { block.sub(16) };
    // SAFETY: as above, and aligned to 16.
    unsafe { before.cast::<usize>().write(size) };
    block
}

/// Size of a block of the early arena; `None` for any other pointer.
#[cold]
pub(crate) fn early_size(block: *mut u8) -> Option<usize> {
    let base = (&raw const EARLY).addr();
    if !(base..base + EARLY_BYTES).contains(&block.addr()) {
        return None;
    }
    // SAFETY: blocks of the arena have their size before them.
    let before = unsafe { block.sub(16) };
    // SAFETY: as above.
    Some(unsafe { before.cast::<usize>().read() })
}
