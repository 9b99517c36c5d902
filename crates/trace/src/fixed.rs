//! Integers of a fixed width, little-endian, as headers and index have them.

/// The four bytes from `at` on; 0 if `bytes` ends before them.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.map_or(0, |found| u32::from_le_bytes(*found))
}

/// The eight bytes from `at` on; 0 if `bytes` ends before them.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.map_or(0, |found| u64::from_le_bytes(*found))
}
