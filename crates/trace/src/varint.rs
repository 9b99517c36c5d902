//! Integers in one to nine bytes. The first byte tells the length.
//!
//! ```text
//!  bytes  first byte     payload bits
//!    1    xxxxxxx1             7
//!    2    xxxxxx10            14
//!    …
//!    8    10000000            56
//!    9    00000000            64
//! ```
//!
//! The length follows from the first byte's trailing zeros, so writing and reading need no loop. A
//! value of up to 56 bits is one shift and one eight-byte store, whose extra bytes are zero. LEB128
//! spends a branch per byte instead.

/// The longest encoding, bytes.
pub const MAX_BYTES: usize = 9;

/// Number of bytes that `value` takes.
#[inline(always)]
pub const fn len(value: u64) -> usize {
    if value >> 56 != 0 {
        return 9;
    }
    let bits = 64 - (value | 1).leading_zeros() as usize;
    // ⌈bits / 7⌉ for 1 ≤ bits ≤ 56, without a division.
    (bits * 9 + 64) >> 6
}

/// Writes `value` at `out[at..]` and returns the place after it.
///
/// Zeroes up to eight bytes after the encoding. `out` must extend [`MAX_BYTES`] beyond `at`.
///
/// # Panics
/// When `out` is too short.
#[inline(always)]
pub fn put(out: &mut [u8], at: usize, value: u64) -> usize {
    let length = len(value);
    if length == MAX_BYTES {
        out[at] = 0;
        out[at + 1..at + 9].copy_from_slice(&value.to_le_bytes());
    } else {
        let word = value << length | 1 << (length - 1);
        out[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    at + length
}

/// Reads the value at `bytes[at..]`: the value and the place after it, or `None` when the bytes end
/// too early.
#[inline]
pub fn get(bytes: &[u8], at: usize) -> Option<(u64, usize)> {
    let rest = bytes.get(at..)?;
    let length = first_byte_len(*rest.first()?);
    let value = if length < MAX_BYTES && rest.len() >= 8 {
        let word = u64::from_le_bytes(*rest.first_chunk()?);
        (word >> length) & (u64::MAX >> (64 - 7 * length))
    } else {
        get_at_end(rest, length)?
    };
    Some((value, at + length))
}

/// Reads a value that is near the end of the bytes, or nine bytes long.
#[cold]
fn get_at_end(rest: &[u8], length: usize) -> Option<u64> {
    let encoded = rest.get(..length)?;
    let mut word = [0; 8];
    if length == MAX_BYTES {
        word.copy_from_slice(&encoded[1..]);
        Some(u64::from_le_bytes(word))
    } else {
        word[..length].copy_from_slice(encoded);
        Some(u64::from_le_bytes(word) >> length)
    }
}

#[inline]
const fn first_byte_len(first: u8) -> usize {
    first.trailing_zeros() as usize + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(value: u64) {
        let mut out = [0xAA; 32];
        let end = put(&mut out, 3, value);
        assert_eq!(end - 3, len(value), "length of {value}");
        assert_eq!(get(&out, 3), Some((value, end)), "{value} in a long buffer");
        assert_eq!(get(&out[..end], 3), Some((value, end)), "{value} at the end of its buffer");
        assert_eq!(get(&out[..end - 1], 3), None, "{value} cut short");
    }

    #[test]
    fn every_length_survives_at_its_borders() {
        for bits in 0..64 {
            let value = 1_u64 << bits;
            round_trip(value - 1);
            round_trip(value);
            round_trip(value + 1);
        }
        round_trip(u64::MAX);
    }

    #[test]
    fn random_values_survive() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..100_000 {
            let value = random.u64(..) >> random.u32(0..64);
            round_trip(value);
        }
    }

    #[test]
    fn small_values_take_one_byte() {
        assert_eq!(len(0), 1);
        assert_eq!(len(127), 1);
        assert_eq!(len(128), 2);
        assert_eq!(len((1 << 56) - 1), 8);
        assert_eq!(len(1 << 56), 9);
    }
}
