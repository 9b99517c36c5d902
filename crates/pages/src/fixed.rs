//! A source over a buffer that the caller owns.
//!
//! ```text
//!   buffer: │ bitmap, one bit a page (whole pages) │ page 0 │ page 1 │ … │ page n-1 │
//! ```
//! Invariant: a bit is set exactly while its page is part of a reservation.

use core::marker::PhantomData;
use core::ptr::NonNull;

use hectare_base::align::{align_down, align_up, checked_align_up};
use hectare_base::sync::Lock;

use crate::{PageSource, SourceError};

/// Hands out the pages of a caller's buffer, first fit. A reservation takes O(pages of the buffer).
/// `commit` does nothing; `decommit` and `release` clear the bytes, since committed memory must
/// read as zero.
#[derive(Debug)]
pub struct Fixed<'a> {
    pages: Lock<Pages>,
    page_bytes: usize,
    buffer: PhantomData<&'a mut [u8]>,
}

#[derive(Debug)]
struct Pages {
    bitmap: NonNull<u8>,
    first: NonNull<u8>,
    count: usize,
}

// SAFETY: the pointers name the caller's buffer, which is borrowed for as long as this lives.
unsafe impl Send for Pages {}

impl<'a> Fixed<'a> {
    /// A source over `buffer`, which it clears: O(buffer). `page_bytes` is a power of two of at
    /// least 16. The source hands out what the bitmap and the alignment leave of the buffer. If the
    /// buffer has no room for one page, the source refuses everything.
    ///
    /// # Panics
    /// If `page_bytes` is no power of two of at least 16.
    pub fn new(buffer: &'a mut [u8], page_bytes: usize) -> Self {
        assert!(page_bytes.is_power_of_two() && page_bytes >= 16, "page_bytes: {page_bytes}");
        buffer.fill(0);
        let bytes = buffer.len();
        let start = NonNull::from(buffer).cast::<u8>();
        let lead = align_up(start.addr().get(), page_bytes) - start.addr().get();
        let room = align_down(bytes.saturating_sub(lead), page_bytes) / page_bytes;
        // The bitmap of `room` pages is at most one page larger than what the remaining pages need.
        let bitmap_pages = room.div_ceil(8).div_ceil(page_bytes);
        let count = room.saturating_sub(bitmap_pages);
        let (lead, bitmap_bytes) =
            if count == 0 { (0, 0) } else { (lead, bitmap_pages * page_bytes) };
        // SAFETY: lead + bitmap + count pages ≤ the buffer's length, by the arithmetic above.
        let bitmap = unsafe { start.add(lead) };
        // SAFETY: as above.
        let first = unsafe { bitmap.add(bitmap_bytes) };
        Self { pages: Lock::new(Pages { bitmap, first, count }), page_bytes, buffer: PhantomData }
    }

    /// How many pages it can hand out in all.
    pub fn page_count(&self) -> usize {
        self.pages.lock().count
    }

    /// How many pages are part of no reservation.
    pub fn free_pages(&self) -> usize {
        let pages = self.pages.lock();
        (0..pages.count).filter(|&page| !pages.taken(page)).count()
    }
}

impl Pages {
    fn taken(&self, page: usize) -> bool {
        debug_assert!(page < self.count);
        // SAFETY: by `byte`, the byte exists; the caller's buffer is initialised.
        unsafe { self.byte(page).read() & (1 << (page % 8)) != 0 }
    }

    /// The byte of the bitmap that holds the bit of `page`.
    fn byte(&self, page: usize) -> NonNull<u8> {
        // SAFETY: page < count, and the bitmap has a bit for each page.
        unsafe { self.bitmap.add(page / 8) }
    }

    fn mark(&mut self, first: usize, count: usize, taken: bool) {
        for page in first..first + count {
            debug_assert!(self.taken(page) != taken, "page {page} of a Fixed source");
            // SAFETY: as in `taken`.
            let byte = unsafe { self.byte(page).as_mut() };
            *byte ^= 1 << (page % 8);
        }
    }

    fn find(&self, count: usize, align: usize, page_bytes: usize) -> Option<usize> {
        let base = self.first.addr().get();
        let mut page = (checked_align_up(base, align)? - base) / page_bytes;
        while page.checked_add(count)? <= self.count {
            match (page..page + count).rfind(|&p| self.taken(p)) {
                None => return Some(page),
                Some(last) => {
                    let next = base + (last + 1) * page_bytes;
                    page = (checked_align_up(next, align)? - base) / page_bytes;
                }
            }
        }
        None
    }
}

// SAFETY: by the module's invariant no page is in two reservations; the buffer is exclusively
// borrowed, never moves, and is cleared before any page is handed out again.
unsafe impl PageSource for Fixed<'_> {
    fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    fn reserve(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, SourceError> {
        let mut pages = self.pages.lock();
        let count = bytes / self.page_bytes;
        let first = pages.find(count, align, self.page_bytes).ok_or(SourceError::Exhausted)?;
        pages.mark(first, count, true);
        // SAFETY: first + count ≤ the number of pages in the buffer.
        Ok(unsafe { pages.first.add(first * self.page_bytes) })
    }

    unsafe fn commit(&self, _start: NonNull<u8>, _bytes: usize) -> Result<(), SourceError> {
        Ok(())
    }

    unsafe fn decommit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        // SAFETY: the caller says that the range is committed and unused.
        unsafe { start.write_bytes(0, bytes) };
        Ok(())
    }

    unsafe fn release(&self, start: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller says that the range is reserved and unused.
        unsafe { start.write_bytes(0, bytes) };
        let mut pages = self.pages.lock();
        let first = (start.addr().get() - pages.first.addr().get()) / self.page_bytes;
        pages.mark(first, bytes / self.page_bytes, false);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec;

    #[test]
    fn hands_out_every_page_once_and_takes_it_back() {
        let mut buffer = vec![0xAAu8; 64 * 4096 + 100];
        let bounds = buffer.as_ptr_range();
        let source = Fixed::new(&mut buffer, 4096);
        let count = source.page_count();
        assert!((62..=64).contains(&count), "{count}");
        let pages: vec::Vec<_> =
            (0..count).map(|_| source.get(4096, 4096).expect("a free page")).collect();
        assert_eq!(source.get(4096, 4096), Err(SourceError::Exhausted));
        assert_eq!(source.free_pages(), 0);
        for (i, page) in pages.iter().enumerate() {
            assert_eq!(page.addr().get() % 4096, 0);
            let start = page.as_ptr().cast_const();
            assert!(bounds.start <= start && start.wrapping_add(4096) <= bounds.end, "page {i}");
            // SAFETY: a committed page of this source.
            let bytes = unsafe { core::slice::from_raw_parts_mut(page.as_ptr(), 4096) };
            assert!(bytes.iter().all(|&b| b == 0), "page {i} is not zero");
            bytes.fill(0xFF);
        }
        for page in pages {
            // SAFETY: reserved above, unused now.
            unsafe { source.release(page, 4096) };
        }
        assert_eq!(source.free_pages(), count);
        let again = source.get(count * 4096, 4096).expect("all pages");
        // SAFETY: committed pages of this source.
        let bytes = unsafe { core::slice::from_raw_parts_mut(again.as_ptr(), count * 4096) };
        assert!(bytes.iter().all(|&b| b == 0), "pages come back as they were left");
        bytes.fill(0xFF);
        // SAFETY: as above; the slice is used no more.
        unsafe { source.decommit(again, 4096) }.expect("a buffer takes all back");
        // SAFETY: committed still.
        let ends = unsafe { (again.add(4095).read(), again.add(4096).read()) };
        assert_eq!(ends, (0, 0xFF));
    }

    #[test]
    fn keeps_alignment_and_finds_gaps() {
        let mut buffer = vec![0u8; 256 * 4096];
        let source = Fixed::new(&mut buffer, 4096);
        let a = source.get(4096, 4096).expect("a page");
        let b = source.get(16 * 4096, 16 * 4096).expect("an aligned range");
        assert_eq!(b.addr().get() % (16 * 4096), 0);
        // SAFETY: reserved above, unused.
        unsafe { source.release(a, 4096) };
        assert_eq!(source.get(4096, 4096), Ok(a));
        // What follows a taken page need not be aligned.
        for _ in 0..8 {
            source.get(4096, 4096).expect("a page");
            let pair = source.get(2 * 4096, 2 * 4096).expect("an aligned range");
            assert_eq!(pair.addr().get() % (2 * 4096), 0);
        }
    }

    #[test]
    #[should_panic = "page_bytes: 8"]
    fn pages_have_16_bytes_at_least() {
        Fixed::new(&mut [0; 64], 8);
    }

    #[test]
    fn a_buffer_without_room_refuses() {
        for bytes in [0, 1, 4095, 4096] {
            let mut buffer = vec![0u8; bytes];
            let source = Fixed::new(&mut buffer, 4096);
            assert_eq!(source.page_count(), 0);
            assert_eq!(source.get(4096, 4096), Err(SourceError::Exhausted));
        }
    }
}
