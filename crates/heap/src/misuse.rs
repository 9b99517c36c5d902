//! What a program can do wrong with a pointer, and how it is reported.

use core::fmt;
use core::ptr::NonNull;

use hectare_pages::System;

/// A misuse of the heap. Undefined behaviour in C; here it ends the process with one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misuse {
    /// The object is free already.
    DoubleFree,
    /// The pointer never came from this heap.
    Foreign,
    /// The pointer is not a multiple of 16, as every object's address is.
    Misaligned,
    /// The pointer points into an object, not to its start.
    Interior,
    /// The pointer lies in the heap's memory where nothing is allocated: freed already, or never
    /// allocated.
    NotAllocated,
    /// A freed object was written to.
    FreeListCorrupted,
    /// The caller of a sized free claims another size or alignment than was asked for.
    WrongSize,
}

/// A misuse, and the pointer or the object at which it was detected. Reported once no lock is held,
/// since a handler of the signal that ends the program may allocate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Misused {
    pub(crate) what: Misuse,
    pub(crate) object: *mut u8,
}

impl Misuse {
    #[cold]
    pub(crate) fn at(self, object: NonNull<u8>) -> Misused {
        Misused { what: self, object: object.as_ptr() }
    }

    fn text(self) -> &'static str {
        match self {
            Self::DoubleFree => "double free or use after free: the object is free already",
            Self::Foreign => "foreign pointer: this heap never allocated it",
            Self::Misaligned => "misaligned pointer: objects lie at multiples of 16",
            Self::Interior => "interior pointer: it points into an object, not to its start",
            Self::NotAllocated => "nothing is allocated there: a double free, or a wild pointer",
            Self::WrongSize => "wrong size or alignment: the object was asked for with another",
            Self::FreeListCorrupted => "corrupted free list: a freed object was written to",
        }
    }

    /// Writes one line that names the call, the address and the cause, and ends the process.
    #[cold]
    pub fn abort(self, system: &impl System, call: &str, object: *mut u8) -> ! {
        let mut line = Line { bytes: [0; 160], len: 0 };
        for part in ["hectare: ", call, "(0x"] {
            line.push(part.as_bytes());
        }
        let address = object.addr();
        let digits = (usize::BITS - address.leading_zeros()).div_ceil(4).max(1);
        for digit in (0..digits).rev() {
            line.push(&[b"0123456789abcdef"[address >> (4 * digit) & 15]]);
        }
        for part in ["): ", self.text(), "\n"] {
            line.push(part.as_bytes());
        }
        system.fatal(&line.bytes[..line.len])
    }
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// A line of text on the stack. What does not fit is cut off.
struct Line {
    bytes: [u8; 160],
    len: usize,
}

impl Line {
    #[cold] // One copy for the many places that call it.
    fn push(&mut self, text: &[u8]) {
        for (to, from) in self.bytes.iter_mut().skip(self.len).zip(text) {
            *to = *from;
            self.len += 1;
        }
    }
}
