//! What every pool offers, whatever its layout.

use core::fmt;
use core::num::NonZeroU64;

use crate::PoolStats;

/// The name of an object in one pool. It says nothing about where the object is: the place may
/// change during the object's life, the handle does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(NonZeroU64);

impl Handle {
    pub(crate) const fn new(raw: NonZeroU64) -> Self {
        Self(raw)
    }

    /// The handle as a number, for keeping in a table; [`from_raw`](Self::from_raw) reverses it.
    #[must_use]
    pub const fn to_raw(self) -> NonZeroU64 {
        self.0
    }

    /// The handle that [`to_raw`](Self::to_raw) turned into this number. Any other number makes a
    /// handle that must not be used.
    #[must_use]
    pub const fn from_raw(raw: NonZeroU64) -> Self {
        Self(raw)
    }
}

/// Why a pool refused a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolError {
    /// The size is 0 or above [`Pool::max_size_bytes`].
    Size {
        /// The size asked for.
        bytes: usize,
        /// The largest that the pool allows; the smallest is 1.
        most_bytes: usize,
    },
    /// The pool has no room for the object, and the page source has no memory left.
    OutOfMemory,
    /// The pool can name no more objects, or address no more memory, than it has now.
    Full,
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size { bytes, most_bytes } => {
                write!(
                    f,
                    "an object of {bytes} bytes was asked for; the pool's have 1 to {most_bytes}"
                )
            }
            Self::OutOfMemory => f.write_str("the page source has no memory left for the object"),
            Self::Full => f.write_str(
                "the pool can name no more objects, or address no more memory, than it has now",
            ),
        }
    }
}

impl core::error::Error for PoolError {}

/// A handle names no object of its pool: most likely the object was freed before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoObject {
    /// The handle given.
    pub handle: Handle,
}

impl NoObject {
    #[cold]
    pub(crate) fn panic(self) -> ! {
        panic!("{self}")
    }
}

impl fmt::Display for NoObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "handle {:#x} names no object of the pool; was it freed before?", self.handle.0)
    }
}

impl core::error::Error for NoObject {}

/// A pool of objects, each written and read as a whole.
///
/// Several threads may call every method at once. A pool that is dropped gives its memory back
/// ([`Xv`](crate::Xv) all but the pages of objects still alive); its handles must not be used
/// again.
pub trait Pool: Sync {
    /// A short name for tables: `xv`, `zs`, `dense`.
    fn name(&self) -> &'static str;

    /// The largest object, in bytes.
    fn max_size_bytes(&self) -> usize;

    /// Room for an object of `size_bytes`, 1 … [`max_size_bytes`](Self::max_size_bytes). Its
    /// contents are undefined until it is [written](Self::write). Constant time, plus the source's
    /// time if memory is taken.
    ///
    /// # Errors
    /// [`PoolError`]; the pool is then as it was.
    fn alloc(&self, size_bytes: usize) -> Result<Handle, PoolError>;

    /// Ends the object's life. Constant time, plus the source's time if memory is given back.
    ///
    /// # Safety
    /// As for [`try_free`](Self::try_free).
    ///
    /// # Panics
    /// If [`try_free`](Self::try_free) gives an error.
    unsafe fn free(&self, handle: Handle) {
        // SAFETY: the caller's promise.
        unsafe { self.try_free(handle) }.unwrap_or_else(|refused| refused.panic());
    }

    /// Ends the object's life, unless it has ended before.
    ///
    /// [`Dense`](crate::Dense) and [`Zs`](crate::Zs) detect a second free unless another object has
    /// got the handle's cell meanwhile. [`Xv`](crate::Xv) detects it unless another object has got
    /// the same place (or, rarely, has bytes there that look like an object's head), but only while
    /// another object keeps the page. Without one the page is gone, and the call may fault.
    ///
    /// # Errors
    /// [`NoObject`] if the object was freed before; the pool is then as it was.
    ///
    /// # Safety
    /// `handle` came from this pool's [`alloc`](Self::alloc), and no other thread uses it during
    /// the call or afterwards. If the object has been freed since, the pool can still detect it.
    unsafe fn try_free(&self, handle: Handle) -> Result<(), NoObject>;

    /// How many bytes the object has: as many as were asked for.
    ///
    /// # Safety
    /// `handle` names a live object of this pool.
    unsafe fn size_bytes(&self, handle: Handle) -> usize;

    /// Copies `data` into the object, from its first byte.
    ///
    /// # Panics
    /// If the pool detects that the object was freed, as for [`try_read`](Self::try_read).
    ///
    /// # Safety
    /// `handle` came from this pool's [`alloc`](Self::alloc), for at least `data.len()` bytes.
    /// Nobody else reads, writes or frees the object during the call. It is alive, unless the pool
    /// detects that it is not.
    unsafe fn write(&self, handle: Handle, data: &[u8]);

    /// Calls `reader` with the object's bytes, as [`try_read`](Self::try_read) does.
    ///
    /// # Panics
    /// If [`try_read`](Self::try_read) gives an error, or panics.
    ///
    /// # Safety
    /// As for [`try_read`](Self::try_read).
    unsafe fn read(&self, handle: Handle, bounce: &mut [u8], reader: &mut dyn FnMut(&[u8])) {
        // SAFETY: the caller's promise.
        let read = unsafe { self.try_read(handle, bounce, reader) };
        read.unwrap_or_else(|refused| refused.panic());
    }

    /// Calls `reader` once with the object's bytes ([`size_bytes`](Self::size_bytes) of them). An
    /// object in one piece is read in place; any other is first gathered in `bounce`, which has at
    /// least [`max_size_bytes`](Self::max_size_bytes).
    ///
    /// The object is pinned during the call, so it cannot move. Another thread that reads or writes
    /// it waits: even readers of one object exclude each other. `reader` must not read, write or
    /// free any object of the pool: with this object it would wait for itself, and two readers of
    /// two objects could wait for each other.
    ///
    /// [`Dense`](crate::Dense) and [`Zs`](crate::Zs) detect that the object was freed, unless another
    /// object has got the handle's cell meanwhile. [`Xv`](crate::Xv) takes no lock here, and does not.
    ///
    /// # Errors
    /// [`NoObject`] if the object was freed before; `reader` is not called then.
    ///
    /// # Panics
    /// If `bounce` is shorter than the object and the pool may need it ([`Dense`](crate::Dense)).
    ///
    /// # Safety
    /// `handle` came from this pool's [`alloc`](Self::alloc), and the object has been
    /// [written](Self::write). Nobody writes or frees it during the call. It is alive, unless the
    /// pool detects that it is not.
    unsafe fn try_read(
        &self,
        handle: Handle,
        bounce: &mut [u8],
        reader: &mut dyn FnMut(&[u8]),
    ) -> Result<(), NoObject>;

    /// Moves objects together as far as the pool can, and gives back to the source every page of
    /// objects that becomes empty. Returns the number of bytes given back, without deducting pages
    /// that moved objects took in the meantime. O(objects).
    ///
    /// The memory that names objects stays until the pool is dropped, for as many objects as there
    /// ever were at once: 4 bytes for each in [`Dense`](crate::Dense), 8 in [`Zs`](crate::Zs) (12
    /// and 24 MB after three million), none in [`Xv`](crate::Xv).
    ///
    /// This is also the pool's shrinker: call it when memory is short.
    fn compact(&self) -> usize;

    /// Does a small part of what [`compact`](Self::compact) does, for callers that cannot wait for
    /// all of it: some microseconds' work, however many objects there are. Returns the number of
    /// bytes given back, often 0; `None` if nothing is worth doing, or the pool can only compact as
    /// a whole.
    ///
    /// A part is 64 objects or blocks in [`Dense`](crate::Dense), which stops when about 1/64 is
    /// unused, and one zspage in [`Zs`](crate::Zs), which stops when no more can be emptied.
    fn compact_some(&self) -> Option<usize> {
        None
    }

    /// What the pool holds and has taken from its source. O(1) or O(size classes). Shards and
    /// classes are asked one after the other, so the result may include a part of what other
    /// threads do in the meantime.
    fn stats(&self) -> PoolStats;
}

/// A borrowed pool.
impl<P: Pool + ?Sized> Pool for &P {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn max_size_bytes(&self) -> usize {
        (**self).max_size_bytes()
    }

    fn alloc(&self, size_bytes: usize) -> Result<Handle, PoolError> {
        (**self).alloc(size_bytes)
    }

    unsafe fn try_free(&self, handle: Handle) -> Result<(), NoObject> {
        // SAFETY: the caller's promise.
        unsafe { (**self).try_free(handle) }
    }

    unsafe fn size_bytes(&self, handle: Handle) -> usize {
        // SAFETY: the caller's promise.
        unsafe { (**self).size_bytes(handle) }
    }

    unsafe fn write(&self, handle: Handle, data: &[u8]) {
        // SAFETY: the caller's promise.
        unsafe { (**self).write(handle, data) };
    }

    unsafe fn try_read(
        &self,
        handle: Handle,
        bounce: &mut [u8],
        reader: &mut dyn FnMut(&[u8]),
    ) -> Result<(), NoObject> {
        // SAFETY: the caller's promise.
        unsafe { (**self).try_read(handle, bounce, reader) }
    }

    fn compact(&self) -> usize {
        (**self).compact()
    }

    fn compact_some(&self) -> Option<usize> {
        (**self).compact_some()
    }

    fn stats(&self) -> PoolStats {
        (**self).stats()
    }
}
