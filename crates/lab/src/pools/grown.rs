//! Stand-ins for two allocators of the kernel study that are not pools for compressed data: one
//! gives each object whole pages of its own (for vmalloc), one has slabs of powers of two (for
//! kmalloc).

use std::num::NonZeroU64;
use std::ptr::NonNull;
use std::sync::Mutex;

use hectare_pages::{Os, PageSource};
use hectare_pool::{Handle, Pool, PoolError, PoolStats};

/// Handles of both are addresses; [`PageGranular`] keeps the size in the upper 16 bits.
const ADDRESS_BITS: u32 = 48;

fn handle(place: NonNull<u8>, tag: usize) -> Result<Handle, PoolError> {
    let address = place.as_ptr().expose_provenance() as u64;
    NonZeroU64::new(address | (tag as u64) << ADDRESS_BITS)
        .map(Handle::from_raw)
        .ok_or(PoolError::Full)
}

/// The address and the tag of a handle.
fn open(handle: Handle) -> (NonNull<u8>, usize) {
    let raw = handle.to_raw().get();
    let address = (raw & ((1 << ADDRESS_BITS) - 1)) as usize;
    let place = std::ptr::with_exposed_provenance_mut(address);
    (NonNull::new(place).expect("a handle is not null"), (raw >> ADDRESS_BITS) as usize)
}

/// # Safety
/// `place` has room for `data`, and nobody else uses it.
unsafe fn write(place: NonNull<u8>, data: &[u8]) {
    // SAFETY: the caller's promise.
    unsafe { place.copy_from_nonoverlapping(NonNull::from(data).cast(), data.len()) };
}

/// # Safety
/// `place` has `bytes` that were written and that nobody writes meanwhile.
unsafe fn read(place: NonNull<u8>, bytes: usize, reader: &mut dyn FnMut(&[u8])) {
    // SAFETY: the caller's promise.
    reader(unsafe { std::slice::from_raw_parts(place.as_ptr(), bytes) });
}

/// Maps each object separately.
pub(crate) struct PageGranular {
    page_bytes: usize,
    stats: Mutex<PoolStats>,
}

impl PageGranular {
    pub(crate) fn new() -> Self {
        let stats = PoolStats { descriptor_bytes: size_of::<Self>(), ..PoolStats::default() };
        Self { page_bytes: Os.page_bytes(), stats: Mutex::new(stats) }
    }
}

impl Pool for PageGranular {
    fn name(&self) -> &'static str {
        "page-granular"
    }

    fn max_size_bytes(&self) -> usize {
        self.page_bytes
    }

    fn alloc(&self, size_bytes: usize) -> Result<Handle, PoolError> {
        if size_bytes == 0 || size_bytes > self.page_bytes {
            return Err(PoolError::Size);
        }
        let place = Os.get(self.page_bytes, self.page_bytes);
        let place = place.map_err(|_| PoolError::OutOfMemory)?;
        let mut stats = self.stats.lock().expect("a thread panicked");
        stats.objects += 1;
        stats.stored_bytes += size_bytes;
        stats.page_bytes += self.page_bytes;
        stats.pages_taken += 1;
        handle(place, size_bytes)
    }

    unsafe fn free(&self, handle: Handle) {
        let (place, size_bytes) = open(handle);
        // SAFETY: mapped for this object in `alloc`.
        unsafe { Os.release(place, self.page_bytes) };
        let mut stats = self.stats.lock().expect("a thread panicked");
        stats.objects -= 1;
        stats.stored_bytes -= size_bytes;
        stats.page_bytes -= self.page_bytes;
        stats.pages_returned += 1;
    }

    unsafe fn size_bytes(&self, handle: Handle) -> usize {
        open(handle).1
    }

    unsafe fn write(&self, handle: Handle, data: &[u8]) {
        // SAFETY: the caller's promise.
        unsafe { write(open(handle).0, data) };
    }

    unsafe fn read(&self, handle: Handle, _bounce: &mut [u8], reader: &mut dyn FnMut(&[u8])) {
        let (place, size_bytes) = open(handle);
        // SAFETY: the caller's promise.
        unsafe { read(place, size_bytes, reader) };
    }

    fn compact(&self) -> usize {
        0
    }

    fn stats(&self) -> PoolStats {
        *self.stats.lock().expect("a thread panicked")
    }
}

/// Slabs of 32 KiB cut into powers of two from 8 bytes on; a slab never goes back.
pub(crate) struct PowersOfTwo {
    state: Mutex<Slabs>,
}

struct Slabs {
    /// The first free object of each power, its first word the next one's address.
    free: [Option<NonNull<u8>>; Self::POWERS],
    stats: PoolStats,
}

// SAFETY: the free objects are nobody's but the pool's, and it is locked.
unsafe impl Send for Slabs {}

impl Slabs {
    const LEAST_SHIFT: u32 = 3;
    const POWERS: usize = 10;
    const SLAB_BYTES: usize = 32 << 10;

    fn power(size_bytes: usize) -> usize {
        let rounded = size_bytes.next_power_of_two().max(1 << Self::LEAST_SHIFT);
        (rounded.trailing_zeros() - Self::LEAST_SHIFT) as usize
    }

    fn push(&mut self, power: usize, place: NonNull<u8>) {
        // SAFETY: a free object of at least 8 bytes, aligned to 8.
        unsafe { place.cast().write(self.free[power]) };
        self.free[power] = Some(place);
    }

    fn grow(&mut self, power: usize) -> Result<(), PoolError> {
        let slab = Os.get(Self::SLAB_BYTES, Os.page_bytes()).map_err(|_| PoolError::OutOfMemory)?;
        let pages = Self::SLAB_BYTES / Os.page_bytes();
        self.stats.page_bytes += Self::SLAB_BYTES;
        self.stats.pages_taken += pages as u64;
        for at in (0..Self::SLAB_BYTES).step_by(1 << (power as u32 + Self::LEAST_SHIFT)).rev() {
            // SAFETY: within the slab.
            self.push(power, unsafe { slab.add(at) });
        }
        Ok(())
    }
}

impl PowersOfTwo {
    pub(crate) fn new() -> Self {
        let stats = PoolStats { descriptor_bytes: size_of::<Self>(), ..PoolStats::default() };
        Self { state: Mutex::new(Slabs { free: [None; Slabs::POWERS], stats }) }
    }
}

impl Pool for PowersOfTwo {
    fn name(&self) -> &'static str {
        "powers-of-two"
    }

    fn max_size_bytes(&self) -> usize {
        1 << (Slabs::LEAST_SHIFT as usize + Slabs::POWERS - 1)
    }

    fn alloc(&self, size_bytes: usize) -> Result<Handle, PoolError> {
        if size_bytes == 0 || size_bytes > self.max_size_bytes() {
            return Err(PoolError::Size);
        }
        let power = Slabs::power(size_bytes);
        let mut state = self.state.lock().expect("a thread panicked");
        if state.free[power].is_none() {
            state.grow(power)?;
        }
        let place = state.free[power].ok_or(PoolError::OutOfMemory)?;
        // SAFETY: `push` wrote the link.
        state.free[power] = unsafe { place.cast().read() };
        state.stats.objects += 1;
        state.stats.stored_bytes += size_bytes;
        handle(place, size_bytes)
    }

    unsafe fn free(&self, handle: Handle) {
        let (place, size_bytes) = open(handle);
        let mut state = self.state.lock().expect("a thread panicked");
        state.stats.objects -= 1;
        state.stats.stored_bytes -= size_bytes;
        state.push(Slabs::power(size_bytes), place);
    }

    unsafe fn size_bytes(&self, handle: Handle) -> usize {
        open(handle).1
    }

    unsafe fn write(&self, handle: Handle, data: &[u8]) {
        // SAFETY: the caller's promise.
        unsafe { write(open(handle).0, data) };
    }

    unsafe fn read(&self, handle: Handle, _bounce: &mut [u8], reader: &mut dyn FnMut(&[u8])) {
        let (place, size_bytes) = open(handle);
        // SAFETY: the caller's promise.
        unsafe { read(place, size_bytes, reader) };
    }

    fn compact(&self) -> usize {
        0
    }

    fn stats(&self) -> PoolStats {
        self.state.lock().expect("a thread panicked").stats
    }
}
