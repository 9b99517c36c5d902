//! The contents of an object: a pattern determined by its tag, so that no two are alike.
//!
//! Word `i` of the pattern depends on the tag and on `i` alone, never on the object's size, so the
//! bytes that a `realloc` keeps can be compared with the same pattern. The first [`DENSE_BYTES`]
//! are written completely. After them come words a constant step apart, including, up to
//! [`PAGEWISE_BYTES`], the first word of each page: a run of many operations has no time to fill
//! large objects. One object in [`WHOLE_ONE_IN`] is written completely, up to [`WHOLE_BYTES`].

use std::ptr::NonNull;

const DENSE_BYTES: usize = 4096;
const PAGEWISE_BYTES: usize = 1 << 20;
const WHOLE_BYTES: usize = 256 << 10;
const WHOLE_ONE_IN: u64 = 16;
const STEP_BYTES: usize = 512;
const WIDE_STEP_BYTES: usize = 64 << 10;
const WORD: usize = size_of::<u64>();

/// The contents of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payload {
    tag: u64,
}

impl Payload {
    /// The contents that `tag` names.
    #[must_use]
    pub const fn new(tag: u64) -> Self {
        Self { tag }
    }

    /// The tag, which names the contents.
    #[must_use]
    pub const fn tag(self) -> u64 {
        self.tag
    }

    #[inline]
    const fn word(self, index: usize) -> u64 {
        let start = self.tag.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        start.wrapping_add((index as u64).wrapping_mul(0xD1B5_4A32_D192_ED03))
    }

    /// The end of the dense part of an object of `bytes`.
    fn dense_end(self, bytes: usize) -> usize {
        let whole = self.tag.is_multiple_of(WHOLE_ONE_IN);
        bytes.min(if whole { WHOLE_BYTES } else { DENSE_BYTES })
    }

    /// The next place of the sparse part at or after `at`.
    const fn sparse(at: usize) -> usize {
        let step = if at < PAGEWISE_BYTES { STEP_BYTES } else { WIDE_STEP_BYTES };
        at.next_multiple_of(step)
    }

    /// Writes the part `from..bytes` into the object at `start`. If `from` is within a word, that
    /// word is written again.
    ///
    /// # Safety
    /// The object is the caller's and has `bytes` bytes.
    pub unsafe fn write(self, start: NonNull<u8>, from: usize, bytes: usize) {
        self.visit(from, bytes, |at, word, length| {
            let source = word.to_le_bytes();
            // SAFETY: `visit` gives places within the object.
            let place = unsafe { start.add(at) };
            // SAFETY: as above; no longer than a word.
            unsafe { place.copy_from_nonoverlapping(NonNull::from(&source).cast(), length) };
        });
    }

    /// The first place, in bytes from the start, whose contents are not the pattern's.
    ///
    /// # Safety
    /// As [`write`](Self::write); and the object was written with at least `bytes` bytes.
    #[must_use]
    pub unsafe fn first_difference(self, start: NonNull<u8>, bytes: usize) -> Option<usize> {
        let mut found = None;
        self.visit(0, bytes, |at, word, length| {
            // SAFETY: `visit` gives places within the object.
            let held = unsafe { read(start, at, length) };
            if held[..length] != word.to_le_bytes()[..length] && found.is_none() {
                found = Some(at);
            }
        });
        found
    }

    /// The first place that is not zero among those that this pattern would write.
    ///
    /// # Safety
    /// The object is the caller's and has `bytes` bytes, all of them initialised.
    #[must_use]
    pub unsafe fn first_not_zero(self, start: NonNull<u8>, bytes: usize) -> Option<usize> {
        let mut found = None;
        self.visit(0, bytes, |at, _, length| {
            // SAFETY: `visit` gives places within the object.
            let held = unsafe { read(start, at, length) };
            if held != [0; WORD] && found.is_none() {
                found = Some(at);
            }
        });
        found
    }

    /// Calls `f` with the place, word and length (a whole word, except at the object's end) of each
    /// part of the pattern in `from..bytes`.
    #[inline]
    fn visit(self, from: usize, bytes: usize, mut f: impl FnMut(usize, u64, usize)) {
        let dense_end = self.dense_end(bytes);
        let whole = dense_end / WORD;
        for index in from / WORD..whole {
            f(index * WORD, self.word(index), WORD);
        }
        let mut at = (whole * WORD).max(from / WORD * WORD);
        if dense_end < bytes {
            at = Self::sparse(at.max(dense_end));
        }
        while at < bytes {
            f(at, self.word(at / WORD), WORD.min(bytes - at));
            at = Self::sparse(at + WORD);
        }
    }
}

/// `length` bytes of an object, at most a word, padded with zeros.
///
/// # Safety
/// The object has `at + length` bytes.
#[inline]
unsafe fn read(start: NonNull<u8>, at: usize, length: usize) -> [u8; WORD] {
    let mut held = [0; WORD];
    // SAFETY: the caller's promise.
    let place = unsafe { start.add(at) };
    // SAFETY: the caller's promise; no longer than `held`.
    unsafe { place.copy_to_nonoverlapping(NonNull::from(&mut held).cast(), length) };
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start_of(buffer: &mut [u8]) -> NonNull<u8> {
        NonNull::from(buffer).cast()
    }

    #[test]
    fn one_changed_byte_is_found() {
        for bytes in [1, 7, 8, 9, 100, 4095, 4096] {
            for at in [0, bytes / 2, bytes - 1] {
                let mut buffer = vec![0; bytes];
                let start = start_of(&mut buffer);
                let payload = Payload::new(77);
                // SAFETY: the buffer has as many bytes.
                unsafe {
                    payload.write(start, 0, bytes);
                    assert_eq!(payload.first_difference(start, bytes), None);
                    *start.add(at).as_ptr() ^= 1;
                    assert_eq!(payload.first_difference(start, bytes), Some(at / 8 * 8));
                }
            }
        }
    }

    #[test]
    fn every_page_of_a_large_object_is_seen() {
        let bytes = 300_001;
        let mut buffer = vec![0; bytes];
        let start = start_of(&mut buffer);
        let payload = Payload::new(5);
        for page in (0..bytes).step_by(4096) {
            // SAFETY: the buffer has as many bytes.
            unsafe {
                payload.write(start, 0, bytes);
                *start.add(page).as_ptr() ^= 1;
                assert_eq!(payload.first_difference(start, bytes), Some(page));
            }
        }
    }

    #[test]
    fn what_grows_in_steps_reads_as_written_at_once() {
        for tag in [15, 16] {
            let mut random = crate::Random::new(tag);
            let mut buffer = vec![0; 400_000];
            let start = start_of(&mut buffer);
            let payload = Payload::new(tag);
            let mut have = 0;
            while have < 400_000 {
                let more = (have + 1 + random.below(have + 50)).min(400_000);
                // SAFETY: the buffer has as many bytes.
                unsafe {
                    payload.write(start, have, more);
                    assert_eq!(payload.first_difference(start, more), None, "{have} to {more}");
                }
                have = more;
            }
        }
    }
}
