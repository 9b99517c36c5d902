//! Stand-ins for two allocators of the kernel study that are not pools for compressed data. One
//! gives each object whole pages of its own (for vmalloc), the other has slabs of powers of two
//! (for kmalloc).

use std::num::NonZeroU64;
use std::ptr::NonNull;
use std::sync::Mutex;

use hectare_pages::{Os, PageSource};
use hectare_pool::{Handle, NoObject, Pool, PoolError, PoolStats};

/// Where the objects of a stand-in lie; none of them ever moves.
pub(crate) trait Places: Sync {
    const NAME: &'static str;

    /// The largest object, bytes.
    fn max_size_bytes(&self) -> usize;

    /// A place for an object of that size, which is at least 1 and at most the largest.
    fn take(&self, size_bytes: usize) -> Result<NonNull<u8>, PoolError>;

    /// # Safety
    /// `place` was taken for an object of that size, and nobody uses it any more.
    unsafe fn give_back(&self, place: NonNull<u8>, size_bytes: usize);

    fn stats(&self) -> PoolStats;
}

/// A pool of such places. A handle is an address, with the object's size in its upper 16 bits.
pub(crate) struct StandIn<P>(pub(crate) P);

const ADDRESS_BITS: u32 = 48;

/// The address and the size of a handle.
fn open(handle: Handle) -> (NonNull<u8>, usize) {
    let raw = handle.to_raw().get();
    let address = (raw & ((1 << ADDRESS_BITS) - 1)) as usize;
    let place = std::ptr::with_exposed_provenance_mut(address);
    (NonNull::new(place).expect("a handle is not null"), (raw >> ADDRESS_BITS) as usize)
}

impl<P: Places> Pool for StandIn<P> {
    fn name(&self) -> &'static str {
        P::NAME
    }

    fn max_size_bytes(&self) -> usize {
        self.0.max_size_bytes()
    }

    fn alloc(&self, size_bytes: usize) -> Result<Handle, PoolError> {
        if size_bytes == 0 || size_bytes > self.max_size_bytes() {
            return Err(PoolError::Size { bytes: size_bytes, most_bytes: self.max_size_bytes() });
        }
        let address = self.0.take(size_bytes)?.as_ptr().expose_provenance() as u64;
        let handle = NonZeroU64::new(address | (size_bytes as u64) << ADDRESS_BITS);
        Ok(Handle::from_raw(handle.expect("a size is not 0")))
    }

    unsafe fn try_free(&self, handle: Handle) -> Result<(), NoObject> {
        let (place, size_bytes) = open(handle);
        // SAFETY: taken in `alloc`, and by the caller's promise no longer used.
        unsafe { self.0.give_back(place, size_bytes) };
        Ok(())
    }

    unsafe fn size_bytes(&self, handle: Handle) -> usize {
        open(handle).1
    }

    unsafe fn write(&self, handle: Handle, data: &[u8]) {
        let (place, _) = open(handle);
        // SAFETY: by the caller's promise the place has room for `data`, and nobody else uses it.
        unsafe { place.copy_from_nonoverlapping(NonNull::from(data).cast(), data.len()) };
    }

    unsafe fn try_read(
        &self,
        handle: Handle,
        _bounce: &mut [u8],
        reader: &mut dyn FnMut(&[u8]),
    ) -> Result<(), NoObject> {
        let (place, size_bytes) = open(handle);
        // SAFETY: by the caller's promise as many bytes were written, and nobody writes them now.
        reader(unsafe { std::slice::from_raw_parts(place.as_ptr(), size_bytes) });
        Ok(())
    }

    fn compact(&self) -> usize {
        0
    }

    fn stats(&self) -> PoolStats {
        self.0.stats()
    }
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

impl Places for PageGranular {
    const NAME: &'static str = "page-granular";

    fn max_size_bytes(&self) -> usize {
        self.page_bytes
    }

    fn take(&self, size_bytes: usize) -> Result<NonNull<u8>, PoolError> {
        let place = Os.get(self.page_bytes, self.page_bytes);
        let place = place.map_err(|_| PoolError::OutOfMemory)?;
        let mut stats = self.stats.lock().expect("a thread panicked");
        stats.objects += 1;
        stats.stored_bytes += size_bytes;
        stats.page_bytes += self.page_bytes;
        stats.pages_taken += 1;
        Ok(place)
    }

    unsafe fn give_back(&self, place: NonNull<u8>, size_bytes: usize) {
        // SAFETY: mapped for this object in `take`.
        unsafe { Os.release(place, self.page_bytes) };
        let mut stats = self.stats.lock().expect("a thread panicked");
        stats.objects -= 1;
        stats.stored_bytes -= size_bytes;
        stats.page_bytes -= self.page_bytes;
        stats.pages_returned += 1;
    }

    fn stats(&self) -> PoolStats {
        *self.stats.lock().expect("a thread panicked")
    }
}

/// Slabs of 32 KiB cut into powers of two from 8 bytes on. A slab is never given back.
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

impl Places for PowersOfTwo {
    const NAME: &'static str = "powers-of-two";

    fn max_size_bytes(&self) -> usize {
        1 << (Slabs::LEAST_SHIFT as usize + Slabs::POWERS - 1)
    }

    fn take(&self, size_bytes: usize) -> Result<NonNull<u8>, PoolError> {
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
        Ok(place)
    }

    unsafe fn give_back(&self, place: NonNull<u8>, size_bytes: usize) {
        let mut state = self.state.lock().expect("a thread panicked");
        state.stats.objects -= 1;
        state.stats.stored_bytes -= size_bytes;
        state.push(Slabs::power(size_bytes), place);
    }

    fn stats(&self) -> PoolStats {
        self.state.lock().expect("a thread panicked").stats
    }
}
