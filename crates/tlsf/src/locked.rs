//! A heap behind a lock: for several threads, and as the global allocator.

use core::alloc::{GlobalAlloc, Layout};
use core::ops::Deref;
use core::ptr::{NonNull, null_mut};

use hectare_base::sync::{Lock, LockGuard, Park, SpinPark};
use hectare_pages::PageSource;

use crate::error::Misuse;
use crate::growing::Growing;
use crate::heap::Tlsf;
use crate::table::Rows;

/// What [`Locked`] needs of a heap; [`Tlsf`] and [`Growing`] implement it.
///
/// # Safety
/// `memalign` gives exclusive memory of the size and alignment asked for, wherever the heap itself
/// is moved. `realloc` keeps alignment and contents, `resize_in_place` contents. A block has as
/// many bytes as `usable_size` says, which are fewer than any size that `resize_in_place` refuses.
pub unsafe trait Heap {
    /// See [`Tlsf::memalign`].
    fn memalign(&mut self, align: usize, size: usize) -> Option<NonNull<u8>>;

    /// See [`Tlsf::free`].
    ///
    /// # Errors
    /// [`Misuse`], if the header shows it.
    ///
    /// # Safety
    /// As for [`Tlsf::free`].
    unsafe fn free(&mut self, ptr: NonNull<u8>) -> Result<(), Misuse>;

    /// See [`Tlsf::realloc`].
    ///
    /// # Errors
    /// [`Misuse`], if the header shows it.
    ///
    /// # Safety
    /// As for [`Tlsf::realloc`].
    unsafe fn realloc(
        &mut self,
        ptr: NonNull<u8>,
        align: usize,
        size: usize,
    ) -> Result<Option<NonNull<u8>>, Misuse>;

    /// See [`Tlsf::resize_in_place`].
    ///
    /// # Errors
    /// [`Misuse`], if the header shows it.
    ///
    /// # Safety
    /// As for [`Tlsf::resize_in_place`].
    unsafe fn resize_in_place(&mut self, ptr: NonNull<u8>, size: usize) -> Result<bool, Misuse>;

    /// See [`Tlsf::usable_size`].
    ///
    /// # Errors
    /// [`Misuse`], if the header shows it.
    ///
    /// # Safety
    /// As for [`Tlsf::usable_size`].
    unsafe fn usable_size(&self, ptr: NonNull<u8>) -> Result<usize, Misuse>;
}

macro_rules! heap {
    ($($generics:ident: $bound:path),* => $ty:ty) => {
        // SAFETY: the methods of the same names promise it.
        unsafe impl<$($generics: $bound),*> Heap for $ty {
            #[inline]
            fn memalign(&mut self, align: usize, size: usize) -> Option<NonNull<u8>> {
                self.memalign(align, size)
            }

            #[inline]
            unsafe fn free(&mut self, ptr: NonNull<u8>) -> Result<(), Misuse> {
                // SAFETY: the caller's promise, passed on.
                unsafe { self.free(ptr) }
            }

            unsafe fn realloc(
                &mut self,
                ptr: NonNull<u8>,
                align: usize,
                size: usize,
            ) -> Result<Option<NonNull<u8>>, Misuse> {
                // SAFETY: the caller's promise, passed on.
                unsafe { self.realloc(ptr, align, size) }
            }

            unsafe fn resize_in_place(
                &mut self,
                ptr: NonNull<u8>,
                size: usize,
            ) -> Result<bool, Misuse> {
                // SAFETY: the caller's promise, passed on.
                unsafe { self.resize_in_place(ptr, size) }
            }

            unsafe fn usable_size(&self, ptr: NonNull<u8>) -> Result<usize, Misuse> {
                // SAFETY: the caller's promise, passed on.
                unsafe { self.usable_size(ptr) }
            }
        }
    };
}

heap!(R: Rows => Tlsf<R>);
heap!(S: PageSource, R: Rows => Growing<S, R>);

/// As [`Tlsf::realloc`], for a block of the heap behind `lock`. Copies with the lock free, unless
/// the block grows backward.
///
/// # Safety
/// As for [`Tlsf::realloc`].
pub(crate) unsafe fn realloc_behind<H: Heap, P: Park>(
    lock: &Lock<H, P>,
    ptr: NonNull<u8>,
    align: usize,
    size: usize,
) -> Result<Option<NonNull<u8>>, Misuse> {
    let mut heap = lock.lock();
    // SAFETY: the caller's promise, passed on.
    if unsafe { heap.resize_in_place(ptr, size) }? {
        return Ok(Some(ptr));
    }
    // SAFETY: as above.
    let old_bytes = unsafe { heap.usable_size(ptr) }?;
    let Some(new) = heap.memalign(align, size) else {
        // SAFETY: as above.
        return unsafe { heap.realloc(ptr, align, size) };
    };
    drop(heap);
    // SAFETY: two blocks of the caller's. The new one has at least `size` bytes. The old one has
    // fewer, since it could not be resized.
    unsafe { new.copy_from_nonoverlapping(ptr, old_bytes) };
    // SAFETY: the caller's promise: the caller may give up the block.
    unsafe { lock.lock().free(ptr) }?;
    Ok(Some(new))
}

/// A heap that threads share; one thread at a time uses it. `P` is how the others wait.
///
/// ```
/// use hectare_tlsf::{Locked, Tlsf};
/// static HEAP: Locked<Tlsf> = Locked::new(Tlsf::new());
/// ```
/// Once it has memory, such a `static` serves as `#[global_allocator]`. If the heap then detects a
/// misuse, the program ends with a panic message.
///
/// Other threads wait for no copy: a block that must move is copied with the lock free. Only if no
/// other block is large enough does it grow backward, which moves its contents under the lock.
///
/// An interrupt handler must not use it: if it interrupts the holder of the lock, it waits for
/// ever. Where handlers allocate, keep the heap, which is `Send`, in a cell that only critical
/// sections reach. The same holds for threads of strict priorities on one processor (`SCHED_FIFO`)
/// while `P` is [`SpinPark`]: a thread that polls keeps a lower one that holds the lock from going
/// on. Give such threads a `P` that sleeps: `hectare_pages::FutexPark` on Linux, elsewhere one that
/// implements `hectare_base::sync::Park` by what the system has.
#[derive(Debug)]
pub struct Locked<H, P: Park = SpinPark> {
    lock: Lock<H, P>,
}

impl<H, P: Park> Locked<H, P> {
    /// Puts `heap` behind a lock.
    #[cfg(not(loom))]
    pub const fn new(heap: H) -> Self {
        Self { lock: Lock::new(heap) }
    }

    /// Puts `heap` behind a lock.
    #[cfg(loom)]
    pub fn new(heap: H) -> Self {
        Self { lock: Lock::new(heap) }
    }

    /// Waits for the heap, for reading only: the memory that others have allocated from it must
    /// stay.
    ///
    /// ```compile_fail,E0594
    /// # use hectare_tlsf::{Locked, Tlsf};
    /// static HEAP: Locked<Tlsf> = Locked::new(Tlsf::new());
    /// *HEAP.lock() = Tlsf::new();
    /// ```
    #[inline]
    pub fn lock(&self) -> impl Deref<Target = H> + '_ {
        self.lock.lock()
    }

    /// Waits for the heap, for changing it.
    ///
    /// # Safety
    /// The heap stays where it is while any of its blocks is in use. Replacing it would end those
    /// blocks' memory, and [`free`](Self::free) would give those blocks to a heap swapped in.
    #[inline]
    pub unsafe fn lock_mut(&self) -> LockGuard<'_, H, P> {
        self.lock.lock()
    }
}

impl<H: Heap, P: Park> Locked<H, P> {
    /// As [`Tlsf::memalign`].
    #[inline]
    pub fn memalign(&self, align: usize, size: usize) -> Option<NonNull<u8>> {
        self.lock.lock().memalign(align, size)
    }

    /// As [`Tlsf::free`].
    ///
    /// # Errors
    /// [`Misuse`], if the header shows it.
    ///
    /// # Safety
    /// As for [`Tlsf::free`].
    #[inline]
    pub unsafe fn free(&self, ptr: NonNull<u8>) -> Result<(), Misuse> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.lock.lock().free(ptr) }
    }

    /// As [`Tlsf::realloc`]. Other threads wait for no copy, unless the block must grow backward.
    ///
    /// # Errors
    /// [`Misuse`], if the header shows it.
    ///
    /// # Safety
    /// As for [`Tlsf::realloc`].
    pub unsafe fn realloc(
        &self,
        ptr: NonNull<u8>,
        align: usize,
        size: usize,
    ) -> Result<Option<NonNull<u8>>, Misuse> {
        // SAFETY: the caller's promise, passed on.
        unsafe { realloc_behind(&self.lock, ptr, align, size) }
    }

    /// As [`Tlsf::usable_size`].
    ///
    /// # Errors
    /// [`Misuse`], if the header shows it.
    ///
    /// # Safety
    /// As for [`Tlsf::usable_size`].
    pub unsafe fn usable_size(&self, ptr: NonNull<u8>) -> Result<usize, Misuse> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.lock.lock().usable_size(ptr) }
    }
}

/// A call of the program's allocator that the heap refused.
pub(crate) struct Refused {
    pub(crate) call: &'static str,
    pub(crate) ptr: *mut u8,
    pub(crate) misuse: Misuse,
}

/// A misuse is a bug of the program that would corrupt the heap. A global allocator must not
/// unwind, so the panic, which reports the misuse, ends the program here. It may allocate, since
/// nobody holds the lock.
#[cold]
pub(crate) extern "C" fn end(&Refused { call, ptr, misuse }: &Refused) -> ! {
    panic!("{call}({ptr:p}): {misuse}");
}

// SAFETY: `Heap` promises exclusive memory of the layout, and the lock makes the calls take turns.
unsafe impl<H: Heap, P: Park> GlobalAlloc for Locked<H, P> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.memalign(layout.align(), layout.size()).map_or(null_mut(), NonNull::as_ptr)
    }

    #[inline]
    unsafe fn dealloc(&self, ptr: *mut u8, _layout: Layout) {
        let Some(block) = NonNull::new(ptr) else { return };
        // SAFETY: the caller's promise, passed on.
        if let Err(misuse) = unsafe { self.free(block) } {
            end(&Refused { call: "dealloc", ptr, misuse });
        }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let Some(block) = NonNull::new(ptr) else { return null_mut() };
        // SAFETY: the caller's promise, passed on.
        match unsafe { Self::realloc(self, block, layout.align(), new_size) } {
            Ok(new) => new.map_or(null_mut(), NonNull::as_ptr),
            Err(misuse) => end(&Refused { call: "realloc", ptr, misuse }),
        }
    }
}
