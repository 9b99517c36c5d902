//! The whole program's memory is one static array: what firmware does, here on a hosted system.
//!
//! `cargo run -p hectare-tlsf --example static_pool`

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ptr::NonNull;

use hectare_tlsf::{Locked, Tlsf};

const POOL_BYTES: usize = 1 << 20;

/// Memory that the heap alone uses.
#[repr(align(16))]
struct Memory(UnsafeCell<[u8; POOL_BYTES]>);

// SAFETY: nobody but the heap, which is behind a lock, touches the bytes.
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(UnsafeCell::new([0; POOL_BYTES]));

#[global_allocator]
static HEAP: StaticHeap = StaticHeap(Locked::new(Tlsf::new()));

/// A heap that takes its pool at the first call, since a hosted program allocates before `main`.
/// Firmware adds the pool at its entry point, and makes the `Locked` itself the global allocator.
struct StaticHeap(Locked<Tlsf>);

// SAFETY: every call goes to `Locked`, whose heap has memory by then.
unsafe impl std::alloc::GlobalAlloc for StaticHeap {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        // SAFETY: the heap is only given memory and asked for some. It stays where it is.
        let mut heap = unsafe { self.0.lock_mut() };
        if heap.stats().pools == 0 {
            let start = NonNull::new(MEMORY.0.get()).expect("a static's address").cast();
            // SAFETY: a static outlives the heap, and this is done once.
            unsafe { heap.add_pool(start, POOL_BYTES) }.expect("a pool that fits");
        }
        heap.memalign(layout.align(), layout.size()).map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: std::alloc::Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.0.dealloc(ptr, layout) };
    }
}

fn main() {
    let squares: BTreeMap<u64, u64> = (0..1000).map(|number| (number, number * number)).collect();
    let stats = HEAP.0.lock().stats();
    println!("{} squares, the last of which is {:?}", squares.len(), squares.last_key_value());
    println!(
        "{} of {} bytes used, at most {}",
        stats.used_bytes, stats.managed_bytes, stats.peak_used_bytes
    );
    drop(squares);
    let heap = HEAP.0.lock();
    assert_eq!(heap.validate(), Ok(()));
    println!("{} bytes used without them", heap.stats().used_bytes);
}
