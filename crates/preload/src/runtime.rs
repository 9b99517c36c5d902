//! What the standard library would otherwise give.

use core::alloc::{GlobalAlloc, Layout};
use core::fmt::Write;
use core::panic::PanicInfo;
use core::ptr;

use crate::line::Line;

// Nothing else names the C library to the linker.
#[link(name = "c")]
unsafe extern "C" {}

/// A panic is a bug of this library, perhaps under a lock of the heap, so nothing is allocated or
/// unwound.
#[panic_handler]
fn abort_on_panic(info: &PanicInfo<'_>) -> ! {
    let mut line = Line::new();
    // A line takes all text, or as much as it has room for.
    let _ = write!(line, "hectare: a bug in the allocator: {info}");
    line.write_to_standard_error();
    // SAFETY: no preconditions.
    unsafe { libc::abort() }
}

/// Nothing in this library allocates. But a build of the whole workspace turns on the features of
/// `hectare-buddy` that other crates use, and those could allocate. So an allocator must be named.
struct NoAllocator;

#[global_allocator]
static ALLOCATOR: NoAllocator = NoAllocator;

// SAFETY: it hands nothing out.
unsafe impl GlobalAlloc for NoAllocator {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        ptr::null_mut()
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}
