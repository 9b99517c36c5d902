//! The measured heap as the workloads use it: objects that carry a stamp.
//!
//! An allocation writes its stamp into the first and the last bytes of the object, as a program
//! that uses its memory would. Freeing reads them back. So a heap that hands out the same bytes
//! twice is caught, and no subject is faster because its memory is never touched.
//!
//! Bytes that were just read back are in the processor's caches when the object is freed. A
//! workload after a benchmark that frees objects nobody has looked at for long can do without
//! ([`Tally::unread`]): then `free` itself is the first to touch them.

use std::hint::black_box;

use super::{Domain, Parameters};

/// What one thread did, and whether it reads back what it frees.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    /// Sum of the stamps of all objects that were given back.
    pub(super) checksum: u64,
    /// Allocations that returned null.
    pub(super) failed: u64,
    /// Objects whose stamp had changed.
    pub(super) damaged: u64,
    /// Whether objects are freed without their stamps being read back.
    unread: bool,
}

impl Tally {
    /// The parameter by which a workload frees objects unread, and its values.
    pub(super) const READ_BACK: (&'static str, Domain) =
        ("read_back", Domain::Words(&["yes", "no"]));

    /// A tally for a thread that reads back the objects it frees, or not, as `parameters` say.
    ///
    /// # Errors
    /// When the parameters do not say.
    pub(super) fn of(parameters: &Parameters) -> anyhow::Result<Self> {
        let unread = parameters.text(Self::READ_BACK.0)? == "no";
        Ok(Self { unread, ..Self::default() })
    }

    /// Adds the tally of another thread.
    pub(super) fn add(&mut self, other: &Tally) {
        self.checksum = self.checksum.wrapping_add(other.checksum);
        self.failed += other.failed;
        self.damaged += other.damaged;
    }
}

/// One object of the measured heap, or none (a free slot, or an allocation that failed). The stamp
/// is at both ends of the used part, which is the whole object unless the workload says less.
#[derive(Clone, Copy, Debug)]
pub(super) struct Object {
    address: *mut u8,
    used_bytes: u32,
    stamp: u32,
}

// SAFETY: an object is a block of the heap under test, which may be used and freed by any thread;
// it has one owner at a time because the workloads move it.
unsafe impl Send for Object {}

impl Object {
    /// No object.
    pub(super) const NONE: Self = Self { address: std::ptr::null_mut(), used_bytes: 0, stamp: 0 };

    /// Asks for `size_bytes` (at least 1) and stamps them.
    #[inline]
    pub(super) fn allocate(size_bytes: u32, stamp: u32, tally: &mut Tally) -> Self {
        Self::allocate_part(size_bytes, size_bytes, stamp, tally)
    }

    /// Asks for `size_bytes` and uses the first `used_bytes` of them (at least 1, at most all).
    #[inline]
    pub(super) fn allocate_part(
        size_bytes: u32,
        used_bytes: u32,
        stamp: u32,
        tally: &mut Tally,
    ) -> Self {
        debug_assert!((1..=size_bytes).contains(&used_bytes));
        // SAFETY: any size may be asked for; `black_box` keeps the pair from being elided.
        let address = black_box(unsafe { libc::malloc(size_bytes as usize) }).cast::<u8>();
        let object = Self { address, used_bytes, stamp };
        if address.is_null() {
            tally.failed += 1;
        } else {
            object.write_stamp();
        }
        object
    }

    /// Whether the object has memory.
    pub(super) fn is_some(&self) -> bool {
        !self.address.is_null()
    }

    /// How much of the object is used, bytes: the size asked for, unless the workload said less. It
    /// is not 0 for an allocation that failed.
    pub(super) fn used_bytes(&self) -> u32 {
        self.used_bytes
    }

    /// Changes the size by `realloc`. Content up to the smaller size must survive.
    pub(super) fn resize(&mut self, size_bytes: u32, tally: &mut Tally) {
        self.resize_part(size_bytes, size_bytes, tally);
    }

    /// The same, but uses the first `used_bytes` (at least 1, at most all) from now on.
    pub(super) fn resize_part(&mut self, size_bytes: u32, used_bytes: u32, tally: &mut Tally) {
        debug_assert!((1..=size_bytes).contains(&used_bytes));
        self.check(tally);
        // SAFETY: the address is null or a live block that only this object names.
        let moved = unsafe { libc::realloc(self.address.cast(), size_bytes as usize) };
        if moved.is_null() {
            tally.failed += 1;
            return;
        }
        // An object without memory has no content either.
        let both_bytes = if self.is_some() { used_bytes.min(self.used_bytes) } else { 0 };
        self.address = black_box(moved).cast();
        self.used_bytes = used_bytes;
        // SAFETY: at least eight bytes when both sizes have them.
        if both_bytes >= 8 && unsafe { self.address.cast::<u64>().read_unaligned() } != self.word()
        {
            tally.damaged += 1;
        }
        self.write_stamp();
    }

    /// Writes every used byte after the first `from_bytes`.
    pub(super) fn write_from(&self, from_bytes: u32) {
        // The ends carry the stamp.
        let (first, end) = (from_bytes.max(8), self.used_bytes.saturating_sub(1));
        if self.is_some() && first < end {
            let length = (end - first) as usize;
            // SAFETY: inside the object, before its last used byte.
            let start = unsafe { self.address.add(first as usize) };
            // SAFETY: as above.
            unsafe { start.write_bytes(self.stamp as u8, length) };
            black_box(start);
        }
    }

    /// Writes one byte into each page (of 4 KiB) of the object.
    pub(super) fn touch_pages(&self) {
        self.touch_pages_from(0);
    }

    /// The same for the pages after the first `from_bytes`.
    pub(super) fn touch_pages_from(&self, from_bytes: u32) {
        if !self.is_some() {
            return;
        }
        // The first and the last bytes carry the stamp and are touched already.
        let first = from_bytes.max(8).next_multiple_of(4096);
        for offset in (first..self.used_bytes.saturating_sub(1)).step_by(4096) {
            // SAFETY: inside the object, before its last byte.
            let byte = unsafe { self.address.add(offset as usize) };
            // SAFETY: as above.
            unsafe { byte.write_volatile(self.stamp as u8) };
        }
    }

    /// Checks the stamp, unless objects are freed unread, and gives the object back.
    #[inline]
    pub(super) fn free(self, tally: &mut Tally) {
        tally.checksum = tally.checksum.wrapping_add(u64::from(self.stamp));
        if !tally.unread {
            self.check(tally);
        }
        // SAFETY: null or a live block; `self` was its only name. Stamps are never read again.
        unsafe { libc::free(self.address.cast()) };
    }

    /// The address, for workloads that write into the object themselves.
    pub(super) fn address(&self) -> *mut u8 {
        self.address
    }

    /// The stamp as written in the first eight bytes.
    #[inline]
    fn word(&self) -> u64 {
        u64::from(self.stamp) << 32 | u64::from(!self.stamp)
    }

    #[inline]
    fn write_stamp(&self) {
        if self.used_bytes >= 8 {
            // SAFETY: the block has at least eight bytes.
            unsafe { self.address.cast::<u64>().write_unaligned(self.word()) };
        }
        // SAFETY: the block has at least one byte.
        let last = unsafe { self.address.add(self.used_bytes as usize - 1) };
        if self.used_bytes != 8 {
            // SAFETY: the last byte of the block.
            unsafe { last.write_volatile(self.last_byte()) };
        }
    }

    /// The last byte of the used part. It follows the word in an object of more than eight bytes,
    /// and is the whole stamp of one with fewer; one of eight has the word alone.
    #[inline]
    fn last_byte(&self) -> u8 {
        self.stamp as u8
    }

    #[inline]
    fn check(&self, tally: &mut Tally) {
        if self.address.is_null() {
            return;
        }
        let mut sound = true;
        if self.used_bytes >= 8 {
            // SAFETY: the block has at least eight bytes and was stamped.
            sound &= unsafe { self.address.cast::<u64>().read_unaligned() } == self.word();
        }
        if self.used_bytes != 8 {
            // SAFETY: the last byte of the block.
            let last = unsafe { self.address.add(self.used_bytes as usize - 1) };
            // SAFETY: as above.
            sound &= unsafe { last.read_volatile() } == self.last_byte();
        }
        tally.damaged += u64::from(!sound);
    }
}

/// A stamp made from a place in a script and a size. The checksum is the sum of stamps.
#[inline]
pub(super) fn stamp(place: u64, size_bytes: u32) -> u32 {
    let mixed = (place ^ u64::from(size_bytes) << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Changes one byte of an object of at least 26.
    fn damage(object: &Object, place: usize) {
        assert!(place < 26);
        // SAFETY: inside the object.
        let byte = unsafe { object.address().add(place) };
        // SAFETY: as above; nothing else names the object.
        let byte = unsafe { &mut *byte };
        *byte = !*byte;
    }

    #[test]
    fn content_is_checked_where_the_used_part_ends() {
        for place in [0, 7, 24] {
            let mut tally = Tally::default();
            let object = Object::allocate_part(100, 25, 77, &mut tally);
            object.write_from(0);
            damage(&object, place);
            object.free(&mut tally);
            assert_eq!((tally.damaged, tally.checksum), (1, 77), "byte {place}");
        }
        let mut tally = Tally::default();
        let mut object = Object::allocate_part(100, 25, 77, &mut tally);
        // Bytes beyond the used part do not count.
        damage(&object, 25);
        for (size_bytes, used_bytes) in [(3000, 3000), (50, 8), (400, 100)] {
            object.resize_part(size_bytes, used_bytes, &mut tally);
            object.write_from(0);
        }
        object.free(&mut tally);
        assert_eq!((tally.damaged, tally.failed, tally.checksum), (0, 0, 77));
    }

    #[test]
    fn what_is_freed_unread_is_counted_but_not_looked_at() {
        let parameters = |read_back| Parameters::new(1, 1).with(Tally::READ_BACK.0, read_back);
        for (read_back, damaged) in [("yes", 1), ("no", 0)] {
            let mut tally = Tally::of(&parameters(read_back)).unwrap();
            let object = Object::allocate(26, 77, &mut tally);
            damage(&object, 25);
            object.free(&mut tally);
            assert_eq!((tally.damaged, tally.checksum), (damaged, 77), "{read_back}");
        }
        assert!(Tally::of(&Parameters::new(1, 1)).is_err());
    }

    #[test]
    fn what_got_no_memory_is_not_called_damaged_when_it_gets_some() {
        let mut tally = Tally::default();
        let mut object = Object { address: std::ptr::null_mut(), used_bytes: 100, stamp: 5 };
        object.write_from(0);
        object.resize(50, &mut tally);
        assert!(object.is_some());
        object.free(&mut tally);
        assert_eq!((tally.damaged, tally.checksum), (0, 5));
    }
}
