//! The process's mappings of files that can be executed, read from `/proc/self/maps` without a
//! heap.

use core::ops::ControlFlow;

use crate::output::Uncancelled;

/// An executable mapping of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapping<'a> {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// Where the mapping begins in the file.
    pub(crate) offset: usize,
    /// The file's path; if the mapping has no file, its name in brackets. It is UTF-8, as formats
    /// ask for: each other byte has become `?`.
    pub(crate) path: &'a [u8],
}

/// The longest line of the file: two numbers, rights, offset, device, inode, and a path.
pub(crate) const LONGEST_LINE: usize = 4096 + 256;

/// Calls `visit` for each executable mapping that has a name, in order of address, until it breaks.
/// Mappings whose line is longer than `LINE_BYTES` are skipped; the call needs that much of the
/// stack. `None` if the file cannot be read.
pub(crate) fn each_mapping<const LINE_BYTES: usize>(
    visit: impl FnMut(Mapping<'_>) -> ControlFlow<()>,
) -> Option<()> {
    let _uncancelled = Uncancelled::begin();
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a C string.
    let file = unsafe { libc::open(c"/proc/self/maps".as_ptr(), flags) };
    if file < 0 {
        return None;
    }
    each_line(
        &mut [0; LINE_BYTES],
        |buffer| {
            // SAFETY: the buffer can be written for its length.
            let read = unsafe { libc::read(file, buffer.as_mut_ptr().cast(), buffer.len()) };
            usize::try_from(read).unwrap_or(0)
        },
        visit,
    );
    // SAFETY: opened above, and used no more.
    unsafe { libc::close(file) };
    Some(())
}

/// Cuts what `read` gives (0 bytes: the end) into lines. A line that is too long is skipped.
fn each_line(
    buffer: &mut [u8],
    mut read: impl FnMut(&mut [u8]) -> usize,
    mut visit: impl FnMut(Mapping<'_>) -> ControlFlow<()>,
) {
    let mut filled = 0;
    let mut too_long = false;
    loop {
        let got = read(&mut buffer[filled..]);
        filled += got;
        let mut begin = 0;
        while let Some(length) = buffer[begin..filled].iter().position(|&byte| byte == b'\n') {
            let line = &mut buffer[begin..begin + length];
            make_text(line);
            begin += length + 1;
            let mapping = if core::mem::take(&mut too_long) { None } else { parse(line) };
            if mapping.is_some_and(|mapping| visit(mapping).is_break()) {
                return;
            }
        }
        if got == 0 {
            return;
        }
        buffer.copy_within(begin..filled, 0);
        filled -= begin;
        if filled == buffer.len() {
            too_long = true;
            filled = 0;
        }
    }
}

/// Replaces each byte that is no UTF-8.
#[inline(never)]
fn make_text(bytes: &mut [u8]) {
    let mut rest = bytes;
    loop {
        let length = character_bytes(rest);
        if length.is_none()
            && let Some(first) = rest.first_mut()
        {
            *first = b'?';
        }
        let Some(next) = rest.get_mut(length.unwrap_or(1)..) else { return };
        rest = next;
    }
}

/// How many bytes the character at the start of `bytes` has, if there is one. (The standard
/// library's search is four times as much code.)
fn character_bytes(bytes: &[u8]) -> Option<usize> {
    let (&first, others) = bytes.split_first()?;
    if first.is_ascii() {
        return Some(1);
    }
    let length = first.leading_ones() as usize;
    let mut value = u32::from(first) & (0x7f >> length);
    for &byte in others.get(..length - 1)? {
        if byte >> 6 != 0b10 {
            return None;
        }
        value = value << 6 | u32::from(byte & 0x3f);
    }
    // The value is no surrogate, and has no more bytes than it needs.
    (length > 1 && char::from_u32(value)?.len_utf8() == length).then_some(length)
}

/// `559a8c000000-559a8c021000 r-xp 00002000 fd:01 123    /usr/bin/true`
fn parse(line: &[u8]) -> Option<Mapping<'_>> {
    let mut rest = line;
    let mut field = || {
        let length = rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len());
        let (field, tail) = rest.split_at(length);
        rest = tail.trim_ascii_start();
        field
    };
    let (range, rights, offset) = (field(), field(), field());
    field(); // The device.
    field(); // The inode.
    let dash = range.iter().position(|&byte| byte == b'-')?;
    if rights.get(2) != Some(&b'x') || rest.is_empty() {
        return None;
    }
    Some(Mapping {
        start: hexadecimal(&range[..dash])?,
        end: hexadecimal(&range[dash + 1..])?,
        offset: hexadecimal(offset)?,
        path: rest,
    })
}

fn hexadecimal(text: &[u8]) -> Option<usize> {
    text.iter().try_fold(0usize, |number, &digit| {
        let digit = char::from(digit).to_digit(16)?;
        Some(number << 4 | digit as usize)
    })
}
