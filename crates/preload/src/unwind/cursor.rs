//! Reading unwind tables where they lie.

/// Reads a value of any alignment.
///
/// # Safety
/// `address` is that of as many readable bytes.
pub(super) unsafe fn read<T: Copy>(address: usize) -> T {
    // SAFETY: the caller's promise.
    unsafe { core::ptr::with_exposed_provenance::<T>(address).read_unaligned() }
}

/// How a pointer is written (Linux Standard Base, "DWARF Exception Header Encoding").
const ABSOLUTE: u8 = 0x00;
const UNSIGNED_4: u8 = 0x03;
const UNSIGNED_8: u8 = 0x04;
const SIGNED_4: u8 = 0x0b;
const SIGNED_8: u8 = 0x0c;
const FORM: u8 = 0x0f;
const RELATIVE_TO_ITSELF: u8 = 0x10;
const RELATION: u8 = 0x70;

/// A place in a table, and where what is read there ends. Invariant: all bytes between are readable.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor {
    at: usize,
    end: usize,
}

impl Cursor {
    /// # Safety
    /// `bytes` are readable at `at`.
    pub(super) unsafe fn new(at: usize, bytes: usize) -> Self {
        Self { at, end: at + bytes }
    }

    pub(super) fn address(&self) -> usize {
        self.at
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at >= self.end
    }

    /// The next value; `None` behind the end, as of all that follow.
    pub(super) fn next<T: Copy>(&mut self) -> Option<T> {
        if self.end - self.at < size_of::<T>() {
            return None;
        }
        // SAFETY: within the bytes of the invariant.
        let value = unsafe { read(self.at) };
        self.at += size_of::<T>();
        Some(value)
    }

    /// The next `bytes`, which are passed over.
    pub(super) fn part(&mut self, bytes: usize) -> Option<Cursor> {
        if self.end - self.at < bytes {
            return None;
        }
        let part = Self { at: self.at, end: self.at + bytes };
        self.at = part.end;
        Some(part)
    }

    /// An unsigned number in LEB128.
    pub(super) fn unsigned(&mut self) -> Option<usize> {
        let mut number = 0;
        for shift in (0..usize::BITS).step_by(7) {
            let byte: u8 = self.next()?;
            number |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// A signed number in LEB128.
    pub(super) fn signed(&mut self) -> Option<isize> {
        let mut number = 0;
        for shift in (0..usize::BITS).step_by(7) {
            let byte: u8 = self.next()?;
            number |= isize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                let unused = usize::BITS.saturating_sub(shift + 7);
                return Some(number << unused >> unused);
            }
        }
        None
    }

    /// A pointer; `None` also if it is written in a way that linkers do not use in these tables.
    pub(super) fn pointer(&mut self, encoding: u8) -> Option<usize> {
        let base = match encoding & RELATION {
            RELATIVE_TO_ITSELF => self.at,
            0 => 0,
            _ => return None,
        };
        Some(base.wrapping_add(self.length(encoding)?))
    }

    /// A length, written in the form of a pointer, whatever that would be relative to.
    pub(super) fn length(&mut self, encoding: u8) -> Option<usize> {
        match encoding & FORM {
            ABSOLUTE | UNSIGNED_8 | SIGNED_8 => self.next::<usize>(),
            UNSIGNED_4 => self.next::<u32>().map(|number| number as usize),
            SIGNED_4 => self.next::<i32>().map(|number| number as usize),
            _ => None,
        }
    }
}
