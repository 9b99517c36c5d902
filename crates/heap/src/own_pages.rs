//! Arrays in pages of their own, for what watches the heap and so must not allocate from it.

use core::ptr::NonNull;

use hectare_pages::PageSource;

/// Arrays of up to this many bytes are populated as a whole when they are made. Pages that are read
/// before they are written would take two faults each.
const BROUGHT_BYTES: usize = 64 << 10;

/// An array of `T`, for which zeros are a value, in pages of its own. It is zeroed where it was not
/// written. If it is dropped without [`release`](Self::release), it leaks its pages.
#[derive(Debug)]
pub(crate) struct Pages<T> {
    start: Option<NonNull<T>>,
    capacity: usize,
}

impl<T: Copy> Pages<T> {
    pub(crate) const fn new() -> Self {
        Self { start: None, capacity: 0 }
    }

    fn bytes(capacity: usize, source: &impl PageSource) -> usize {
        (capacity * size_of::<T>()).next_multiple_of(source.page_bytes())
    }

    /// How many entries there is room for.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Room for `capacity` entries, zeroed. `None` when out of memory.
    pub(crate) fn with_capacity(capacity: usize, source: &impl PageSource) -> Option<Self> {
        let bytes = Self::bytes(capacity, source);
        let start = source.get(bytes, source.page_bytes()).ok()?;
        if bytes <= BROUGHT_BYTES {
            // SAFETY: fresh pages.
            unsafe { source.populate(start, bytes) };
        }
        Some(Self { start: Some(start.cast()), capacity })
    }

    pub(crate) fn entries(&self) -> &[T] {
        match self.start {
            // SAFETY: zeroed pages for as many entries; zeros are a value of `T`.
            Some(start) => unsafe { core::slice::from_raw_parts(start.as_ptr(), self.capacity) },
            None => &[],
        }
    }

    pub(crate) fn entries_mut(&mut self) -> &mut [T] {
        match self.start {
            // SAFETY: as above; the pages are this value's own.
            Some(start) => unsafe {
                core::slice::from_raw_parts_mut(start.as_ptr(), self.capacity)
            },
            None => &mut [],
        }
    }

    pub(crate) fn release(&mut self, source: &impl PageSource) {
        let old = core::mem::replace(self, Self::new());
        if let Some(start) = old.start {
            // SAFETY: the pages were this value's own, and it has forgotten them.
            unsafe { source.release(start.cast(), Self::bytes(old.capacity, source)) };
        }
    }
}

// SAFETY: the pages are the value's own, reached through it alone.
unsafe impl<T: Send> Send for Pages<T> {}
